"""`POST /v1/events`: events without a topic go where notifications send them, into a real embedded store."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remora.codec.event_entry import decode
from remora.codec.trace_context import context_of, text
from remora.config import LimitSettings
from remora.model.notification import EventFilter, Notification
from remora.servers import tokens
from remora.servers.ingest import desk, matches
from support.credit import Host, shaping
from support.ingest import ndjson, own_topic
from support.notified import EVENTS, REMOVALS, THUMBNAILS, TOPICS, photo, place


async def test_each_match_sends_a_copy_to_each_topic(tmp_path: Path) -> None:
    """Each notification that an event matches sends a copy to each of its topics, with its id as configurationId; what
    matches nothing is counted and answered with success."""
    async with place(tmp_path, THUMBNAILS, REMOVALS, replace(THUMBNAILS, id="twice", topics=("thumbs",))) as at:
        answer = await at.send(
            photo("a.jpg"), photo("b.png"), photo("c.jpg", bucket="films"), photo("d.txt", "ObjectRemoved:Delete")
        )

        assert (answer.status, answer.json) == (
            200, {"accepted": 2, "unmatched": 2, "topics": {"thumbs": 2, "audit": 2}},
        )  # fmt: skip
        assert await at.keys("thumbs") == {("a.jpg", "thumbnails"): 1, ("a.jpg", "twice"): 1}
        assert await at.keys("audit") == {("a.jpg", "thumbnails"): 1, ("d.txt", "removals"): 1}
        assert await at.keys("other") == {}
        assert at.site.metric("remora_ingest_unmatched_total") == 2
        assert at.site.metric("remora_ingested_events_total", topic="thumbs") == 2
        assert at.site.metric("remora_ingested_events_total", topic="audit") == 2


async def test_what_became_of_a_bucket_is_known(tmp_path: Path) -> None:
    """Of each bucket the daemon knows which notifications sent something, and the last event that matched none with the
    rule that kept it out, also where that refused the whole request."""
    async with place(tmp_path, THUMBNAILS, REMOVALS) as at:
        await at.send(photo("a.jpg"), photo("b.png"), photo("c.jpg", bucket="films"))

        films, photos = sorted(at.site.telemetry.buckets.rows(), key=lambda row: str(row["bucket"]))
        assert list(photos["sent"]) == ["thumbnails"]
        assert (photos["filtered"]["key"], photos["filtered"]["event"]) == ("b.png", "ObjectCreated:Put")
        assert photos["filtered"]["rules"] == {"removals": "events", "thumbnails": "suffix"}
        assert (films["sent"], films["filtered"]["rules"]["thumbnails"]) == ({}, "buckets")
    (tmp_path / "other").mkdir()
    async with place(tmp_path / "other", THUMBNAILS, unmatched="refuse") as at:
        assert (await at.send(photo("b.png"))).status == 422
        (photos,) = at.site.telemetry.buckets.rows()
        assert photos["filtered"]["key"] == "b.png"


async def test_a_copy_is_an_entry_of_its_topic(tmp_path: Path) -> None:
    """A copy is what sending its record to the topic itself stores, but for the configuration's id, with the trace
    context behind it."""
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given = photo(metadata=[{"key": "x-amz-meta-a", "val": "1"}], tags=[{"key": "t", "val": "v"}])
    async with place(
        tmp_path, THUMBNAILS, change=lambda topic: replace(topic, opaque_data=b"of topic", max_retries=7)
    ) as at:
        await at.send(given, traceparent=context)
        await at.site.ask("POST", "/v1/topics/thumbs/events", {"Records": [given]})

        (copy, own) = await at.entries("thumbs")
        assert text(context_of(copy)).decode() == context
        entry, expected = decode(copy), decode(own)
        assert entry.event == replace(expected.event, configuration_id=b"thumbnails")
        assert replace(entry, event=expected.event, creation_time=expected.creation_time) == expected


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (json.dumps({"Records": [photo("a.jpg"), photo("b.jpg")]}).encode(), {}),
        (ndjson(photo("a.jpg"), photo("b.jpg")), {"Content-Type": "application/x-ndjson"}),
        (ndjson(photo("a.jpg"), photo("b.jpg")), {"Content-Type": "text/plain"}),
        (gzip.compress(ndjson({"Records": [photo("a.jpg"), photo("b.jpg")]})), {"Content-Encoding": "gzip"}),
        (
            json.dumps({
                "Type": "Notification", "Message": json.dumps({"Records": [photo("a.jpg"), photo("b.jpg")]}),
            }).encode(),
            {"Content-Type": "text/plain"},
        ),
    ],
    ids=["document", "lines", "lines as text", "gzip", "envelope"],
)  # fmt: skip
async def test_every_form_of_a_body(tmp_path: Path, body: bytes, headers: dict[str, str]) -> None:
    """A document, lines, a compressed body and an envelope of SNS are all taken."""
    async with place(tmp_path, THUMBNAILS) as at:
        answer = await at.site.ask("POST", EVENTS, body, headers)

        assert answer.json == {"accepted": 2, "unmatched": 0, "topics": {"thumbs": 2, "audit": 2}}
        assert await at.keys("thumbs") == {("a.jpg", "thumbnails"): 1, ("b.jpg", "thumbnails"): 1}


async def test_a_test_event_is_answered_and_stored_nowhere(tmp_path: Path) -> None:
    """S3's test event is answered with success, and what cannot be read is refused as for a topic."""
    async with place(tmp_path, THUMBNAILS) as at:
        tested = await at.site.ask("POST", EVENTS, {"Service": "Amazon S3", "Event": "s3:TestEvent"})
        wrong = await at.site.ask("POST", EVENTS, {"Records": [{"eventName": "ObjectCreated:Put"}]})

        assert (tested.status, tested.json) == (200, {"accepted": 0, "unmatched": 0, "topics": {}})
        assert (wrong.status, wrong.code) == (422, "MalformedEvent")


