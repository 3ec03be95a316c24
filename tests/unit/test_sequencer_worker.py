"""A worker of the sequencer, and how much it asks the process that registers logs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from remora.client.sequencer_session import request_frame
from remora.codec import speedups
from remora.config import SequencerSettings
from remora.model.log import LogName
from remora.process.pipe import MOST_BEHIND, Pipe
from remora.sequencer.messages import Begin, FromWorker, Missed, Works
from remora.sequencer.shared import CELL_BYTES
from remora.sequencer.worker import MOST_ASKED, MOST_ASKED_OF_ONE, SequencerWorker

pytestmark = pytest.mark.skipif(speedups.SequencerCells is None, reason="workers need the compiled core")


class Clients:
    """Clients of a worker, and the other end of its pipe, which nobody reads unless `asked` does."""

    def __init__(self, worker: SequencerWorker, pipe: Pipe, other: Pipe) -> None:
        self._core = worker._core
        self.forget = worker._asked.clear
        self.pipe = pipe
        self._other = other

    def ask(self, client: int, first: int, count: int) -> None:
        """Have a connection ask for this many logs that nobody serves."""
        self._core.client = client
        for number in range(first, first + count):
            self._core.answer(request_frame(LogName(b"pool", b"%d" % number), 1, hands_out=True))

    async def asked(self) -> list[bytes]:
        """The names of the logs that the worker has asked for."""
        self.pipe.send(Works())
        found: list[bytes] = []
        while True:
            line = await self._other.line()
            assert line is not None
            message = msgspec.json.decode(line, type=FromWorker)
            if not isinstance(message, Missed):
                return found
            found.append(message.name)


@asynccontextmanager
async def clients() -> AsyncIterator[Clients]:
    """Those of a worker that works."""
    ours, theirs = socket.socketpair()
    memory = os.memfd_create("cells")
    os.ftruncate(memory, CELL_BYTES)
    pipe, other = await Pipe.opened(theirs), await Pipe.opened(ours)
    try:
        begin = Begin(number=1, settings=SequencerSettings(), listeners=(), memory=memory)
        yield Clients(SequencerWorker(begin, pipe), pipe, other)
    finally:
        os.close(memory)
        pipe.close()
        other.close()
        await asyncio.sleep(0)


async def test_one_client_leaves_room_for_the_logs_of_others() -> None:
    """Of the endless names that a connection asks for few are asked for at a time, and another one's log at once."""
    async with clients() as found:
        found.ask(client=7, first=0, count=10 * MOST_ASKED)
        found.ask(client=8, first=100_000, count=1)

        assert await found.asked() == [*(b"%d" % number for number in range(MOST_ASKED_OF_ONE)), b"100000"]


async def test_a_worker_keeps_little_for_who_does_not_read() -> None:
    """While the process that registers logs does not read, a worker keeps no more than a little of what clients ask."""
    async with clients() as found:
        for turn in range(40):
            for client in range(MOST_ASKED):
                found.ask(client, first=100 * client + turn, count=1)
            found.forget()  # the time in which a log is not asked for again is over

        assert found.pipe._writer.transport.get_write_buffer_size() < 2 * MOST_BEHIND
        assert found.pipe.is_behind
