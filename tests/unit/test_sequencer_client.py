"""The sequencer's client against the daemon's own core, over real sockets, and against scripted servers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from devkit.waits import PATIENT_S, until
from remora.client import OutcomeUnknown, SequencerClient, SequencerUnavailable
from remora.client.sequencer_session import MOST_RANGE, request_frame
from remora.codec import speedups
from remora.codec.sequencer import INIT_LOG, MOST_FRAME_BYTES, Core, parse_request, reply
from remora.model.log import LogName, LogRefused, Token
from remora.servers.sequencer import Rounds
from support.sequencer import FAR, LOG, OTHER, listening


@asynccontextmanager
async def served(folder: Path, core: Core, name: str = "s") -> AsyncIterator[str]:
    """The address of a server with this core."""
    with listening(folder / name) as listener:
        async with asyncio.timeout(PATIENT_S), Rounds(core, [listener]):
            yield f"unix:{folder / name}"


@asynccontextmanager
async def scripted(
    folder: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[str]:
    """The address of a server that does what a script says with each connection."""

    ended: list[asyncio.Future[None]] = []

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(end := asyncio.get_running_loop().create_future())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        end.set_result(None)

    server = await asyncio.start_unix_server(run, folder / "scripted")
    async with asyncio.timeout(PATIENT_S), server:
        yield f"unix:{folder / 'scripted'}"
        await asyncio.gather(*ended)


async def frame(reader: asyncio.StreamReader) -> Any:
    """The next request."""
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    return parse_request(await reader.readexactly(size))


def a_core(epoch: int = 3, on_miss: Callable[[], None] = lambda: None) -> Core:
    core = speedups.SequencerCore(lambda _log, _result: on_miss())
    core.serve(LOG, epoch, 0, FAR)
    core.serve(OTHER, epoch, 50, FAR)
    return core


async def test_positions_tail_and_range(tmp_path: Path) -> None:
    """Tokens carry the epoch that is served and positions in order; a range says how many it has."""
    async with served(tmp_path, a_core()) as address, SequencerClient([address]) as client:
        assert await client.tail(LOG) == Token(3, 0)
        assert await client.next(LOG) == Token(3, 1)
        assert await client.next_range(LOG, 10) == (Token(3, 2), 10)
        assert await client.next_range(LOG, 10_000) == (Token(3, 12), 4096)
        assert await client.next(OTHER) == Token(3, 51)
        assert await client.tail(LOG) == Token(3, 4107)


def test_it_works_on_uvloop(tmp_path: Path) -> None:
    """Its transports are no subclasses of asyncio's, and positions come all the same."""

    async def positions() -> list[int]:
        async with served(tmp_path, a_core()) as address, SequencerClient([address]) as client:
            return [token.position for token in await asyncio.gather(*(client.next(LOG) for _ in range(3)))]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(positions()) == [1, 2, 3]


async def test_thousands_at_once_get_each_position_once(tmp_path: Path) -> None:
    """Tasks that ask in the same turn share ranges, and each gets a position of its own, in the order of asking."""
    core = a_core()
    async with served(tmp_path, core) as address, SequencerClient([address]) as client:
        await client.next(LOG)
        before = core.counters[LOG].requests

        tokens = await asyncio.gather(*(client.next(LOG) for _ in range(6000)), *(client.next(OTHER) for _ in range(9)))

        assert [token.position for token in tokens[:6000]] == list(range(2, 6002))
        assert [token.position for token in tokens[6000:]] == list(range(51, 60))
        assert core.counters[LOG].requests - before < 10


