"""The specification for cephadm is one, as Ceph's own classes of both releases see it."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from remora import config

ROOT = Path(__file__).parents[2]
SPECIFICATION = ROOT / "deploy/cephadm/remora.yaml"

VALIDATE = """
import json, sys
from ceph.deployment.service_spec import ServiceSpec
spec = ServiceSpec.from_json(json.load(sys.stdin))
spec.validate()
print(json.dumps({"name": spec.service_name(), "config": spec.config_json()}))
"""


def python_of(release: int) -> list[str]:
    """A Python that has the classes of a release of Ceph: Debian's own, or that of the folder of Ceph 20.2."""
    if release == 16:
        return ["/usr/bin/python3"]
    done = subprocess.run([ROOT / "scripts/dev/ceph20-root"], capture_output=True, text=True, check=True)
    return [*(["sudo"] if os.geteuid() else []), "chroot", done.stdout.strip(), "/usr/bin/python3"]


@pytest.mark.ceph
@pytest.mark.full("the specification is a release's")
@pytest.mark.parametrize("release", [16, 20])
def test_ceph_takes_the_specification(release: int) -> None:
    """Ceph's ServiceSpec reads and validates it, and hands every member of it to the container."""
    specification = yaml.safe_load(SPECIFICATION.read_text())

    done = subprocess.run(
        [*python_of(release), "-c", VALIDATE], input=json.dumps(specification), capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout)
    assert taken["name"] == "container.remora"
    assert specification["spec"].items() <= taken["config"].items()


def test_remora_takes_what_the_specification_writes() -> None:
    """The configuration in it is taken by remora, and names the files that lie beside it."""
    spec = yaml.safe_load(SPECIFICATION.read_text())["spec"]

    settings = config.from_document(tomllib.loads(spec["files"]["etc/remora.toml"]))

    mounted = {name.replace("etc/", f"{spec['volume_mounts']['etc']}/", 1) for name in spec["files"]}
    assert settings.store.kind == "rados"
    assert {settings.rados.conf, settings.rados.keyring} <= mounted
    assert settings.admin.listen.endswith(f":{spec['ports'][0]}")
    assert (spec["uid"], spec["gid"]) == (10001, 10001)
