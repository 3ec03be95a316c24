"""Log lines: their two forms, the journal, repeats, and secrets."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.config import LogSettings
from remora.metrics import Telemetry, configure_logging
from remora.metrics.logs import JsonFormatter, Repeats, TextFormatter, redacted
from support.telemetry import Clock


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Give logging back as it was: `configure_logging` is for a whole process."""
    root, ours = logging.getLogger(), logging.getLogger("remora")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def record(text: str, event: str | None = "happened", **fields: object) -> logging.LogRecord:
    """A record as the telemetry makes them."""
    made = logging.LogRecord("remora", logging.WARNING, "file", 1, "%s", (text,), None)
    made.created = 1_795_227_938.25
    made.event = event
    made.fields = fields
    return made


def test_a_text_line_has_time_level_event_sentence_and_fields() -> None:
    """The time is RFC 3339 in UTC, and only values that need quotes have them."""
    line = TextFormatter().format(record("it happened", topic="t", reason='said "no"', count=3))

    assert line == '2026-11-21T02:25:38.250Z WARNING happened: it happened topic=t reason="said \\"no\\"" count=3'


def test_a_json_line_has_the_same() -> None:
    """Numbers stay numbers, and the line is one object."""
    line = json.loads(JsonFormatter().format(record("it happened", topic="t", count=3)))

    assert line == {
        "time": "2026-11-21T02:25:38.250Z",
        "level": "warning",
        "event": "happened",
        "message": "it happened",
        "topic": "t",
        "count": 3,
    }


def test_a_field_cannot_replace_what_every_line_has() -> None:
    """A field called like the level, the event or the time does not hide them."""
    line = json.loads(JsonFormatter().format(record("it happened", level="mine", event_="x")))

    assert line["level"] == "warning"


@pytest.mark.parametrize("formatter", [TextFormatter(journal=True), JsonFormatter(journal=True)])
def test_the_journal_gets_a_level_and_no_time(formatter: logging.Formatter) -> None:
    """Lines for the journal begin with its level and leave the time to it."""
    line = formatter.format(record("it happened"))

    assert line.startswith("<4>")
    assert "2026" not in line


@given(
    text=st.text('ab \n\r\t\x00\x1b\x7f\x85\u2028\u202e\udc80"\\=é', max_size=30),
    value=st.text('ab \n\x1b\x7f\u2028\u202e\udc80"\\=é', max_size=30),
)
def test_an_event_is_one_line_whatever_it_says(text: str, value: str) -> None:
    """Nothing in a text or a field begins a new line or reaches a terminal as a control character."""
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record(text, reason=value))

        assert len(line.splitlines()) == 1
        assert line.isprintable()


@pytest.mark.parametrize(
    "secret",
    [
        "kafka://user:hunter2@broker:9092",
        "cannot reach kafka://hunter2@broker, giving up",
        "KAFKA://user:hunter2/with/slash@broker",
        "kafka://user:hunter2@home@broker",
    ],
)
def test_credentials_in_a_uri_are_cut_out(secret: str) -> None:
    """No user or password of any URI in a text or a field is written."""
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record(secret, reason=secret))

        assert "hunter2" not in line
        assert "***@" in line


def test_text_without_credentials_is_left_alone() -> None:
    """A mail address or a plain URI is not mistaken for credentials."""
    text = "ask ops@example.com about kafka://broker:9092"

    assert redacted(text) == text


def test_something_is_said_at_once_and_then_once_an_interval() -> None:
    """The second time is kept back; after the interval the count of what was kept back comes with it."""
    clock = Clock()
    repeats = Repeats(60.0, clock)

    first = repeats.unsaid("a")
    kept = [repeats.unsaid("a") for _ in range(5)]
    clock.now += 60

    assert first == 0
    assert kept == [None] * 5
    assert repeats.unsaid("a") == 5
    assert repeats.unsaid("b") == 0


def test_what_is_remembered_of_repeats_is_bounded() -> None:
    """Any number of different keys keeps only this many of them."""
    repeats = Repeats(60.0, Clock())

    for key in range(20_000):
        repeats.unsaid(key)

    assert len(repeats._said) == 10_000


def test_a_library_that_repeats_itself_is_kept_back() -> None:
    """A foreign line is written once an interval; our own events pass, since they count for themselves."""
    stream = io.StringIO()
    configure_logging(LogSettings(), stream)

    for _ in range(10):
        logging.getLogger("aiokafka").error("Unable to connect to %s", "broker")
        logging.getLogger("aiokafka").info("metadata refreshed")

    assert stream.getvalue().count("Unable to connect to broker") == 1
    assert "metadata refreshed" not in stream.getvalue()


def test_a_foreign_exception_is_one_line() -> None:
    """A traceback is written into the line of its event."""
    stream = io.StringIO()
    configure_logging(LogSettings(), stream)

    try:
        raise ValueError("kafka://u:hunter2@b broke")
    except ValueError:
        Telemetry().crashed("queue t")

    assert len(stream.getvalue().splitlines()) == 1
    assert "ValueError" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_the_journal_is_recognised_by_its_very_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JOURNAL_STREAM counts only when it names the file that is written to."""
    with (tmp_path / "log").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        configure_logging(LogSettings(), stream)
        Telemetry().released("t")
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + 1}")
        configure_logging(LogSettings(), stream)
        Telemetry().released("t")
        stream.seek(0)
        lines = stream.read().splitlines()

    assert lines[0] == "<6>INFO shard_released: queue released queue=t"
    assert re.match(r"\d{4}-\d\d-\d\dT", lines[1])
