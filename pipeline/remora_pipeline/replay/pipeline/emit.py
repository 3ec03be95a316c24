"""Sends what a reconcile has found missing as events of their own, through the ingest API.

::

    RECONCILED/emit/
      plan/*.parquet   findings without the keys whose events have landed since
      plan.json        Planned: written when all of it is there; `plan` is empty where nothing has landed since
      pending.json     PendingEmission: the request that is under way, written before it is sent
      progress.json    EmitProgress: how many findings are behind us, and what became of them
      refused/*.json   RefusedEvent: those of a request that the server will never take; named by the first finding

A killed sending goes on: the request that was under way is sent again as it was, under its idempotency key, which the
server knows for ten minutes; and an event's id is made of the reconcile's and of its place among the findings. What is
repeated later than that may be there twice, and is counted.

An event's `sequencer` is made of the object's time, or lies just behind the last event of its key where that is later:
so the inventory's order puts it in front of whatever a writer does meanwhile, also when it arrives behind that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from struct import pack, unpack
from typing import Any, Protocol

import msgspec
import pyarrow.parquet as pq
from msgspec import structs

from remora.client import EventsRefused, IngestError, Problem
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.layout import read, write
from remora_pipeline.replay.notification import EPOCH
from remora_pipeline.replay.pipeline.findings import DIFFERING, EXTRA, MISSING
from remora_pipeline.replay.pipeline.reconciliation import Reconcile, ReconciledDirectory, RefusedEvent

CREATED, REMOVED = "ObjectSynthetic:Created:Reconcile", "ObjectSynthetic:Removed:Reconcile"
BATCH = 100
_TOGETHER = 16
"""Objects that are looked at side by side."""

_MALFORMED = "MalformedEvent"
_OF_EVENTS = frozenset({_MALFORMED, "EntityTooLarge", "TooManyEvents"})
"""What the ingest API calls a request that it refuses for one event, and for how much or how many are in it."""

_KNOWN_S = 600.0
"""How long a server knows an idempotency key for sure."""

_MOST_NS = 2**32 * 1_000_000_000


class Planned(msgspec.Struct, frozen=True):
    """Which findings are to be sent, and to which topic: those of the reconcile, or a table without what has changed
    since. The topic is empty in what an older remora has planned."""

    is_whole: bool
    batch: int
    topic: str = ""


class EmitProgress(msgspec.Struct, frozen=True):
    """How many findings are behind us: sent, refused for good, or left out as the object is another one by now.

    `repeated` are those of the sent that may be there twice, since their request was repeated too late to tell.
    """

    behind: int = 0
    sent: int = 0
    changed: int = 0
    refused: int = 0
    repeated: int = 0


class PendingEmission(msgspec.Struct, frozen=True):
    """A request, and how far the sending has come with it and what belongs to it, where none of it is refused.

    `rest` goes into further requests, and `refused` were in it before, or would have been. Each time the server refuses
    it for good another one takes its place; `turn` counts these. `begun_us` is when it was written; 0 where an older
    remora has.
    """

    key: str
    lines: str
    then: EmitProgress
    rest: str = ""
    refused: tuple[RefusedEvent, ...] = ()
    turn: int = 0
    begun_us: int = 0

    @property
    def idempotency_key(self) -> str:
        """A key of this request alone."""
        return f"{self.key}-{self.turn}" if self.turn else self.key


class ObjectNow(msgspec.Struct, frozen=True):
    """An object as it is at this moment."""

    size: int
    etag: str
    version_id: str
    modified_us: int
    metadata: Mapping[str, str]


class ObjectRefused(ReplayError):
    """S3 answers, and does not show an object: it is of another account, or encrypted with a key of its client's."""


Look = Callable[[str], Awaitable[ObjectNow | None]]
"""Looks at the object of a key; None where there is none. Raises ObjectRefused, and ReplayError without an answer."""


class Takes(Protocol):
    """What is used of an IngestClient."""

    async def publish_ndjson(self, topic: str, lines: bytes, *, idempotency_key: str | None = None) -> Any: ...


@dataclass(frozen=True)
class Emission:
    """Where events go, and at most how many a second."""

    topic: str
    rate: float


