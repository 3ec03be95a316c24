"""Commands that other distributions offer, above all the pipeline's, where they are installed and where not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import remora
from remora import __version__
from remora.cli import ELSEWHERE
from remora.model.exits import Exit
from support.offered import offer

pytestmark = pytest.mark.long("each command is a process of its own, and its help imports all others")

PIPELINE = Path(__file__).parents[2] / "pipeline"
OFFERED = {each: f"remora_pipeline.cli.{each}:{each}" for each in ELSEWHERE}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """All packages of this environment but those of remora, as links in a folder that Python looks into."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for each in Path(click.__file__).parents[1].iterdir():
        if not each.name.startswith(("remora", "__editable__")):
            (folder / each.name).symlink_to(each)
    return folder


def run(*arguments: str, path: tuple[Path, ...]) -> subprocess.CompletedProcess[str]:
    """What the command says to whom these folders are Python's path, beside the daemon's."""
    folders = [Path(remora.__file__).parents[1], *path]
    return subprocess.run(
        [sys.executable, "-S", "-m", "remora", *arguments],
        capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, folders))},
    )  # fmt: skip


def listed(help_text: str) -> set[str]:
    """The commands that a help text lists."""
    return set(re.findall(r"(?m)^  ([a-z-]+)  ", help_text.partition("Commands:")[2]))


def test_help_has_the_pipelines_commands_where_its_distribution_is(packages: Path, tmp_path: Path) -> None:
    """With the distribution of this very version its commands stand among the daemon's, and run."""
    there = offer(tmp_path, OFFERED, "remorad-pipeline", __version__, "remora.commands")

    helped = run("--help", path=(packages, there, PIPELINE))
    simulated = run("simulate", "--help", path=(packages, there, PIPELINE))

    assert helped.returncode == 0, helped.stderr
    assert {"run", *ELSEWHERE} <= listed(helped.stdout)
    assert "remora simulate [OPTIONS] FILE.json" in simulated.stdout


@pytest.mark.parametrize("command", sorted(ELSEWHERE))
@pytest.mark.parametrize("other", [None, "9.9.9"], ids=["none", "another version"])
def test_a_command_of_a_missing_distribution_says_what_to_install(
    packages: Path, tmp_path: Path, command: str, other: str | None
) -> None:
    """Where the distribution is missing, or is one of another version, a line names it with the version to install."""
    there = () if other is None else (offer(tmp_path, OFFERED, "remorad-pipeline", other, "remora.commands"), PIPELINE)

    done = run(command, "--help", path=(packages, *there))

    assert (done.returncode, done.stdout) == (Exit.FAILURE, "")
    assert done.stderr == (
        f"Error: the command {command} is in the distribution remorad-pipeline; install it with: pip install"
        f" remorad-pipeline=={__version__} (of Debian's packages it is remora-pipeline)\n"
    )


def test_without_the_pipeline_help_has_the_daemons_commands_alone(packages: Path) -> None:
    """What is not installed is not listed, and a word that no command has is wrong usage."""
    helped = run("--help", path=(packages,))
    unknown = run("replayed", path=(packages,))

    assert helped.returncode == 0, helped.stderr
    assert "run" in listed(helped.stdout)
    assert not listed(helped.stdout) & ELSEWHERE.keys()
    assert unknown.returncode == Exit.USAGE


def test_another_distribution_adds_a_command_and_replaces_none(packages: Path, tmp_path: Path) -> None:
    """A command of any distribution is listed and run; one with the name of the daemon's own is not asked."""
    (tmp_path / "hello.py").write_text(
        "import click\n\nmain = click.Command('hello', help='Greet.', callback=lambda: print('hello'))\n"
    )
    there = offer(tmp_path, {"hello": "hello:main", "completion": "none:none"}, group="remora.commands")

    path = (packages, there, tmp_path)

    assert "hello" in listed(run("--help", path=path).stdout)
    assert run("hello", path=path).stdout == "hello\n"
    assert "_REMORA_COMPLETE" in run("completion", "bash", path=path).stdout
