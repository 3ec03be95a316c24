"""The store contract: what is committed is listed in order, once, until its holder removes it."""

from __future__ import annotations

import asyncio
import time

import pytest

from devkit.entries.entries import delivered
from devkit.waits import until
from remora.model.errors import OwnershipLost, QueueFull, ShardGone, StoreError
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.shard import LockHolder, LockToken
from support.stores import Bench, expire


def payloads(count: int, size: int = 40) -> list[bytes]:
    return [b"%06d" % i + b"." * (size - 6) for i in range(count)]


async def test_commit_order_is_list_order(bench: Bench) -> None:
    """Entries come back in the order of their commits, not of their reservations, and byte for byte."""
    shard = await bench.queue()
    early = await bench.store.two_phase.reserve(shard, 2, 100)
    late = await bench.store.two_phase.reserve(shard, 2, 100)
    await bench.store.two_phase.commit(shard, late, [b"\x00first", b"second\xff"])
    await bench.store.two_phase.commit(shard, early, [b"third", b""])

    listing = await bench.store.queue.read(await bench.held(shard), b"", 10)

    assert listing.entries == [b"\x00first", b"second\xff", b"third", b""]
    assert not listing.truncated


async def test_reservation_is_invisible(bench: Bench) -> None:
    """What is only reserved is neither listed nor counted as an entry, and what is aborted never was."""
    shard = await bench.queue()
    reservation = await bench.store.two_phase.reserve(shard, 3, 300)

    listing = await bench.store.queue.read(await bench.held(shard), b"", 10)
    stats = await bench.store.inspection.stats(shard)
    assert listing.entries == []
    assert (stats.entries, stats.reservations, stats.reserved_bytes) == (0, 1, 300)

    await bench.store.two_phase.abort(shard, reservation)
    await bench.store.two_phase.abort(shard, reservation)
    assert (await bench.store.inspection.stats(shard)).reservations == 0


async def test_pages_chain(bench: Bench) -> None:
    """Listing page by page from each page's last position gives every entry once, and positions only grow."""
    shard, expected = await bench.queue(), payloads(100)
    await bench.commit(shard, *expected)
    token = await bench.held(shard)

    start, seen, positions = b"", [], []
    for page in range(15):
        listing = await bench.store.queue.read(token, start, 7)
        assert len(listing.positions) == len(listing.entries) + 1
        assert listing.truncated == (page < 14)
        if start:
            assert listing.positions[0] == start
        seen += listing.entries
        positions += [Position.parse(each.decode()) for each in listing.positions[:-1]]
        start = listing.positions[-1]

    assert seen == expected
    assert positions == sorted(set(positions))
    assert (await bench.store.queue.read(token, start, 7)).entries == []


@pytest.mark.guarantee("no-loss")
async def test_removal_is_exact(bench: Bench) -> None:
    """Removing up to a position removes what lies before it and nothing else; doing it again changes nothing."""
    shard, expected = await bench.queue(), payloads(60)
    await bench.commit(shard, *expected)
    token = await bench.held(shard)
    listing = await bench.store.queue.read(token, b"", 60)

    await bench.store.queue.remove(token, listing.positions[4], 4, Tally(delivered=4))
    assert (await bench.store.queue.read(token, b"", 60)).entries == expected[4:]

    await bench.store.queue.remove(token, listing.positions[4], 4, Tally(delivered=4))
    assert (await bench.store.queue.read(token, b"", 60)).entries == expected[4:]
    stats = await bench.store.inspection.stats(shard)
    assert stats.entries == (56 if stats.entries_exact else pytest.approx(56, abs=2))

    await bench.store.queue.remove(token, listing.positions[-1], 56, Tally(delivered=56))
    assert (await bench.store.queue.read(token, b"", 60)).entries == []
    assert (await bench.store.inspection.stats(shard)).used_bytes == 0


async def test_nothing_to_trim(bench: Bench) -> None:
    """Trimming an empty queue up to its front succeeds: the check of the lock is what it is done for."""
    shard = await bench.queue()
    token = await bench.held(shard)
    listing = await bench.store.queue.read(token, b"", 1)

    await bench.store.queue.remove(token, listing.positions[-1], 0, Tally())

    await bench.commit(shard, b"still works")
    assert (await bench.store.queue.read(token, b"", 1)).entries == [b"still works"]


@pytest.mark.guarantee("exactly-once")
async def test_removal_of_nothing_checks_the_lock(bench: Bench) -> None:
    """A removal up to the front, of no entry, is refused once somebody else holds the lock, and changes nothing."""
    shard, other = await bench.queue(), await bench.another()
    await bench.commit(shard, *payloads(3))
    token = await bench.held(shard)
    front = (await bench.store.queue.read(token, b"", 1)).positions[0]
    await bench.store.queue.remove(token, front, 0, Tally())
    holder = (await bench.store.inspection.stats(shard)).holder
    assert holder is not None
    await other.locks.evict(shard, holder)
    assert isinstance(await other.locks.acquire(shard, "w2", 60), LockToken)

    with pytest.raises(OwnershipLost):
        await bench.store.queue.remove(token, front, 0, Tally())

    assert await bench.contents(shard) == payloads(3)


