"""The bytes of requests to HTTP receivers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.entries.entries import raw_entry
from remora import __version__
from remora.codec.rendering_cached import Renderer
from remora.endpoints.headers import header_value
from remora.endpoints.http.credentials import Credential, message_id, signature
from remora.endpoints.http.posts import pack
from remora.endpoints.http.requests import RequestMaker
from remora.endpoints.http.target import parse_target
from remora.model.record import Page, Record
from remora.model.topic import Target

NOW = 1_700_000_000
SECRET = b"s" * 32


def record(key: str | bytes = "some/key.txt", number: int = 0) -> Record:
    page = Page([b"0/%d" % number, b"0/%d" % (number + 1)], [raw_entry(key, number)], False)
    return Renderer().render(page)[0][0]


def request(
    args: str = "", *, uri: str = "http://host:8080/a%2f/../b?c", of: Record | None = None
) -> tuple[bytes, ...]:
    """The lines of a request's head, and its body."""
    maker = RequestMaker(parse_target(Target(uri, args, "t")), None, "t.1", "inc")
    head, _, body = maker.one(of or record(), NOW).partition(b"\r\n\r\n")
    return (*head.split(b"\r\n"), body)


def headers(lines: tuple[bytes, ...]) -> dict[bytes, bytes]:
    return dict(line.split(b": ", 1) for line in lines[1:-1])


def test_a_request() -> None:
    """Path and body are radosgw's byte for byte, and headers name the record's place."""
    sent = record(number=7)

    lines = request(of=sent)

    assert lines == (
        b"POST /a%2f/../b?c HTTP/1.1",
        b"Host: host:8080",
        b"User-Agent: remora/" + __version__.encode(),
        b"Accept: */*",
        b"Content-Type: application/json",
        b"remora-shard: t.1",
        b"remora-pos: inc:0/7",
        b"remora-next: inc:0/8",
        b"remora-event-id: " + sent.event_id,
        b"Content-Length: %d" % len(sent.body),
        sent.body,
    )


def test_the_number_of_an_event() -> None:
    """A record of a topic that numbers its events has its number in a header more; nothing else differs."""
    sent = record(number=7)

    lines = request(of=sent._replace(sequence=b"t1:42"))

    assert headers(lines)[b"remora-seq"] == b"t1:42"
    assert [line for line in lines if not line.startswith(b"remora-seq: ")] == list(request(of=sent))


def told(maker: RequestMaker, sent: Record) -> bytes:
    """What the request for a record says of where the shards before its own ended."""
    head = maker.one(sent, NOW).partition(b"\r\n\r\n")[0]
    return headers((*head.split(b"\r\n"), b"")).get(b"remora-after", b"")


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (b"t=i:0/7,t.1=i:0/9", b"t=i:0/7,t.1=i:0/9"),
        (b"t@12.1=0123456789abcdef:0/7," * 200, b"generation=12"),
        (b"t=0123456789abcdef:0/7," * 200, b"generation=0"),
        (b"generation=4", b"generation=4"),
    ],
    ids=("ends", "too many", "too many of the first layout", "a generation"),
)
def test_where_the_shards_before_ended(after: bytes, said: bytes) -> None:
    """The first record that is packed has it, whenever it is sent; where it is longer than servers take a header, the
    generation stands in its place."""
    maker = RequestMaker(parse_target(Target("http://host/", "", "t")), None, "t@13.1", "inc")
    maker.succeeds(after)
    maker.begin([record(number=0), record(number=1)])
    maker.begin([record(number=1)])

    assert [told(maker, record(number=number)) for number in (0, 1, 0)] == [said, b"", said]


def test_a_batch_says_where_the_shards_before_ended() -> None:
    """A body of several records has it as a header, if the first record of the shard is in it."""
    target = parse_target(Target("http://host/", "remora-batch=ndjson", "t"))
    maker = RequestMaker(target, None, "t@1", "inc")
    records = [record(number=number) for number in range(3)]
    maker.succeeds(b"t=i:0/7")
    maker.begin(records)

    assert b"\r\nremora-after: t=i:0/7\r\n" in maker.batch(records, NOW)
    assert b"remora-after" not in maker.batch(records[1:], NOW)


def test_credentials() -> None:
    """A password is sent as Basic, and a named token in its place."""
    basic = headers(request(uri="http://al%40ice:p%3aw@host/"))
    target = parse_target(Target("http://u:p@host/", "remora-credential=x", "t"))
    maker = RequestMaker(target, Credential("d", ("host",), "tok3n"), "t", "inc")

    assert basic[b"Authorization"] == b"Basic YWxAaWNlOnA6dw=="
    assert b"\r\nAuthorization: Bearer tok3n\r\n" in maker.one(record(), NOW)
    assert b"Basic" not in maker.one(record(), NOW)


def test_cloudevents() -> None:
    """Binary mode has radosgw's headers, with nine digits in the time, and the body unchanged."""
    sent = record(number=7)

    found = headers(lines := request("cloudevents=true", of=sent))

    assert {name: value for name, value in found.items() if name.startswith(b"ce-")} == {
        b"ce-specversion": b"1.0",
        b"ce-id": b"req.7.1011-default-default",
        b"ce-type": b"com.amazonaws.ObjectCreated:Put",
        b"ce-source": b"ceph:s3.default.bkt",
        b"ce-time": b"2023-11-14T22:13:20.000000000Z",
        b"ce-subject": b"some/key.txt",
    }
    assert lines[-1] == sent.body


def test_positions_as_ids() -> None:
    """Where it is asked for, the id and the idempotency key are the record's own place."""
    found = headers(request("cloudevents=true&remora-ce-id=position&remora-idempotency-key=true", of=record(number=7)))

    assert found[b"ce-id"] == b"t.1/inc:0/7"
    assert found[b"Idempotency-Key"] == b'"t.1/inc:0/7"'


