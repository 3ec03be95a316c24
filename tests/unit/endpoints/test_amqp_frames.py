"""The frame codec of AMQP, against pamqp's, which shares no code with it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from remora.endpoints.amqp.frames import (
    ACK,
    BODY,
    BYTES,
    FRAME_BYTES,
    HEADER,
    HEARTBEAT_FRAME,
    JSON,
    KINDS,
    LEAST_FRAME_BYTES,
    METHOD,
    MOST_FRAME_BYTES,
    NACK,
    PREAMBLE,
    BadFrames,
    Confirm,
    Envelope,
    Frame,
    Splitter,
    encode_frame,
    look_for_exchange,
    make_content,
    open_vhost,
    read_confirm,
    table,
)
from remora.endpoints.amqp.messages import MessageOrigin, letter_content
from remora.model.record import DeadLetter, Record

SHORT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)
FRAMES = st.builds(Frame, st.sampled_from(sorted(KINDS)), st.integers(0, 65_535), st.binary(max_size=80))


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """The bytes, cut at these places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        yield data[begin:end]


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 5000), max_size=12))
def test_cut_anywhere(frames: list[Frame], cuts: list[int]) -> None:
    """However the bytes of frames are cut, the same frames come out, each as soon as its last byte is there."""
    splitter, whole = Splitter(), b"".join(each.whole for each in frames)
    found: list[Frame] = []
    fed = 0

    for piece in pieces(whole, cuts):
        found += splitter.feed(piece)
        fed += len(piece)
        complete, at = 0, 0
        for each in frames:
            at += len(each.whole)
            complete += at <= fed
        assert len(found) == complete

    assert found == frames


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_any_bytes(data: bytes, cuts: list[int]) -> None:
    """Whatever comes, it is frames that encode to the same bytes, or refused; at most one frame is kept."""
    splitter, found = Splitter(200), b""
    try:
        for piece in pieces(data, cuts):
            for each in splitter.feed(piece):
                found += each.whole
            assert len(splitter._rest) < 200
    except BadFrames:
        return
    assert data.startswith(found)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "begins with the byte 72"),
        (b"A", "begins with the byte 65"),
        (PREAMBLE, "begins with the byte 65"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "begins with the byte 21"),
        (b"\x01\x00\x00\xff\xff\xff\xff" + b"x" * 8, "a frame of 4294967295 bytes"),
        (HEARTBEAT_FRAME[:-1] + b"\x00", "does not end where it says"),
    ],
)
def test_what_is_no_frame(data: bytes, reason: str) -> None:
    """Other protocols, endless frames and frames without an end are refused, the first two by their first bytes."""
    with pytest.raises(BadFrames, match=reason):
        list(Splitter(MOST_FRAME_BYTES).feed(data))


@given(st.integers(0, (1 << 63) - 1), st.booleans(), st.integers(1, 65_535))
def test_confirms(tag: int, multiple: bool, channel: int) -> None:
    """Acks and nacks are read as pamqp writes them."""
    for start, method in (
        (ACK, commands.Basic.Ack(tag, multiple)),
        (NACK, commands.Basic.Nack(tag, multiple, True)),
    ):
        (found,) = Splitter().feed(frame.marshal(method, channel))

        assert (found.kind, found.channel, found.payload[:4]) == (METHOD, channel, start)
        assert read_confirm(found.payload) == Confirm(tag, multiple)


def test_a_confirm_of_the_wrong_length() -> None:
    """A confirm that is cut or too long is refused."""
    for payload in (ACK, ACK + b"\0" * 8, NACK + b"\0" * 10):
        with pytest.raises(BadFrames, match="wrong length"):
            read_confirm(payload)


NAME = st.from_regex(r"[a-zA-Z0-9._:-]{1,60}", fullmatch=True)
"""What pamqp allows; brokers take any UTF-8."""


@given(NAME, st.integers(1, 2047))
def test_what_pamqp_would_send(name: str, channel: int) -> None:
    """The look for an exchange, and the opening of a virtual host, are pamqp's."""
    looked = commands.Exchange.Declare(exchange=name, exchange_type="topic", passive=True, durable=True)

    assert look_for_exchange(channel, name.encode()) == frame.marshal(looked, channel)
    assert open_vhost(name.encode()) == frame.marshal(commands.Connection.Open(name), 0)


@given(NAME, SHORT, st.integers(1, 2047))
def test_publish(exchange: str, key: str, channel: int) -> None:
    """The first frame of a message is pamqp's basic.publish with mandatory."""
    expected = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=True)

    made = Envelope(exchange.encode(), key.encode()).publish(channel)

    assert made == frame.marshal(expected, channel)


@given(
    SHORT,
    st.dictionaries(st.sampled_from(["remora-shard", "remora-pos", "remora-next", "x"]), SHORT, max_size=4),
    st.integers(0, 20_000),
    st.integers(LEAST_FRAME_BYTES, 10_000),
    st.sampled_from([JSON, BYTES]),
)
def test_content(name: str, headers: dict[str, str], nbytes: int, frame_bytes: int, kind: bytes) -> None:
    """pamqp reads the properties that were given, and the body in frames that are no longer than allowed."""
    fields = [(key.encode(), value.encode()) for key, value in headers.items()]
    payload = bytes(number % 251 for number in range(nbytes))
    content = make_content(name.encode(), fields, payload, kind)

    first, *rest = content.frames(7, frame_bytes)

    assert len(first) == content.header_bytes
    consumed, channel, head = frame.unmarshal(first)
    assert (consumed, channel) == (len(first), 7)
    assert isinstance(head, header.ContentHeader)
    assert head.body_size == nbytes
    found = head.properties
    assert (found.message_id, found.delivery_mode, found.app_id) == (name, 2, "remora")
    assert found.headers == headers
    assert found.content_type == kind[1:].decode()
    bodies = [frame.unmarshal(each)[2] for each in rest]
    assert all(len(each) <= frame_bytes for each in rest)
    assert all(isinstance(each, body.ContentBody) for each in bodies)
    assert b"".join(each.value for each in bodies if isinstance(each, body.ContentBody)) == payload
    assert len(rest) == -(-nbytes // (frame_bytes - FRAME_BYTES))


@pytest.mark.parametrize("sequence", [b"", b"t1:42"])
def test_the_number_of_an_event(sequence: bytes) -> None:
    """A message of an event that has a number, or of its letter, says so in a header more."""
    record = Record(b"b/k", b"{}", b"id", 0, b"0/1", b"0/2", 0, sequence)
    letter = DeadLetter("t", "i", "0/1", "0/2", "expired", "", 0, 1.0, 1.0, b"raw", sequence.decode())

    for content in (MessageOrigin(b"t", b"i:").content(record), letter_content(letter)):
        head = frame.unmarshal(content.frames(1, LEAST_FRAME_BYTES)[0])[2]

        assert isinstance(head, header.ContentHeader)
        assert (head.properties.headers or {}).get("remora-seq") == (sequence.decode() or None)


def test_a_table_of_any_bytes() -> None:
    """A header's value may be any bytes, and as long as a frame allows."""
    assert table([(b"a", b"\xff\0")]) == b"\x00\x00\x00\x09\x01aS\x00\x00\x00\x02\xff\x00"


def test_kinds() -> None:
    """A frame encodes as pamqp encodes it."""
    assert encode_frame(BODY, 3, b"abc") == frame.marshal(body.ContentBody(b"abc"), 3)
    assert encode_frame(HEADER, 3, header.ContentHeader(0, 5).marshal()) == frame.marshal(header.ContentHeader(0, 5), 3)
