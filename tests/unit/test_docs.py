"""The documents: what they name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from remora.cli import group

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
GUARANTEES = ROOT / "docs/guarantees.md"


def pieces_of_code(text: str) -> Iterator[str]:
    """What stands in code blocks, line by line with continued lines joined, and between backticks."""
    blocks = re.findall(r"(?ms)^ *```\w*\n(.*?)^ *```", text)
    for block in blocks:
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^ *```.*?^ *```", "", text))


def calls(text: str) -> Iterator[list[str]]:
    """The words behind each `remora` that is typed as a command, up to what ends it in a shell."""
    for piece in pieces_of_code(text):
        for call in re.findall(r"(?:^|[|(]|xargs -\w+|sudo -u remora|/bin/)\s*remora ([a-z-][^|#;()]*)", piece):
            yield call.split()


def unknown(words: list[str]) -> str:
    """What of a command there is not; empty when there is everything."""
    command: click.Command = group
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        # `topic list`, `show` and the like in a table name several: the first is enough to go on with.
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return words[0]
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    return " ".join(used - known - {"--help", "--version"})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document: Path) -> None:
    """Each command of remora that a document has typed is one, with the options that it is given there."""
    strange = [(" ".join(call), what) for call in calls(document.read_text()) if (what := unknown(call))]

    assert strange == []


def test_commands_are_found_in_documents() -> None:
    """The search for commands sees those in blocks, in pipes, behind sudo and in running text, and what is wrong."""
    block = "sudo -u remora remora topic rm x --dran\nremora status --json | remora nope\n"
    text = f"Use `remora topic lst`.\n```sh\n{block}```\n"

    assert [unknown(call) for call in calls(text)] == ["--dran", "", "nope", "lst"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_exist(document: Path) -> None:
    """Each test that a document names is there."""
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", tests))

    assert set(re.findall(r"`(test_\w+)`", document.read_text())) <= defined


def test_tests_are_where_the_guarantees_say() -> None:
    """Each test that a guarantee names before a file is in that file."""
    for names, file in re.findall(r"((?:`test_\w+`[,\s]*)+)\(\[[^\]]*\]\(([^)#]+)\)\)", GUARANTEES.read_text()):
        defined = re.findall(r"def (test_\w+)\(", (GUARANTEES.parent / file).read_text())

        assert set(re.findall(r"`(test_\w+)`", names)) <= set(defined), file


def test_every_promise_is_tested() -> None:
    """Each section of the guarantees that makes a promise names a test that tries to break it."""
    for section in GUARANTEES.read_text().split("\n## ")[1:]:
        if "\n> " in section:
            assert re.search(r"`test_\w+`", section), section.partition("\n")[0]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Each link to a file of this repository has its file, and each link to a heading its heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        found = document.parent / file if file else document
        assert found.exists(), target
        assert not heading or heading in headings(found), target


def headings(document: Path) -> set[str]:
    """The anchors of a document's headings."""
    titles = re.findall(r"(?m)^#+ (.+)$", document.read_text())
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
