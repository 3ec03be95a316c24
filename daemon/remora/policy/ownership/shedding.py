"""Which shards move from busy workers to others, by what each of them does instead of how many it has.

A round is computed alike by all workers from what they announced of each other, and each does its own part of it.
All figures are fractions of what a worker can do; bytes are per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from remora.model.member import Member
from remora.policy.ownership import balance

RESOURCES = (
    "cpu", "host_cpu", "memory", "held", "network_in", "network_out", "host_network_in", "host_network_out"
)  # fmt: skip
EDGE = 1e-9
MARGIN = 0.05
NEWS_AFTER_S = 900
NEWS_POINTS = 10
NEWS_PERCENT = 10


@dataclass(frozen=True, slots=True)
class Options:
    """How shards are moved by load; percentages and points are numbers up to 100."""

    by_overload: bool = False
    threshold: float = 10
    history: float = 0.9
    overload: float = 85
    minimum: float = 10_485_760
    difference: float = 10
    grace_s: float = 1800
    lower_boundary: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """A worker that takes part: its usage now, its history with it, and the bytes of its shards."""

    name: str
    usage: float
    history: float
    shards: Mapping[str, float]
    bytes: float

    @property
    def low(self) -> float:
        """What it does in any case: by history, and still now."""
        return min(self.history, self.usage)


@dataclass(frozen=True, slots=True)
class Move:
    """One shard that goes to another worker for its load."""

    shard: str
    giver: str
    to: str


@dataclass(frozen=True, slots=True)
class SheddingPlan:
    """What a round does: what each busy worker should be rid of, the moves, and why the others do nothing."""

    average: float
    needed: Mapping[str, float]
    moves: tuple[Move, ...]
    skipped: Mapping[str, str]


def usage_of(percents: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """A worker's usage: that of its busiest resource, by weight.

    A value above 100 comes of a limit that is configured wrongly, and does not decide.
    """
    weighted = [weights.get(name, 1.0) * percent for name, percent in percents.items()]
    return max((each for each in weighted if each <= 100), default=0.0) / 100


def next_history(former: float | None, usage: float, weight: float) -> float:
    """A worker's history with one more figure, in which it has the part `weight`. The first one is the history."""
    return usage if former is None else weight * former + (1 - weight) * usage


def plan(loads: Sequence[Load], options: Options, moved_at: Mapping[str, float], now: float) -> SheddingPlan:
    """One round among the workers that do not drain. `moved_at` is when shards were moved for their load."""
    average = _mean([each.history for each in loads])
    if len(loads) < 2:
        return SheddingPlan(average, {}, (), {each.name: "alone" for each in loads})
    needed, skipped = _needs(loads, options)
    needs = {name: need for name, need in needed.items() if name not in skipped}
    if options.lower_boundary and not options.by_overload:
        boundary = _at_lower_boundary(loads, needs, average, options)
        needs.update(boundary)
        needed.update(boundary)
        for name in boundary:
            skipped.pop(name, None)
    givers: list[Load] = []
    for each in loads:
        if each.name in needs and len(each.shards) > 1:
            givers.append(each)
        elif each.name in needs:
            skipped[each.name] = "only_shard" if each.shards else "no_shards"
    givers.sort(key=lambda each: (-each.low, each.name))
    others = {each.name: _figure(each, options) for each in loads if each.name not in needs}
    figures = [_figure(each, options) if options.by_overload else each.history for each in loads]
    takers = receivers(others, _mean(figures), options.difference)
    lots = min(len(givers), len(takers))
    moves: list[Move] = []
    for place, giver in enumerate(givers):
        if place >= lots:
            skipped[giver.name] = "later"
            continue
        predicted = {name: others[name] for name in takers[place::lots]}
        given = _given(giver, needs[giver.name], predicted, options, moved_at, now)
        if isinstance(given, str):
            skipped[giver.name] = given
        else:
            moves.extend(given)
    moves.sort(key=lambda move: move.giver)
    return SheddingPlan(average, needed, tuple(moves), skipped)


