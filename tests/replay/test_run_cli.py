"""What `remora replay run` refuses before anything is started or written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from remora.cli import group
from remora_pipeline.replay import layout
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.run.progress import Reading, shown
from replay.prepared import Wanted, prepare

TOPIC = ("--topic", "t")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "--topic is missing"),
        ((*TOPIC, "--ingest", "unix:/x", "--null"), 2, "exclude each other"),
        ((*TOPIC, "--overload", "drop", "--speed", "0"), 2, "--overload drop needs a --speed"),
        ((*TOPIC, "--run-id", "a/b"), 2, "--run-id"),
        ((*TOPIC, "--run-id", ""), 2, "--run-id"),
        ((*TOPIC, "--speed", "-1"), 2, "--speed"),
        ((*TOPIC, "--speed", "nan"), 2, "--speed"),
        ((*TOPIC, "--speed", "inf"), 2, "--speed"),
        ((*TOPIC, "--retry-for", "1h"), 2, "--retry-for"),
        ((*TOPIC, "--retry-for", "soon"), 2, "--retry-for"),
        ((*TOPIC, "--s3", "http://127.0.0.1:1"), 2, "AWS_ACCESS_KEY_ID"),
        ((*TOPIC, "--ingest", "127.0.0.1:1"), 1, "127.0.0.1:1"),
        ((*TOPIC, "--resume"), 1, "there is nothing to resume"),
    ],
)
def test_wrong_usage_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """Options that make no sense are refused with the documented code, and leave no directory behind."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    prepared = prepare(tmp_path / "trace", [Wanted(0, "PUT", "k")])

    done = CliRunner().invoke(group, ["replay", "run", str(prepared.path), "--out", str(tmp_path / "run"), *arguments])

    assert done.exit_code == code
    assert message in done.output + str(done.exception)
    assert not (tmp_path / "run").exists()


def test_a_directory_that_is_not_prepared_is_refused(tmp_path: Path) -> None:
    """A directory without trace.json is refused by its name, and so is one with another trace.json."""
    (tmp_path / "trace").mkdir()
    arguments = ["replay", "run", str(tmp_path / "trace"), "--out", str(tmp_path / "run"), "--null"]
    missing = CliRunner().invoke(group, arguments)
    (tmp_path / "trace" / "trace.json").write_text('{"name": 1}')
    wrong = CliRunner().invoke(group, arguments)

    assert (missing.exit_code, wrong.exit_code) == (1, 1)
    assert f"{tmp_path / 'trace'}: there is no trace.json" in str(missing.exception)
    assert "trace.json: " in str(wrong.exception)
    assert not (tmp_path / "run").exists()


def test_a_used_directory_is_refused(tmp_path: Path) -> None:
    """Where journals are, nothing else is run, even without run.json; and they are not touched."""
    prepared = prepare(tmp_path / "trace", [Wanted(0, "PUT", "k")])
    journal = RunDirectory(tmp_path / "run").journal / "part=0" / "attempt=0.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("x")

    done = CliRunner().invoke(group, ["replay", "run", str(prepared.path), "--out", str(tmp_path / "run"), "--null"])

    assert done.exit_code == 1
    assert "was replayed into it before" in str(done.exception)
    assert journal.read_text() == "x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": 2.0}, "--speed"),
        ({"topic": "u"}, "--topic"),
        ({"target": "s3"}, "--target"),
        ({"parts": 3}, "--parts"),
    ],
)
def test_another_replay_is_not_resumed(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """With other options than those that it was begun with a replay is not resumed, and they are named."""
    prepared = prepare(tmp_path / "trace", [Wanted(0, "PUT", "k")])
    trace = layout.read(prepared.trace, layout.Trace)
    begun = layout.ReplayRun(
        "r", trace, str(prepared.path), "null", "", "t", 1.0, 2, "wait", 0, options={}, host="h", cores=2, versions={}
    )
    layout.write(RunDirectory(tmp_path / "run").run, msgspec.structs.replace(begun, **change))

    arguments = ["replay", "run", str(prepared.path), "--out", str(tmp_path / "run"), "--null", "--parts", "2"]
    done = CliRunner().invoke(group, [*arguments, *TOPIC, "--resume"])

    assert done.exit_code == 1
    assert message in str(done.exception)


def test_a_run_without_a_terminal_says_that_it_sends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While the block runs, standard error has a line of its own at once."""
    with shown(Reading(RunDirectory(tmp_path), since_us=0), 1200):
        said = capsys.readouterr().err

    assert said == "remora: 00:00 sending 1,200 events\n"


@pytest.mark.parametrize(("kafka_topic", "looked_for"), [("t-events", "t-events"), ("", "t")])
def test_a_verification_looks_where_the_daemon_said_that_it_delivers(
    tmp_path: Path, kafka_topic: str, looked_for: str
) -> None:
    """Without --topic it is the Kafka topic that the run was told, else remora's; it is looked for before Spark is."""
    prepared = prepare(tmp_path / "trace", [Wanted(0, "PUT", "k")])
    trace = layout.read(prepared.trace, layout.Trace)
    run = layout.ReplayRun(
        "r", trace, str(prepared.path), "ingest", "unix:/x", "t", 1.0, 2, "wait", 0, options={}, host="h", cores=2,
        versions={}, kafka_topic=kafka_topic,
    )  # fmt: skip
    layout.write(RunDirectory(tmp_path).run, run)
    (RunDirectory(tmp_path).journal / "part=0").mkdir(parents=True)
    (RunDirectory(tmp_path).journal / "part=0/attempt=0.jsonl").touch()

    done = CliRunner().invoke(group, ["replay", "verify", str(tmp_path), "--bootstrap", "127.0.0.1:1"])

    assert done.exit_code == 1
    assert f"looking for topic {looked_for} at 127.0.0.1:1\n" in done.stderr
    assert "Spark" not in done.stderr
