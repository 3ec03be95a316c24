"""What becomes of the room of a request on RADOS whose log cannot be written; the contract suite has real OSDs for the
same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from remora.model.errors import StoreError, StoreUnavailable
from remora.storage.rados.ingest.finisher import RequestLog
from remora.storage.rados.ingest.intent_log import Intent
from remora.storage.rados.ingest.one_topic import RadosIngest

REQUEST = Intent(Intent.VERSION, "t", "id", 1, [])
AWAY = StoreUnavailable("no answer")


@pytest.mark.parametrize(
    ("schedule", "intents", "is_given_back"),
    [(AWAY, None, True), (None, AWAY, False), (None, StoreError("refused"), True), (None, None, False)],
    ids=["its entry has no answer", "it has no answer", "it is refused", "it is logged"],
)
async def test_room_is_given_back_unless_the_request_may_be_logged(
    schedule: StoreError | None, intents: StoreError | None, is_given_back: bool
) -> None:
    """Where the schedule does not answer, the request is not logged, and who repeats it would reserve room again and
    again; one that may be logged keeps its room, for it is completed."""
    done: list[object] = []

    def step(name: str, error: StoreError | None = None) -> Any:
        async def run(*_: object) -> None:
            done.append(name)
            if error is not None:
                raise error

        return run

    log: Any = RequestLog(
        Intent,
        SimpleNamespace(create=step("logged", intents)),  # type: ignore[arg-type]
        SimpleNamespace(add=step("scheduled", schedule), replace=step("unscheduled")),  # type: ignore[arg-type]
        SimpleNamespace(release=step("given back"), complete=step("completed")),  # type: ignore[arg-type]
    )
    nobody: Any = None
    ingest = RadosIngest(log, nobody, nobody)

    if error := schedule or intents:
        with pytest.raises(type(error)):
            await ingest._commit(log, "t.any-1", REQUEST)
    else:
        await ingest._commit(log, "t.any-1", REQUEST)

    assert ("given back" in done, "completed" in done) == (is_given_back, not (schedule or intents))
