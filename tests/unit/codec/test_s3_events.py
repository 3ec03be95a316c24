"""Records in S3's format become the entries that they should, or are refused with the place and the reason."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from remora.codec import rendering_plain, s3_bodies, s3_records, shard_hash, speedups
from remora.codec.event_entry import decode, encode
from remora.codec.json_pieces import WINDOW
from remora.codec.s3_events import MalformedEvent, TooManyEvents, Unconfirmed
from remora.codec.shard_hash import shard
from remora.model.entry import EventEntry, S3Event, Time
from remora.model.ingest import RoutedEvent
from remora.model.topic import UNSET, Target, Topic
from support.placed import place
from unit.codec.samples import mutated, real_pairs

CREATED = Time(1_800_000_000, 5)
SEED = b"a seed"
TOPIC = Topic("t", "", "t", Target("kafka://h:9092", "kafka-ack-level=broker", "dest"), shards=11, id="1")

Record = dict[str, Any]


@pytest.fixture(scope="module", params=["compiled", "python"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test here holds for what is compiled and for what stands in for it."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "python":
            patched.setattr(speedups, "RecordEncoder", None)
            patched.setattr(speedups, "shards", shard_hash.shards)
        yield request.param


def placed(body: bytes, topic: Topic = TOPIC, *, ndjson: bool = False, most: int = 10_000) -> list[RoutedEvent]:
    """All events of a body."""
    parts = place(body, topic, ndjson=ndjson, most=most, created=CREATED, seed=SEED)
    return [event for part in parts for event in part.events]


def dropped(body: bytes) -> int:
    """How many members of a document's records were dropped."""
    return sum(part.dropped for part in place(body, TOPIC, ndjson=False, most=10, created=CREATED, seed=SEED))


def event_of(found: Record) -> S3Event:
    """The event that is stored of one record."""
    (only,) = placed(document(found))
    return decode(only.payload).event


def document(*records: object) -> bytes:
    """Records in the form of a notification, as compact as radosgw writes it."""
    return json.dumps({"Records": records}, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def lines(*records: object) -> bytes:
    """Records one a line."""
    return b"".join(document(each)[12:-2] + b"\n" for each in records)


def plainly(found: s3_bodies.Records, topic: Topic = TOPIC) -> list[RoutedEvent]:
    """The events of records, with entries as `event_entry` writes them: what both ways have to agree with."""
    target = topic.target
    result = []
    for each in found:
        assert isinstance(each, s3_records.Found)
        event, _ = s3_records.read(each, CREATED, SEED)
        entry = EventEntry(
            event=replace(event, opaque_data=topic.opaque_data) if topic.opaque_data else event,
            push_endpoint=target.uri.encode(),
            push_endpoint_args=target.args.encode(),
            arn_topic=target.topic.encode(),
            creation_time=CREATED,
            time_to_live=UNSET if topic.time_to_live_s is None else topic.time_to_live_s,
            max_retries=UNSET if topic.max_retries is None else topic.max_retries,
            retry_sleep_duration=UNSET if topic.retry_sleep_s is None else topic.retry_sleep_s,
        )
        key = event.bucket_name + b":" + event.object_key
        result.append(RoutedEvent(shard(key, topic.shards), key, encode(entry)))
    return result


def outcome(work: Callable[[], list[RoutedEvent]]) -> object:
    """What came of it: the events, or the refusal in full."""
    try:
        return work()
    except MalformedEvent as error:
        return type(error), error.record, error.line, error.field, error.reason


# ------------------------------------------------------------------------------------- what stores post

CEPH: Record = {
    "eventVersion": "2.2",
    "eventSource": "ceph:s3",
    "awsRegion": "default",
    "eventTime": "2026-11-21T11:44:42.931943Z",
    "eventName": "ObjectCreated:Put",
    "userIdentity": {"principalId": "u1"},
    "requestParameters": {"sourceIPAddress": ""},
    "responseElements": {"x-amz-request-id": "req.1", "x-amz-id-2": "1011-default-default"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "n1",
        "bucket": {
            "name": "bkt",
            "ownerIdentity": {"principalId": "u1"},
            "arn": "arn:aws:s3:default::bkt",
            "id": "11ba4340.4117.1",
        },
        "object": {
            "key": "a+b%20c",
            "size": 17,
            "eTag": "f264",
            "versionId": "",
            "sequencer": "2A84016BD1D0C637",
            "metadata": [],
            "tags": [],
        },
    },
    "eventId": "1795261482.935776.f264",
    "opaqueData": "",
}

AWS: Record = {
    "eventVersion": "2.1",
    "eventSource": "aws:s3",
    "awsRegion": "us-west-2",
    "eventTime": "1970-01-01T00:00:07.000Z",
    "eventName": "ObjectRestore:Completed",
    "userIdentity": {"principalId": "AIDAJDPLRKLG7UEXAMPLE"},
    "requestParameters": {"sourceIPAddress": "127.0.0.1"},
    "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810", "x-amz-id-2": "FMyUVURI"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "testConfigRule",
        "bucket": {"name": "b", "ownerIdentity": {"principalId": "A3NL1KOZZKExample"}, "arn": "arn:aws:s3:::b"},
        "object": {
            "key": "red+flower%2B%C3%A9.jpg",
            "size": 1024,
            "eTag": "d41d",
            "versionId": "096fKKXTRTtl3on89fVO.nfljtsv6qko",
            "sequencer": "0055AED6DCD90281E5",
        },
    },
    "glacierEventData": {"restoreEventData": {"lifecycleRestorationExpiryTime": "1970-01-01T00:00:00.000Z"}},
}

