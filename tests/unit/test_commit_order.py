"""The merge of a topic's partitions into the order of commits."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from devkit.waits import PATIENT_S
from remora.client import BadHeader, Checkpoint, CommitOrder, CommitOrderReader, IngestClient, SequenceEnded
from unit.test_client import Reply, serving

PARTITIONS = 3


class Place(NamedTuple):
    """A partition, as a consumer names it."""

    topic: str
    partition: int


@dataclass(frozen=True)
class Found:
    """A record as a consumer returns it."""

    offset: int
    number: int
    headers: tuple[tuple[str, bytes], ...]


def found(offset: int, number: int, topic_id: str = "t1") -> Found:
    return Found(offset, number, (("remora-pos", b"x"), ("remora-seq", b"%b:%d" % (topic_id.encode(), number))))


@dataclass
class Log:
    """What one partition holds, in order; the numbers of a shard increase, those of several shards are mixed."""

    records: list[Found] = field(default_factory=list)

    def append(self, number: int) -> None:
        self.records.append(found(len(self.records), number))


logs = st.lists(
    st.tuples(st.integers(1, 25), st.integers(0, PARTITIONS - 1)), min_size=1, max_size=60
)  # numbers that arrive, again and again, in any order and partition; what is left out never comes


@given(logs, st.data())
def test_all_that_came_goes_on_once_in_order(arrivals: list[tuple[int, int]], data: st.DataObject) -> None:
    """However records arrive, over and over, with a stop and a new begin at any moment: each number goes on once and in
    order, none before those that come yet, and all by the time that everything has come."""
    order = CommitOrder[int]("t1")
    kept: defaultdict[int, Log] = defaultdict(Log)
    read = dict.fromkeys(range(PARTITIONS), 0)
    out: list[int] = []
    to_come = [number for number, _ in arrivals]

    for number, partition in arrivals:
        kept[partition].append(number)
        to_come.pop(0)
        if data.draw(st.booleans()):
            continue  # nothing is read yet
        for each in range(PARTITIONS):
            for record in kept[each].records[read[each] :]:
                order.add(each, record.offset, record.headers[1][1], record.number)
            read[each] = len(kept[each].records)
        delivered = min(set(to_come) - {n for n, _ in arrivals[: len(arrivals) - len(to_come)]}, default=26) - 1
        waiting = order.pass_to(delivered) if data.draw(st.booleans()) else order.follow()
        for number_, record_ in some_of(waiting, data):
            assert number_ == record_
            out.append(number_)
        if data.draw(st.booleans()):
            checkpoint = order.checkpoint()
            order = CommitOrder[int]("t1", checkpoint)
            read = {each: checkpoint.offsets.get(each, 0) for each in range(PARTITIONS)}
    for each in range(PARTITIONS):
        for record in kept[each].records[read[each] :]:
            order.add(each, record.offset, record.headers[1][1], record.number)
    out += [number for number, _ in order.pass_to(25)]

    assert out == sorted({number for number, _ in arrivals})
    assert (order.held, order.upto) == (0, 25)


def some_of(items: Iterator[tuple[int, int]], data: st.DataObject) -> Iterator[tuple[int, int]]:
    """All of them, or the first ones, as a consumer that stops in between takes."""
    for each in items:
        yield each
        if data.draw(st.booleans()):
            return


@given(logs.map(lambda found: list({number: (number, at) for number, at in found}.values())), st.data())
def test_a_checkpoint_is_the_least_of_what_waits(arrivals: list[tuple[int, int]], data: st.DataObject) -> None:
    """Each partition goes on at its least record that was read and has not gone on, or behind the last one.
    Without copies, which wait like others until it is their number's turn."""
    order = CommitOrder[Place]("t1")
    ends: dict[int, int] = {}
    waiting: list[tuple[int, int, int]] = []

    for number, partition in arrivals:
        offset = ends.get(partition, 0) + data.draw(st.integers(0, 3))  # an end mark of a transaction has an offset too
        ends[partition] = offset + 1
        order.add(partition, offset, b"t1:%d" % number, Place("", partition))
        waiting.append((number, partition, offset))
        letting_go = order.pass_to(data.draw(st.integers(0, 25))) if data.draw(st.booleans()) else order.follow()
        for _ in letting_go:
            if data.draw(st.booleans()):
                break
        waiting = [each for each in waiting if each[0] > order.upto]
        starts = {at: min([offset for _, p, offset in waiting if p == at], default=end) for at, end in ends.items()}

        assert order.checkpoint() == Checkpoint(order.upto, starts)


def test_a_checkpoint_after_each_event_of_a_long_wait() -> None:
    """Two hundred thousand events wait for one; each of them has its checkpoint when it goes on at last."""
    count = 200_000
    order = CommitOrder[int]("t1")
    for number in range(2, count):
        order.add(number % PARTITIONS, number, b"t1:%d" % number, number)
    order.add(0, count, b"t1:1", 1)

    for number, _ in order.follow():
        if number < count - PARTITIONS:
            assert min(order.checkpoint().offsets.values()) == number + 1

    assert order.checkpoint() == Checkpoint(count - 1, {0: count + 1, 1: count, 2: count - 2})


@pytest.mark.parametrize("number", [b"", b"one", b"+2", b"1_0", b" 2", b"-2", b"1" * 5000])
def test_a_header_without_a_number_is_refused(number: bytes) -> None:
    """With the header's name, and nothing of its record is taken: the checkpoint is in front of it."""
    order: CommitOrder[str] = CommitOrder("t1")
    order.add(0, 7, b"t1:1", "first")

    with pytest.raises(BadHeader, match=r"remora-seq is 't1:.*', not <topic id>:<number>"):
        order.add(0, 8, b"t1:" + number, "odd")

    assert [record for _, record in order.follow()] == ["first"]
    assert order.checkpoint() == Checkpoint(1, {0: 8})


