"""The ingest API's requests and answers, over a real socket, before a store that answers as scripted."""

from __future__ import annotations

import gzip
import json
import logging
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from remora.codec.event_entry import decode
from remora.codec.s3_events import MOST_BUCKET, MOST_KEY
from remora.codec.shard_hash import shard
from remora.model import errors
from remora.model.errors import RemoraError
from remora.model.ingest import ReservedRoom
from remora.model.topic import SequenceState
from remora.servers import tokens
from remora.servers.ingest import problems
from remora.servers.ingest.answers import openapi_document
from remora.servers.ingest.api import ROUTES, template_of
from remora.servers.ingest.desk import ONCE
from remora.servers.ingest.problems import TOO_MANY, RefusedRequest
from remora.servers.ingest.request_reader import BodyForm, Event, EventToCome, has_lines, rooms_of
from support.ingest import PromptStore, ScriptedStore, Site, ingest_site, ndjson, own_topic, record, records

EVENTS = "/v1/topics/t/events"
RESERVATIONS = "/v1/topics/t/reservations"
BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "additionalProperties")
"""What a JSON Schema says of values."""


@pytest.fixture(params=[ScriptedStore, PromptStore])
def store(request: pytest.FixtureRequest) -> ScriptedStore:
    """A store with the topics t and closed; of either kind, whose requests go either way."""
    found = request.param(own_topic("t"), own_topic("u", closed=True))
    assert isinstance(found, ScriptedStore)
    return found


@pytest.fixture
async def site(store: ScriptedStore, tmp_path: Path) -> AsyncIterator[Site]:
    """A server before it."""
    async with ingest_site(store, tmp_path) as running:
        yield running


def keys(store: ScriptedStore) -> list[list[bytes]]:
    """The keys of the events of each request that was stored."""
    return [[decode(each.payload).event.object_key for each in events] for _, events, _ in store.published]


# ------------------------------------------------------------------------------------------- one step


async def test_events_are_stored_in_their_order_and_counted(site: Site, store: ScriptedStore) -> None:
    """The answer says how many there were; the store got them in order, each with the shard of its key."""
    answer = await site.ask("POST", EVENTS, records("b", "a", "c"))

    assert (answer.status, answer.json) == (200, {"stored": 3, "repeated": False, "dropped_fields": 0})
    assert keys(store) == [[b"b", b"a", b"c"]]
    _, events, once = store.published[0]
    assert [each.shard for each in events] == [shard(b"b:" + key, 3) for key in (b"b", b"a", b"c")]
    assert once is None
    assert site.metric("remora_ingested_events_total", topic="t") == 3
    assert site.metric("remora_ingested_bytes_total", topic="t") == sum(len(each.payload) for each in events)


@pytest.mark.parametrize(
    "content_type", ["application/x-ndjson", "application/ndjson", "application/x-ndjson; charset=utf-8"]
)
async def test_lines_are_records_or_documents_of_them(site: Site, store: ScriptedStore, content_type: str) -> None:
    """Every line of NDJSON is one record or a document with several, and their order is kept."""
    body = ndjson(record("1"), records("2", "3"), record("4"))

    answer = await site.ask("POST", EVENTS, body, {"Content-Type": content_type})

    assert (answer.status, answer.json["stored"]) == (200, 4)
    assert keys(store) == [[b"1", b"2", b"3", b"4"]]


async def test_a_body_without_type_is_json(site: Site) -> None:
    """Simple senders of webhooks name no type."""
    answer = await site.ask("POST", EVENTS, records("a"), {"Content-Type": ""})

    assert answer.status == 200


async def test_a_gzip_body_is_inflated(site: Site, store: ScriptedStore) -> None:
    """What is stored is what the sender compressed."""
    body = gzip.compress(ndjson(*(record(str(i)) for i in range(500))))

    answer = await site.ask("POST", EVENTS, body, {"Content-Encoding": "gzip", "Content-Type": "application/x-ndjson"})

    assert (answer.status, answer.json["stored"]) == (200, 500)
    assert keys(store) == [[str(i).encode() for i in range(500)]]


@pytest.mark.parametrize(
    "body",
    [b"no gzip", gzip.compress(b'{"Records":[]}')[:-9], gzip.compress(b"{}") + b"more"],
    ids=["other", "cut short", "more behind"],
)
async def test_a_broken_gzip_body_is_refused(site: Site, store: ScriptedStore, body: bytes) -> None:
    """Nothing of it is stored."""
    answer = await site.ask("POST", EVENTS, body, {"Content-Encoding": "gzip"})

    assert (answer.status, answer.code) == (400, "BadRequest")
    assert store.is_untouched


