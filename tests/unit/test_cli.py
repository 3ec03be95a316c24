"""The command line without a cluster: help, versions, completion, refusals and what decoding prints."""

from __future__ import annotations

import inspect
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from devkit.entries.entries import raw_entry
from remora import __version__
from remora.cli import group
from remora.cli.output import size
from remora.cli.shard import as_json_row
from remora.cli.status import destination_lines, left_rows, room_lines, status_lines, status_rows, what_is_wrong
from remora.config import DEFAULT_FILE, document
from remora.model.errors import (
    ConfigError,
    DaemonNotReachable,
    QueueFull,
    RemoraError,
    StoreDamaged,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
    TopicRefused,
    TopicUnknown,
    WorkerFailed,
)
from remora.model.exits import Exit, exit_code
from remora.model.shard import LockHolder, Shard, ShardStats
from remora.model.words import duration, moment, several
from remora.policy.ownership.hosts import owner_text
from remora.supervisor import process
from support.commands import Run, config, remora, subcommands
from support.scripted_daemon import STATUS, scripted_daemon
from support.scripted_daemon import answer as scripted

COMMANDS = [Path(__file__).parents[2] / each / "cli" for each in ("daemon/remora", "pipeline/remora_pipeline")]

__all__ = ["config", "remora"]


def commands(command: click.Command = group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and every group of commands that people use."""
    yield path
    if isinstance(command, click.Group):
        for name, each in subcommands(command).items():
            if not each.hidden:
                yield from commands(each, (*path, name))


# ------------------------------------------------------------------------------------- help, completion


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    """Each command prints a help that begins with its usage, says what it does and fits a terminal."""
    result = CliRunner().invoke(group, [*path, "--help"], prog_name="remora")

    assert result.exit_code == 0
    usage, _, text = result.output.partition("\n\n")
    assert usage.startswith(" ".join(["Usage: remora", *path]))
    assert text.strip()
    assert all(len(line) <= 100 for line in result.output.splitlines())


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_examples_keep_their_lines(path: tuple[str, ...]) -> None:
    """No help has lines of a file or of a shell put together, as click does it with a paragraph that is not marked."""
    command: click.Command = group
    for word in path:
        assert isinstance(command, click.Group)
        command = subcommands(command)[word]

    paragraphs = [each.splitlines() for each in inspect.cleandoc(command.help or "").split("\n\n")]

    indented = [each for each in paragraphs if any(line.startswith("  ") for line in each)]
    assert [each for each in indented if each[0] != "\b"] == []


def groups() -> list[tuple[str, ...]]:
    """The words of every group of commands."""
    found = list(commands())
    return [path for path in found if any(other[: len(path)] == path for other in found if other != path)]


@pytest.mark.parametrize("path", groups(), ids=" ".join)
def test_every_group_lists_its_commands_in_whole_sentences(path: tuple[str, ...]) -> None:
    """The help of a group names each command that people use, and no other, with all of its first sentence."""
    found: click.Command = group
    for name in path:
        assert isinstance(found, click.Group)
        found = subcommands(found)[name]
    assert isinstance(found, click.Group)

    listed = CliRunner().invoke(group, [*path, "--help"]).output.partition("\nCommands:\n")[2]

    wanted = {name: each for name, each in subcommands(found).items() if not each.hidden}
    assert re.findall(r"(?m)^  ([\w-]+)", listed) == list(wanted)
    told = " ".join(listed.split())
    for name, each in wanted.items():
        sentence = (each.help or "").partition("\n\n")[0].replace("\n", " ").partition(". ")[0]
        assert f"{name} {sentence}".rstrip(".") in told


def words_of_commands() -> list[tuple[str, ...]]:
    """The words of every command that does something, without the groups."""
    found = list(commands())
    return [path for path in found if not any(other[: len(path)] == path for other in found if other != path)]


@pytest.mark.parametrize("path", words_of_commands(), ids=" ".join)
def test_every_command_shows_an_example(path: tuple[str, ...]) -> None:
    """Each command's help has a line that can be typed, with the command in it."""
    result = CliRunner().invoke(group, [*path, "--help"], prog_name="remora")

    described = result.output.partition("\n\n")[2].partition("\nOptions:")[0]
    assert re.search(rf"(?m)^  .*\bremora {' '.join(path)}\b", described), described


@pytest.mark.parametrize("path", [p for p in commands() if p], ids=" ".join)
def test_every_option_says_what_it_is_for(path: tuple[str, ...]) -> None:
    """No option is left to be guessed."""
    command: click.Command = group
    for word in path:
        assert isinstance(command, click.Group)
        command = subcommands(command)[word]

    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, f"{' '.join(path)} {option.name}"


def test_version() -> None:
    """--version prints the version, in a process of its own."""
    printed = subprocess.run([sys.executable, "-m", "remora", "--version"], capture_output=True, text=True, check=True)

    assert printed.stdout == f"remora, version {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """Each shell gets a script that asks this very command for its words."""
    result = CliRunner().invoke(group, ["completion", shell])

    assert result.exit_code == 0
    assert "_REMORA_COMPLETE" in result.output


def test_completion_of_an_unknown_shell() -> None:
    """A shell that is not known is wrong usage."""
    assert CliRunner().invoke(group, ["completion", "tcsh"]).exit_code == Exit.USAGE


def test_completion_offers_commands() -> None:
    """What the script asks for is answered with the commands."""
    offered = subprocess.run(
        [sys.executable, "-c", "from remora.cli import group; group(prog_name='remora')"],
        env={"_REMORA_COMPLETE": "bash_complete", "COMP_WORDS": "remora shar", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout

    assert offered.split() == ["plain,shard"]


# ---------------------------------------------------------------------------------------- configuration

REFUSED = [
    pytest.param("[delivery]\nlist_entires = 5", "delivery.list_entires", id="unknown key"),
    pytest.param("[delivry]\nlist_entries = 5", "delivry", id="unknown section"),
    pytest.param('[delivery]\nretry_cap = "30 sec"', "delivery.retry_cap", id="wrong unit"),
    pytest.param("[ownership]\nlease = 90", "ownership.lease", id="no unit"),
    pytest.param('[delivery]\nshard_bytes = "16mb"', "delivery.shard_bytes", id="wrong size"),
    pytest.param(
        '[ownership]\nlease = "30s"\nrenew_interval = "20s"', "ownership.renew_interval", id="renewal too slow"
    ),
    pytest.param('[kafka]\ncompression = "rar"', "kafka.compression", id="no such choice"),
    pytest.param('[admin]\nlisten = "9750"', "admin.listen", id="no address"),
    pytest.param('[log]\nlevel = "chatty"', "log.level", id="no such level"),
    pytest.param('[rados]\nname = "remora"', "rados.name", id="no type in the user's name"),
]


@pytest.mark.parametrize("command", ["run", "check-config"])
@pytest.mark.parametrize(("text", "key"), REFUSED)
def test_refused_configuration(remora: Run, command: str, text: str, key: str, config: Path) -> None:
    """A wrong option ends both commands with 78 and one line that has the key's path."""
    config.write_text(text)

    done = remora(command, "-c", config)

    assert done.code == Exit.CONFIG
    assert done.out == b""
    lines = done.err.splitlines()
    assert len(lines) == 1
    assert re.search(rf"(^|\W){re.escape(key)}(\W|$)", lines[0]), lines


@pytest.mark.parametrize("command", [["run"], ["check-config"], ["shard", "list"], ["status"]], ids=" ".join)
@pytest.mark.parametrize("kind", ["missing", "folder", "no TOML", "no UTF-8"])
def test_unreadable_configuration(remora: Run, command: list[str], kind: str, config: Path) -> None:
    """A file that cannot be read, or is no TOML, is named in one line."""
    match kind:
        case "folder":
            config.mkdir()
        case "no TOML":
            config.write_text("[log\nlevel = ")
        case "no UTF-8":
            config.write_bytes(b'[log]\nlevel = "\xff"')

    done = remora(*command, "-c", config)

    assert done.code in (Exit.CONFIG, Exit.USAGE)
    assert done.code == Exit.CONFIG or kind == "folder"
    assert str(config) in done.err
    assert "Traceback" not in done.err


def test_good_configuration(remora: Run, config: Path) -> None:
    """A good file is said to be good, with what it sets; a secret-free summary for the log of a deployment."""
    config.write_text('[log]\nlevel = "debug"\n[ownership]\nlease = "60s"\nrenew_interval = "10s"')

    done = remora("check-config", config)

    assert done.code == Exit.OK
    first = done.out.decode().splitlines()[0]
    assert first == f"{config} is good; it sets log.level, ownership.lease, ownership.renew_interval"


@pytest.mark.parametrize("is_there", [True, False])
def test_without_a_file_the_default_one_counts_or_what_is_built_in(
    is_there: bool, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no file is named, check-config and run take the default one, or the built-in configuration without it."""
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(document, "DEFAULT_FILE", config)

    def begin(*given: Any) -> Exit:
        started.append(given)
        return Exit.OK

    monkeypatch.setattr(process, "run", begin)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    if is_there:
        config.write_text('[log]\nlevel = "debug"')

    checked = CliRunner().invoke(group, ["check-config"])
    ran = CliRunner().invoke(group, ["run"])

    said = f"{config} is good; it sets log.level" if is_there else f"built-in ({DEFAULT_FILE} is not there) is good"
    assert checked.exit_code == ran.exit_code == Exit.OK
    assert checked.output.startswith(said)
    [(settings, given, _, retired)] = started
    assert settings.log.level == ("debug" if is_there else "info")
    assert (given, retired) == (None, [])


def test_configuration_from_the_environment(remora: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment sets is named, and a wrong value there is refused by the name of its variable."""
    config.touch()
    monkeypatch.setenv("REMORA_LOG_LEVEL", "debug")
    good = remora("check-config", config)
    monkeypatch.setenv("REMORA_LGO_LEVEL", "debug")
    passed_over = remora("check-config", config)
    monkeypatch.setenv("REMORA_LOG_LEVEL", "loud")
    bad = remora("check-config", config)

    assert good.code == Exit.OK
    first, *others = good.out.decode().splitlines()
    assert first.endswith("; from the environment: REMORA_LOG_LEVEL")
    remark = "remark: REMORA_LGO_LEVEL is passed over: it stands for no option; did you mean REMORA_LOG_LEVEL?"
    assert passed_over.out.decode().splitlines() == [first, remark, *others]
    assert bad.code == Exit.CONFIG
    assert bad.err.startswith("remora: REMORA_LOG_LEVEL: ")


def test_all_problems_of_a_configuration(remora: Run, config: Path) -> None:
    """A bad file has a line for each of its problems, and the exit code of a refused configuration."""
    config.write_text('[log]\nlevel = "loud"\nformat = 1\n[kafka]\nclient_id = ""\n')

    done = remora("check-config", config)

    assert done.code == Exit.CONFIG
    assert [line.split(": ")[:2] for line in done.err.splitlines()] == [
        ["remora", "log.level"],
        ["remora", "log.format"],
        ["remora", "kafka.client_id"],
    ]


def test_shipped_configuration(remora: Run) -> None:
    """The file that is shipped is good and sets nothing."""
    done = remora("check-config", Path(__file__).parents[2] / "config/remora.toml")

    assert done.code == Exit.OK
    assert b"nothing but defaults" in done.out


# ------------------------------------------------------------------------------------ without a cluster


def test_status_without_daemon(remora: Run, config: Path, tmp_path: Path) -> None:
    """Asking a daemon that does not run is one line with its address, and the system's own words."""
    for listen, why in ((f"unix:{tmp_path}/admin", "No such file or directory"), ("127.0.0.1:1", "Connection refused")):
        config.write_text(f'[admin]\nlisten = "{listen}"')

        done = remora("status", "-c", config)

        assert done.code == Exit.UNAVAILABLE
        assert done.err == f"remora: no daemon answers on {listen} (admin.listen): {why}\n"


def _shard(topic: str, **others: Any) -> dict[str, Any]:
    """What a status says of a queue."""
    return {"queue": topic, "topic": topic, "endpoint": "kafka://b:9092", "remarks": []} | others


def _topic(topic: str, state: str | None = "idle", **others: Any) -> dict[str, Any]:
    """What a status says of a topic."""
    said = {"reason": "", "since_seconds": 1.0, "next_attempt_seconds": None, "trying": False, "queues": 11}
    return {"topic": topic, "state": state, "backlog_entries": 0, "backlog_exact": True} | said | others


def test_a_status_of_many_topics() -> None:
    """Topics that fail alike share a row with the time of the longest; others have their own; the worst come first."""
    refused = {"reason": "b:9092: refused", "backlog_entries": 2}
    topics = [
        _topic("a"),
        *(_topic(f"t{at:03}", "stopped", **refused, since_seconds=at + 1.0, trying=at == 7) for at in range(300)),
        _topic("u", "retrying", reason="no answer", next_attempt_seconds=4.0),
        _topic("w", "delivering", backlog_entries=None),
        _topic("gone", None),
    ]
    shards = [_shard(each["topic"]) for each in topics[:-1]]
    shards[-1]["remarks"] = ["a remark"]

    assert status_rows(topics, shards) == [
        ("t000 +299", "stopped, trying now", "5m00s", "-", "3300", "600", "kafka://b:9092", "b:9092: refused"),
        ("u", "retrying", "1.0s", "4.0s", "11", "0", "kafka://b:9092", "no answer"),
        ("w", "delivering", "1.0s", "-", "11", "-", "kafka://b:9092", "a remark"),
        ("a", "idle", "1.0s", "-", "11", "0", "kafka://b:9092", ""),
    ]


def test_a_status_of_a_destination_that_fails() -> None:
    """Three hundred topics behind one broker are one line, with what waits for it."""
    one = {
        "destination": "127.0.0.1:24617", "cause": "Connection refused", "state_text": "retrying", "topics": 300,
        "entries": 600, "since_seconds": 273.0, "next_attempt_seconds": 2.0,
    }  # fmt: skip

    unknown = one | {"topics": 1, "entries": None, "next_attempt_seconds": None}
    in_part = one | {"topics": 2, "entries": 1, "entries_at_least": True, "next_attempt_seconds": None}

    assert destination_lines([one, unknown, in_part]) == [
        "retrying: 127.0.0.1:24617: Connection refused: 300 topics, 600 events, for 4m33s, the next attempt in 2.0s",
        "retrying: 127.0.0.1:24617: Connection refused: 1 topic, ? events, for 4m33s",
        "retrying: 127.0.0.1:24617: Connection refused: 2 topics, at least 1 event, for 4m33s",
    ]


def test_a_row_of_topics_that_are_partly_unknown_has_a_lower_bound() -> None:
    """Of topics that share a row, those whose number is not known may hold more than the sum of the others."""
    topics = [
        _topic(name, "retrying", reason="away", backlog_entries=entries) for name, entries in (("a", 2), ("b", None))
    ]

    ((name, *_, waiting, _, _),) = status_rows(topics, [_shard(name) for name in "ab"])

    assert (name, waiting) == ("a +1", "at least 2")


def test_a_check_of_the_status_names_what_is_wrong() -> None:
    """Each reason not to be ready, silent worker and failing queue is a line; where all is well there is none."""
    topics = [_topic("a", "delivering"), _topic("b"), _topic("c", "shaped", reason="turn")]
    well = {
        "ready": True, "reasons": [], "store": {"damaged": []}, "workers": [{"number": 1, "answers": True}],
        "ready_to_deliver": {},
        "shards": [_shard(each["topic"]) for each in topics],
        "topics": [*topics, {"topic": "f", "room": {"advice": "full in 3 h", "leaks": False}}],
    }  # fmt: skip
    ill = {
        "ready": False, "reasons": ["the store is away"], "store": {"damaged": ["f"]},
        "workers": [{"number": 2, "answers": False}],
        "ready_to_deliver": {"reasons": ["the store is away", "all destinations fail"]},
        "topics": [
            *(_topic(name, "stopped", reason="no such topic") for name in "ab"),
            {"topic": "l", "room": {"advice": "full by a leak", "leaks": True}},
        ],
        "shards": [_shard(name) for name in "ab"],
    }  # fmt: skip

    assert what_is_wrong(well) == []
    lost = well | {"reasons": ["store: f is lost"], "store": {"damaged": ["f is lost"]}}
    assert what_is_wrong(lost) == ["damaged: f is lost"]
    assert what_is_wrong(ill) == [
        "not ready: the store is away",
        "damaged: f",
        "delivery: all destinations fail",
        "worker 2 does not answer",
        "a +1: stopped: no such topic",
        "room: topic l: full by a leak: remora shard heal --topic l",
    ]


def test_a_check_of_the_status_names_what_page_and_alerts_do() -> None:
    """A worker that is missing, and entries that are unaccounted for, are a line of the status and wrong; all workers
    that there are to be, and books that are right, are no line. An earlier daemon does not say how many."""
    shown = {
        "version": "1", "ready": True, "reasons": [], "ready_to_deliver": {}, "ingest": "", "shards": [],
        "store": {"description": "files", "connected": True, "state": "", "damaged": []},
        "workers": [{"number": 1, "answers": True}],
        "topics": [{"topic": "a", "ledger": {"unaccounted": 0}}, {"topic": "b", "ledger": None}],
    }  # fmt: skip
    lost = {"workers_wanted": 2, "topics": [{"topic": "a", "ledger": {"unaccounted": 3}}]}
    missing = "1 of 2 workers run; the log says why others do not"
    unaccounted = "ledger: topic a: 3 entries unaccounted for; `remora ledger` says where"

    for well in (shown, shown | {"workers_wanted": 1}):
        assert what_is_wrong(well) == []
        assert len(status_lines(well)) == 3
    assert what_is_wrong(shown | lost) == [missing, unaccounted]
    assert status_lines(shown | lost)[3:] == [f"workers: {missing}", unaccounted]


def test_a_status_of_queues_with_little_room() -> None:
    """A topic has a line where its worst queue is full within a day, or by a leak, which one command gives back."""
    soon = {"advice": "full in 3 h at its present growth", "leaks": False}
    leaky = {"advice": "full by a leak of 127 MB of Ceph < 19.2.4", "leaks": True}
    topics: list[dict[str, Any]] = [
        {"topic": "a b", "room": leaky},
        {"topic": "b", "room": soon},
        {"topic": "c", "room": {"advice": ""}},
    ]
    earlier: list[dict[str, Any]] = [{"topic": "of an earlier release"}, {"topic": "unknown", "room": None}]

    assert room_lines([*topics, *earlier]) == [
        "room: topic a b: full by a leak of 127 MB of Ceph < 19.2.4: remora shard heal --topic 'a b'",
        "room: topic b: full in 3 h at its present growth",
    ]


def test_a_status_of_queues_that_are_not_held() -> None:
    """Those left for one reason, to one owner, share a line."""
    left = [{"queue": f"q{number}", "reason": "held", "owner": "a" if number < 3 else ""} for number in range(5)]

    assert left_rows(left) == [("q0 +2", "held (a)"), ("q3 +1", "held")]


def test_a_status_of_a_damaged_store() -> None:
    """The lines before the table name the store, what of it is damaged, and where events are taken in."""
    store = {"description": "16 files", "connected": True, "state": "16 files", "damaged": ["x.db is damaged"]}

    said = {"version": "1", "ready": False, "reasons": ["a", "b"], "store": store, "ingest": "", "workers": []}

    assert status_lines(said) == [
        "remora 1, not ready: a; b", "store: 16 files", "damaged: x.db is damaged", "ingest: off",
    ]  # fmt: skip


UNKNOWN = "queues, topics and failures are not known"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([True, True], []),
        ([True, False], [f"workers: 1 of 2 workers does not answer: its {UNKNOWN}"]),
        ([False, True, False], [f"workers: 2 of 3 workers do not answer: their {UNKNOWN}"]),
        ([False, False], [f"workers: no worker answers: {UNKNOWN}"]),
    ],
)
def test_a_status_of_workers_that_do_not_answer(answer: list[bool], said: list[str]) -> None:
    """It says what is not known because of them, and shows nothing of theirs as if it were not there."""
    workers = [{"number": number, "answers": each} for number, each in enumerate(answer)]
    store = {"description": "", "connected": False, "state": "no worker answers", "damaged": []}
    shown = {"version": "1", "ready": False, "reasons": ["r"], "store": store, "ingest": None, "workers": workers}

    assert [each for each in status_lines(shown) if each.startswith("workers: ")] == said
    assert "ingest: not known" in status_lines(shown)


