"""The compiled way from a body to entries gives what the plain way gives, whatever the body is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.codec import s3_events, shard_hash, speedups
from remora.codec.s3_events import MalformedEvent
from remora.model.topic import Topic
from support.placed import place
from unit.codec.samples import mutated, real_pairs
from unit.codec.test_s3_events import AWS, CEPH, CREATED, MINIO, SEED, TOPIC, Record, changed, document, lines

pytestmark = pytest.mark.skipif(speedups.RecordEncoder is None, reason="nothing was compiled")

LITERAL = replace(TOPIC, target=replace(TOPIC.target, args="remora-keys=literal"), opaque_data=b"the topic's")


def outcome(body: bytes, topic: Topic, *, ndjson: bool, most: int = 50) -> object:
    """What came of a body: its events and how many members were dropped, or the refusal in full."""
    try:
        parts = list(place(body, topic, ndjson=ndjson, most=most, created=CREATED, seed=SEED))
    except MalformedEvent as error:
        return type(error), str(error), error.record, error.line, error.field
    return [event for part in parts for event in part.events], sum(part.dropped for part in parts)


def agree(body: bytes) -> None:
    """Compare both ways for a body, as lines and as a document, and for a topic with literal keys."""
    for topic in (TOPIC, LITERAL):
        for ndjson in (False, True):
            compiled = outcome(body, topic, ndjson=ndjson)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(speedups, "RecordEncoder", None)
                patched.setattr(speedups, "shards", shard_hash.shards)
                assert compiled == outcome(body, topic, ndjson=ndjson)


def is_compiled(*records: Record) -> bool:
    """Whether records take the compiled way, as lines and as a document."""
    encoder = s3_events._Encoder(TOPIC, CREATED, SEED)._compiled
    assert encoder is not None
    in_lines, in_document = encoder.lines(lines(*records), 0), encoder.document(document(*records), 0, True)
    assert (in_lines is None) is (in_document is None)
    return in_lines is not None


# --------------------------------------------------------------------------------------------- bodies

_PATHS = [
    *CEPH, *(f"{outer}.{name}" for outer in ("userIdentity", "requestParameters", "responseElements", "s3", "s3.bucket",
    "s3.object", "s3.bucket.ownerIdentity") for name in ("principalId", "sourceIPAddress", "x-amz-id-2", "bucket",
    "name", "id", "key", "size", "eTag", "metadata", "userMetadata", "tags", "x", "y")),
]  # fmt: skip
_TEXTS = st.sampled_from(
    ["", "a", "ä", "%41+%zz%", "a/b c", '"', "\\", "\x00", "\x7f", "\ud800", "x" * 256, "x" * 1025, "%41" * 1024,
     "y" * 8193, "ceph:s3", "2026-01-31T23:59:59.123456789Z", "2026-02-29T00:00:00Z", "2106-02-07T06:28:16Z",
     "1969-12-31T23:59:59.9Z", "2024-02-29T23:59:59.5Z", "2026-01-31T23:59:59+01:00", "2026-01-31T24:00:00Z"]
)  # fmt: skip
_PAIRS = st.lists(st.fixed_dictionaries({"key": _TEXTS, "val": _TEXTS}, optional={"x": st.just(1)}), max_size=3)
_VALUES = (
    _TEXTS
    | st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 17, 10**17, 10**18, 2**63 - 1, 2**63, 1.5, 1e300, -0.0])
    | _PAIRS
    | st.dictionaries(_TEXTS, _TEXTS | st.none(), max_size=3)
    | st.builds(lambda: {"a": {"b": [1, {"c": None}]}})
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """One of the producers' records, with some members changed, taken away, added, and in another order."""
    found = copy.deepcopy(draw(st.sampled_from([CEPH, AWS, MINIO])))
    for path in draw(st.lists(st.sampled_from(_PATHS), max_size=3)):
        inner: Any = found
        *outer, last = path.split(".")
        for name in outer:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner[last] = draw(_VALUES)
            if draw(st.booleans()):
                del inner[last]
    return dict(draw(st.permutations(list(found.items())))) if draw(st.booleans()) else found


_Spoil = Callable[[bytes], bytes]

