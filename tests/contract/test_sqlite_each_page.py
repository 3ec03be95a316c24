"""Damage of each page of a small file in turn: it is named, what can be read is saved, the other files go on, and
nothing is delivered twice or invented."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from devkit.entries.entries import delivered
from devkit.testing.cases import cases
from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged, StoreError, StoreMisconfigured
from remora.model.ingest import RoutedEvent
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files.connections import PAGE_BYTES
from remora.storage.sqlite.repair.checks import check_file
from remora.storage.sqlite.repair.salvager import salvage
from remora.storage.sqlite.tables import schema
from remora.storage.sqlite.tables.soundness import changed
from support.stores import QUIET_S, own_topic, settle_all

EVENTS, LARGE = 40, 30_000
SETTINGS_OF_A_SMALL_FILE = 8 << 20
"""The files' room together: so the room that delivery needs takes few pages, which hold nothing."""

KIND = {"zeros": lambda _: bytes(PAGE_BYTES), "noise": lambda page: random.Random(page).randbytes(PAGE_BYTES)}


@dataclass(frozen=True)
class Original:
    """A store of two files, and what was stored in the first of them, by queue and position."""

    settings: SqliteSettings
    victim: Topic
    other: Topic
    entries: dict[tuple[str, str], bytes]

    @property
    def file(self) -> str:
        """The file that is damaged."""
        return "queues-000.db"


def events(topic: Topic) -> list[RoutedEvent]:
    """Small and large ones, over all shards."""
    sizes = [LARGE if i % 20 == 7 else 200 for i in range(EVENTS)]
    return [
        RoutedEvent(i % topic.shards, b"bkt:k", (b"%s %d " % (topic.name.encode(), i)).ljust(size, b"."))
        for i, size in enumerate(sizes)
    ]


def settings_in(directory: Path) -> SqliteSettings:
    """A store of two files."""
    return SqliteSettings(directory=str(directory), files=2, directory_bytes=SETTINGS_OF_A_SMALL_FILE)


async def _filled(directory: Path) -> Original:
    """A store in which entries wait that have settled, and such that stand in the log yet."""
    settings = settings_in(directory)
    async with SqliteStore(settings) as store:
        first, second = store._files.all
        topics = []
        for file in (first, second):
            name = next(name for i in range(20) if store._files.file_of(name := f"t{i}") is file)
            topics.append(await store.own_topics.create(own_topic(name)))
        victim, other = topics
        for topic in (victim, other):
            await store.ingest.publish(topic, events(topic))
        await first.write(settle_all)
        await store.ingest.publish(victim, events(victim))
        found = {
            (shard.queue, position): entry
            for shard in victim.all_shards()
            async for position, entry in store.inspection.dump(shard)
        }
    return Original(settings, victim, other, found)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """It is copied for each page."""
    return asyncio.run(_filled(tmp_path_factory.mktemp("original") / "store"))


def pages(original: Original) -> range:
    """The pages of the file that SQLite uses."""
    with closing(sqlite3.connect(Path(original.settings.directory) / original.file)) as connection:
        (count,) = connection.execute("PRAGMA page_count").fetchone()
    return range(count)


def damaged(original: Original, directory: Path, page: int, content: Callable[[int], bytes]) -> SqliteSettings:
    """A copy of the store with something else in one page."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(original.settings.directory, directory)
    with (directory / original.file).open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(content(page))
    return settings_in(directory)


@pytest.mark.parametrize("every", cases(5, more=[1]))
@pytest.mark.parametrize("kind", KIND)
async def test_damage_of_each_page(original: Original, tmp_path: Path, every: int, kind: str) -> None:
    """Whichever page is overwritten: `check` finds it, or it held nothing; `salvage` has each entry as it was or says
    that it is lost; the other file's topic is delivered; and what is delivered of the damaged file was stored there,
    once each."""
    named, tried = 0, pages(original)[::every]
    for page in tried:
        settings = damaged(original, tmp_path / "store", page, KIND[kind])
        file = tmp_path / "store" / original.file
        problems = check_file(file).problems
        saved = _saved(original, file, tmp_path / "saved.db", page)
        sent = await _delivered(original, settings, page)

        named += bool(problems)
        if not problems:
            assert saved == original.entries, page
            assert sent == Counter(dict.fromkeys(original.entries, 1)), page
    assert named > len(tried) // 2


def _saved(original: Original, file: Path, new: Path, page: int) -> dict[tuple[str, str], bytes]:
    """What a salvaged copy has of the entries: none that was not stored, and those that are missing are named."""
    new.unlink(missing_ok=True)
    try:
        outcome = salvage(file, new)
    except (StoreDamaged, StoreMisconfigured):
        return {}  # topics or queues cannot be read
    with closing(sqlite3.connect(new)) as connection:
        names = dict(connection.execute("SELECT id, name FROM queues").fetchall())
        rows = connection.execute("SELECT id, CAST(data AS BLOB), checksum FROM settled").fetchall()
    found = {}
    for rowid, data, checksum in rows:
        queue, position = rowid >> schema.POSITION_BITS, rowid & schema.END_OF_QUEUE
        if not changed(queue, position, [(data, checksum)]):
            found[names[queue], f"0/{position}"] = data
    assert all(original.entries[place] == entry for place, entry in found.items()), page
    assert outcome.lost or set(found) == set(original.entries), page
    return found


async def _delivered(original: Original, settings: SqliteSettings, page: int) -> Counter[tuple[str, str]]:
    """How often each entry of the damaged file is delivered by two daemons in turn; the other topic's all are."""
    sent: Counter[tuple[str, str]] = Counter()
    for _ in range(2):
        try:
            async with SqliteStore(settings) as store:
                await _deliver(store, original.victim, original.entries, sent)
                if not sent[original.other.name, ""]:
                    sent[original.other.name, ""] += await _deliver(store, original.other, None, Counter())
        except StoreMisconfigured:
            return sent  # the file does not look like one of a store any more, and says so
    assert sent.pop((original.other.name, "")) == EVENTS, page
    assert not sent or max(sent.values()) == 1, page
    return sent


async def _deliver(
    store: SqliteStore, topic: Topic, stored: dict[tuple[str, str], bytes] | None, sent: Counter[tuple[str, str]]
) -> int:
    """Read and remove what can be of a topic, as delivering does; how many entries that were."""
    count = 0
    for shard in topic.all_shards():
        with suppress(StoreError):
            token = await store.locks.acquire(shard, "w", QUIET_S)
            assert isinstance(token, LockToken)
            while (page := await store.queue.read(token, b"", 16)).entries:
                right = [i for i in range(len(page.entries)) if i not in page.corrupt]
                places = [(shard.queue, page.positions[i].decode()) for i in right] if stored is not None else []
                for i, place in zip(right, places, strict=False):
                    assert stored is None or stored[place] == page.entries[i], place
                await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
                sent.update(places)  # what cannot be removed comes again, as everywhere
                count += len(right)
    return count
