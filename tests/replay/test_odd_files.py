"""Files that commands of the pipeline read themselves, and in which something else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from remora.cli import group
from remora.model.errors import ConfigError, RemoraError
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.layout import RunDirectory, write
from remora_pipeline.replay.pipeline.checkpoint import offsets_of
from remora_pipeline.replay.pipeline.directory import LandedDirectory
from remora_pipeline.simulate.fleet.trace import counts
from replay.prepared import Wanted, prepare
from replay.verified import simulate
from support.replayed import Journalled, events, replayed
from support.replayed import prepare as traced

NO_TEXT = b"\xff\xfe\xfd"
NESTED = b"[" * 100_000
"""Deeper than any reader of JSON goes."""

VERIFY = ("replay", "verify", "--topic", "t", "--bootstrap", "127.0.0.1:1")


def token_of_run(folder: Path) -> tuple[Path, list[str]]:
    """The token of the ingest API that a replay sends to."""
    trace = prepare(folder / "trace", [Wanted(0, "PUT", "k")]).path
    token = folder / "token"
    return token, [
        "replay",
        "run",
        str(trace),
        "--topic",
        "t",
        "--out",
        str(folder / "run"),
        "--token-file",
        str(token),
    ]


def token_of_emission(folder: Path) -> tuple[Path, list[str]]:
    """The same of a reconcile."""
    listing, token = folder / "listing.csv", folder / "token"
    listing.write_text("key,size,last_modified\n")
    argv = ["pipeline", "reconcile", "b", "--backfill", "--listing", str(listing), "--out", str(folder / "out")]
    return token, [*argv, "--s3", "http://127.0.0.1:1", "--emit", "t", "--token-file", str(token)]


def settings_of_catalog(folder: Path) -> tuple[Path, list[str]]:
    """Settings of a catalog, with the token of a REST catalog among them."""
    file = folder / "catalog.properties"
    return file, ["pipeline", "maintain", "--catalog", "http://127.0.0.1:1/", "--catalog-config", str(file)]


def settings_of_kafka(folder: Path) -> tuple[Path, list[str]]:
    """Settings of Kafka's clients."""
    file = folder / "kafka.properties"
    return file, [*VERIFY, "--kafka-config", str(file)]


def settings_of_pyiceberg(folder: Path) -> tuple[Path, list[str]]:
    """pyiceberg's own settings, which it reads when it is loaded."""
    return folder / ".pyiceberg.yaml", ["pipeline", "maintain", "--catalog", "http://127.0.0.1:1/"]


def trace_of_run(folder: Path) -> tuple[Path, list[str]]:
    """What was prepared."""
    prepared = prepare(folder / "trace", [Wanted(0, "PUT", "k")])
    return prepared.trace, ["replay", "run", str(prepared.path), "--null", "--out", str(folder / "run")]


def events_of_run(folder: Path) -> tuple[Path, list[str]]:
    """The events that were prepared."""
    prepared = prepare(folder / "trace", [Wanted(0, "PUT", "k")])
    argv = ["replay", "run", str(prepared.path), "--null", "--out", str(folder / "run")]
    return prepared.events / "part-0.parquet", argv


def letters(folder: Path) -> tuple[Path, list[str]]:
    """Dead letters."""
    file = folder / "letters.json"
    return file, [*VERIFY, "--dead-letters", str(file)]


def ended(folder: Path) -> tuple[Path, list[str]]:
    """Where shards ended."""
    file = folder / "topic.json"
    return file, [*VERIFY, "--ended", str(file)]


def earlier(folder: Path) -> tuple[Path, list[str]]:
    """An earlier verdict."""
    file = folder / "verdict.json"
    return file, [*VERIFY, "--offsets", str(file)]


def faults(folder: Path) -> tuple[Path, list[str]]:
    """What was done to a server while a run was replayed."""
    run = simulate(folder / "run", events=10)
    return run.faults, ["replay", "report", str(run.path)]


def manifest(folder: Path) -> tuple[Path, list[str]]:
    """The manifest of an S3 Inventory."""
    file = folder / "manifest.json"
    argv = ["pipeline", "reconcile", "b", "--backfill", "--s3-inventory", str(file), "--out", str(folder / "out")]
    return file, argv


def lines_of_listing(folder: Path) -> tuple[Path, list[str]]:
    """A listing in JSON."""
    file = folder / "listing.json"
    argv = ["pipeline", "reconcile", "b", "--backfill", "--listing", str(file), "--out", str(folder / "out")]
    return file, argv


def table_of_listing(folder: Path) -> tuple[Path, list[str]]:
    """A listing in Parquet."""
    file = folder / "listing.parquet"
    argv = ["pipeline", "reconcile", "b", "--backfill", "--listing", str(file), "--out", str(folder / "out")]
    return file, argv


def landing(folder: Path) -> tuple[Path, list[str]]:
    """Of which topic a landing is."""
    directory = LandedDirectory(folder / "landed")
    directory.bind(folder / "checkpoint", "t", None, None)
    return directory.landing, ["pipeline", "inventory", str(directory.path), "--out", str(folder / "inventory")]


