"""remora's ingest API: batches of records, each request with an idempotency key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from struct import pack

import msgspec

from remora.client import Failure, IngestClient, IngestError, IngestMisconfigured, NotSequenced
from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.run.schedule import DueEvent
from remora_pipeline.replay.run.targets import AttemptResult, TargetAnswer
from remora_pipeline.replay.shape import EVENT_NAMES, MARK

_SERVER_FAILED = 500
_DONE = TargetAnswer(AttemptResult.DONE, 200)


class Records:
    """Makes records of events, as radosgw writes its own: no member is missing, so that the server reads them quickly.

    The time of a record is when it was due. Its sequencer grows with every event of a run, and from run to run.
    """

    def __init__(self, run_id: str, started_us: int) -> None:
        self._run = run_id.encode()
        self._sequence = started_us * 1000

    def line(self, event: DueEvent) -> bytes:
        """The record of an event. Raises UnicodeEncodeError for a key that is not UTF-8."""
        sec, micros = divmod(event.due_us, 1_000_000)
        return (
            b'{"eventVersion":"2.2","eventSource":"ceph:s3","awsRegion":"","eventTime":"%b.%06dZ",%b%b,"size":%d,'
            b'"eTag":"","versionId":"","sequencer":"%b","metadata":[{"key":"%b","val":"%b/%d/%d"}],"tags":[]}},'
            b'"eventId":"%b/%d","opaqueData":""}'
        ) % (
            _second(sec),
            micros,
            _head(event.op, event.bucket),
            msgspec.json.encode(event.key),
            event.size,
            _sequencer(self._sequence + event.seq),
            _MARK,
            self._run,
            event.seq,
            event.kseq,
            self._run,
            event.seq,
        )


_MARK = MARK.encode()


def _sequencer(ns: int) -> bytes:
    """As radosgw writes it, whose events these say they are: little-endian seconds and nanoseconds in hex."""
    return pack("<II", *divmod(ns, 1_000_000_000)).hex().upper().encode()


@lru_cache(maxsize=16)
def _second(sec: int) -> bytes:
    return datetime.fromtimestamp(sec, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


@lru_cache(maxsize=4096)
def _head(op: str, bucket: str) -> bytes:
    """What stands between the time and the key: the same for all events of one kind in one bucket."""
    name = msgspec.json.encode(bucket)
    return (
        b'"eventName":%b,"userIdentity":{"principalId":"remora-replay"},"requestParameters":{"sourceIPAddress":""},'
        b'"responseElements":{"x-amz-request-id":"","x-amz-id-2":""},"s3":{"s3SchemaVersion":"1.0",'
        b'"configurationId":"replay","bucket":{"name":%b,"ownerIdentity":{"principalId":"remora-replay"},'
        b'"arn":%b,"id":""},"object":{"key":'
    ) % (msgspec.json.encode(EVENT_NAMES[op]), name, msgspec.json.encode(f"arn:aws:s3:::{bucket}"))


class IngestTarget:
    """A topic of a running daemon.

    remora's client is asked for single attempts, since all its other calls repeat by themselves; and aiohttp, below
    it, repeats no POST. A request that is repeated has the same key and the same lines, and is stored once: the
    server promises that for ten minutes.
    """

    is_repeatable = True

    def __init__(self, client: IngestClient, topic: str, records: Records, batch: int) -> None:
        self.batch = batch
        self._client, self._topic, self._records = client, topic, records

    async def send(self, events: Sequence[DueEvent], request: str) -> TargetAnswer:
        """Attempt to store events, all or none."""
        lines = []
        for place, event in enumerate(events):
            try:
                lines.append(self._records.line(event))
            except UnicodeEncodeError:
                return TargetAnswer(AttemptResult.REFUSED, error="the key is not UTF-8", culprit=place)
        try:
            found = await self._client.publish_once(self._topic, b"\n".join(lines), idempotency_key=request)
        except IngestMisconfigured as exc:
            raise ReplayError(str(exc)) from exc
        except IngestError as exc:
            problem = exc.problem
            if problem is None or problem.status >= _SERVER_FAILED or problem.status < 400:
                return TargetAnswer(AttemptResult.LOST, problem.status if problem else None, str(exc))
            return TargetAnswer(AttemptResult.REFUSED, problem.status, str(exc), culprit=problem.record)
        if isinstance(found, Failure):
            status = found.problem.status if found.problem else None
            result = AttemptResult.LOST if found.outcome_unknown else AttemptResult.BUSY
            return TargetAnswer(result, status, found.text, found.retry_after_s)
        return _DONE


@dataclass(frozen=True, slots=True)
class IngestAddress:
    """Where a daemon takes events in, and what it asks of a client."""

    address: str
    token: str = field(repr=False)
    ca_file: str | None


@asynccontextmanager
async def ingest_target(
    server: IngestAddress, topic: str, records: Records, *, batch: int, concurrency: int
) -> AsyncIterator[IngestTarget]:
    """Opens a client of a daemon's ingest API. It sends nothing yet."""
    async with IngestClient(
        server.address, token=server.token, ca_file=server.ca_file, connections=concurrency
    ) as client:
        yield IngestTarget(client, topic, records, batch)


@dataclass(frozen=True, slots=True)
class TakenTopic:
    """What the daemon says of a topic that it takes events for: the one in Kafka, and whether it numbers its events."""

    kafka_topic: str
    is_numbered: bool


async def check_ingest(server: IngestAddress, topic: str) -> TakenTopic:
    """What the daemon says of the topic, when it takes events for it.

    Raises ReplayRefused, or what the client raises.
    """
    try:
        # One attempt: a missing daemon is reported at once, and a slow one has the time of a request.
        async with IngestClient(server.address, token=server.token, ca_file=server.ca_file, deadline_s=0.0) as client:
            kafka_topic = await client.check_topic(topic)
            try:
                await client.sequence(topic)
            except NotSequenced:
                return TakenTopic(kafka_topic, is_numbered=False)
            return TakenTopic(kafka_topic, is_numbered=True)
    except IngestError as exc:
        raise ReplayRefused(str(exc)) from exc
