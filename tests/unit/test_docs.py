"""The documents: what they name exists."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from devkit import reference
from remora import config
from remora.cli import group
from remora.metrics import Telemetry
from remora.metrics.sequencer import SequencerTelemetry

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "daemon/remora", ROOT / "pipeline/remora_pipeline")
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
GUARANTEES = ROOT / "docs/guarantees.md"
PROMISES_TESTED = ROOT / "docs/guarantees-tests.md"
STORE_FOLDERS = {"owners/"}
"""Folders of the embedded store, which is no part of the repository."""


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


def test_every_command_has_a_row_in_the_readme() -> None:
    """The table of commands in README.md names each command that `remora --help` lists."""
    table = (ROOT / "README.md").read_text().partition("\n## Commands")[2].partition("| exit code |")[0]
    rows = set(re.findall(r"^\| `remora ([a-z-]+)", table, re.MULTILINE))

    context = click.Context(group)
    listed = {
        name for name in group.list_commands(context) if not getattr(group.get_command(context, name), "hidden", 0)
    }

    assert rows == listed


def test_the_readme_is_short_and_says_when_not_to_use_it() -> None:
    """It has at most 200 lines, a picture of the page, three ways to a first event, and what to take instead."""
    text = (ROOT / "README.md").read_text()

    assert len(text.splitlines()) <= 200
    assert "](docs/images/status-page.png)" in text
    for way in ("remora demo", "deploy/compose/compose.yaml up", "scripts/demo"):
        assert way in text
    table = text.partition("\n## When not to use it\n")[2].partition("\n## ")[0]
    assert [name for name in ("radosgw", "Kafka Connect", "Vector", "Outpost") if name not in table] == []
    for library in ("rados", "httptools", "pamqp"):
        assert library in text.partition("\n## What it is built on\n")[2]


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
    """The page of tests names for each section that makes a promise a test that tries to break it."""
    sections, tests = GUARANTEES.read_text(), PROMISES_TESTED.read_text()
    promises = [each.partition("\n")[0] for each in sections.split("\n## ")[1:] if "\n> " in each]
    for title in promises:
        listed = tests.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        assert re.search(r"`test_\w+`", listed), title
    assert promises


def test_the_page_of_tests_is_what_the_tests_say() -> None:
    """The guarantees list exactly the tests that are marked for them."""
    done = subprocess.run([ROOT / "scripts/guarantees", "--check"], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_made_of_the_code_is_not_stale() -> None:
    """The pages of options and metrics, and the shipped configuration, are what scripts/reference makes."""
    assert [name for name, made in reference.pages() if (ROOT / name).read_text() != made()] == []


def test_every_option_and_metric_has_a_row() -> None:
    """The pages name each option of the settings, and each family of the registries of daemon and sequencer."""
    options, metrics = (ROOT / "docs/options.md").read_text(), (ROOT / "docs/metrics.md").read_text()

    assert [path for path, _ in config.options() if f"| `{path}` |" not in options] == []
    for registry in (Telemetry().registry, SequencerTelemetry().registry):
        assert [each.name for each in reference.families(registry) if f"| `{each.name}` |" not in metrics] == []
    assert len(re.findall(r"(?m)^\| `remora_", metrics)) > 100


def test_the_help_text_of_a_metric_stands_alone() -> None:
    """It says what is counted where, in words that need no other metric's text: no "such", and no bare noun."""
    for registry in (Telemetry().registry, SequencerTelemetry().registry):
        for each in reference.families(registry):
            assert not re.search(r"\b(such|these|likewise|the same|of it)\b|in them\.", each.help), each.name
            assert len(each.help.split()) > 2, each.name


def test_a_label_of_a_metric_is_named() -> None:
    """A counter by topic, whose series begin later, and a gauge that is computed when it is asked for, name theirs."""
    found = {each.name: each.labels for each in reference.families(Telemetry().registry)}

    assert found["remora_parked_entries_total"] == ("topic", "cause")
    assert found["remora_ledger_removed_entries"] == ("topic", "cause")


PROMISES = "# Guarantees\n\n## No loss\n\n> Nothing is lost.\n\n## Background\n\nText.\n\n"
TESTED = '@pytest.mark.guarantee("no-loss")\ndef test_kept() -> None:\n    """An entry stays."""\n'


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (TESTED, "is stale"),
        (TESTED.replace("no-loss", "no-los"), "no section of docs/guarantees.md: no-los (test_kept)"),
        ("def test_kept() -> None: ...", "promises without a test: no-loss"),
        (f'@pytest.mark.full("why")\n{TESTED}', "promises that no test of the gate guards: no-loss"),
        (f'pytestmark = pytest.mark.full("why")\n{TESTED}', "promises that no test of the gate guards: no-loss"),
    ],
    ids=["unlisted", "a mark of no promise", "a promise without a test", "a test of the full run", "a full module"],
)
def test_a_page_of_tests_that_is_wrong_is_refused(tmp_path: Path, module: str, complaint: str) -> None:
    """An unlisted test, a mark that names no promise, and a promise without a test at the gate each fail."""
    page = _checkout(tmp_path, module)

    done = _guarantees(tmp_path, "--check")

    assert done.returncode == 1
    assert complaint in done.stderr
    assert not page.exists()


