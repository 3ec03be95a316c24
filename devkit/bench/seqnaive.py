"""The sequencer as it is written first: an asyncio protocol, and protobuf's own objects for each message.

    python -m devkit.bench.seqnaive HOST PORT

It serves any log in any epoch, from position 1 on, and prints a line when it listens.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
from collections import defaultdict
from typing import Any, cast

import uvloop
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KIND = descriptor_pb2.FieldDescriptorProto
_FIELDS = {
    "Request": [("epoch", _KIND.TYPE_UINT64), ("pool", _KIND.TYPE_BYTES), ("name", _KIND.TYPE_BYTES),
                ("next", _KIND.TYPE_BOOL)],
    "Reply": [("position", _KIND.TYPE_UINT64)],
}  # fmt: skip


def _messages() -> tuple[Any, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="sequencer.proto", syntax="proto2")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=kind, label=_KIND.LABEL_REQUIRED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, reply = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in _FIELDS)
    return request, reply


REQUEST, REPLY = _messages()
COUNTERS: defaultdict[tuple[bytes, bytes], int] = defaultdict(int)


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what replies go to."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """Answer each whole frame."""
        data = self._rest + data
        place, replies = 0, []
        while place + 4 <= len(data):
            (size,) = struct.unpack_from(">I", data, place)
            if place + 4 + size > len(data):
                break
            request = REQUEST.FromString(data[place + 4 : place + 4 + size])
            place += 4 + size
            log = request.pool, request.name
            if request.next:
                COUNTERS[log] += 1
            body = REPLY(position=COUNTERS[log]).SerializeToString()
            replies.append(struct.pack(">I", len(body)) + body)
        self._rest = data[place:]
        self._transport.write(b"".join(replies))


async def main(host: str, port: int) -> None:
    """Serve until it is killed."""
    server = await asyncio.get_running_loop().create_server(Connection, host, port)
    gc.freeze()
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2])))
