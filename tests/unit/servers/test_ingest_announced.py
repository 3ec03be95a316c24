"""Two phases without a topic: room wherever notifications may send an event, then the copies that it needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remora.config import LimitSettings
from remora.model.errors import TopicUnknown
from remora.model.fan_out import TopicCopies
from remora.model.notification import EventFilter, Notification
from remora.policy.ingest.matcher import Matcher
from remora.servers import tokens
from remora.servers.ingest import announced
from remora.servers.ingest.request_reader import to_come as announcing
from support.credit import Host, shaping
from support.ingest import ndjson
from support.notified import THUMBNAILS, Place, photo, place

RESERVATIONS = "/v1/reservations"
LARGE = Notification("large", ("other",), (), (), EventFilter(size_min=100))
TAGGED = Notification("tagged", ("audit",), ("photos",), (), EventFilter(tags=(("keep", "yes"),)))


async def reserved(at: Place, *events: dict[str, Any], **headers: str) -> Any:
    """Reserve room for events to come; the answer."""
    return await at.site.ask("POST", RESERVATIONS, {"events": events}, headers)


def to_come(key: str = "a.jpg", bucket: str = "photos", **known: Any) -> dict[str, Any]:
    return {"bucket": bucket, "object": key, **known}


async def committed(at: Place, answer: Any, *records: dict[str, Any], **headers: str) -> Any:
    """Commit records to a reservation; the answer."""
    return await at.site.ask("PUT", f"{RESERVATIONS}/{answer.json['reservation']}", {"Records": records}, headers)


async def room(at: Place) -> dict[str, tuple[int, int]]:
    """The open reservations and reserved bytes of each topic that has some."""
    found = {}
    for name in ("thumbs", "audit", "other"):
        stats = [await at.store.inspection.stats(each) for each in (await at.topic(name)).all_shards()]
        total = sum(each.reservations for each in stats), sum(each.reserved_bytes for each in stats)
        if total != (0, 0):
            found[name] = total
    return found


@pytest.mark.parametrize(
    ("known", "topics"),
    [
        ({}, {"thumbs": 1, "audit": 2, "other": 1}),
        ({"eventName": "ObjectCreated:Put"}, {"thumbs": 1, "audit": 2, "other": 1}),
        ({"eventName": "ObjectRemoved:Delete"}, {"audit": 1, "other": 1}),
        ({"eventName": "ObjectRemoved:Delete", "size": 99}, {"audit": 1}),
        ({"tags": {}}, {"thumbs": 1, "audit": 1, "other": 1}),
        ({"tags": {"keep": "yes"}, "size": 100}, {"thumbs": 1, "audit": 2, "other": 1}),
        ({"object": "a.png", "tags": {"keep": "no"}, "size": 1}, {}),
    ],
)
async def test_room_is_where_an_event_may_go(tmp_path: Path, known: dict[str, Any], topics: dict[str, int]) -> None:
    """A rule that asks for what the reservation leaves out counts as kept; the commit gives back what is not needed."""
    async with place(tmp_path, THUMBNAILS, LARGE, TAGGED) as at:
        answer = await reserved(at, to_come(**known))

        assert (answer.status, answer.json["topics"], answer.json["events"]) == (201, topics, 1)
        assert answer.json["reservation"].startswith("~")
        assert {name: count for name, (count, _) in (await room(at)).items()} == dict.fromkeys(topics, 1)
        done = await committed(
            at, answer, photo(known.get("object", "a.jpg"), known.get("eventName", "ObjectCreated:Put"))
        )
        assert done.status == 200, done.json
        assert await room(at) == {}


async def test_many_announced_events_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where events to come are matched for long, other requests have their turn in between."""
    monkeypatch.setattr(announced, "AT_ONCE_S", -1.0)
    body = json.dumps({"events": [to_come(f"{number}.jpg") for number in range(300)]}).encode()
    events = announcing(body, 300)
    matching = asyncio.ensure_future(announced._rooms(events, Matcher([THUMBNAILS]), False, 1 << 30))
    turns = 0
    while not matching.done():
        await asyncio.sleep(0)
        turns += 1

    found, counting = matching.result()
    assert (len(found["audit"]), list(counting), turns >= 300) == (300, [0], True)


async def test_there_are_only_so_many_copies_of_small_events(tmp_path: Path) -> None:
    """A copy counts as much as the smallest entry, however little its sender announces."""
    async with place(tmp_path, THUMBNAILS, max_request_bytes=8192) as at:
        most = 4 * 8192 // announced.LEAST_ENTRY_BYTES // len(THUMBNAILS.topics)
        small = [{"bucket": "photos", "object": "a.jpg", "bytes": 1}] * (most + 1)

        assert (await reserved(at, *small[1:])).status == 201
        refused = await reserved(at, *small)
        assert (refused.status, refused.code) == (413, "EntityTooLarge")