async def test_unmatched_events_can_be_refused(tmp_path: Path) -> None:
    """With ingest.unmatched = "refuse" a request with one such event is refused as a whole, and names its bucket."""
    async with place(tmp_path, THUMBNAILS, unmatched="refuse") as at:
        answer = await at.send(photo("a.jpg"), photo("b.jpg", bucket="films"))

        assert (answer.status, answer.code) == (422, "NoNotificationMatches")
        assert "films" in answer.json["detail"]
        assert await at.keys("thumbs") == {}
        assert at.site.metric("remora_ingest_unmatched_total") == 0
        assert (await at.send(photo("a.jpg"))).status == 200


async def test_filters_on_what_a_record_says(tmp_path: Path) -> None:
    """Size, metadata, MinIO's user metadata and tags of a record count as a filter says."""
    of = {
        "large": EventFilter(size_min=10),
        "hot": EventFilter(metadata=(("x-amz-meta-class", "hot"),)),
        "tagged": EventFilter(tags=(("project", "remora"),)),
    }
    async with place(tmp_path, *(Notification(name, ("other",), filter=each) for name, each in of.items())) as at:
        await at.send(
            photo("1", size=10),
            photo("2", metadata=[{"key": "x-amz-meta-class", "val": "hot"}]),
            photo("3", userMetadata={"X-Amz-Meta-Class": "hot", "content-type": "text/plain"}),
            photo("4", tags=[{"key": "project", "val": "other"}, {"key": "project", "val": "remora"}]),
            photo("5"),
        )

        assert await at.keys("other") == {("1", "large"): 1, ("2", "hot"): 1, ("3", "hot"): 1, ("4", "tagged"): 1}
        assert at.site.metric("remora_ingest_unmatched_total") == 1


async def test_keys_are_decoded_before_they_are_compared(tmp_path: Path) -> None:
    """A prefix is compared with the key itself, which S3's senders write URL-encoded."""
    async with place(tmp_path, Notification("n", ("other",), filter=EventFilter(prefix="a b/é"))) as at:
        answer = await at.send(photo("a+b/%C3%A9.jpg") | {"eventSource": "aws:s3"}, photo("a b/é.jpg"))

        assert answer.json["topics"] == {"other": 2}


