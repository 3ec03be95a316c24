"""What scripts/build makes: the same bytes each time, and a package that installs, upgrades, goes back and leaves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from devkit.processes.programs import program

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.full("the package is a release's"), pytest.mark.timeout(3600)]

STEPS = 23
"""How many things scripts/try-package looks at, without a package of the pipeline."""

MAINTAINER = "The maintainers <maintainers@remora.example>"


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file."""
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}


def build(sources: Path, folder: Path, epoch: str) -> Path:
    """Build from a folder of sources into another one, with a time that stands for that of the last commit."""
    done = subprocess.run(
        [sources / "scripts/build", folder], capture_output=True, text=True, check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch, "REMORA_MAINTAINER": MAINTAINER},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of these sources."""
    for name in ("debootstrap", "unshare", "go"):
        program(name, name)
    return build(ROOT, tmp_path_factory.mktemp("dist"), "1700000000")


def test_the_same_sources_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """A copy of the sources in another folder gives wheels, package, SBOMs, chart and image of the very same bytes."""
    copy = tmp_path / "another" / "place"
    copy.mkdir(parents=True)
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    packed = subprocess.run(
        ["tar", "--create", "--null", "--files-from", "-", "--ignore-failed-read"],
        cwd=ROOT, input=files, capture_output=True, check=True,
    ).stdout  # fmt: skip
    subprocess.run(["tar", "--extract"], cwd=copy, input=packed, check=True)
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)

    again = build(copy, tmp_path / "dist", "1700000000")

    assert digests(again) == digests(built)
    suffixes = [".deb", ".gz", ".gz", ".json", ".json", ".tar", ".tgz", ".whl", ".whl"]
    assert sorted(each.suffix for each in built.iterdir()) == suffixes
    (wheel,) = built.glob("remorad-*.whl")
    assert "manylinux_2_17_x86_64" in wheel.name


def test_wheel_and_sources_are_whole(built: Path) -> None:
    """The wheel has the files that an installation needs beside the program, and the sources have them and the docs."""
    (wheel,), (sources,) = built.glob("remorad-*.whl"), built.glob("remorad-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sources) as sdist:
        packed, files = set(archive.namelist()), {each.name.partition("/")[2] for each in sdist if each.isreg()}

    shipped = {f"remora/shipped/{each.name}" for each in (ROOT / "daemon/remora/shipped").iterdir()}
    assert shipped <= packed
    assert {f"daemon/{each}" for each in shipped} | {"CHANGELOG.md", "docs/operations.md", "setup.py"} <= files
    assert {"systemd/remora.service", "config/remora.toml", "daemon/remora/codec/_compiled.pyx"} <= files


def test_the_pipelines_wheel_has_all_of_it_and_the_daemons_none(built: Path) -> None:
    """Modules, templates, licence and entry points are in its wheel and sources, which ask for the daemon's version."""
    (wheel,), (daemons,) = built.glob("remorad_pipeline-*-py3-none-any.whl"), built.glob("remorad-*.whl")
    (sources,) = built.glob("remorad_pipeline-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sources) as sdist, zipfile.ZipFile(daemons) as others:
        packed, files = set(archive.namelist()), {each.name.partition("/")[2] for each in sdist if each.isreg()}
        (metadata,) = [name for name in packed if name.endswith(".dist-info/METADATA")]
        said = archive.read(metadata).decode()
        beside = [name for name in others.namelist() if re.match("remora_pipeline|remora/(replay|simulate)", name)]

    folder = ROOT / "pipeline"
    wanted = {
        str(each.relative_to(folder))
        for each in (folder / "remora_pipeline").rglob("*")
        if each.suffix in {".py", ".jinja", ".properties"} or each.name == "py.typed"
    }
    assert wanted <= packed & files
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    assert any(name.endswith(".dist-info/entry_points.txt") for name in packed)
    version = re.search(r"(?m)^Version: (.*)$", said)
    assert version is not None
    assert f"Requires-Dist: remorad=={version[1]}\n" in said
    assert beside == []


def test_the_image_is_a_valid_archive_without_a_compiler(built: Path, tmp_path: Path) -> None:
    """Each blob has the digest that names it, the layer holds no compiler or installer, the SBOM says what it holds,
    and nothing names an image of the host that built it."""
    (archive,), (bill,) = built.glob("*-image.tar"), built.glob("*-image.sbom.json")
    subprocess.run(["tar", "--extract", "--file", archive], cwd=tmp_path, check=True)
    for blob in (tmp_path / "blobs/sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    assert json.loads((tmp_path / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads((tmp_path / "index.json").read_text())["manifests"]
    manifest = json.loads(blob_of(tmp_path, entry).read_text())
    config = json.loads(blob_of(tmp_path, manifest["config"]).read_text())
    (layer,) = manifest["layers"]
    with tarfile.open(blob_of(tmp_path, layer)) as files:
        names = {each.name for each in files.getmembers()}
    programs = {name.rpartition("/")[2] for name in names if re.match(r"(usr/(local/)?|opt/remora/)?s?bin/", name)}

    assert "annotations" not in manifest
    assert config["config"]["User"] == "10001:10001"
    assert config["created"] == "2023-11-14T22:13:20Z"
    assert "opt/remora/bin/remora" in names
    assert not programs & {"cc", "gcc", "c99", "cpp", "g++", "as", "ld", "make", "pip", "pip3"}
    assert not names & {"etc/build-host-ca.pem", "etc/pip.conf"}
    listed = {each["name"] for each in json.loads(bill.read_text())["components"]}
    assert {"remorad", "aiokafka", "librados2", "libc6"} <= listed


def blob_of(layout: Path, descriptor: dict[str, str]) -> Path:
    """Where a descriptor's blob lies."""
    return layout / "blobs" / descriptor["digest"].replace(":", "/")


@pytest.mark.parametrize(("which", "least"), [("[0-9].sbom.json", 20), ("-image.sbom.json", 80)])
def test_the_list_of_packages_names_their_licences(built: Path, which: str, least: int) -> None:
    """Each package in the environment of the Debian package, or in the image, has its version and licences there."""
    (bill,) = built.glob(f"*{which}")
    components = json.loads(bill.read_text())["components"]

    assert len(components) >= least
    assert [each["name"] for each in components if not (each["version"] and each.get("licenses"))] == []
    named = [licence for each in components for licence in each["licenses"]]
    assert all(each.get("expression") or each["license"].get("id") or each["license"]["name"] for each in named)


def test_the_package_comes_and_goes(built: Path) -> None:
    """Lintian is content; in a clean Debian it keeps a changed configuration over an upgrade and leaves nothing."""
    (package,) = built.glob("remora_*.deb")

    done = subprocess.run([ROOT / "scripts/try-package", package], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["ok"] * STEPS
