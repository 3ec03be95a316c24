"""What was asked of the daemon, what Kafka got, and whether that fits. Shares no code with the daemon.

Every event has an id that no other one has, `<client>-<number>`, where a client's numbers only grow. Kafka's headers
tell for each record its event id and its place in the queue, and so whether it is another copy of a stored event
(the same place, allowed after a kill) or was stored twice (another place, never allowed).
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """What the client knows in the end about the events of one request."""

    STORED = "acknowledged"
    REFUSED = "refused, or never asked to be stored"
    OPEN = "never answered"


class Place(NamedTuple):
    """Where an entry begins in its queue: comparable within one queue and incarnation."""

    shard: str
    incarnation: str
    turn: int
    offset: int

    @property
    def generation(self) -> int:
        """The layout of its topic that its shard is of: `t@3.7` is of the third after the first one."""
        return int(self.shard.partition("@")[2].partition(".")[0] or 0)

    @classmethod
    def read(cls, shard: str, header: str) -> Place:
        """The header is `<incarnation>:<turn>/<offset>`."""
        incarnation, _, marker = header.rpartition(":")
        turn, _, offset = marker.partition("/")
        return cls(shard, incarnation, int(turn), int(offset))


class Request(NamedTuple):
    """Events that were to be stored together, all or none, in this order."""

    ids: tuple[str, ...]
    fate: Fate


class Copy(NamedTuple):
    """One record of a Kafka topic. `at` is its time stamp, in seconds since 1970.

    `is_committed` tells whether a read_committed consumer sees it. `number` is `<topic id>:<number>`, where its topic
    numbers its events. `after` is where the shards ended that its own took over from, where it says so.
    """

    event_id: str
    key: bytes
    place: Place
    end: Place
    partition: int
    offset: int
    at: float
    nbytes: int = 0
    is_committed: bool = True
    number: str = ""
    after: str = ""


class Kill(NamedTuple):
    """The daemon, or a worker, certainly went on at one time, and was certainly dead, or thawed, at the other."""

    before: float
    after: float


@dataclass
class Arrived:
    """Everything that Kafka has shown so far, by event; what is wrong beyond doubt is noted at once."""

    firsts: dict[str, Copy] = field(default_factory=dict)
    copies: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, copy: Copy, *, is_exact: bool = False) -> None:
        """Take a record, in the order of its partition; of a topic that `is_exact` no second copy may be visible."""
        self.count += 1
        first = self.firsts.setdefault(copy.event_id, copy)
        if first is copy:
            return
        if is_exact:
            self.wrong.append(f"visible twice: {copy.event_id} at {first.offset} and at {copy.offset}")
        if first.place != copy.place:
            self.wrong.append(f"stored twice: {copy.event_id} at {first.place} and at {copy.place}")
        if first.partition != copy.partition or first.key != copy.key:
            self.wrong.append(f"two copies of {copy.event_id} have different keys or partitions")
        self.copies.setdefault(copy.event_id, [first.at]).append(copy.at)

    @property
    def repeated(self) -> int:
        """Copies beyond the first."""
        return self.count - len(self.firsts)


def judge(requests: Sequence[Request], arrived: Arrived, kills: Sequence[Kill]) -> list[str]:
    """All that is wrong; empty when everything is as promised."""
    return [
        *arrived.wrong,
        *_missing(requests, arrived),
        *_unwanted(requests, arrived),
        *_halves(requests, arrived),
        *_scattered(arrived),
        *_gaps(arrived),
        *_needless(arrived, kills),
    ]


def _missing(requests: Sequence[Request], arrived: Arrived) -> Iterator[str]:
    for request in requests:
        if request.fate is Fate.STORED:
            yield from (f"lost: {each} was acknowledged" for each in request.ids if each not in arrived.firsts)


def _unwanted(requests: Sequence[Request], arrived: Arrived) -> Iterator[str]:
    wanted = {each for request in requests if request.fate is not Fate.REFUSED for each in request.ids}
    for each in arrived.firsts:
        if each not in wanted:
            yield f"nobody stored: {each}"


def _halves(requests: Sequence[Request], arrived: Arrived) -> Iterator[str]:
    for request in requests:
        there = sum(each in arrived.firsts for each in request.ids)
        if request.fate is Fate.OPEN and there not in (0, len(request.ids)):
            yield f"half a request: {there} of {len(request.ids)} events from {request.ids[0]} on"


def _scattered(arrived: Arrived) -> Iterator[str]:
    """The first copies of a key's events: one partition, in each generation of the topic one shard, and in all of these
    the order in which they were sent; none of a generation comes before one of an earlier generation."""
    by_key: dict[bytes, list[Copy]] = defaultdict(list)
    for copy in arrived.firsts.values():
        by_key[copy.key].append(copy)
    for key, copies in by_key.items():
        queues = {(copy.place.shard, copy.place.incarnation) for copy in copies}
        generations = {copy.place.generation for copy in copies}
        if len({copy.partition for copy in copies}) > 1 or len(queues) > len(generations):
            yield f"in several shards or partitions: {key.decode()}"
            continue
        copies.sort(key=lambda copy: copy.offset)
        for before, after in itertools.pairwise(copies):
            if before.event_id >= after.event_id:
                yield f"order of {key.decode()} in Kafka: {before.event_id} before {after.event_id}"
            if before.place.generation > after.place.generation:
                yield f"order of {key.decode()} over a change of shards: {before.place} before {after.place}"
            if before.place.shard == after.place.shard and before.place >= after.place:
                yield f"order of {key.decode()} in its queue: {before.place} before {after.place}"


def _gaps(arrived: Arrived) -> Iterator[str]:
    """Places where an entry of a queue ends and no other one begins, save at the queue's end."""
    queues: dict[tuple[str, str], list[Copy]] = defaultdict(list)
    for copy in arrived.firsts.values():
        queues[copy.place.shard, copy.place.incarnation].append(copy)
    for members in queues.values():
        members.sort(key=lambda copy: copy.place)
        for before, after in itertools.pairwise(members):
            if before.end != after.place:
                yield f"a gap in {before.place.shard}: after {before.place} to {before.end} comes {after.place}"
        yield from _unfollowed(members[0], queues)


def _unfollowed(first: Copy, queues: Mapping[tuple[str, str], Sequence[Copy]]) -> Iterator[str]:
    """Ends of earlier shards that the first record of a shard names, and that their own records do not lead to."""
    if first.place.generation and not first.after:
        yield f"{first.place.shard} begins without saying where the shards before it ended"
    for parent in filter(None, first.after.split(",")):
        shard, _, header = parent.partition("=")
        if shard == "generation":
            continue
        end = Place.read(shard, header)
        known = queues.get((shard, end.incarnation), ())  # none of a queue that had no event
        reached = max((each.end for each in known), default=end)
        if reached != end:
            yield f"a gap at the end of {shard}: its records lead to {reached}, and it ended at {end}"


def _needless(arrived: Arrived, kills: Sequence[Kill]) -> Iterator[str]:
    """Copies that no kill explains: one is due only when the sender of the copy before it has died since.

    Kafka keeps time in whole milliseconds.
    """
    deaths = sorted(kills)
    for event_id, times in arrived.copies.items():
        for before, after in itertools.pairwise(sorted(times)):
            kill = bisect.bisect_left(deaths, before - 0.001, key=lambda each: each.after)
            if kill == len(deaths) or deaths[kill].before > after + 0.001:
                yield f"sent twice without a kill between: {event_id} at {before:.3f} and at {after:.3f}"