async def test_who_gives_up_leaves_a_hole(tmp_path: Path) -> None:
    """A waiter that was cancelled still owns its reply: nobody else gets that position."""
    gate = asyncio.Event()
    core = a_core()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await reader.read(1 << 16)
            if not data:
                return
            answer = core.answer(data)
            assert answer.consumed == len(data)
            if core.counters[LOG].position > 1:
                await gate.wait()
            writer.write(answer.replies)

    async with scripted(tmp_path, serve) as address, SequencerClient([address]) as client:
        assert (await client.next(LOG)).position == 1
        waiting = [asyncio.ensure_future(client.next(LOG)) for _ in range(5)]
        while core.counters[LOG].position < 6:  # noqa: ASYNC110  # the script tells nobody
            await asyncio.sleep(0)
        waiting[1].cancel()
        gate.set()

        found = await asyncio.gather(*waiting, return_exceptions=True)

    positions = [each.position for each in found if isinstance(each, Token)]
    assert positions == [2, 4, 5, 6]


@pytest.mark.parametrize("cut", range(1, 22))
async def test_a_connection_cut_anywhere_costs_holes_only(tmp_path: Path, cut: int) -> None:
    """Wherever a server's replies are cut off, a client that repeats gets positions that nobody else has."""
    core, budget = a_core(), [cut]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = budget.pop() if budget else 1 << 30
        while left > 0 and (data := await reader.read(1 << 16)):
            replies = core.answer(data).replies[:left]
            left -= len(replies)
            writer.write(replies)
            await writer.drain()

    async with scripted(tmp_path, serve) as address, SequencerClient([address]) as client:
        tokens = await asyncio.gather(*(client.next(LOG) for _ in range(4)))

    positions = [token.position for token in tokens]
    assert len(set(positions)) == 4
    assert max(positions) == core.counters[LOG].position


async def test_without_repeats_a_lost_reply_is_said(tmp_path: Path) -> None:
    """A client that is not to repeat learns that a position may have been handed out."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.write(reply(0, epoch=3))
        await frame(reader)

    async with scripted(tmp_path, serve) as address, SequencerClient([address], repeats=False) as client:
        with pytest.raises(OutcomeUnknown):
            await client.next(LOG)


async def test_a_server_that_knows_no_ranges(tmp_path: Path) -> None:
    """A server of 2014, which skips what it does not know, gets single requests and the epoch that storage tells."""
    seen, position = [], 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal position
        while True:
            request = await frame(reader)
            seen.append(request)
            position += request.next
            writer.write(reply(position))

    async def projection(_log: LogName) -> int:
        return 8

    async with scripted(tmp_path, serve) as address, SequencerClient([address], projection=projection) as client:
        assert await client.next_range(LOG, 5) == (Token(8, 1), 1)
        tokens = await asyncio.gather(*(client.next(LOG) for _ in range(20)))

    assert [token.position for token in tokens] == list(range(2, 22))
    assert all(not each.range for each in seen[1:])
    assert {each.epoch for each in seen} == {8}


async def test_no_more_than_was_wanted_is_granted(tmp_path: Path) -> None:
    """Of a server that grants more than it was asked for a caller gets as much as it wanted."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await frame(reader)
            writer.write(reply(1, granted=7) if request.next else reply(0, epoch=3))

    async with scripted(tmp_path, serve) as address, SequencerClient([address]) as client:
        assert await client.next_range(LOG, 5) == (Token(3, 1), 5)


async def test_another_server_knows_no_ranges(tmp_path: Path) -> None:
    """A client that has been granted ranges asks a server that grants none for single positions after the first try."""
    ranges = []
    grants = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        position = 0
        while True:
            request = await frame(reader)
            ranges.append(request.range)
            granted = request.range if grants else 0
            writer.write(reply(position + request.next, granted=granted, epoch=3 if request.current else -1))
            position += max(granted, request.next)

    async with scripted(tmp_path, serve) as address, SequencerClient([address]) as client:
        await client.next(LOG)
        await asyncio.gather(*(client.next(LOG) for _ in range(9)))
        assert ranges[-1] == 9
        grants = False
        ranges.clear()

        await asyncio.gather(*(client.next(LOG) for _ in range(9)))

    assert ranges == [9, *[0] * 8]