def receivers(figures: Mapping[str, float], mean: float, difference: float) -> list[str]:
    """Who may receive, the idlest first: those `difference` points below the mean, or all where there are none."""
    ordered = sorted(figures, key=lambda name: (figures[name], name))
    return [name for name in ordered if figures[name] <= mean - difference / 100 + EDGE] or ordered


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a worker's row says of its load; `at` in seconds, `usage` in percent."""

    at: float
    rate: float
    throughput: float
    shards: float
    usage: float


def news(last: LoadReport, now: LoadReport) -> str:
    """Why the row is to be written again; empty where it is not."""
    if now.at - last.at > NEWS_AFTER_S:
        return "age"
    for name in ("rate", "throughput", "shards"):
        before, after = getattr(last, name), getattr(now, name)
        if abs(after - before) * 100 > NEWS_PERCENT * before:
            return name
    return "usage" if abs(now.usage - last.usage) > NEWS_POINTS else ""


def targets(members: Sequence[Member], skews: Mapping[str, int], shards: int) -> dict[str, int]:
    """The fair numbers of shards, beside those that were moved for their load: what is skewed stays so."""
    return balance.targets([replace(each, skew=skews.get(each.cookie, 0)) for each in members], shards)


def need(load: Load, mean: float, mean_now: float, options: Options) -> tuple[float, str]:
    """The bytes that a worker should be rid of, beside the means of all histories and usages; or why it keeps them.

    `minimum` says that there are some, and too few to be worth a move.
    """
    if options.by_overload:
        over = load.usage - options.overload / 100
    else:
        over = min(load.history - mean, load.usage - mean_now) - options.threshold / 100
    if over < -EDGE or (not options.by_overload and mean <= 0):
        return 0.0, "below"
    needed = (over + MARGIN) * load.bytes
    return needed, "minimum" if not options.by_overload and needed < options.minimum else ""


def _needs(loads: Sequence[Load], options: Options) -> tuple[dict[str, float], dict[str, str]]:
    """What those that are over should be rid of, and why not where it is too little or they are not over."""
    mean, mean_now = _mean([each.history for each in loads]), _mean([each.usage for each in loads])
    needed: dict[str, float] = {}
    skipped: dict[str, str] = {}
    for each in loads:
        nbytes, reason = need(each, mean, mean_now, options)
        if reason != "below":
            needed[each.name] = nbytes
        if reason:
            skipped[each.name] = reason
    return needed, skipped


def _at_lower_boundary(
    loads: Sequence[Load], needs: Mapping[str, float], average: float, options: Options
) -> dict[str, float]:
    """Where no worker is over but one is idle: the busiest one gives a little."""
    boundary = average - options.threshold / 100
    if any(each.name in needs and len(each.shards) > 1 for each in loads):
        return {}
    if not any(each.history < boundary for each in loads):
        return {}
    busy = [each for each in loads if each.history > boundary and len(each.shards) > 1]
    if not busy:
        return {}
    giver = min(busy, key=lambda each: (-each.history, each.name))
    need = giver.bytes * options.threshold / 100 * 0.5
    return {giver.name: need} if need >= options.minimum else {}


def _given(
    giver: Load,
    need: float,
    predicted: dict[str, float],
    options: Options,
    moved_at: Mapping[str, float],
    now: float,
) -> list[Move] | str:
    """The giver's moves to its receivers, or why there are none. Each lowers the higher one of the two."""
    free = [shard for shard in giver.shards if shard not in moved_at or now - moved_at[shard] >= options.grace_s]
    if not free:
        return "grace"
    moves: list[Move] = []
    given = 0.0
    for shard in sorted(free, key=lambda shard: (-giver.shards[shard], shard)):
        points = giver.shards[shard] / giver.bytes * giver.usage if giver.bytes else 0.0
        to = min(predicted, key=lambda name: predicted[name])
        if predicted[to] + points >= giver.low:
            continue
        predicted[to] += points
        given += giver.shards[shard]
        moves.append(Move(shard, giver.name, to))
        if given >= need:
            break
    return moves or "helps_nobody"


def _figure(load: Load, options: Options) -> float:
    return load.usage if options.by_overload else max(load.history, load.usage)


def _mean(figures: Sequence[float]) -> float:
    return sum(figures) / len(figures) if figures else 0.0
