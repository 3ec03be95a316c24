"""A sequencer is halted, and killed, at each step of taking a log over, between the step's file and socket calls.

The log was served before by a sequencer that was killed, and is then taken over by another one. It is judged over
everything that anybody was ever handed out, and all that was ever written.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from pathlib import Path

import pytest

from devkit.processes.daemon import write_config
from devkit.processes.processes import is_writing
from devkit.testing.cases import cases
from devkit.waits import PATIENT_S
from remora.client import SequencerClient, SequencerUnavailable
from remora.config import SqliteSettings
from remora.model.log import Cell, LogKind, LogName, StaleEpoch, Token
from remora.storage.sqlite import SqliteStore
from support.sequencer_process import Server, a_server
from support.stopping import Stopping, until_stopped

pytestmark = pytest.mark.guarantee("positions-of-a-log")

MOST_STEPS = 40
"""More than a takeover has."""
LEASE_S, ENDLESS_S = 0.5, 3600
WAITING = 2
"""Requests that are sent to a server that stands still."""
FIRST_EPOCH = 1
EPOCH_TAG, INIT_LOG = 0x28, b"\x08\0\x10\1"


class Phase(Enum):
    """How far a server had come when it was stopped."""

    BEFORE_THE_SWAP = 0
    WRITING = 1
    BEFORE_THE_FIRST_REPLY = 2
    SERVING = 3


IDLE = (Phase.BEFORE_THE_SWAP, Phase.SERVING)
"""Here the last position that was handed out is good for a write until the next server takes the log."""


class Account:
    """What was handed out of a log and written to it, and the rules that this has to keep."""

    def __init__(self, store: SqliteStore, log: LogName, kind: LogKind) -> None:
        self.log, self.kind = log, kind
        self.tokens: list[Token] = []
        self._late: list[Token] = []
        self._logs = store.logs
        self._written: dict[int, bytes] = {}

    def handed_out(self, token: Token, *, is_late: bool = False) -> None:
        """Judge a token. One that is late was chosen by a server before it was stopped, and sent when it was thawed."""
        known = self.tokens + self._late
        assert token not in known
        assert self.kind is LogKind.LOG or token.position not in {each.position for each in known}
        if is_late:
            self._late.append(token)
            return
        assert token.epoch >= max((each.epoch for each in known), default=FIRST_EPOCH)
        assert token.position > max(self._written, default=0)
        assert token.position > max((each.position for each in known if each.epoch == token.epoch), default=0)
        self.tokens.append(token)

    async def take(self, *servers: Server) -> Token:
        """A position from the one of these servers that serves the log."""
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(each.client()) for each in servers]
            asked = [asyncio.create_task(each.next(self.log)) for each in clients]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for each in asked:
                each.cancel()
            answers = await asyncio.gather(*asked, return_exceptions=True)
        tokens = sorted(each for each in answers if isinstance(each, Token))
        assert tokens, answers
        for token in tokens:
            self.handed_out(token)
        return tokens[-1]

    async def write(self, token: Token) -> None:
        """Write to the position of a token. Raises StaleEpoch."""
        if self.kind is LogKind.LOG:
            content = b"%d in epoch %d" % (token.position, token.epoch)
            await self._logs.append(self.log, token.epoch, token.position, content)
            self._written[token.position] = content

    async def write_next(self, *servers: Server) -> Token:
        """Take a position, and write to it."""
        while True:
            token = await self.take(*servers)
            try:
                await self.write(token)
            except StaleEpoch:  # on a slow machine its server has lost the log meanwhile, and takes it again
                continue
            return token

    async def check(self) -> None:
        """Everything that was written stands there, and no token of an epoch that is over is good for a write."""
        if self.kind is not LogKind.LOG:
            return
        found = {each: await self._logs.read(self.log, each) for each in self._written}
        assert found == {each: (Cell.DATA, content) for each, content in self._written.items()}
        epoch = await self.epoch()
        for token in self.tokens + self._late:
            if token.epoch < epoch:
                with pytest.raises(StaleEpoch):
                    await self._logs.append(self.log, token.epoch, token.position, b"late")

    async def epoch(self) -> int:
        """The log's epoch in the store."""
        return (await self._logs.projection(self.log)).epoch