async def test_a_zstd_body_is_decoded(site: Site, store: ScriptedStore) -> None:
    """What is stored is what the sender compressed, also where its parts come one by one."""
    body = zstandard.compress(ndjson(*(record(str(i)) for i in range(500))))
    headers = {"Content-Encoding": "zstd", "Content-Type": "application/x-ndjson"}

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    for sent in (body, parts()):
        answer = await site.ask("POST", EVENTS, sent, headers)

        assert (answer.status, answer.json["stored"]) == (200, 500)
    assert keys(store) == [[str(i).encode() for i in range(500)]] * 2


_ONE = zstandard.compress(b'{"Records":[]}')


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no zstd", "is not zstd"),
        (gzip.compress(b"{}"), "is not zstd"),
        (_ONE[:-3], "ends early"),
        (_ONE + b"more", "more behind"),
        (_ONE + _ONE, "more behind"),
        (b"\x28\xb5\x2f\xfd\x00\x70\x09\x00\x00x", "is not zstd"),
    ],
    ids=["other", "gzip", "cut short", "more behind", "two frames", "window of 16 MiB"],
)
async def test_a_broken_zstd_body_is_refused(site: Site, store: ScriptedStore, body: bytes, reason: str) -> None:
    """Nothing of it is stored, and the problem names what is wrong."""
    answer = await site.ask("POST", EVENTS, body, {"Content-Encoding": "zstd"})

    assert (answer.status, answer.code) == (400, "BadRequest")
    assert reason in answer.json["detail"]
    assert store.is_untouched


async def test_other_encodings_are_refused_with_those_that_there_are(site: Site, store: ScriptedStore) -> None:
    """415 with Accept-Encoding."""
    answer = await site.ask("POST", EVENTS, records("a"), {"Content-Encoding": "br"})

    assert (answer.status, answer.headers["Accept-Encoding"]) == (415, "gzip, zstd")
    assert store.is_untouched


async def test_a_chunked_body_is_taken(site: Site, store: ScriptedStore) -> None:
    """A sender need not know the length before."""

    async def chunks() -> AsyncIterator[bytes]:
        for line in ndjson(record("1"), record("2")).splitlines(keepends=True):
            yield line

    answer = await site.ask("POST", EVENTS, chunks(), {"Content-Type": "application/x-ndjson"})

    assert answer.status == 200
    assert keys(store) == [[b"1", b"2"]]


async def test_members_without_a_place_are_dropped_and_counted(site: Site) -> None:
    """The sender learns how many, and so does the metric."""
    answer = await site.ask("POST", EVENTS, {"Records": [record("a", glacierEventData={}, other=1)]})

    assert answer.json["dropped_fields"] == 2
    assert site.metric("remora_ingest_dropped_fields_total", topic="t") == 2


@pytest.mark.parametrize("key", ["order-7", '"order-7"'])
async def test_an_idempotency_key_makes_a_repeat_recognisable(site: Site, store: ScriptedStore, key: str) -> None:
    """The store gets key and digest, equal for an equal request and different for another body or type."""
    headers = {"Idempotency-Key": key}
    first = await site.ask("POST", EVENTS, records("a"), headers)
    again = await site.ask("POST", EVENTS, records("a"), headers)
    await site.ask("POST", EVENTS, records("b"), headers)
    await site.ask(
        "POST", EVENTS, json.dumps(records("a")).encode(), headers | {"Content-Type": "application/x-ndjson"}
    )

    assert (first.json["repeated"], again.json["repeated"]) == (False, True)
    assert site.metric("remora_ingest_repeats_total", topic="t") == 1
    asked = [once for _, _, once in store.published]
    assert [once.key for once in asked if once] == ["order-7"] * 3
    assert len({once.digest for once in asked if once}) == 3


async def test_events_without_id_get_the_same_ones_in_a_repeat(site: Site, store: ScriptedStore) -> None:
    """Made from key and place, ids do not depend on when the request came; without a key they are new each time."""
    bare = {"Records": [{k: v for k, v in record("a").items() if k != "eventId"}] * 2}
    for headers in ({"Idempotency-Key": "1"}, {"Idempotency-Key": "2"}, {}, {}):
        await site.ask("POST", EVENTS, bare, headers)
    store.published.append(store.published[0])  # as the first time
    ids = [tuple(decode(each.payload).event.event_id for each in events) for _, events, _ in store.published]

    del store.published[:]
    await site.ask("POST", EVENTS, bare, {"Idempotency-Key": "1"})
    repeated = tuple(decode(each.payload).event.event_id for each in store.published[0][1])

    assert repeated == ids[0]
    assert len({each for pair in ids[:4] for each in pair}) == 8


@pytest.mark.parametrize("key", ["", "a b", '""', "ä", "x" * 256])
async def test_a_bad_idempotency_key_is_refused(site: Site, store: ScriptedStore, key: str) -> None:
    """It has to be 1 to 255 visible ASCII characters."""
    answer = await site.ask("POST", EVENTS, records("a"), {"Idempotency-Key": key})

    assert (answer.status, answer.code, answer.json["field"]) == (400, "BadRequest", "Idempotency-Key")
    assert store.is_untouched


