"""A shared log whose positions a sequencer hands out, as CORFU has them (Balakrishnan and others, NSDI 2012)."""

from __future__ import annotations

from typing import NamedTuple

MOST_POSITION = (1 << 63) - 1
"""The last position of a log."""


class LogName(NamedTuple):
    """What names a log: a pool and a name in it, any bytes, compared as bytes."""

    pool: bytes
    name: bytes


class Token(NamedTuple):
    """A position of a log, and the epoch that it was handed out in; storage refuses a write with an older epoch."""

    epoch: int
    position: int
