"""`remora.log.Log` on both stores, with sequencers that stop and move, and writes whose answers are lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.test_store_logs import COUNTER, LOG, Opens, opens
from devkit.waits import PATIENT_S, until
from remora.client import SequencerClient, SequencerUnavailable
from remora.log import AppendUnclear, Entry, Log, LogTimes, NotAppended, SyncLog
from remora.model.errors import StoreFull
from remora.model.log import MOST_DATA_BYTES, MOST_POSITION, Cell, LogKind, LogName, LogRefused, LogUnknown
from support.log_servers import FaultyLogs, Held, answer_lost, serving, write_lost

__all__ = ["opens"]

PATIENT = LogTimes(give_up_s=PATIENT_S, ask_s=PATIENT_S, hole_s=PATIENT_S)
HASTY = replace(PATIENT, hole_s=0.0)
"""Every position that is not written when it is looked at is a hole."""


@pytest.fixture
async def logs(opens: Opens) -> AsyncIterator[FaultyLogs]:
    """The logs of a store, with a log and a counter in it."""
    async with opens() as store:
        await store.logs.create(LOG, LogKind.LOG, 8)
        await store.logs.create(COUNTER, LogKind.COUNTER, 1)
        yield FaultyLogs(store.logs)


async def written(logs: Any, upto: int) -> list[bytes]:
    """The data of all entries up to a position, in order."""
    found = [await logs.read(LOG, position) for position in range(1, upto + 1)]
    return [data for cell, data in found if cell is Cell.DATA]


async def first(log: Log, count: int, start: int = 1) -> list[Entry]:
    """As many entries as a follower gets first."""
    found: list[Entry] = []
    async with asyncio.timeout(PATIENT_S), aclosing(log.follow(start)) as entries:
        async for each in entries:
            found.append(each)
            if len(found) == count:
                break
    return found


async def test_appends_land_once_in_real_time_order(logs: FaultyLogs, folder: Path) -> None:
    """Many appends at once land each at a position of its own, for fewer requests than that; later ones lie behind."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        alone = await log.append(b"first")
        positions = await asyncio.gather(*(log.append(b"%d" % number) for number in range(100)))
        behind = await log.append(b"last")

        assert [alone, *sorted(positions), behind] == [*range(1, 103)]
        assert server.sequencing.totals().requests < 20
        found = await log.read_range(1, 103)
    assert [each.data for each in found] == [b"first", *(b"%d" % number for number in range(100)), b"last", b""]
    assert found[-1].cell is Cell.UNWRITTEN


async def test_a_counter_takes_no_entry_and_loses_no_position(logs: FaultyLogs, folder: Path) -> None:
    """An append to a counter is refused before it takes a position, which would be one that nobody uses."""
    async with serving(logs, folder) as server, Log(logs, COUNTER, [server.address], PATIENT) as log:
        for _ in range(2):
            with pytest.raises(LogRefused, match="is a counter"):
                await log.append(b"x")

        assert await log.tail() == 0


async def test_an_epoch_that_ends_is_nothing_to_the_caller(logs: FaultyLogs, folder: Path) -> None:
    """A log that is sealed between two appends takes the second one all the same, behind the first one."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        assert await log.append(b"one") == 1
        await logs.seal(LOG)

        assert await log.append(b"two") > 1
    assert await written(logs, 9) == [b"one", b"two"]


async def test_a_log_is_followed_to_another_server(logs: FaultyLogs, folder: Path) -> None:
    """When another server serves the log, appender and follower find it by the projection."""
    times = replace(PATIENT, ask_s=0.05)
    async with serving(logs, folder, "other") as other, Log(logs, LOG, [], times) as log:
        async with serving(logs, folder) as server:
            async with Log(logs, LOG, [server.address], PATIENT) as opening:
                await opening.append(b"one")
            assert await log.append(b"two") == 2
        async with Log(logs, LOG, [other.address], PATIENT) as opening:
            await opening.append(b"three")

        assert await log.append(b"four") == 4
        assert [each.data for each in await first(log, 4)] == [b"one", b"two", b"three", b"four"]


async def test_a_server_that_lives_and_lost_the_log_is_left(logs: FaultyLogs, folder: Path) -> None:
    """When another server has taken a log over and the one before answers on, appends and tails come from the new one,
    which is not among the addresses that were configured."""
    times = replace(PATIENT, ask_s=0.05)
    async with (
        serving(logs, folder) as before,
        serving(logs, folder, "other") as other,
        Log(logs, LOG, [before.address], times) as log,
    ):
        assert await log.append(b"one") == 1
        await logs.seal(LOG)
        async with Log(logs, LOG, [other.address], PATIENT) as opening:
            assert await opening.append(b"two") > 1

        assert await log.append(b"three") > 2
        assert await log.tail() >= 3
    assert await written(logs, 9) == [b"one", b"two", b"three"]


async def test_what_is_under_way_ends_with_the_log(logs: FaultyLogs, folder: Path) -> None:
    """When the log is left, an append that waits for a server, one that waits for the store and a follower end then,
    the last two though the store is away; what is asked for later is refused."""
    wait_long = replace(PATIENT, give_up_s=1000 * PATIENT_S, ask_s=0.01)
    async with Log(logs, LOG, [f"unix:{folder}/nobody"], wait_long) as log:
        waiting = [asyncio.create_task(each) for each in (log.append(b"no server"), first(log, 1))]
        await asyncio.wait(waiting, timeout=0.05)
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENT_S)
    assert [type(each) for each in found] == [NotAppended, SequencerUnavailable]
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], wait_long) as log:
        logs.faults, logs.is_away = [write_lost], True
        unclear = asyncio.create_task(log.append(b"no store"))
        await until(lambda: not logs.faults)
    with pytest.raises(AppendUnclear):
        await asyncio.wait_for(unclear, PATIENT_S)
    with pytest.raises(SequencerUnavailable, match="the log is closed"):
        await log.tail()


async def test_an_answer_that_is_lost_is_found_out(logs: FaultyLogs, folder: Path) -> None:
    """An append whose write landed without an answer returns that position; one that was lost lands elsewhere, once."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        logs.faults = [answer_lost, write_lost]

        assert await log.append(b"landed") == 1
        assert await log.append(b"lost first") == 3
        assert await written(logs, 9) == [b"landed", b"lost first"]