@pytest.mark.parametrize("name", ONCE)
async def test_a_header_that_decides_stands_once(site: Site, store: ScriptedStore, name: str) -> None:
    """It would be open which one is meant, and who is ahead may take another one; also where all are the same."""
    for second in ("b", "a"):
        headers = CIMultiDict([(name, "a"), (name, second)])
        answer = await site.ask("POST", EVENTS, records("a"), headers)

        assert (answer.status, answer.code, answer.json["field"]) == (400, "BadRequest", name)
    assert store.is_untouched


async def test_other_headers_may_stand_twice(site: Site) -> None:
    """What decides nothing may come in several lines, as proxies add it."""
    headers = CIMultiDict([("Via", "1.1 a"), ("Via", "1.1 b"), ("Content-Type", "application/json")])

    assert (await site.ask("POST", EVENTS, records("a"), headers)).status == 200


@pytest.mark.parametrize(("encoding", "is_gzip"), [("x-gzip", True), ("GZIP", True), ("", False), ("Identity", False)])
async def test_encodings_have_other_names(site: Site, store: ScriptedStore, encoding: str, is_gzip: bool) -> None:
    """Older clients call gzip x-gzip, names are in any case, and a header that names none says nothing."""
    body = json.dumps(records("a")).encode()
    answer = await site.ask("POST", EVENTS, gzip.compress(body) if is_gzip else body, {"Content-Encoding": encoding})

    assert (answer.status, answer.json["stored"]) == (200, 1)


async def test_a_test_event_of_s3_is_answered_and_stored_nowhere(site: Site, store: ScriptedStore) -> None:
    """AWS posts it when a bucket is told to notify this topic, and gives up where it is refused."""
    test = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}

    wrapped = {"Type": "Notification", "Message": json.dumps(test)}

    for headers in (
        {},
        {"Idempotency-Key": "1"},
        {"Content-Type": "application/x-ndjson"},
        {"Content-Type": "text/plain"},
    ):
        for body in (test, wrapped):
            answer = await site.ask("POST", EVENTS, body, headers)

            assert (answer.status, answer.json) == (200, {"stored": 0, "repeated": False, "dropped_fields": 0})
    assert site.metric("remora_ingest_test_events_total", topic="t") == 8
    commit = await site.ask("PUT", "/v1/reservations/t.1", test)
    assert (commit.status, commit.code) == (409, "ReservationMismatch")
    assert store.is_untouched


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "text/plain",
        "text/plain; charset=UTF-8",
        "application/octet-stream",
        "binary/octet-stream",
        "application/x-www-form-urlencoded",
    ],
)
async def test_the_body_tells_its_form_where_its_type_does_not(
    site: Site, store: ScriptedStore, given: str | None
) -> None:
    """What S3-compatible senders, curl and SNS send without a type of its own is read as what it is."""
    headers = {"x-amz-sns-rawdelivery": "true"} | ({} if given is None else {"Content-Type": given})
    pretty = json.dumps(records("a", "b"), indent=2).encode()
    bodies = [json.dumps(records("a", "b")).encode(), pretty, b"\n" + ndjson(record("a"), record("b"))]
    bodies.append(ndjson(record("a")) + b"\r\n\n" + ndjson(records("b")))
    wrapped = {"Type": "Notification", "Message": json.dumps(records("a", "b"))}
    bodies.append(json.dumps(wrapped).encode())

    for body in bodies:
        async with site.session.post(
            site.base + EVENTS, data=body, headers=headers, skip_auto_headers=["Content-Type"]
        ) as answer:
            assert (answer.status, (await answer.json())["stored"]) == (200, 2), body

    assert [[each.key for each in events] for _, events, _ in store.published] == [[b"b:a", b"b:b"]] * len(bodies)