def test_a_status_without_queues_says_whether_there_are_none(remora: Run, config: Path) -> None:
    """No queue is held where all workers say so; where some or all are silent that is not known."""
    config.write_text("")
    for answer, said in (
        ([True], "no queue is held"),
        ([True, False], "no worker that answers holds a queue"),
        ([False, False], "which queues are held is not known"),
    ):
        workers = [{"number": number, "answers": each} for number, each in enumerate(answer)]
        with scripted_daemon(answers={"/-/status": scripted({**STATUS, "workers": workers})}) as address:
            done = remora("status", "-c", config, "--admin", address)

        assert done.out.decode().splitlines()[-1] == said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("log.level", "no"), Exit.CONFIG),
        (StoreMisconfigured("no pool"), Exit.NO_PERMISSION),
        (StoreUnavailable("away"), Exit.UNAVAILABLE),
        (DaemonNotReachable("away"), Exit.UNAVAILABLE),
        (WorkerFailed(77, "no permission"), Exit.NO_PERMISSION),
        (WorkerFailed(-9, "killed by SIGKILL"), Exit.FAILURE),
        (QueueFull("no room"), Exit.TEMPORARY),
        (StoreError("refused"), Exit.TEMPORARY),
        (StoreDamaged("a page"), Exit.FAILURE),
        (TopicRefused("exists"), Exit.FAILURE),
        (TopicUnknown("no such topic"), Exit.FAILURE),
        (RemoraError("anything"), Exit.FAILURE),
    ],
)
def test_exit_codes(error: RemoraError, code: Exit) -> None:
    """Each kind of error has the code that the manual says."""
    assert exit_code(error) == code