MINIO: Record = {
    "eventVersion": "2.0",
    "eventSource": "minio:s3",
    "awsRegion": "",
    "eventTime": "2026-03-01T12:00:00.123Z",
    "eventName": "s3:ObjectCreated:Put",
    "userIdentity": {"principalId": "minio"},
    "requestParameters": {"principalId": "minio", "region": "", "sourceIPAddress": "::1"},
    "responseElements": {
        "x-amz-id-2": "dd9025bab4ad464b",
        "x-amz-request-id": "16A1",
        "x-minio-deployment-id": "1f2b",
        "x-minio-origin-endpoint": "http://127.0.0.1:9000",
    },
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "Config",
        "bucket": {"name": "images", "ownerIdentity": {"principalId": "minio"}, "arn": "arn:aws:s3:::images"},
        "object": {
            "key": "my+file%2Ftwo.jpg",
            "size": 5,
            "eTag": "be64",
            "contentType": "image/jpeg",
            "userMetadata": {"content-type": "image/jpeg", "X-Amz-Meta-A": "1"},
            "sequencer": "16A1",
        },
    },
    "source": {"host": "::1", "port": "", "userAgent": "MinIO"},
}


def changed(path: str, value: object, base: Record = CEPH) -> Record:
    """The record with one member set; `...` takes it away."""
    found = copy.deepcopy(base)
    inner: Any = found
    *outer, last = path.split(".")
    for name in outer:
        inner = inner[name]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return found


def test_what_radosgw_posts_is_delivered_as_it_was_posted() -> None:
    """Every captured body, taken in and rendered again, is byte for byte the same, and nothing of it is dropped."""
    for pair in real_pairs():
        (only,) = placed(pair.body)

        assert rendering_plain.body(decode(only.payload)) == pair.body
        assert dropped(pair.body) == 0


def test_a_record_of_aws_keeps_all_that_an_entry_has_room_for() -> None:
    """The key is URL-decoded, a plus is a space, what AWS does not have is empty, and Glacier's part is dropped."""
    event = event_of(AWS)

    assert (event.bucket_name, event.object_key) == (b"b", "red flower+é.jpg".encode())
    assert (event.object_version_id, event.object_sequencer) == (
        b"096fKKXTRTtl3on89fVO.nfljtsv6qko",
        b"0055AED6DCD90281E5",
    )
    assert (event.event_name, event.event_time) == (b"ObjectRestore:Completed", Time(7, 0))
    assert (event.source_ip_address, event.x_amz_id_2) == (b"127.0.0.1", b"FMyUVURI")
    assert (event.bucket_id, event.metadata, event.tags, event.opaque_data) == (b"", (), (), b"")
    assert dropped(document(AWS)) == 1


def test_a_record_of_minio_keeps_its_metadata() -> None:
    """Its outer members are passed over, its own ones are dropped and counted, its user metadata is kept."""
    body = json.dumps({"EventName": "s3:ObjectCreated:Put", "Key": "images/x", "Records": [MINIO]}, indent=1).encode()

    (only,) = placed(body)
    event = decode(only.payload).event

    assert (event.object_key, event.event_name) == (b"my file/two.jpg", b"s3:ObjectCreated:Put")
    assert event.metadata == ((b"X-Amz-Meta-A", b"1"), (b"content-type", b"image/jpeg"))
    assert event.event_time == Time(1_772_366_400, 123_000_000)
    assert dropped(body) == 6


VERSITYGW: Record = {
    "eventVersion": "2.2",
    "eventSource": "aws:s3",
    "awsRegion": "us-east-1",
    "eventTime": "2026-11-23T19:40:12+01:00",
    "eventName": "s3:ObjectRemoved:Delete",
    "userIdentity": {"PrincipalId": "root"},
    "requestParameters": {"sourceIPAddress": "127.0.0.1"},
    "responseElements": {"x-amz-request-id": "", "x-amz-id-2": ""},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "webhook-global",
        "bucket": {"name": "b", "ownerIdentity": {"PrincipalId": "root"}, "arn": "arn:aws:s3:::b/ä +6%20"},
        "object": {"key": "dir/ä +6%20", "size": 0, "eTag": None, "versionId": None, "sequencer": "1A2B"},
    },
    "glacierEventData": {"restoreEventData": {"lifecycleRestorationExpiryTime": ""}},
}


