"""The HTTP endpoint against real servers: what arrives, in which order, and how far a failed push says it came."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.certificates import certificate
from devkit.clusters.nginx import nginx
from devkit.receivers.bad_endpoints import hanging_endpoint
from devkit.receivers.receiver import DROPPED, OK, Arrival, Reply, receiving, status
from devkit.waits import PATIENT_S, until
from remora.config import (
    AdminSettings,
    CredentialsSettings,
    DestinationsSettings,
    HttpSettings,
    KafkaSettings,
    Settings,
)
from remora.endpoints.http import HttpEndpoint
from remora.endpoints.http.answers import FIRST_IN_PUSH
from remora.endpoints.http.endpoint import PROXIES
from remora.model.errors import EndpointDenied, EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import Record
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from remora.policy.delivery.lane_steps import STEPS, UNKNOWN
from remora.ports.endpoint import Batch, Route
from support.kafka_sender import INCARNATION, make_records

SHARD = Shard("shard", Origin.REMORA)
QUICK = HttpSettings(request_timeout_s=0.3, connect_timeout_s=2.0)
PATIENT = HttpSettings(request_timeout_s=20.0, connect_timeout_s=20.0)


class Watcher:
    """Remembers what an endpoint told."""

    def __init__(self) -> None:
        self.opened = self.closed = self.retried = 0
        self.answers: defaultdict[str, int] = defaultdict(int)
        self.defects: list[str] = []

    def http_opened(self) -> None:
        self.opened += 1

    def http_closed(self) -> None:
        self.closed += 1

    def http_answered(self, kind: str, requests: int) -> None:
        self.answers[kind] += requests

    def http_retried(self) -> None:
        self.retried += 1

    def crashed(self, what: str) -> None:
        self.defects.append(what)


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
async def endpoint(watcher: Watcher) -> AsyncIterator[HttpEndpoint]:
    """A running endpoint that reports to the watcher, and has no defect."""
    async with HttpEndpoint(Settings(http=PATIENT), watcher) as running:
        yield running
    assert watcher.defects == []
    assert watcher.opened == watcher.closed


def target(url: str, args: str = "") -> Target:
    return Target(url, args, "t")


async def push_lanes(route: Route, records: Sequence[Record]) -> dict[int, tuple[Batch, EndpointError]]:
    """Pack and push, every lane beside the others, until each has ended; answers which batch failed in each lane."""
    batches, refused = route.pack(records)
    assert refused == []
    return await push_batches(route, batches)


async def push_batches(route: Route, batches: Sequence[Batch]) -> dict[int, tuple[Batch, EndpointError]]:
    """Push these, every lane beside the others, until each has ended; answers which batch failed in each lane."""
    lanes: defaultdict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        lanes[batch.lane].append(batch)
    failed: dict[int, tuple[Batch, EndpointError]] = {}

    async def run(lane: list[Batch]) -> None:
        for batch in lane:
            try:
                await route.push(batch)
            except EndpointError as exc:
                failed[batch.lane] = batch, exc
                return

    await asyncio.gather(*map(run, lanes.values()))
    return failed


async def send(endpoint: HttpEndpoint, to: Target, records: Sequence[Record], most: int = 200) -> list[EndpointError]:
    """Deliver all of them as the engine does: from the first that did not arrive on, after each failure."""
    left, failures = deque(records), []
    for _ in range(most):
        if not left:
            break
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            batches, _ = route.pack(list(left))
            failed = await push_batches(route, batches)
        missing: set[bytes] = set()
        ended = {lane: (batch.records, exc) for lane, (batch, exc) in failed.items()}
        behind: set[int] = set()
        for batch in batches:
            if batch.lane in behind:
                missing.update(each.position for each in batch.records)
            elif batch.lane in ended and batch.records is ended[batch.lane][0]:
                behind.add(batch.lane)
                missing.update(each.position for each in batch.records[ended[batch.lane][1].arrived :])
        failures += [exc for _, exc in failed.values()]
        left = deque(each for each in left if each.position in missing)
    assert not left, failures[-1:]
    return failures


def inversions(bodies: Sequence[bytes], records: Sequence[Record]) -> int:
    """How many first arrivals of a record came before an earlier one of its key."""
    place = {each.body: (each.key, int(each.position.partition(b"/")[2])) for each in records}
    last: dict[bytes, int] = {}
    found = 0
    for body in dict.fromkeys(bodies):
        key, number = place[body]
        found += last.get(key, -1) > number
        last[key] = max(number, last.get(key, -1))
    return found


# -------------------------------------------------------------------------------------------- delivery


async def test_what_arrives(endpoint: HttpEndpoint) -> None:
    """Every record arrives once, in order per key, with its place in the headers, over few connections."""
    records = make_records(0, 500)
    async with receiving() as receiver:
        failures = await send(endpoint, target(receiver.url + "/a%2f/../b?c"), records)

    by_id = {each.headers["remora-event-id"]: each for each in receiver.taken}
    assert failures == []
    assert sorted(receiver.bodies) == sorted(each.body for each in records)
    assert inversions(receiver.bodies, records) == 0
    assert receiver.connections <= 20  # one for each key that had records, at most
    for record in records:
        arrival = by_id[record.event_id.decode()]
        assert (arrival.line, arrival.body) == ("POST /a%2f/../b?c HTTP/1.1", record.body)
        assert arrival.headers["remora-shard"] == "shard"
        assert arrival.headers["remora-pos"] == f"inc:{record.position.decode()}"
        assert "connection" not in arrival.headers
        assert "expect" not in arrival.headers


async def test_one_record_of_a_key_is_under_way(endpoint: HttpEndpoint) -> None:
    """While a receiver thinks about a record, no later one of its key comes, and those of other keys do."""
    think = asyncio.Event()
    records = make_records(0, 40, keys=2)
    slow = records[0].key

    def plan(arrival: Arrival) -> Reply:
        return Reply(until=think) if arrival.body == records[0].body else OK

    async with receiving(plan) as receiver:
        sending = asyncio.create_task(send(endpoint, target(receiver.url), records))
        await until(lambda: len(receiver.came) >= 21, "the others have come")
        before = [each.body for each in receiver.came]
        think.set()
        await sending

    assert [each.key for each in records if each.body in before].count(slow) == 1
    assert inversions(receiver.bodies, records) == 0


@pytest.mark.parametrize("kind", ["records", "ndjson", "cloudevents"])
async def test_batches(endpoint: HttpEndpoint, kind: str) -> None:
    """A batch has what its lane had, in order, within the limits of the topic."""
    records = make_records(0, 300, keys=3)
    if kind == "cloudevents":
        event = (
            b'{"Records":[{"eventSource":"s","awsRegion":"","eventTime":"2026-01-01T00:00:00.000000Z","eventName":"n",'
        )
        event += b'"responseElements":{"x-amz-request-id":"a","x-amz-id-2":"b"},"s3":{"bucket":{"name":"b"}}}]}'
        records = [each._replace(body=event) for each in records]
    async with receiving() as receiver:
        await send(endpoint, target(receiver.url, f"remora-batch={kind}&remora-batch-records=40"), records)

    counts = [int(each.headers["remora-count"]) for each in receiver.taken]
    assert sum(counts) == 300
    assert max(counts) == 40
    assert len(counts) <= 9


async def test_batches_of_many_keys_are_large(endpoint: HttpEndpoint) -> None:
    """Records of hundreds of keys are posted in few requests, each key's in order."""
    records = make_records(0, 1000, keys=500)
    async with receiving() as receiver:
        assert await send(endpoint, target(receiver.url, "remora-batch=ndjson"), records) == []

    lines = [line for each in receiver.bodies for line in each.splitlines()]
    assert sorted(lines) == sorted(each.body for each in records)
    assert inversions(lines, records) == 0
    assert len(receiver.bodies) <= 2 * 8  # at most a full batch and a rest in each lane


