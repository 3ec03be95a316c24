"""The store contract: looks from outside need no lock, disturb nobody, and tolerate a front that moves."""

from __future__ import annotations

import time

import pytest

from devkit.entries.entries import raw_entry
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.record import DeadLetter
from remora.model.shard import LockToken
from support.stores import Bench


async def test_figures(bench: Bench) -> None:
    """Stats tell bytes, entries, reservations, and the age of the oldest entry."""
    shard = await bench.queue(ring_bytes=1 << 20)
    empty = await bench.store.inspection.stats(shard)
    assert (empty.entries, empty.entries_exact, empty.used_bytes, empty.oldest_age_s) == (0, True, 0, None)

    entry = raw_entry("k", created=time.time() - 100)
    await bench.commit(shard, entry, raw_entry("k2"), raw_entry("k3"))
    await bench.store.two_phase.reserve(shard, 1, 4096)
    stats = await bench.store.inspection.stats(shard)

    assert (stats.entries, stats.entries_exact) == (3, True)
    assert (stats.reservations, stats.reserved_bytes) == (1, 4096)
    assert stats.capacity_bytes == 1 << 20
    assert 3 * len(entry) < stats.used_bytes < 4 * len(entry)
    assert stats.oldest_age_s is not None
    assert 99 < stats.oldest_age_s < 400


async def test_survey(bench: Bench) -> None:
    """A survey has the figures of the queues that hold something, of those that were asked for and are there."""
    filled, empty, reserved, unasked, gone = [await bench.queue() for _ in range(5)]
    await bench.commit(filled, raw_entry("k1"), raw_entry("k2"))
    await bench.store.two_phase.reserve(reserved, 1, 4096)
    await bench.commit(unasked, b"x")
    await bench.commit(gone, b"x")
    await bench.yard.delete(gone.queue)

    found = await bench.store.inspection.backlog([filled, empty, gone, reserved])

    assert {each.shard: (each.entries, each.reservations) for each in found} == {filled: (2, 0), reserved: (0, 1)}
    alone = await bench.store.inspection.stats(filled)
    assert [each.used_bytes for each in found if each.shard == filled] == [alone.used_bytes]


async def test_undecodable_oldest_entry(bench: Bench) -> None:
    """A first entry that nobody can decode has no age, and is no error."""
    shard = await bench.queue()
    await bench.commit(shard, b"\xff not an entry")

    assert (await bench.store.inspection.stats(shard)).oldest_age_s is None


async def test_many_entries(bench: Bench) -> None:
    """The number of entries is right where it says so, near where it is estimated, and right when asked exactly."""
    shard = await bench.queue(ring_bytes=4 << 20)
    for _ in range(3):
        await bench.commit(shard, *[raw_entry(f"key-{i}") for i in range(500)])

    quick, exact = await bench.store.inspection.stats(shard), await bench.store.inspection.stats(shard, exact=True)

    assert (exact.entries, exact.entries_exact) == (1500, True)
    assert quick.entries == (1500 if quick.entries_exact else pytest.approx(1500, rel=0.1))


async def test_peek(bench: Bench) -> None:
    """A peek shows the oldest entry, or that there is none, whichever worker holds the lock."""
    shard, other = await bench.queue(), await bench.another()
    assert await bench.store.catalog.peek(shard) is None
    await bench.commit(shard, b"first", b"second")
    await bench.held(shard)

    assert await other.catalog.peek(shard) == b"first"


async def test_dump_shows_everything(bench: Bench) -> None:
    """A dump gives each pending entry with its position, and removes none."""
    shard = await bench.queue(ring_bytes=4 << 20)
    expected = [b"%d" % i for i in range(3000)]
    for i in range(0, 3000, 500):
        await bench.commit(shard, *expected[i : i + 500])
    page = await bench.store.queue.read(await bench.held(shard), b"", 3)

    dumped = [each async for each in bench.store.inspection.dump(shard)]

    assert [entry for _, entry in dumped] == expected
    assert [position.encode() for position, _ in dumped[:3]] == page.positions[:3]
    assert [entry for _, entry in [each async for each in bench.store.inspection.dump(shard)]] == expected


async def test_dump_while_the_front_moves(bench: Bench) -> None:
    """Entries that are removed and committed while a dump runs neither end it nor make it repeat itself."""
    shard = await bench.queue(ring_bytes=4 << 20)
    for i in range(0, 3000, 500):
        await bench.commit(shard, *[b"%d" % j for j in range(i, i + 500)])
    token = await bench.held(shard)

    seen: list[int] = []
    async for _, entry in bench.store.inspection.dump(shard):
        seen.append(int(entry))
        if len(seen) == 10:
            await remove_oldest(bench, token, 2500)
            await bench.commit(shard, *[b"%d" % j for j in range(3000, 3100)])

    assert seen == sorted(set(seen))
    assert set(range(2500, 3100)) <= set(seen)


async def remove_oldest(bench: Bench, token: LockToken, count: int) -> None:
    page = await bench.store.queue.read(token, b"", count)
    await bench.store.queue.remove(token, page.positions[-1], count, Tally(delivered=count))


async def test_letters_are_kept_once_and_in_order(bench: Bench) -> None:
    """Letters come back whole, in the order of their positions, and one that is parked again replaces itself."""
    shard = await bench.queue()
    token = await bench.held(shard)
    positions = ["0/99999", "0/100000", "1/24576", "10/24576", "2/24576"]
    for position in positions:
        await bench.store.letters.store(token, a_letter(token, position))
    again = a_letter(token, "1/24576", reason="the second time")
    await bench.store.letters.store(token, again)

    letters = [each async for each in bench.store.letters.stored(shard.queue)]

    assert [each.position for each in letters] == sorted(positions, key=Position.parse)
    assert letters[2] == again
    assert letters[0].raw == b"\x00\xff raw"


async def test_letters_of_all_queues(bench: Bench) -> None:
    """Without a queue's name the letters of all queues come; other queues' letters never show under one name."""
    first, second = await bench.queue(), await bench.queue()
    letters = []
    for shard in (first, second):
        token = await bench.held(shard)
        letters.append(a_letter(token, "0/24576"))
        await bench.store.letters.store(token, letters[-1])

    assert [each async for each in bench.store.letters.stored(first.queue)] == letters[:1]
    found = [each async for each in bench.store.letters.stored()]
    assert all(letter in found for letter in letters)
    assert [each async for each in bench.store.letters.stored("no-such-queue")] == []


def a_letter(token: LockToken, position: str, reason: str = "no format we know") -> DeadLetter:
    return DeadLetter(
        queue=token.shard.queue,
        incarnation=token.incarnation,
        position=position,
        next_position="0/1",
        cause="undecodable",
        reason=reason,
        attempts=3,
        first_seen=1_700_000_000.25,
        parked_at=1_700_000_001.5,
        raw=b"\x00\xff raw",
    )


async def test_every_registered_queue_is_found(bench: Bench) -> None:
    """All registered queues are found, in name order, however many there are."""
    assert await bench.store.catalog.shards() == []
    names = await bench.yard.register(2500)

    shards = await bench.store.catalog.shards()

    assert [shard.queue for shard in shards] == sorted(names)
