"""Routes in transactions against a real broker: what becomes visible, what the position says, who is fenced."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from devkit.clusters.kafka import Kafka, create_topic, limit_topic, read_committed, settled
from devkit.entries.entries import raw_entry
from devkit.processes.processes import state
from devkit.processes.programs import ENVIRONMENT
from devkit.waits import PATIENT_S, until
from remora.endpoints.kafka import ExactKafkaRoute, KafkaEndpoint
from remora.endpoints.kafka.exact import mark_of, position_of, producer_name
from remora.endpoints.kafka.transactions import Mark, TransactionalProducer
from remora.model.errors import EndpointFenced, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import DeadLetter, Record
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.endpoint import ExactRoute
from support.kafka_sender import INCARNATION, PATIENT, Watcher, make_records, target, verdict

pytestmark = [pytest.mark.kafka, pytest.mark.guarantee("exactly-once")]


def of_this_process(name: str) -> Shard:
    """A shard whose transactions are this process's: others may share the broker, and would fence it."""
    return Shard(f"{name}-{os.getpid()}")


SHARD = of_this_process("tenant:shard")


async def make_topic(kafka: Kafka, partitions: int = 3, **configs: Any) -> str:
    """A topic whose leaders take records; the probes that show it have no headers.

    A leader takes a moment to know that it is one, and a transaction is not repeated for that.
    """
    topic = await create_topic(kafka.address, partitions=partitions, **configs)
    probe = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await probe.start()
    try:
        for partition in range(partitions):
            await probe.send_and_wait(topic, b"probe", partition=partition)
    finally:
        await probe.stop()
    return topic


async def commit(route: ExactRoute, records: list[Record], letters: list[DeadLetter] | None = None) -> None:
    """Pack and commit at once; nothing may be refused."""
    batches, refused = route.pack(records)
    assert refused == []
    await route.commit(batches, records[-1].next_position, letters or [])


async def committed(kafka: Kafka, topic: str) -> list[Any]:
    """What a reader of committed records finds."""
    return await read_committed(kafka.address, topic)


def dead_letter(at: int, raw: bytes = b"junk") -> DeadLetter:
    return DeadLetter(SHARD.queue, INCARNATION, f"0/{at}", f"0/{at + 1}", "undecodable", "why", 0, 1.0, 2.0, raw)


def test_is_a_route() -> None:
    """The class fits the port."""
    route: type[ExactRoute] = ExactKafkaRoute

    assert route


