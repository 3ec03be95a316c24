"""The events that a reconcile sends: what they say, when they are left out, and that each is stored once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from devkit.clock import in_virtual_time
from remora.client import EventsRefused, IngestUnavailable, Problem
from remora.codec.event_entry import decode
from remora.codec.rendering_plain import body
from remora.model.entry import Time
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.layout import write
from remora_pipeline.replay.pipeline.columns import NOTIFICATION
from remora_pipeline.replay.pipeline.emit import (
    BATCH,
    CREATED,
    REMOVED,
    Emission,
    EmitProgress,
    ObjectNow,
    ObjectRefused,
    Planned,
    emit,
    ns_of,
    record_of,
    sequencer_of,
)
from remora_pipeline.replay.pipeline.findings import DIFFERING, EXTRA, FINDING, MISSING
from remora_pipeline.replay.pipeline.reconciliation import VERSION, Reconcile, ReconciledDirectory
from remora_pipeline.replay.pipeline.records import events
from support.ingest import own_topic
from support.placed import place

AT = datetime(2026, 11, 21, 2, 14, 7, 482_000, tzinfo=UTC)
AT_NS = int(AT.timestamp() * 1000) * 1_000_000
NOW = ObjectNow(7, "e1", "", 0, {"colour": "blau"})


def row(key: str = "k", kind: str = MISSING, **changes: Any) -> dict[str, Any]:
    """A finding; by default an object that no event names."""
    listed = {"version_id": "", "size": 7, "etag": "e1", "last_modified": AT} if kind != EXTRA else {}
    return dict.fromkeys(FINDING.names) | {"kind": kind, "key": key, "differs": []} | listed | changes


def reconciled(folder: Path, rows: Iterable[dict[str, Any]]) -> ReconciledDirectory:
    """A folder with findings, none of which is to be left out before."""
    directory = ReconciledDirectory(folder)
    directory.keep(
        Reconcile(
            version=VERSION, id="reconcile-1", bucket="photos", tenant="", source="s", landed="", landing=None,
            batch=-1, begun_us=AT_NS // 1000, ended_us=AT_NS // 1000, grace_us=0, listed=0, told=0,
            counts={}, examples=(),
        )
    )  # fmt: skip
    directory.findings.mkdir()
    table = pa.Table.from_pylist(list(rows), schema=to_arrow_schema(FINDING, timezone="UTC"))
    pq.write_table(table, directory.findings / "part-0.parquet")
    write(directory.emit / "plan.json", Planned(is_whole=True, batch=-1))
    return directory


@dataclass
class Server:
    """Stores requests by their keys, as the ingest API does; `fails` says which calls end and how."""

    stored: dict[str, bytes] = field(default_factory=dict)
    fails: Callable[[int], BaseException | None] = lambda _: None
    refuses: Callable[[list[str]], Problem | None] = lambda _: None
    """Refuses a request by the keys of its objects."""
    calls: int = 0

    async def publish_ndjson(self, topic: str, lines: bytes, *, idempotency_key: str | None = None) -> None:
        self.calls += 1
        assert (topic, idempotency_key) != ("", None)
        failure = self.fails(self.calls)
        if (problem := self.refuses(keys_of(lines))) is not None:
            raise failure or EventsRefused(problem.text, problem)
        if isinstance(failure, KilledAfter) or failure is None:
            assert self.stored.setdefault(idempotency_key or "", lines) == lines, "the key was of another request"
        if failure is not None:
            raise failure

    @property
    def keys(self) -> list[str]:
        """The keys of the objects whose events are stored, in their order."""
        return [key for request in self.stored.values() for key in keys_of(request)]


def keys_of(lines: bytes) -> list[str]:
    """The keys of the objects that a request is about."""
    return [msgspec.json.decode(line)["s3"]["object"]["key"] for line in lines.splitlines()]


class KilledBefore(BaseException):
    """The process ends before a request is stored."""


class KilledAfter(BaseException):
    """The process ends after a request was stored, and before its answer came."""


async def same(key: str) -> ObjectNow | None:
    """Objects are as they were listed; those of keys that begin with x are gone, with c changed."""
    return {"x": None, "c": msgspec.structs.replace(NOW, etag="e2")}.get(key[0], NOW)


ENOUGH = Emission("t", 1e9)


async def test_each_finding_is_sent_once_however_often_it_is_killed(tmp_path: Path) -> None:
    """Ten kills, before a request is stored and after it: every missing event is stored once, in order, and a request
    that was under way is the same again, though its objects have changed since it was made."""
    keys = [f"k{number:04}" for number in range(BATCH * 12 + 5)]
    directory = reconciled(tmp_path, [row(key) for key in keys])
    kills = {call: KilledBefore if call % 4 == 1 else KilledAfter for call in range(1, 20, 2)}
    server = Server(fails=lambda call: kills[call]() if call in kills else None)
    changed: set[str] = set()

    async def look(key: str) -> ObjectNow | None:
        return await same("c" if key in changed else key)

    for _ in range(10):
        with pytest.raises((KilledBefore, KilledAfter)):
            await emit(directory, server, look, ENOUGH, lambda _: None)
        lines = msgspec.json.decode((directory.emit / "pending.json").read_bytes())["lines"].splitlines()
        changed |= {msgspec.json.decode(line)["s3"]["object"]["key"] for line in lines}
    progress = await emit(directory, server, look, ENOUGH, lambda _: None)
    again = await emit(directory, server, look, ENOUGH, lambda _: None)

    assert len(changed) == 10 * BATCH
    assert server.keys == keys
    assert (progress.sent, progress.changed, again) == (len(keys), 0, progress)


async def test_what_has_changed_since_is_left_out(tmp_path: Path) -> None:
    """An object that is gone or another one by now, and a removed one that is there again, are not sent."""
    rows = [row("k1"), row("c1"), row("x1"), row("k2", EXTRA), row("x2", EXTRA), row("k3", DIFFERING, differs=["size"])]
    server = Server()

    progress = await emit(reconciled(tmp_path, rows), server, same, ENOUGH, lambda _: None)

    assert server.keys == ["k1", "x2", "k3"]
    assert (progress.sent, progress.changed, progress.behind) == (3, 3, 6)


@in_virtual_time
async def test_no_more_are_sent_a_second_than_is_asked(tmp_path: Path) -> None:
    """Two batches and a half at a batch in ten seconds take twenty five, and what has changed counts as well."""
    rows = [row(f"{'x' if number % 2 else 'k'}{number:04}") for number in range(BATCH * 5 // 2)]
    sent_at: list[float] = []
    server = Server()

    await emit(
        reconciled(tmp_path, rows), server, same, Emission("t", BATCH / 10),
        lambda _: sent_at.append(asyncio.get_running_loop().time()),
    )  # fmt: skip

    assert sent_at == pytest.approx([0, 10, 20], abs=0.1)
    assert asyncio.get_running_loop().time() == pytest.approx(25, abs=0.1)
    assert len(server.keys) == BATCH * 5 // 4


async def test_a_server_that_takes_nothing_ends_it(tmp_path: Path) -> None:
    """The message names the topic, and the next run goes on with the same request."""
    directory = reconciled(tmp_path, [row("k1")])
    server = Server(fails=lambda call: IngestUnavailable("away", outcome_unknown=False) if call == 1 else None)

    with pytest.raises(ReplayError, match="topic t: away; run it again, and it goes on"):
        await emit(directory, server, same, ENOUGH, lambda _: None)
    await emit(directory, server, same, ENOUGH, lambda _: None)

    assert server.keys == ["k1"]


def malformed(keys: list[str]) -> Problem | None:
    """The first event whose key begins with b, as the ingest API names it."""
    at = next((place for place, key in enumerate(keys) if key[0] == "b"), None)
    return None if at is None else Problem(422, "MalformedEvent", detail=f"{keys[at]}: the key is too long", record=at)


def too_large(keys: list[str]) -> Problem | None:
    """A request whose bytes are too many: those of a key that begins with b alone are."""
    return Problem(413, "EntityTooLarge", detail="too large") if any(key[0] == "b" for key in keys) else None


def too_many(keys: list[str]) -> Problem | None:
    """A request of more than three events; the first one too many is named, and is no worse than the others."""
    return Problem(413, "TooManyEvents", detail="more than 3", record=3) if len(keys) > 3 else None


@pytest.mark.parametrize(("refuses", "refused"), [(malformed, ["b1", "b2"]), (too_large, ["b1", "b2"]), (too_many, [])])
async def test_what_the_server_will_never_take_is_passed_over(
    tmp_path: Path, refuses: Callable[[list[str]], Problem | None], refused: list[str]
) -> None:
    """An event that is refused for good holds up none before or behind it, however often the sending is killed: it is
    counted and named once, and all others are stored once in their order."""
    keys = ["k1", "b1", "k2\u2028", "k3", "x1", "k4", "k5", "b2", "k6"]
    directory = reconciled(tmp_path, [row(key) for key in keys])
    server = Server(refuses=refuses, fails=lambda call: {2: KilledAfter(), 4: KilledBefore()}.get(call))

    for _ in range(2):
        with pytest.raises((KilledAfter, KilledBefore)):
            await emit(directory, server, same, ENOUGH, lambda _: None)
    progress = await emit(directory, server, same, ENOUGH, lambda _: None)

    expected = [key for key in keys if key not in (*refused, "x1")]
    assert server.keys == expected
    assert (progress.sent, progress.changed, progress.refused) == (len(expected), 1, len(refused))
    assert [each.key for each in directory.refused()] == refused
    assert all(each.event_id == f"reconcile-1/{keys.index(each.key)}" for each in directory.refused())


async def test_a_refusal_that_is_none_of_an_events_ends_it(tmp_path: Path) -> None:
    """What a proxy answers, or a wrong request, is no event's fault: nothing is passed over."""
    server = Server(refuses=lambda _: Problem(400, "", detail="status 400: no such host"))
    directory = reconciled(tmp_path, [row("k1")])

    with pytest.raises(ReplayError, match="topic t: status 400: no such host; run it again"):
        await emit(directory, server, same, ENOUGH, lambda _: None)

    assert list(directory.refused()) == []


