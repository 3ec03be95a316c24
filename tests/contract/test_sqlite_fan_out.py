"""Events for several topics in the embedded store: every copy or none, once, also when processes die and files fail."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devkit.processes.programs import ENVIRONMENT
from devkit.waits import until
from remora.codec.sequence import number_of
from remora.codec.speedups import shards
from remora.config import SqliteSettings
from remora.model.errors import (
    OnceConflict,
    QueueFull,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TopicClosed,
    TopicMoved,
    TopicUnknown,
)
from remora.model.fan_out import FannedOut, TopicCopies
from remora.model.ingest import IdempotencyKey, RoutedEvent
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files.directory import path_of
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.ingest import decisions, finisher
from remora.storage.sqlite.repair.checks import check_directory
from remora.storage.sqlite.tables.write_batch import REMEMBERED_NS
from support import sqlite_fan_out_victim as victim
from support.sqlite_fan_out_victim import ANSWER, FILES, copies, names
from support.stores import own_topic

ONCE = IdempotencyKey("key", b"digest")


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    """A directory of as many files as a request of the tests goes to, and one more."""
    return SqliteSettings(directory=str(tmp_path / "store"), files=FILES)


@pytest.fixture
async def store(settings: SqliteSettings) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(settings) as opened:
        yield opened


async def topics(store: SqliteStore, count: int = 3, **changes: Any) -> list[Topic]:
    """Topics in files of their own."""
    return [await store.own_topics.create(replace(own_topic(name, 2), **changes)) for name in names(count)]


async def found_in(store: SqliteStore, topic: Topic) -> list[list[bytes]]:
    """All that waits in each of a topic's shards."""
    return [[entry async for _, entry in store.inspection.dump(shard)] for shard in topic.all_shards()]


async def stored_times(store: SqliteStore, given: Sequence[Topic]) -> list[int]:
    """How often each topic has its copies of a request of the tests, which it has whole and in order."""
    found = []
    for each in given:
        whole = [[event.payload for event in copies([each])[0].events if event.shard == number] for number in (0, 1)]
        there = await found_in(store, each)
        times = len(there[0]) // len(whole[0])
        assert there == [whole[0] * times, whole[1] * times]
        for shard in each.all_shards():
            stats = await store.inspection.stats(shard)
            assert (stats.reservations, stats.reserved_bytes) == (0, 0)
        found.append(times)
    return found


async def test_every_topic_gets_its_copies(store: SqliteStore) -> None:
    """Each topic has its own events in order, in one file and in several, and the answer is the one that was given."""
    there = await topics(store)
    beside = await store.own_topics.create(own_topic(victim.beside(there[0].name), 2))

    assert await store.ingest.fan_out(copies(there), ANSWER) == ANSWER
    assert await store.ingest.fan_out(copies([there[0], beside]), ANSWER) == ANSWER
    assert await store.ingest.fan_out([], ANSWER) == ANSWER

    assert await stored_times(store, [*there, beside]) == [2, 1, 1, 1]


async def test_one_transaction_for_topics_of_one_file(store: SqliteStore) -> None:
    """Topics of one file get their copies in one synced transaction; topics of three files take three."""
    there = await topics(store)
    beside = await store.own_topics.create(own_topic(victim.beside(there[0].name), 2))
    before = store.synced

    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    assert store.ingest.fan_out_soon(copies([there[0], beside]), ANSWER, told.set_result)
    assert await told == ANSWER
    assert store.synced == before + 1
    assert not store.ingest.fan_out_soon(copies(there), ANSWER, told.set_result)
    await store.ingest.fan_out(copies(there), ANSWER)
    assert store.synced == before + 4


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("once", [None, ONCE])
async def test_one_topic_refuses_the_whole_request(store: SqliteStore, place: int, once: IdempotencyKey | None) -> None:
    """Where one topic is closed, gone or full nothing is stored anywhere, the topic is named, and no room is kept."""
    there = await topics(store)
    of, name = there[place], there[place].name

    await store.own_topics.change(replace(of, closed=True))
    with pytest.raises(TopicClosed, match=name):
        await store.ingest.fan_out(copies(there), ANSWER, once)
    await store.own_topics.change(of)
    gone = [replace(each, id="another") if each is of else each for each in there]
    with pytest.raises(TopicUnknown, match=name):
        await store.ingest.fan_out(copies(gone), ANSWER, once)
    large = [RoutedEvent(0, b"k", bytes(129 << 20))]
    with pytest.raises(QueueFull, match=name):
        await store.ingest.fan_out(
            [
                TopicCopies(each, large) if each is of else given
                for each, given in zip(there, copies(there), strict=True)
            ],
            ANSWER,
            once,
        )

    assert await stored_times(store, there) == [0, 0, 0]
    assert await store.ingest.fan_out(copies(there), ANSWER, once) == ANSWER
    assert await stored_times(store, there) == [1, 1, 1]