async def test_nothing_to_trim_is_a_check_of_the_hold(bench: Bench) -> None:
    """Trimming up to the front is refused to a worker that lost the lock, and on another queue of the name."""
    shard, other = await bench.queue(), await bench.another()
    await bench.commit(shard, b"a")
    token = await bench.held(shard)
    listing = await bench.store.queue.read(token, b"", 1)
    holder = await other.locks.acquire(shard, "w2", 90)
    assert isinstance(holder, LockHolder)
    await other.locks.evict(shard, holder)
    with pytest.raises(OwnershipLost):
        await bench.store.queue.remove(token, listing.positions[0], 0, Tally())

    again = await bench.held(shard)
    listing = await bench.store.queue.read(again, b"", 1)
    await bench.store.queue.remove(again, listing.positions[0], 0, Tally())
    await bench.yard.delete(shard.queue)
    await bench.yard.make(shard.queue, 1 << 20)
    with pytest.raises(ShardGone):
        await bench.store.queue.remove(again, listing.positions[0], 0, Tally())


@pytest.mark.guarantee("no-loss")
async def test_unlisted_position_is_refused(bench: Bench) -> None:
    """A position that this hold never listed up to is refused before it can damage the queue."""
    shard = await bench.queue()
    await bench.commit(shard, *payloads(3))
    token = await bench.held(shard)
    listing = await bench.store.queue.read(token, b"", 2)
    last = Position.parse(listing.positions[-1].decode())

    for beyond in (last._replace(gen=9), last._replace(offset=last.offset + 10_000)):
        with pytest.raises(ValueError, match="listed"):
            await bench.store.queue.remove(token, str(beyond).encode(), 3, Tally(delivered=3))

    assert await bench.contents(shard) == payloads(3)


async def test_room_is_bounded_and_comes_back(bench: Bench) -> None:
    """A reservation beyond the room is refused with nothing changed; abort, commit and removal give room back."""
    shard = await bench.queue(ring_bytes=10_000)
    first = await bench.store.two_phase.reserve(shard, 1, 6_000)
    with pytest.raises(QueueFull):
        await bench.store.two_phase.reserve(shard, 1, 6_000)

    await bench.store.two_phase.abort(shard, first)
    second = await bench.store.two_phase.reserve(shard, 1, 6_000)
    await bench.store.two_phase.commit(shard, second, [b"x" * 1_000])
    third = await bench.store.two_phase.reserve(shard, 1, 6_000)
    await bench.store.two_phase.commit(shard, third, [b"y" * 6_000])
    with pytest.raises(QueueFull):
        await bench.store.two_phase.reserve(shard, 1, 6_000)

    token = await bench.held(shard)
    listing = await bench.store.queue.read(token, b"", 10)
    await bench.store.queue.remove(token, listing.positions[-1], 2, Tally(delivered=2))
    await bench.store.two_phase.reserve(shard, 1, 6_000)


async def test_commit_is_all_or_nothing(bench: Bench) -> None:
    """A commit larger than its reservation is refused as a whole, and the reservation stays open."""
    shard = await bench.queue()
    reservation = await bench.store.two_phase.reserve(shard, 2, 10)

    with pytest.raises(StoreError):
        await bench.store.two_phase.commit(shard, reservation, [b"fits", b"does not fit any more"])

    assert await bench.contents(shard) == []
    await bench.store.two_phase.commit(shard, reservation, [b"fits"])
    assert await bench.contents(shard) == [b"fits"]


async def test_committing_twice_is_refused(bench: Bench) -> None:
    """A reservation ends with its commit: a second commit of it adds nothing."""
    shard = await bench.queue()
    reservation = await bench.store.two_phase.reserve(shard, 1, 10)
    await bench.store.two_phase.commit(shard, reservation, [b"once"])

    with pytest.raises(StoreError, match="no reservation"):
        await bench.store.two_phase.commit(shard, reservation, [b"once"])

    assert await bench.contents(shard) == [b"once"]


async def test_stale_reservations_end(bench: Bench) -> None:
    """Expiry frees old reservations, whose commits are then refused, and leaves young ones and entries alone."""
    shard = await bench.queue()
    await bench.commit(shard, b"kept")
    stale = await bench.store.two_phase.reserve(shard, 1, 100)
    token = await bench.held(shard)

    await expire(bench.store, token, 3600)
    assert (await bench.store.inspection.stats(shard)).reservations == 1
    await expire(bench.store, token, -60)

    assert (await bench.store.inspection.stats(shard)).reservations == 0
    with pytest.raises(StoreError, match="no reservation"):
        await bench.store.two_phase.commit(shard, stale, [b"too late"])
    assert await bench.contents(shard) == [b"kept"]