async def test_batches_before_a_slow_receiver_stay_large(endpoint: HttpEndpoint) -> None:
    """However long answers take, a route gets no more lanes than a listing fills with whole batches, or nearly so."""
    to = target("http://127.0.0.1:1", "remora-batch=records")
    records, sizes = make_records(0, 1000, keys=1000), []
    for _ in range(4):
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            for _ in range(100):
                route._acked(100, 0.5)
            batches, _ = route.pack(records)
            sizes.append(len({each.lane for each in batches}))
            is_stale = route.stale

    assert sizes == [8, 16, 16, 16]
    assert not is_stale


async def test_batches_of_large_records_get_more_lanes(endpoint: HttpEndpoint) -> None:
    """Where a request has room for four records, all of a listing is under way with many lanes only."""
    to = target("http://127.0.0.1:1", "remora-batch=records&remora-batch-bytes=4096")
    for _ in range(8):
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            for _ in range(100):
                route._acked(4, 0.5)
            route.pack(make_records(0, 500, keys=500, size=1000))
            assert route.stale is (route._lanes < 128)


async def test_a_batch_that_is_too_large_is_halved(endpoint: HttpEndpoint) -> None:
    """A receiver that takes few records at once gets few, without a failure and each once."""
    records = make_records(0, 200, keys=1)

    def plan(arrival: Arrival) -> Reply:
        return OK if int(arrival.headers["remora-count"]) <= 7 else status(413)

    async with receiving(plan) as receiver:
        failures = await send(endpoint, target(receiver.url, "remora-batch=ndjson"), records)

    assert failures == []
    assert b"".join(receiver.bodies) == b"".join(each.body + b"\n" for each in records)


# ------------------------------------------------------------------------------------------- failures