def test_a_record_of_versitygw_keeps_its_key_and_instant() -> None:
    """A literal key stays as it is, null members are empty, and a local `eventTime` is stored as that instant."""
    literal = replace(TOPIC, target=replace(TOPIC.target, args="remora-keys=literal"))

    def stored(found: Record) -> S3Event:
        (only,) = placed(document(found), literal)
        return decode(only.payload).event

    event = stored(VERSITYGW)

    assert event.object_key == "dir/ä +6%20".encode()
    assert (event.object_etag, event.object_version_id) == (b"", b"")
    assert event.event_time == stored(VERSITYGW | {"eventTime": "2026-11-23T18:40:12Z"}).event_time


def test_a_record_of_the_fewest_members_is_enough() -> None:
    """A name, a bucket and a key: the rest is empty, the time is now, and the id is made."""
    event = event_of({"eventName": "e", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}})

    assert (event.event_name, event.bucket_name, event.object_key) == (b"e", b"b", b"k")
    assert (event.event_time, event.object_size, event.event_source) == (CREATED, 0, b"")
    assert len(event.event_id) == 32


@pytest.mark.parametrize(
    "found",
    [
        changed("requestParameters", {"x": ""}),
        changed("userIdentity", {"x": "u1"}),
        changed("s3.bucket", {"name": "b", "ownerIdentity": {"principalId": ""}, "arn": "", "x": ""}),
        changed("s3.bucket.ownerIdentity", {"x": {}}),
        changed("s3.object.tags", [{"key": "a", "val": "b", "x": {"y": [1, 2]}}]),
        changed("x", {"y": {"z": 1}}),
    ],
)
def test_a_member_without_a_place_is_counted_once(found: Record) -> None:
    """Whatever stands in it, and wherever it stands itself, also where the number of members is the usual one."""
    assert dropped(document(found)) == 1
    assert dropped(document(CEPH)) == 0


def test_metadata_and_tags_are_stored_as_radosgw_would_hold_them() -> None:
    """In the order of their keys; of equal metadata keys the last one stays, of equal tags all."""
    given = [{"key": key, "val": val} for key, val in (("b", "1"), ("a", "2"), ("b", "0"))]

    for source in ("ceph:s3", "aws:s3"):
        found = changed("s3.object.metadata", given, CEPH | {"eventSource": source})
        event = event_of(changed("s3.object.tags", given, found))

        assert event.metadata == ((b"a", b"2"), (b"b", b"0"))
        assert event.tags == ((b"a", b"2"), (b"b", b"1"), (b"b", b"0"))


def test_keys_are_decoded_by_the_source_alone() -> None:
    """The same record, which differs from radosgw's in its source only, has its key URL-decoded."""
    assert event_of(CEPH).object_key == b"a+b%20c"
    assert event_of(CEPH | {"eventSource": "aws:s3"}).object_key == b"a b c"
    assert event_of(changed("s3.object.key", "a+b", CEPH | {"eventSource": "x"})).object_key == b"a b"
    assert event_of(changed("s3.object.key", "%ff%2", CEPH | {"eventSource": ""})).object_key == b"\xff%2"


@pytest.mark.parametrize("key", ["dir/ä key+6", "100%25", "a+b", "a%2", "plain"])
def test_literal_keys_are_stored_as_they_stand(key: str) -> None:
    """A topic whose senders write literal keys stores each as it is, with all members of radosgw or one missing."""
    literal = replace(TOPIC, target=replace(TOPIC.target, args="remora-keys=literal"))
    found = changed("s3.object.key", key, CEPH | {"eventSource": "aws:s3"})
    plain = copy.deepcopy(found)
    del plain["opaqueData"]

    for each in (found, plain):
        (only,) = placed(document(each), literal)
        assert decode(only.payload).event.object_key == key.encode()
        assert only.shard == shard(f"{each['s3']['bucket']['name']}:{key}".encode(), TOPIC.shards)


def test_null_is_as_good_as_missing() -> None:
    """Members that are null give what missing ones give, and are not counted as dropped."""
    nothing = {
        "eventName": "e",
        "eventTime": None,
        "eventId": None,
        "userIdentity": None,
        "s3": {
            "bucket": {"name": "b", "ownerIdentity": None},
            "object": {"key": "k", "size": None, "metadata": None, "tags": None, "versionId": None},
        },
    }

    assert event_of(nothing) == event_of({"eventName": "e", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}})
    assert dropped(document(nothing)) == 0


def test_the_topics_attributes_go_into_every_entry() -> None:
    """Endpoint, arguments, the endpoint's topic, the limits and the time of storing, in an entry of version 3."""
    topic = replace(TOPIC, time_to_live_s=60, max_retries=0, retry_sleep_s=5)

    for found in (CEPH, AWS):
        (only,) = placed(document(found), topic)
        entry = decode(only.payload)

        assert (entry.version, entry.creation_time) == (3, CREATED)
        assert (entry.push_endpoint, entry.push_endpoint_args) == (b"kafka://h:9092", b"kafka-ack-level=broker")
        assert (entry.arn_topic, entry.time_to_live, entry.max_retries, entry.retry_sleep_duration) == (
            b"dest",
            60,
            0,
            5,
        )
        (unlimited,) = placed(document(found))
        assert decode(unlimited.payload).time_to_live == UNSET


