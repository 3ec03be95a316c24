"""The figures of `devkit/ratchets.toml`: what they count, and that a figure which rises fails the check."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit import ratchets

FIRST = '''
class Plan:
    def close(self) -> None:
        """Ends it."""

class _Part: ...

def _used_once() -> None: ...

def _used_twice() -> None: ...

def asked_once() -> None:
    _used_once()
    _used_twice()
    _used_twice()
    say(1, "event", "it is served no more")
'''

SECOND = '''
class Plan: ...

class _Part: ...

@click.option("--x", help="Entries, of which some are old.")
@click.command()
def run() -> None:
    """Runs for so
    long as it likes. It takes no more than it can, and no more entries.
    """
    asked_once()
'''

COUNTED = {
    "class_names_twice": 1,
    "private_class_names_twice": 1,
    "participle_files": 1,
    "private_one_caller": 1,
    "public_one_caller": 1,
    "ending_verbs": 1,
    "long_files": 0,
    "words": 3,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A daemon of three modules: a noun of the field, a participle and a command."""
    daemon = tmp_path / "daemon/remora"
    (daemon / "cli").mkdir(parents=True)
    (daemon / "reading.py").write_text(FIRST)
    (daemon / "shaping.py").write_text("")
    (daemon / "cli/run.py").write_text(SECOND)
    (tmp_path / "README.md").write_text("It is good.\n")
    return tmp_path


def figures(tree: Path) -> dict[str, int]:
    _, lists = ratchets.read()
    return {name: len(each) for name, each in ratchets.count(tree, lists).items()}


def test_what_is_counted(tree: Path) -> None:
    """Each figure counts what its line in the file says, in the daemon, its help, its log and the README."""
    assert figures(tree) == COUNTED


def test_the_pipeline_counts_too(tree: Path) -> None:
    """A class of the pipeline that the daemon has already is there twice, as a long module of it is one."""
    folder = tree / "pipeline/remora_pipeline"
    folder.mkdir(parents=True)
    before = figures(tree)

    (folder / "run.py").write_text("class Run: ...\n" + "x = 1\n" * 501)
    (tree / "daemon/remora/shaping.py").write_text("class Run: ...\n")

    assert figures(tree)["class_names_twice"] == before["class_names_twice"] + 1
    assert figures(tree)["long_files"] == before["long_files"] + 1


@pytest.mark.parametrize(
    ("figure", "file", "added"),
    [
        ("class_names_twice", "shaping.py", "class Run: ...\n\n\nclass Run: ...\n"),
        ("private_class_names_twice", "shaping.py", "class _Run: ...\n\n\nclass _Run: ...\n"),
        ("participle_files", "closing.py", ""),
        ("private_one_caller", "shaping.py", "def _f() -> None: ...\n\n\n_f()\n"),
        ("public_one_caller", "shaping.py", "def f() -> None: ...\n\n\nf()\n"),
        ("ending_verbs", "shaping.py", "def retire() -> None: ...\n"),
        ("long_files", "shaping.py", "x = 1\n" * 501),
        ("words", "../../README.md", "Receivers of which one is told.\n"),
    ],
)
def test_a_figure_that_rises_is_refused(tree: Path, figure: str, file: str, added: str) -> None:
    """The check names the figure, what it is and what it may be; nothing is refused before."""
    _, lists = ratchets.read()
    before = ratchets.raised(ratchets.count(tree, lists), COUNTED)

    (tree / "daemon/remora" / file).write_text(added)
    after = ratchets.raised(ratchets.count(tree, lists), COUNTED)

    assert before == []
    assert [each.split()[0] for each in after] == [figure]


def test_numbers_are_lowered_and_never_raised(tmp_path: Path) -> None:
    """A figure that has fallen is the most from then on; one that has risen changes no number."""
    file = tmp_path / "ratchets.toml"
    file.write_text(ratchets.FILE.read_text())
    most, _ = ratchets.read(file)
    fallen = {"private_one_caller": most["private_one_caller"] - 1}

    ratchets.lower({**most, **fallen, "long_files": most["long_files"] + 1}, file)

    assert ratchets.read(file)[0] == {**most, **fallen}


def test_every_figure_has_a_number() -> None:
    """The file has a number for each figure that is counted, and for nothing else."""
    assert ratchets.read()[0].keys() == COUNTED.keys()
