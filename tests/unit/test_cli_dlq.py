"""`remora dlq` on an embedded store: what is listed, re-driven and dropped, and what is refused."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from devkit.entries.entries import raw_entry
from devkit.processes.daemon import write_config
from remora import app
from remora.codec.event_entry import decode
from remora.codec.rendering_plain import created_ns
from remora.codec.shard_hash import shard as shard_number
from remora.config import load
from remora.model.exits import Exit
from remora.model.ledger import Tally
from remora.model.record import DeadLetter
from remora.model.shard import LockToken
from remora.ports.store import ShardStore
from support.commands import Run, config, remora
from support.stores import own_topic

__all__ = ["config", "remora"]

T = TypeVar("T")

GARBAGE = b"\x07\x01\x10\x00\x00\x00this is no entry"


class Dlq:
    """`remora dlq` on a store of this test alone, with what a test puts into it."""

    def __init__(self, remora: Run, config: Path) -> None:
        self._remora = remora
        self._config = config

    def __call__(self, *words: str, stdin: bytes = b"") -> Any:
        return self._remora("dlq", *words, "-c", self._config, stdin=stdin)

    def store(self, work: Callable[[ShardStore], Awaitable[T]]) -> T:
        """Do something in the store."""

        async def run() -> T:
            async with app.store_of(load(self._config), make=True) as store:
                return await work(store)

        return asyncio.run(run())

    def topic(self, name: str = "orders", shards: int = 3) -> None:
        """Make a topic."""

        async def work(store: ShardStore) -> None:
            await store.own_topics.create(own_topic(name, shards))

        self.store(work)

    def park(
        self,
        *raws: bytes,
        topic: str = "orders",
        cause: str = "expired",
        age_s: float = 0.0,
        removed: bool = True,
        **more: Any,
    ) -> None:
        """Commit and park entries, each in the queue that its key belongs into, garbage in the first."""

        async def work(store: ShardStore) -> None:
            found = await store.own_topics.find(topic)
            assert found is not None
            for raw in raws:
                number = shard_number(b"bkt:" + decode(raw).event.object_key, found.shards) if raw != GARBAGE else 0
                shard = found.shard(number)
                await store.two_phase.commit(shard, await store.two_phase.reserve(shard, 1, len(raw)), [raw])
                token = await store.locks.acquire(shard, "w", 90)
                assert isinstance(token, LockToken)
                at = time.time() - age_s
                front = await store.queue.read(token, b"", 1)
                position, after = (each.decode() for each in front.positions)
                queue, incarnation = token.shard.queue, token.incarnation
                await store.letters.store(
                    token, DeadLetter(queue, incarnation, position, after, cause, "why", 1, at, at, raw, **more)
                )
                if removed:
                    await store.queue.remove(token, front.positions[1], 1, Tally(dead_lettered=1))
                await store.locks.release(token)

        self.store(work)

    def pending(self, topic: str = "orders") -> list[list[bytes]]:
        """What waits in each of a topic's shards."""

        async def work(store: ShardStore) -> list[list[bytes]]:
            found = await store.own_topics.find(topic)
            assert found is not None
            return [[raw async for _, raw in store.inspection.dump(shard)] for shard in found.all_shards()]

        return self.store(work)

    def numbers(self) -> list[list[int]]:
        """The numbers of the events that wait in each shard."""
        return [[decode(raw).event.object_size for raw in each] for each in self.pending()]

    def listed(self, *words: str) -> list[dict[str, Any]]:
        """What `dlq list` shows."""
        done = self("list", "--json", *words)
        assert done.code == Exit.OK, done.err
        rows: list[dict[str, Any]] = done.json
        return rows


@pytest.fixture
def dlq(remora: Run, config: Path, tmp_path: Path) -> Dlq:
    write_config(
        config,
        {
            "store": {"kind": "sqlite"},
            "sqlite": {"directory": str(tmp_path / "queues"), "files": 2, "queue_bytes": "64KiB"},
        },
    )
    return Dlq(remora, config)


def events(count: int, keys: int = 5, **more: Any) -> list[bytes]:
    return [raw_entry(f"k{i % keys}", i, **more) for i in range(count)]