async def emit(
    directory: ReconciledDirectory,
    client: Takes,
    look: Look,
    sending: Emission,
    tell: Callable[[str], None],
    wall: Callable[[], float] = time.time,
) -> EmitProgress:
    """Send everything that is left; what became of all of it. Raises ReplayError where the server takes nothing."""
    found = directory.made()
    assert found is not None, "there is a reconcile whose findings are sent"
    place = directory.emit
    progress = await _finish(place, client, sending, wall)
    clock = asyncio.get_running_loop().time
    began, before = clock(), progress.behind
    findings = islice(_findings(directory), progress.behind, None)
    while batch := list(islice(findings, BATCH)):
        lines: list[bytes] = []
        hidden: list[RefusedEvent] = []
        for number, row, now in await _looked_at(batch, progress.behind, look):
            if isinstance(now, ObjectRefused):
                hidden.append(RefusedEvent(f"{found.id}/{number}", row["key"], str(now)))
            elif (line := record_of(found, number, row, now)) is not None:
                lines.append(line)
        left = len(lines) + len(hidden)
        then = structs.replace(
            progress,
            behind=progress.behind + len(batch),
            sent=progress.sent + left,
            changed=progress.changed + len(batch) - left,
        )
        if left:
            key, text = f"{found.id}/{progress.behind}", b"\n".join(lines).decode()
            _keep(place, PendingEmission(key, text, then, refused=tuple(hidden)), wall)
            progress = await _finish(place, client, sending, wall)
        else:
            progress = then
            write(place / "progress.json", progress)
        refused = f", refused {progress.refused:,}" if progress.refused else ""
        tell(f"sent {progress.sent:,}, left out {progress.changed:,} that have changed{refused}")
        ahead_s = (progress.behind - before) / sending.rate - (clock() - began)
        await asyncio.sleep(max(ahead_s, 0))
    return progress


def _keep(place: Path, asked: PendingEmission, wall: Callable[[], float]) -> None:
    write(place / "pending.json", structs.replace(asked, begun_us=int(wall() * 1e6)))


async def _finish(place: Path, client: Takes, sending: Emission, wall: Callable[[], float]) -> EmitProgress:
    """Send the request that is under way, if there is one; how far it has come then."""
    pending = place / "pending.json"
    done = place / "progress.json"
    progress = read(done, EmitProgress) if done.exists() else EmitProgress()
    if not pending.exists():
        return progress
    asked = read(pending, PendingEmission)
    if asked.then.behind > progress.behind:
        if asked.lines and wall() - asked.begun_us / 1e6 > _KNOWN_S:
            doubtful = max(asked.then.repeated, progress.repeated + asked.lines.count("\n") + 1)
            asked = structs.replace(asked, then=structs.replace(asked.then, repeated=doubtful))
            _keep(place, asked, wall)
        while asked.lines:
            asked = await _sent(client, sending.topic, asked)
            _keep(place, asked, wall)
        refused, then = len(asked.refused), asked.then
        if refused:
            write(place / "refused" / f"{progress.behind:012}.json", asked.refused)
        progress = structs.replace(then, sent=then.sent - refused, refused=then.refused + refused)
        write(done, progress)
    pending.unlink()
    return progress


async def _sent(client: Takes, topic: str, asked: PendingEmission) -> PendingEmission:
    """Send a request; what is left of it, which are no lines when all of it is done."""
    try:
        await client.publish_ndjson(topic, asked.lines.encode(), idempotency_key=asked.idempotency_key)
    except EventsRefused as exc:
        if (other := _without_refused(asked, exc.problem)) is None:
            raise _ended(topic, exc) from exc
        return other
    except IngestError as exc:
        raise _ended(topic, exc) from exc
    return structs.replace(asked, lines=asked.rest, rest="", turn=asked.turn + 1)


def _ended(topic: str, why: IngestError) -> ReplayError:
    return ReplayError(f"topic {topic}: {why}; run it again, and it goes on")


def _without_refused(asked: PendingEmission, problem: Problem | None) -> PendingEmission | None:
    """What to send in place of a request that is refused for good: all but the event that is named, or the first half
    of it where none is. None where the problem is none of its events'."""
    if problem is None or problem.code not in _OF_EVENTS:
        return None
    lines = asked.lines.split("\n")
    named = problem.record if problem.code == _MALFORMED else None  # of too many it is the first one too many
    at = named if len(lines) > 1 else 0
    if at is None or not 0 <= at < len(lines):
        half = len(lines) // 2
        kept, rest = lines[:half], [*lines[half:], *filter(None, [asked.rest])]
        return structs.replace(asked, lines="\n".join(kept), rest="\n".join(rest), turn=asked.turn + 1)
    told = msgspec.json.decode(lines[at])
    refused = RefusedEvent(told["eventId"], told["s3"]["object"]["key"], problem.text)
    kept = [*lines[:at], *lines[at + 1 :]]
    lines_left, rest_left = ("\n".join(kept), asked.rest) if kept else (asked.rest, "")
    return structs.replace(
        asked, lines=lines_left, rest=rest_left, refused=(*asked.refused, refused), turn=asked.turn + 1
    )


