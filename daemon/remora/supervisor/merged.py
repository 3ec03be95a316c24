"""What all workers of a host say together: their health, their status, and one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import msgspec

from remora.metrics.figures import TopicFigures, merged_figures
from remora.policy.not_owned import FEWER
from remora.process.pipe import Heartbeat


@dataclass(frozen=True, slots=True)
class Answer:
    """One worker with the status that it gave; None when it gave none in time. `held_shards` is as last heard."""

    number: int
    pid: int
    cookie: str
    held_shards: int
    status: dict[str, Any] | None


def merged_status(answers: Sequence[Answer]) -> dict[str, Any]:
    """The status of a host: that of its workers together, in which each shard names its worker by number."""
    known = [(each.number, each.status) for each in answers if each.status is not None]
    statuses = [status for _, status in known]
    shards = [shard | {"worker": number} for number, status in known for shard in status["shards"]]
    return {
        "store": _store([status["store"] for status in statuses]),
        "ingest": next((status["ingest"] for status in statuses if status["ingest"]), ""),
        "in_flight_bytes": sum(status["in_flight_bytes"] for status in statuses),
        "workers": [_worker(each) for each in answers],
        "topics": merged_figures(msgspec.convert(row, TopicFigures) for each in statuses for row in each["topics"]),
        "members": _others([status["members"] for status in statuses], {each.cookie for each in answers}),
        "shards": sorted(shards, key=lambda shard: str(shard["queue"])),
        "left": _left([status["left"] for status in statuses], {shard["queue"] for shard in shards}),
    }


def merged_line(heartbeats: Sequence[Heartbeat], workers: int) -> str:
    """The one line of `systemctl status`."""
    away = next((each.store for each in heartbeats if each.store), "")
    store = f"store away: {away}" if away else "store connected" if heartbeats else "starting"
    held = sum(each.held_shards for each in heartbeats)
    failing = sum(each.failing_shards for each in heartbeats)
    return f"{len(heartbeats)} of {workers} workers; {store}; {held} shards held, {failing} of them failing"


def _store(stores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not stores:
        return {"description": "", "connected": False, "state": "no worker answers", "damaged": []}
    worst = next((each for each in stores if not each["connected"]), stores[0])
    damaged = dict.fromkeys(text for each in stores for text in each["damaged"])
    return {**worst, "damaged": list(damaged)}


def _worker(answer: Answer) -> dict[str, Any]:
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