# ----------------------------------------------------------------------------------------- entry decode


def test_decode_prints_the_notification(remora: Run) -> None:
    """A raw entry on standard input becomes what radosgw would post."""
    done = remora("entry", "decode", stdin=raw_entry("a b", 7))

    assert done.code == 0
    assert json.loads(done.out)["Records"][0]["s3"]["object"]["key"] == "a b"


def test_decode_keeps_bytes_that_are_no_text(remora: Run, tmp_path: Path) -> None:
    """A key that is no UTF-8 is printed as it is."""
    (tmp_path / "entry").write_bytes(raw_entry(b"\xff\xfe", 7))

    done = remora("entry", "decode", tmp_path / "entry")

    assert done.code == 0
    assert b"\xff\xfe" in done.out


def test_decode_escapes_for_a_terminal(remora: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets no character that it would obey."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    done = remora("entry", "decode", stdin=raw_entry("a\x7f\x9b2J".encode() + b"\xff", 7))

    assert rb"a\u007f\x9b2J\xff" in done.out
    assert done.out.removesuffix(b"\n").decode().isprintable()


def test_explain_shows_every_field(remora: Run) -> None:
    """--explain gives each field a line with its offset and value."""
    done = remora("entry", "decode", "--explain", stdin=raw_entry("the-key", 7))

    assert done.code == 0
    assert re.search(r'(?m)^ *\d+  entry\.event\.object_key  \(.*\)  "the-key"$', done.out.decode())
    assert len(done.out.splitlines()) > 25


@pytest.mark.parametrize("options", [[], ["--explain"]], ids=["plain", "explain"])
def test_decode_refuses_what_is_no_entry(remora: Run, options: list[str], tmp_path: Path) -> None:
    """Bytes that are no entry are one line with the file, the field and its offset."""
    (tmp_path / "entry").write_bytes(raw_entry("k", 1)[:40])

    done = remora("entry", "decode", *options, tmp_path / "entry")

    assert done.code == Exit.FAILURE
    assert done.out == b"" or options
    lines = done.err.splitlines()
    assert len(lines) == 1
    assert str(tmp_path / "entry") in lines[0]
    assert re.search(r"\d", lines[0])


# --------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.85, "850ms"), (12.3, "12.3s"), (245, "4m05s"), (12_000, "3h20m"), (187_200, "2d04h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    """Durations are printed for people."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1_795_752_000.5, "2026-11-27 04:00:00Z"),
        (-1.0, "1970-01-01 00:00:00Z"),
        (1e20, "9999-12-31 23:59:59Z"),
        (math.inf, "9999-12-31 23:59:59Z"),
    ],
)
def test_a_time_that_no_date_can_say_is_the_nearest_one(seconds: float, text: str) -> None:
    """A time is said in UTC; one before 1970, or behind the calendar's last day, is the nearest that has a date."""
    assert moment(seconds) == text