def _findings(directory: ReconciledDirectory) -> Iterator[dict[str, Any]]:
    """The findings to send, in their order; a batch of rows at a time is in memory."""
    planned = read(directory.emit / "plan.json", Planned)
    folder = directory.findings if planned.is_whole else directory.emit / "plan"
    for file in sorted(folder.glob("part-*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1_000):
            yield from batch.to_pylist()


async def _looked_at(
    batch: list[dict[str, Any]], first: int, look: Look
) -> list[tuple[int, dict[str, Any], ObjectNow | ObjectRefused | None]]:
    """Each finding with its place and its object by now, or with why S3 does not show it.

    Raises ReplayError where S3 does not answer, and where it shows none of the objects, or no longer one that it has
    shown: then it is not these objects that it hides.
    """
    found: list[tuple[int, dict[str, Any], ObjectNow | ObjectRefused | None]] = []
    for begin in range(0, len(batch), _TOGETHER):
        rows = batch[begin : begin + _TOGETHER]
        try:
            async with asyncio.TaskGroup() as tasks:
                looks = [tasks.create_task(_seen(look, row["key"])) for row in rows]
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        found += [(first + begin + place, row, looks[place].result()) for place, row in enumerate(rows)]
    hidden = next((now for _, _, now in found if isinstance(now, ObjectRefused)), None)
    if hidden is not None:
        shown = next((row for _, row, now in found if not isinstance(now, ObjectRefused)), None)
        if shown is None:
            raise hidden
        await look(shown["key"])
    return found


async def _seen(look: Look, key: str) -> ObjectNow | ObjectRefused | None:
    try:
        return await look(key)
    except ObjectRefused as exc:
        return exc


# ------------------------------------------------------------------------------------------------- records


def record_of(found: Reconcile, number: int, row: Mapping[str, Any], now: ObjectNow | None) -> bytes | None:
    """The record of a finding as it stands in a request; None where the object is another one than was listed."""
    if not _is_as_listed(row, now):
        return None
    last_ns = ns_of(row["event_sequencer"])
    if now is None:
        name, at_us, order_ns = REMOVED, _us(row["event_time"]) or found.begun_us, last_ns + 1
        size, etag, version = 0, "", row["event_version_id"] or ""
        metadata: Mapping[str, str] = {}
    else:
        at_us = _us(row["last_modified"]) or now.modified_us
        name, order_ns = CREATED, max(at_us * 1000, last_ns + 1)
        size, etag, version, metadata = now.size, now.etag, now.version_id, now.metadata
    body = {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "awsRegion": "",
        "eventTime": (EPOCH + timedelta(microseconds=at_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "eventName": name,
        "userIdentity": {"principalId": "remora-reconcile"},
        "requestParameters": {"sourceIPAddress": ""},
        "responseElements": {"x-amz-request-id": found.id, "x-amz-id-2": "x-remora-reconcile"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "reconcile",
            "bucket": {
                "name": found.bucket,
                "ownerIdentity": {"principalId": ""},
                "arn": f"arn:aws:s3::{found.tenant}:{found.bucket}",
                "id": "",
            },
            "object": {
                "key": row["key"],
                "size": size,
                "eTag": etag,
                "versionId": version,
                "sequencer": sequencer_of(order_ns),
                "metadata": [{"key": f"x-amz-meta-{key}", "val": value} for key, value in metadata.items()],
                "tags": [],
            },
        },
        "eventId": f"{found.id}/{number}",
        "opaqueData": "",
    }
    return msgspec.json.encode(body)


def _is_as_listed(row: Mapping[str, Any], now: ObjectNow | None) -> bool:
    """Whether the object is what the listing said, so that the finding still holds."""
    if row["kind"] == EXTRA:
        return now is None
    assert row["kind"] in (MISSING, DIFFERING)
    if now is None or now.size != row["size"]:
        return False
    is_same = not row["etag"] or now.etag.strip('"').lower() == row["etag"]
    version = "" if now.version_id == "null" else now.version_id
    return is_same and row["version_id"] in (None, version)  # none is told by listings without versions


def sequencer_of(ns: int) -> str:
    """As radosgw writes it: little-endian seconds and nanoseconds, in hex."""
    return pack("<II", *divmod(min(max(ns, 0), _MOST_NS - 1), 1_000_000_000)).hex().upper()


def ns_of(sequencer: str | None) -> int:
    """The time in radosgw's sequencer; 0 in any other one, and without one."""
    try:
        raw = bytes.fromhex(sequencer or "")
    except ValueError:
        return 0
    if len(raw) != 8:
        return 0
    seconds, nanoseconds = unpack("<II", raw)
    return int(seconds * 1_000_000_000 + nanoseconds)


def _us(at: datetime | None) -> int:
    """Microseconds since 1970; 0 without a time."""
    return 0 if at is None else ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
