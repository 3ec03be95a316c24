"""The version of a release: one number, in every file that an operator takes it from."""

from __future__ import annotations

import re
import subprocess
import tomllib
from datetime import date
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()

NUMBER = r"(\d+\.\d+\.\d+(?:\.?(?:dev|a|b|rc)\d+)?)"
CHART_NUMBER = r"(\d+\.\d+\.\d+(?:-(?:dev|a|b|rc)\d+)?)"


def test_the_installed_packages_have_the_version_of_the_sources() -> None:
    """What `remora --version` and the metric of the build show is the version of pyproject.toml."""
    assert metadata.version("remorad") == metadata.version("remorad-pipeline") == VERSION


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("daemon/remora/__init__.py", rf'^__version__ = "{NUMBER}"$'),
        ("pyproject.toml", rf'"remorad-pipeline=={NUMBER}"'),
        ("pipeline/pyproject.toml", rf'^version = "{NUMBER}"$'),
        ("pipeline/pyproject.toml", rf'"remorad=={NUMBER}"'),
        ("deploy/helm/remora/Chart.yaml", rf'^appVersion: "{NUMBER}"$'),
        ("deploy/kustomize/sqlite/remora.yaml", rf'app\.kubernetes\.io/version: "{NUMBER}"'),
        ("deploy/kustomize/sqlite/remora.yaml", rf"image: remora:{NUMBER}"),
        ("deploy/kustomize/rados/remora.yaml", rf'app\.kubernetes\.io/version: "{NUMBER}"'),
        ("deploy/kustomize/rados/remora.yaml", rf"image: remora:{NUMBER}"),
        ("deploy/kustomize/example/kustomization.yaml", rf'newTag: "{NUMBER}"'),
        ("deploy/cephadm/remora.yaml", rf"remora:{NUMBER}"),
        ("deploy/compose/compose.yaml", rf"image: remora:{NUMBER}"),
        ("docs/kubernetes.md", rf"remora:{NUMBER}"),
        ("docs/install.md", rf"remora-{NUMBER}-image\.tar"),
        ("docs/install.md", rf"localhost/remora:{NUMBER}"),
    ],
)
def test_every_file_has_the_version_of_the_sources(file: str, pattern: str) -> None:
    """Wherever the file names a version of remora, it is that of pyproject.toml; and it names one."""
    found = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)

    assert set(found) == {VERSION}


@pytest.mark.parametrize(
    ("written_as", "python", "other"),
    [
        ("chart_version", "0.2.0.dev0", "0.2.0-dev0"),
        ("chart_version", "1.0.0rc2", "1.0.0-rc2"),
        ("chart_version", "1.0.0", "1.0.0"),
        ("deb_version", "0.2.0.dev0", "0.2.0~dev0"),
        ("deb_version", "1.0.0", "1.0.0"),
    ],
)
def test_a_version_is_written_as_charts_and_debian_do(tmp_path: Path, written_as: str, python: str, other: str) -> None:
    """What comes before a release is one of Semantic Versioning's pre-releases, and sorts before it in Debian."""
    (tmp_path / "pyproject.toml").write_text(f'version = "{python}"\n')
    script = f"source {ROOT}/scripts/dev/common.sh; repo={tmp_path}; {written_as}"

    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == f"{other}\n"


def test_the_chart_has_the_version_of_the_sources() -> None:
    """Its own version is that of pyproject.toml, as Semantic Versioning writes it."""
    (found,) = re.findall(
        rf"^version: {CHART_NUMBER}$", (ROOT / "deploy/helm/remora/Chart.yaml").read_text(), re.MULTILINE
    )

    assert Version(found) == Version(VERSION)


def test_the_packages_take_their_version_from_the_sources() -> None:
    """The Debian packages have a placeholder that scripts/build fills in, and no version of their own."""
    for name in ("control.in", "pipeline.control.in"):
        assert "Version: @VERSION@\n" in (ROOT / "deploy/deb" / name).read_text()
    assert "remora (= @VERSION@)" in (ROOT / "deploy/deb/pipeline.control.in").read_text()


def test_the_newest_release_of_the_changelog_is_this_version_or_before_it() -> None:
    """The releases stand newest first, each once, with days that do not go back, below what is not released yet; what
    is between two releases has a version of its own."""
    releases = RELEASE.findall(CHANGELOG)
    numbers = [tuple(map(int, number.split("."))) for number, _ in releases]
    days = [date.fromisoformat(day) for _, day in releases]

    if Version(VERSION).is_prerelease:
        assert Version(releases[0][0]) < Version(VERSION)
    else:
        assert releases[0][0] == VERSION
    assert numbers == sorted(set(numbers), reverse=True)
    assert days == sorted(days, reverse=True)
    headings = re.findall(r"^## .*$", CHANGELOG, re.MULTILINE)
    assert headings == ["## [Unreleased]", *(f"## [{number}] - {day}" for number, day in releases)]


def test_a_store_of_each_release_is_kept() -> None:
    """Of each release there are files that its own wheel has left, for the test that delivers what is in them."""
    kept = {path.name for path in (ROOT / "tests/data").glob("store-of-release-*.tar.xz")}

    assert kept == {f"store-of-release-{number}.tar.xz" for number, _ in RELEASE.findall(CHANGELOG)}