def test_counts_agree_with_their_nouns() -> None:
    """One is singular, every other count is plural, and long ones are in groups of three digits."""
    assert [several(count, "shard") for count in (0, 1, 2)] == ["0 shards", "1 shard", "2 shards"]
    assert several(12_345, "entry", "entries") == "12,345 entries"


def test_no_command_counts_without_agreement() -> None:
    """Between a figure and its noun in the plural stands `several`, save where the figure is a constant or a rate."""
    nouns = (
        "entries|events|topics|queues|shards|letters|records|keys|files|objects|rows|reservations|directories|batches"
    )
    figure = re.compile(rf"\{{(?!several)[a-z_][^{{}}]*\}} (?:[a-z]+ )?(?:{nouns})\b(?!/s)")

    places = {path.name: figure.findall(path.read_text()) for folder in COMMANDS for path in folder.glob("*.py")}

    assert {name: found for name, found in places.items() if found} == {"explain.py": ["{asked.what} in queues"]}


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (3_565_158, "3.4MiB"),
        (1 << 40, "1024.0GiB"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    """So are sizes."""
    assert size(nbytes) == text


def test_an_owner_is_shown_with_its_host_and_worker() -> None:
    """A queue's holder is named by host and worker where that is one of remora's, and else as the store has it."""
    ours = LockHolder("client.7", "remora/web-1/boot/5f1c", 30.0)
    theirs = LockHolder("client.8", "gatewaycookie016", 30.0)
    stats = ShardStats(Shard("t"), 0, True, 0, 1, 0, 0, None, ours)

    assert owner_text(ours) == "worker 5f1c on web-1"
    assert owner_text(ours, {"web-1": "db7"}) == "worker 5f1c on db7 (web-1)"
    assert owner_text(theirs) == "radosgw or other client.8 (gatewaycookie016)"
    owner, other = as_json_row(stats)["owner"], as_json_row(replace(stats, holder=theirs))["owner"]
    assert isinstance(owner, dict)
    assert isinstance(other, dict)
    assert (owner["host"], owner["worker"]) == ("web-1", "5f1c")
    assert (other["host"], other["worker"]) == (None, None)


@pytest.mark.parametrize("missing", ["pyspark", "py4j", "pyarrow"])
def test_a_command_that_needs_spark_says_what_to_install(missing: str) -> None:
    """Where a package that the pipeline needs is missing, its commands say what to install instead of a traceback."""
    script = f"import sys; sys.modules[{missing!r}] = None; from remora.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", script, "pipeline", "land", "--help"], capture_output=True, text=True, check=False
    )

    assert done.returncode == Exit.FAILURE
    assert re.fullmatch(
        rf"Error: {missing}[a-z.]* is missing; install it with: pip install remorad-pipeline\n", done.stderr
    )