_VALUES = st.recursive(
    st.text(max_size=5) | st.integers() | st.none(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text(max_size=3), _VALUES, max_size=3)


@given(
    st.lists(_OBJECTS, min_size=1, max_size=4),
    st.sampled_from([None, 0, 1, "\t"]),
    st.booleans(),
    st.sampled_from([b"\n", b"\r\n", b" \n\n\t"]),
)
def test_lines_and_documents_are_told_apart(
    objects: list[dict[str, object]], indent: int | str | None, ascii_only: bool, end: bytes
) -> None:
    """Several objects, one a line, are lines, and one object is a document, however it is laid out."""
    laid_out = [json.dumps(each, indent=indent, ensure_ascii=ascii_only).encode() for each in objects]
    in_lines = end.join(json.dumps(each, ensure_ascii=ascii_only).encode() for each in objects)

    assert not any(has_lines(BodyForm.OPEN, end + each + end) for each in laid_out)
    assert has_lines(BodyForm.OPEN, end + in_lines + end) == (len(objects) > 1)


async def test_a_form_of_a_web_page_is_no_event(site: Site, store: ScriptedStore) -> None:
    """A body that is what its type says, and no JSON, is refused as that."""
    answer = await site.ask("POST", EVENTS, b"Records=1", {"Content-Type": "application/x-www-form-urlencoded"})

    assert (answer.status, answer.code) == (422, "MalformedEvent")
    assert store.is_untouched


async def test_a_repeat_under_another_type_is_a_repeat(site: Site) -> None:
    """The idempotency key belongs to the body and its form, not to what the sender calls it."""
    headers = {"Idempotency-Key": "1"}

    first = await site.ask("POST", EVENTS, records("a"), headers)
    second = await site.ask("POST", EVENTS, records("a"), headers | {"Content-Type": "text/plain"})

    assert (first.json["repeated"], second.status, second.json["repeated"]) == (False, 200, True)


async def test_an_operator_confirms_subscriptions(
    site: Site, store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """What SNS asks first is refused by name, and the log has the address that confirms it."""
    address = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=2336412f37"
    asked = {"Type": "SubscriptionConfirmation", "Token": "2336412f37", "Message": "You ...", "SubscribeURL": address}

    with caplog.at_level(logging.WARNING, logger="remora"):
        answer = await site.ask("POST", EVENTS, asked, {"Content-Type": "text/plain; charset=UTF-8"})

    assert (answer.status, answer.code, answer.json["field"]) == (403, "SubscriptionUnconfirmed", "Type")
    assert [each for each in caplog.records if address in str(vars(each).get("fields"))]
    assert store.is_untouched


# ------------------------------------------------------------------------------------------ two phases


async def test_room_is_reserved_for_each_event_in_its_shard(site: Site, store: ScriptedStore) -> None:
    """The answer has the reservation, where it is found, and how long it lasts."""
    events = [{"bucket": "b", "object": "a", "bytes": 700}, {"bucket": "b", "object": "ü"}]

    answer = await site.ask("POST", RESERVATIONS, {"events": events})

    assert answer.status == 201
    assert answer.json == {"reservation": "t.1", "expires_in_seconds": 120, "events": 2}
    assert answer.headers["Location"] == "/v1/reservations/t.1"
    other = "b:ü".encode()
    assert store.reserved == [[ReservedRoom(shard(b"b:a", 3), b"b:a", 700), ReservedRoom(shard(other, 3), other, 4096)]]


async def test_a_commit_and_an_abort_reach_their_reservation(site: Site, store: ScriptedStore) -> None:
    """A commit gives the events and a digest of what was asked, an abort nothing."""
    committed = await site.ask("PUT", "/v1/reservations/t.1", records("a"))
    again = await site.ask("PUT", "/v1/reservations/t.1", records("a"))
    aborted = await site.ask("DELETE", "/v1/reservations/t.2")

    assert (committed.status, committed.json) == (200, {"stored": 1, "repeated": False, "dropped_fields": 0})
    assert again.status == 200
    assert (aborted.status, aborted.body) == (204, b"")
    assert store.committed[0][0] == "t.1"
    assert store.committed[0][2] == store.committed[1][2]
    assert store.aborted == ["t.2"]


@pytest.mark.parametrize(
    ("body", "record_", "field"),
    [
        (b"", None, None),
        (b"[]", None, None),
        (b'{"events":[]}', None, "events"),
        (b"{}", None, None),
        (b'{"events":[{"bucket":"b","object":"a"},{"bucket":"b"}]}', 1, None),
        (b'{"events":[{"bucket":"b","object":"a"},{"bucket":"b","object":7}]}', 1, "object"),
        (b'{"events":[{"bucket":"","object":"a"}]}', 0, "bucket"),
        (b'{"events":[{"bucket":"b","object":"a/b"},{"bucket":"a/b","object":"a"}]}', 1, "bucket"),
        (b'{"events":[{"bucket":"b","object":"a","bytes":0}]}', 0, "bytes"),
        (b'{"events":[{"bucket":"b","object":"a","bytes":1.5}]}', 0, "bytes"),
        (b'{"events":[{"bucket":"b","object":"a","size":1}]}', 0, None),
        (b'{"events":[{"bucket":"b","object":"%b"}]}' % (b"x" * 1025), 0, "object"),
        (b'{"events":[{"bucket":"b","object":"\xff"}]}', None, None),
        (b"[" * 100_000, None, None),
        (b'{"events":[{"bucket":"b","object":"a"}],"events":[{"bucket":"b","object":"c"}]}', None, "events"),
        (b'{"events":[{"bucket":"b","object":"a"},{"bucket":"b","object":"a","object":"c"}]}', 1, "object"),
        (rb'{"events":[{"bucket":"b","object":"a","b\u0075cket":"b"}]}', 0, "bucket"),
    ],
)
async def test_a_malformed_reservation_is_refused_with_its_place(
    site: Site, store: ScriptedStore, body: bytes, record_: int | None, field: str | None
) -> None:
    """The problem names the event by its index and the field, and no room is taken."""
    answer = await site.ask("POST", RESERVATIONS, body)

    assert (answer.status, answer.code) == (422, "MalformedEvent")
    assert (answer.json.get("record"), answer.json.get("field")) == (record_, field)
    assert store.is_untouched


# -------------------------------------------------------------------------------------------- refusals


async def test_how_far_a_topic_has_come(site: Site, store: ScriptedStore) -> None:
    """The sequence of a topic is read anew for each request; a topic that numbers no events has none, which is said."""
    store.own["n"] = own_topic("n", is_sequenced=True)
    store.reached = SequenceState(tail=9, delivered=7)

    found = await site.ask("GET", "/v1/topics/n/sequence")
    store.reached = SequenceState(tail=12, delivered=12)
    later = await site.ask("GET", "/v1/topics/n/sequence")
    none = await site.ask("GET", "/v1/topics/t/sequence")

    assert (found.status, found.json) == (200, {"topic": "n", "id": "n-1", "tail": 9, "delivered": 7})
    assert (later.json["tail"], later.json["delivered"]) == (12, 12)
    assert (none.status, none.code) == (404, "NotSequenced")


@pytest.mark.parametrize(
    ("body", "content_type", "place"),
    [
        (b"", "application/json", {}),
        (b"{", "application/json", {}),
        (b"{}", "application/json", {"field": "Records"}),
        (b'{"Records":[]}', "application/json", {"field": "Records"}),
        (json.dumps({"Records": [record("a"), record("b", eventName=7)]}).encode(), "application/json",
         {"record": 1, "field": "eventName"}),
        (json.dumps({"Records": [record("a"), record("b", s3={"bucket": {"name": "b"}})]}).encode(), "application/json",
         {"record": 1, "field": "s3.object.key"}),
        (ndjson(record("a")) + b"\n" + ndjson(record("b", eventTime="today")), "application/x-ndjson",
         {"record": 1, "line": 3, "field": "eventTime"}),
        (ndjson(record("a")) + b"{]\n", "application/x-ndjson", {"record": 1, "line": 2}),
    ],
)  # fmt: skip
async def test_malformed_events_are_refused_with_their_place(
    site: Site, store: ScriptedStore, body: bytes, content_type: str, place: dict[str, Any]
) -> None:
    """The problem has index, line and field of the first wrong record, and those before it are not stored either."""
    answer = await site.ask("POST", EVENTS, body, {"Content-Type": content_type})

    assert (answer.status, answer.code) == (422, "MalformedEvent")
    assert {name: answer.json[name] for name in ("record", "line", "field") if name in answer.json} == place
    assert store.is_untouched


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("POST", "/v1/topics/missing/events", {}, 404, "NoSuchTopic"),
        ("POST", "/v1/topics/no.name/events", {}, 404, "NoSuchTopic"),
        ("POST", "/v1/topics/missing/reservations", {}, 404, "NoSuchTopic"),
        ("GET", "/v1/topics/missing", {}, 404, "NoSuchTopic"),
        ("PUT", "/v1/reservations/missing.1", {}, 404, "NoSuchReservation"),
        ("DELETE", "/v1/reservations/nonsense", {}, 404, "NoSuchReservation"),
        ("DELETE", "/v1/reservations/t.", {}, 404, "NoSuchReservation"),
        ("GET", "/", {}, 404, "NotFound"),
        ("POST", "/v1/topics//events", {}, 404, "NotFound"),
        ("POST", "/v2/topics/t/events", {}, 404, "NotFound"),
        ("POST", "/v1/topics/t/events/", {}, 404, "NotFound"),
        ("POST", EVENTS, {"Content-Type": "text/html"}, 415, "UnsupportedMediaType"),
        ("POST", EVENTS, {"Content-Type": "multipart/form-data; boundary=x"}, 415, "UnsupportedMediaType"),
        ("POST", EVENTS, {"Content-Type": "text/plain; charset=iso-8859-1"}, 415, "UnsupportedMediaType"),
        ("POST", EVENTS, {"Content-Type": "application/json; charset=utf-16"}, 415, "UnsupportedMediaType"),
        ("POST", EVENTS, {"Content-Encoding": "br"}, 415, "UnsupportedMediaType"),
        ("POST", RESERVATIONS, {"Content-Type": "application/x-ndjson"}, 415, "UnsupportedMediaType"),
        ("POST", EVENTS, {"Expect": "a miracle"}, 417, "ExpectationFailed"),
    ],
)
async def test_other_requests_are_refused(
    site: Site, store: ScriptedStore, method: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    """What is not there, or of a wrong kind, has a problem document and changes nothing."""
    answer = await site.ask(method, path, records("a"), headers)

    assert (answer.status, answer.code) == (status, code)
    assert answer.json["type"] == f"urn:remora:problem:{code}"
    assert answer.json["title"]
    assert answer.json["detail"]
    assert store.is_untouched
    assert site.metric("remora_ingest_refusals_total", code=code) == 1


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (EVENTS, {"POST"}),
        (RESERVATIONS, {"POST"}),
        ("/v1/reservations/t.1", {"PUT", "DELETE"}),
        ("/v1/topics", {"GET", "HEAD"}),
        ("/v1/topics/t", {"GET", "HEAD"}),
        ("/v1/openapi.json", {"GET", "HEAD"}),
        ("/v1/health", {"GET", "HEAD"}),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    site: Site, store: ScriptedStore, path: str, allowed: set[str]
) -> None:
    """405 with Allow, for every method that the resource does not have."""
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"} - allowed:
        answer = await site.ask(method, path)
        assert answer.status == 405, method
        assert set(answer.headers["Allow"].split(", ")) == allowed
    assert store.is_untouched


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (errors.QueueFull("full"), 503, "SlowDown", True),
        (errors.StoreFull("a disk"), 507, "StoreFull", True),
        (errors.StoreUnavailable("away"), 503, "StoreUnavailable", True),
        (errors.StoreDamaged("a page"), 500, "StoreDamaged", False),
        (errors.StoreMisconfigured("a pool"), 500, "StoreMisconfigured", False),
        (errors.TopicClosed("drained"), 409, "TopicClosed", False),
        (errors.TopicUnknown("gone"), 404, "NoSuchTopic", False),
        (errors.OnceConflict("other"), 422, "IdempotencyKeyReused", False),
        (errors.RemoraError("a defect"), 500, "InternalError", False),
    ],
)
async def test_what_the_store_refuses_has_a_status_of_its_own(
    site: Site, store: ScriptedStore, error: RemoraError, status: int, code: str, retry: bool
) -> None:
    """The code says what to do, Retry-After that it may succeed later; what only the operator can mend is not shown."""
    store.error = error

    answer = await site.ask("POST", EVENTS, records("a"))

    assert (answer.status, answer.code) == (status, code)
    assert ("Retry-After" in answer.headers) is retry
    is_inward = code.startswith("Store") or code == "InternalError"
    assert (str(error) in answer.json["detail"]) is not is_inward


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ReservationUnknown("never"), 404, "NoSuchReservation"),
        (errors.ReservationExpired("late"), 410, "ReservationExpired"),
        (errors.ReservationMismatch("other key"), 409, "ReservationMismatch"),
        (errors.ReservationExceeded("too large"), 413, "ReservationExceeded"),
        (errors.OnceConflict("other events"), 409, "ReservationDecided"),
    ],
)
async def test_a_refused_commit_says_what_became_of_the_reservation(
    site: Site, store: ScriptedStore, error: RemoraError, status: int, code: str
) -> None:
    """Each way in which a reservation may not fit has a status and code."""
    store.error = error

    answer = await site.ask("PUT", "/v1/reservations/t.1", records("a"))

    assert (answer.status, answer.code) == (status, code)


