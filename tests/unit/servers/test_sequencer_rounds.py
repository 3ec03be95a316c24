"""The sequencer's connections over real sockets: what arrives in pieces, at once, too slowly, or half-closed."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from devkit.waits import PATIENT_S
from remora.codec import speedups
from remora.codec.sequencer import INIT_LOG, MOST_PACKED, Core, packed_reply, reply
from remora.model.log import LogName
from remora.servers.sequencer import Closed, Rounds
from remora.servers.sequencer import rounds as module
from remora.servers.sequencer.connection import FIRST_READS
from support.sequencer import FAR, LOG, OTHER, listening

PATIENCE_S = 5 * PATIENT_S


def request(log: LogName = LOG, epoch: int = 1, more: bytes = b"") -> bytes:
    body = b"\x08%c\x12%c%b\x1a%c%b\x20\x01%b" % (epoch, len(log.pool), log.pool, len(log.name), log.name, more)
    return struct.pack(">I", len(body)) + body


@pytest.fixture(autouse=True, params=sorted({Core, speedups.SequencerCore}, key=lambda each: each.__module__))
def either_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with the core in Python, and with the compiled one, which reads and sends by itself."""
    monkeypatch.setattr(speedups, "SequencerCore", request.param)


def a_core(bound: int = FAR, kind: type[Core] | None = None) -> Core:
    core = (kind or speedups.SequencerCore)(lambda _log, _result: None)
    core.serve(LOG, 1, 0, bound)
    return core


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go round until something is so; `serving` bounds the time."""
    while not condition():  # noqa: ASYNC110  # the rounds tell nobody
        await asyncio.sleep(0)


Connect = Callable[[], Any]


@asynccontextmanager
async def serving(path: Path | None, core: Core, **options: Any) -> AsyncIterator[tuple[Rounds, Connect]]:
    """Rounds on a Unix socket, or on TCP without a path, and how to connect to them."""
    with listening(path / "s" if path else None) as listener:
        address = listener.getsockname()

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            if path is None:
                return await asyncio.open_connection(*address)
            return await asyncio.open_unix_connection(address)

        async with asyncio.timeout(PATIENCE_S), Rounds(core, [listener], **options) as rounds:
            yield rounds, connect


kinds = pytest.mark.parametrize("kind", ["unix", "tcp"])


@pytest.fixture
def path(kind: str, tmp_path: Path) -> Path | None:
    return tmp_path if kind == "unix" else None


@kinds
async def test_reads_grow_and_shrink_with_what_a_connection_sends(path: Path | None) -> None:
    """A window that fills a read has the next ones begin with a larger one, so that each round needs one read; single
    requests bring the small one back. The compiled core, which reads into a buffer of its own, needs none of this."""
    async with serving(path, a_core(kind=Core)) as (rounds, connect):
        reader, writer = await connect()
        sizes = []
        for count in (1, 400, 400, 4000, 4000, 1, 1, 1):
            writer.write(request() * count)
            for _ in range(count):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            (connection,) = rounds._connections.values()
            sizes.append(connection.most)
        writer.close()

    assert sizes[0] == FIRST_READS[0].most
    assert all(size > FIRST_READS[0].most for size in sizes[1:5])
    assert sizes[-1] == FIRST_READS[0].most


@kinds
async def test_replies_come_in_the_order_of_the_requests(path: Path | None) -> None:
    """Requests in pieces of any size, and thousands at once, get their replies in order, over several connections."""
    async with serving(path, a_core()) as (_, connect):
        reader, writer = await connect()
        for byte in request():
            writer.write(bytes([byte]))
            await writer.drain()
        assert await reader.readexactly(6) == reply(1)

        writer.write(request() * 5000)
        wanted = b"".join(map(reply, range(2, 5002)))
        assert await reader.readexactly(len(wanted)) == wanted

        other_reader, other_writer = await connect()
        other_writer.write(request())
        assert await other_reader.readexactly(len(reply(5002))) == reply(5002)
        for each in (writer, other_writer):
            each.close()


@kinds
async def test_a_half_closed_connection_gets_all_its_answers(path: Path | None) -> None:
    """A client that has sent everything and reads on gets every reply, and then the end."""
    async with serving(path, a_core()) as (rounds, connect):
        reader, writer = await connect()
        writer.write(request() * 3000 + request()[:7])
        writer.write_eof()

        assert await reader.read() == b"".join(map(reply, range(1, 3001)))
        writer.close()
        assert rounds.figures.closed[Closed.BY_CLIENT] == 1
        assert rounds.connections == 0


@kinds
async def test_a_malformed_frame_ends_a_connection_behind_its_replies(path: Path | None) -> None:
    """What stood before it is answered, and nothing behind it is carried out, though there are unread bytes."""
    core = a_core()
    async with serving(path, core) as (rounds, connect):
        reader, writer = await connect()
        writer.write(request() * 500 + bytes(4) + request() * 5000)

        assert await reader.read() == b"".join(map(reply, range(1, 501)))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        await until(lambda: not rounds.connections)
        assert rounds.figures.closed[Closed.MALFORMED] == 1
        assert core.counters[LOG].position == 500


@kinds
async def test_a_client_that_reads_nothing_is_not_read(path: Path | None) -> None:
    """Replies that nobody takes stop the reading of that connection only, and none of them is lost."""
    core, count = a_core(), 100_000 if path else 400_000  # TCP has room for megabytes
    replies = b"".join(map(reply, range(1, count + 1)))
    async with serving(path, core) as (rounds, connect):
        slow_reader, slow_writer = await connect()
        slow_writer.transport.pause_reading()
        sending = asyncio.ensure_future(_send(slow_writer, request() * count))
        await until(lambda: any(each.out for each in rounds._connections.values()))
        handed_out = core.counters[LOG].position

        reader, writer = await connect()
        writer.write(request(OTHER))
        assert await reader.readexactly(8) == INIT_LOG
        assert handed_out < count

        slow_writer.transport.resume_reading()
        assert await slow_reader.readexactly(len(replies)) == replies
        await sending
        for each in (slow_writer, writer):
            each.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@kinds
async def test_who_meets_the_bound_waits_for_it(path: Path | None) -> None:
    """A connection whose log is at its bound waits, others do not, and it goes on when the bound is raised."""
    core = a_core(bound=2)
    core.serve(OTHER, 1, 0, FAR)
    async with serving(path, core) as (rounds, connect):
        reader, writer = await connect()
        writer.write(request() * 5 + request(OTHER))
        assert await reader.readexactly(12) == reply(1) + reply(2)
        other_reader, other_writer = await connect()
        other_writer.write(request(OTHER))
        assert await other_reader.readexactly(6) == reply(1)
        assert set(rounds.awaited) == {LOG}

        core.raise_bound(LOG, 1, 4)
        rounds.resume(LOG)
        assert await reader.readexactly(12) == reply(3) + reply(4)
        core.forget(LOG)
        rounds.resume(LOG)

        assert await reader.readexactly(len(INIT_LOG) + 6) == INIT_LOG + reply(2)
        assert not rounds.awaited
        for each in (writer, other_writer):
            each.close()


@kinds
async def test_who_waits_and_goes_is_forgotten(path: Path | None) -> None:
    """A client that closes while it waits for a bound leaves nothing behind."""
    core = a_core(bound=0)
    async with serving(path, core) as (rounds, connect):
        _, writer = await connect()
        writer.write(request())
        await until(lambda: rounds.awaited)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

        await until(lambda: not rounds.connections)
        assert not rounds.awaited


async def test_too_many_and_unwanted_connections_are_closed(tmp_path: Path) -> None:
    """Beyond the bound, and where it may not connect, a client finds its connection closed; the others stay."""
    wanted = True
    async with serving(tmp_path, a_core(), most_connections=1, may_connect=lambda _: wanted) as (rounds, connect):
        reader, writer = await connect()
        writer.write(request())
        assert await reader.readexactly(6) == reply(1)
        extra_reader, extra_writer = await connect()
        assert await extra_reader.read() == b""
        extra_writer.close()
        writer.close()
        await until(lambda: not rounds.connections)

        wanted = False
        refused_reader, refused_writer = await connect()
        assert await refused_reader.read() == b""
        refused_writer.close()

        assert rounds.figures.closed[Closed.TOO_MANY] == 1
        assert rounds.figures.closed[Closed.REFUSED] == 1


async def test_a_frame_that_does_not_get_whole_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time a connection with a part of a frame is closed; one that is idle stays."""
    monkeypatch.setattr(module, "PARTIAL_FRAME_S", 0.0)
    monkeypatch.setattr(module, "SWEEP_S", 0.01)
    async with serving(tmp_path, a_core()) as (rounds, connect):
        idle_reader, idle_writer = await connect()
        reader, writer = await connect()
        writer.write(request()[:9])

        assert await reader.read() == b""
        idle_writer.write(request())

        assert await idle_reader.readexactly(6) == reply(1)
        assert rounds.figures.closed[Closed.PARTIAL] == 1
        for each in (writer, idle_writer):
            each.close()