def test_a_time_in_nanoseconds() -> None:
    """The time in the header has the entry's nanoseconds, and the one in a batch too; the body has microseconds."""
    raw = raw_entry("k", created=1_700_000_000 + 2**-20)  # 953.67 ns, and a number that a float has
    (sent,), _ = Renderer().render(Page([b"0/0", b"0/1"], [raw], False))
    maker = RequestMaker(parse_target(Target("http://host/", "remora-batch=cloudevents", "t")), None, "t", "inc")

    assert headers(request("cloudevents=true", of=sent))[b"ce-time"] == b"2023-11-14T22:13:20.000000953Z"
    assert b'"time":"2023-11-14T22:13:20.000000953Z"' in maker.batch([sent], NOW)
    assert b'"eventTime":"2023-11-14T22:13:20.000000Z"' in sent.body


def test_a_time_that_is_none() -> None:
    """An event without a modification time has no ce-time."""
    page = Page([b"0/0", b"0/1"], [raw_entry("k", created=0.0)], False)

    found = headers(request("cloudevents=true", of=Renderer().render(page)[0][0]))

    assert b"ce-time" not in found


@pytest.mark.parametrize(
    ("key", "subject"),
    [
        ("a b", b"a%20b"),
        ('"100%"', b"%22100%25%22"),
        ("x\r\nEvil: y", b"x%0D%0AEvil:%20y"),
        ("ü/€", b"%C3%BC/%E2%82%AC"),
        (b"\xff\x00", b"%FF%00"),
    ],
)
def test_odd_keys(key: str | bytes, subject: bytes) -> None:
    """A key of any bytes is one header, percent-encoded, and the body is as ever."""
    sent = record(key)

    found = headers(lines := request("cloudevents=true", of=sent))

    assert found[b"ce-subject"] == subject
    assert lines[-1] == sent.body


@given(st.binary(max_size=60))
def test_any_header_value(raw: bytes) -> None:
    """Any bytes become printable ASCII without spaces, from which they can be read back."""
    from urllib.parse import unquote_to_bytes

    made = header_value(raw)

    assert all(0x21 <= each <= 0x7E for each in made)
    assert unquote_to_bytes(made) == raw


def test_signatures() -> None:
    """The signature is of the id, the time of this try, and the very body; the id is the same at each try."""
    target = parse_target(Target("https://host/", "remora-credential=x", "t"))
    maker = RequestMaker(target, Credential("d", ("host",), "", (SECRET, b"o" * 32)), "t.1", "inc")
    sent = record(number=7)

    first, second = (maker.one(sent, NOW + after).split(b"\r\n") for after in (0, 60))

    one, other = (dict(line.split(b": ", 1) for line in lines[1:-2]) for lines in (first, second))
    name = message_id(b"t.1", b"inc:0/7")
    assert one[b"webhook-id"] == other[b"webhook-id"] == name.encode()
    assert one[b"webhook-timestamp"] == b"%d" % NOW
    assert one[b"webhook-signature"].decode() == signature([SECRET, b"o" * 32], name, NOW, sent.body)
    assert one[b"webhook-signature"] != other[b"webhook-signature"]


def batch(kind: str, records: list[Record]) -> tuple[dict[bytes, bytes], bytes]:
    maker = RequestMaker(parse_target(Target("http://host/", f"remora-batch={kind}", "t")), None, "t", "inc")
    head, _, body = maker.batch(records, NOW).partition(b"\r\n\r\n")
    return dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:]), body


RECORDS = [record(key, number) for number, key in enumerate(["a", 'b\n"c', "ü", "d"])]


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("records", b"application/json"),
        ("ndjson", b"application/x-ndjson"),
        ("cloudevents", b"application/cloudevents-batch+json"),
    ],
)
def test_batches(kind: str, content_type: bytes) -> None:
    """A batch has every record's body, in order, and names the places of the first and behind the last."""
    found, body = batch(kind, RECORDS)

    if kind == "records":
        bodies: list[Any] = [{"Records": [each]} for each in json.loads(body)["Records"]]
    elif kind == "ndjson":
        bodies = [json.loads(line) for line in body.splitlines()]
    else:
        bodies = [each["data"] for each in json.loads(body)]
        assert [each["subject"] for each in json.loads(body)] == ["a", 'b\n"c', "ü", "d"]
    assert bodies == [json.loads(each.body) for each in RECORDS]
    assert found[b"Content-Type"] == content_type
    assert (found[b"remora-pos"], found[b"remora-next"], found[b"remora-count"]) == (b"inc:0/0", b"inc:0/4", b"4")
    assert int(found[b"Content-Length"]) == len(body)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.binary(max_size=3)), max_size=60), st.integers(1, 9))
def test_packing(keys: list[tuple[str, bytes]], most: int) -> None:
    """Each record is in one batch, those of a key in one lane and in order, and no batch is longer than asked."""
    records = [
        Record(key.encode() + more, b"", b"", 0, b"0/%d" % i, b"0/%d" % (i + 1), i)
        for i, (key, more) in enumerate(keys)
    ]

    posts = pack(records, 4, most)

    assert sorted(each.ordinal for post in posts for each in post.records) == list(range(len(records)))
    assert all(len(post.records) <= most for post in posts)
    by_key: dict[bytes, list[tuple[int, int]]] = {}
    for post in posts:
        for each in post.records:
            by_key.setdefault(each.key, []).append((post.lane, each.ordinal))
    for found in by_key.values():
        assert len({lane for lane, _ in found}) == 1
        assert found == sorted(found)