async def test_a_new_epoch_is_learnt(tmp_path: Path) -> None:
    """After STALE_EPOCH the client learns the epoch that is served, and goes on with it."""
    core = a_core()
    async with served(tmp_path, core) as address, SequencerClient([address]) as client:
        await client.next(LOG)
        core.serve(LOG, 4, 100, FAR)

        assert await client.next(LOG) == Token(4, 101)


async def test_a_log_that_is_not_served_yet_is_waited_for(tmp_path: Path) -> None:
    """INIT_LOG is asked again until the log is served, or the time is over, and then with the reason."""
    asked = asyncio.Event()
    core = a_core(on_miss=asked.set)
    core.forget(LOG)
    async with served(tmp_path, core) as address:
        async with SequencerClient([address]) as client:
            waiting = asyncio.ensure_future(client.next(LOG))
            await asked.wait()
            core.serve(LOG, 9, 0, FAR)
            assert await waiting == Token(9, 1)
        for timeout_s in (0.05, 1.0, 20.0):  # it has to last for a connection and two answers, too
            async with SequencerClient([address], timeout_s=timeout_s) as client:
                with pytest.raises(SequencerUnavailable) as caught:
                    await client.next(LogName(b"pool", b"none"))
            if "the log is not served now, or there is none of this name" in str(caught.value):
                break
        else:
            pytest.fail(f"the reason is not told: {caught.value}")
    assert INIT_LOG