@pytest.mark.parametrize(("of_topic", "expected"), [(None, b"mine"), (b"", b"mine"), (b"topic's", b"topic's")])
def test_opaque_data_is_the_records_where_the_topic_has_none(of_topic: bytes | None, expected: bytes) -> None:
    """A topic's own opaque data takes the place of what the record says."""
    for found in (CEPH, AWS):
        (only,) = placed(document(found | {"opaqueData": "mine"}), replace(TOPIC, opaque_data=of_topic))

        assert decode(only.payload).event.opaque_data == expected


def test_events_have_the_shard_of_their_bucket_and_key() -> None:
    """The key is `bucket:object` with the decoded object key, and the shard is that key's."""
    for found, key in ((CEPH, b"bkt:a+b%20c"), (AWS, "b:red flower+é.jpg".encode())):
        (only,) = placed(document(found))

        assert (only.key, only.shard) == (key, shard(key, 11))


# ------------------------------------------------------------------------------------------------ ids


def test_a_made_id_depends_on_seed_and_place_alone() -> None:
    """The same request again gives the same ids; another index or another seed gives another id."""

    def ids(seed: bytes) -> list[bytes]:
        parts = place(lines(AWS, AWS, CEPH), TOPIC, ndjson=True, most=9, created=CREATED, seed=seed)
        return [decode(event.payload).event.event_id for part in parts for event in part.events]

    first = ids(b"one")

    assert len(event_of(CEPH | {"eventId": ""}).event_id) == 32
    assert ids(b"one") == first
    assert len({*first, *ids(b"two")}) == 5
    assert first[2] == b"1795261482.935776.f264"


# ----------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T11:44:42.931943Z", Time(1_795_261_482, 931_943_000)),
        ("2026-11-21T11:44:42Z", Time(1_795_261_482, 0)),
        ("2026-11-21T11:44:42.5Z", Time(1_795_261_482, 500_000_000)),
        ("2026-11-21T11:44:42.123456789Z", Time(1_795_261_482, 123_456_789)),
        ("2026-11-21T13:44:42.000+02:00", Time(1_795_261_482, 0)),
        ("2026-11-21T06:14:42-05:30", Time(1_795_261_482, 0)),
        ("1970-01-01T00:00:00Z", Time(0, 0)),
        ("2106-02-07T06:28:15.999999Z", Time(2**32 - 1, 999_999_000)),
        ("0.000000", Time(0, 0)),
        ("315359999.000001", Time(315_359_999, 1000)),
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, expected: Time) -> None:
    """ISO 8601 with a zone, up to nine digits of a second, and radosgw's seconds of the years after 1970."""
    assert event_of(CEPH | {"eventTime": text}).event_time == expected


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2026-11-21",
        "2026-11-21T11:44:42",
        "2026-11-21 11:44:42.931943Z",
        "2026-11-21t11:44:42.931943Z",
        "20261121T114442.000000000Z",
        "2026-11-21T11:44:42.Z",
        "2026-11-21T11:44:42.1234567890Z",
        "2026-11-21T11:44:42.93194²Z",
        "2026-11-21T11:44:42.٠٠٠٠٠٠Z",
        "2026-11-21T11:44:42.931943z",
        "2026-02-30T11:44:42.931943Z",
        "2026-11-21T11:44:60.931943Z",
        "1969-12-31T23:59:59.999999Z",
        "2106-02-07T06:28:16.000000Z",
        "9999-12-31T23:59:59.999999Z",
        "0000-01-01T00:00:00.000000Z",
        "1970-01-01T00:00:00+00:01",
        "1795261482",
    ],
)
def test_other_times_are_refused_by_name(text: str) -> None:
    """What is no time, does not exist or has no room in an entry names the record and `eventTime`."""
    with pytest.raises(MalformedEvent) as caught:
        placed(document(CEPH, CEPH | {"eventTime": text}))

    assert (caught.value.record, caught.value.field) == (1, "eventTime")