async def test_each_round_is_announced(tmp_path: Path) -> None:
    """Before anything is handed out in a round its caller may take a log away, and hears when the round is over."""
    core, ends = a_core(), []
    told = asyncio.Event()

    def before() -> None:
        core.forget(LOG)

    def after() -> None:
        ends.append(core.results)
        told.set()

    async with serving(tmp_path, core, before=before, after=after) as (_, connect):
        reader, writer = await connect()
        writer.write(request())

        assert await reader.readexactly(8) == INIT_LOG
        await told.wait()
        assert ends
        writer.close()


async def test_an_idle_connection_is_asked_whether_its_client_is_there() -> None:
    """Over TCP the kernel asks after a minute, and ends the connection of a client whose host is gone a minute later:
    nothing else would, and the server has a bounded number of them."""
    async with serving(None, a_core()) as (rounds, connect):
        _, writer = await connect()
        await until(lambda: rounds.connections)
        (made,) = (each.socket for each in rounds._connections.values())

        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, pause_s, times = (
            made.getsockopt(socket.IPPROTO_TCP, name)
            for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert (idle_s, pause_s * times) == (60, 60)
        writer.close()


async def test_a_client_that_goes_before_it_is_accepted_disturbs_nobody() -> None:
    """Those that are reset while they wait to be accepted cost no other connection of the same round a reply."""

    def may_connect(connection: socket.socket) -> bool:
        return bool(connection.getpeername())  # raises where the other side has reset

    async with serving(None, a_core(), may_connect=may_connect) as (rounds, connect):
        reader, writer = await connect()
        address = writer.get_extra_info("peername")
        for number in range(1, 9):
            for _ in range(3):
                with socket.create_connection(address) as gone:
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.write(request())
            assert await reader.readexactly(6) == reply(number)

        await until(lambda: rounds.figures.closed[Closed.ERROR] == 24)
        assert rounds.connections == 1
        writer.close()


@kinds
async def test_who_sends_on_behind_a_malformed_frame_is_closed(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a client goes on to send, it is closed after the time that it has to close by itself."""
    monkeypatch.setattr(module, "LINGER_S", 0.1)
    monkeypatch.setattr(module, "SWEEP_S", 0.01)
    async with serving(path, a_core()) as (rounds, connect):
        _, writer = await connect()
        writer.write(bytes(4))
        while rounds.connections or not rounds.figures.accepted:
            writer.write(bytes(10))
            await asyncio.sleep(0)

        assert rounds.figures.closed[Closed.MALFORMED] == 1
        writer.transport.abort()


async def test_without_descriptors_new_connections_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not asked for again and again, those that are there are served, and later the new ones, too."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(module, "SWEEP_S", 0.05)
    async with serving(tmp_path, a_core()) as (rounds, connect):
        reader, writer = await connect()
        await until(lambda: rounds.connections)
        with socket.socket(socket.AF_UNIX) as new:
            free = os.open(os.devnull, os.O_RDONLY)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
            try:
                new.connect(str(tmp_path / "s"))
                await until(lambda: "new connections wait" in caplog.text)
                before = rounds.figures.rounds
                for _ in range(100):
                    await asyncio.sleep(0)
                assert rounds.figures.rounds - before < 10
                writer.write(request())
                assert await reader.readexactly(6) == reply(1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
            new_reader, new_writer = await asyncio.open_unix_connection(sock=new)
            new_writer.write(request())
            assert await new_reader.readexactly(6) == reply(2)
            for each in (writer, new_writer):
                each.close()
    assert {each.levelno for each in caplog.records} == {logging.WARNING}


@kinds
async def test_the_end_loses_no_reply(path: Path | None) -> None:
    """Whoever has replies under way gets all of them, though requests of it are unread; then comes the end."""
    core = a_core()
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listening(path / "s" if path else None))
        await stack.enter_async_context(asyncio.timeout(PATIENCE_S))
        serving = await AsyncExitStack().__aenter__()
        rounds = await serving.enter_async_context(Rounds(core, [listener]))
        address = listener.getsockname()
        reader, writer = await (asyncio.open_unix_connection(address) if path else asyncio.open_connection(*address))
        transport: Any = writer.transport
        transport.pause_reading()
        writer.write(request() * 400_000)
        await until(lambda: any(each.out for each in rounds._connections.values()))

        leaving = asyncio.ensure_future(serving.aclose())
        await asyncio.sleep(0)
        transport.resume_reading()
        found = await reader.read()
        transport.abort()
        await leaving

        assert 0 < core.counters[LOG].position < 400_000
        assert found == b"".join(map(reply, range(1, core.counters[LOG].position + 1)))


async def test_the_end_waits_for_nobody_who_is_owed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that have all their replies, and stay connected, do not hold the end up."""
    for each in ("LINGER_S", "LEAVE_S"):
        monkeypatch.setattr(module, each, 3600.0)  # an end that waits for them is longer than `serving` allows
    core = a_core()
    async with serving(None, core) as (rounds, connect):
        reader, writer = await connect()
        writer.write(request())
        assert await reader.readexactly(6) == reply(1)
    assert rounds.figures.closed[Closed.SHUTDOWN] == 1
    assert await reader.read() == b""
    writer.close()


@kinds
async def test_replies_of_many_positions_are_bounded(path: Path | None) -> None:
    """Of requests for a hundred positions each a client that reads nothing has few replies kept; it gets all of them
    when it reads, also when it has sent all."""
    async with serving(path, a_core()) as (rounds, connect):
        reader, writer = await connect()
        transport: Any = writer.transport
        transport.pause_reading()
        writer.write(request(more=b"\x28\x64") * 3000)
        writer.write_eof()
        await until(lambda: any(each.has_more for each in rounds._connections.values()))

        for _ in range(100):
            await asyncio.sleep(0)
            assert all(len(each.out) < MOST_PACKED + 2048 for each in rounds._connections.values())
        transport.resume_reading()

        assert await reader.read() == b"".join(packed_reply(first, 100) for first in range(1, 300_001, 100))
        writer.close()