def test_a_hole_holds_up_what_is_behind_it() -> None:
    """Until it is filled, or known never to be; records of another topic's id and without a number are passed over."""
    order = CommitOrder[str]("t1")
    order.add(0, 0, b"t1:2", "two")
    order.add(1, 5, b"t0:1", "another topic")
    order.add(1, 6, None, "no number")
    before = list(order.follow())
    order.add(2, 7, b"t1:4", "four")

    assert (before, order.held) == ([], 2)
    assert list(order.pass_to(1)) == [(2, "two")]
    assert order.checkpoint() == Checkpoint(2, {0: 1, 1: 7, 2: 7})
    order.add(1, 7, b"t1:3", "three")
    assert list(order.follow()) == [(3, "three"), (4, "four")]


# ------------------------------------------------------------------------------------------------ the reader


@dataclass
class ScriptedConsumer:
    """Returns what its partitions hold, as much as may be read of each."""

    logs: dict[int, Log]
    readable: dict[int, int]
    positions: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    idle: int = 0

    def assignment(self) -> frozenset[Place]:
        return frozenset(Place("k", each) for each in range(PARTITIONS))

    def assign(self, partitions: Any, /) -> None:
        raise AssertionError("a reader assigns nothing")

    def seek(self, partition: Place, offset: int, /) -> None:
        self.positions[partition.partition] = offset

    async def getmany(self, *partitions: Any, timeout_ms: int) -> Mapping[Place, Sequence[Found]]:
        await asyncio.sleep(0)
        batches = {}
        for each, log in self.logs.items():
            if records := log.records[self.positions[each] : self.readable[each]]:
                batches[Place("k", each)] = records
                self.positions[each] += len(records)
        self.idle += not batches
        return batches

    async def position(self, partition: Place, /) -> int:
        return self.positions[partition.partition]

    async def end_offsets(self, partitions: Any, /) -> Mapping[Place, int]:
        return {each: len(self.logs[each.partition].records) for each in partitions}


def telling(*answers: tuple[str, int]) -> list[Reply]:
    """Answers of a server: the topic's id, and up to which number all has been delivered."""

    def says(topic_id: str, delivered: int) -> Reply:
        body = msgspec.json.encode({"topic": "t", "id": topic_id, "tail": 99, "delivered": delivered})
        return lambda _: web.Response(body=body, content_type="application/json")

    return [says(*each) for each in answers]


@pytest.fixture
def consumer() -> ScriptedConsumer:
    """Three partitions, with all numbers from 1 to 8 but 3 and 8; all may be read but the last record of the third."""
    logs = {each: Log() for each in range(PARTITIONS)}
    for number, partition in ((4, 0), (1, 1), (2, 0), (2, 0), (6, 1), (5, 2), (7, 2)):
        logs[partition].append(number)
    return ScriptedConsumer(logs, {0: 3, 1: 2, 2: 1})


async def read(reader: CommitOrderReader, count: int) -> list[int]:
    """The first numbers that it gives; each with its own record."""
    numbers = []
    async with aclosing(reader.__aiter__()) as records, asyncio.timeout(PATIENT_S):  # type: ignore[type-var]  # a generator
        async for number, record in records:
            assert record.number == number
            numbers.append(number)
            if len(numbers) == count:
                break
    return numbers


async def test_a_reader_passes_a_hole_when_all_partitions_are_read(tmp_path: Path, consumer: ScriptedConsumer) -> None:
    """What is known to be delivered may lie behind what was read: a hole is passed only when every partition was read
    to the end that it had since."""
    answers = telling(("t1", 0), ("t1", 2), ("t1", 8))
    async with serving(tmp_path, *answers) as server, IngestClient(server.address) as client:
        reader = CommitOrderReader(client, "t", consumer, ask_s=0.001)
        reading = asyncio.create_task(read(reader, 6))
        async with asyncio.timeout(PATIENT_S):
            while len(server.asked) < 3 or consumer.idle < 5:  # noqa: ASYNC110 - rounds of the loop are awaited
                await asyncio.sleep(0)
        assert reader.order.upto == 2, "4 went on before 7 could be read, as 3 might have been"
        consumer.readable[2] = 2

        assert await reading == [1, 2, 4, 5, 6, 7]


async def test_a_reader_goes_on_from_a_checkpoint(tmp_path: Path, consumer: ScriptedConsumer) -> None:
    """Behind the last event that was taken, wherever a reader stopped; nothing is missing and nothing comes twice."""
    consumer.readable = dict.fromkeys(range(PARTITIONS), 9)
    async with serving(tmp_path, *telling(("t1", 8))) as server, IngestClient(server.address) as client:
        for count in range(1, 6):
            first = CommitOrderReader(client, "t", consumer, ask_s=0.001)
            consumer.positions = dict.fromkeys(range(PARTITIONS), 0)
            before = await read(first, count)
            consumer.positions = dict.fromkeys(range(PARTITIONS), 9)
            second = CommitOrderReader(client, "t", consumer, checkpoint=first.order.checkpoint(), ask_s=0.001)

            assert before + await read(second, 6 - count) == [1, 2, 4, 5, 6, 7]


async def test_a_topic_that_was_made_anew_ends_the_reading(tmp_path: Path, consumer: ScriptedConsumer) -> None:
    """Its numbers begin at 1 again, and are none of those that were read."""
    async with serving(tmp_path, *telling(("t1", 0), ("t2", 0))) as server, IngestClient(server.address) as client:
        with pytest.raises(SequenceEnded, match="made anew"):
            await read(CommitOrderReader(client, "t", consumer, ask_s=0.001), 6)