async def test_an_entry_that_is_too_long_leaves_no_hole(logs: FaultyLogs, folder: Path) -> None:
    """It is refused before a position is taken, so that the next entry has that one."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        with pytest.raises(LogRefused, match=f"at most {MOST_DATA_BYTES} bytes, not {MOST_DATA_BYTES + 1}"):
            await log.append(bytes(MOST_DATA_BYTES + 1))

        assert await log.append(b"first") == 1


async def test_a_trim_ends_at_the_tail(logs: FaultyLogs, folder: Path) -> None:
    """Who trims further than a log goes deletes what there is, and the next append has the position behind it; so it
    is where no server says how far that is."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        await log.append(b"1")
        await log.trim(1_000_000)
        assert await log.append(b"2") == 2
    async with Log(logs, LOG, [], replace(PATIENT, ask_s=0.01)) as alone:
        await alone.trim(1_000_000)

    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        assert await log.append(b"3") == 3
        assert [each.cell for each in await log.read_range(1, 3)] == [Cell.TRIMMED, Cell.TRIMMED, Cell.DATA]


@pytest.mark.parametrize("position", [3, 1_000_000, MOST_POSITION])
async def test_what_was_not_handed_out_is_not_filled(logs: FaultyLogs, folder: Path, position: int) -> None:
    """Who fills a position behind the tail is refused, with and without a server, and the log goes on as before: else
    the next server would begin behind that position, or find that the log is at its end."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        assert [await log.append(b"1"), await log.append(b"2")] == [1, 2]
        with pytest.raises(LogRefused, match=f"position {position} of .* was not handed out yet: 2 is the last one"):
            await log.fill(position)
    async with Log(logs, LOG, [], replace(PATIENT, ask_s=0.01)) as alone:
        with pytest.raises(LogRefused):
            await alone.fill(position)

    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        assert await log.append(b"3") == 3


async def test_an_append_waits_for_room(logs: FaultyLogs, folder: Path) -> None:
    """A write that found no room was not carried out: it is made again, at its own position, until there is room; where
    there is none in time, the entry is not in the log for sure."""

    async def no_room(_: object) -> None:
        raise StoreFull("the disk is full")

    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        logs.faults = [no_room, no_room]
        assert await log.append(b"first") == 1
    times = replace(PATIENT, give_up_s=0.0)
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], times) as log:
        logs.faults = [no_room]
        with pytest.raises(NotAppended, match="the disk is full"):
            await log.append(b"never")


async def test_a_write_that_comes_late_lands_nowhere(logs: FaultyLogs, folder: Path) -> None:
    """A write that is carried out when its append has landed elsewhere meanwhile is refused."""
    late = Held()
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        logs.faults = [late]
        assert await log.append(b"once") == 2

        with pytest.raises(Exception, match="taken"):
            await late.carry_out()
    assert await written(logs, 9) == [b"once"]


async def test_an_append_says_when_nobody_can_tell(logs: FaultyLogs, folder: Path) -> None:
    """With the store away behind a write the append is unclear, and names its position; without a server it is not
    appended for sure."""
    times = replace(PATIENT, give_up_s=0.0, ask_s=PATIENT_S)
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], times) as log:
        logs.faults, logs.is_away = [answer_lost], True
        with pytest.raises(AppendUnclear) as caught:
            await log.append(b"who knows")
        assert caught.value.position == 1
        logs.is_away = False

        logs.faults = [write_lost]
    async with Log(logs, LOG, [f"unix:{folder}/nobody"], replace(times, ask_s=0.01)) as log:
        with pytest.raises(NotAppended):
            await log.append(b"never")


async def test_the_same_bytes_of_a_later_epoch_are_no_proof(logs: FaultyLogs, folder: Path) -> None:
    """Bytes that another appender may have written in a later epoch are not taken for those of a lost write."""

    async def overtaken(_: object) -> None:
        epoch = await logs.seal(LOG)
        await logs._logs.append(LOG, epoch, 1, b"twins")
        await write_lost(lambda: logs.seal(LOG))

    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        logs.faults = [overtaken]
        with pytest.raises(AppendUnclear, match="later"):
            await log.append(b"twins")


async def test_a_hole_is_filled_by_who_follows(logs: FaultyLogs, folder: Path) -> None:
    """A position that was handed out and stays unwritten is filled, and an appender that was slow takes another one."""
    late, slow = asyncio.Event(), asyncio.Event()

    async def slowly(write: Any) -> None:
        slow.set()
        await late.wait()
        await write()

    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], HASTY) as log:
        logs.faults = [slowly]
        slow_one = asyncio.create_task(log.append(b"slow"))
        await slow.wait()
        assert await log.append(b"quick") == 2

        assert [each.position for each in await first(log, 1)] == [2]
        assert (await log.read(1)).cell is Cell.FILLED
        late.set()
        assert await slow_one == 3
        assert [each.data for each in await first(log, 2)] == [b"quick", b"slow"]


async def test_holes_that_are_one_behind_the_other_cost_one_wait(logs: FaultyLogs, folder: Path) -> None:
    """Positions that were handed out together, and are all unwritten when the time-out is over, are filled then."""
    holes = 200
    times = replace(PATIENT, hole_s=2 * PATIENT_S / holes)
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], times) as log:
        async with SequencerClient([server.address]) as client:
            assert (await client.next_range(LOG, holes))[1] == holes
        assert await log.append(b"behind") == holes + 1

        assert await first(log, 1) == [Entry(holes + 1, Cell.DATA, b"behind")]
        assert {each.cell for each in await log.read_range(1, holes)} == {Cell.FILLED}


async def test_a_follower_waits_for_an_appender(logs: FaultyLogs, folder: Path) -> None:
    """A position is not filled before the time-out, and its entry comes in its place once it is written."""
    late, slow = asyncio.Event(), asyncio.Event()

    async def slowly(write: Any) -> None:
        slow.set()
        await late.wait()
        await write()

    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        logs.faults = [slowly]
        slow_one = asyncio.create_task(log.append(b"slow"))
        await slow.wait()
        assert await log.append(b"quick") == 2
        following = asyncio.create_task(first(log, 2))
        late.set()

        assert await slow_one == 1
        assert [each.data for each in await following] == [b"slow", b"quick"]


async def test_new_entries_come_without_a_server(logs: FaultyLogs, folder: Path) -> None:
    """A follower gets what is written while no sequencer can be asked, and fills a hole in front of it."""
    times = replace(HASTY, ask_s=0.01)
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        await log.append(b"one")
    epoch = await logs.seal(LOG)
    async with Log(logs, LOG, [], times) as log:
        following = asyncio.create_task(first(log, 2))
        await logs.append(LOG, epoch, 3, b"three")

        assert [each.position for each in await following] == [1, 3]
        assert (await log.read(2)).cell is Cell.FILLED


async def test_a_log_that_was_made_again_is_not_followed(logs: FaultyLogs, folder: Path) -> None:
    """Who followed a log that was removed and made again is told so, and neither waits until the new one is as long as
    the old one was, nor fills positions there that nobody was given."""
    async with Log(logs, LOG, [f"unix:{folder / 's'}"], PATIENT) as log:
        async with serving(logs, folder):
            for number in range(1, 6):
                await log.append(b"%d" % number)
            entries, old = log.follow(3), (await logs.projection(LOG)).id
            assert [(await anext(entries)).position for _ in range(3)] == [3, 4, 5]
        await logs.remove(LOG)
        await logs.create(LOG, LogKind.LOG, 8)
        async with serving(logs, folder), asyncio.timeout(PATIENT_S):
            assert await log.append(b"new") == 1

            with pytest.raises(LogUnknown, match="made again"):
                await anext(entries)
            with pytest.raises(LogUnknown, match="made again"):
                await log._fill(2, old)
            assert [each.cell for each in await log.read_range(1, 6)] == [Cell.DATA, *[Cell.UNWRITTEN] * 5]


async def test_what_is_trimmed_is_passed_over(logs: FaultyLogs, folder: Path) -> None:
    """A follower that begins in the part that was trimmed goes on with the first entry that is left."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        for number in range(1, 6):
            await log.append(b"%d" % number)
        await log.trim(3)

        assert [each.position for each in await first(log, 2)] == [4, 5]
        assert await log.tail() == 5
        assert (await log.read(2)).cell is Cell.TRIMMED


