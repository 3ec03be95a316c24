"""What the workers do, as balance by load sees it: from their rows, with what is on its way between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from remora.model.member import Member
from remora.model.shard import Shard
from remora.policy.ownership.balance import BUSY_AT_ONCE
from remora.policy.ownership.membership import Announced, Outgoing
from remora.policy.ownership.shedding import Load, LoadReport, Options, news, plan

SAMPLES = 10
"""A shard's bytes are the mean of this many samples."""

_UNNAMED = ("", " ")
"""Stand for shards of other workers: only whether there is one, or are more, is asked of them."""


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Bytes of memory for one worker, and bytes per second of the host's network in each direction; 0: not known.

    `memory_from` and `network_from` name where the figure is from: an option, "control group", "host", or a card, which
    is named also where it does not tell its speed.
    """

    memory: int = 0
    memory_from: str = ""
    network: int = 0
    network_from: str = ""


@dataclass(frozen=True, slots=True)
class Mean:
    """A running mean of the last samples."""

    value: float = 0.0
    samples: int = 0

    def with_sample(self, value: float) -> Mean:
        """The mean with one more."""
        samples = min(self.samples + 1, SAMPLES)
        return Mean(((samples - 1) * self.value + value) / samples, samples)


@dataclass(frozen=True, slots=True)
class Own:
    """A worker as it knows itself: `shards` with their bytes per second, `moved` when they came for their load.

    `shards` are those that it may give. `usage`, `history` and `bytes` have what is on offer in them, too.
    """

    cookie: str
    usage: float
    history: float
    shards: Mapping[Shard, float]
    moved: Mapping[Shard, float]
    bytes: float


@dataclass(frozen=True, slots=True)
class Due:
    """A shard that a round moves, and to which worker; with the part of its owner's usage, and its bytes per second."""

    to: str
    load: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """What a round has one worker do: the moves in their order, what it should be rid of, and why it does nothing."""

    moves: Mapping[Shard, Due]
    average: float
    needed: float
    skipped: str


def loads(rows: Collection[Member], own: Mapping[str, Load] | None = None) -> list[Load]:
    """The workers that take part: those that announce what they do, and do not drain.

    `own` are figures that are better known than from the rows, by cookie. What is on its way for its load counts
    for its receiver already, so that two workers that plan one after the other do not fill the same one.
    """
    own, coming = own or {}, dict.fromkeys((each.cookie for each in rows), (0.0, 0.0))
    known_to = {each.cookie: frozenset(each.expects) for each in rows}
    for each in rows:
        for offer in each.offers:
            if offer.load is not None and offer.to in coming:
                unseen = sum(shard not in known_to[offer.to] for shard in offer.shards) / len(offer.shards)
                for cookie, part in ((offer.to, unseen), (each.cookie, -1.0)):
                    load, nbytes = coming[cookie]
                    coming[cookie] = load + part * offer.load, nbytes + part * offer.bytes
    found = []
    for each in sorted(rows, key=lambda row: row.cookie):
        if each.usage is None or each.draining:
            continue
        known = own.get(each.cookie) or Load(
            each.cookie, each.usage, each.history, dict.fromkeys(_UNNAMED[: each.shards], 0.0), each.bytes
        )
        load, nbytes = coming[each.cookie]
        found.append(
            Load(
                known.name,
                max(0.0, known.usage + load),
                max(0.0, known.history + load),
                known.shards,
                max(0.0, known.bytes + nbytes),
            )
        )
    return found


def round_of(own: Own, rows: Collection[Member], options: Options, now: float) -> Round:
    """What a round has this worker do; `rows` are those of all workers, this one's included.

    A shard without any bytes stays: its move would relieve no worker.
    """
    by_name = {_name(shard): shard for shard in own.shards}
    shards = {name: own.shards[shard] for name, shard in by_name.items()}
    taking_part = loads(rows, {own.cookie: Load(own.cookie, own.usage, own.history, shards, own.bytes)})
    load = next((each for each in taking_part if each.name == own.cookie), Load(own.cookie, 0.0, 0.0, shards, 0.0))
    moved_at = {_name(shard): at for shard, at in own.moved.items()}
    done = plan(taking_part, options, moved_at, now)
    moves = {
        by_name[move.shard]: Due(
            move.to,
            load.shards[move.shard] / load.bytes * load.usage if load.bytes else 0.0,
            shards[move.shard],
        )
        for move in done.moves
        if move.giver == own.cookie and shards[move.shard] > 0
    }
    skipped = done.skipped.get(own.cookie, "" if moves else "helps_nobody")
    return Round(moves, done.average, done.needed.get(own.cookie, 0.0), skipped)


def _name(shard: Shard) -> str:
    """A shard's name among all: radosgw and remora may both have a queue of one name."""
    return f"{shard.queue} {shard.origin}"


def next_offers(
    due: Mapping[Shard, Due], on_offer: Mapping[Shard, Outgoing], takers: Collection[str], now: float
) -> dict[Shard, Outgoing]:
    """Which of the shards to offer now: few enough busy ones at a time, and to workers that take some."""
    room = BUSY_AT_ONCE - sum(each.load is not None for each in on_offer.values())
    fitting = [shard for shard, each in due.items() if shard not in on_offer and each.to in takers]
    return {
        shard: Outgoing(due[shard].to, now, load=due[shard].load, bytes=due[shard].bytes)
        for shard in fitting[: max(0, room)]
    }


@dataclass(frozen=True, slots=True)
class Said:
    """What a worker's row says of its load, since when, and how many shards it had then."""

    load: Announced
    at: float
    shards: int


def is_news(last: Said, now: Said) -> bool:
    """Whether what a worker does has changed so much that its row says something else from now on."""
    before, after = last.load, now.load
    if before.usage is None or after.usage is None:
        return before != after
    figures = ((before.usage, after.usage), (before.history, after.history))
    return any(news(_report(last, was), _report(now, is_now)) for was, is_now in figures)


def _report(said: Said, figure: float) -> LoadReport:
    return LoadReport(said.at, 0.0, said.load.bytes, said.shards, figure * 100)