LEAVES = """
import atexit, sys, threading
from remora import cli

atexit.register(print, "taken apart")
if sys.argv.pop(1) == "waits":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
cli.main()
"""
"""The command line in a process that has a thread which waits, as in a library, or that has none."""


@pytest.mark.parametrize(("thread", "end"), [("waits", ""), ("none", "taken apart\n")])
@pytest.mark.parametrize(
    ("arguments", "code", "out"), [(["--version"], 0, f"remora, version {__version__}\n"), (["no-such"], 2, "")]
)
def test_a_thread_that_waits_in_a_library_does_not_see_it_go(
    thread: str, end: str, arguments: list[str], code: int, out: str
) -> None:
    """A command whose thread still waits ends at once with its own output and exit code; else Python ends as usual."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, thread, *arguments], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (code, out + end), done.stderr


def test_an_error_keeps_its_exit_code_beside_a_thread_that_waits(tmp_path: Path) -> None:
    """A configuration that is refused is said in a line, with exit code 78."""
    file = tmp_path / "remora.toml"
    file.write_text("[nonsense]\n")

    done = subprocess.run(
        [sys.executable, "-c", LEAVES, "waits", "check-config", file], capture_output=True, text=True, check=False
    )

    assert done.returncode == Exit.CONFIG
    assert "nonsense" in done.stderr
