"""The workers of a sequencer: started, told what is served, heard, killed when they stand still, and started anew.

A worker that stands still holds up nobody: what it may still do is harmless (docs/decisions/sequencer-workers.md). It
is killed so that its clients look for another connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

import msgspec

from remora.codec.sequencer import Result
from remora.config.sequencer import SequencerSettings
from remora.engine.sequencer import Sequencing
from remora.model.log import LogName
from remora.process.alone import Alone
from remora.process.pipe import Message, Pipe
from remora.sequencer.messages import Begin, Did, Forgotten, FromWorker, Leave, Low, Missed, Works
from remora.sequencer.shared import SharedCounters
from remora.servers.sequencer import RoundFigures
from remora.servers.sequencer.connection import LEAVE_S, Closed

SILENT_S = 5.0
"""A worker that says nothing for so long, though it says something each second, stands still."""

BEGINS_S = 60.0
"""How long a worker may take to begin."""

ANEW_S = 0.5
"""How long it is waited after a worker's end before the next one is started in its place."""

_log = logging.getLogger(__name__)


class SequencerChild:
    """A worker process, as the process that started it sees it."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], pipe: Pipe, now: float) -> None:
        self.number = number
        self.process = process
        self.did: Did | None = None
        self.heard_at = now
        self.works = False
        self._pipe = pipe

    def tell(self, message: Message) -> None:
        """Send a message."""
        self._pipe.send(message)

    async def line(self) -> bytes | None:
        """The next thing it says; None at its end."""
        return await self._pipe.line()

    def is_silent(self, now: float) -> bool:
        """Whether it has said nothing for longer than a worker does."""
        return now - self.heard_at > (SILENT_S if self.works else BEGINS_S)

    def close(self) -> None:
        """Close its pipe; it has ended."""
        self._pipe.close()


class SequencerWorkers:
    """See the module. Its figures are those of all workers together, as `Rounds` has those of one process."""

    def __init__(
        self,
        settings: SequencerSettings,
        count: int,
        sockets: Sequence[socket.socket],
        counters: SharedCounters,
        sequencing: Sequencing,
        alone: Alone,
    ) -> None:
        self._settings = settings
        self._count = count
        self._listeners = tuple(each.fileno() for each in sockets)
        self._counters = counters
        self._sequencing = sequencing
        self._alone = alone
        self._children: dict[int, SequencerChild] = {}
        self._numbers = 0
        self._past_figures = RoundFigures()
        self._is_leaving = False
        self._begun = asyncio.Event()
        self._reaped = asyncio.Event()

    # ---------------------------------------------------------------------------------------- figures

    @property
    def connections(self) -> int:
        """How many there are, as workers said last."""
        return sum(each.connections for each in self._said())

    @property
    def figures(self) -> RoundFigures:
        """What the workers have counted since the start."""
        return _sum(self._past_figures, self._said())

    @property
    def pids(self) -> list[int]:
        """The processes, oldest first."""
        return [each.process.pid for each in self._children.values()]

    def _said(self) -> list[Did]:
        return [each.did for each in self._children.values() if each.did is not None]

    # ------------------------------------------------------------------------------------------- life

    async def begin(self) -> None:
        """Return when all workers accept connections, or when one has ended before."""
        await self._begun.wait()

    async def run(self) -> None:
        """Keep all workers running, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._count):
                tasks.create_task(self._alone.task("a sequencer worker", self._keep_one))
            tasks.create_task(self._alone.task("silent sequencer workers", self._watch))

    async def end(self) -> None:
        """Have all workers send what is under way and end; those that take too long are killed."""
        self._is_leaving = True
        for each in self._children.values():
            each.tell(Leave())
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S + SILENT_S):
                while self._children:
                    self._reaped.clear()
                    await self._reaped.wait()

    async def _keep_one(self) -> None:
        while not self._is_leaving:
            try:
                await self._one()
            except OSError as exc:
                _log.warning(
                    "a sequencer worker cannot be started: %s", exc.strerror or exc,
                    extra={"event": "sequencer_worker_not_started"},
                )  # fmt: skip
            finally:
                self._begun.set()
            if not self._is_leaving:
                await asyncio.sleep(ANEW_S)
        await asyncio.Event().wait()

    async def _one(self) -> None:
        """A worker from its start to its end."""
        self._numbers += 1
        ours, theirs = socket.socketpair()
        with ExitStack() as unless_started, theirs:
            unless_started.enter_context(ours)
            process = subprocess.Popen(  # noqa: ASYNC220, S603  # the very program that runs here; it returns at once
                [sys.executable, "-P", "-m", "remora.sequencer.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._counters.memory, *self._listeners),
            )
            unless_started.pop_all()
        now = asyncio.get_running_loop().time()
        child = SequencerChild(self._numbers, process, await Pipe.opened(ours), now)
        self._children[child.number] = child
        try:
            child.tell(
                Begin(
                    number=child.number,
                    settings=self._settings,
                    listeners=self._listeners,
                    memory=self._counters.memory,
                )
            )
            self._counters.add(child)
            while (line := await child.line()) is not None:
                self._hear(child, msgspec.json.decode(line, type=FromWorker))
        finally:
            await self._reap(child)

    def _hear(self, child: SequencerChild, message: FromWorker) -> None:
        child.heard_at = asyncio.get_running_loop().time()
        match message:
            case Works():
                child.works = True
                if sum(each.works for each in self._children.values()) == self._count:
                    self._begun.set()
            case Missed(pool=pool, name=name, result=result, client=client):
                self._counters.client = client
                self._sequencing.missed(LogName(pool, name), Result(result))
            case Low(pool=pool, name=name):
                self._counters.low.add(LogName(pool, name))
                self._sequencing.after()
            case Forgotten(cell=cell):
                self._counters.forgotten(cell, child.number)
            case Did():
                for result, count in message.results.items():
                    before = child.did.results.get(result, 0) if child.did is not None else 0
                    self._counters.results[Result(result)] += count - before
                child.did = message

    async def _reap(self, child: SequencerChild) -> None:
        """See to a worker's end: nothing that it knew is awaited any more once its process is gone."""
        child.process.kill()
        await asyncio.to_thread(child.process.wait)  # it is killed: a moment
        child.close()
        del self._children[child.number]
        self._reaped.set()
        self._counters.remove(child.number)
        if child.did is not None:
            self._past_figures = _sum(self._past_figures, [child.did])
        if not self._is_leaving:
            code = child.process.returncode
            _log.warning("a sequencer worker ended with %s", code, extra={"event": "sequencer_worker_ended"})

    async def _watch(self) -> None:
        """Kill workers that stand still."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(SILENT_S / 5)
            late_s = loop.time() - before - SILENT_S / 5
            for each in list(self._children.values()):
                each.heard_at += late_s  # this process did not hear meanwhile
                if each.is_silent(loop.time()):
                    _log.warning(
                        "sequencer worker %d stands still: it is killed", each.process.pid,
                        extra={"event": "sequencer_worker_silent"},
                    )  # fmt: skip
                    each.process.kill()


def _sum(past: RoundFigures, said: Iterable[Did]) -> RoundFigures:
    """Figures of workers together."""
    made = RoundFigures(past.accepted, past.rounds, list(past.round_requests), past.sampled_requests, dict(past.closed))
    for each in said:
        made.accepted += each.accepted
        made.rounds += each.rounds
        made.sampled_requests += each.sampled_requests
        made.round_requests = [a + b for a, b in zip(made.round_requests, each.round_requests, strict=True)]
        for why, count in each.closed.items():
            made.closed[Closed(why)] += count
    return made