async def test_a_repeat_keeps_the_topics_of_its_first_try(store: SqliteStore, settings: SqliteSettings) -> None:
    """A repeat under its key stores nothing and has the first answer, whatever it matches by then, also in another
    process; other contents under the key are refused."""
    there = await topics(store)
    other = FannedOut(9, 9, {"other": 9})

    assert await store.ingest.fanned_out(ONCE) is None
    assert await store.ingest.fan_out(copies(there[:2]), ANSWER, ONCE) == ANSWER
    async with SqliteStore(settings) as beside:
        for each in (store, beside):
            assert await each.ingest.fan_out(copies(there[2:]), other, ONCE) == replace(ANSWER, repeated=True)
            assert await each.ingest.fan_out([], other, ONCE) == replace(ANSWER, repeated=True)
            assert await each.ingest.fanned_out(ONCE) == replace(ANSWER, repeated=True)
            for act in (each.ingest.fanned_out, lambda once: store.ingest.fan_out(copies(there), ANSWER, once)):
                with pytest.raises(OnceConflict):
                    await act(replace(ONCE, digest=b"other"))

    assert await stored_times(store, there) == [1, 1, 0]


async def test_a_request_that_matches_nothing_is_remembered(store: SqliteStore) -> None:
    """A repeat of a request that matched nothing stores nothing, though it matches something by then."""
    there = await topics(store)
    nothing = FannedOut(0, 3, {})

    assert await store.ingest.fan_out([], nothing, ONCE) == nothing
    assert await store.ingest.fan_out(copies(there), ANSWER, ONCE) == replace(nothing, repeated=True)
    assert await stored_times(store, there) == [0, 0, 0]


async def test_numbers_of_topics_that_have_a_sequence(store: SqliteStore) -> None:
    """Each topic with a sequence numbers its own copies in their order, in its home file and in others."""
    there = await topics(store, is_sequenced=True)
    given = [
        TopicCopies(each, [event._replace(payload=victim.entry(place)) for place, event in enumerate(of.events)])
        for each, of in zip(there, copies(there), strict=True)
    ]

    await store.ingest.fan_out(given, ANSWER)
    await store.ingest.fan_out(given, ANSWER)

    for each, of in zip(there, given, strict=True):
        found = await found_in(store, each)
        expected = [place + 1 for place, event in enumerate((*of.events, *of.events)) if event.shard == 0]
        assert [number_of(entry) for entry in found[0]] == expected
        assert (await store.own_topics.sequence(each)).tail == 2 * len(of.events)