def test_redriven_letters_are_in_order_per_key(dlq: Dlq) -> None:
    """Each entry comes into the shard of its key, in order, with its event's id, and its age begins anew."""
    dlq.topic()
    dlq.park(*events(40))
    before_ns = time.time_ns()

    done = dlq("redrive", "--topic", "orders", "--yes")

    assert (done.code, done.out) == (Exit.OK, b"40 re-driven\n"), done.err
    assert sorted(number for each in dlq.numbers() for number in each) == list(range(40))
    for number, raws in enumerate(dlq.pending()):
        entries = [decode(raw) for raw in raws]
        assert {shard_number(b"bkt:" + each.event.object_key, 3) for each in entries} <= {number}
        assert all(created_ns(each) >= before_ns for each in entries)
        assert all(each.event.event_id == b"id-%d" % each.event.object_size for each in entries)
        for key in {each.event.object_key for each in entries}:
            of_key = [each.event.object_size for each in entries if each.event.object_key == key]
            assert of_key == sorted(of_key)
    assert dlq.listed() == []


def test_a_letter_is_shown_with_its_event_and_its_last_failure(dlq: Dlq) -> None:
    """Bucket, key, event and what would have been sent stand beside what the last attempt failed with, and when."""
    dlq.topic(shards=1)
    dlq.park(*events(1), cause="exhausted", last_failure="b:9092: no answer", failed_at=1_700_000_000.0)
    dlq.park(GARBAGE)
    [letter, garbage] = dlq.listed()

    shown = dlq("show", "orders", letter["position"]).json
    unknown = dlq("show", "orders", garbage["position"]).json

    assert {each: shown[each] for each in ("bucket", "key", "event", "event_id")} == {
        "bucket": "bkt", "key": "k0", "event": "ObjectCreated:Put", "event_id": "id-0"
    }  # fmt: skip
    assert shown["body"]["Records"][0]["s3"]["object"]["key"] == "k0"
    assert (shown["last_failure"], shown["failed_at"]) == ("b:9092: no answer", "2023-11-14T22:13:20+00:00")
    assert unknown["event"].startswith("unknown: ")
    assert unknown["last_failure"] is None
    assert b"why; the last attempt failed: b:9092: no answer" in dlq("list").out


def test_letters_of_other_releases_are_read(dlq: Dlq) -> None:
    """One that was stored without its last failure has none, and a release without the field passes over it."""

    @dataclass(frozen=True)
    class Older:
        queue: str
        incarnation: str
        position: str
        next_position: str
        cause: str
        reason: str
        attempts: int
        first_seen: float
        parked_at: float
        raw: bytes
        sequence: str = ""

    places = {"queue": "q", "incarnation": "i", "position": "0/1", "next_position": "0/2", "cause": "expired"}
    older = Older(**places, reason="why", attempts=1, first_seen=1.0, parked_at=2.0, raw=b"r")
    newer = DeadLetter(**asdict(older), last_failure="no answer", failed_at=3.0)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=DeadLetter) == DeadLetter(**asdict(older))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(newer), type=Older) == older


def test_a_dry_run_changes_nothing(dlq: Dlq) -> None:
    """It says how many there are, and letters and queues stay as they were."""
    dlq.topic()
    dlq.park(*events(7))
    before = dlq.listed()

    assert dlq("redrive", "--dry-run").out == b"7 dead letters would be re-driven\n"
    assert dlq("drop", "--dry-run").out == b"7 dead letters would be dropped\n"
    assert dlq("redrive", "--dry-run", "--json").json["planned"] == 7

    assert dlq.listed() == before
    assert dlq.pending() == [[], [], []]


@pytest.mark.parametrize("command", ["redrive", "drop"])
def test_it_is_asked_first(dlq: Dlq, command: str) -> None:
    """Without --yes nothing is done unless the question is answered with yes."""
    dlq.topic()
    dlq.park(*events(3))

    assert dlq(command, stdin=b"n\n").code != Exit.OK
    assert "--yes does" in dlq(command, stdin=b"").err
    assert len(dlq.listed()) == 3

    assert dlq(command, stdin=b"y\n").code == Exit.OK
    assert dlq.listed() == []


def test_filters(dlq: Dlq) -> None:
    """Topic, queue, cause, key, age and limit choose what is listed, and together what fits all of them."""
    dlq.topic()
    dlq.topic("other", 1)
    dlq.park(*events(6, keys=3), cause="expired", age_s=7200)
    dlq.park(*events(4, keys=2), cause="exhausted")
    dlq.park(raw_entry("k0"), topic="other")

    assert len(dlq.listed()) == 11
    assert len(dlq.listed("--topic", "orders")) == 10
    assert len(dlq.listed("--queue", "other")) == len(dlq.listed("other")) == 1
    assert len(dlq.listed("--cause", "exhausted")) == 4
    assert len(dlq.listed("--cause", "exhausted", "--cause", "expired")) == 11
    assert len(dlq.listed("--key", "bkt/k0")) == 5
    assert len(dlq.listed("--key", "bkt/*", "--topic", "orders", "--cause", "expired")) == 6
    assert len(dlq.listed("--older-than", "1h")) == 6
    assert len(dlq.listed("--newer-than", "1h")) == 5
    assert len(dlq.listed("--limit", "2")) == 2
    assert dlq("list", "--cause", "whatever").code == Exit.USAGE


