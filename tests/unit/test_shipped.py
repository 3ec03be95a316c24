"""What the package has beside the program, for those who install it without a checkout."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from remora.cli import group

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["default"], "config/remora.toml"),
        (["default", "--all"], "config/options.toml"),
        (["alerts"], "config/alerts.yml"),
        (["alerts", "--scrape"], "config/prometheus.yml"),
        (["dashboard"], "config/grafana-dashboard.json"),
        (["changelog"], "CHANGELOG.md"),
        (["units", "remora.sysusers"], "systemd/remora.sysusers"),
        (["units", "remora-land.timer"], "systemd/remora-land.timer"),
    ],
    ids=" ".join,
)
def test_the_package_prints_its_files(words: list[str], file: str) -> None:
    """Each is printed as it lies in the repository, byte for byte."""
    printed = CliRunner().invoke(group, ["config", *words])

    assert printed.stdout_bytes == (ROOT / file).read_bytes()


@pytest.mark.parametrize(
    "words", [["units"], *(["units", f"remora-{name}.service"] for name in ("sequencer", "land"))], ids=" ".join
)
def test_units_start_the_program_that_prints_them(words: list[str]) -> None:
    """The unit names the command of this environment, wherever that lies, and is else as in the repository."""
    printed = CliRunner().invoke(group, ["config", *words]).stdout
    shipped = (ROOT / "systemd" / (words[1] if words[1:] else "remora.service")).read_text()

    assert printed == shipped.replace("/opt/remora/bin/remora", f"{sys.prefix}/bin/remora")
    assert f"ExecStart={sys.prefix}/bin/remora " in printed


def test_all_files_beside_the_program_go_into_the_wheel() -> None:
    """Each is a link to a file of the repository that exists, and what is put into the wheel takes them all in."""
    folder = ROOT / "daemon/remora/shipped"
    links = sorted(folder.iterdir())
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["remora"]

    assert "shipped/*" in data
    assert len(links) >= 8
    assert all(each.is_symlink() and each.is_file() for each in links)
