"""What more queues give where a commit takes time: OSDs whose syncs wait, so that waiting is the limit.

A cluster of its own (two OSDs, two copies) has syncs that wait (devkit/clusters/slow_syncs.py), for so long that one
write of 4 KB, alone, takes L in the median. Writers then do four works in topics of several queues: reserve and commit;
reserve, a real PUT of 4 KB to a real radosgw, commit, as a gateway does; the same with a DELETE; the same with a PUT of
4 MB. A row of no queues is that request without a notification. There are three kinds of queues:

* plain: the calls of radosgw itself. OSDs since 16.2.15, 17.2.8 and 18.2.4 begin one while the one before is not yet
  committed.
* held: the same calls with a comparison, so that OSDs hold the object until one is committed on all replicas, as
  older ones do for every call. Where a commit takes L, such a queue takes at most 1 / (2 L) events a second.
* topic: a topic of remora's own, by the calls of its store, all of which compare. PUTs use its reservations, which are
  kept with an intent; reserve and commit alone is one publish.

`waited` is the share of their time in which the operations on the queues waited for the object, as OSDs remember it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from devkit.bench.clusters import BenchError
from devkit.bench.gateway import Bucket
from devkit.bench.slow_cluster import Latency, SlowCluster, slow_cluster
from devkit.bench.topic_queues import new_topic
from devkit.bench.writers import new_queues, random_key, writing
from devkit.processes.processes import spent
from remora.codec.shard_hash import shard

WRITERS, QUEUES = [64], [1, 2, 4, 11, 32, 64]
"""What is measured unless the options say otherwise."""

WARM_UP_S = 0.5
ALONE, PUT, DELETE, PUT_4_MB = "reserve, commit", "PUT 4 KB", "DELETE", "PUT 4 MB"
NONE, PLAIN, HELD, TOPIC = "none", "plain", "held", "topic"
KINDS: Mapping[str, Sequence[str]] = {
    ALONE: (PLAIN, HELD, TOPIC),
    PUT: (NONE, PLAIN, HELD, TOPIC),
    DELETE: (NONE, HELD),
    PUT_4_MB: (NONE, HELD),
}
"""The kinds of queues that each work is measured with."""

SMALL, LARGE = 4 << 10, 4 << 20
LARGE_OBJECTS = 128
"""Keys of large objects, which are overwritten in turn, so that the disk does not fill."""

DELETED_PER_S = 600
"""For so many requests a second there are objects before they are deleted; a turn ends when there is none left."""

FEW, MANY = 1, 11
CEILING_AT_LEAST, GAIN_AT_LEAST, OF_CEILING_AT_LEAST = 3.0, 1.9, 0.67
"""Where PUTs without notifications are so many times those with one queue, eleven queues are to give so many times
one queue's rate, and so much of the rate without notifications: the figures of a busy gateway elsewhere."""


@dataclass(frozen=True)
class What:
    """What is measured: at which latency, which work, with which kind of queues."""

    asked_s: float
    work: str
    kind: str
    writers: int
    queues: int


@dataclass(frozen=True)
class SlowTurn:
    """One measurement. `cpu_ms` is the processor time of writers, gateway and OSDs for an event."""

    what: What
    rate: float
    p50_s: float
    p99_s: float
    waited: float
    cpu_ms: float


@dataclass(frozen=True)
class SlowRow(SlowTurn):
    """The medians of a combination's turns; the ratios are to one queue, and to the work without a notification."""

    gain: float
    of_ceiling: float


@dataclass(frozen=True)
class Verdict:
    """The smallest latency at which PUT without notifications is at least three times PUT with one queue."""

    kind: str
    asked_s: float
    ceiling: float
    gain: float
    of_ceiling: float

    @property
    def is_reached(self) -> bool:
        return self.gain >= GAIN_AT_LEAST and self.of_ceiling >= OF_CEILING_AT_LEAST


def table(turns: Sequence[SlowTurn]) -> list[SlowRow]:
    """A row for each combination, in the order in which they were first measured; what was not measured is nan."""
    by_what: dict[What, list[SlowTurn]] = {}
    for turn in turns:
        by_what.setdefault(turn.what, []).append(turn)

    def median(what: What, figure: Callable[[SlowTurn], float]) -> float:
        return statistics.median(map(figure, by_what[what])) if what in by_what else math.nan

    def rate(what: What, kind: str, queues: int) -> float:
        return median(What(what.asked_s, what.work, kind, what.writers, queues), lambda turn: turn.rate)

    return [
        SlowRow(
            what,
            median(what, lambda turn: turn.rate),
            median(what, lambda turn: turn.p50_s),
            median(what, lambda turn: turn.p99_s),
            median(what, lambda turn: turn.waited),
            median(what, lambda turn: turn.cpu_ms),
            gain=rate(what, what.kind, what.queues) / rate(what, what.kind, FEW),
            of_ceiling=rate(what, what.kind, what.queues) / rate(what, NONE, 0),
        )
        for what in by_what
    ]


