"""What all workers of a host say together: their health, their status, and one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from remora.metrics.figures import TopicFigures, merged_figures
from remora.metrics.stages import StageRow, slow_lines, stages_shown
from remora.model.member import WorkerCookie
from remora.model.words import several
from remora.policy.delivery.retry import ShardFailure
from remora.policy.ownership.hosts import host_text
from remora.policy.ownership.not_owned import FEWER
from remora.policy.status.bucket_news import merged_news
from remora.policy.status.condition import Condition, FailingShard, Outage, State, outages, together
from remora.process.pipe import Heartbeat

OF_STORE = (ShardFailure.STORE, ShardFailure.DAMAGED)
"""Failures at the store, and not at a destination."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """One worker with the status that it gave; None when it gave none in time. `held_shards` is as last heard."""

    number: int
    pid: int
    cookie: str
    held_shards: int
    status: dict[str, Any] | None


def merged_status(answers: Sequence[WorkerAnswer]) -> dict[str, Any]:
    """The status of a host: that of its workers together, in which each shard names its worker by number.

    Where no worker answers, `ingest` and `dead_letters` are None, since they are not known.
    """
    statuses = [each.status for each in answers if each.status is not None]
    shards, figures = _shards(answers), _figures(answers)
    timed = [row for status in statuses for row in status["stages"]]
    stages = stages_shown(msgspec.convert(timed, list[StageRow]))
    holds = all_holds(status.get("holds", ()) for status in statuses)
    return {
        "host": _host(answers),
        "store": _store([status["store"] for status in statuses]),
        "ingest": next((status["ingest"] for status in statuses if status["ingest"]), "") if statuses else None,
        "in_flight_bytes": sum(status["in_flight_bytes"] for status in statuses),
        "workers": [_worker(each) for each in answers],
        "dead_letters": sum(each.dead_letters for each in figures) if statuses else None,
        "topics": topics_shown(figures, shards, holds),
        "holds": list(holds.values()),
        "destinations": [destination_shown(each) for each in failing_destinations(shards, figures)],
        "members": _others([status["members"] for status in statuses], {each.cookie for each in answers}),
        "shards": sorted(shards, key=lambda shard: str(shard["queue"])),
        "stages": stages,
        "buckets": merged_news(row for status in statuses for row in status["buckets"]),
        "slow": slow_lines(stages),
        "left": _left([status["left"] for status in statuses], {shard["queue"] for shard in shards}),
    }


def _shards(answers: Iterable[WorkerAnswer]) -> list[dict[str, Any]]:
    return [shard | {"worker": each.number} for each in answers if each.status for shard in each.status["shards"]]


def _figures(answers: Iterable[WorkerAnswer]) -> list[TopicFigures]:
    rows = (row for each in answers if each.status for row in each.status["topics"])
    return merged_figures(msgspec.convert(row, TopicFigures) for row in rows)


def failing_now(answers: Sequence[WorkerAnswer]) -> list[Outage]:
    """The destinations that fail, as the workers say."""
    return failing_destinations(_shards(answers), _figures(answers))


def failing_destinations(shards: Iterable[dict[str, Any]], figures: Iterable[TopicFigures]) -> list[Outage]:
    """The destinations that fail, each with the cause and its topics."""
    failing = [
        FailingShard(
            _label(each),
            "store" if last["kind"] in OF_STORE else str(last["endpoint"]),
            last.get("reason", ""),
            condition,
        )
        for each in shards
        if (condition := condition_of(each)).state.is_failing
        for last in (each | {"kind": "", "reason": each["reason"]} | (each["last_failure"] or {}),)
    ]
    return outages(failing, {each.topic: each.backlog_entries for each in figures})


def condition_of(shard: dict[str, Any]) -> Condition:
    """How a shard does, as its worker says."""
    return Condition(
        State(shard["state"]), shard["reason"], shard["since_seconds"], shard["next_attempt_seconds"], shard["trying"]
    )


def _label(shard: dict[str, Any]) -> str:
    return str(shard["topic"] or shard["queue"])


def all_holds(holds: Iterable[Sequence[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The topics that an operator holds, by name; each worker reads of all of them."""
    found = {each["topic"]: each for said in holds for each in said}
    return {topic: found[topic] for topic in sorted(found)}