class Failing:
    """Has transactions of a file fail, as they do while others keep it busy, or while its disk has no room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError] = StoreUnavailable) -> None:
        self.is_on, self.count = False, 0
        write, path = File.write, f"queues-{number:03}.db"

        async def failing(file: File, job: Any, **options: Any) -> Any:
            if self.is_on and file.path.name == path and options.get("durable", True):
                self.count += 1
                raise kind(f"{path} fails")
            return await write(file, job, **options)

        monkeypatch.setattr(File, "write", failing)


@pytest.mark.parametrize("kind", [StoreUnavailable, StoreFull, StoreDamaged])
@pytest.mark.parametrize("once", [None, ONCE])
async def test_what_is_decided_is_finished_later(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, once: IdempotencyKey | None, kind: type[StoreError]
) -> None:
    """A request whose part a file does not take, damaged or not, is answered with what waits for what; it is finished
    when the file takes it, and its repeat is answered as the first try."""
    there = await topics(store)
    failing = Failing(monkeypatch, zlib.crc32(there[2].name.encode()) % FILES, kind)

    waits = f"is decided: what is for {there[2].name} is stored as soon as that can be: .* fails"
    failing.is_on = True
    with pytest.raises(StoreUnavailable, match=waits):
        await store.ingest.fan_out(copies(there), ANSWER, once)
    await store._finisher.look(0.0)
    if once:
        with pytest.raises(StoreUnavailable, match=waits):
            await store.ingest.fanned_out(once)
    assert await found_in(store, there[2]) == [[], []]
    failing.is_on = False
    if once:
        assert await store.ingest.fanned_out(once) == replace(ANSWER, repeated=True)
    else:
        await store._finisher.look(0.0)

    assert await stored_times(store, there) == [1, 1, 1]
    await store._finisher.look(0.0)
    assert await stored_times(store, there) == [1, 1, 1]


async def test_a_request_is_remembered_from_when_it_is_finished(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that a file kept waiting for longer than requests are remembered is still known when it is finished,
    though others are decided after it: its repeat stores nothing."""
    there = await topics(store)
    failing = Failing(monkeypatch, zlib.crc32(there[2].name.encode()) % FILES)
    failing.is_on = True
    with pytest.raises(StoreUnavailable):
        await store.ingest.fan_out(copies(there), ANSWER, ONCE)
    home = store._files.numbered(store.ingest._home(ONCE))
    age = "UPDATE decisions SET since_ns = since_ns - ?"
    await home.write(lambda found: found.execute(age, (REMEMBERED_NS,)))

    failing.is_on = False
    await store._finisher.look(0.0)
    await until(lambda: is_closed(home), "the decision is closed")
    others = (IdempotencyKey(f"other {number}", b"") for number in itertools.count())
    beside = next(each for each in others if store._files.numbered(store.ingest._home(each)) is home)
    await store.ingest.fan_out([], ANSWER, beside)

    assert await store.ingest.fan_out(copies(there), ANSWER, ONCE) == replace(ANSWER, repeated=True)
    assert await stored_times(store, there) == [1, 1, 1]


async def is_closed(home: File) -> bool:
    look = "SELECT count(*) FROM decisions WHERE length(parts) > 0"
    return bool(await home.read(lambda found: found.execute(look).fetchone()) == (0,))