def verdict(rows: Sequence[SlowRow], kind: str) -> Verdict | None:
    """What more queues give at the smallest latency at which they can give much; None where there is no such one."""
    found = {(row.what.asked_s, row.what.kind, row.what.queues): row for row in rows if row.what.work == PUT}
    for asked_s in sorted({asked_s for asked_s, _, _ in found}):
        none, one, many = (found.get((asked_s, *which)) for which in ((NONE, 0), (kind, FEW), (kind, MANY)))
        if none and one and many and none.rate >= CEILING_AT_LEAST * one.rate:
            return Verdict(kind, asked_s, none.rate / one.rate, many.gain, many.of_ceiling)
    return None


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    turns: list[SlowTurn] = []
    latencies: list[Latency] = []
    with slow_cluster(options.name, options.keep, options.nice) as cluster:
        for _, asked_s in itertools.product(range(options.rounds), options.commit_latency):
            latencies.append(cluster.latency(asked_s))
            turns += _turns(options, cluster, latencies[-1])
    rows = table(turns)
    print_table(rows)
    verdicts = {kind: verdict(rows, kind) for kind in (PLAIN, HELD, TOPIC)}
    for kind, found in verdicts.items():
        print(f"{kind}: {_said(found)}")
    return {
        "latencies": [asdict(each) for each in latencies],
        "turns": [_flat(each) for each in turns],
        "rows": [_flat(each) for each in rows],
        "verdicts": {kind: asdict(found) if found else None for kind, found in verdicts.items()},
    }


def _flat(turn: SlowTurn) -> dict[str, Any]:
    return {**asdict(turn.what), **{key: each for key, each in asdict(turn).items() if key != "what"}}


def print_table(rows: Sequence[SlowRow]) -> None:
    """A line for each latency, work and kind of queues, as a table of Markdown: rates by the number of queues."""
    counts = sorted({row.what.queues for row in rows} - {0})
    print("| L, ms | work | queues | none | " + " | ".join(map(str, counts)), end=" | ")
    print("11 to 1 | 11 to none | p50, p99 of 1, ms | of 11 | waited: 1 | 11 | CPU of 11, ms |")
    print("|---" * (len(counts) + 11) + "|")
    by_what = {row.what: row for row in rows}
    for what in (each for each in by_what if each.kind != NONE and each.queues == counts[0]):
        none = by_what.get(replace(what, kind=NONE, queues=0))
        of = {count: by_what.get(replace(what, queues=count)) for count in counts}
        one, many = of.get(FEW), of.get(MANY)
        cells = [f"{what.asked_s * 1e3:g}", what.work, what.kind]
        cells += [_shown("{0.rate:,.0f}", each) for each in (none, *of.values())]
        cells += [_shown("{1.gain:.2f}", one, many), _shown("{1.of_ceiling:.2f}", none, many)]
        cells += [_shown("{0:.0f}, {1:.0f}", *_times_ms(each)) for each in (one, many)]
        cells += [_shown("{0.waited:.0%}", each) for each in (one, many)]
        print("| " + " | ".join([*cells, _shown("{0.cpu_ms:.1f}", many)]) + " |")


def _times_ms(row: SlowRow | None) -> tuple[float | None, float | None]:
    return (row.p50_s * 1e3, row.p99_s * 1e3) if row else (None, None)


def _shown(form: str, *figures: object) -> str:
    """The figures in their form; nothing where they were not measured."""
    return "" if None in figures else form.format(*figures)


def _said(found: Verdict | None) -> str:
    if found is None:
        return f"PUT without notifications is nowhere {CEILING_AT_LEAST:g} times PUT with one queue"
    return (
        f"at {found.asked_s * 1e3:g} ms PUT without notifications is {found.ceiling:.1f} times PUT with one queue; "
        f"eleven queues are {found.gain:.2f} times one (wanted: {GAIN_AT_LEAST}), and {found.of_ceiling:.2f} of PUT "
        f"without notifications (wanted: {OF_CEILING_AT_LEAST}): {'reached' if found.is_reached else 'not reached'}"
    )


# ------------------------------------------------------------------------------------------- the turns


class Taker(Protocol):
    """Queues that take events."""

    names: Sequence[str]

    def store(self, queue: int, request: Callable[[], bool]) -> bool:
        """Reserve room, make the request, and commit an event; false where there was nothing left to ask for."""
        ...


