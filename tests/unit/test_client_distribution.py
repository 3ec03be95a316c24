"""The client sends events that name no topic, in one step and in two, to a real server and store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from remora.client import (
    Ambiguous,
    ComingEvent,
    EventsRefused,
    IngestClient,
    ReservationGone,
    RoomWhereNotified,
    WhereNotified,
)
from remora.model.notification import EventFilter, Notification
from support.notified import REMOVALS, THUMBNAILS, Place, photo, place

TAGGED = Notification("tagged", ("other",), (), (), EventFilter(tags=(("keep", "yes"),)))
CLASSED = Notification("classed", ("other",), (), (), EventFilter(metadata=(("x-amz-meta-class", "hot"),)))
LARGE = Notification("large", ("thumbs",), (), (), EventFilter(size_min=100))


def address(folder: Path) -> str:
    return f"unix:{folder / 'ingest.sock'}"


async def reservations(at: Place) -> int:
    """The open reservations of all topics."""
    topics = [await at.topic(name) for name in ("thumbs", "audit", "other")]
    stats = [await at.store.inspection.stats(shard) for topic in topics for shard in topic.all_shards()]
    return sum(each.reservations for each in stats)


async def test_one_step(folder: Path) -> None:
    """The answer counts what matched, what did not, and the copies by topic; a repetition stores nothing twice."""
    async with place(folder, THUMBNAILS, REMOVALS) as at, IngestClient(address(folder)) as client:
        for _ in range(2):
            stored = await client.publish_matching([photo("a.jpg"), photo("b.png")], idempotency_key="mine")
            assert stored == WhereNotified(1, 1, {"thumbs": 1, "audit": 1})
        with pytest.raises(Ambiguous):
            await client.publish_matching([photo("c.jpg")], idempotency_key="mine")

        assert await at.keys("thumbs") == Counter({("a.jpg", "thumbnails"): 1})
        await client.publish_matching([photo("a.jpg")])
        await client.publish_matching([photo("a.jpg")])
        assert await at.keys("thumbs") == Counter({("a.jpg", "thumbnails"): 3})


async def test_two_steps(folder: Path) -> None:
    """Room is where the events may go; the commit stores the copies that match, and a repetition has its answer."""
    async with place(folder, THUMBNAILS, REMOVALS) as at, IngestClient(address(folder)) as client:
        room = await client.reserve_matching([ComingEvent("photos", "a.jpg", 4096)])
        assert (room.events, room.topics) == (1, {"thumbs": 1, "audit": 2})
        assert room.expires_in_s > 0
        for _ in range(2):
            assert await client.commit_matching(room, [photo("a.jpg")]) == WhereNotified(
                1, 0, {"thumbs": 1, "audit": 1}
            )
        with pytest.raises(Ambiguous):
            await client.abort(room)

        assert await at.keys("audit") == Counter({("a.jpg", "thumbnails"): 1})
        assert await reservations(at) == 0


async def test_what_an_event_to_come_says(folder: Path) -> None:
    """Each thing that is said of an event to come is compared; what is not said counts as matching."""
    anything = {"thumbs": 1, "audit": 1, "other": 2}
    cases: list[tuple[ComingEvent, dict[str, int]]] = [
        (ComingEvent("b", "k", 900), {}),
        (ComingEvent("b", "k", 900, event_name="ObjectRemoved:Delete"), {}),
        (ComingEvent("b", "k", 900, event_name="ObjectCreated:Put"), {"audit": 0}),
        (ComingEvent("b", "k", 900, size=100), {}),
        (ComingEvent("b", "k", 900, size=99), {"thumbs": 0}),
        (ComingEvent("b", "k", 900, metadata={"x-amz-meta-class": "hot"}), {}),
        (ComingEvent("b", "k", 900, metadata={}), {"other": 1}),
        (ComingEvent("b", "k", 900, tags={"keep": "yes"}), {}),
        (ComingEvent("b", "k", 900, tags={}), {"other": 1}),
        (ComingEvent("b", "k", 900, metadata={}, tags={}), {"other": 0}),
    ]
    async with place(folder, REMOVALS, LARGE, CLASSED, TAGGED), IngestClient(address(folder)) as client:
        for coming, less in cases:
            room = await client.reserve_matching([coming])

            assert room.topics == {name: count for name, count in (anything | less).items() if count}, coming


async def test_events_that_were_announced_otherwise_are_refused(folder: Path) -> None:
    """An event that matches where no room is raises EventsRefused and stores nothing."""
    async with place(folder, THUMBNAILS, REMOVALS) as at, IngestClient(address(folder)) as client:
        room = await client.reserve_matching([ComingEvent("photos", "a.jpg", 4096, "ObjectCreated:Put")])

        with pytest.raises(EventsRefused, match="has no room for it"):
            await client.commit_matching(room, [photo("a.jpg", "ObjectRemoved:Delete")])

        assert await at.keys("audit") == Counter()


async def test_a_block_that_fails_gives_its_room_back(folder: Path) -> None:
    """Its own error comes through, no topic keeps room, and the reservation cannot be committed then."""
    async with place(folder, THUMBNAILS) as at, IngestClient(address(folder)) as client:
        given: list[RoomWhereNotified] = []

        async def fail() -> None:
            async with client.reserved_matching([ComingEvent("photos", "a.jpg", 4096)]) as room:
                given.append(room)
                assert await reservations(at) == 2
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await reservations(at) == 0
        with pytest.raises(ReservationGone):
            await client.commit_matching(given[0], [photo("a.jpg")])