async def test_an_object_that_cannot_be_looked_at_ends_it(tmp_path: Path) -> None:
    """Where S3 does not answer for several objects the first of them is named, nothing of their batch is sent, and the
    next run goes on with it."""
    directory = reconciled(tmp_path, [row("k1"), row("k2"), row("k3")])
    server = Server()

    async def away(key: str) -> ObjectNow | None:
        if key == "k1":
            return NOW
        raise ReplayError(f"photos/{key}: 403")

    with pytest.raises(ReplayError, match="photos/k2: 403"):
        await emit(directory, server, away, ENOUGH, lambda _: None)
    assert server.keys == []
    await emit(directory, server, same, ENOUGH, lambda _: None)

    assert server.keys == ["k1", "k2", "k3"]


async def test_an_object_that_s3_does_not_show_is_passed_over(tmp_path: Path) -> None:
    """It is named with the reason, and all others are sent, however often the sending is killed: one object of another
    account would end each run at the same place. Objects that were shown a moment ago, and all that are asked for, say
    that it is not these objects that S3 hides: that ends it, and nothing is counted as refused."""
    hidden = {"hidden1", "hidden2"}

    async def look(key: str) -> ObjectNow | None:
        if key in hidden:
            raise ObjectRefused(f"photos/{key}: 403")
        return NOW

    directory = reconciled(tmp_path / "some", [row("hidden1"), row("k1"), row("hidden2"), row("k2")])
    server = Server(fails=lambda call: KilledAfter() if call == 1 else None)
    with pytest.raises(KilledAfter):
        await emit(directory, server, look, ENOUGH, lambda _: None)
    progress = await emit(directory, server, look, ENOUGH, lambda _: None)

    assert server.keys == ["k1", "k2"]
    assert (progress.behind, progress.sent, progress.refused, progress.changed) == (4, 2, 2, 0)
    assert [(each.key, each.reason) for each in directory.refused()] == [
        ("hidden1", "photos/hidden1: 403"),
        ("hidden2", "photos/hidden2: 403"),
    ]

    only = reconciled(tmp_path / "only", [row("hidden1"), row("hidden2")])
    with pytest.raises(ReplayError, match="photos/hidden1: 403"):
        await emit(only, server, look, ENOUGH, lambda _: None)
    hidden.add("k1")
    shown = iter([NOW])

    async def expired(key: str) -> ObjectNow | None:
        if key == "k1" and (now := next(shown, None)) is not None:
            return now
        return await look(key)

    with pytest.raises(ReplayError, match="photos/k1: 403"):
        await emit(
            reconciled(tmp_path / "expired", [row("k1"), row("hidden1")]), server, expired, ENOUGH, lambda _: None
        )
    assert server.keys == ["k1", "k2"]
    assert list(only.refused()) == []


