"""Whether something is well, and what a worker says of itself when it is asked that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Health:
    """A yes or no, with the reasons in plain words; a yes may have reasons too, as remarks."""

    ok: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queues with entries for one destination, an endpoint without secrets, that wait for the same cause.

    `cause` is `away` where the destination cannot be reached or fails, `refused` where it, or something in a topic or
    a file that somebody has to mend, refuses these queues, and empty where neither is known. The age is that of the
    last progress of any of them.
    """

    destination: str
    cause: Literal["", "away", "refused"]
    progress_age_s: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """What a worker is good for now. `store` is what is wrong with its store, empty while it answers; `has_way` whether
    a way to some destination is open for a queue in which nothing waits."""

    store: str = ""
    has_started: bool = True
    takes_events: bool = True
    has_way: bool = False
    waiting: tuple[Waiting, ...] = ()