class NoQueues:
    """Takes no event: a request without a notification."""

    names: Sequence[str] = ()

    def store(self, _: int, request: Callable[[], bool]) -> bool:
        """Make the request."""
        return request()


def _turns(options: argparse.Namespace, cluster: SlowCluster, latency: Latency) -> Iterator[SlowTurn]:
    """All works, kinds and queues at one latency, those of the same work side by side."""
    queues = options.queues or QUEUES
    for writers in options.writers or WRITERS:
        with closing(Bucket(cluster.env, writers)) as bucket:
            requests = _requests(bucket)
            for work, kinds in KINDS.items():
                chosen = [(each, count) for each in kinds for count in ([0] if each == NONE else queues)]
                for kind, count in chosen:
                    what = What(latency.asked_s, work, kind, writers, count)
                    bucket.close()
                    if work == DELETE:
                        _fill(bucket, writers, options.seconds)
                    with _taker(cluster, what, options.payload) as taker:
                        yield _turn(cluster, latency, _Job(what, requests[work], taker), options.seconds)


@contextmanager
def _taker(cluster: SlowCluster, what: What, payload: int) -> Iterator[Taker]:
    """New queues of this kind."""
    if what.kind == NONE:
        yield NoQueues()
    elif what.kind == TOPIC:
        with new_topic(cluster.settings, what.queues, payload, in_two_steps=what.work != ALONE) as topic:
            yield topic
    else:
        with new_queues(cluster.ioctx, what.queues, payload, are_held=what.kind == HELD) as queues:
            yield queues


def _requests(bucket: Bucket) -> Mapping[str, Callable[[int], bool]]:
    """What a writer asks of the gateway for each work; false when nothing is left to be asked."""
    small, large, places = os.urandom(SMALL), os.urandom(LARGE), itertools.count()

    def put(writer: int) -> bool:
        bucket.put(writer, small)
        return True

    def put_large(writer: int) -> bool:
        bucket.overwrite(writer, f"large-{next(places) % LARGE_OBJECTS}", large)
        return True

    return {ALONE: lambda _: True, PUT: put, DELETE: bucket.delete, PUT_4_MB: put_large}


@dataclass(frozen=True)
class _Job:
    """What writers do for each event."""

    what: What
    request: Callable[[int], bool]
    taker: Taker

    def do(self, writer: int, took_s: list[float]) -> bool:
        """One event, and how long it took."""
        queue = shard(random_key(), self.what.queues) if self.what.queues else 0
        began = time.monotonic()
        if not self.taker.store(queue, lambda: self.request(writer)):
            return False
        took_s.append(time.monotonic() - began)
        return True


def _turn(cluster: SlowCluster, latency: Latency, job: _Job, at_least_s: float) -> SlowTurn:
    all_s: list[float] = []
    with (
        cluster.syncs.waiting(latency.sync_s),
        writing(job.what.writers, lambda writer: job.do(writer, all_s)) as threads,
    ):
        threads.watch(WARM_UP_S)
        first, began, before = len(all_s), time.monotonic(), spent(cluster.pids)
        threads.watch(at_least_s)
        while len(all_s) - first < job.what.writers and threads.watch(at_least_s):
            pass
        took_s, seconds, now = all_s[first:], time.monotonic() - began, spent(cluster.pids)
    events = len(took_s)
    if events < 2:
        raise BenchError(f"{job.what}: nothing was stored")
    used_s = sum(now[who] - before[who] for who in now if who != "machine")
    cuts = statistics.quantiles(took_s, n=100)
    waited = cluster.waited(set(job.taker.names)) if job.taker.names else 0.0
    turn = SlowTurn(job.what, events / seconds, cuts[49], cuts[98], waited, used_s * 1e3 / events)
    print(
        f"L {latency.asked_s * 1e3:g} ms  {job.what.work:15} {job.what.queues:3} {job.what.kind:5}  "
        f"{turn.rate:7,.0f} events/s   p50 {turn.p50_s * 1e3:.1f} ms, p99 {turn.p99_s * 1e3:.1f} ms   "
        f"waited {turn.waited:.0%}   CPU {turn.cpu_ms:.2f} ms",
        flush=True,
    )
    return turn


def _fill(bucket: Bucket, writers: int, seconds: float) -> None:
    """Put what a turn of deleting is going to delete."""
    body = os.urandom(SMALL)
    wanted = round((seconds + WARM_UP_S) * DELETED_PER_S) + writers

    def put(writer: int) -> bool:
        bucket.put(writer, body)
        return len(bucket.keys) < wanted

    if len(bucket.keys) < wanted:
        with writing(writers, put) as threads:
            threads.watch(3600)