async def test_a_commit_stores_the_copies_that_match(tmp_path: Path) -> None:
    """Each event goes where it matches, as `POST /v1/events` sends it; others are counted; a repeat has the same answer
    and stores nothing; other events are refused then, and so is an abort."""
    async with place(tmp_path, THUMBNAILS, LARGE) as at:
        answer = await reserved(at, to_come("a.jpg"), to_come("b.png"), to_come("c.jpg"))
        records = photo("a.jpg", size=500), photo("b.png"), photo("c.jpg", "ObjectRemoved:Delete")
        done = await committed(at, answer, *records)

        expected = {"accepted": 1, "unmatched": 2, "topics": {"audit": 1, "other": 1, "thumbs": 1}}
        assert (done.status, done.json) == (200, expected)
        assert await at.keys("thumbs") == {("a.jpg", "thumbnails"): 1}
        assert await at.keys("other") == {("a.jpg", "large"): 1}
        assert await room(at) == {}
        assert (await committed(at, answer, *records)).json == expected
        assert (await committed(at, answer, *records[:2], photo("c.jpg"))).status == 409
        aborted = await at.site.ask("DELETE", f"{RESERVATIONS}/{answer.json['reservation']}")
        assert (aborted.status, aborted.json["code"]) == (409, "ReservationDecided")
        assert await at.keys("thumbs") == {("a.jpg", "thumbnails"): 1}
        assert at.site.metric("remora_ingest_unmatched_total") == 2
        assert at.site.metric("remora_ingested_events_total", topic="other") == 1


async def test_what_became_of_a_bucket_is_known(tmp_path: Path) -> None:
    """A commit tells of a bucket what `POST /v1/events` tells of it, and counts repeats, test events and members
    without a place as that does."""
    async with place(tmp_path, THUMBNAILS, LARGE) as at:
        answer = await reserved(at, to_come("a.jpg"), to_come("b.png"))
        tested = {"Service": "Amazon S3", "Event": "s3:TestEvent"}
        records = photo("a.jpg") | {"more": 1}, tested, photo("b.png")
        path, headers = f"{RESERVATIONS}/{answer.json['reservation']}", {"Content-Type": "application/x-ndjson"}

        done = [await at.site.ask("PUT", path, ndjson(*records), headers) for _ in range(2)]

        assert [each.json["topics"] for each in done] == [{"audit": 1, "thumbs": 1}] * 2
        (news,) = at.site.telemetry.buckets.rows()
        assert (news["bucket"], list(news["sent"])) == ("photos", ["thumbnails"])
        assert (news["filtered"]["key"], news["filtered"]["rules"]) == (
            "b.png", {"large": "size_min", "thumbnails": "suffix"},
        )  # fmt: skip
        dropped = [at.site.metric("remora_ingest_dropped_fields_total", topic=each) for each in ("audit", "thumbs")]
        assert sum(dropped) == 1
        assert at.site.metric("remora_ingest_test_events_total", topic="") == 1
        assert at.site.metric("remora_ingest_repeats_total", topic="thumbs") == 1


async def test_a_commit_goes_by_the_notifications_of_its_reservation(tmp_path: Path) -> None:
    """Notifications that are changed, removed or added between the phases change nothing for the commit."""
    async with place(tmp_path, THUMBNAILS) as at:
        answer = await reserved(at, to_come())
        await at.store.notifications.change(THUMBNAILS, None)
        await at.store.notifications.change(None, replace(LARGE, filter=EventFilter()))

        done = await committed(at, answer, photo())

        assert done.json == {"accepted": 1, "unmatched": 0, "topics": {"audit": 1, "thumbs": 1}}
        assert await at.keys("other") == {}


async def test_what_a_removed_topic_would_get_went_with_it(tmp_path: Path) -> None:
    """A topic that is removed between the phases, or removed and made anew, is left out; others get their copies."""
    async with place(tmp_path, THUMBNAILS) as at:
        answer = await reserved(at, to_come())
        await at.store.notifications.change(THUMBNAILS, None)
        audit = await at.topic("audit")
        await at.store.own_topics.remove(audit, discard=True)
        await at.store.own_topics.create(replace(audit, id=""))

        assert (await committed(at, answer, photo())).json == {"accepted": 1, "unmatched": 0, "topics": {"thumbs": 1}}
        assert await at.entries("audit") == []


