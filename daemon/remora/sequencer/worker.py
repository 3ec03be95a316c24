"""A worker of the sequencer: it accepts from the sockets that all workers have, and takes positions from cells.

It has no store and registers nothing: what it does not know it asks the process that started it, over its pipe, and it
ends when that pipe does. Whatever ends it costs the replies of its connections, and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import signal
import socket
import sys

import msgspec

from remora.codec import speedups
from remora.codec.sequencer import Result
from remora.engine.sequencer import LOW
from remora.model.exits import Exit
from remora.model.log import LogName
from remora.policy.logs.sequence import LogShares
from remora.process.loop import run_loop
from remora.process.pipe import Pipe
from remora.sequencer.messages import Begin, Did, Forgotten, Leave, Low, Missed, Over, Raised, Serve, ToWorker, Works
from remora.servers.sequencer import Rounds, SecureConnections, may_speak_plainly, tls_context

DID_EVERY_S = 1.0
ASKED_ANEW_S = 0.01
"""How long a log that was asked for is not asked for again: clients repeat what is not served."""

MOST_ASKED = 256
"""Logs that are asked for in that time; each costs the process that registers logs about as much as the worker."""

MOST_ASKED_OF_ONE = 32
"""Those of them that one connection has asked for: a client that asks for endless names leaves room for others."""

ACCEPTS = 1
"""Connections that a round accepts: the other workers are awake, too, and take the next ones."""


class SequencerWorker:
    """See the module."""

    def __init__(self, begin: Begin, pipe: Pipe) -> None:
        assert speedups.SequencerCells is not None
        self._begin = begin
        self._pipe = pipe
        size = os.fstat(begin.memory).st_size
        self._cells = speedups.SequencerCells(mmap.mmap(begin.memory, size))
        self._core = speedups.SequencerCore(self._missed, begin.settings.max_range, LOW)
        self._asked: dict[Result, LogShares] = {}
        self._told: set[LogName] = set()
        self._rounds: Rounds

    async def run(self) -> Exit:
        """Serve until it is told to leave, or the pipe ends."""
        mine = self._begin.settings
        sockets = [socket.socket(fileno=each) for each in self._begin.listeners]
        context, is_allowed = tls_context(mine), may_speak_plainly(mine)
        secure = None
        if context is not None:
            secure = SecureConnections(self._core, context, may_be_plain=is_allowed, after=self._after)
        rounds = Rounds(
            self._core,
            sockets,
            most_connections=mine.max_connections,
            accepts=ACCEPTS,
            may_connect=is_allowed if secure is None else lambda _: True,
            secure=secure,
            after=self._after,
        )
        async with rounds:
            self._rounds = rounds
            self._pipe.send(Works())
            saying = asyncio.ensure_future(self._say())
            try:
                leaves = await self._hear()
            finally:
                saying.cancel()
            if not leaves:  # nobody renews the locks any more
                os._exit(Exit.FAILURE)
        return Exit.OK

    async def _hear(self) -> bool:
        """Do what is said, until that is to leave; False where the pipe ends."""
        decoder = msgspec.json.Decoder(ToWorker)
        while (line := await self._pipe.line()) is not None:
            message = decoder.decode(line)
            if isinstance(message, Leave):
                return True
            self._take(message)
        return False

    def _take(self, message: ToWorker) -> None:
        match message:
            case Serve(pool=pool, name=name, epoch=epoch, cell=cell):
                self._core.share(LogName(pool, name), epoch, self._cells, cell)  # type: ignore[attr-defined]  # compiled
            case Over(pool=pool, name=name, cell=cell):
                log = LogName(pool, name)
                counter = self._core.counters.get(log)
                if counter is not None and counter.number == cell:  # type: ignore[attr-defined]  # compiled
                    self._core.forget(log)
                self._told.discard(log)
                self._rounds.resume(log)
                self._pipe.send(Forgotten(cell=cell))
            case Raised(pool=pool, name=name, epoch=epoch, bound=bound):
                log = LogName(pool, name)
                self._core.raise_bound(log, epoch, bound)
                self._told.discard(log)
                self._rounds.resume(log)

    def _missed(self, log: LogName, result: Result) -> None:
        """Ask for a log. What is not asked for now is when its client repeats the request."""
        if self._pipe.is_behind:
            return
        if not self._asked:
            asyncio.get_running_loop().call_later(ASKED_ANEW_S, self._asked.clear)
        asked = self._asked.setdefault(result, LogShares(MOST_ASKED, MOST_ASKED_OF_ONE))
        if log in asked or not asked.admit(log, self._core.client):
            return
        client = self._begin.number << 32 | self._core.client
        self._pipe.send(Missed(pool=log.pool, name=log.name, result=result.value, client=client))

    def _after(self) -> None:
        for log in self._core.low - self._told:
            self._told.add(log)
            self._pipe.send(Low(pool=log.pool, name=log.name))

    async def _say(self) -> None:
        while True:
            figures, results = self._rounds.figures, self._core.results
            did = Did(
                connections=self._rounds.connections,
                accepted=figures.accepted,
                rounds=figures.rounds,
                round_requests=tuple(figures.round_requests),
                sampled_requests=figures.sampled_requests,
                closed={why.value: count for why, count in figures.closed.items()},
                results={result.value: count for result, count in results.items()},
            )
            self._pipe.send(did)
            await asyncio.sleep(DID_EVERY_S)


async def _main(channel: int) -> Exit:
    pipe = await Pipe.opened(socket.socket(fileno=channel))
    line = await pipe.line()
    if line is None:
        return Exit.FAILURE
    code = await SequencerWorker(msgspec.json.decode(line, type=Begin), pipe).run()
    await pipe.sent()
    return code


if __name__ == "__main__":
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)  # the service manager tells all; the first process tells when to leave
    gc.freeze()
    sys.exit(run_loop(_main(int(sys.argv[1]))))
