"""Frames of AMQP 0-9-1: what comes in is divided into them, and what is published is encoded at once. Pure.

Publishing and its confirms are the path of every event, and written by hand. `pamqp` does the rest, the handshake and
its tables; tests compare what is written by hand with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})

PREAMBLE = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

FRAME_BYTES = 8
"""What a frame has around its payload."""

LEAST_FRAME_BYTES, DEFAULT_FRAME_BYTES, MOST_FRAME_BYTES = 4096, 131_072, 1 << 20
"""The smallest limit that the protocol allows, what stands for no limit, and the most that is ever accepted."""

ACK, NACK = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"

MOST_SHORT_BYTES = 255
"""The longest short string: names of exchanges, routing keys, message ids."""

# Properties of a message, by their bits, in the order in which they stand in its header.
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _MESSAGE_ID, _APP_ID = 1 << 15, 1 << 13, 1 << 12, 1 << 7, 1 << 3
_FLAGS = _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID | _APP_ID
_PERSISTENT = b"\x02"
_MANDATORY = b"\x01"

_frame = struct.Struct(">BHI")
_content = struct.Struct(">HHQH")
_confirm = struct.Struct(">QB")


class BadFrames(Exception):
    """What came is no AMQP, or not what AMQP allows."""


class Frame(NamedTuple):
    """One frame; a METHOD's payload begins with its class and method, two bytes each."""

    kind: int
    channel: int
    payload: bytes

    @property
    def whole(self) -> bytes:
        """The frame as it travels."""
        return encode_frame(self.kind, self.channel, self.payload)


class Splitter:
    """Divides what comes in into frames, however it is cut; never keeps more than one frame of `most_bytes`."""

    def __init__(self, most_bytes: int = MOST_FRAME_BYTES) -> None:
        self.most_bytes = most_bytes
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes. Raises BadFrames, after the frames before it."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        self._rest = b""
        while end - at >= _frame.size:
            kind, channel, length = _frame.unpack_from(data, at)
            if kind not in KINDS:
                raise BadFrames(f"a frame begins with the byte {kind}")
            if length + FRAME_BYTES > self.most_bytes:
                raise BadFrames(f"a frame of {length} bytes, more than {self.most_bytes}")
            behind = at + FRAME_BYTES + length
            if behind > end:
                break
            if data[behind - 1] != 0xCE:
                raise BadFrames("a frame does not end where it says")
            yield Frame(kind, channel, data[at + 7 : behind - 1])
            at = behind
        if end - at and data[at] not in KINDS:
            raise BadFrames(f"a frame begins with the byte {data[at]}")
        self._rest = data[at:]


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame as it travels."""
    return _frame.pack(kind, channel, len(payload)) + payload + b"\xce"


class Confirm(NamedTuple):
    """An answer of the broker's to a message; with `multiple` also to all before it that have none yet, and with tag 0
    to all."""

    tag: int
    multiple: bool


def read_confirm(payload: bytes) -> Confirm:
    """What a method that begins with ACK or NACK confirms. Raises BadFrames."""
    if len(payload) != 4 + _confirm.size:
        raise BadFrames("a confirm of the wrong length")
    tag, bits = _confirm.unpack_from(payload, 4)
    return Confirm(tag, bool(bits & 1))


# ---------------------------------------------------------------------------------------- publishing


def short(text: bytes) -> bytes:
    """A short string; at most MOST_SHORT_BYTES."""
    return bytes((len(text),)) + text


def open_vhost(vhost: bytes) -> bytes:
    """The frame of connection.open. pamqp allows half as many bytes, and fewer characters, than brokers do."""
    return encode_frame(METHOD, 0, b"\x00\x0a\x00\x28" + short(vhost) + b"\x00\x00")


def look_for_exchange(channel: int, exchange: bytes) -> bytes:
    """The frame of exchange.declare with which radosgw asks whether there is an exchange: passive, topic, durable.

    The broker looks at nothing but the name. pamqp refuses names that brokers allow.
    """
    return encode_frame(METHOD, channel, b"\x00\x28\x00\x0a\x00\x00" + short(exchange) + b"\x05topic\x03" + bytes(4))


@dataclass(frozen=True, slots=True)
class Envelope:
    """What messages to one place have in common: the frame of basic.publish, with `mandatory`, for a channel."""

    exchange: bytes
    routing_key: bytes

    def publish(self, channel: int) -> bytes:
        """The first frame of each message on a channel."""
        arguments = short(self.exchange) + short(self.routing_key) + _MANDATORY
        return encode_frame(METHOD, channel, b"\x00\x3c\x00\x28\x00\x00" + arguments)


def table(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A table of long strings."""
    inside = b"".join(short(name) + b"S" + len(value).to_bytes(4, "big") + value for name, value in fields)
    return len(inside).to_bytes(4, "big") + inside


JSON, BYTES = short(b"application/json"), short(b"application/octet-stream")
_APP = short(b"remora")


@dataclass(frozen=True, slots=True)
class MessageContent:
    """One message without the place where it goes: its id, its header's properties and its body."""

    message_id: bytes
    properties: bytes
    body: bytes

    def frames(self, channel: int, frame_bytes: int) -> list[bytes]:
        """Header and body on a channel, in frames of at most `frame_bytes`."""
        header = _content.pack(60, 0, len(self.body), _FLAGS) + self.properties
        made = [encode_frame(HEADER, channel, header)]
        most = frame_bytes - FRAME_BYTES
        body = self.body
        if len(body) <= most:
            if body:
                made.append(encode_frame(BODY, channel, body))
        else:
            made += [encode_frame(BODY, channel, body[at : at + most]) for at in range(0, len(body), most)]
        return made

    @property
    def header_bytes(self) -> int:
        """The length of the header's frame, which cannot be cut."""
        return FRAME_BYTES + _content.size + len(self.properties)


def make_content(
    message_id: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes, content_type: bytes = JSON
) -> MessageContent:
    """A persistent message of ours."""
    properties = content_type + table(headers) + _PERSISTENT + short(message_id) + _APP
    return MessageContent(message_id, properties, body)