@pytest.mark.guarantee("no-loss")
@pytest.mark.parametrize("ahead_s", [180, -180])
async def test_a_wrong_wall_clock_ends_no_reservation(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """A holder whose wall clock is minutes ahead, or behind, leaves fresh reservations alone and frees old ones."""
    shard = await bench.queue()
    reservation = await bench.store.two_phase.reserve(shard, 1, 100)
    token = await bench.held(shard)
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + ahead_s * 10**9)
    monkeypatch.setattr(time, "time", lambda: right() / 1e9 + ahead_s)

    await expire(bench.store, token, 120)
    assert [type(each) for each in await bench.store.queue.expire_all([token], 120)] == [type(None)]

    await bench.store.two_phase.commit(shard, reservation, [b"kept"])
    assert await bench.contents(shard) == [b"kept"]
    await bench.store.two_phase.reserve(shard, 1, 100)

    async def is_freed() -> bool:
        await expire(bench.store, token, 0.05)
        return (await bench.store.inspection.stats(shard)).reservations == 0

    await until(is_freed)


async def test_very_many_stale_reservations_end_together(bench: Bench) -> None:
    """However many reservations are open, expiry frees all that are old, and leaves committed entries alone."""
    shard = await bench.queue()
    await bench.commit(shard, b"kept")
    for _ in range(150):
        await bench.store.two_phase.reserve(shard, 1, 10)
    token = await bench.held(shard)

    await expire(bench.store, token, -60)

    assert (await bench.store.inspection.stats(shard)).reservations == 0
    assert await bench.contents(shard) == [b"kept"]


async def test_stale_reservations_of_many_queues_end(bench: Bench) -> None:
    """Expiry in several queues frees the old reservations of each, and says which holds were lost."""
    shards, other = [await bench.queue() for _ in range(4)], await bench.another()
    tokens = [await bench.held(shard) for shard in shards]
    for shard in shards[:3]:
        await bench.store.two_phase.reserve(shard, 1, 100)
    holder = (await bench.store.inspection.stats(shards[1])).holder
    assert holder is not None
    await other.locks.evict(shards[1], holder)

    assert [type(each) for each in await bench.store.queue.expire_all(tokens, 3600)][::2] == [type(None)] * 2
    assert [(await bench.store.inspection.stats(shard)).reservations for shard in shards] == [1, 1, 1, 0]
    answers = await bench.store.queue.expire_all(tokens, -60)

    assert [type(answer) for answer in answers] == [type(None), OwnershipLost, type(None), type(None)]
    assert [(await bench.store.inspection.stats(shard)).reservations for shard in shards] == [0, 1, 0, 0]


async def test_many_committers_get_reservations_of_their_own(bench: Bench) -> None:
    """Reservations made side by side by two workers never share an id."""
    shard, other = await bench.queue(), await bench.another()

    ids = await asyncio.gather(
        *(store.two_phase.reserve(shard, 1, 10) for store in (bench.store, other) for _ in range(10))
    )

    assert len(set(ids)) == 20
    assert (await bench.store.inspection.stats(shard)).reservations == 20


@pytest.mark.guarantee("no-loss")
@pytest.mark.parametrize("size", [37, 100, 1_000, 4_000])
async def test_ring_wraps(bench: Bench, size: int) -> None:
    """Over a small queue's end every entry comes out once, whole and in order, at growing positions.

    Two turns only: up to Reef, each entry ever reserved costs ten bytes of a ring for good.
    """
    capacity = 16 * 1024
    shard = await bench.queue(ring_bytes=capacity)
    token = await bench.held(shard)
    batch = max(1, 5_000 // (size + 10))

    seen: list[bytes] = []
    positions: list[Position] = []
    made = 0
    while made * (size + 10) < 2.2 * capacity:
        entries = [(b"%d " % (made + i)).ljust(size, b"#") for i in range(batch)]
        await bench.commit(shard, *entries)
        made += batch
        await _drain(bench, token, seen, positions)

    assert seen == [(b"%d " % i).ljust(size, b"#") for i in range(made)]
    assert positions == sorted(set(positions))


async def _drain(bench: Bench, token: LockToken, seen: list[bytes], positions: list[Position]) -> None:
    """List and remove in small steps until the queue is empty."""
    while (listing := await bench.store.queue.read(token, b"", 7)).entries:
        seen += listing.entries
        positions += [Position.parse(each.decode()) for each in listing.positions[:-1]]
        await bench.store.queue.remove(token, listing.positions[-1], len(listing.entries), delivered(listing))
