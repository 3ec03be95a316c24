"""What a trace does inside of each of many hosts: ingest's memory, entries under way, and credit to send.

Nothing of that depends on other hosts. So the events of each second, by shard, become a script of `remora simulate` for
each host, and these run side by side:

  memory    all that comes to a shard in a second is a request; the store takes one after the other
  reads     what comes is listed and sent; acknowledgements come at a bounded rate
  shaping   what comes asks for credit of the host's one meter

A host's store, its destinations and its meter take `room` times the mean load of a host. It may hold, or have under
way, what comes to it in a second on average. The figures are sums over all hosts, for each second.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TICKS = 10
"""In a second."""

Seconds = Sequence[Mapping[int, int]]
"""For each second the events of each shard that has some."""


@dataclass(frozen=True)
class Mean:
    """What comes to a host in a second, on average, and how much more it can take."""

    events: float
    event_bytes: int
    room: float

    @property
    def bytes(self) -> int:
        """At least 1."""
        return max(1, math.ceil(self.events * self.event_bytes))

    @property
    def rate(self) -> int:
        """Bytes a second that a host can take."""
        return max(1, math.ceil(self.room * self.events * self.event_bytes))


@dataclass(frozen=True)
class Script:
    """A host's script, and in which second each of its steps happens."""

    document: Mapping[str, Any]
    seconds: Sequence[int]


Step = tuple[float, Mapping[str, Any]]
"""When it happens, and what."""


def of_hosts(counts: Seconds, hosts: int, *, event_bytes: int, room: float) -> Mapping[str, list[Script]]:
    """The scripts of each host, by model. Shards are dealt to the hosts evenly."""
    total = sum(sum(each.values()) for each in counts)
    mean = Mean(total / max(1, len(counts)) / hosts, event_bytes, room)
    parts: list[list[dict[int, int]]] = [[{} for _ in counts] for _ in range(hosts)]
    for second, each in enumerate(counts):
        for shard, events in each.items():
            parts[shard % hosts][second][shard] = events
    return {name: [_script(name, model, part, mean) for part in parts] for name, model in MODELS.items()}


def sums(scripts: Sequence[Script], answers: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[float]]:
    """Each figure of a model's answers, added up over the hosts for each second; it stands as the last step left it."""
    length = 1 + max((second for script in scripts for second in script.seconds), default=-1)
    found = {figure: [0.0] * length for figure in FIGURES[name]}
    for script, answer in zip(scripts, answers, strict=True):
        now = dict.fromkeys(FIGURES[name], 0.0)
        last = -1
        for second, step, result in zip(script.seconds, script.document["steps"], answer["results"], strict=True):
            _fill(found, now, last, second)
            last = second
            for figure, read in FIGURES[name].items():
                now[figure] = read(now[figure], step, result)
        _fill(found, now, last, length)
    return found


def _fill(found: Mapping[str, list[float]], now: Mapping[str, float], first: int, end: int) -> None:
    for figure, value in now.items():
        for second in range(max(0, first), end):
            found[figure][second] += value


def _script(name: str, model: Callable[[Seconds, Mean], Iterator[Step]], part: Seconds, mean: Mean) -> Script:
    steps = list(model(part, mean))
    config = CONFIGS[name](mean)
    document = {"version": 1, "model": name, "config": config, "steps": [step for _, step in steps]}
    return Script(document, [int(at_s) for at_s, _ in steps])


# ------------------------------------------------------------------------------------------ models


def _memory(counts: Seconds, mean: Mean) -> Iterator[Step]:
    """The store takes what began first. Whoever waits is let in when all before it have ended, at the latest; so a
    request never ends before it was let in."""
    steps: list[tuple[float, int, Mapping[str, Any]]] = []
    free_s = 0.0
    for second, each in enumerate(counts):
        for place, (shard, events) in enumerate(sorted(each.items())):
            begin_s, nbytes, name = second + place / len(each), events * mean.event_bytes, f"{second}-{shard}"
            free_s = max(begin_s, free_s) + nbytes / mean.rate
            heapq.heappush(steps, (begin_s, len(steps), {"op": "begin", "id": name, "bytes": nbytes}))
            heapq.heappush(steps, (free_s, len(steps), {"op": "end", "id": name}))
    while steps:
        at_s, _, step = heapq.heappop(steps)
        yield at_s, step


def _reads(counts: Seconds, mean: Mean) -> Iterator[Step]:
    most, under_way = max(1, math.ceil(mean.room * mean.events)), 0
    for second, each in enumerate(counts):
        came = sum(each.values())
        yield second, {"op": "sent", "records": came, "entries": came}
        done = min(under_way + came, most)
        under_way += came - done
        yield second, {"op": "next"}
        yield second, {"op": "acked", "records": done}


def _shaping(counts: Seconds, mean: Mean) -> Iterator[Step]:
    for second, each in enumerate(counts):
        for shard, events in sorted(each.items()):
            nbytes = events * mean.event_bytes
            yield second, {"op": "send", "id": f"{second}-{shard}", "bucket": "client_low", "bytes": nbytes}
        yield second, {"op": "tick", "times": TICKS}


MODELS: Mapping[str, Callable[[Seconds, Mean], Iterator[Step]]] = {
    "memory": _memory,
    "reads": _reads,
    "shaping": _shaping,
}

CONFIGS: Mapping[str, Callable[[Mean], dict[str, Any]]] = {
    "memory": lambda mean: {"limit": mean.bytes},
    "reads": lambda mean: {"max_unacked": max(1, math.ceil(mean.events))},
    "shaping": lambda mean: {
        "tick_us": 1_000_000 // TICKS,
        "groups": {"host": {"meters": {"client_low": {"guaranteed": mean.rate, "burst": mean.rate}}}},
    },
}


def _waits(was: float, step: Mapping[str, Any], result: Mapping[str, Any]) -> float:
    """Bytes that wait for credit: what is sent and does not pass, until it is released."""
    if step["op"] == "send":
        return was if result["passed"] else was + step["bytes"]
    return was - float(sum(each["granted"] for each in result["released"]))


FIGURES: Mapping[str, Mapping[str, Callable[[float, Mapping[str, Any], Mapping[str, Any]], float]]] = {
    "memory": {
        "bytes pending": lambda _, _step, result: result["pending"],
        "hosts that pause": lambda _, _step, result: float(result["paused"]),
        "requests that wait": lambda _, _step, result: result["waiting"],
    },
    "reads": {
        "entries under way": lambda was, _step, result: result.get("unacked", was),
        "hosts that list nothing": lambda was, step, result: (
            float(result["entries"] == 0) if step["op"] == "next" else was
        ),
    },
    "shaping": {"bytes that wait": _waits},
}
"""How each figure of a host follows from a step and its result, and from what it was."""