async def test_what_is_decided_goes_into_the_layout_that_takes_events(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is taken after its topic got another number of shards goes into these by its keys. A request that
    knows the topic as it was is refused as a whole, and keeps no room."""
    there = await topics(store)
    failing = Failing(monkeypatch, zlib.crc32(there[2].name.encode()) % FILES)
    failing.is_on = True
    with pytest.raises(StoreUnavailable):
        await store.ingest.fan_out(copies(there), ANSWER)
    failing.is_on = False
    moved = await store.own_topics.reshard(there[2], 5)

    await store._finisher.look(0.0)
    with pytest.raises(TopicMoved, match=moved.name):
        await store.ingest.fan_out(copies(there), ANSWER)

    events = copies([there[2]])[0].events
    wanted: list[list[bytes]] = [[] for _ in range(5)]
    for number, (_, _, payload) in zip(shards([key for _, key, _ in events], 5), events, strict=True):
        wanted[number].append(payload)
    found = [[entry async for _, entry in store.inspection.dump(shard)] for shard in moved.open_shards()]
    assert found == wanted
    for each in (*there[:2], moved):
        for shard in each.all_shards():
            assert (await store.inspection.stats(shard)).reservations == 0


async def test_every_open_store_finishes_requests(
    store: SqliteStore, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is opened finishes what another process has decided, and so does one that is open, in a while."""
    there = await topics(store)
    monkeypatch.setattr(finisher, "EVERY_S", 0.01)
    monkeypatch.setattr(finisher, "GRACE_S", 0.0)
    failing = Failing(monkeypatch, zlib.crc32(there[2].name.encode()) % FILES)
    failing.is_on = True
    with pytest.raises(StoreUnavailable):
        await store.ingest.fan_out(copies(there), ANSWER)
    failing.is_on = False

    async with SqliteStore(settings) as other:
        assert await stored_times(other, there) == [1, 1, 1]
        failing.is_on = True
        with pytest.raises(StoreUnavailable):
            await store.ingest.fan_out(copies(there), ANSWER)
        failing.is_on = False

        async def is_finished() -> bool:
            return len((await found_in(other, there[2]))[0]) == 2 * len(copies(there)[2].events) // 2

        await until(is_finished)
        assert await stored_times(other, there) == [2, 2, 2]


async def test_a_part_is_not_taken_long_after_its_decision_was_read(store: SqliteStore) -> None:
    """A process that was stopped between reading a decision and taking a part takes nothing: the mark may be gone."""
    there = await topics(store)
    part = decisions.part_of(0, copies(there[:1]))
    late = decisions.Decision("id", ANSWER, [replace_file(store, part, there[0])], until_ns=1)

    ((_, why),) = await store.ingest.complete(0, late)
    assert "too long ago" in str(why)

    assert await found_in(store, there[0]) == [[], []]


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_a_part_for_a_damaged_queue_is_taken_by_no_topic(store: SqliteStore) -> None:
    """Where the queues of one topic cannot be read, no try of the part stores events of another topic of its file."""
    (topic,) = await topics(store, 1)
    beside = await store.own_topics.create(own_topic(victim.beside(topic.name), 2))
    part = replace_file(store, decisions.part_of(0, copies([topic, beside])), topic)
    with closing(sqlite3.connect(store._files.file_of(topic.name).path)) as connection, connection:
        connection.execute("UPDATE queues SET tail = 'x' WHERE name = ?", (beside.shard(1).queue,))

    for _ in range(2):
        ((_, why),) = await store.ingest.complete(0, decisions.Decision("id", ANSWER, [part], until_ns=1 << 62))
        assert isinstance(why, StoreDamaged)
        assert "table queues" in str(why)

    assert await found_in(store, topic) == [[], []]


def replace_file(store: SqliteStore, part: decisions.FilePart, topic: Topic) -> decisions.FilePart:
    number = store._files.all.index(store._files.file_of(topic.name))
    return decisions.FilePart(number, part.topics)


async def test_marks_go_when_their_decisions_are_closed(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old marks are deleted once their decision is closed, and stay while it is open."""
    there = await topics(store)
    failing = Failing(monkeypatch, zlib.crc32(there[2].name.encode()) % FILES)
    failing.is_on = True
    with pytest.raises(StoreUnavailable):
        await store.ingest.fan_out(copies(there), ANSWER)
    await store._finisher.sweep(-1)
    assert await marks(store) == 1
    failing.is_on = False
    await store._finisher.look(0.0)

    await store._finisher.sweep()
    assert await marks(store) == 2

    async def are_gone() -> bool:
        await store._finisher.sweep(-1)
        return not await marks(store)

    await until(are_gone)


MANY = 300
"""More than a look takes at once."""


async def test_a_file_that_does_not_answer_keeps_nothing_else_waiting(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests wait for a file, a look asks it once, and finishes those that were decided behind them,
    also behind one that has no queue to go to, which is damage. When the file answers it gets all of them."""
    there = await topics(store)
    failing = Failing(monkeypatch, zlib.crc32(there[2].name.encode()) % FILES)
    failing.is_on = True
    decided = await asyncio.gather(
        *(store.ingest.fan_out(copies([there[0], there[2]]), ANSWER) for _ in range(MANY)), return_exceptions=True
    )
    assert {type(each) for each in decided} == {StoreUnavailable}
    with monkeypatch.context() as patch:
        patch.setattr(decisions, "append", fails_by_a_defect)
        with pytest.raises(LookupError):
            await store.ingest.fan_out(copies([there[0], there[1]]), ANSWER)
    with closing(sqlite3.connect(store._files.file_of(there[1].name).path)) as connection, connection:
        connection.execute("DELETE FROM queues WHERE name = ?", (there[1].shard(1).queue,))
    last = await store.own_topics.create(own_topic(victim.beside(there[1].name), 2))
    with monkeypatch.context() as patch:
        patch.setattr(decisions, "append", fails_by_a_defect)
        with pytest.raises(LookupError):
            await store.ingest.fan_out(copies([there[0], last]), ANSWER)
    failing.count = 0

    await store._finisher.look(0.0)

    assert failing.count == 1
    assert await stored_times(store, [last]) == [1]
    failing.is_on = False
    await store._finisher.look(0.0)
    assert await stored_times(store, [there[2]]) == [MANY]


def fails_by_a_defect(*_: object) -> None:
    """What nobody expects."""
    raise LookupError


async def test_all_old_marks_go_that_can(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: those stay whose decisions cannot be looked at, and none of another home with them."""
    (topic,) = await topics(store, 1)
    lost, file = 0, store._files.file_of(topic.name)
    rows = [(f"{number:05}", number % 2, "", 0) for number in range(2 * 5000)]
    await file.write(lambda found: found.executemany("INSERT INTO taken VALUES (?, ?, ?, ?)", rows))
    failing = Failing(monkeypatch, lost)
    failing.is_on = True

    await store._finisher.sweep(-1)

    left = await file.read(lambda found: found.execute("SELECT home, count(*) FROM taken GROUP BY home").fetchall())
    assert left == [(lost, 5000)]


async def marks(store: SqliteStore) -> int:
    look = "SELECT count(*) FROM taken"
    return sum([(await file.read(lambda found: found.execute(look).fetchone()))[0] for file in store._files.all])


@pytest.mark.parametrize(
    "change",
    [
        "parts = CAST(replace(CAST(parts AS TEXT), 'a', 'b') AS BLOB)",
        "answer = CAST(x'c1' || substr(answer, 2) AS BLOB)",
        "answer = CAST(replace(hex(answer), 'A', 'F') AS BLOB)",
    ],
    ids=["parts", "answer", "text of the answer"],
)
async def test_a_decision_that_has_changed_is_noticed(
    store: SqliteStore, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Bytes of a decision that have changed on the disk are taken by no file, and `store check` finds them."""
    there = await topics(store)
    failing = Failing(monkeypatch, zlib.crc32(there[2].name.encode()) % FILES)
    failing.is_on = True
    with pytest.raises(StoreUnavailable):
        await store.ingest.fan_out(copies(there), ANSWER)
    failing.is_on = False
    directory, home = Path(settings.directory), zlib.crc32(there[0].name.encode()) % FILES
    assert not any(each.problems for each in check_directory(directory))
    with closing(sqlite3.connect(path_of(directory, home))) as connection:
        connection.execute(f"UPDATE decisions SET {change}")
        connection.commit()

    await store._finisher.look(0.0)

    assert await found_in(store, there[2]) == [[], []]
    assert any("decisions" in str(each.problems) for each in check_directory(directory))


async def committed_anew(store: SqliteStore, directory: Path, step: int, there: Sequence[Topic]) -> list[int]:
    """Commit once more what a killed process has announced, or has committed; how often each topic has its copies."""
    unused = await store.own_topics.find(victim.unused_of(step))
    assert unused is not None
    await victim.expire_all(store, [unused])
    noted = victim.reservation_file(directory, step)
    if not noted.exists():
        return await stored_times(store, there)
    before = await stored_times(store, there)
    again = await store.ingest.commit_announced(noted.read_text(), copies(there), ANSWER, victim.DIGEST)
    assert again.repeated is (before[0] == 1)
    assert await stored_times(store, [*there, unused]) == [1, 1, 1, 0]
    with pytest.raises(OnceConflict):
        await store.ingest.announced(noted.read_text(), b"of others")
    return before


@pytest.mark.parametrize("kind", ["plain", "once", "announced"])
@pytest.mark.full("forks a process for each step of a request")
@pytest.mark.guarantee("in-the-embedded-store")
async def test_killed_at_each_step(tmp_path: Path, kind: str) -> None:
    """Whichever statement of a request its process dies at, all topics have their copies afterwards or none has; a
    repeat under its key, or of a commit, makes that all of them, once; nothing stays reserved but until it expires."""
    command = [sys.executable, "-W", "error", "-m", "support.sqlite_fan_out_victim", kind, str(tmp_path)]
    done = await asyncio.to_thread(
        subprocess.run, command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr or done.stdout
    outcomes = dict(line.split() for line in done.stdout.splitlines())
    assert list(outcomes.values()) == ["killed"] * (len(outcomes) - 1) + ["answered"]
    assert len(outcomes) > 20, "the transactions have more steps than this"

    seen = set()
    async with SqliteStore(victim.settings(tmp_path)) as store:
        for step, outcome in outcomes.items():
            there = [topic for name in victim.topics_of(int(step)) if (topic := await store.own_topics.find(name))]
            assert len(there) == 3
            await victim.expire_all(store, there)
            times = await stored_times(store, there)
            assert times in ([0, 0, 0], [1, 1, 1]), (step, times)
            assert outcome == "killed" or times == [1, 1, 1]
            seen.add(times[0])
            if kind == "announced":
                times = await committed_anew(store, tmp_path, int(step), there)
            if kind == "once":
                again = await store.ingest.fan_out(copies(there), ANSWER, victim.once_of(int(step)))
                assert again.repeated is (times[0] == 1)
                assert await stored_times(store, there) == [1, 1, 1]
    assert seen == {0, 1}
    assert [report.problems for report in check_directory(tmp_path)] == [[]] * FILES
