"""Health: whether a part is well, and what a worker answers when asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Health:
    """A yes or no with the reasons in plain words; a yes may have reasons too, as remarks."""

    ok: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queues with entries for one destination, an endpoint without secrets, that wait for the same cause.

    `cause` is `away` where the destination cannot be reached or fails; `refused` where it, a topic or a file refuses
    these queues until an operator acts; empty where neither is known. The age, in seconds, is that of the last progress
    of any of them.
    """

    destination: str
    cause: Literal["", "away", "refused"]
    progress_age_s: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """What a worker can do now.

    `store` is what is wrong with its store, empty while it answers; `full` why that has no room for new events though
    it delivers; `lost` why each of its parts that cannot be used cannot, while the others go on; `has_way` whether a
    route is open to some destination for a queue that is empty.
    """

    store: str = ""
    full: str = ""
    lost: tuple[str, ...] = ()
    has_started: bool = True
    takes_events: bool = True
    has_way: bool = False
    waiting: tuple[Waiting, ...] = ()