async def test_an_abort_after_a_commit_is_a_conflict(site: Site, store: ScriptedStore) -> None:
    """It cannot be undone, and the sender learns that."""
    store.error = errors.OnceConflict("committed")

    assert (await site.ask("DELETE", "/v1/reservations/t.1")).code == "ReservationDecided"


async def test_a_defect_is_a_500_without_its_text(site: Site, store: ScriptedStore) -> None:
    """The reason is in the daemon's log and not for everybody; the connection goes on."""
    store.error = errors.RemoraError("secret words")

    answer = await site.ask("POST", EVENTS, records("a"))
    store.error = None

    assert (answer.status, answer.code) == (500, "InternalError")
    assert b"secret" not in answer.body
    assert site.metric("remora_crashes_total") == 1
    assert (await site.ask("POST", EVENTS, records("a"))).status == 200


async def test_too_many_events_are_refused(store: ScriptedStore, tmp_path: Path) -> None:
    """The bound counts for both protocols, and one less is taken."""
    async with ingest_site(store, tmp_path, max_events=2) as site:
        event = {"bucket": "b", "object": "o"}
        assert (await site.ask("POST", EVENTS, records("a", "b", "c"))).code == "TooManyEvents"
        assert (await site.ask("POST", RESERVATIONS, {"events": [event] * 3})).code == "TooManyEvents"
        assert (await site.ask("PUT", "/v1/reservations/t.1", records("a", "b", "c"))).code == "TooManyEvents"
        assert store.is_untouched
        assert (await site.ask("POST", EVENTS, records("a", "b"))).status == 200
        assert (await site.ask("POST", RESERVATIONS, {"events": [event] * 2})).status == 201


