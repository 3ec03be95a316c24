"""A request in the store on RADOS that nobody can read: it is told from a newer remora's, and nobody waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from remora.model.errors import StoreDamaged, StoreError
from remora.storage.rados.ingest.finisher import RequestLog
from remora.storage.rados.ingest.intent_log import (
    FanOutEnvelope,
    Intent,
    IntentLog,
    IntentPart,
    IntentState,
    LoggedIntent,
)
from remora.storage.rados.ingest.schedule import DueAction, ScheduleEntry
from remora.storage.rados.layouts import _complete_committed


class Requests:
    """Requests for several topics: `bad` cannot be read, `good` is committed in generation 0 of topic t."""

    def __init__(self) -> None:
        self.completed: list[str] = []

    async def entries(self) -> dict[DueAction, list[ScheduleEntry]]:
        return {DueAction.COMPLETE: [ScheduleEntry(DueAction.COMPLETE, 0, name) for name in ("bad", "good")]}

    async def load(self, name: str) -> LoggedIntent[Any]:
        if name == "bad":
            raise StoreDamaged("request bad cannot be read")
        intent = Intent(Intent.VERSION, "t", "id", 0, [IntentPart(0, 7, 1)])
        return LoggedIntent(SimpleNamespace(members=[("", intent)]), IntentState.COMMITTED)

    async def complete(self, name: str, _: object) -> None:
        self.completed.append(name)


async def test_a_request_that_nobody_can_read_keeps_no_layout() -> None:
    """A former layout goes when the requests that can be read are completed: no waiting helps the others."""
    requests: Any = Requests()
    log: RequestLog[Any] = RequestLog(FanOutEnvelope, requests, requests, requests)

    assert await _complete_committed(log, "t", 0)
    assert requests.completed == ["good"]


def test_damage_of_a_request_is_told_from_a_newer_form() -> None:
    """Bytes that are no request are damage; a request of a newer remora is not, which can still complete it."""
    log: Any = IntentLog(SimpleNamespace(session=None), Intent)  # type: ignore[arg-type]
    with pytest.raises(StoreDamaged, match="request r cannot be read"):
        log._logged("r", b"\xff", b"decided")
    newer = stored(Intent(Intent.VERSION + 1, "t", "id", 0, []))
    with pytest.raises(StoreError, match="newer remora's") as caught:
        log._logged("r", newer, b"decided")
    assert not isinstance(caught.value, StoreDamaged)


def stored(intent: Intent) -> bytes:
    """A request as it is stored."""
    return bytes(msgspec.msgpack.encode(intent))