async def test_a_repeat_keeps_the_topics_of_its_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeat under its key stores nothing and has the first answer, whatever the definitions say by then; the key is
    refused for another body."""
    monkeypatch.setattr(matches, "FRESH_S", 0.0)
    async with place(tmp_path, THUMBNAILS) as at:
        first = await at.send(photo("a.jpg"), **{"Idempotency-Key": "k"})
        await at.store.notifications.change(THUMBNAILS, replace(THUMBNAILS, topics=("other",)))
        again = await at.send(photo("a.jpg"), **{"Idempotency-Key": "k"})
        other = await at.send(photo("b.jpg"), **{"Idempotency-Key": "k"})

        assert first.status == 200
        assert (again.status, again.json) == (200, first.json)
        assert (other.status, other.code) == (422, "IdempotencyKeyReused")
        assert [len(await at.entries(name)) for name in TOPICS] == [1, 1, 0]
        assert at.site.metric("remora_ingested_events_total", topic="thumbs") == 1
        assert at.site.metric("remora_ingest_repeats_total", topic="thumbs") == 1


async def test_events_without_an_id_get_one_from_the_key(tmp_path: Path) -> None:
    """All copies of an event that came without an id have the same one, two events do not."""
    bare = [{name: value for name, value in photo(key).items() if name != "eventId"} for key in ("a.jpg", "b.jpg")]
    async with place(tmp_path, THUMBNAILS) as at:
        await at.send(*bare, **{"Idempotency-Key": "k"})

        by_topic = [{each.object_key: each.event_id for each in await at.found(name)} for name in ("thumbs", "audit")]
        assert by_topic[0] == by_topic[1]
        assert len(set(by_topic[0].values())) == 2


async def test_one_topic_refuses_the_whole_request(tmp_path: Path) -> None:
    """Where one of the topics is closed or full nothing is stored in any, and the answer names it."""
    async with place(tmp_path, THUMBNAILS) as at:
        topic = await at.topic("audit")
        await at.store.own_topics.change(replace(topic, closed=True))

        closed = await at.send(photo("a.jpg"))

        assert (closed.status, closed.code) == (409, "TopicClosed")
        assert "audit" in closed.json["detail"]
        assert await at.keys("thumbs") == {}


async def test_a_topic_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions and topics are read anew once before a topic counts as gone: one that was made anew is stored to, a
    changed notification counts, and one that is gone refuses the request by name."""
    monkeypatch.setattr(matches, "FRESH_S", 3600.0)
    monkeypatch.setattr(desk, "FRESH_S", 3600.0)
    async with place(tmp_path, THUMBNAILS) as at:
        assert (await at.send(photo("a.jpg"))).status == 200
        with monkeypatch.context() as patch:  # as an older remora, which looks before it removes, but not meanwhile
            patch.setattr("remora.storage.sqlite.topics.own_topics.check_removal", lambda *_: None)
            await at.store.own_topics.remove(await at.topic("audit"), discard=True)
            await at.store.own_topics.create(replace(own_topic("audit"), id=""))

            anew = await at.send(photo("b.jpg"))
            await at.store.own_topics.remove(await at.topic("audit"), discard=True)
        gone = await at.send(photo("c.jpg"))
        await at.store.notifications.change(THUMBNAILS, replace(THUMBNAILS, topics=("thumbs",)))
        changed = await at.send(photo("d.jpg"))

        assert anew.json["topics"] == {"thumbs": 1, "audit": 1}
        assert (gone.status, gone.code) == (404, "NoSuchTopic")
        assert "audit" in gone.json["detail"]
        assert changed.json["topics"] == {"thumbs": 1}
        assert {key for key, _ in await at.keys("thumbs")} == {"a.jpg", "b.jpg", "d.jpg"}