async def test_too_many_announced_events_are_refused_before_they_are_decoded(site: Site, store: ScriptedStore) -> None:
    """The memory that it takes is a part of the body's own, however many there are."""
    topic = store.own["t"]
    body = b'{"events":[' + b",".join([b'{"bucket":"b","object":"o"}'] * 200_000) + b"]}"

    tracemalloc.start()
    try:
        with pytest.raises(RefusedRequest) as caught:
            rooms_of(body, topic, 10_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert caught.value.kind is TOO_MANY
    assert peak < len(body)
    assert len(rooms_of(b'{"events":[' + body[11 : 11 + 28 * 10_000 - 1] + b"]}", topic, 10_000)) == 10_000


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}], ids=["at once", "in a task"])
async def test_a_name_that_is_no_text_is_refused_as_others_are(
    site: Site, store: ScriptedStore, headers: dict[str, str]
) -> None:
    """Half of a surrogate pair, which JSON can write and UTF-8 cannot, is escaped in the answer."""
    body = rb'{"\ud800":1,"\ud800":2,"Records":[]}'
    answer = await site.ask("POST", EVENTS, gzip.compress(body) if headers else body, headers)

    assert (answer.status, answer.json["field"]) == (422, r"\ud800")
    assert store.is_untouched


def test_a_refusal_can_be_told_whatever_its_text_is() -> None:
    """A text that UTF-8 cannot write is escaped: a request without an answer would hold its connection for good."""
    assert b"a\\\\udc80b" in RefusedRequest(TOO_MANY, "a\udc80b").document()


