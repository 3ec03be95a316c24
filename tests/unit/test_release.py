"""The version of a release: one number, in every file that an operator takes it from."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()

NUMBER = r"(\d+\.\d+\.\d+)"


def test_the_installed_package_has_the_version_of_the_sources() -> None:
    """What pip shows is the version of pyproject.toml."""
    assert metadata.version("remora") == VERSION


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("daemon/remora/__init__.py", rf'^__version__ = "{NUMBER}"$'),
        ("deploy/helm/remora/Chart.yaml", rf"^version: {NUMBER}$"),
        ("deploy/helm/remora/Chart.yaml", rf'^appVersion: "{NUMBER}"$'),
        ("deploy/kustomize/sqlite/remora.yaml", rf'app\.kubernetes\.io/version: "{NUMBER}"'),
        ("deploy/kustomize/sqlite/remora.yaml", rf"image: remora:{NUMBER}"),
        ("deploy/kustomize/rados/remora.yaml", rf'app\.kubernetes\.io/version: "{NUMBER}"'),
        ("deploy/kustomize/rados/remora.yaml", rf"image: remora:{NUMBER}"),
        ("deploy/kustomize/example/kustomization.yaml", rf'newTag: "{NUMBER}"'),
        ("deploy/cephadm/remora.yaml", rf"remora:{NUMBER}"),
        ("docs/kubernetes.md", rf"remora:{NUMBER}"),
        ("README.md", rf"remora_{NUMBER}_amd64\.deb"),
        ("README.md", rf"remora-{NUMBER}(?:-image\.tar|\.tgz)"),
        ("README.md", rf"localhost/remora:{NUMBER}"),
    ],
)
def test_every_file_has_the_version_of_the_sources(file: str, pattern: str) -> None:
    """Wherever the file names a version of remora, it is that of pyproject.toml; and it names one."""
    found = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)

    assert set(found) == {VERSION}


def test_the_packages_take_their_version_from_the_sources() -> None:
    """The Debian package has a placeholder that scripts/build fills in, and no version of its own."""
    assert "Version: @VERSION@\n" in (ROOT / "deploy/deb/control.in").read_text()


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    """The releases stand newest first, each once, with days that do not go back, below what is not released yet."""
    releases = RELEASE.findall(CHANGELOG)
    numbers = [tuple(map(int, number.split("."))) for number, _ in releases]
    days = [date.fromisoformat(day) for _, day in releases]

    assert releases[0][0] == VERSION
    assert numbers == sorted(set(numbers), reverse=True)
    assert days == sorted(days, reverse=True)
    headings = re.findall(r"^## .*$", CHANGELOG, re.MULTILINE)
    assert headings == ["## [Unreleased]", *(f"## [{number}] - {day}" for number, day in releases)]


def test_a_store_of_each_release_is_kept() -> None:
    """Of each release there are files that its own wheel has left, for the test that delivers what is in them."""
    kept = {path.name for path in (ROOT / "tests/data").glob("store-of-release-*.tar.xz")}

    assert kept == {f"store-of-release-{number}.tar.xz" for number, _ in RELEASE.findall(CHANGELOG)}