async def test_a_topic_that_goes_behind_the_look_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is removed when a commit has looked at it is looked at once more, and left out."""
    async with place(tmp_path, THUMBNAILS) as at:
        commit, refused = at.store.ingest.commit_announced, list[str]()

        async def overtaken(reservation: str, copies: Sequence[TopicCopies], *others: Any) -> Any:
            if any(each.topic.name == "audit" for each in copies):
                refused.append("audit")
                await at.store.own_topics.remove(await at.topic("audit"), discard=True)
                raise TopicUnknown("there is no topic audit")
            return await commit(reservation, copies, *others)

        answer = await reserved(at, to_come())
        await at.store.notifications.change(THUMBNAILS, None)
        monkeypatch.setattr(at.store.ingest, "commit_announced", overtaken)

        done = await committed(at, answer, photo())

        assert done.json == {"accepted": 1, "unmatched": 0, "topics": {"thumbs": 1}}
        assert refused == ["audit"]


async def test_room_and_events_outlive_another_number_of_shards(tmp_path: Path) -> None:
    """A topic that is re-sharded between the phases gets its copies in the layout that takes events then."""
    async with place(tmp_path, THUMBNAILS) as at:
        answer = await reserved(at, *(to_come(f"{i}.jpg") for i in range(9)))
        await at.store.own_topics.reshard(await at.topic("thumbs"), 7)

        done = await committed(at, answer, *(photo(f"{i}.jpg") for i in range(9)))

        assert done.json["topics"] == {"audit": 9, "thumbs": 9}
        assert len(await at.entries("thumbs")) == 9
        assert await room(at) == {}


async def test_reserved_in_all_topics_or_in_none(tmp_path: Path) -> None:
    """A topic that is closed or full refuses the reservation and is named, and no other keeps room."""
    async with place(tmp_path, THUMBNAILS, max_request_bytes=1 << 20) as at:
        too_much = await reserved(at, *(to_come(f"{i}.jpg", bytes=4 << 20) for i in range(3)))
        assert (too_much.status, too_much.json["code"]) == (413, "EntityTooLarge")
        await at.store.own_topics.change(replace(await at.topic("thumbs"), closed=True))
        await asyncio.sleep(0)
        closed = await reserved(at, to_come())

        assert (closed.status, closed.json["code"]) == (409, "TopicClosed")
        assert "thumbs" in closed.json["detail"]
        assert await room(at) == {}


@pytest.mark.parametrize(
    ("records", "status", "code"),
    [
        ([photo("a.jpg"), photo("b.jpg")], 409, "ReservationMismatch"),
        ([photo("b.jpg")], 409, "ReservationMismatch"),
        ([photo("a.jpg", size=500)], 409, "ReservationMismatch"),
        ([photo("a.jpg", versionId="v" * 2000)], 413, "ReservationExceeded"),
    ],
    ids=["too many", "another key", "announced otherwise", "too large"],
)
async def test_other_events_than_announced(tmp_path: Path, records: list[Any], status: int, code: str) -> None:
    """A commit of other events, of one that matches where it has no room, or of one that is larger than announced is
    refused and changes nothing: the right one is taken afterwards."""
    async with place(tmp_path, THUMBNAILS, LARGE) as at:
        answer = await reserved(at, to_come(size=3, bytes=1000))
        before = await room(at)
        done = await committed(at, answer, *records)

        assert (done.status, done.json["code"]) == (status, code)
        assert await room(at) == before
        assert (await committed(at, answer, photo())).json["topics"] == {"audit": 1, "thumbs": 1}


async def test_fewer_events_than_announced(tmp_path: Path) -> None:
    """A commit with fewer events than there is room for is refused and changes nothing."""
    async with place(tmp_path, THUMBNAILS) as at:
        answer = await reserved(at, to_come("a.jpg"), to_come("b.jpg"))

        done = await committed(at, answer, photo("a.jpg"))
        assert (done.status, done.json["code"]) == (409, "ReservationMismatch")
        assert await at.entries("thumbs") == []


async def test_an_abort_gives_all_room_back(tmp_path: Path) -> None:
    """After an abort no topic keeps room and a commit is 410; aborting again is no error; unknown ids are 404."""
    async with place(tmp_path, THUMBNAILS) as at:
        answer = await reserved(at, to_come())
        path = f"{RESERVATIONS}/{answer.json['reservation']}"

        assert [(await at.site.ask("DELETE", path)).status for _ in range(2)] == [204, 204]
        assert await room(at) == {}
        gone = await committed(at, answer, photo())
        assert (gone.status, gone.json["code"]) == (410, "ReservationExpired")
        unknown = f"{RESERVATIONS}/~{'0' * 32}"
        assert (await at.site.ask("DELETE", unknown)).status == 404
        assert (await at.site.ask("PUT", unknown, {"Records": [photo()]})).status == 404
        assert await at.entries("thumbs") == []


async def test_unmatched_events_can_be_refused(tmp_path: Path) -> None:
    """With `unmatched = "refuse"` a reservation of an event that can match nothing is refused. A commit is not, since
    room was given for what might match."""
    async with place(tmp_path, THUMBNAILS, unmatched="refuse") as at:
        refused = await reserved(at, to_come("a.jpg"), to_come("b.png"))
        assert (refused.status, refused.json["code"], refused.json["record"]) == (422, "NoNotificationMatches", 1)

        answer = await reserved(at, to_come("a.jpg"))
        done = await committed(at, answer, photo("a.jpg", "ObjectRemoved:Delete"))
        assert (done.status, done.json) == (200, {"accepted": 0, "unmatched": 1, "topics": {}})


async def test_a_token_needs_a_right_on_the_buckets(tmp_path: Path) -> None:
    """A token for topics, or for other buckets, reserves nothing; one without a right to the bucket commits nothing."""
    made = {name: tokens.new_token() for name in ("topics", "films", "photos")}
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(
        f"{tokens.line_of('t', made['topics'], '*')}\n{tokens.line_of('f', made['films'], '', 'films')}\n"
        f"{tokens.line_of('p', made['photos'], '', 'pho*')}\n"
    )
    async with place(tmp_path, THUMBNAILS, tokens=str(path)) as at:

        def by(name: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {made[name]}"}

        assert [(await reserved(at, to_come(), **by(each))).status for each in ("topics", "films")] == [403, 403]
        (refused,) = at.site.telemetry.buckets.rows()
        assert (refused["bucket"], refused["refused"]["token"]) == ("photos", "f")
        answer = await reserved(at, to_come(), **by("photos"))
        assert answer.status == 201
        assert (await committed(at, answer, photo(), **by("topics"))).status == 403
        assert (await committed(at, answer, photo(), **by("films"))).status == 403
        assert (await committed(at, answer, photo(), **by("photos"))).status == 200


async def test_limits_are_charged_for_room_and_settled(tmp_path: Path) -> None:
    """A topic's limit is charged for each copy that there is room for; what the commit does not use comes back."""
    limit = LimitSettings(name="audits", of="topic", match=("audit",), events=1, burst_events=2)
    host = Host(shaping(), limits=[limit])
    async with place(tmp_path, THUMBNAILS, TAGGED, bank=host.bank(), limit=(limit,)) as at:
        answer = await reserved(at, to_come())
        assert answer.json["topics"] == {"audit": 2, "thumbs": 1}
        refused = await reserved(at, to_come())
        assert (refused.status, refused.json["code"]) == (429, "RateLimited")
        assert await room(at) == {"audit": (1, 8192), "thumbs": (1, 4096)}

        assert (await committed(at, answer, photo())).json["topics"] == {"audit": 1, "thumbs": 1}
        answer = await reserved(at, to_come())
        assert answer.status == 201
        assert (await reserved(at, to_come())).status == 429
        assert (await at.site.ask("DELETE", f"{RESERVATIONS}/{answer.json['reservation']}")).status == 204
        assert (await reserved(at, to_come())).status == 201