# -------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("path", "value", "field", "reason"),
    [
        ("eventName", ..., "eventName", "is missing"),
        ("eventName", "", "eventName", "is empty"),
        ("eventName", "ObjectCreated:\0", "eventName", "has control characters"),
        ("eventName", "Object\r\nCreated", "eventName", "has control characters"),
        ("eventName", "\x7f", "eventName", "has control characters"),
        ("s3.bucket.name", ..., "s3.bucket.name", "is missing"),
        ("s3.bucket.name", None, "s3.bucket.name", "is missing"),
        ("s3.bucket.name", "", "s3.bucket.name", "is empty"),
        ("s3.bucket.name", "b" * 256, "s3.bucket.name", "has 256 bytes, more than 255"),
        ("s3.bucket.name", "tenant/b", "s3.bucket.name", "has a '/', which no bucket"),
        ("s3.bucket.name", "b/", "s3.bucket.name", "has a '/', which no bucket"),
        ("s3.object.key", ..., "s3.object.key", "is missing"),
        ("s3.object.key", "", "s3.object.key", "is empty"),
        ("s3.object.key", "é" * 513, "s3.object.key", "has 1026 bytes, more than 1024"),
        ("s3", ..., "s3.bucket.name", "is missing"),
        ("s3", [], "s3", "expected an object, not a list"),
        ("eventSource", 5, "eventSource", "expected a string, not a number"),
        ("userIdentity.principalId", True, "userIdentity.principalId", "expected a string, not true or false"),
        ("s3.object.size", -1, "s3.object.size", "is not within 0 to 2^63 - 1"),
        ("s3.object.size", 2**63, "s3.object.size", "is not within 0 to 2^63 - 1"),
        ("s3.object.size", 10**4000, "s3.object.size", "is not within 0 to 2^63 - 1"),
        ("s3.object.size", 1.5, "s3.object.size", "expected a whole number, not 1.5"),
        ("s3.object.size", "1", "s3.object.size", "expected a whole number, not a string"),
        ("s3.object.size", False, "s3.object.size", "expected a whole number, not true or false"),
        ("s3.object.eTag", "e" * 8193, "s3.object.eTag", "has 8193 bytes, more than 8192"),
        ("s3.object.tags", {}, "s3.object.tags", "expected a list, not an object"),
        ("s3.object.tags", ["x"], "s3.object.tags[0]", "expected an object, not a string"),
        ("s3.object.tags", [{"key": "a", "val": 1}], "s3.object.tags[0].val", "expected a string, not a number"),
        ("s3.object.metadata", [{}] * 257, "s3.object.metadata", "has 257 pairs, more than 256"),
        ("s3.object.userMetadata", {"a": []}, "s3.object.userMetadata.a", "expected a string, not a list"),
        ("s3.object.userMetadata", {"a" * 300: 1}, "s3.object.userMetadata." + "a" * 177, "expected a string"),
        ("s3.object.userMetadata", {"a\n": 1}, r"s3.object.userMetadata.a\n", "expected a string, not a number"),
        ("opaqueData", "\ud800", "opaqueData", "has half of a surrogate pair"),
    ],
)
def test_a_record_is_refused_by_its_index_and_field(path: str, value: object, field: str, reason: str) -> None:
    """Each refusal says which record, which field in it, and why; lines have their number too."""
    bad = json.loads(json.dumps(changed(path, value)))
    for before in (CEPH, AWS):
        body = json.dumps({"Records": [CEPH, before, bad]}, separators=(",", ":")).encode()
        with pytest.raises(MalformedEvent) as caught:
            placed(body)
        error = caught.value
        assert (error.record, error.line, error.field) == (2, None, field)
        assert error.reason.startswith(reason)
        assert str(error) == f"record 2: {field}: {error.reason}"

    body = b"\n\n" + b"\n".join(json.dumps(each).encode() for each in (CEPH, AWS, {"Records": [AWS, CEPH, bad]}))
    with pytest.raises(MalformedEvent) as caught:
        placed(body, ndjson=True)
    assert (caught.value.record, caught.value.line, caught.value.field) == (4, 5, field)


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (b"", "", "not valid JSON: Expecting value at character 0"),
        (b"{", "", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "", "not valid JSON"),
        (b"null", "", "expected an object with Records, not null"),
        (b"[]", "", "expected an object with Records, not a list"),
        (b"{}", "Records", "is missing"),
        (b'{"Records":null}', "Records", "expected a list, not null"),
        (b'{"Records":[]}', "Records", "is empty"),
        (b'{"Records":[],"Records":[{}]}', "Records", "stands twice in its object"),
        (rb'{"\ud800":1,"\ud800":1,"Records":[{}]}', r"\ud800", "stands twice in its object"),
        (b'{"%b":1,"%b":1,"Records":[{}]}' % (b"x" * 999, b"x" * 999), "x" * 200, "stands twice in its object"),
        (b'{"Records":[' * 20_000, "", "nested too deeply"),
        (b'{"Records":"\xff"}', "", "not valid UTF-8 at byte 12"),
        (b'{"Records":[NaN]}', "", "not valid JSON: NaN is not JSON"),
        (b'{"Records":[' + b"1" * 5000 + b"]}", "", "not valid JSON: Exceeds the limit"),
        ('{"Records":[]}'.encode("utf-16"), "", "not valid UTF-8"),
    ],
)
def test_a_body_that_is_no_document_is_refused_as_a_whole(body: bytes, field: str, reason: str) -> None:
    """No record is named where there is none."""
    with pytest.raises(MalformedEvent) as caught:
        placed(body)

    assert (caught.value.record, caught.value.line, caught.value.field) == (None, None, field)
    assert caught.value.reason.startswith(reason)


@pytest.mark.parametrize(
    ("line", "record", "field", "reason"),
    [
        (b"oops", 1, "", "not valid JSON: Expecting value at character 0"),
        (b"5", 1, "", "expected an object, not a number"),
        (b'{"Records":[]}', None, "Records", "is empty"),
        (b"{} {}", 1, "", "not valid JSON: Extra data"),
        (b'{"eventName":"\xff"}', 1, "", "not valid UTF-8 at byte 14"),
    ],
)
def test_a_line_that_is_no_record_is_refused_by_its_number(
    line: bytes, record: int | None, field: str, reason: str
) -> None:
    """Lines count from 1, empty ones too, and records from 0."""
    with pytest.raises(MalformedEvent) as caught:
        placed(lines(CEPH) + b"\r\n" + line + b"\n" + lines(CEPH), ndjson=True)

    assert (caught.value.record, caught.value.line, caught.value.field) == (record, 3, field)
    assert caught.value.reason.startswith(reason)


