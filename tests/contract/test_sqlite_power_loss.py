"""A power cut at any sync of the embedded store, with what was not synced dropped, kept, kept in part, or torn."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from devkit.processes.programs import ENVIRONMENT
from devkit.testing.cases import cases
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.repair.checks import check_file
from support.recorded_store import NAME, mark, settings_of
from support.written import Written, recorder, records

FILE = "queues-000.db"
SEED = 11
MOST_JUDGED = 12


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written, Path]:
    """The store as it was before, its files as the disk had them, and the log of what was written then."""
    return record(tmp_path_factory.mktemp("recorded"))


def record(folder: Path, **how: str) -> tuple[Path, Written, Path]:
    """As `recorded`, with these settings of the recorder."""
    store, log = folder / "store", folder / "writes"
    victim = [sys.executable, "-m", "support.recorded_store"]
    subprocess.run([*victim, "make", store], env=ENVIRONMENT, check=True)
    shutil.copytree(store, folder / "before")
    preloaded = {"LD_PRELOAD": str(recorder(folder)), "RECORD_OF": str(store), "RECORD_TO": str(log), **how}
    subprocess.run([*victim, "work", store], env={**ENVIRONMENT, **preloaded}, check=True)
    log_bytes = bytearray((folder / "before" / f"{FILE}-room").read_bytes())
    log_bytes[:32] = bytes(32)  # as an opening leaves it
    durable = {FILE: bytearray((folder / "before" / FILE).read_bytes()), f"{FILE}-wal": log_bytes}
    return folder / "before", Written(durable), log


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("every", cases(7, more=[1]))
async def test_no_power_cut_loses_or_renumbers(
    recorded: tuple[Path, Written, Path], every: int, tmp_path: Path
) -> None:
    """Right before and behind each sync: no acknowledged event is lost, none that was delivered comes back at another
    position, no position is given out twice, and `check` finds nothing wrong."""
    before, first, log = recorded
    written = Written({name: bytearray(content) for name, content in first.durable.items()})
    rng, syncs = random.Random(SEED), 0
    for record in records(log):
        if record.kind == "s":
            syncs += 1
            if syncs % every == 0:
                for how, image in written.images(rng):
                    await _judge(before, tmp_path / "store", image, written, f"before sync {syncs}, {how}")
        if written.add(record) and syncs % every == 0:
            await _judge(before, tmp_path / "store", written.durable, written, f"behind sync {syncs}")
    assert syncs > 40
    assert len(written.told) > 50


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("failing", cases(5, more=[3, 9, 17, 30]))
async def test_what_a_failed_sync_has_taken_along_is_written_again(failing: int, tmp_path: Path) -> None:
    """Where a sync of the log fails, the disk lacks what was to be written, and later syncs do not say so: nothing that
    is acknowledged from then on is lost with it in a power cut."""
    before, written, log = record(tmp_path, RECORD_FAILING=str(failing))
    has_failed, judged = False, 0
    for each in records(log):
        has_failed |= each.kind == "f"
        if written.add(each) and has_failed and judged < MOST_JUDGED:
            judged += 1
            await _judge(before, tmp_path / "again", written.durable, written, f"{judged} syncs behind the failed one")
    assert judged == MOST_JUDGED


async def _judge(before: Path, directory: Path, image: Mapping[str, bytearray], written: Written, when: str) -> None:
    """What a start of the host finds after a power cut."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(before, directory, ignore=shutil.ignore_patterns("owners", "*-room", "*-index", "*-wal", "*-shm"))
    for name, content in image.items():
        (directory / name).write_bytes(content)
        os.chmod(directory / name, 0o600)
    report = await asyncio.to_thread(check_file, directory / FILE)
    assert not report.problems, (when, report.problems)

    stored = {each for what, *rest in written.told if what == "stored" for each in rest[0]}
    sent = {(rest[0], place): each for what, *rest in written.told if what == "sent" for place, each in rest[1]}
    async with SqliteStore(settings_of(directory)) as store:
        topic = await store.own_topics.find(NAME)
        assert topic is not None
        waiting = {
            (shard.queue, place): mark(entry)
            for shard in topic.all_shards()
            async for place, entry in store.inspection.dump(shard)
        }
        assert stored <= {*waiting.values(), *sent.values()}, when
        assert len(set(waiting.values())) == len(waiting), when
        where = {each: place for place, each in sent.items()}
        assert all(where.get(each, place) == place for place, each in waiting.items()), when
        await store.ingest.publish(topic, [RoutedEvent(shard, b"bkt:k", b"new ") for shard in range(topic.shards)])
        for shard in topic.all_shards():
            places = [place async for place, entry in store.inspection.dump(shard) if mark(entry) == "new"]
            assert len(places) == 1, when
            assert (shard.queue, places[0]) not in sent, when