async def test_changed_definitions_count_within_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions are read anew when what is known of them is two seconds old, and not before."""
    assert matches.FRESH_S == 2.0
    monkeypatch.setattr(matches, "FRESH_S", 3600.0)
    async with place(tmp_path) as at:
        assert (await at.send(photo("a.jpg"))).json["unmatched"] == 1
        await at.store.notifications.change(None, THUMBNAILS)
        assert (await at.send(photo("a.jpg"))).json["unmatched"] == 1
        monkeypatch.setattr(matches, "FRESH_S", 0.0)
        at.site.server._desk.definitions.forget()
        assert (await at.send(photo("a.jpg"))).json["topics"] == {"thumbs": 1, "audit": 1}


async def test_tokens_of_buckets(tmp_path: Path) -> None:
    """A token may send events of the buckets that it has a right to, and of no others; one for topics alone may send
    nothing without a topic, and one for buckets alone nothing to a topic."""
    of_photos, of_topics, of_both = tokens.new_token(), tokens.new_token(), tokens.new_token()
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(
        f"{tokens.line_of('a', of_photos, '', 'pho*,raw-*')}\n{tokens.line_of('b', of_topics, '*')}\n"
        f"{tokens.line_of('c', of_both, 'thumbs', '*')}\n"
    )
    async with place(tmp_path, replace(THUMBNAILS, buckets=()), tokens=str(path)) as at:

        async def status(token: str, *given: dict[str, Any], path: str = EVENTS) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return (await at.site.ask("POST", path, {"Records": given}, headers)).status

        assert await status("", photo()) == 401
        assert await status(of_topics, photo()) == 403
        assert await status(of_photos, photo(), photo(bucket="films")) == 403
        (films,) = [row for row in at.site.telemetry.buckets.rows() if row["refused"]]
        assert (films["bucket"], films["refused"]["token"]) == ("films", "a")
        assert await status(of_photos, photo(), path="/v1/topics/thumbs/events") == 403
        assert await at.keys("thumbs") == {}
        assert await status(of_photos, photo(), photo("b.jpg", bucket="raw-1")) == 200
        assert await status(of_both, photo(bucket="films")) == 200
        assert await status(of_both, photo(), path="/v1/topics/thumbs/events") == 200


async def test_limits_count_each_copy(tmp_path: Path) -> None:
    """A limit of a topic counts each copy that goes there; one that is used up refuses the whole request, which costs
    nothing in the other topics. A limit of a token counts each event once."""
    limit = LimitSettings(name="audits", of="topic", match=("audit",), events=1, burst_events=2)
    host = Host(shaping(), limits=[limit])
    async with place(tmp_path, THUMBNAILS, REMOVALS, bank=host.bank(), limit=(limit,)) as at:
        taken = await at.send(photo("a.jpg"), photo("b.jpg"), photo("c.jpg"))
        refused = await at.send(photo("d.jpg"))

        assert taken.json["topics"] == {"thumbs": 3, "audit": 3}
        assert (refused.status, refused.code) == (429, "RateLimited")
        assert "audit" in refused.json["detail"]
        assert len(await at.entries("thumbs")) == 3


async def test_copies_have_a_bound(tmp_path: Path) -> None:
    """A request whose copies would be many times as large as a request may be is refused."""
    many = [Notification(f"n{i}", TOPICS) for i in range(40)]
    async with place(tmp_path, *many, max_request_bytes=10_000) as at:
        answer = await at.send(*(photo(f"{i}.jpg") for i in range(9)))

        assert (answer.status, answer.code) == (413, "EntityTooLarge")
        assert await at.keys("thumbs") == {}


async def test_a_sequenced_topic_numbers_its_copies(tmp_path: Path) -> None:
    """A topic with a sequence among the targets numbers the copies that it gets."""
    async with place(
        tmp_path, THUMBNAILS, change=lambda topic: replace(topic, is_sequenced=topic.name == "audit")
    ) as at:
        await at.send(photo("a.jpg"), photo("b.jpg"))

        assert (await at.store.own_topics.sequence(await at.topic("audit"))).tail == 2
