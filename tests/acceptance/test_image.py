"""The image as charts run it: hardened, on volumes as a kubelet gives them, from its first start to its second."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.clusters.image import HERE, MEMORY_BYTES, Container, Image, image, memory_limit, running_container
from devkit.clusters.kafka import Kafka, create_topic
from devkit.readers.consumer import read_until
from remora.model.exits import Exit
from support.ingest import ndjson, record

__all__ = ["image"]

pytestmark = [pytest.mark.kafka, pytest.mark.full("the image is a release's")]

ROOT = Path(__file__).parents[2]
VOLUME = "/var/lib/remora"


@pytest.fixture
def folders() -> Iterator[tuple[Path, Path]]:
    """Where the volumes of queues and of sockets lie."""
    with tempfile.TemporaryDirectory(prefix="remora-image-") as name:
        yield Path(name) / "queues", Path(name) / "run"
        as_root("rm", "-rf", f"{name}/queues", f"{name}/run")


def as_root(*command: str | Path) -> None:
    """Run a command as root, which the kubelet is."""
    subprocess.run([*(["sudo"] if os.geteuid() else []), *map(str, command)], check=True)


def mount_as_kubelet(folder: Path, group: int, mode: str) -> None:
    """Give a volume's files to the pod's fsGroup, as `fsGroupChangePolicy: Always` does before each start."""
    as_root("mkdir", "-p", folder)
    as_root("chmod", mode, folder)
    as_root("chown", "-R", f":{group}", folder)
    as_root("find", folder, "-type", "d", "-exec", "chmod", "g+rwxs", "{}", "+")
    as_root("find", folder, "-type", "f", "-exec", "chmod", "g+rw", "{}", "+")


def status_of(pid: int) -> dict[str, str]:
    """The fields of the status of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def assert_hardened(container: Container, user: str) -> None:
    """The daemon's process is the user asked for, and has no capability, seccomp's filter, and its memory's limit."""
    pid = int(await container.field("State.Pid"))
    status = status_of(pid)
    uid, gid = user.split(":")

    assert (status["Uid"].split(), status["Gid"].split()) == ([uid] * 4, [gid] * 4)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert memory_limit(pid) == MEMORY_BYTES
    assert await container.python("import os; print(os.access('/etc', os.W_OK), os.statvfs('/').f_flag & 1)") == (
        "False 1\n"
    )


@pytest.mark.parametrize(("user", "group"), [("10001:10001", 10001), ("1000650000:0", 1000650000)])
async def test_the_image_delivers_on_a_kubelets_volumes(
    image: Image, kafka: Kafka, folders: tuple[Path, Path], user: str, group: int
) -> None:
    """As its own user or as that of OpenShift it starts on a fresh volume, delivers, drains, stops; and again."""
    queues, run = folders
    topic = await create_topic(kafka.address)
    sent: list[str] = []
    for start in ("first", "second"):
        mount_as_kubelet(queues, group, "0755")
        mount_as_kubelet(run, group, "0777")
        volumes = {queues: VOLUME, run: "/run/remora"}
        environment = {"REMORA_OWNERSHIP_HOST_ID": "pod-0", "REMORA_OWNERSHIP_DISCOVERY_INTERVAL": "500ms"}
        async with running_container(
            image, user, volumes, "--group-add", str(group), environment=environment
        ) as container:
            await assert_hardened(container, user)
            if start == "first":
                made = await container.command("topic", "create", topic, "--endpoint", f"kafka://{kafka.address}")
                assert made.code == Exit.OK, made.err
            keys = [f"{start}-{number}" for number in range(50)]
            stored = await container.command("send", topic, stdin=ndjson(*map(record, keys)))
            assert stored.code == Exit.OK, stored.err
            sent += keys
            records = await read_until(kafka.address, topic, len(sent))
            drained = await container.command("drain", "--timeout", "120")

            assert drained.code == Exit.OK, drained.err
            assert await container.stop() == Exit.OK, await container.log()
        assert sorted(each.what[1] for each in records) == sorted(sent)


async def python(image: Image, script: str) -> str:
    """What a script prints that the image's Python runs."""
    done = await image.podman(
        "run", "--rm", *HERE, "--entrypoint", "/opt/remora/bin/python", image.name, "-c", script,
    )  # fmt: skip
    assert done.code == 0, done.err
    return done.out.decode()


async def test_the_image_has_nothing_that_builds(image: Image) -> None:
    """No compiler, linker or installer of Python packages is in the image, and Ceph's library is."""
    script = (
        "import ctypes.util, importlib.util, shutil;"
        "print([name for name in ('cc', 'gcc', 'c99', 'cpp', 'g++', 'as', 'ld', 'make', 'pip', 'pip3')"
        " if shutil.which(name)], importlib.util.find_spec('pip'),"
        " importlib.util.find_spec('remora.codec._compiled') is not None, ctypes.CDLL('librados.so.2') is not None)"
    )

    assert await python(image, script) == "[] None True True\n"


async def test_the_packages_of_the_image_are_those_of_the_constraints(image: Image) -> None:
    """Each Python package in the image has the version that deploy/constraints.txt gives it."""
    script = "import importlib.metadata as m;print(*(f'{each.name}=={each.version}' for each in m.distributions()))"
    lines = (ROOT / "deploy/constraints.txt").read_text().splitlines()
    wanted = {canonical(line.split()[0]) for line in lines if re.match(r"\w", line)}

    found = {canonical(each) for each in (await python(image, script)).split()}

    of_debian = {each for each in found if each.startswith(("gssapi==", "decorator=="))}
    assert len(found - of_debian) >= 20
    assert {each for each in found - of_debian - wanted if not each.startswith("remorad==")} == set()


def canonical(package: str) -> str:
    """A package with its version, its name written as indexes do."""
    name, _, version = package.partition("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version}"