ANSWERS = {
    "cut in the head": Reply(b"HTTP/1.1 200 OK\r\nContent-Le", ends=True),
    "cut in the body": Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf", ends=True),
    "cut in a chunk": Reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf", ends=True),
    "no answer": DROPPED,
    "no HTTP": Reply(b"220 smtp.example.com ESMTP\r\n"),
    "100 only": Reply(b"HTTP/1.1 100 Continue\r\n\r\n", ends=True),
    "endless interim": Reply(b"HTTP/1.1 102 x\r\n\r\n" * 1000),
    "endless head": Reply(b"HTTP/1.1 200 OK\r\n" + b"X: yyyyyyyyyyyyyyyy\r\n" * 2000),
    "endless body": Reply(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000),
    "silence": Reply(b""),
    "trickle": Reply(b"HTTP/1.1 200"),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_answers_that_are_no_acknowledgement(watcher: Watcher, kind: str) -> None:
    """What is no whole answer is a transient failure of the record under way; what arrived before is told."""
    records = make_records(0, FIRST_IN_PUSH, keys=1)

    def plan(arrival: Arrival) -> Reply:
        if arrival.body != records[2].body:
            return OK
        for pool in route.pools._pools.values():
            for each in pool.open:
                each._timeout_s = 0.1  # for this answer only: connecting and the records before it have all their time
        return ANSWERS[kind]

    async with (
        asyncio.timeout(PATIENT_S),
        HttpEndpoint(Settings(http=PATIENT), watcher) as endpoint,
        receiving(plan) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route,
    ):
        (batch,), _ = route.pack(records)
        # What closes a connection that answered before is tried again on a fresh one, and fails there.
        with pytest.raises(EndpointUnavailable) as caught:
            await route.push(batch)

    assert (caught.value.arrived, caught.value.tries) == (2, 1)
    assert "127.0.0.1" in str(caught.value)
    assert [each.body for each in receiver.came][:3] == [each.body for each in records[:3]]
    assert records[3].body not in [each.body for each in receiver.came]


def overdue(endpoint: HttpEndpoint) -> None:
    """The time of all requests under way is over; that of their late answers is not."""
    for pool in endpoint._pools._pools.values():
        for each in list(pool.open):
            each.sweep(each._sent_at + 1.5 * each._timeout_s)


@pytest.mark.parametrize(
    ("answer", "arrives"), [(OK, True), (status(503), False), (Reply(b"junk"), False), (DROPPED, False)]
)
async def test_answers_that_come_too_late(endpoint: HttpEndpoint, answer: Reply, arrives: bool) -> None:
    """A push that is not answered says that its record may have arrived; an acknowledgement over the same connection
    counts when it comes, once, and anything else does not."""
    late, records = asyncio.Event(), make_records(0, 3, keys=1)

    def plan(arrival: Arrival) -> Reply:
        if arrival.body != records[1].body:
            return OK
        overdue(endpoint)
        return replace(answer, until=late)

    async with asyncio.timeout(PATIENT_S), receiving(plan) as receiver:
        to, positions = target(receiver.url), [each.position for each in records]
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            (batch,), _ = route.pack(records)
            with pytest.raises(EndpointUnavailable, match="no answer within") as caught:
                await route.push(batch)
        asking = asyncio.create_task(endpoint.arrived_late(SHARD, INCARNATION, to, positions))
        late.set()
        assert await asking == ({positions[1]} if arrives else set())
        assert await endpoint.arrived_late(SHARD, INCARNATION, to, positions) == set()

    assert (caught.value.arrived, caught.value.tries, list(caught.value.unclear)) == (1, 1, [1])


@pytest.mark.parametrize(
    ("answer", "unclear", "once_unclear"),
    [(status(503), [], [1]), (status(404), [], [1]), (DROPPED, [1], []), (None, [1], []), (OK, [], [])],
    ids=["put off", "misconfigured", "lost again", "stopped", "acknowledged"],
)
async def test_a_used_connection_that_closes_behind_a_request(
    endpoint: HttpEndpoint, answer: Reply | None, unclear: list[int], once_unclear: list[int]
) -> None:
    """Its record is posted again at once, which costs no attempt; where that fails, the error says that the record may
    have arrived, with the last request or with an earlier one."""
    records, seen = make_records(0, 3, keys=1), list[bytes]()

    def plan(arrival: Arrival) -> Reply:
        seen.append(arrival.body)
        if arrival.body != records[1].body:
            return OK
        if seen.count(arrival.body) > 1 and answer is not None:
            return answer
        if answer is None:
            route.stop()
        return DROPPED

    async with (
        receiving(plan) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url), quick_retries=False) as route,
    ):
        failures = await push_lanes(route, records)

    if answer is OK:
        assert failures == {}
        assert receiver.bodies == [each.body for each in records]
        return
    ((_, exc),) = failures.values()
    assert (exc.arrived, list(exc.unclear), list(exc.once_unclear)) == (1, unclear, once_unclear)
    assert exc.tries == (0 if answer is None else 1)


async def test_a_record_that_arrived_late_is_not_posted_again(endpoint: HttpEndpoint) -> None:
    """A record that was acknowledged after its push was given up has arrived when it is pushed again."""
    late, records = asyncio.Event(), make_records(0, 3, keys=1)

    def plan(arrival: Arrival) -> Reply:
        if arrival.body != records[0].body:
            return OK
        overdue(endpoint)
        return Reply(until=late)

    async with asyncio.timeout(PATIENT_S), receiving(plan) as receiver:
        to = target(receiver.url)
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            (batch,), _ = route.pack(records)
            with pytest.raises(EndpointUnavailable, match="no answer within"):
                await route.push(batch)
        late.set()
        await until(lambda: not any(pool.late for pool in endpoint._pools._pools.values()), "the answer comes")
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            await route.push(batch)

    assert receiver.bodies == [each.body for each in records]


async def test_a_batch_that_is_not_answered(endpoint: HttpEndpoint) -> None:
    """All records of a request without an answer were tried, and may have arrived."""
    records = make_records(0, 5, keys=1)
    async with (
        receiving(lambda _: DROPPED) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url, "remora-batch=ndjson")) as route,
    ):
        ((_, exc),) = (await push_lanes(route, records)).values()

    assert exc.tried(records) == records
    assert list(exc.unclear) == [0, 1, 2, 3, 4]


async def test_a_batch_that_is_answered_by_503(endpoint: HttpEndpoint) -> None:
    """All records of a request that was put off were tried; none of them has arrived."""
    records = make_records(0, 5, keys=1)
    async with (
        receiving(lambda _: status(503)) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url, "remora-batch=ndjson")) as route,
    ):
        ((_, exc),) = (await push_lanes(route, records)).values()

    assert exc.tried(records) == records
    assert list(exc.unclear) == []


async def test_who_waits_gets_the_place_of_a_late_connection(watcher: Watcher) -> None:
    """A request that waited for a connection before another one was given up is posted as soon as that one is."""
    http, hang, came = replace(PATIENT, connections=1), asyncio.Event(), asyncio.Event()
    first, second = make_records(0, 2, keys=1)
    async with asyncio.timeout(PATIENT_S), HttpEndpoint(Settings(http=http), watcher) as endpoint:

        def plan(arrival: Arrival) -> Reply:
            if arrival.body != first.body:
                return OK
            came.set()
            return Reply(until=hang)

        async with receiving(plan) as receiver:
            to = target(receiver.url)
            async with (
                endpoint.route(SHARD, INCARNATION, to) as one,
                endpoint.route(SHARD, INCARNATION, to) as other,
            ):
                hanging = asyncio.create_task(push_lanes(one, [first]))
                await came.wait()
                waiting = asyncio.create_task(push_lanes(other, [second]))
                (pool,) = endpoint._pools._pools.values()
                await until(lambda: bool(pool.waiting), "the second waits")
                overdue(endpoint)

                assert await waiting == {}
                assert len(await hanging) == 1
            hang.set()