@pytest.mark.parametrize(
    "command", [("list",), ("list", "--summary"), ("redrive", "--yes"), ("drop", "--yes")], ids=str
)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--topic", "nobody"), "there is no topic 'nobody'"),
        (("--topic", "orders.1"), "there is no topic 'orders.1'"),
        (("--queue", "nobody"), "there is no queue 'nobody'"),
        (("--topic", "orders", "--queue", "nobody"), "there is no queue 'nobody'"),
    ],
    ids=str,
)
def test_letters_of_nobody_are_an_error(dlq: Dlq, command: tuple[str, ...], words: tuple[str, ...], says: str) -> None:
    """A topic or a queue that does not exist, and has left no letter, is named, with exit code 1; one that has none of
    the letters that are asked for is no error."""
    dlq.topic()
    dlq.park(*events(3))

    done = dlq(*command, *words)

    assert done.code == Exit.FAILURE
    assert f"{says}, and no dead letter of an earlier one" in done.err
    assert dlq(*command, "--topic", "orders", "--older-than", "1h").code == Exit.OK
    assert len(dlq.listed()) == 3


def test_only_what_is_meant_is_dropped(dlq: Dlq) -> None:
    """Letters that the filter leaves out stay, and the summary counts what is left and what was done."""
    dlq.topic(shards=1)
    dlq.park(*events(5), cause="expired")
    dlq.park(*events(3), cause="exhausted")

    assert dlq("drop", "--cause", "expired", "--yes").out == b"5 dropped\n"
    assert [each["cause"] for each in dlq.listed()] == ["exhausted"] * 3
    assert dlq("redrive", "--limit", "2", "--yes").code == Exit.OK

    row = {"queue": "orders", "letters": 1, "causes": {"exhausted": 1}, "redriven": 2, "dropped": 5}
    assert dlq("list", "--summary", "--json").json == [row]
    assert b"exhausted 1" in dlq("list", "--summary").out


def test_garbage(dlq: Dlq) -> None:
    """What cannot be decoded stays unless it is re-driven raw, and then it is the very same bytes; the rest goes on."""
    dlq.topic()
    dlq.park(GARBAGE, cause="undecodable")
    dlq.park(*events(2))

    done = dlq("redrive", "--yes")

    assert (done.code, done.out) == (Exit.FAILURE, b"2 re-driven\n")
    assert "1 dead letter without an entry that can be decoded" in done.err
    assert [each["cause"] for each in dlq.listed()] == ["undecodable"]
    assert dlq("redrive", "--raw", "--yes").code == Exit.OK
    assert dlq.pending()[0].count(GARBAGE) == 1
    assert dlq.listed() == []


def test_corrupt(dlq: Dlq) -> None:
    """What is corrupt is never re-driven by what it still seems to be: only raw, as the very same bytes."""
    dlq.topic()
    changed, sound = events(2)
    dlq.park(changed, cause="corrupt")
    dlq.park(sound)

    done = dlq("redrive", "--yes")

    assert (done.code, done.out) == (Exit.FAILURE, b"1 re-driven\n")
    assert "1 dead letter without an entry that can be decoded" in done.err
    assert [each["cause"] for each in dlq.listed("--cause", "corrupt")] == ["corrupt"]
    assert dlq.listed("--key", "bkt/*") == []
    assert dlq("redrive", "--raw", "--yes").code == Exit.OK
    assert sum(each.count(changed) for each in dlq.pending()) == 1


