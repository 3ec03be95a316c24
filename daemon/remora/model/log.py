"""A shared log whose positions a sequencer hands out, as CORFU has them (Balakrishnan and others, NSDI 2012)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from remora.model.errors import StoreError

MOST_POSITION = (1 << 63) - 1
"""The last position of a log."""

MOST_DATA_BYTES = 16 << 20
"""The longest entry of a log."""

MOST_NAME_BYTES = 255
MOST_WIDTH = 1024


class LogName(NamedTuple):
    """The name of a log: a pool and a name within it, any bytes, compared as bytes."""

    pool: bytes
    name: bytes

    def __str__(self) -> str:
        return f"{self.pool.decode(errors='replace')}/{self.name.decode(errors='replace')}"


class Token(NamedTuple):
    """A position of a log, and the epoch that it was handed out in; storage refuses a write with an older epoch."""

    epoch: int
    position: int


class LogKind(StrEnum):
    """The kind of a log: positions of a `log` are written to its stripes, those of a `counter` are only handed out."""

    COUNTER = "counter"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Projection:
    """A log as the store describes it.

    `id` is a new one each time that the log is created, `owner` a new one for each server process; `address` is where
    clients connect. Epoch 0 is never served.
    """

    id: str
    kind: LogKind
    width: int
    epoch: int = 0
    owner: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class LogLock:
    """The lock of a log, as held by the server that took it."""

    log: LogName
    owner: str
    id: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A log in a new epoch, which no other server has; all earlier epochs are sealed.

    `position` is the last one that may have been used; positions up to `bound` may be handed out.
    """

    epoch: int
    position: int
    bound: int


class Cell(StrEnum):
    """The state of a position of a log."""

    DATA = "data"
    FILLED = "filled"
    UNWRITTEN = "unwritten"
    TRIMMED = "trimmed"


@dataclass(frozen=True, slots=True)
class Figures:
    """A log's storage: the largest position written or trimmed, and the keys of its fullest stripe.

    Above `advised_keys` the store grows slow, and says so; 0 where it never does.
    """

    tail: int
    trimmed: int
    keys: int
    advised_keys: int = 0


class LogError(StoreError):
    """A request that a log refuses; the same call fails again."""


class LogUnknown(LogError):
    """There is no such log."""


class LogRefused(LogError):
    """A log that cannot be made: its name, pool, kind or width is refused, or it exists."""


class LogLocked(StoreError):
    """Another server serves the log."""

    retriable = True


class StaleEpoch(LogError):
    """The log has a later epoch than the write."""


class PositionTaken(LogError):
    """The position is written or filled already."""


class PositionTrimmed(LogError):
    """The position is trimmed."""


def name_problem(log: LogName) -> str:
    """The reason why a store refuses this name; empty for a valid name."""
    for what, given in (("name", log.name), ("pool", log.pool)):
        try:
            text = given.decode()
        except UnicodeDecodeError:
            return f"the {what} of a log is UTF-8"
        if not text or len(given) > MOST_NAME_BYTES or not text.isprintable():
            return f"the {what} of a log has 1 to {MOST_NAME_BYTES} bytes of printable text"
    return ""


def check_entry(data: bytes) -> None:
    """Raises LogRefused for an entry that is too long for a log."""
    if len(data) > MOST_DATA_BYTES:
        raise LogRefused(f"an entry of a log has at most {MOST_DATA_BYTES} bytes, not {len(data)}")