@pytest.mark.parametrize("body", [b"", b"\n", b" \n\t\r\n"])
def test_a_body_of_empty_lines_is_refused(body: bytes) -> None:
    """There have to be records."""
    with pytest.raises(MalformedEvent, match="there are no records"):
        placed(body, ndjson=True)


TEST_EVENT = {
    "Service": "Amazon S3",
    "Event": "s3:TestEvent",
    "Time": "2026-11-22T15:57:02.089Z",
    "Bucket": "b",
    "RequestId": "5582815E1AEA5ADF",
    "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR",
}


def test_a_test_event_of_s3_is_no_event() -> None:
    """Nothing comes of what AWS posts when it is configured, alone or among records; a record may be called so."""
    assert placed(json.dumps(TEST_EVENT).encode()) == []
    assert placed(json.dumps(TEST_EVENT).encode() + b"\n", ndjson=True) == []
    among = b"\n".join(json.dumps(each).encode() for each in (TEST_EVENT, CEPH, TEST_EVENT, AWS))
    assert [each.key for each in placed(among, ndjson=True)] == [b"bkt:a+b%20c", "b:red flower+é.jpg".encode()]
    assert event_of(CEPH | {"eventName": "s3:TestEvent"}).event_name == b"s3:TestEvent"
    with pytest.raises(MalformedEvent, match="Records: is missing"):
        placed(json.dumps(TEST_EVENT | {"Event": "other"}).encode())


def test_test_events_are_counted() -> None:
    """Each part says how many there were in it."""
    among = b"\n".join(json.dumps(each).encode() for each in (TEST_EVENT, CEPH, envelope(TEST_EVENT)))
    for body, ndjson, count in ((json.dumps(TEST_EVENT).encode(), False, 1), (among, True, 2), (lines(CEPH), True, 0)):
        parts = place(body, TOPIC, ndjson=ndjson, most=9, created=CREATED, seed=SEED)
        assert sum(part.tests for part in parts) == count


def envelope(message: object, **changes: object) -> dict[str, object]:
    """What SNS posts of a message where it is not told to deliver it as it is."""
    return {
        "Type": "Notification",
        "MessageId": "m",
        "TopicArn": "arn:aws:sns:us-east-1:111122223333:t",
        "Subject": "Amazon S3 Notification",
        "Message": message if isinstance(message, str) else json.dumps(message),
        "Timestamp": "2026-11-20T08:00:00.000Z",
        "SignatureVersion": "1",
        "Signature": "x",
    } | changes


@pytest.mark.parametrize("size", [1, WINDOW, 5 * WINDOW])
def test_envelopes_of_sns(size: int) -> None:
    """The records in an envelope are those that would have come without it, alone or in lines, however long it is."""
    padded = AWS | {"padding": "x" * size}
    bare, wrapped = {"Records": [CEPH, padded]}, envelope({"Records": [CEPH, padded]})
    expected = placed(json.dumps(bare).encode())

    assert placed(json.dumps(wrapped).encode()) == expected
    assert placed(json.dumps(wrapped).encode() + b"\n", ndjson=True) == expected
    among = b"\n".join(json.dumps(each).encode() for each in (CEPH, wrapped, AWS))
    assert [each.key for each in placed(among, ndjson=True)] == [
        each.key for each in placed(lines(CEPH, CEPH, AWS, AWS), ndjson=True)
    ]
    assert placed(json.dumps(envelope(TEST_EVENT | {"padding": "x" * size})).encode()) == []


@pytest.mark.parametrize(
    ("value", "record", "field", "reason"),
    [
        (envelope("hello"), None, "Message", "not valid JSON"),
        (envelope("[]"), None, "Message", "expected an object with Records, not a list"),
        (envelope("{}"), None, "Message.Records", "is missing"),
        (envelope({"Records": []}), None, "Message.Records", "is empty"),
        (envelope("\ud800"), None, "Message", "has half of a surrogate pair"),
        (envelope(""), None, "Message", "not valid JSON"),
        (envelope("") | {"Message": 5}, None, "Message", "expected a string, not a number"),
        (envelope({"Records": [CEPH, {"eventName": "x"}]}), 1, "s3.bucket.name", "is missing"),
        (envelope(envelope({"Records": [CEPH]})), None, "Message.Records", "is missing"),
        (envelope("x", Type="SubscriptionConfirmation"), None, "Type", "is an SNS SubscriptionConfirmation"),
        (envelope("x", Type="UnsubscribeConfirmation"), None, "Type", "is an SNS UnsubscribeConfirmation"),
        (envelope("x", Type="Other"), None, "Records", "is missing"),
    ],
)
def test_what_sns_posts_and_is_refused(value: object, record: int | None, field: str, reason: str) -> None:
    """A message that is no notification of S3 is refused by name, with the place within it."""
    with pytest.raises(MalformedEvent) as caught:
        placed(json.dumps(value).encode())

    assert (caught.value.record, caught.value.field) == (record, field)
    assert caught.value.reason.startswith(reason)