def test_a_letter_that_changed_in_the_store(dlq: Dlq, tmp_path: Path) -> None:
    """A letter whose stored bytes changed is called corrupt, by error and exit code; only --raw re-drives its bytes."""
    dlq.topic()
    dlq.park(*events(3, keys=1), age_s=7200)
    for path in (tmp_path / "queues").glob("queues-*.db"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE letters SET checksum = checksum + 1 WHERE position = 1")
            connection.commit()
    (name,) = {each["queue"] for each in dlq("list", "--json").json}

    listed, shown = dlq("list"), dlq("show", name, "0/1")
    done = dlq("redrive", "--yes")

    assert (listed.code, shown.code, done.code) == (Exit.FAILURE,) * 3
    assert listed.out.count(b"corrupt") == 1
    for each in (listed, shown):
        assert "1 dead letter with bytes that have changed in the store" in each.err
    assert (shown.json["cause"], shown.json["parked_at"]) == ("corrupt", None)
    assert (done.out, "1 dead letter without an entry that can be decoded" in done.err) == (b"2 re-driven\n", True)
    assert dlq("drop", "--older-than", "1h", "--yes").out == b"0 dropped\n"
    assert dlq("redrive", "--raw", "--yes").code == Exit.OK
    assert sum(map(len, dlq.pending())) == 3
    assert dlq.listed() == []


def test_a_topic_that_is_gone(dlq: Dlq) -> None:
    """Letters without a topic stay, which is said; made again with other shards, it gets them by their keys."""
    dlq.topic()
    dlq.park(*events(12))

    async def remove(store: ShardStore) -> None:
        found = await store.own_topics.find("orders")
        assert found is not None
        await store.own_topics.remove(found, discard=True)

    dlq.store(remove)
    done = dlq("redrive", "--yes")
    assert (done.code, len(dlq.listed())) == (Exit.FAILURE, 12)
    assert "12 dead letters without a queue by now" in done.err
    assert len(dlq.listed("--topic", "orders")) == 12
    assert len(dlq.listed("orders")) > 0

    dlq.topic(shards=2)
    assert dlq("redrive", "--topic", "orders", "--yes").code == Exit.OK
    assert sorted(number for each in dlq.numbers() for number in each) == list(range(12))
    for raws in dlq.pending():
        for key in {decode(raw).event.object_key for raw in raws}:
            of_key = [decode(raw).event.object_size for raw in raws if decode(raw).event.object_key == key]
            assert of_key == sorted(of_key)


def test_a_topic_that_is_closed(dlq: Dlq) -> None:
    """A closed topic takes nothing back, and every letter stays."""
    dlq.topic()
    dlq.park(*events(3))

    async def close(store: ShardStore) -> None:
        found = await store.own_topics.find("orders")
        assert found is not None
        await store.own_topics.change(replace(found, closed=True))

    dlq.store(close)
    done = dlq("redrive", "--yes")

    assert done.code == Exit.FAILURE
    assert "closed" in done.err
    assert len(dlq.listed()) == 3


def test_a_full_queue_ends_it_in_order(dlq: Dlq) -> None:
    """Where no more fits it stops and says how far it came; nothing is lost, and what was re-driven came first."""
    dlq.topic(shards=1)
    dlq.park(*events(200, keys=1))

    done = dlq("redrive", "--yes")

    assert done.code == Exit.TEMPORARY
    [numbers] = dlq.numbers()
    assert f"{len(numbers)} of 200 dead letters were re-driven" in done.err
    assert numbers == list(range(len(numbers)))
    assert len(dlq.listed()) == 200 - len(numbers)
    assert 0 < len(numbers) < 200


def test_a_rate(dlq: Dlq) -> None:
    """With a rate everything is re-driven all the same."""
    dlq.topic(shards=1)
    dlq.park(*events(4, keys=1))

    done = dlq("redrive", "--rate", "1000", "--yes", "--json")

    assert done.json["redriven"] == 4
    assert dlq.numbers() == [[0, 1, 2, 3]]


def test_letters_of_entries_that_stand_are_left_alone(dlq: Dlq) -> None:
    """What stands in its queue yet is neither re-driven nor dropped, which both commands say with exit code 1."""
    dlq.topic(shards=1)
    dlq.park(*events(2))
    dlq.park(*events(1), removed=False)

    dropped = dlq("drop", "--topic", "orders", "--limit", "1", "--yes")
    redriven = dlq("redrive", "--topic", "orders", "--yes", "--json")
    again = dlq("drop", "--topic", "orders", "--yes")

    assert (dropped.code, dropped.out) == (Exit.OK, b"1 dropped\n"), dropped.err
    assert (redriven.code, redriven.json["redriven"], redriven.json["standing"]) == (Exit.FAILURE, 1, 1)
    assert "1 dead letter that is still in its queue, too: left alone" in redriven.err
    assert (again.code, again.out) == (Exit.FAILURE, b"0 dropped\n")
    assert "left alone" in again.err
    assert len(dlq.listed()) == 1
    assert [len(each) for each in dlq.pending()] == [2]
