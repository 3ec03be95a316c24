"""Bare publishers: as many messages unconfirmed as a window allows, and nothing else.

That of AMQP 0-9-1 is written here; that of NATS is what nats-py offers for it, `publish_async`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import nats
from pamqp import body, commands, frame, header

WINDOW = 512

BARE = commands.Basic.Properties(delivery_mode=2, content_type="application/json")
"""Messages with nothing but what a persistent one needs."""

LIKE_REMORA = commands.Basic.Properties(
    delivery_mode=2,
    content_type="application/json",
    message_id="bench-0123abcd.0/0123456789abcdef0123456789abcdef:0/12345678",
    app_id="remora",
    headers={
        "remora-shard": "bench-0123abcd.0",
        "remora-pos": "0123456789abcdef0123456789abcdef:0/12345678",
        "remora-next": "0123456789abcdef0123456789abcdef:0/12345679",
        "remora-event-id": "1700000000.123456.0123456789abcdef0123456789abcdef",
    },
)
"""Messages with the headers that remora's have, which RabbitMQ reads."""


async def publish(
    port: int, exchange: str, bodies: Sequence[bytes], properties: commands.Basic.Properties = BARE
) -> float:
    """Publish these, persistent and mandatory, until all are confirmed; messages a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await _open(reader, writer)
        method = frame.marshal(commands.Basic.Publish(0, exchange, "bench", mandatory=True), 1)
        headers = {n: frame.marshal(header.ContentHeader(0, n, properties), 1) for n in {len(each) for each in bodies}}
        began, sent, confirmed = time.monotonic(), 0, 0
        while confirmed < len(bodies):
            burst = bodies[sent : confirmed + WINDOW]
            writer.write(
                b"".join(method + headers[len(each)] + frame.marshal(body.ContentBody(each), 1) for each in burst)
            )
            sent += len(burst)
            found = await _read(reader)
            if isinstance(found, commands.Basic.Ack):
                confirmed = max(confirmed, found.delivery_tag) if found.multiple else confirmed + 1
        return len(bodies) / (time.monotonic() - began)
    finally:
        writer.transport.abort()


NATS_LIKE_REMORA = {
    "remora-shard": "bench-0123abcd.0",
    "remora-pos": "0123456789abcdef0123456789abcdef:0/12345678",
    "remora-next": "0123456789abcdef0123456789abcdef:0/12345679",
    "remora-event-id": "1700000000.123456.0123456789abcdef0123456789abcdef",
}
"""The headers that remora's messages have beside their ids, which the server stores."""


async def publish_to_stream(
    port: int, subject: str, bodies: Sequence[bytes], headers: Mapping[str, str] | None, unacknowledged: int
) -> float:
    """Publish these until the stream has acknowledged all; messages a second. With headers each has an id, too."""
    client = await nats.connect(f"nats://localhost:{port}", allow_reconnect=False)
    try:
        stream = client.jetstream(publish_async_max_pending=unacknowledged)
        run = uuid.uuid4().hex
        began = time.monotonic()
        for number, each in enumerate(bodies):
            lines = {**headers, "Nats-Msg-Id": f"{run}/{number}"} if headers is not None else None
            await stream.publish_async(subject, each, headers=lines)
        await stream.publish_async_completed()
        return len(bodies) / (time.monotonic() - began)
    finally:
        await client.close()


async def _open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"AMQP\x00\x00\x09\x01")
    await _read(reader)
    writer.write(frame.marshal(commands.Connection.StartOk({}, "PLAIN", "\x00guest\x00guest", "en_US"), 0))
    tune = await _read(reader)
    writer.write(frame.marshal(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0))
    writer.write(frame.marshal(commands.Connection.Open("/"), 0))
    await _read(reader)
    for asked in (commands.Channel.Open(), commands.Confirm.Select()):
        writer.write(frame.marshal(asked, 1))
        await _read(reader)


async def _read(reader: asyncio.StreamReader) -> Any:
    start = await reader.readexactly(7)
    rest = await reader.readexactly(int.from_bytes(start[3:], "big") + 1)
    return frame.unmarshal(start + rest)[2]