async def test_a_server_that_falls_silent_is_waited_for_until_the_time_is_over(tmp_path: Path) -> None:
    """Callers that share a request, and the one that asks in a later turn, each hear that no server answers."""
    core, is_silent = a_core(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not is_silent.is_set():
                writer.write(core.answer(data).replies)

    async with scripted(tmp_path, serve) as address, SequencerClient([address]) as client:
        await client.next(LOG)
        client._timeout_s = 0.2  # only now: what is answered may take its time
        is_silent.set()
        shared = [asyncio.ensure_future(client.next(LOG)) for _ in range(5)]
        await asyncio.wait(shared, timeout=0.05)
        found = await asyncio.gather(*shared, client.next(LOG), return_exceptions=True)

    assert [type(each) for each in found] == [SequencerUnavailable] * 6
    assert {str(each) for each in found} == {"no position within 0.2 s: no server answers"}


async def test_those_who_share_a_refused_request_ask_again(tmp_path: Path) -> None:
    """Where many ask in one turn with an epoch that is over, each gets a position of the new one."""
    core = a_core()
    async with served(tmp_path, core) as address, SequencerClient([address]) as client:
        await client.next(LOG)
        core.serve(LOG, 4, 100, FAR)

        tokens = await asyncio.gather(*(client.next(LOG) for _ in range(50)))

    assert sorted(tokens) == [Token(4, position) for position in range(101, 151)]


async def test_another_address_is_tried(tmp_path: Path) -> None:
    """Where nobody listens at one address the next one is used; where nobody does at all that is said in time."""
    nobody = f"unix:{tmp_path / 'nobody'}"
    async with served(tmp_path, a_core()) as address, SequencerClient([nobody, address]) as client:
        assert await client.next(LOG) == Token(3, 1)
    async with SequencerClient([nobody], timeout_s=0.05) as client:
        with pytest.raises(SequencerUnavailable, match=r"no server answers: unix:.*/nobody: No such file or directory"):
            await client.next(LOG)


async def test_who_has_given_up_is_forgotten(tmp_path: Path) -> None:
    """While no server is there, nothing is kept of callers whose time is over, and the client tries to connect only as
    long as somebody waits; a server that comes later is found."""
    address = f"unix:{tmp_path / 's'}"
    async with SequencerClient([address], timeout_s=0.01) as client:
        for _ in range(20):
            with pytest.raises(SequencerUnavailable):
                await client.next(LOG)
        await until(lambda: client._opening is None)

        assert not client._waiting
        client._timeout_s = PATIENT_S
        async with served(tmp_path, a_core()):
            assert await client.next(LOG) == Token(3, 1)


async def test_a_server_that_stands_still_is_left(tmp_path: Path) -> None:
    """Callers get their answers from the next address when a server says nothing, whether it has served them or not."""
    core, stands_still = a_core(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not stands_still.is_set():
                writer.write(core.answer(data).replies)

    async with scripted(tmp_path, serve) as still, served(tmp_path, core) as address:
        async with SequencerClient([still, address], timeout_s=PATIENT_S) as client:
            client._silent_s = 0.05
            assert (await client.next(LOG)).epoch == 3
            stands_still.set()
            await asyncio.gather(*(client.next(LOG) for _ in range(5)))
        async with SequencerClient([still, address], timeout_s=PATIENT_S) as client:
            client._silent_s = 0.05
            await asyncio.gather(client.next(LOG), client.next_range(LOG, 3), client.tail(OTHER))


async def test_a_server_that_does_not_serve_the_log_is_left(tmp_path: Path) -> None:
    """Where one server answers and does not serve a log, its positions and tail come from the one that does; a server
    that has just begun to register it is not left at once."""
    elsewhere, asked = a_core(), asyncio.Event()
    elsewhere.forget(LOG)
    begins = a_core(on_miss=asked.set)
    begins.forget(LOG)
    async with served(tmp_path, elsewhere, "other") as other, served(tmp_path, a_core(epoch=7)) as address:
        for ask in (SequencerClient.next, SequencerClient.tail):
            async with SequencerClient([other, address], timeout_s=PATIENT_S) as client:
                client._not_served_s = 0.01
                assert (await ask(client, LOG)).epoch == 7
        async with served(tmp_path, begins, "begins") as first, SequencerClient([first, address]) as client:
            client._not_served_s = PATIENT_S
            waiting = asyncio.ensure_future(client.next(LOG))
            await asked.wait()
            begins.serve(LOG, 9, 0, FAR)
            assert await waiting == Token(9, 1)


async def test_a_server_that_ends_its_connections_is_left(tmp_path: Path) -> None:
    """Where a server takes connections and ends them unanswered, as one that has as many clients as it may have does,
    positions and tail come from the next address; where there is none it is asked less and less often."""
    ended = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        ended += 1

    async with scripted(tmp_path, serve) as full, served(tmp_path, a_core()) as address:
        for ask in (SequencerClient.next, SequencerClient.tail):
            async with SequencerClient([full, address], timeout_s=PATIENT_S) as client:
                assert (await ask(client, LOG)).epoch == 3
        assert ended == 2

        async with SequencerClient([full], timeout_s=0.2) as client:
            with pytest.raises(SequencerUnavailable, match="no server answers"):
                await client.next(LOG)
        assert ended <= 2 + 10  # the pauses grow from 2.5 ms on


async def test_who_leaves_a_server_waits_for_what_it_owes(tmp_path: Path) -> None:
    """Positions of other logs that are under way when a server is left for one log come from it, and are no holes."""
    core, may_answer = a_core(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await frame(reader)).name == LOG.name
        writer.write(INIT_LOG)
        assert (await frame(reader)).name == OTHER.name
        await may_answer.wait()
        writer.write(reply(77))
        await reader.read()

    async def epoch(_: LogName) -> int:
        return 3

    async with (
        scripted(tmp_path, serve) as first,
        served(tmp_path, core) as address,
        SequencerClient([first, address], timeout_s=PATIENT_S, projection=epoch) as client,
    ):
        client._not_served_s = 0.0
        waiting = [asyncio.ensure_future(client.next(log)) for log in (LOG, OTHER)]
        await until(lambda: client._connection is not None and client._connection.gives_nothing)
        may_answer.set()

        assert await asyncio.gather(*waiting) == [Token(3, 1), Token(3, 77)]
    assert core.counters[OTHER].requests == 0


async def test_the_time_of_silence_is_counted_from_the_last_word(tmp_path: Path) -> None:
    """A server that was idle for longer than a silent one is waited for is not left, nor is one that answers slowly."""
    core, connections = a_core(), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while data := await reader.read(1 << 16):
            for each in core.answer(data).replies.split(b"\0\0\0"):
                writer.write(b"\0\0\0" * bool(each) + each)

    async with scripted(tmp_path, serve) as address, SequencerClient([address]) as client:
        await client.next(LOG)
        assert client._connection
        assert client._connection._owes_since > asyncio.get_running_loop().time()  # it owes nothing
        client._connection._look_whether_silent()

        await client.next(LOG)

    assert len(connections) == 1


async def test_an_address_that_takes_no_connection_in_time_is_left(tmp_path: Path) -> None:
    """Where connecting takes as long as a silent server is waited for, the next address is tried."""
    hangs = asyncio.Event()

    class Slow(SequencerClient):
        async def _connect(self, address: str, made: Any) -> None:
            if address == "unix:hangs":
                hangs.set()
                await asyncio.Event().wait()
            await super()._connect(address, made)

    async with served(tmp_path, a_core()) as address, Slow(["unix:hangs", address], timeout_s=PATIENT_S) as client:
        client._silent_s = 0.05
        assert await client.next(LOG) == Token(3, 1)
    assert hangs.is_set()


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":9000", "host:port", "host:65536", "unix:", ""])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    """The client names the address, and what it expects, before anybody waits."""
    with pytest.raises(ValueError, match=f'expected "host:port" or "unix:/path", not "{address}"'):
        SequencerClient(["localhost:9000", address])