def topics_shown(
    figures: Sequence[TopicFigures],
    shards: Iterable[dict[str, Any]],
    holds: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """What is counted of each topic, and how it does; topics without a queue on this host are in no state.

    One that an operator holds is held, also while nothing waits in it. One that fails has entries, as `outages` says: 0
    was counted before they came, and is not known.
    """
    held: dict[str, list[Condition]] = {}
    for each in shards:
        held.setdefault(_label(each), []).append(condition_of(each))
    counted = {each.topic: msgspec.to_builtins(each) for each in figures}
    uncounted = msgspec.to_builtins(TopicFigures(topic=""))
    shown = []
    for topic in sorted(held.keys() | counted.keys()):
        found = on_hold(together(held.get(topic, ())), holds.get(topic))
        row = (counted.get(topic) or uncounted | {"topic": topic}) | _condition(found)
        if found is not None and found.state.is_failing and not row["backlog_entries"]:
            row["backlog_entries"] = None
        shown.append(row | {"queues": len(held.get(topic, ()))})
    return shown


def on_hold(found: Condition | None, hold: dict[str, Any] | None) -> Condition | None:
    """How a topic does that may be held: a worker that finishes what is under way is a part of it."""
    if found is None or hold is None or found.state.is_failing:
        return found
    return Condition(State.HELD, hold["text"], hold["since_seconds"])


def _condition(found: Condition | None) -> dict[str, Any]:
    return {
        "state": found and str(found.state),
        "state_text": found.text if found else "",
        "reason": found.reason if found else "",
        "since_seconds": found and found.since_s,
        "next_attempt_seconds": found and found.next_attempt_s,
        "trying": found is not None and found.is_trying,
    }


def destination_shown(outage: Outage) -> dict[str, Any]:
    """A destination that fails, as the status has it."""
    return {
        "destination": outage.place,
        "cause": outage.cause,
        **_condition(outage.condition),
        "topics": len(outage.topics),
        "named": outage.named,
        "entries": outage.entries,
        "entries_at_least": outage.is_at_least,
    }


def merged_line(heartbeats: Sequence[Heartbeat], workers: int) -> str:
    """The one line of `systemctl status`."""
    away = next((each.store for each in heartbeats if each.store), "")
    store = f"store away: {away}" if away else "store connected" if heartbeats else "starting"
    held = sum(each.held_shards for each in heartbeats)
    failing = sum(each.failing_shards for each in heartbeats)
    return f"{len(heartbeats)} of {workers} workers; {store}; {several(held, 'shard')} held, {failing} of them failing"


def _host(answers: Sequence[WorkerAnswer]) -> str:
    """This host in words."""
    for each in answers:
        worker = WorkerCookie.parse(each.cookie)
        if worker is not None and each.status is not None:
            return host_text(worker.host, {worker.host: each.status.get("hostname", "")})
    return ""


def _store(stores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not stores:
        return {"description": "", "connected": False, "state": "no worker answers", "damaged": []}
    worst = next((each for each in stores if not each["connected"]), stores[0])
    damaged = dict.fromkeys(text for each in stores for text in each["damaged"])
    return {**worst, "damaged": list(damaged)}


def _worker(answer: WorkerAnswer) -> dict[str, Any]:
    status = answer.status
    return {
        "number": answer.number,
        "pid": answer.pid,
        "cookie": answer.cookie,
        "answers": status is not None,
        "ready": bool(status and status["ready"]),
        "reasons": list(status["reasons"]) if status else ["it does not answer"],
        "shards": len(status["shards"]) if status else answer.held_shards,
        "in_flight_bytes": status["in_flight_bytes"] if status else 0,
        **{each: status[each] for each in ("balance", "quarantine") if status and each in status},
    }


def _others(members: Iterable[Sequence[dict[str, Any]]], own: Set[str]) -> list[dict[str, Any]]:
    """The workers of other hosts, each once, as the workers of this host see them."""
    found = {each["cookie"]: each for seen in members for each in seen if each["cookie"] not in own}
    return [found[cookie] for cookie in sorted(found)]


def _left(lefts: Sequence[Sequence[dict[str, Any]]], held: set[str]) -> list[dict[str, Any]]:
    """The queues that no worker of this host holds, each with the reason of the worker that knows most about it."""
    found: dict[str, dict[str, Any]] = {}
    for each in (left for worker in lefts for left in worker):
        queue = each["queue"]
        if queue not in held and (queue not in found or _says_more(each, found[queue])):
            found[queue] = each
    return [found[queue] for queue in sorted(found)]


def _says_more(left: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the first tells more.

    A reason of its own tells most, then who owns the queue, then why an earlier try failed of a worker that lets
    others try now; that others may take it tells least.
    """

    def rank(each: dict[str, Any]) -> int:
        if each["waiting"]:
            return 3 if each["reason"] == FEWER else 2
        return int(bool(each["owner"]))

    return rank(left) < rank(other)