async def test_what_is_repeated_too_late_is_counted(tmp_path: Path) -> None:
    """A request that was under way when the sending was killed is known to the server for ten minutes; repeated after
    that its events may be there twice, and are counted, once however often it is killed."""

    async def killed_and_run_again(folder: Path, *after_s: float) -> EmitProgress:
        directory = reconciled(folder, [row(f"k{number}") for number in range(BATCH + 3)])
        server = Server(fails=lambda call: KilledAfter() if call <= len(after_s) else None)
        clock = [AT_NS / 1e9]
        for later_s in after_s:
            with pytest.raises(KilledAfter):
                await emit(directory, server, same, ENOUGH, lambda _: None, lambda: clock[0])
            clock[0] += later_s
        return await emit(directory, server, same, ENOUGH, lambda _: None, lambda: clock[0])

    soon = await killed_and_run_again(tmp_path / "soon", 599.0)
    late = await killed_and_run_again(tmp_path / "late", 601.0, 601.0)

    assert (soon.sent, soon.repeated) == (BATCH + 3, 0)
    assert (late.sent, late.repeated) == (BATCH + 3, BATCH)


@pytest.mark.parametrize(
    ("finding", "now", "name", "order_ns"),
    [
        (row(), NOW, CREATED, AT_NS),
        (row(event_sequencer=sequencer_of(AT_NS - 5)), NOW, CREATED, AT_NS),
        (row(kind=DIFFERING, event_sequencer=sequencer_of(AT_NS + 482_913)), NOW, CREATED, AT_NS + 482_914),
        (row(kind=EXTRA, event_time=AT, event_sequencer=sequencer_of(AT_NS)), None, REMOVED, AT_NS + 1),
        (row(event_sequencer="no hex"), NOW, CREATED, AT_NS),
    ],
    ids=["no event", "an older one", "of the same millisecond", "gone", "another store's"],
)
def test_a_record_lies_behind_the_last_event_of_its_key(
    tmp_path: Path, finding: dict[str, Any], now: ObjectNow | None, name: str, order_ns: int
) -> None:
    """The ingest API takes it, it lands with the object's own data, its time is the object's, and its sequencer is made
    of that, or just behind the last event's where that is later."""
    found = reconciled(tmp_path, []).made()
    assert found is not None
    line = record_of(found, 3, finding, now)
    assert line is not None

    (part,) = place(line, own_topic("t"), ndjson=True, most=1, created=Time(1, 0), seed=b"seed")
    delivered = body(decode(part.events[0].payload))
    (read,) = events(delivered, is_decoded=True)
    landed = dict(zip(NOTIFICATION.names, read.row, strict=True))

    assert (landed["event_name"], landed["key"], landed["bucket"]) == (name, "k", "photos")
    assert landed["event_time"] == AT_NS // 1000
    assert ns_of(landed["sequencer"]) == order_ns
    assert (landed["request_id"], landed["host_id"]) == ("reconcile-1", "x-remora-reconcile")
    assert landed["event_id"] == "reconcile-1/3"
    if now is not None:
        assert (landed["size"], landed["etag"], landed["metadata"]) == (7, "e1", [("x-amz-meta-colour", "blau")])