@pytest.mark.long("a client gives up after a second, in which a busy machine has looked the name up")
async def test_a_host_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    """A name that no host can have is told from a server that does not answer, and the next address is tried."""
    wrong = f"{'h' * 64}:9000"
    async with SequencerClient([wrong], timeout_s=1.0) as client:
        with pytest.raises(SequencerUnavailable, match=f"no server answers: {wrong}: "):
            await client.next(LOG)
    async with served(tmp_path, a_core()) as address, SequencerClient([wrong, address]) as client:
        assert await client.next(LOG) == Token(3, 1)


async def test_a_name_that_no_request_has_room_for_is_refused_at_once(tmp_path: Path) -> None:
    """Servers close the connection of a longer request, and the client with the longest name sends none."""
    longest = LogName(b"pool", b"n" * 994)
    frame_bytes = len(request_frame(longest, 2**64 - 1, hands_out=True, wanted=MOST_RANGE, current=True))
    assert frame_bytes == 4 + MOST_FRAME_BYTES
    async with served(tmp_path, a_core()) as address, SequencerClient([address]) as client:
        for ask in (client.next, client.tail):
            with pytest.raises(LogRefused, match="998 bytes at most in a request, not 999"):
                await ask(LogName(b"pool!", longest.name))


async def test_a_range_is_as_long_as_a_request_can_say(tmp_path: Path) -> None:
    """A range of 2**32 positions, which a server takes for no request, is asked for as one position less."""
    async with served(tmp_path, a_core()) as address, SequencerClient([address]) as client:
        assert await client.next_range(LOG, 2**32) == (Token(3, 1), 4096)


async def test_replies_that_are_none_end_the_connection(tmp_path: Path) -> None:
    """What is no reply ends the connection, and the client asks again over another one."""
    core, garbage = a_core(), [b"\0\0\0\1\xff", b"\xff" * 8, reply(1) * 2, bytes(4), bytes.fromhex("00000002 2001")]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if garbage:
            await frame(reader)
            writer.write(garbage.pop())
            await reader.read()
            return
        while data := await reader.read(1 << 16):
            writer.write(core.answer(data).replies)

    async with scripted(tmp_path, serve) as address, SequencerClient([address]) as client:
        token = await client.next(LOG)

    assert token.position >= 1
    assert not garbage
