"""What a worker process says of itself: its part of the status, of readiness, and of its heartbeats."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from remora.bounded import portions
from remora.engine.admission.gate import Gate
from remora.engine.status import ShardStatus
from remora.engine.worker import Worker
from remora.metrics import Telemetry
from remora.model.health import Use
from remora.model.member import Member
from remora.model.shard import Shard
from remora.model.topic import TopicHold
from remora.policy.admission.holds import hold_text
from remora.policy.ownership.hosts import Names, holder_text
from remora.policy.ownership.not_owned import Deferred, NotOwned
from remora.policy.status import readiness
from remora.policy.status.readiness import HostReadiness
from remora.ports.store import ShardStore
from remora.process.pipe import Heartbeat
from remora.servers.server import Server

T = TypeVar("T")

NOTHING = msgspec.Raw(b"[]")

HUNG_AFTER_S = 60.0
"""A worker whose loops did nothing at all for this long is hung, and the supervisor may replace it."""


class Report:
    """See the module. It tells what there is by now: `worker` and `servers` are set once they are open."""

    def __init__(self, cookie: str, telemetry: Telemetry, gate: Gate) -> None:
        self._cookie = cookie
        self._telemetry = telemetry
        self._gate = gate
        self._state = "connecting"
        self._full = ""
        self._lost: tuple[str, ...] = ()
        self.is_connected = False
        """Whether the store answers."""
        self.worker: Worker | None = None
        self.servers: Mapping[str, Server] = {}

    def store_state(self, connected: bool, text: str) -> None:
        """The store answers, or does not; `text` says which one, or why."""
        self.is_connected, self._state = connected, text
        self._telemetry.store_state(connected, text)

    def store_failing(self, failing: Mapping[str, str], damaged: Mapping[str, str]) -> None:
        """Why the store or a part of it cannot be used now, by the cause, and for each part by its path."""
        self._full, self._lost = failing.get("full", ""), tuple(dict.fromkeys(damaged.values()))
        self._telemetry.store_failing(failing, damaged)

    def heartbeat(self, *, is_finishing: bool) -> Heartbeat:
        """Whether the worker's own loops do anything, and what a supervisor says of it in a line."""
        worker = self.worker
        return Heartbeat(
            is_alive=worker is None or is_finishing or worker.beat_age_s() < HUNG_AFTER_S,
            store=self._store_trouble,
            held_shards=worker.held_shards if worker else 0,
            failing_shards=sum(each.state.is_failing for each in worker.served) if worker else 0,
        )

    def use(self) -> Use:
        """Of what use this worker is, for readiness."""
        worker = self.worker
        return Use(
            store=self._store_trouble,
            full=self._full,
            lost=self._lost,
            has_started=worker is not None,
            takes_events="ingest" in self.servers,
            has_way=worker is not None and worker.has_way(),
            waiting=worker.waiting() if worker is not None else (),
        )

    async def status(self, store: ShardStore | None) -> Mapping[str, object]:
        """The worker's part of the status; `store` is the one that it works on, None before that."""
        worker = self.worker
        owned, left = await _shards_json(worker) if worker else (NOTHING, NOTHING)
        health = readiness.ready(HostReadiness(has_started=True, workers=[self.use()]))
        return {
            "ready": health.ok,
            "reasons": health.reasons,
            "cookie": self._cookie,
            "hostname": socket.gethostname(),
            "store": {
                "description": store.description if store else "",
                "connected": self.is_connected,
                "state": self._state,
                "damaged": list(store.damaged.values()) if store else [],
            },
            "ingest": self.servers["ingest"].address if "ingest" in self.servers else "",
            "shaped": [[*both, count] for both, count in self._gate.waiting_by_scope().items()],
            "in_flight_bytes": worker.budget.held if worker else 0,
            "balance": worker.ownership.shedder.status() if worker else {},
            "quarantine": worker.quarantines.left_s if worker else {},
            "topics": self._telemetry.topics(),
            "holds": _holds_json(worker.catalogue.held()) if worker else [],
            "stages": self._telemetry.stages(),
            "buckets": self._telemetry.buckets.rows(),
            "members": [_member_json(each) for each in worker.others.values()] if worker else [],
            "shards": owned,
            "left": left,
        }

    @property
    def _store_trouble(self) -> str:
        """Why the store does not answer; empty while it does."""
        return "" if self.is_connected else self._state


def _holds_json(held: Mapping[str, TopicHold]) -> list[dict[str, object]]:
    """The topics that an operator holds."""
    return [
        {
            "topic": topic,
            "text": hold_text(hold),
            "reason": hold.reason,
            "since_seconds": round(time.time() - hold.since, 3),
            "until": hold.until,
        }
        for topic, hold in sorted(held.items())
    ]


async def _shards_json(worker: Worker) -> tuple[msgspec.Raw, msgspec.Raw]:
    """The shards that the worker owns and those that it does not, as lists. Which ones is of one moment."""
    owned, status, hosts = worker.ownership.owned, worker.ownership.status, worker.hosts
    left = sorted(worker.not_owned.items(), key=lambda each: (each[0].queue, each[0].origin))
    return (
        await _list_json(owned, lambda each: _shard_json(status(each))),
        await _list_json(left, lambda each: _left_json(*each, hosts)),
    )


async def _list_json(items: Sequence[T], said_of: Callable[[T], Mapping[str, object]]) -> msgspec.Raw:
    """A list of what is said of each item; of very many in some turns of the event loop."""
    parts: list[bytes] = []
    async for some in portions(items):
        parts += [msgspec.json.encode(said_of(each)) for each in some]
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


def _left_json(shard: Shard, left: NotOwned, hosts: Names) -> dict[str, object]:
    """A shard that the worker does not own, with the reason."""
    return {
        "queue": shard.queue,
        "reason": left.reason,
        "waiting": isinstance(left, Deferred),
        "owner": holder_text(left.holder.entity, left.holder.cookie, hosts) if left.holder else "",
    }


def _member_json(each: Member) -> dict[str, object]:
    """A worker as it announces itself to the others."""
    return {
        "cookie": each.cookie,
        "host": each.host,
        "hostname": each.hostname,
        "shards": each.shards,
        "draining": each.draining,
        "usage": each.usage,
    }


def _shard_json(each: ShardStatus) -> dict[str, object]:
    return {
        "queue": each.queue,
        "topic": each.topic,
        "endpoint": each.endpoint,
        "delivery": each.delivery,
        "state": str(each.state),
        "reason": each.reason,
        "since_seconds": round(each.since_s, 3),
        "failures": each.failures,
        "failing_seconds": _rounded(each.failing_s),
        "last_failure": each.last_failure,
        "next_attempt_seconds": _rounded(each.next_attempt_s),
        "trying": each.is_trying,
        "in_flight_bytes": each.in_flight_bytes,
        "has_work": each.has_work,
        "progress_age_seconds": round(each.progress_age_s, 3),
        "remarks": list(each.remarks),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
