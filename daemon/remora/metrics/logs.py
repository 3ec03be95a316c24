"""Log lines: one line per event, as text or JSON, without secrets, and without repeating itself.

A line has a time in RFC 3339 (UTC), a level, an event (a stable name to search for), a sentence, and fields.
Under systemd's journal the time is left out, because the journal has its own, and the level is given in the
way that the journal understands.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol, TextIO

from remora.model.words import printable

_CREDENTIALS = re.compile(r"([a-z][a-z0-9+.-]*://)\S*@", re.IGNORECASE)
_PLAIN = re.compile(r"[^\s\"=\\]+")
_SYSLOG = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_MOST_KEYS = 10_000


class LogOptions(Protocol):
    """What `config.LogSettings` says, which stands beside this layer and not below it."""

    @property
    def level(self) -> str: ...

    @property
    def format(self) -> str: ...

    @property
    def repeat_interval_s(self) -> float: ...


class Repeats:
    """Lets something be said at once, and then at most once an interval, with the number of times left unsaid."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._said: dict[object, tuple[float, int]] = {}

    def unsaid(self, key: object) -> int | None:
        """How often this was kept back since it was last said; None when it is to be kept back now."""
        now = self._clock()
        said_at, kept = self._said.get(key, (None, 0))
        if said_at is not None and now - said_at < self.interval_s:
            self._said[key] = (said_at, kept + 1)
            return None
        if said_at is None and len(self._said) >= _MOST_KEYS:
            del self._said[next(iter(self._said))]
        self._said[key] = (now, 0)
        return kept

    def forget(self, key: object) -> None:
        """The next time counts as the first again."""
        self._said.pop(key, None)


class QuietLibraries(logging.Filter):
    """Keeps back repeated lines of libraries, which know nothing of `Repeats`; our own lines pass."""

    def __init__(self, repeats: Repeats) -> None:
        super().__init__()
        self._repeats = repeats

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        if getattr(record, "event", None) is not None:
            return True
        unsaid = self._repeats.unsaid((record.name, record.levelno, record.msg))
        if unsaid:
            record.fields = {"repeated": unsaid}
        return unsaid is not None


class TextFormatter(logging.Formatter):
    """`TIME LEVEL event: sentence key=value ...`"""

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, without its end."""
        fields = "".join(f" {key}={_quoted(str(value))}" for key, value in _fields(record).items())
        start = _journal_level(record) if self._journal else f"{_rfc3339(record)} "
        return f"{start}{record.levelname} {_event(record)}: {printable(_message(record))}{fields}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, without its end."""
        line: dict[str, object] = {} if self._journal else {"time": _rfc3339(record)}
        line |= {"level": record.levelname.lower(), "event": _event(record), "message": _message(record)}
        for key, value in _fields(record).items():
            line.setdefault(key, value)
        return (_journal_level(record) if self._journal else "") + _in_ascii(line)


def configure_logging(settings: LogOptions, stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (standard error) as configured. May be called again after a reload."""
    stream = stream or sys.stderr
    journal = _is_journal(stream, os.environ)
    handler = logging.StreamHandler(stream)
    formatter = JsonFormatter if settings.format == "json" else TextFormatter
    handler.setFormatter(formatter(journal=journal))
    handler.addFilter(QuietLibraries(Repeats(settings.repeat_interval_s)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # libraries' lifecycle is not the daemon's
    logging.getLogger("remora").setLevel(settings.level.upper())
    logging.captureWarnings(True)


def redacted(text: str) -> str:
    """The text with user and password cut out of every URI in it: the last line of defence, not the first."""
    return _CREDENTIALS.sub(r"\1***@", text) if "@" in text else text


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(record, "fields", {})
    return {key: redacted(value) if isinstance(value, str) else value for key, value in found.items()}


def _event(record: logging.LogRecord) -> str:
    return str(getattr(record, "event", None) or record.name)


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
    return redacted(text)


def _quoted(text: str) -> str:
    if text.isprintable():
        return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
    return _in_ascii(text)


def _in_ascii(value: object) -> str:
    """JSON with nothing that a terminal obeys; its own escapes leave one such character."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def _rfc3339(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _journal_level(record: logging.LogRecord) -> str:
    return f"<{_SYSLOG.get(record.levelno, 5)}>"


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream is the very one that systemd connected to the journal, as JOURNAL_STREAM says."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