async def test_committed(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """What was committed is read once, in order, and the next route of the shard knows the position."""
    topic = await make_topic(kafka)
    records = make_records(0, 3000)

    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        first = route.reached
        for at in range(0, 3000, 1000):
            await commit(route, records[at : at + 1000])
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        again = route.reached

    assert (first, again) == (None, b"0/3000")
    assert verdict(await committed(kafka, topic), records) == (set(), 0, [])
    assert watcher.outcomes == ["committed"] * 3


async def test_many_batches_of_a_partition(kafka: Kafka) -> None:
    """Batches of one partition that travel without waiting for each other arrive in their order."""
    topic = await make_topic(kafka, 2)
    records = make_records(0, 2000, keys=3)

    async with (
        KafkaEndpoint(replace(PATIENT, max_batch_bytes=2048)) as endpoint,
        endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route,
    ):
        await commit(route, records)

    assert verdict(await committed(kafka, topic), records) == (set(), 0, [])


async def test_position_alone(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A transaction may hold nothing but the position."""
    topic = await make_topic(kafka)

    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        await route.commit([], b"3/77")
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        assert route.reached == b"3/77"


async def test_shards_and_incarnations_are_apart(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A position counts for one shard, one incarnation and one Kafka topic, and nobody fences those of others."""
    topic, other = [await make_topic(kafka) for _ in range(2)]
    here = target(kafka, topic)

    async with endpoint.exact(SHARD, INCARNATION, here) as route:
        await route.commit([], b"0/5")
        for shard, incarnation, where in (
            (Shard("tenant:shard.1"), INCARNATION, here),
            (SHARD, "another", here),
            (SHARD, INCARNATION + "x", target(kafka, other)),
        ):
            async with endpoint.exact(shard, incarnation, where) as theirs:
                assert theirs.reached is None
                await theirs.commit([], b"0/1")
        await route.commit([], b"0/6")
    async with endpoint.exact(SHARD, INCARNATION, here) as route:
        assert route.reached == b"0/6"


# ------------------------------------------------------------------------------------------- fencing


async def test_fenced(kafka: Kafka, watcher: Watcher) -> None:
    """A producer that enters later fences the earlier one, whose next commit is refused and stays invisible."""
    topic = await make_topic(kafka)
    old, new = make_records(0, 100), make_records(0, 100, start=100)
    async with (
        KafkaEndpoint(PATIENT, watcher) as one,
        KafkaEndpoint(PATIENT) as two,
        one.exact(SHARD, INCARNATION, target(kafka, topic)) as first,
    ):
        await commit(first, old)
        async with two.exact(SHARD, INCARNATION, target(kafka, topic)) as second:
            assert second.reached == b"0/100"
            with pytest.raises(EndpointFenced, match="another producer of this queue"):
                await commit(first, new)
            with pytest.raises(EndpointUnavailable, match="failed before"):
                await commit(first, new)
            await commit(second, new)

    assert verdict(await committed(kafka, topic), old + new) == (set(), 0, [])
    assert watcher.outcomes == ["committed", "fenced"]


class Gate:
    """Holds a route's next transaction when all of it was sent, just before its end."""

    def __init__(self, route: ExactKafkaRoute, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()
        self._end = route._opened.producer._end
        monkeypatch.setattr(route._opened.producer, "_end", self._pass)

    async def _pass(self) -> None:
        self.arrived.set()
        await self.opened.wait()
        await self._end()


async def test_open_transaction_is_aborted(
    kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entering aborts what an earlier route had sent and not committed; its late commit is refused."""
    topic = await make_topic(kafka)
    records = make_records(0, 200)
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as first:
        gate = Gate(first, monkeypatch)
        late = asyncio.create_task(commit(first, records))
        await gate.arrived.wait()
        assert not await settled(kafka.address, topic, timeout_s=0)
        async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as second:
            assert second.reached is None
            gate.opened.set()
            with pytest.raises(EndpointFenced):
                await late
            await commit(second, records[:100])

    assert verdict(await committed(kafka, topic), records[:100]) == (set(), 0, [])
    assert sorted(watcher.outcomes) == ["committed", "fenced"]


async def test_frozen_process(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A process frozen between its last batch and its commit makes nothing visible when it is thawed too late."""
    topic = await make_topic(kafka)
    frozen = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.kafka_exact_victim", kafka.address, topic, SHARD.queue),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
    )
    try:
        await until(lambda: state(frozen.pid) == "T", "the process has frozen", within_s=2 * PATIENT_S)
        async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
            assert route.reached is None
            frozen.send_signal(signal.SIGCONT)
            async with asyncio.timeout(3 * PATIENT_S):
                told, _ = await frozen.communicate()
            await commit(route, make_records(0, 10))
    finally:
        if frozen.returncode is None:
            frozen.kill()
            await frozen.communicate()

    assert told == b"EndpointFenced\n"
    assert verdict(await committed(kafka, topic), make_records(0, 10)) == (set(), 0, [])


# ---------------------------------------------------------------------------------------- the position


async def test_position_waits_for_the_end_of_a_transaction(
    kafka: Kafka, endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a transaction that moves the position has not ended everywhere, nobody is told the one from before."""
    topic = await make_topic(kafka)
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        await route.commit([], b"0/1")
        gate = Gate(route, monkeypatch)
        moving = asyncio.create_task(route.commit([], b"0/2"))
        await gate.arrived.wait()
        opened = route._opened
        reader = TransactionalProducer(
            opened.client,
            producer_name(SHARD.queue, INCARNATION),
            TopicPartition(topic, 0),
            endpoint._tasks,
            request_timeout_s=30,
            transaction_timeout_s=30,
        )
        asked, ask = Counter[str](), reader._ask

        async def count(node: int, request: Any) -> Any:
            asked[type(request).__name__] += 1
            return await ask(node, request)

        monkeypatch.setattr(reader, "_ask", count)
        reading = asyncio.create_task(reader.read_mark())
        await until(lambda: asked["StableOffsetFetch"] >= 4 or reading.done(), "the position is asked for repeatedly")
        assert not reading.done()
        gate.opened.set()
        await moving

        assert position_of(await reading, INCARNATION) == b"0/2"


async def test_position_right_after_a_commit(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A producer that enters as soon as a commit was answered knows its position, each time."""
    topic = await make_topic(kafka, 8)

    for number in range(10):
        records = make_records(0, 50, start=50 * number)
        async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
            assert route.reached == (None if not number else b"0/%d" % (50 * number))
            await commit(route, records)

    assert verdict(await committed(kafka, topic), make_records(0, 500)) == (set(), 0, [])


async def test_answer_lost(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """When the connection breaks between a transaction's end and the answer, the next route tells what happened."""
    topic = await make_topic(kafka)
    records, at = make_records(0, 600), 0
    for lost in (True, True, True, False, False, False):
        async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
            at = _number(route.reached)
            if lost:
                _lose_answer_to_end(route)
                with pytest.raises(EndpointUnavailable):
                    await commit(route, records[at : at + 100])
            else:
                await commit(route, records[at : at + 100])
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        at = _number(route.reached)

    assert watcher.outcomes == ["unknown"] * 3 + ["committed"] * 3
    assert at >= 300
    assert verdict(await committed(kafka, topic), records[:at]) == (set(), 0, [])


def _number(reached: bytes | None) -> int:
    return 0 if reached is None else int(reached.partition(b"/")[2])


def _lose_answer_to_end(route: ExactKafkaRoute) -> None:
    """Have the connection to the coordinator end as soon as the request to commit was written."""
    client = route._opened.client
    send = client.send

    async def send_and_lose(node: int, request: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT) -> Any:
        if isinstance(request, EndTxnRequest):
            asyncio.get_running_loop().call_soon(lambda: client._conns[node, group].close())
        return await send(node, request, group=group)

    client.send = send_and_lose


@pytest.mark.parametrize("text", ["", "inc", "inc ", "inc 5", "inc0/5", "inc 0/5 ", "inc -1/5"])
def test_what_is_no_position(text: str) -> None:
    """What is kept in the place of a position and is none is told, and never taken for none."""
    with pytest.raises(EndpointMisconfigured, match="cannot be read"):
        position_of(Mark(5, text), "inc")


def test_whose_position_counts() -> None:
    """A position of another incarnation is ignored, as is one that was never committed."""
    assert position_of(Mark(5, "other 0/5"), "inc") is None
    assert position_of(mark_of("inc", b"7/5"), "inc") == b"7/5"
    assert position_of(None, "inc") is None


async def test_an_unreadable_position_opens_no_route(endpoint: KafkaEndpoint, kafka: Kafka) -> None:
    """A queue whose committed position was overwritten by another tool gets no route, and the error names its group."""
    topic, group = await make_topic(kafka), producer_name(SHARD.queue, INCARNATION)
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        await commit(route, make_records(0, 10))
    tool = AIOKafkaConsumer(bootstrap_servers=kafka.address, group_id=group, enable_auto_commit=False)
    await tool.start()
    try:
        tool.assign([TopicPartition(topic, 0)])
        await tool.commit({TopicPartition(topic, 0): OffsetAndMetadata(7, "")})
    finally:
        await tool.stop()

    with pytest.raises(EndpointMisconfigured, match=re.escape(group)):
        await endpoint.exact(SHARD, INCARNATION, target(kafka, topic)).__aenter__()


# ------------------------------------------------------------------------------- failures and refusals


async def test_cancelled(
    kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is cancelled makes nothing visible, and no reader has to wait until the broker ends it."""
    topic = await make_topic(kafka, 1)
    records = make_records(0, 100)
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        gate = Gate(route, monkeypatch)
        cancelled = asyncio.create_task(commit(route, records))
        await gate.arrived.wait()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        gate.opened.set()
    await until(lambda: watcher.exact_open == 0, "the route is closed")
    async with endpoint.exact(of_this_process("other"), INCARNATION, target(kafka, topic)) as other:
        await commit(other, make_records(1, 10))

    # Records behind an open transaction would not be visible yet.
    assert verdict(await committed(kafka, topic), make_records(1, 10)) == (set(), 0, [])
    assert watcher.outcomes == ["aborted", "committed"]


async def test_missing_topic(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """A missing topic, of events or of dead letters, is named and not made; nothing is left open."""
    topic = await make_topic(kafka)
    for where, name in (
        (target(kafka, "exact-missing"), "topic exact-missing"),
        (target(kafka, topic, "remora-dead-letter-topic=exact-missing"), "dead-letter topic exact-missing"),
    ):
        with pytest.raises(EndpointMisconfigured, match=f"{name} at .* no such topic"):
            async with endpoint.exact(SHARD, INCARNATION, where):
                pass

    await until(lambda: watcher.exact_open == 0, "all is closed")


async def test_limit_lowered_at_run_time(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A batch above a lowered limit fails its transaction, and smaller ones follow; a record above it is refused."""
    topic = await make_topic(kafka, 1)
    noise = Random(0)
    records = [each._replace(body=b"%d," % each.ordinal + noise.randbytes(3000)) for each in make_records(0, 10)]
    too_large = records[0]._replace(body=Random(1).randbytes(9000))
    async with (
        endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route,
        endpoint.exact(of_this_process("other"), INCARNATION, target(kafka, topic)) as other,
    ):
        await limit_topic(kafka.address, topic, 8000)
        with pytest.raises(EndpointUnavailable, match="it is split"):
            await commit(route, records)
        with pytest.raises(EntryRefused, match="larger than the broker accepts"):
            await commit(other, [too_large])
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        assert route.reached is None
        assert route.pack([too_large])[1][0][0] == too_large
        await commit(route, records)

    assert verdict(await committed(kafka, topic), records) == (set(), 0, [])


# --------------------------------------------------------------------------------------- dead letters


async def test_letters(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """Dead letters become visible with the records and the position, and only with them."""
    topic, dead = await make_topic(kafka), await make_topic(kafka, 1)
    there = target(kafka, topic, f"remora-dead-letter-topic={dead}")
    raw = raw_entry("k", 7, bucket="b")
    async with endpoint.exact(SHARD, INCARNATION, there) as late:
        async with endpoint.exact(SHARD, INCARNATION, there) as route:
            await route.commit(route.pack(make_records(0, 5))[0], b"0/7", [dead_letter(5), dead_letter(6, raw)])
        with pytest.raises(EndpointFenced):
            await late.commit([], b"0/8", [dead_letter(7)])

    read = [(each.key, each.value, dict(each.headers)["remora-pos"]) for each in await committed(kafka, dead)]
    assert sorted(read, key=lambda each: each[2]) == [(None, b"junk", b"inc:0/5"), (b"b/k", raw, b"inc:0/6")]
    assert verdict(await committed(kafka, topic), make_records(0, 5)) == (set(), 0, [])


async def test_letters_go_nowhere_without_a_topic(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """Where the target names no topic for dead letters, a commit only passes over them."""
    topic = await make_topic(kafka)

    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        await route.commit([], b"0/1", [dead_letter(0)])

    assert await committed(kafka, topic) == []


# --------------------------------------------------------------------------------------------- turns


async def test_turns(kafka: Kafka, watcher: Watcher) -> None:
    """No more routes are open than allowed; one that others wait for becomes stale, and they follow in order."""
    topic = await make_topic(kafka)
    entered: list[int] = []
    async with KafkaEndpoint(replace(PATIENT, exact_producers=1), watcher) as endpoint:

        async def deliver(number: int) -> None:
            async with endpoint.exact(of_this_process(f"q.{number}"), INCARNATION, target(kafka, topic)) as route:
                entered.append(number)
                await commit(route, make_records(number, 5))

        async with (
            asyncio.TaskGroup() as waiting,
            endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route,
        ):
            assert not route.stale
            for number in range(4):
                waiting.create_task(deliver(number))
            await until(lambda: route.stale, "the turn is over")
            await commit(route, make_records(9, 5))

    assert entered == [0, 1, 2, 3]
    assert watcher.most_exact_open == 1
    assert watcher.exact_open == 0
    assert len(await committed(kafka, topic)) == 25


async def test_one_destination_does_not_use_up_another(kafka: Kafka) -> None:
    """Places are counted for each destination, also when one of them does not answer at all."""
    topic = await make_topic(kafka)
    silent = socket.create_server(("127.0.0.1", 0))
    async with KafkaEndpoint(replace(PATIENT, exact_producers=1, connect_timeout_s=60)) as endpoint:
        hanging = Target(f"kafka://127.0.0.1:{silent.getsockname()[1]}", "", topic)
        stuck = asyncio.create_task(endpoint.exact(of_this_process("stuck"), INCARNATION, hanging).__aenter__())
        for number in range(2):
            async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
                await commit(route, make_records(0, 5, start=5 * number))
        assert not stuck.done()
        stuck.cancel()
        await asyncio.wait([stuck])
    silent.close()

    assert len(await committed(kafka, topic)) == 10