async def test_connections_that_wait_for_late_answers_make_way(watcher: Watcher) -> None:
    """Where as many connections are open as may be, one that only waits for a late answer is closed for another one."""
    http, hang = replace(PATIENT, connections=1), asyncio.Event()
    first, second = make_records(0, 2, keys=1)
    async with asyncio.timeout(PATIENT_S), HttpEndpoint(Settings(http=http), watcher) as endpoint:

        def plan(arrival: Arrival) -> Reply:
            if arrival.body != first.body:
                return OK
            overdue(endpoint)
            return Reply(until=hang)

        async with receiving(plan) as receiver:
            to = target(receiver.url)
            async with endpoint.route(SHARD, INCARNATION, to) as route:
                failed = await push_lanes(route, [first])
            async with endpoint.route(SHARD, INCARNATION, to) as route:
                assert await push_lanes(route, [second]) == {}
            assert await endpoint.arrived_late(SHARD, INCARNATION, to, [first.position]) == set()
            hang.set()

    assert (len(failed), watcher.opened) == (1, 2)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(503), EndpointUnavailable),
        (status(429, "Retry-After: 120\r\n"), EndpointUnavailable),
        (status(301, "Location: /\r\n"), EndpointMisconfigured),
        (status(401), EndpointMisconfigured),
        (status(404), EndpointMisconfigured),
        (status(410), EndpointMisconfigured),
        (Reply(b"HTTP/1.1 101 x\r\nUpgrade: y\r\nConnection: Upgrade\r\n\r\n", counts=False), EndpointMisconfigured),
    ],
)
async def test_refusals(endpoint: HttpEndpoint, answer: Reply, error: type[EndpointError]) -> None:
    """Each status stops the topic or pauses the shard as the table says, and Retry-After is handed on."""
    async with (
        receiving(lambda _: answer) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route,
    ):
        (batch,), _ = route.pack(make_records(0, 3, keys=1))
        with pytest.raises(error) as caught:
            await route.push(batch)

    assert caught.value.arrived == 0
    assert getattr(caught.value, "retry_after_s", None) == (120.0 if b"429" in answer.raw else None)
    assert len(receiver.came) == 1