async def test_a_topic_that_was_made_anew_is_found_at_once(site: Site, store: ScriptedStore) -> None:
    """What is remembered of a topic is dropped when the store says that it is another one by now."""
    await site.ask("POST", EVENTS, records("a"))
    store.own["t"] = own_topic("t", id="t-2", shards=1)

    answers = [
        await site.ask("POST", EVENTS, records("a")),
        await site.ask("POST", RESERVATIONS, {"events": [{"bucket": "b", "object": "o"}]}),
        await site.ask("PUT", "/v1/reservations/t.1", records("a")),
        await site.ask("DELETE", "/v1/reservations/t.1"),
    ]
    del store.own["t"]
    gone = await site.ask("POST", EVENTS, records("a"))

    assert [each.status for each in answers] == [200, 201, 200, 204]
    assert store.published[-1][0].id == "t-2"
    assert store.published[-1][1][0].shard == 0
    assert (gone.status, gone.code) == (404, "NoSuchTopic")


@pytest.mark.parametrize("prompt", [False, True])
async def test_a_topic_whose_shards_are_changed_is_found_at_once(tmp_path: Path, prompt: bool) -> None:
    """Each kind of request that meets another layout than was looked up is repeated as a whole by that, with the same
    idempotency key; the sender gets one answer and no error, also where the change takes a while."""
    store = (PromptStore if prompt else ScriptedStore)(own_topic("t"))
    async with ingest_site(store, tmp_path) as place:
        await place.ask("POST", EVENTS, records("a"))
        store.own["t"] = own_topic("t", shards=1, generation=1)
        answers = []
        for method, path, body in (
            ("POST", EVENTS, records("a")),
            ("POST", RESERVATIONS, {"events": [{"bucket": "b", "object": "o"}]}),
            ("PUT", "/v1/reservations/t.1", records("a")),
            ("DELETE", "/v1/reservations/t.1", None),
        ):
            store.moving = 3
            answers.append(await place.ask(method, path, body or b"", {"Idempotency-Key": "k"}))

    assert [each.status for each in answers] == [200, 201, 200, 204]
    assert [(topic.generation, events[0].shard) for topic, events, _ in store.published[-1:]] == [(1, 0)]
    assert len(store.published) == 2
    assert [room.shard for room in store.reserved[0]] == [0]
    assert [event.shard for event in store.committed[0][1]] == [0]


# ----------------------------------------------------------------------------------------------- looks


async def test_topics_are_shown_without_credentials(site: Site) -> None:
    """A client sees where events go and whether they are taken, and no password."""
    shown = {"shards": 3, "endpoint": "kafka://broker:9092"}
    t = {"name": "t", "kafka_topic": "t-events", "closed": False} | shown
    u = {"name": "u", "kafka_topic": "u-events", "closed": True} | shown

    assert (await site.ask("GET", "/v1/topics")).json == {"topics": [t, u]}
    assert (await site.ask("GET", "/v1/topics/u")).json == u
    assert (await site.ask("HEAD", "/v1/topics/u")).body == b""


async def test_health_is_told(site: Site) -> None:
    """Something to ask for a load balancer."""
    assert (await site.ask("GET", "/v1/health")).json == {"ok": True}


async def test_the_openapi_document_is_served_and_has_exactly_the_routes(site: Site) -> None:
    """Each path and method of the document is one that the server has, and the other way round."""
    document = (await site.ask("GET", "/v1/openapi.json")).json

    described = {path: {method.upper() for method in methods} for path, methods in document["paths"].items()}
    assert described == {path: set(operations) for path, operations in ROUTES.items()}
    assert all(template_of(path.replace("{topic}", "t").replace("{reservation}", "t.1"))[0] == path for path in ROUTES)