@pytest.mark.parametrize(
    ("event", "field"),
    [({"size": -1}, "size"), ({"tags": {"a": 1}}, "tags"), ({"eventName": ""}, "eventName"), ({"other": 1}, "")],
)
async def test_malformed_events_to_come(tmp_path: Path, event: dict[str, Any], field: str) -> None:
    """What is wrong with an announced event is 422 with its number and field."""
    async with place(tmp_path, THUMBNAILS) as at:
        answer = await reserved(at, to_come(), to_come(**event))

    assert (answer.status, answer.json["code"], answer.json["record"]) == (422, "MalformedEvent", 1)
    assert field in answer.json["detail"]


@pytest.mark.parametrize("twice", ["size", "metadata", "metadata.a"])
async def test_an_event_to_come_says_nothing_twice(tmp_path: Path, twice: str) -> None:
    """A name that stands twice in an announced event, or in its metadata, is 422 with its place, and takes no room."""
    member = '"metadata":{"a":"x","a":"y"}' if twice == "metadata.a" else f'"{twice}":null,"{twice}":null'
    first, second = '{"bucket":"photos","object":"a.jpg"}', '{"bucket":"photos","object":"b.jpg",'
    body = f'{{"events":[{first},{second}{member}}}]}}'
    async with place(tmp_path, THUMBNAILS) as at:
        answer = await at.site.ask("POST", RESERVATIONS, body.encode())

        assert (answer.status, answer.json["record"], answer.json["field"]) == (422, 1, twice)
        assert "stands twice" in answer.json["detail"]
        assert await room(at) == {}
