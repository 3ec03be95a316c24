"""Spans as a receiver of OTLP gets them from a real daemon, and the trace context of requests in Kafka's records."""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from acceptance.test_ingest_daemon import ask
from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.queues import Queues, calm
from devkit.processes.daemon import PATIENT, Daemon, merged, running_daemon
from devkit.readers.consumer import Delivered, read_until
from devkit.receivers.http_sink import http_sink
from devkit.receivers.otlp import collecting, covered
from devkit.testing.cases import cases
from remora.model.exits import Exit
from support.ingest import records

pytestmark = pytest.mark.kafka

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{CLIENT}-01"
UNSAMPLED = f"00-{TRACE}-{CLIENT}-00"

UNHURRIED: Mapping[str, object] = {"timeout": "2m"}
"""For a receiver that lives in the process of the tests, and stands still with it."""


@asynccontextmanager
async def tracing(folder: Path, traces: Mapping[str, object], topic: str, target: str) -> AsyncIterator[Daemon]:
    """A daemon with a topic, on the embedded store."""
    sections: dict[str, dict[str, object]] = {
        "supervisor": {"workers": 1},
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "traces": {**UNHURRIED, **traces},
    }
    endpoint, _, args = target.partition("?")
    async with running_daemon(folder, merged(PATIENT, sections)) as daemon:
        more = ["--arg", args] if args else []
        done = await daemon.command("topic", "create", topic, "--endpoint", endpoint, "--shards", "1", *more)
        assert done.code == Exit.OK, done.err
        yield daemon


async def counted(daemon: Daemon, least: int, name: str, **labels: str) -> None:
    """Return when a metric is as much."""

    async def reached() -> bool:
        return await daemon.metric(name, **labels) >= least

    await daemon.until(reached, f"{name} {least}")


async def delivered(kafka: Kafka, daemon: Daemon, topic: str, count: int) -> Sequence[Delivered]:
    """The records of the topic once so many entries have been removed, and as many records may be read.

    Kafka answers a commit before its end is marked in the partition, and until then nobody is shown the records.
    """
    await counted(daemon, count, "remora_removed_entries_total")
    return await read_until(kafka.address, topic, count, committed=True)


async def smallest(daemon: Daemon, path: str, key: str) -> int:
    """The bytes of a record's entry, as the refusal of a commit tells them."""
    announced = {"events": [{"bucket": "b", "object": key, "bytes": 1}]}
    reserved = await ask(daemon, "POST", f"{path}/reservations", announced)
    refused = await ask(daemon, "PUT", reserved.headers["Location"], records(key))
    assert refused.code == "ReservationExceeded"
    found = re.search(r"has (\d+) bytes", refused.json["detail"])
    assert found is not None
    return int(found[1])


def linked(span: Span) -> set[bytes]:
    """The ids of the spans that it links to."""
    return {each.span_id for each in span.links}