def test_a_subscription_is_confirmed_by_its_address() -> None:
    """The refusal has the address that confirms it, but none that is not Amazon's: it is for an operator to open."""
    address = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=2336412f37"
    others = ("https://sns.example.com/?Token=1", "http://sns.us-east-1.amazonaws.com/?x", f"{address}\n", 5)

    def refusal(url: object) -> str:
        value = envelope("x", Type="SubscriptionConfirmation", Token="t", SubscribeURL=url)
        with pytest.raises(Unconfirmed) as caught:
            placed(json.dumps(value).encode())
        return caught.value.reason

    assert refusal(address).endswith(f"{address} confirms the subscription")
    assert {refusal(each) for each in others} == {refusal("")}


def test_an_envelope_says_nothing_twice() -> None:
    """Of two messages in one envelope neither is taken."""
    body = json.dumps(envelope({"Records": [CEPH]})).encode()

    with pytest.raises(MalformedEvent, match="Message: stands twice"):
        placed(body[:-1] + b', "Message": "{}"}')


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"eventName":', '"eventName":"x","eventName":', "eventName"),
        ('"eventName":', '"eventName":"x","eventName" :', "eventName"),
        ('"eventName":', '"eventName":"x","eventName"\t:', "eventName"),
        ('"eventName":', '"eventName":"x","eventName"\r:', "eventName"),
        ('"eTag":', '"eTag":"x","eTag":', "s3.object.eTag"),
        ('"arn":', '"arn":"x","arn":', "s3.bucket.arn"),
        ('"principalId":"u1"}', '"principalId":"u1","principalId":"u2"}', "userIdentity.principalId"),
        ('"tags":[]', '"tags":[{"key":"a","val":"","key":"b"}]', "s3.object.tags[0].key"),
    ],
)
def test_a_name_that_stands_twice_is_refused(old: str, new: str, field: str) -> None:
    """It would be open which of the two values was meant."""
    text = document(CEPH).replace(old.encode(), new.encode(), 1)
    for body, ndjson in ((text, False), (text[12:-2], True)):
        with pytest.raises(MalformedEvent, match="stands twice") as caught:
            placed(body, ndjson=ndjson)

        assert caught.value.field == field


def test_a_name_that_stands_twice_is_seen_over_several_lines() -> None:
    """A document may be written on as many lines as one likes, also within its members."""
    text = document(CEPH).replace(b'"eventName":', b'"eventName":"x","eventName"\n:', 1)

    with pytest.raises(MalformedEvent, match="eventName: stands twice"):
        placed(text)


def test_a_line_is_one_record_and_a_record_is_one_line() -> None:
    """Two records on one line are refused, even where another one is written on two."""
    one = document(CEPH)[12:-2]

    for body in (one + one + b"\n", one + one + b"\n" + one.replace(b",", b",\n", 1) + b"\n"):
        with pytest.raises(MalformedEvent, match="record 0: line 1: not valid JSON: Extra data"):
            placed(body, ndjson=True)


def test_records_beyond_the_most_are_refused() -> None:
    """Exactly as many as allowed pass; one more is TooManyEvents, in either form and way."""
    for found in (CEPH, AWS):
        for body, ndjson in ((document(*[found] * 5), False), (lines(*[found] * 5), True)):
            assert len(placed(body, ndjson=ndjson, most=5)) == 5
            with pytest.raises(TooManyEvents, match="more than 4 records"):
                placed(body, ndjson=ndjson, most=4)


# ---------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("found", [CEPH, AWS], ids=["ceph", "aws"])
def test_a_large_body_comes_in_parts_with_everything_in_order(found: Record) -> None:
    """No part is large, all events come once and in order, and their ids count over all parts."""
    records = [changed("s3.object.key", f"k{i}", found) for i in range(2000)]
    for body, ndjson in ((document(*records), False), (lines(*records), True)):
        parts = list(place(body, TOPIC, ndjson=ndjson, most=2000, created=CREATED, seed=SEED))

        assert len(parts) > 5
        assert max(len(part.events) for part in parts) < 400
        events = [event for part in parts for event in part.events]
        assert [event.key.partition(b":")[2] for event in events] == [b"k%d" % i for i in range(2000)]
        assert len({decode(event.payload).event.event_id for event in events}) == (1 if found is CEPH else 2000)
    assert sum(part.dropped for part in parts) == (0 if found is CEPH else 2000)


def test_a_late_line_has_its_own_number() -> None:
    """Lines and records are counted over the parts, whichever way each was read."""
    body = lines(*[CEPH] * 700) + b"\n" + lines(*[AWS] * 700) + b"oops\n"

    with pytest.raises(MalformedEvent) as caught:
        placed(body, ndjson=True)

    assert (caught.value.record, caught.value.line) == (1400, 1402)