TOKENS = (token_of_run, token_of_emission)
READ = (
    *TOKENS, settings_of_catalog, settings_of_kafka, settings_of_pyiceberg, trace_of_run, events_of_run, letters, ended,
    earlier, faults, manifest, lines_of_listing, table_of_listing, landing,
)  # fmt: skip
CASES = [
    pytest.param(made, content, id=f"{made.__name__} {name}")
    for made in READ
    for name, content in (("no text", NO_TEXT), ("no UTF-8", b'"' + NO_TEXT + b'"'), ("nested", NESTED))
    if made not in TOKENS or content != NESTED  # which may be a token
]


@pytest.mark.parametrize(("made", "content"), CASES)
def test_a_file_that_is_none_is_named(
    made: Callable[[Path], tuple[Path, list[str]]], content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of other bytes, and one of JSON without an end, end a command by one line with the file's name."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    file, argv = made(tmp_path)
    file.write_bytes(content)

    found: Any = CliRunner().invoke(group, argv).exception

    assert isinstance(found, RemoraError), repr(found)
    assert file.name in str(found) or file.parent.name == "events"
    assert "\n" not in str(found)


@pytest.mark.parametrize("content", [b"a\nb", b"a\0b", b"a\rb"], ids=repr)
@pytest.mark.parametrize("made", TOKENS, ids=lambda each: each.__name__)
def test_a_token_that_no_request_can_have_is_named(
    made: Callable[[Path], tuple[Path, list[str]]], content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several lines, and signs that do not print, are no token; nothing is sent."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    file, argv = made(tmp_path)
    file.write_bytes(content)

    found = str(CliRunner().invoke(group, argv).exception)

    assert found == f"cannot read a token from {file}: it has several lines, or signs that do not print"


@pytest.mark.parametrize("content", [NO_TEXT, b'{"t":"' + NO_TEXT + b'"}', NESTED, b""], ids=lambda each: each[:9])
def test_a_checkpoint_that_is_none_is_named(content: bytes, tmp_path: Path) -> None:
    """Offsets that Spark has not written end a landing by the file's name."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").write_bytes(content)

    with pytest.raises(ReplayError, match="offsets/0: is not as Spark writes it"):
        offsets_of(tmp_path, "t", 0, {})


def test_a_trace_that_is_none_is_named(tmp_path: Path) -> None:
    """A simulation of a trace without an end is refused by its folder."""
    prepared = prepare(tmp_path / "trace", [Wanted(0, "PUT", "k")])
    prepared.trace.write_bytes(NESTED)

    with pytest.raises(ConfigError, match="trace is no prepared trace"):
        counts(str(prepared.path), 2, 10.0, 1.0)


# ------------------------------------------------------------------------------------------ what explains gaps


def letter(**changes: object) -> dict[str, object]:
    """As `remora dlq list --json` writes one."""
    told = {"queue": "q", "incarnation": "f00", "position": "0/5", "next_position": "f00:0/9", "sequence": None}
    return {name: value for name, value in (told | changes).items() if value != "-"}


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "3", json.dumps([letter()]) + "\n[]", json.dumps(letter()) + "\n" + json.dumps(letter()),
        json.dumps([letter(queue="-")]), json.dumps([letter(incarnation=None)]), json.dumps([letter(position="5")]),
        json.dumps([letter(next_position="0/9/1")]), json.dumps([letter(position="0/1234567890123456789")]),
        json.dumps([letter(sequence=7)]), " " * (33 << 20) + "{}",
    ],
    ids=range(12),
)  # fmt: skip
def test_letters_that_are_none_are_refused_at_once(text: str, tmp_path: Path) -> None:
    """A file that is no list of dead letters, and a letter without its place, are told before anything is started."""
    file = tmp_path / "letters.json"
    file.write_text(text)

    found = str(CliRunner().invoke(group, [*VERIFY, "--dead-letters", str(file)]).exception)

    assert found.startswith(f"{file}: is not what `remora dlq list --json` writes: ")


def test_letters_that_are_some_are_taken(tmp_path: Path) -> None:
    """None, one and a list that is too long to be looked at: what is told then is that no broker answers."""
    file = tmp_path / "letters.json"
    for text in ("[]", json.dumps([letter()]), "[" + " " * (33 << 20) + "]"):
        file.write_text(text)
        found = str(CliRunner().invoke(group, [*VERIFY, "--dead-letters", str(file)]).exception)
        assert found.startswith("Kafka at 127.0.0.1:1: ")


def test_a_run_that_cannot_be_judged_is_told_at_once(tmp_path: Path) -> None:
    """A run without journals, and one whose trace was prepared anew, are told before anything is started."""
    trace = events(4)
    prepared = traced(tmp_path / "prepared", trace)
    run = replayed(tmp_path / "run", prepared, trace, Journalled())
    lacking = simulate(tmp_path / "lacking", events=10)

    def said(of: RunDirectory) -> str:
        return str(CliRunner().invoke(group, [*VERIFY, str(of.path)]).exception)

    assert said(lacking) == f"{lacking.journal}: there are no journals"
    write(prepared.trace, {"name": 1})
    assert said(run).startswith(f"{prepared.trace}: ")