@pytest.mark.parametrize("mode", cases("exactly-once", more=["at-least-once"]))
async def test_a_sampled_request_is_followed_to_kafka(kafka: Kafka, tmp_path: Path, mode: str) -> None:
    """Its record has its very header, its trace the request and the arrival, and all other work is linked to it."""
    topic = await create_topic(kafka.address, f"traces-{uuid.uuid4().hex[:10]}")
    target = f"kafka://{kafka.address}?remora-delivery={mode}"
    async with (
        collecting() as (receiver, url),
        tracing(tmp_path, {"endpoint": url, "sample": 100}, topic, target) as d,
    ):
        sent = await ask(d, "POST", f"/v1/topics/{topic}/events", records("k"), {"traceparent": GIVEN})
        assert sent.status == 200
        (record,) = await delivered(kafka, d, topic, 1)
        assert record.headers["traceparent"] == GIVEN.encode()

        request = await receiver.of(f"request {topic}")
        assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, CLIENT)
        commit = await receiver.of("commit queues-000.db", lambda each: bool(each.links))
        assert linked(commit) == {bytes.fromhex(CLIENT)}
        listing = await receiver.of(f"list {topic}")
        assert listing.span_id in linked(await receiver.of(f"remove {topic}", lambda each: bool(each.links)))
        arrival = await receiver.of(f"deliver {topic}")
        assert (arrival.trace_id.hex(), arrival.parent_span_id.hex()) == (TRACE, CLIENT)
        batch = await receiver.of(f"send {topic}", lambda each: linked(arrival) == {each.span_id})
        assert linked(batch) == {listing.span_id, bytes.fromhex(CLIENT)}
        about = {each.key: each.value.string_value for each in arrival.attributes}
        assert (about["messaging.message.id"], about["messaging.destination.name"]) == ("id-k", topic)
        assert arrival.start_time_unix_nano <= arrival.end_time_unix_nano
        assert receiver.services == {"remora"}

        _, page = await d.get("/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})
        (shown,) = [line for line in page.splitlines() if "remora_event_age_seconds_bucket" in line and " # {" in line]
        assert f'# {{trace_id="{TRACE}"}}' in shown
        await counted(d, 6, "remora_spans_total", state="exported")


@pytest.mark.ceph
async def test_a_request_is_followed_through_ceph(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """In a cluster's queues the context stays behind the entry too, and each request's storing is a span."""
    topic = await create_topic(kafka.address, f"traces-{uuid.uuid4().hex[:10]}")
    async with collecting() as (receiver, url):
        traces = {**UNHURRIED, "endpoint": url, "sample": 0}
        sections = calm(queues, ingest={"listen": f"unix:{tmp_path}/ingest"}, traces=traces)
        async with running_daemon(tmp_path, sections) as daemon:
            endpoint = f"kafka://{kafka.address}"
            done = await daemon.command("topic", "create", topic, "--endpoint", endpoint, "--shards", "1")
            assert done.code == Exit.OK, done.err
            sent = await ask(daemon, "POST", f"/v1/topics/{topic}/events", records("k"), {"traceparent": GIVEN})
            assert sent.status == 200
            (record,) = await delivered(kafka, daemon, topic, 1)
            assert record.headers["traceparent"] == GIVEN.encode()
            assert linked(await receiver.of(f"commit {topic}")) == {bytes.fromhex(CLIENT)}
            arrival = await receiver.of(f"deliver {topic}")
            assert (arrival.trace_id.hex(), arrival.parent_span_id.hex()) == (TRACE, CLIENT)


async def test_what_no_client_samples_is_no_span_of_its_own(kafka: Kafka, tmp_path: Path) -> None:
    """With sample 0 only sampled requests are exported; every header that W3C allows reaches Kafka all the same."""
    topic = await create_topic(kafka.address, f"traces-{uuid.uuid4().hex[:10]}")
    target = f"kafka://{kafka.address}"
    async with (
        collecting() as (receiver, url),
        tracing(tmp_path, {"endpoint": url, "sample": 0}, topic, target) as d,
    ):
        for key, header in (("a", UNSAMPLED), ("b", None), ("c", "00-nonsense"), ("d", GIVEN)):
            given = {"traceparent": header} if header else {}
            assert (await ask(d, "POST", f"/v1/topics/{topic}/events", records(key), given)).status == 200
        found = {each.event_id: each.headers.get("traceparent") for each in await delivered(kafka, d, topic, 4)}
        assert found == {"id-a": UNSAMPLED.encode(), "id-b": None, "id-c": None, "id-d": GIVEN.encode()}

        await receiver.of(f"deliver {topic}")
        assert [each.name for each in receiver.spans].count(f"request {topic}") == 1
        assert [each.name for each in receiver.spans].count(f"deliver {topic}") == 1


async def test_without_a_receiver_the_header_reaches_kafka(kafka: Kafka, tmp_path: Path) -> None:
    """A daemon that exports nothing hands the context on, of a commit too if there is room, and counts no span."""
    topic = await create_topic(kafka.address, f"traces-{uuid.uuid4().hex[:10]}")
    async with tracing(tmp_path, {}, topic, f"kafka://{kafka.address}") as daemon:
        path = f"/v1/topics/{topic}"
        await ask(daemon, "POST", f"{path}/events", records("a"), {"traceparent": GIVEN})
        for key, nbytes in (("c", 700), ("d", await smallest(daemon, path, "d"))):
            announced = {"events": [{"bucket": "b", "object": key, "bytes": nbytes}]}
            reserved = await ask(daemon, "POST", f"{path}/reservations", announced)
            assert reserved.status == 201, reserved.body
            done = await ask(daemon, "PUT", reserved.headers["Location"], records(key), {"traceparent": UNSAMPLED})
            assert done.status == 200, done.body
        found = {each.event_id: each.headers.get("traceparent") for each in await delivered(kafka, daemon, topic, 3)}
        assert found == {"id-a": GIVEN.encode(), "id-c": UNSAMPLED.encode(), "id-d": None}
        assert await daemon.metric("remora_spans_total") == 0


async def test_a_large_sampled_request_gets_few_spans(kafka: Kafka, tmp_path: Path) -> None:
    """All its events have the header, a hundred of a batch have spans, and nothing is lost for it."""
    topic = await create_topic(kafka.address, f"traces-{uuid.uuid4().hex[:10]}")
    target = f"kafka://{kafka.address}"
    async with (
        collecting() as (receiver, url),
        tracing(tmp_path, {"endpoint": url, "sample": 0}, topic, target) as d,
    ):
        many = records(*(f"k{n}" for n in range(1000)))
        assert (await ask(d, "POST", f"/v1/topics/{topic}/events", many, {"traceparent": GIVEN})).status == 200
        found = await delivered(kafka, d, topic, 1000)
        assert {each.headers["traceparent"] for each in found} == {GIVEN.encode()}

        async def all_exported() -> bool:
            exported = await d.metric("remora_spans_total", state="exported")
            return await d.metric("remora_spans_total", state="sampled") <= exported > 100

        await d.until(all_exported, "all spans at the receiver")  # the end waits for them for 2 s only
        assert await d.stop() == Exit.OK

        names = [each.name for each in receiver.spans]
        batches = names.count(f"send {topic}")
        assert 100 <= names.count(f"deliver {topic}") <= 100 * batches < 1000


@pytest.mark.parametrize("fault", cases("silent", more=["away", "refusing"]))
async def test_a_receiver_that_fails_costs_delivery_nothing(kafka: Kafka, tmp_path: Path, fault: str) -> None:
    """Away, refusing or silent: everything arrives, the loss of spans is counted and said once, and it ends cleanly."""
    topic = await create_topic(kafka.address, f"traces-{uuid.uuid4().hex[:10]}")
    async with collecting() as (receiver, url):
        receiver.answer = 400 if fault == "refusing" else 0
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/v1/traces"
        traces = {"endpoint": nobody if fault == "away" else url, "sample": 100, "timeout": "1s"}
        async with tracing(tmp_path, traces, topic, f"kafka://{kafka.address}") as daemon:
            for key in "abc":
                await ask(daemon, "POST", f"/v1/topics/{topic}/events", records(key), {"traceparent": GIVEN})
            assert len(await delivered(kafka, daemon, topic, 3)) == 3
            await counted(daemon, 1, "remora_spans_total", state="failed")
            await ask(daemon, "POST", f"/v1/topics/{topic}/events", records("d"))
            assert len(await delivered(kafka, daemon, topic, 4)) == 4
            assert await daemon.stop() == Exit.OK
            assert daemon.logged().count("traces_failing") == 1
            assert "opentelemetry" not in daemon.logged()


@pytest.mark.full("a thousand requests one after the other; the engine's tests cover the same with scripted parts")
async def test_named_stages_cover_the_age_of_each_event(tmp_path: Path) -> None:
    """Of each of 1,000 events that come one by one at least 95 % of its age is in stages that its span names."""
    async with http_sink() as sink, collecting() as (receiver, url):
        await sink.open()
        async with tracing(tmp_path, {"endpoint": url, "sample": 0}, "hooks", sink.url) as daemon:
            for number in range(1000):
                one = records(f"k{number}")
                sent = await ask(daemon, "POST", "/v1/topics/hooks/events", one, {"traceparent": GIVEN})
                assert sent.status == 200
                if number % 100 == 99:  # all that is sampled is exported meanwhile: of more the daemon would drop some
                    spans = await receiver.delivered("hooks", number + 1)

    assert min(map(covered, spans)) >= 0.95
    assert max(map(covered, spans)) <= 1.05