def test_an_unusual_record_late_in_a_document_loses_and_repeats_nothing() -> None:
    """The plain way goes on exactly where the compiled one stopped."""
    records = [changed("s3.object.key", f"k{i}") for i in range(700)]
    records[600]["eventTime"] = "0.000001"

    keys = [event.key for event in placed(document(*records))]

    assert keys == [b"bkt:k%d" % i for i in range(700)]


# --------------------------------------------------------------------------- what is read and what is stored

texts = st.text(max_size=12) | st.sampled_from(["\u2028", "\0", "\x7f", '\t\n\r"\\/', '":', '" :', "é" * 700, "%41+"])
names = texts.filter(bool)
pairs = st.lists(st.fixed_dictionaries({"key": texts, "val": texts}), max_size=3)
full_records = st.builds(
    lambda outer, user, request, response, s3, bucket, thing: {
        **outer,
        "userIdentity": user,
        "requestParameters": request,
        "responseElements": response,
        "s3": {**s3, "bucket": bucket, "object": thing},
    },
    st.fixed_dictionaries(
        {
            "eventVersion": texts,
            "eventSource": st.just("ceph:s3") | texts,
            "awsRegion": texts,
            "eventTime": st.sampled_from(
                ["2026-11-21T11:44:42.931943Z"] * 6 + ["0.000000", "2106-02-07T06:28:16.000000Z"]
            ),
            "eventName": texts,
            "eventId": texts,
            "opaqueData": texts,
        }
    ),
    st.fixed_dictionaries({"principalId": texts}),
    st.fixed_dictionaries({"sourceIPAddress": texts}),
    st.fixed_dictionaries({"x-amz-request-id": texts, "x-amz-id-2": texts}),
    st.fixed_dictionaries({"s3SchemaVersion": texts, "configurationId": texts}),
    st.fixed_dictionaries(
        {
            "name": texts,
            "ownerIdentity": st.fixed_dictionaries({"principalId": texts}),
            "arn": texts,
            "id": texts,
        }
    ),
    st.fixed_dictionaries(
        {
            "key": texts,
            "size": st.integers(0, 2**63 - 1),
            "eTag": texts,
            "versionId": texts,
            "sequencer": texts,
            "metadata": pairs,
            "tags": pairs,
        }
    ),
)


@given(st.lists(full_records, min_size=1, max_size=3), st.booleans())
def test_entries_are_those_of_the_events_that_were_read(records: list[Record], is_ascii: bool) -> None:
    """For records with all of radosgw's members, whatever their values, entries and refusals are the same."""
    whole = json.dumps({"Records": records}, separators=(",", ":"), ensure_ascii=is_ascii).encode()
    each = b"\n".join(json.dumps(r, separators=(",", ":"), ensure_ascii=is_ascii).encode() for r in records)

    assert outcome(lambda: placed(whole)) == outcome(lambda: plainly(s3_bodies.in_document(whole)))
    assert outcome(lambda: placed(each, ndjson=True)) == outcome(lambda: plainly(s3_bodies.in_lines(each.split(b"\n"))))


@given(full_records)
def test_any_text_comes_through(found: Record) -> None:
    """What was stored of a record, rendered as radosgw renders it, has the record's own texts."""
    found = changed("eventTime", "2026-11-21T11:44:42.931943Z", found) | {"eventSource": "ceph:s3"}
    assume(isinstance(outcome(lambda: placed(document(found))), list))

    (only,) = placed(document(found))
    rendered = json.loads(rendering_plain.body(decode(only.payload)))["Records"][0]

    assert list(rendered) == list(CEPH)
    for name in ("eventVersion", "awsRegion", "eventTime", "eventName", "userIdentity", "responseElements"):
        assert rendered[name] == found[name]
    assert rendered["s3"]["bucket"] == found["s3"]["bucket"]
    for name in ("key", "size", "eTag", "versionId", "sequencer"):
        assert rendered["s3"]["object"][name] == found["s3"]["object"][name]
    assert rendered["opaqueData"] == found["opaqueData"]


SEEDS = [document(CEPH), document(CEPH, AWS), document(MINIO), lines(CEPH, CEPH), lines(CEPH, AWS) + document(CEPH)]


@given(mutated(SEEDS) | st.binary(max_size=60), st.booleans())
def test_no_bytes_do_more_than_be_refused(body: bytes, ndjson: bool) -> None:
    """Damaged and random bodies give events or a MalformedEvent, the same as read one by one."""
    found = outcome(lambda: placed(body, ndjson=ndjson))
    if ndjson:
        plain = outcome(lambda: plainly(s3_bodies.in_lines(body.split(b"\n"))))
        plain = plain or (MalformedEvent, None, None, "", "there are no records")
    else:
        plain = outcome(lambda: plainly(s3_bodies.in_document(body)))

    assert found == plain


@pytest.mark.parametrize("name", ["userIdentity", "requestParameters", "unknown"])
def test_deep_nesting_is_refused_wherever_it_stands(name: str) -> None:
    """Not even members that are passed over may be nested without end."""
    body = document(CEPH).replace(
        b'"eventName":', b'"%b":%b,"eventName":' % (name.encode(), b"[" * 20_000 + b"]" * 20_000)
    )

    with pytest.raises(MalformedEvent, match="nested too deeply"):
        placed(body)