def test_every_code_of_a_problem_is_in_the_openapi_document() -> None:
    """A client's author finds each code there."""
    text = openapi_document().decode()

    assert len(problems.ALL) > 25
    assert [each.code for each in problems.ALL if each.code not in text and each.status not in (404, 405)] == []


@pytest.mark.parametrize(("name", "kind"), [("Announced", Event), ("AnnouncedMatching", EventToCome)])
def test_the_openapi_document_bounds_announced_events_as_the_server_does(name: str, kind: type[Event]) -> None:
    """Whatever a reservation may say of an event is in the document with just the types and bounds that the server
    has, save that the document counts the characters of names that the server counts in bytes."""
    document = json.loads(openapi_document())["components"]["schemas"][name]["properties"]["events"]["items"]
    (_, kinds) = msgspec.json.schema_components([kind])

    def bounds(schema: dict[str, Any]) -> dict[str, Any]:
        options = schema.get("anyOf", [schema])
        found = {key: value for each in options for key, value in each.items() if key in BOUNDS}
        types = [each["type"] for each in options]
        return found | {"type": sorted(types if isinstance(types[0], str) else types[0])}

    properties = kinds[kind.__name__]["properties"]
    assert document["properties"].keys() == properties.keys()
    for each, schema in properties.items():
        described = bounds(document["properties"][each])
        if each in ("bucket", "object"):
            assert described.pop("maxLength") in (MOST_BUCKET, MOST_KEY)
        assert described == bounds(schema), each


# ---------------------------------------------------------------------------------------------- tokens


@pytest.fixture
async def guarded(store: ScriptedStore, tmp_path: Path) -> AsyncIterator[tuple[Site, str]]:
    """A server with a token that may send to t only."""
    token = tokens.new_token()
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(tokens.line_of("x", token, "t"))
    async with ingest_site(store, tmp_path, tokens=str(path)) as running:
        yield running, token


async def test_without_a_known_token_nothing_is_taken(guarded: tuple[Site, str], store: ScriptedStore) -> None:
    """401 and how to send one, for no token, another scheme, and an unknown one."""
    site, token = guarded
    for wrong in ({}, {"Authorization": f"Basic {token}"}, {"Authorization": "Bearer "}, {"Authorization": token}):
        answer = await site.ask("POST", EVENTS, records("a"), wrong)
        assert (answer.status, answer.code) == (401, "Unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="remora"')
    unknown = await site.ask("POST", EVENTS, records("a"), {"Authorization": f"Bearer {tokens.new_token()}"})
    assert 'error="invalid_token"' in unknown.headers["WWW-Authenticate"]
    assert store.is_untouched


async def test_a_token_may_send_to_its_topics_only(guarded: tuple[Site, str], store: ScriptedStore) -> None:
    """Other topics are 403 whether they exist or not, and are not listed."""
    site, token = guarded
    bearer = {"Authorization": f"bearer {token}"}

    assert (await site.ask("POST", EVENTS, records("a"), bearer)).status == 200
    assert (await site.ask("DELETE", "/v1/reservations/t.1", headers=bearer)).status == 204
    del store.published[:], store.aborted[:]
    for method, path in (
        ("POST", "/v1/topics/u/events"),
        ("POST", "/v1/topics/missing/events"),
        ("POST", "/v1/topics/u/reservations"),
        ("PUT", "/v1/reservations/u.1"),
        ("DELETE", "/v1/reservations/u.1"),
        ("DELETE", "/v1/reservations/nonsense"),
        ("GET", "/v1/topics/u"),
        ("GET", "/v1/topics/u/sequence"),
        ("GET", "/v1/topics/missing/sequence"),
    ):
        answer = await site.ask(method, path, records("a"), bearer)
        assert (answer.status, answer.code) == (403, "Forbidden")
    listed = await site.ask("GET", "/v1/topics", headers=bearer)
    assert [each["name"] for each in listed.json["topics"]] == ["t"]
    assert store.is_untouched


async def test_health_and_the_document_need_no_token(guarded: tuple[Site, str]) -> None:
    """Neither tells anything about topics."""
    site, _ = guarded

    assert (await site.ask("GET", "/v1/health")).status == 200
    assert (await site.ask("GET", "/v1/openapi.json")).status == 200
    assert (await site.ask("GET", "/v1/topics")).status == 401


async def test_tokens_are_read_again(guarded: tuple[Site, str], tmp_path: Path) -> None:
    """A new token counts and an old one no longer; a file that is refused leaves those that count."""
    site, old = guarded
    new = tokens.new_token()
    path = tmp_path / "tokens"

    async def status(token: str) -> int:
        return (await site.ask("GET", "/v1/topics/t", headers={"Authorization": f"Bearer {token}"})).status

    path.write_text(tokens.line_of("x", new, "t"))
    site.server.reload(site.settings)
    assert (await status(old), await status(new)) == (401, 200)

    path.write_text("nonsense")
    site.server.reload(site.settings)
    assert (await status(old), await status(new)) == (401, 200)