class Connection:
    """Asks a server for one position after the other, in whichever epoch it serves, until it is stopped."""

    def __init__(self, account: Account, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._account = account
        self._reader, self._writer = reader, writer
        self._is_stopped = False
        self.tokens: list[Token] = []
        """What it was handed out before it saw that the server was stopped."""
        pool, name = account.log
        body = b"\x08\0\x12%c%b\x1a%c%b\x20\x01\x40\x01" % (len(pool), pool, len(name), name)
        self._frame = len(body).to_bytes(4, "big") + body
        self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        while not self._is_stopped:
            self.send(1)
            if (token := await self._reply()) is not None:
                self._account.handed_out(token, is_late=self._is_stopped)
                if not self._is_stopped:
                    self.tokens.append(token)
            await asyncio.sleep(0.002)  # a log that is being registered is asked for again and again

    async def stopped(self, server: Server) -> Phase:
        """Wait until the server has stopped, and see how far it has come."""
        pid = server.process.pid
        await until_stopped(pid, PATIENT_S)
        self._is_stopped = True
        if is_writing(pid):
            return Phase.WRITING
        epoch = await self._account.epoch()
        if epoch == FIRST_EPOCH:
            return Phase.BEFORE_THE_SWAP
        is_serving = bool(self.tokens) and self.tokens[-1].epoch == epoch
        return Phase.SERVING if is_serving else Phase.BEFORE_THE_FIRST_REPLY

    def send(self, count: int) -> None:
        """Ask for so many positions."""
        self._writer.write(self._frame * count)

    async def rest(self, count: int) -> list[Token | None]:
        """What is handed out for the last requests, when all earlier ones were answered."""
        async with asyncio.timeout(PATIENT_S):
            await self._asking
            return [await self._reply() for _ in range(count)]

    async def _reply(self) -> Token | None:
        """What is handed out for one request; None where nothing is, or the connection is closed."""
        try:
            body = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        position, place = varint(body, 1)
        if body[place] != EPOCH_TAG:
            assert body == INIT_LOG
            return None
        return Token(varint(body, place + 1)[0], position)

    async def close(self) -> None:
        """Ask no more."""
        self._asking.cancel()
        await asyncio.wait([self._asking])
        self._writer.close()


def varint(data: bytes, place: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while data[place] > 0x7F:
        value |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return value | data[place] << shift, place + 1


@asynccontextmanager
async def served_before(folder: Path, kind: LogKind, lease_s: float) -> AsyncIterator[list[Account]]:
    """Logs that a sequencer has handed out positions of, some of them written, before it was killed.

    The lease is that of those that take them over; the one that was killed has never lost a log, and has left no lock.
    """
    configure(folder, ENDLESS_S)
    async with SqliteStore(SqliteSettings(directory=f"{folder}/queues", files=1)) as store:
        accounts = [Account(store, LogName(b"remora", b"%d" % number), kind) for number in range(MOST_STEPS)]
        await asyncio.gather(*(store.logs.create(each.log, kind, width=4) for each in accounts))
        async with a_server(folder, "first") as server:
            await asyncio.gather(*(begin(each, server) for each in accounts))
            await server.ended(signal.SIGKILL)
        configure(folder, lease_s)
        yield accounts


def configure(folder: Path, lease_s: float) -> None:
    """Write the configuration of the servers that begin from now on."""
    write_config(
        folder / "remora.toml",
        {
            "store": {"kind": "sqlite"},
            "sqlite": {"directory": f"{folder}/queues", "files": 1},
            "sequencer": {"lease": f"{lease_s * 1000:.0f}ms", "admin_listen": f"unix:{folder}/admin.sock"},
        },
    )


async def begin(account: Account, server: Server) -> None:
    """Have a log with a hole, and a position at its end that nothing was written to."""
    await account.write_next(server)
    await account.take(server)
    await account.write_next(server)
    await account.take(server)


@asynccontextmanager
async def asking(server: Server, account: Account, stopping: Stopping, step: int) -> AsyncIterator[Connection]:
    """A client that takes one position after the other, of a server that is to stop at a step from now."""
    stopping.order(step)
    connection = Connection(account, *await asyncio.open_unix_connection(server.address.removeprefix("unix:")))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("kind", cases(LogKind.COUNTER, more=[LogKind.LOG]))
async def test_killed_at_each_step_of_a_takeover(folder: Path, kind: LogKind) -> None:
    """Wherever it dies, the next server goes on at once, behind all that was written, and repeats no number of a
    counter."""
    stopping, phases = Stopping(folder), Counter[Phase]()
    async with (
        served_before(folder, kind, ENDLESS_S) as accounts,
        a_server(folder, "other") as other,
    ):
        step = 1
        for account in accounts:
            async with (
                a_server(folder, "victim", environment=stopping.environment) as victim,
                asking(victim, account, stopping, step) as connection,
            ):
                phases[phase := await connection.stopped(victim)] += 1
                await victim.ended(signal.SIGKILL)
            if phase in IDLE:
                await account.write(account.tokens[-1])

            epoch = (await account.write_next(other)).epoch

            assert epoch == FIRST_EPOCH + 2 or (epoch == FIRST_EPOCH + 1 and not connection.tokens)
            await account.check()
            if len(connection.tokens) > 1 and set(phases) == set(Phase):  # it has served for a while
                break
            step += step_on(phase, phases)

    assert set(phases) == set(Phase)


@pytest.mark.full("killed at each step is at the gate, and frozen by the chaos of sequencers")
@pytest.mark.parametrize("kind", LogKind)
async def test_halted_at_each_step_of_a_takeover(folder: Path, kind: LogKind) -> None:
    """Wherever it stands still past its lease, another one goes on behind all that was written; thawed it hands out
    nothing to requests that wait in it, and what it had chosen before is good for no write.

    In the midst of a transaction it keeps all others from writing: there the log is taken over once it is thawed.
    """
    stopping, phases = Stopping(folder), Counter[Phase]()
    async with (
        served_before(folder, kind, LEASE_S) as accounts,
        a_server(folder, "other") as other,
    ):
        step = 1
        for account in accounts:
            async with (
                a_server(folder, "victim", environment=stopping.environment) as victim,
                asking(victim, account, stopping, step) as connection,
            ):
                phases[phase := await connection.stopped(victim)] += 1
                connection.send(WAITING)
                if phase is Phase.WRITING:
                    await sleep_through_the_lease(other, account)
                if phase in IDLE:
                    await account.write(account.tokens[-1])
                if phase is not Phase.WRITING:
                    await account.write_next(other)
                victim.process.send_signal(signal.SIGCONT)

                assert await connection.rest(WAITING) == [None] * WAITING
                await account.write_next(other, victim)
                await account.check()
            if len(connection.tokens) > 1 and set(phases) == set(Phase):  # it has served for a while
                break
            step += step_on(phase, phases)

    assert set(phases) == set(Phase)


def step_on(phase: Phase, phases: Counter[Phase]) -> int:
    """The way to the next step, once a server was stopped in this phase: a step on, or one back.

    The first reply is a single step, and on a slow machine a renewal, or a lock that was lost, comes before it in one
    run and not in the next: who has passed it without being stopped there goes back.
    """
    has_passed = phase is Phase.SERVING and Phase.BEFORE_THE_FIRST_REPLY not in phases
    return -1 if has_passed else 1


async def sleep_through_the_lease(other: Server, account: Account) -> None:
    """Ask another server for longer than a lease, in vain."""
    async with SequencerClient([other.address], timeout_s=1.5 * LEASE_S) as client:
        with pytest.raises(SequencerUnavailable):
            await client.next(account.log)
