"""What the process that registers logs and the workers that hand positions out tell each other, over a pipe."""

from __future__ import annotations

from typing import TypeAlias

from remora.config.sequencer import SequencerSettings
from remora.process.pipe import Message


class Begin(Message, frozen=True, kw_only=True):
    """The first message to a worker: all that it needs."""

    number: int
    settings: SequencerSettings
    listeners: tuple[int, ...]
    """Descriptors of the sockets that all workers accept from."""
    memory: int
    """The descriptor of the memory with the cells."""


class Serve(Message, frozen=True, kw_only=True):
    """To a worker: an epoch of a log is served from now on, in this cell."""

    pool: bytes
    name: bytes
    epoch: int
    cell: int


class Over(Message, frozen=True, kw_only=True):
    """To a worker: forget this cell; it is dead already."""

    pool: bytes
    name: bytes
    cell: int


class Raised(Message, frozen=True, kw_only=True):
    """To a worker: the bound of an epoch was raised."""

    pool: bytes
    name: bytes
    epoch: int
    bound: int


class Leave(Message, frozen=True, kw_only=True):
    """To a worker: send the replies that are under way, and end."""


class Works(Message, frozen=True, kw_only=True):
    """From a worker: it accepts connections."""


class Missed(Message, frozen=True, kw_only=True):
    """From a worker: a client asked for a log that the worker does not serve, or knows a later epoch of it."""

    pool: bytes
    name: bytes
    result: str
    client: int


class Low(Message, frozen=True, kw_only=True):
    """From a worker: few positions are left below the bound of an epoch."""

    pool: bytes
    name: bytes


class Forgotten(Message, frozen=True, kw_only=True):
    """From a worker: it knows nothing of this cell any more."""

    cell: int


class Did(Message, frozen=True, kw_only=True):
    """From a worker, each second: its event loop goes round, and what it has done since its start."""

    connections: int
    accepted: int
    rounds: int
    round_requests: tuple[int, ...]
    sampled_requests: int
    closed: dict[str, int]
    results: dict[str, int]


ToWorker: TypeAlias = Begin | Serve | Over | Raised | Leave
FromWorker: TypeAlias = Works | Missed | Low | Forgotten | Did