_SPOILS: list[_Spoil] = [
    lambda body: body,
    lambda body: body.replace(b'"eTag":', b'"eTag":"x","eTag":', 1),
    lambda body: body.replace(b'"eventName":', b'"new":{"a":1,"a":2},"new":3,"eventName":', 1),
    lambda body: body.replace(b'"eventName":', b'"new":{"a":1,"a":[tru,01,1.e5]},"eventName":', 1),
    lambda body: body.replace(b'"eventName":', b'"new":{"a":-1.5E+7,"a":[true,false,null,[]]},"eventName":', 1),
    lambda body: body.replace(b'"eventName":', b'"new":[NaN],"eventName":', 1),
    lambda body: body.replace(b'"eventName":', b'"new":%b,"eventName":' % (b"[" * 2000 + b"]" * 2000), 1),
    lambda body: body.replace(b'"eventName":', b'"new":%b,"eventName":' % (b"1" * 5000), 1),
    lambda body: body.replace(b'"eventName":', b'"event\\u004eame":', 1),
    lambda body: body.replace(b"ObjectCreated", b"Object\xed\xa0\x80", 1),
    lambda body: body.replace(b"ObjectCreated", b"Object\xc0\xaf\xff", 1),
    lambda body: body.replace(b"ObjectCreated", b"Object\t", 1),
    lambda body: body.replace(b'"size":', b'"size":0', 1),
    lambda body: body.replace(b'"userMetadata":{', b'"userMetadata":{"X-Amz-Meta-A":"2",', 1),
    lambda body: body.replace(b'"key":', b' "key"\t:\r ', 1),
    lambda body: body.replace(b",", b",\n"),
    lambda body: body.replace(b"\n", b"\r\n\n \x0b\n"),
    lambda body: body + b"\n \t",
    lambda body: body + body,
    lambda body: body[:-1],
    lambda body: b"\xef\xbb\xbf" + body,
    lambda body: body.replace(b'{"Records"', b'{"Event":"s3:TestEvent","Key":[{}],"Records"', 1),
    lambda body: body.replace(b'{"Records"', b'{"Key":1,"Key":2,"Records"', 1),
    lambda body: body.replace(b'{"Records"', b'{"Records":[],"Records"', 1),
    lambda body: body.replace(b'{"eventVersion"', b'{"Records":[{}],"eventVersion"', 1),
    lambda body: body.replace(b'{"eventVersion"', b'{"Event":"s3:TestEvent","eventVersion"', 1),
]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Lines or documents of such records, spoilt in ways that a JSON writer does not have."""
    some = draw(st.lists(records(), min_size=1, max_size=3))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    texts = [
        json.dumps(each, separators=separators, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
        for each in some
    ]
    body = b"\n".join(texts) if draw(st.booleans()) else b'{"Records":[' + b",".join(texts) + b"]}"
    for spoil in draw(st.lists(st.sampled_from(_SPOILS), max_size=2)):
        body = spoil(body)
    return body


@settings(max_examples=400)
@given(bodies())
def test_generated_bodies_come_to_the_same(body: bytes) -> None:
    """Events, entries, shards, made ids and dropped members are the same, and so is every refusal with its place."""
    agree(body)


_WHOLE = [
    *(make(*some) for make in (document, lines) for some in ((CEPH,), (AWS, CEPH), (MINIO, AWS))),
    json.dumps({"EventName": "e", "Key": "k", "Records": [MINIO]}, indent=1).encode(),
    *(pair.body for pair in real_pairs()[::17]),
]


@settings(max_examples=400)
@given(mutated(_WHOLE))
def test_damaged_bodies_come_to_the_same(body: bytes) -> None:
    """Bodies with bytes changed, cut out or put in are taken or refused alike."""
    agree(body)


@pytest.mark.parametrize("spoil", _SPOILS)
@pytest.mark.parametrize("base", [CEPH, AWS, MINIO])
def test_each_peculiarity_of_json_comes_to_the_same(base: Record, spoil: _Spoil) -> None:
    """Names that stand twice, odd numbers, depth, invalid UTF-8, escapes, blanks and ends."""
    agree(spoil(document(base, CEPH)))
    agree(spoil(lines(base, CEPH)))


def test_long_bodies_come_to_the_same_wherever_they_are_cut() -> None:
    """Several steps of all producers' records, whole and with a defect in the last one."""
    some = [changed("s3.object.key", f"k{n}", (CEPH, AWS, MINIO)[n % 3]) for n in range(600)]
    for last in (CEPH, changed("s3.bucket.name", 5), changed("eventTime", "never")):
        for body, ndjson in ((lines(*some, last), True), (document(*some, last), False)):
            with pytest.MonkeyPatch.context() as patched:
                compiled = outcome(body, TOPIC, ndjson=ndjson, most=1000)
                patched.setattr(speedups, "RecordEncoder", None)
                assert compiled == outcome(body, TOPIC, ndjson=ndjson, most=1000)


# ---------------------------------------------------------------------------------------- what is taken


@pytest.mark.parametrize(
    "found",
    [
        CEPH,
        AWS,
        MINIO,
        dict(reversed(list(AWS.items()))),
        changed("eventId", ...),
        changed("s3.object.metadata", [{"key": "b", "val": "1"}, {"key": "a", "val": "2"}]),
        changed("s3.object.key", "ä"),
        {"eventName": "e", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}},
    ],
)
def test_what_producers_write_takes_the_compiled_way(found: Record) -> None:
    """Records of radosgw, AWS and MinIO, in any order of their members, and with members missing."""
    assert is_compiled(found)
    assert is_compiled(CEPH, found)
    agree(document(found, CEPH))
    agree(lines(CEPH, found))


@pytest.mark.parametrize(
    "found",
    [changed("s3.object.key", 'a"b'), changed("awsRegion", None), changed("eventTime", "0.000001"), changed("s3", [])],
)
def test_what_is_unusual_is_left_to_the_plain_way(found: Record) -> None:
    """Escapes, null, early times and other types."""
    assert not is_compiled(found)
    assert not is_compiled(CEPH, found)


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 5000))
def test_compiled_shards_are_those_of_the_hash(keys: list[bytes], count: int) -> None:
    """Of keys of every length, for any number of shards."""
    assert list(speedups.shards(keys, count)) == [shard_hash.shard(key, count) for key in keys]