def test_the_page_of_tests_is_written_and_replaced(tmp_path: Path) -> None:
    """Writing lists the marked tests with what they show, and writing again replaces the list."""
    page = _checkout(tmp_path, TESTED)

    assert _guarantees(tmp_path).returncode == 0
    first = page.read_text()
    (tmp_path / "tests/test_it.py").write_text(TESTED.replace("test_kept", "test_held"))
    assert _guarantees(tmp_path, "--check").returncode == 1
    assert _guarantees(tmp_path).returncode == 0

    assert first.endswith("## No loss\n\n* `test_kept` ([test_it.py](../tests/test_it.py)): An entry stays.\n")
    assert page.read_text() == first.replace("test_kept", "test_held")
    assert _guarantees(tmp_path, "--check").returncode == 0


def _checkout(root: Path, module: str) -> Path:
    """A checkout with one promise and one module of tests. Returns the path of the page that is to be written."""
    (root / "docs").mkdir()
    (root / "tests").mkdir()
    (root / "tests/test_it.py").write_text(module)
    (root / "docs/guarantees.md").write_text(PROMISES)
    return root / "docs/guarantees-tests.md"


def _guarantees(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "scripts/guarantees", "--root", root, *options], capture_output=True, text=True)


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


def test_the_files_of_the_architecture_exist() -> None:
    """Each file and folder that ARCHITECTURE.md and the pages behind it put between backticks is in the repository."""
    paths = {str(path.relative_to(package)) for package in PACKAGES for path in package.rglob("*")}
    paths |= {each.name for each in ROOT.iterdir()}
    paths |= {str(path.relative_to(ROOT)) for folder in ("tests", "devkit") for path in (ROOT / folder).rglob("*.py")}
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "docs/modules.md", *(ROOT / "docs/decisions").glob("*.md")]
    text = "\n".join(each.read_text() for each in pages)
    named = set(re.findall(r"`([a-z_][\w/]*(?:\.pyx?|/))`", text)) - STORE_FOLDERS

    missing = [name for name in named if not any(f"/{path}".endswith(f"/{name.rstrip('/')}") for path in paths)]

    assert missing == []
    assert len(named) > 100


def test_the_architecture_names_all_state_on_rados() -> None:
    """Each object, attribute and key `remora.NAME` of the store on RADOS is in the tables of docs/rados-objects.md."""
    code = "\n".join(path.read_text() for path in (ROOT / "daemon/remora/storage/rados").rglob("*.py"))
    named = set(re.findall(r"\"(remora\.[a-z]+)\b", code))
    tables = (ROOT / "docs/rados-objects.md").read_text().partition("**All or none")[0]

    assert {name for name in named if f"`{name}" not in tables} == set()
    assert len(named) > 15


def test_the_map_has_every_folder() -> None:
    """ARCHITECTURE.md has at most 250 lines, a row for each package of the daemon, as docs/modules.md has for each of
    the pipeline, and every page of decisions."""
    text, modules = (ROOT / "ARCHITECTURE.md").read_text(), (ROOT / "docs/modules.md").read_text()
    maps = text[text.index("## Folders") : text.index("## Admission")] + modules.partition("## Folders")[2]
    rows = re.findall(r"(?m)^\| `([\w/]+)/` \|", maps)
    folders = [
        folder
        for package in PACKAGES
        for folder in sorted(str(each.parent.relative_to(package)) for each in package.glob("*/**/__init__.py"))
    ]
    decisions = set(re.findall(r"\(docs/decisions/([\w-]+)\.md\)", text[text.index("## Decisions") :]))

    assert rows == folders
    assert decisions == {each.stem for each in (ROOT / "docs/decisions").glob("*.md")}
    assert text.count("\n") <= 250


@pytest.mark.parametrize("page", DECISIONS, ids=lambda path: path.name)
def test_a_decision_is_short_and_has_its_date(page: Path) -> None:
    """A page of decisions has at most 40 lines, and a date as the first words below its title."""
    text = page.read_text()
    lines, dated = text.count("\n"), re.match(r"# .+\n\n20\d\d-\d\d-\d\d\. ", text)

    assert lines <= 40, f"{page.name} has {lines} lines: make two pages of it, one for each question"
    assert dated, f"the first paragraph of {page.name} does not begin with its date, such as 2026-11-27."


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_heading_is_followed_by_a_long_text(document: Path) -> None:
    """At most 80 lines stand between a heading and the next one; in the changelog a release may be longer."""
    text = re.sub(r"(?ms)^```.*?^```$", lambda block: block[0].replace("\n#", "\n"), document.read_text())
    heads = re.split(r"(?m)^(?=#+ )", text)
    long = [each.partition("\n")[0] for each in heads if each.count("\n") - 1 > 80]

    assert long == [] or document.name == "CHANGELOG.md", f"{document.name}: {long}"


def test_the_reading_path_is_as_long_as_it_says() -> None:
    """It has at most 1,200 lines in files of at most 300, and the figures in ARCHITECTURE.md are those of the files."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    path = text[text.index("## Reading path") : text.index("Next come")]
    told = {name: int(lines) for name, lines in re.findall(r"^\| `([^`]+)` \| (\d+) \|", path, re.MULTILINE)}

    found = {name: len((ROOT / "daemon" / "remora" / name).read_text().splitlines()) for name in told}

    assert told == found
    assert max(found.values()) <= 300
    assert sum(found.values()) <= 1200
    assert f"{sum(found.values()):,} lines" in path