@pytest.mark.guarantee("order-per-object")
async def test_some_answers_of_503(endpoint: HttpEndpoint, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that refuses one request in ten, none twice, gets each record once, in order, and no push fails."""
    monkeypatch.setattr("remora.endpoints.http.endpoint.RECENT_S", 60.0)
    records = make_records(0, 800)
    count, refused = itertools.count(), set[bytes]()

    def plan(arrival: Arrival) -> Reply:
        number = next(count)
        if (
            number <= STEPS[UNKNOWN][0] or number % 10 != 5 or arrival.body in refused
        ):  # before that nothing need have arrived
            return OK
        refused.add(arrival.body)
        return status(503)

    async with receiving(plan) as receiver:
        failures = await send(endpoint, target(receiver.url), records)

    assert failures == []
    assert sorted(receiver.bodies) == sorted(each.body for each in records)
    assert inversions(receiver.bodies, records) == 0
    assert watcher.retried == watcher.answers["5xx"] > 50


@pytest.mark.guarantee("order-per-object")
async def test_connections_that_are_cut_under_load(endpoint: HttpEndpoint) -> None:
    """Connections that end at any moment lose nothing, keep the order, and make a copy a cut at most."""
    records = make_records(0, 600)
    count = itertools.count()

    def plan(_: Arrival) -> Reply:
        number = next(count)
        return Reply(ends=True) if number % 7 == 3 else DROPPED if number % 31 == 30 else OK

    async with receiving(plan) as receiver:
        await send(endpoint, target(receiver.url), records)

    assert set(receiver.bodies) == {each.body for each in records}
    assert inversions(receiver.bodies, records) == 0
    assert len(receiver.bodies) - len(set(receiver.bodies)) <= next(count) // 7


async def test_a_failure_stops_the_other_lanes(endpoint: HttpEndpoint) -> None:
    """After a failure every other lane ends behind the record under way, and says how far it came."""
    records = make_records(0, 200)
    refuse, answer, bad = asyncio.Event(), asyncio.Event(), records[0]

    def plan(arrival: Arrival) -> Reply:
        if arrival.body == bad.body:
            return replace(status(404), until=refuse)
        return Reply(until=answer)

    async with receiving(plan) as receiver, endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route:
        pushing = asyncio.create_task(push_lanes(route, records))
        lanes = len({each.lane for each in route.pack(records)[0]})
        await until(lambda: len(receiver.came) >= lanes, "the others have come")
        refuse.set()
        await until(route._stopped.is_set, "the route stops")
        answer.set()
        failed = await pushing

    assert len(receiver.came) == lanes
    assert {type(exc) for _, exc in failed.values()} <= {EndpointMisconfigured, EndpointUnavailable}
    assert sum(exc.arrived for _, exc in failed.values()) == len(receiver.taken)
    assert sorted(exc.tries or 0 for _, exc in failed.values()) == [0] * (lanes - 1) + [1]


async def test_a_push_ends_in_time(watcher: Watcher) -> None:
    """A push begins no request once it has lasted as long as one may take, and says how far it came."""
    now = 0.0

    def plan(_: Arrival) -> Reply:
        nonlocal now
        now += 12.0
        return OK

    async with (
        HttpEndpoint(Settings(http=PATIENT), watcher) as endpoint,
        receiving(plan) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route,
    ):
        route._now = lambda: now
        (batch,), _ = route.pack(make_records(0, FIRST_IN_PUSH, keys=1))
        with pytest.raises(EndpointUnavailable, match="not all within 20 s") as caught:
            await route.push(batch)

    assert caught.value.arrived == len(receiver.taken) == 2
    assert caught.value.tries == 0


# ------------------------------------------------------------------------------------------- poison


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals of a record follow each other at once."""
    monkeypatch.setattr("remora.endpoints.http.endpoint.POISON_APART_S", 0.05)


@pytest.mark.usefixtures("apart")
async def test_a_record_that_is_refused_while_others_arrive(endpoint: HttpEndpoint) -> None:
    """It is refused for good after three refusals, told by its place, and what stands behind it was not posted."""
    poison, other = (
        make_records(0, FIRST_IN_PUSH, keys=1),
        (make_records(1, 1, start=number)[0] for number in itertools.count()),
    )
    async with (
        receiving(lambda arrival: status(422) if arrival.headers["remora-event-id"] == "0.2" else OK) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route,
        endpoint.route(Shard("other", Origin.REMORA), INCARNATION, target(receiver.url)) as fellow,
    ):
        (batch,), _ = route.pack(poison)
        pushing = asyncio.create_task(route.push(batch))
        while not pushing.done():
            await push_lanes(fellow, [next(other)])
        with pytest.raises(EntryRefused, match="422") as caught:
            await pushing

    assert (caught.value.arrived, caught.value.tries) == (2, 3)
    ids = [each.headers["remora-event-id"] for each in receiver.came]
    assert ids.count("0.2") == 3
    assert "0.3" not in ids


@pytest.mark.usefixtures("apart")
async def test_a_record_that_stays_alone_after_a_failure(endpoint: HttpEndpoint) -> None:
    """Its refusals of before count, and what the receiver acknowledged since: it is refused for good with the third."""
    others, alone = make_records(0, 4, keys=4), make_records(1, 1, start=4)
    answers = itertools.chain([status(422), status(503)], itertools.repeat(status(422)))

    def plan(arrival: Arrival) -> Reply:
        return OK if arrival.headers["remora-event-id"].startswith("0.") else next(answers)

    async with receiving(plan) as receiver:
        async with endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route:
            ((_, before),) = (await push_lanes(route, alone)).values()
        async with endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route:
            assert await push_lanes(route, others) == {}
            ((_, then),) = (await push_lanes(route, alone)).values()

    assert isinstance(before, EndpointUnavailable)
    assert isinstance(then, EntryRefused)
    assert (before.tries, then.arrived, then.tries) == (2, 0, 2)


def refuses(*ids: str, code: int = 422) -> Callable[[Arrival], Reply]:
    """A plan that refuses the events with these ids, alone or as the first ones of a batch, and takes all others."""
    return lambda arrival: status(code) if arrival.headers["remora-event-id"] in ids else OK


@pytest.mark.usefixtures("apart")
async def test_two_refused_records_in_a_quiet_topic(endpoint: HttpEndpoint) -> None:
    """Both are refused for good by what the topic's receiver took before, and another topic's acks are no evidence."""
    good, *bad = make_records(0, 3, keys=3)
    async with receiving(refuses("0.1", "0.2")) as receiver:
        other = replace(target(receiver.url), topic="other")
        async with endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route:
            assert await push_lanes(route, [good]) == {}
            failed = await push_lanes(route, bad)
        async with endpoint.route(SHARD, INCARNATION, other) as route:
            ((_, of_other),) = (await push_lanes(route, bad[:1])).values()

    assert [(type(exc), exc.tries) for _, exc in failed.values()] == [(EntryRefused, 3)] * 2
    assert isinstance(of_other, EndpointMisconfigured)


class SlowPlan:
    """A plan whose answers each take so long, by a clock that does not go on otherwise."""

    def __init__(self, plan: Callable[[Arrival], Reply], answer_s: float) -> None:
        self._plan = plan
        self._answer_s = answer_s
        self.now = 1000.0

    def __call__(self, arrival: Arrival) -> Reply:
        self.now += self._answer_s
        return self._plan(arrival)


async def parked(
    endpoint: HttpEndpoint, to: Target, records: Sequence[Record], plan: SlowPlan, *, quick_retries: bool = True
) -> tuple[list[Record], list[EndpointError]]:
    """Deliver as the engine does until all has arrived or was refused for good; with the failures of the pushes."""
    left, refused, failures = list(records), list[Record](), list[EndpointError]()
    for _ in range(100):
        if not left:
            return refused, failures
        async with endpoint.route(SHARD, INCARNATION, to, quick_retries=quick_retries) as route:
            route._now = lambda: plan.now
            (batch, *_), _ = route.pack(left)
            try:
                await route.push(batch)
                arrived = len(batch.records)
            except EndpointError as exc:
                failures.append(exc)
                arrived = exc.arrived
                if isinstance(exc, EntryRefused):
                    refused.append(left.pop(arrived))
            left = left[arrived:]
    raise AssertionError(f"{len(left)} records are left after {failures[-3:]}")


async def test_refusals_count_over_all_pushes(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a push has time for one or two answers, a record is refused for good with its third all the same, and each
    of them is told as an attempt."""
    monkeypatch.setattr("remora.endpoints.http.endpoint.POISON_APART_S", 0.05)
    records = make_records(0, 5, keys=1)
    for answer_s in (15.0, 25.0):
        plan = SlowPlan(refuses("0.2"), answer_s)
        async with HttpEndpoint(Settings(http=PATIENT), watcher) as endpoint, receiving(plan) as receiver:
            refused, failures = await parked(endpoint, target(receiver.url), records, plan)

        ids = [each.headers["remora-event-id"] for each in receiver.came]
        assert refused == [records[2]]
        assert ids.count("0.2") == sum(each.tries or 0 for each in failures if each.kind == "refused") == 3
        assert sorted(receiver.bodies) == sorted(each.body for each in records if each is not records[2])


@pytest.mark.parametrize("kind", ["records", "ndjson"])
async def test_a_batch_is_halved_over_all_pushes(watcher: Watcher, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Where a push has time for one answer, the refused record of a batch is found; all others arrive once."""
    monkeypatch.setattr("remora.endpoints.http.endpoint.POISON_APART_S", 0.0)
    records = [each._replace(body=b'{"Records":[%b]}' % each.event_id) for each in make_records(0, 40, keys=1)]

    plan = SlowPlan(lambda arrival: status(400) if b"0.27" in arrival.body else OK, 25.0)

    async with HttpEndpoint(Settings(http=PATIENT), watcher) as endpoint, receiving(plan) as receiver:
        to = target(receiver.url, f"remora-batch={kind}")
        refused, failures = await parked(endpoint, to, records, plan)

    numbers = [int(each) for body in receiver.bodies for each in re.findall(rb"0\.(\d+)", body)]
    assert refused == [records[27]]
    assert numbers == [each for each in range(40) if each != 27]
    assert sum(each.tries or 0 for each in failures) == 3


async def test_each_refusal_is_a_push_where_attempts_are_the_caller_s(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where attempts are limited, or have a pace, a refusal ends its push, and the third push refuses for good."""
    monkeypatch.setattr("remora.endpoints.http.endpoint.POISON_APART_S", 0.0)
    records, plan = make_records(0, 3, keys=1), SlowPlan(refuses("0.1"), 0.0)
    async with HttpEndpoint(Settings(http=PATIENT), watcher) as endpoint, receiving(plan) as receiver:
        refused, failures = await parked(endpoint, target(receiver.url), records, plan, quick_retries=False)

    assert refused == [records[1]]
    assert [(type(each), each.tries, each.kind) for each in failures] == [
        (EndpointUnavailable, 1, "refused"),
        (EndpointUnavailable, 1, "refused"),
        (EntryRefused, 1, "refused"),
    ]


@pytest.mark.usefixtures("apart")
async def test_a_receiver_that_refuses_everything(endpoint: HttpEndpoint) -> None:
    """Where nothing is acknowledged meanwhile, refusals stop the topic and make no dead letter."""
    async with (
        receiving(lambda _: status(400)) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route,
    ):
        failed = await push_lanes(route, make_records(0, 50, keys=5))

    assert not any(isinstance(exc, EntryRefused) for _, exc in failed.values())
    assert any(
        isinstance(exc, EndpointMisconfigured) and "everything with 400" in str(exc) for _, exc in failed.values()
    )


# ---------------------------------------------------------------------------------------- connections


async def test_a_connection_that_was_closed_while_idle(endpoint: HttpEndpoint) -> None:
    """A receiver that closes idle connections costs no failure, and each record arrives once."""
    records = make_records(0, 20, keys=1)
    async with receiving() as receiver, endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route:
        for record in records:
            assert await push_lanes(route, [record]) == {}
            receiver.hang_up()

    assert receiver.bodies == [each.body for each in records]


@pytest.mark.parametrize("raw", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nServer: BaseHTTP/0.6\r\n\r\nthanks"])
async def test_receivers_of_http_1_0(endpoint: HttpEndpoint, raw: bytes) -> None:
    """An answer without length, which ends with its connection, is an acknowledgement: Ceph's own tests answer so."""
    records = make_records(0, 40)
    async with receiving(lambda _: Reply(raw, ends=True)) as receiver:
        failures = await send(endpoint, target(receiver.url), records)

    assert failures == []
    assert sorted(receiver.bodies) == sorted(each.body for each in records)
    assert receiver.connections == 40


async def test_connections_are_bounded(watcher: Watcher) -> None:
    """However many lanes and shards post to a receiver, it sees no more connections than the settings allow."""
    records = make_records(0, 300, keys=300)
    async with (
        HttpEndpoint(Settings(http=HttpSettings(connections=4)), watcher) as endpoint,
        receiving() as receiver,
    ):
        await asyncio.gather(*(send(endpoint, target(receiver.url), records) for _ in range(3)))

    assert len(receiver.bodies) == 900
    assert receiver.most_open <= 4


async def test_who_shares_connections(endpoint: HttpEndpoint) -> None:
    """Equal targets share a connection, also over different paths; another password has one of its own."""
    async with receiving() as receiver:
        for user, path in (("a:b@", "/x"), ("a:b@", "/y"), ("a:c@", "/x"), ("", "/x")):
            url = receiver.url.replace("http://", f"http://{user}") + path
            assert await send(endpoint, target(url), make_records(0, 1)) == []

    assert [each.connection for each in receiver.came] == [0, 0, 1, 2]


async def test_a_refused_port_and_an_unknown_name(endpoint: HttpEndpoint) -> None:
    """Nothing listens, or no such name: transient, and from the second try on one connection finds out, not sixty."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        for url in (f"http://127.0.0.1:{bound.getsockname()[1]}", "http://no-such-host.invalid"):
            async with endpoint.route(SHARD, INCARNATION, target(url)) as route:
                failed = await push_lanes(route, make_records(0, 100))
                assert {type(exc) for _, exc in failed.values()} == {EndpointUnavailable}
                assert {exc.arrived for _, exc in failed.values()} == {0}
            with pytest.raises(EndpointUnavailable):
                async with endpoint.route(SHARD, INCARNATION, target(url)):
                    pass
            assert await endpoint.up(target(url)) == frozenset()


async def test_what_is_up(endpoint: HttpEndpoint) -> None:
    """A receiver whose port opens is up; the look posts nothing."""
    async with receiving() as receiver:
        assert await endpoint.up(target(receiver.url)) == {receiver.url}

    assert receiver.came == []


async def test_a_mute_receiver_ends_in_time(watcher: Watcher) -> None:
    """A receiver that never answers fails every lane once, within the time of one request, and closing takes none."""
    async with (
        hanging_endpoint() as hanging,
        asyncio.timeout(20),
        HttpEndpoint(Settings(http=QUICK), watcher) as endpoint,
        endpoint.route(SHARD, INCARNATION, target(f"http://{hanging.address}")) as route,
    ):
        failed = await push_lanes(route, make_records(0, 200))

    assert all("127.0.0.1" in str(exc) for _, exc in failed.values())
    assert len(failed) == len({each.lane for each in route.pack(make_records(0, 200))[0]})


async def test_keys_are_divided_anew_once_a_receiver_proves_quick_or_slow() -> None:
    """A route is stale then, if a backlog waits: keys of a quick receiver have as many lanes as may be under way, those
    of a slow one far more, and these need no new route to get more under way."""
    backlog, now, seen = make_records(0, 5000, keys=5000), 0.0, []

    def clock() -> float:
        return now

    async with HttpEndpoint(Settings()) as endpoint:
        for seconds in (0.001, 0.5, 0.5):
            async with endpoint.route(SHARD, INCARNATION, target("http://127.0.0.1:1")) as route:
                route._now = clock
                lanes = len({each.lane for each in route.pack(backlog)[0]})
                assert not route.stale
                now += seconds + 1e-6
                route._receiver.steps.begun(64)
                for _ in range(64):
                    route._acked(1, seconds)
                seen.append((lanes > 64, route.stale, route.width))
                route.pack(backlog[:10])
                assert not route.stale  # without a backlog

    assert seen == [(True, True, 64), (False, True, 64), (True, False, 256)]


async def test_large_bodies(endpoint: HttpEndpoint) -> None:
    """A record of ten megabytes arrives whole."""
    record = make_records(0, 1, size=10_000_000)
    async with receiving() as receiver:
        assert await send(endpoint, target(receiver.url), record) == []

    assert receiver.bodies == [record[0].body]


# ------------------------------------------------------------------------------------------- safety


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "127.1", "2130706433", "0x7f.1", "0", "[::]"],
)
async def test_topics_of_s3_users_reach_no_loopback(endpoint: HttpEndpoint, host: str) -> None:
    """By default a topic of radosgw's cannot post to this host, whatever it is called; nothing is connected to."""
    async with receiving() as receiver:
        to = target(f"http://{host}:{receiver.port}")
        async with endpoint.route(Shard("shard"), INCARNATION, to) as route:
            failed = await push_lanes(route, make_records(0, 3))
        assert await endpoint.up(to) == frozenset()

    assert {type(exc) for _, exc in failed.values()} == {EndpointDenied}
    assert all("destinations.deny" in str(exc) for _, exc in failed.values())
    assert receiver.connections == 0


@pytest.mark.parametrize("later", [["127.0.0.2"], ["127.0.0.1", "127.0.0.2"]])
async def test_a_name_that_means_another_address_later(monkeypatch: pytest.MonkeyPatch, later: list[str]) -> None:
    """A name is judged at each new connection, by every address that it has then: nothing is connected to one of them
    where another one is denied."""
    meanings, real = [["127.0.0.1"], later], socket.getaddrinfo

    def rebind(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "rebinds.example":
            return real(host, port, *args, **kwargs)
        now = meanings.pop(0) if len(meanings) > 1 else meanings[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in now]

    monkeypatch.setattr(socket, "getaddrinfo", rebind)
    settings = Settings(destinations=DestinationsSettings(deny=("127.0.0.2/32",)))
    async with receiving() as receiver, HttpEndpoint(settings) as endpoint:
        to = target(f"http://rebinds.example:{receiver.port}")
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            assert await push_lanes(route, make_records(0, 1)) == {}
            receiver.hang_up()
            await until(lambda: receiver.open == 0, "the connection ends")
            failed = await push_lanes(route, make_records(1, 1))

    ((_, exc),) = failed.values()
    assert isinstance(exc, EndpointDenied)
    assert "127.0.0" not in str(exc).replace("127.0.0.2/32", "")
    assert receiver.connections == 1


async def test_the_daemon_does_not_post_to_itself() -> None:
    """The daemon's own port is denied to every topic, whatever the lists allow."""
    async with receiving() as receiver:
        settings = Settings(
            admin=AdminSettings(listen=f"127.0.0.1:{receiver.port}"),
            destinations=DestinationsSettings(deny=(), allow=("*",)),
        )
        async with (
            HttpEndpoint(settings) as endpoint,
            endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route,
        ):
            failed = await push_lanes(route, make_records(0, 3))

    assert {str(exc) for _, exc in failed.values()} >= {"the endpoint is this daemon itself"}
    assert receiver.connections == 0


async def test_named_credentials(tmp_path: Path) -> None:
    """A named credential is sent to its hosts, and stands in no message; a topic cannot name one for another host."""
    (tmp_path / "hooks").write_text('hosts = ["127.0.0.1"]\nbearer = "tok3n"\n')
    (tmp_path / "other").write_text('hosts = ["hooks.example.com"]\nbearer = "tok3n"\n')
    settings = Settings(credentials=CredentialsSettings(directory=str(tmp_path)))
    async with HttpEndpoint(settings) as endpoint, receiving() as receiver:
        await send(endpoint, target(receiver.url, "remora-credential=hooks"), make_records(0, 1))
        with pytest.raises(EndpointMisconfigured, match="not among its hosts") as caught:
            async with endpoint.route(SHARD, INCARNATION, target(receiver.url, "remora-credential=other")):
                pass

    assert [each.headers["authorization"] for each in receiver.taken] == ["Bearer tok3n"]
    assert "tok3n" not in str(caught.value)


async def test_a_proxy_is_remarked_on(endpoint: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that radosgw would use is not, and a topic's remarks say so; one for another scheme means nothing."""
    for names in PROXIES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    before = endpoint.check(target("https://receiver"))
    monkeypatch.setenv("https_proxy", "http://proxy:3128")

    assert before == endpoint.check(target("http://receiver")) == []
    (remark,) = endpoint.check(target("https://receiver"))
    assert "the environment's proxy is not used" in remark


# --------------------------------------------------------------------------------------------- nginx


@pytest.mark.parametrize("path", ["/ok", "/page", "/once"])
async def test_nginx_takes_everything(endpoint: HttpEndpoint, tmp_path: Path, path: str) -> None:
    """nginx answers each record once, over connections that stay open, or each over one of its own if it says so."""
    async with nginx(tmp_path) as server:
        failures = await send(endpoint, target(server.url + path), make_records(0, 200))
        await until(lambda: len(server.answers()) >= 200, "each is in nginx's log, some after their connection's end")

    answers = server.answers()
    assert failures == []
    assert len(answers) == 200
    assert {code for _, code, _ in answers} <= {200, 204}
    connections = len({connection for *_, connection in answers})
    assert connections == 200 if path == "/once" else connections <= 20


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("/dead", EndpointUnavailable, "502"),
        ("/few", EndpointUnavailable, "429"),
        ("/elsewhere", EndpointMisconfigured, "301"),
        ("/gone", EndpointMisconfigured, "410"),
        ("/large", EndpointMisconfigured, "everything with 413"),
    ],
)
@pytest.mark.usefixtures("apart")
async def test_what_nginx_refuses(
    endpoint: HttpEndpoint, tmp_path: Path, path: str, error: type[EndpointError], text: str
) -> None:
    """nginx's own refusals are what the table says."""
    async with nginx(tmp_path) as server, endpoint.route(SHARD, INCARNATION, target(server.url + path)) as route:
        failed = await push_lanes(route, make_records(0, 2, keys=1, size=300))

    ((_, exc),) = failed.values()
    assert isinstance(exc, error)
    assert text in str(exc)


async def test_a_port_that_speaks_no_tls(endpoint: HttpEndpoint, tmp_path: Path) -> None:
    """https to a port without TLS is a configuration error."""
    async with nginx(tmp_path) as server:
        url = server.url.replace("http://", "https://")
        async with endpoint.route(SHARD, INCARNATION, target(url)) as route:
            failed = await push_lanes(route, make_records(0, 1))

    ((_, exc),) = failed.values()
    assert isinstance(exc, EndpointMisconfigured)
    assert "speaks no TLS" in str(exc)


async def test_a_port_that_only_speaks_tls(endpoint: HttpEndpoint) -> None:
    """http to a port that answers with an alert of TLS is a configuration error."""
    alert = Reply(b"\x15\x03\x01\x00\x02\x02\x46", ends=True, counts=False)
    async with (
        receiving(lambda _: alert) as receiver,
        endpoint.route(SHARD, INCARNATION, target(receiver.url)) as route,
    ):
        failed = await push_lanes(route, make_records(0, 1))

    ((_, exc),) = failed.values()
    assert isinstance(exc, EndpointMisconfigured)
    assert "only speaks TLS" in str(exc)


async def test_tls(tmp_path: Path) -> None:
    """A certificate is checked against the topic's authorities; one that is not trusted is a configuration error."""
    pair = certificate(tmp_path / "c", "localhost")
    directives = f"ssl_certificate {pair.certificate}; ssl_certificate_key {pair.key};"
    settings = Settings(kafka=KafkaSettings(ca_directories=str(tmp_path)))
    async with nginx(tmp_path, directives, tls=True) as server, HttpEndpoint(settings) as endpoint:
        trusted = target(server.url + "/ok", f"ca-location={pair.certificate}")
        assert await send(endpoint, trusted, make_records(0, 20)) == []
        assert await send(endpoint, target(server.url + "/ok", "verify-ssl=false"), make_records(0, 5)) == []
        async with endpoint.route(SHARD, INCARNATION, target(server.url + "/ok")) as route:
            failed = await push_lanes(route, make_records(0, 1))

    ((_, exc),) = failed.values()
    assert isinstance(exc, EndpointMisconfigured)
    assert "not trusted" in str(exc)
    assert len(server.answers()) == 25


async def test_client_certificates(tmp_path: Path) -> None:
    """A client's certificate is shown where the topic names one, and only files that the operator allows are read."""
    pair, client = certificate(tmp_path / "c", "localhost"), certificate(tmp_path / "clients", "client")
    directives = f"ssl_certificate {pair.certificate}; ssl_certificate_key {pair.key};"
    directives += f"ssl_client_certificate {client.certificate}; ssl_verify_client on;"
    settings = Settings(
        kafka=KafkaSettings(ca_directories=str(tmp_path), client_files=str(tmp_path / "clients")),
    )
    shown = (
        f"ca-location={pair.certificate}&ssl-certificate-location={client.certificate}&ssl-key-location={client.key}"
    )
    async with nginx(tmp_path, directives, tls=True) as server, HttpEndpoint(settings) as endpoint:
        assert await send(endpoint, target(server.url + "/ok", shown), make_records(0, 5)) == []
        with pytest.raises(EndpointMisconfigured, match="client_files"):
            async with endpoint.route(
                SHARD, INCARNATION, target(server.url, shown.replace(str(client.key), str(pair.key)))
            ):
                pass

    assert [code for _, code, _ in server.answers()] == [204] * 5