async def test_an_epoch_that_is_half_begun_is_waited_for(logs: FaultyLogs, folder: Path) -> None:
    """Where a server was killed between the projection of its epoch and the seal of the stripes, a follower with a hole
    in front of it and who fills a position wait until the next server has begun, and go on."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], HASTY) as log:
        async with SequencerClient([server.address]) as client:
            await client.next_range(LOG, 2)
        await log.append(b"three")
        logs.is_half_begun = True
        following = asyncio.create_task(first(log, 1, 2))
        filling = asyncio.create_task(log.fill(1))
        await until(lambda: logs.refused >= 4)
        logs.is_half_begun = False

        assert await following == [Entry(3, Cell.DATA, b"three")]
        await filling
    assert {each.cell for each in [await log.read(1), await log.read(2)]} == {Cell.FILLED}


async def test_fill_takes_the_epoch_of_now(logs: FaultyLogs, folder: Path) -> None:
    """A position is filled in whichever epoch the log is, and again without an error."""
    async with serving(logs, folder) as server, Log(logs, LOG, [server.address], PATIENT) as log:
        await log.append(b"one")
        async with SequencerClient([server.address]) as client:
            await client.next(LOG)
        await logs.seal(LOG)
        epoch = await logs.seal(LOG)
        await logs.append(LOG, epoch, 3, b"three")
        await log.fill(2)
        await log.fill(2)

        assert (await log.read(2)).cell is Cell.FILLED


async def test_a_log_that_is_none_is_refused(logs: FaultyLogs, folder: Path) -> None:
    """A counter takes no entries, and a log that does not exist is neither read nor written, which is said soon."""
    async with serving(logs, folder) as server:
        async with Log(logs, COUNTER, [server.address], PATIENT) as log:
            with pytest.raises(LogRefused):
                await log.append(b"no")
        nothing = LogName(LOG.pool, b"nothing")
        async with Log(logs, nothing, [server.address], PATIENT) as log:
            with pytest.raises(LogUnknown):
                await first(log, 1)
        for doing in (Log.append, Log.trim, Log.fill):
            async with Log(logs, nothing, [server.address], replace(PATIENT, ask_s=0.01)) as log:
                with pytest.raises(LogUnknown):
                    await doing(log, b"no" if doing is Log.append else 1)  # type: ignore[arg-type]


async def test_calls_that_wait(logs: FaultyLogs, opens: Opens, folder: Path) -> None:
    """A thread appends, reads, follows, fills and trims with calls that wait."""

    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Log]:
        async with opens() as store, Log(store.logs, LOG, [address], PATIENT) as log:
            yield log

    def work(address: str) -> None:
        with SyncLog(opened(address)) as log:
            assert [log.append(b"one"), log.append(b"two"), log.tail()] == [1, 2, 2]
            entries = log.follow()
            assert [next(entries).data, next(entries).data] == [b"one", b"two"]
            entries.close()
            with pytest.raises(LogRefused):
                log.fill(3)
            log.trim(1)
            assert [each.cell for each in log.read_range(1, 3)] == [Cell.TRIMMED, Cell.DATA, Cell.UNWRITTEN]
            assert log.read(2).data == b"two"

    async with serving(logs, folder) as server:
        await asyncio.to_thread(work, server.address)


async def test_threads_that_wait_are_told_when_the_log_closes(logs: FaultyLogs, opens: Opens, folder: Path) -> None:
    """A thread that waits for the next entry while another one leaves the log gets an error, and waits no longer."""
    waits = threading.Event()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Log]:
        async with opens() as store, Log(store.logs, LOG, [server.address], PATIENT) as log:
            yield log

    def follow(log: SyncLog) -> None:
        entries = log.follow()
        next(entries)
        waits.set()
        next(entries)

    def work() -> None:
        with ThreadPoolExecutor(1) as others:
            with SyncLog(opened()) as log:
                log.append(b"one")
                following = others.submit(follow, log)
                assert waits.wait(PATIENT_S)
            with pytest.raises(CancelledError):
                following.result()
            with pytest.raises(RuntimeError, match="closed"):
                log.tail()

    async with asyncio.timeout(PATIENT_S), serving(logs, folder) as server:
        await asyncio.to_thread(work)
