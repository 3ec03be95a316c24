"""Delivers with this checkout what an earlier one has taken in; called by scripts/try-upgrade."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.demo.stand import REMORA, DemoError, Ended, Shown, kafka_alone, make_kafka_topic, output_of, result_of
from devkit.processes.daemon import Sections
from remora.client import IngestClient
from remora.model.exits import Exit

DONE, KEPT, LATE = "done", "kept", "late"
"""Topics: one that the earlier one delivers, one whose endpoint is nowhere until this one is there, and one whose only
event is too old at once."""

SHARDS, PARTITIONS, KEYS = 2, 4, 7
BEFORE, WAITING, AFTER, BACK = 40, 60, 20, 30
"""Events that the earlier one delivers, those that it leaves, those that this one takes in for the same topic, and
those that this one leaves."""

EVERY = WAITING + AFTER
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOWHERE = "kafka://127.0.0.1:1"
PATIENCE_S = 120.0


def events(first: int, count: int) -> bytes:
    """Numbered events of a few objects, a line each."""
    return b"".join(
        json.dumps({
            "eventVersion": "2.2", "eventSource": "ceph:s3", "awsRegion": "default",
            "eventTime": "2026-11-23T10:00:00.000000Z", "eventName": "ObjectCreated:Put",
            "userIdentity": {"principalId": "u"}, "requestParameters": {"sourceIPAddress": ""},
            "responseElements": {"x-amz-request-id": "r", "x-amz-id-2": "i"},
            "s3": {
                "s3SchemaVersion": "1.0", "configurationId": "c",
                "bucket": {"name": "b", "ownerIdentity": {"principalId": "u"}, "arn": "arn:aws:s3:::b", "id": "i"},
                "object": {"key": f"k{n % KEYS}", "size": n, "eTag": "e", "versionId": "", "sequencer": f"{n:016X}",
                           "metadata": [], "tags": []},
            },
            "eventId": f"{n}", "opaqueData": "",
        }).encode() + b"\n"
        for n in range(first, first + count)
    )  # fmt: skip


async def delivered(bootstrap: str, topic: str, least: int) -> list[tuple[str, int]]:
    """Key and number of each event in Kafka, in the order of each partition, when at least this many are there."""
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest") as consumer:
        parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(parts)
        found: list[tuple[str, int]] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < least:
            if time.monotonic() > deadline:
                raise DemoError(f"{len(found)} of {least} events are in Kafka after {PATIENCE_S:.0f} s")
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    event = json.loads(record.value)
                    event = event["Records"][0] if "Records" in event else event
                    found.append((event["s3"]["object"]["key"], event["s3"]["object"]["size"]))
        return found


async def ledger(remora: Path, config: Path) -> Counter[str]:
    """The books of the topics that are delivered, over their shards."""
    books: Counter[str] = Counter()
    for topic in json.loads(await output_of(remora, "ledger", "--json", "-c", config)):
        for shard in topic["shards"]:
            books.update({name: value for name, value in shard.items() if isinstance(value, int)})
    return books


async def until(what: str, condition: Any) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        if time.monotonic() > deadline:
            raise DemoError(f"not within {PATIENCE_S:.0f} s: {what}")
        await asyncio.sleep(0.2)


async def taken_in_before(old: Path, folder: Path, sections: Sections, bootstrap: str) -> Shown:
    """Have the earlier one take events in, deliver some, park one, and die."""
    async with Shown(folder, sections, old) as daemon:
        await daemon.until_ready()
        for name, endpoint in ((DONE, f"kafka://{bootstrap}"), (KEPT, NOWHERE)):
            await daemon.ask("topic", "create", name, "--endpoint", endpoint, "--shards", str(SHARDS))
        await daemon.ask("topic", "create", LATE, "--endpoint", NOWHERE, "--shards", "1", "--time-to-live", "1")
        async with IngestClient(f"unix:{folder / 'ingest'}") as client:
            await client.publish_ndjson(DONE, events(0, BEFORE))
            await client.publish_ndjson(KEPT, events(0, WAITING))
            await client.publish_ndjson(LATE, events(0, 1))
        await delivered(bootstrap, DONE, BEFORE)

        async def has_parked() -> bool:
            return bool(json.loads(await daemon.ask("dlq", "list", "--json")))

        async def has_removed() -> bool:
            return (await ledger(old, daemon.config))["pending"] == WAITING

        await until("the earlier one parks what is too old", has_parked)
        await until("the earlier one removes what it has delivered", has_removed)
        await daemon.kill_all()
        return daemon


@dataclass(frozen=True)
class Seen:
    """What this one made of the files: keys and numbers in Kafka, the books, dead letters, and what a check says."""

    found: list[tuple[str, int]]
    books: Counter[str]
    letters: list[dict[str, Any]]
    check: Ended
    code: int


async def delivered_here(folder: Path, sections: Sections, bootstrap: str) -> Seen:
    """Have this one deliver what the earlier one has left, and more."""
    async with Shown(folder, sections) as daemon:
        await daemon.until_ready()
        await daemon.ask("topic", "set", KEPT, "--endpoint", f"kafka://{bootstrap}")
        async with IngestClient(f"unix:{folder / 'ingest'}") as client:
            await client.publish_ndjson(KEPT, events(WAITING, AFTER))
        found = await delivered(bootstrap, KEPT, EVERY)

        async def has_removed() -> bool:
            return (await ledger(REMORA, daemon.config))["pending"] == 0

        await until("this one removes what it has delivered", has_removed)
        books = await ledger(REMORA, daemon.config)
        letters = json.loads(await daemon.ask("dlq", "list", "--json"))
        await daemon.ask("topic", "set", KEPT, "--endpoint", NOWHERE)
        async with IngestClient(f"unix:{folder / 'ingest'}") as client:
            await client.publish_ndjson(KEPT, events(EVERY, BACK), traceparent=TRACEPARENT)
        check = await result_of(REMORA, "store", "check", "-c", daemon.config)
        return Seen(found, books, letters, check, await daemon.stop())


async def delivered_back(old: Path, folder: Path, sections: Sections, bootstrap: str) -> list[str]:
    """Have the earlier one deliver what this one has left, and tell what is otherwise than it has to be."""
    async with Shown(folder, sections, old) as daemon:
        await daemon.until_ready()
        await daemon.ask("topic", "set", KEPT, "--endpoint", f"kafka://{bootstrap}")
        found = await delivered(bootstrap, KEPT, EVERY + BACK)
        await daemon.stop()
    numbers = sorted(number for _, number in found)
    return [] if numbers == list(range(EVERY + BACK)) else [f"the earlier one then delivered otherwise: {numbers}"]


def problems_of(seen: Seen) -> list[str]:
    """What is otherwise than it has to be."""
    by_key = defaultdict(list)
    for key, number in seen.found:
        by_key[key].append(number)
    said = {
        f"{len(seen.found)} records and {len(set(seen.found))} events are in Kafka, of {EVERY}": (
            sorted(number for _, number in seen.found) != list(range(EVERY))
        ),
        f"events of a key are out of order: {dict(by_key)}": any(each != sorted(each) for each in by_key.values()),
        f"the books say otherwise than Kafka: {seen.books}": seen.books["delivered"] != BEFORE + EVERY,
        f"the earlier one's dead letter is not there: {seen.letters}": (
            [each["cause"] for each in seen.letters] != ["expired"]
        ),
        f"`remora store check` is not content: {seen.check.out}": seen.check.code != 0,
        f"this one ended with {seen.code}": seen.code != 0,
    }
    return [text for text, is_wrong in said.items() if is_wrong]


async def tried(old: Path, name: str, folder: Path, fixture: Path | None, bootstrap: str) -> list[str]:
    """Upgrade, and tell what is otherwise than it has to be."""
    queues = folder / "queues"
    sections: Sections = {
        "sqlite": {"directory": str(queues), "files": 1},
        "ingest": {"listen": f"unix:{folder / 'ingest'}"},
    }
    for topic in (DONE, KEPT):
        await make_kafka_topic(bootstrap, topic, PARTITIONS)
    before = await taken_in_before(old, folder, sections, bootstrap)
    if fixture is not None:
        shutil.copytree(queues, fixture, dirs_exist_ok=True)
    asked, version = await result_of(REMORA, "store", "check", "-c", before.config), version_of(queues)
    seen = await delivered_here(folder, sections, bootstrap)
    problems = problems_of(seen)
    print(f"{name}: {BEFORE} events delivered by it, {WAITING} left in its files; then {len(seen.found)} in Kafka,")
    print(f"  {len(seen.found) - len(set(seen.found))} of them twice")
    if version_of(queues) == version:
        print(f"  its files have the newest version, {version}: it goes on with them")
        return problems + await delivered_back(old, folder, sections, bootstrap)
    if "is of version" not in asked.out:
        problems.append(f"`remora store check` says nothing of versions: {asked.out}")
    return problems + await refused_back(old, before.config, queues)


async def refused_back(old: Path, config: Path, queues: Path) -> list[str]:
    """Start the earlier one on files that this one has migrated, and tell what is otherwise than it has to be."""
    files = contents(queues)
    refused = await result_of(old, "run", "-c", config)
    print(f"  at last it says: {refused.err.splitlines()[-1]}")
    problems = []
    if refused.code != Exit.NO_PERMISSION or "queues-000.db" not in refused.err or "version" not in refused.err:
        problems.append(f"the earlier one did not refuse the files by name: {refused.code}, {refused.err[-500:]}")
    if contents(queues) != files:
        problems.append("the earlier one changed the files that it refused")
    return problems


def version_of(queues: Path) -> int:
    """The version of a store's files."""
    with closing(sqlite3.connect(queues / "queues-000.db")) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def contents(queues: Path) -> dict[str, bytes]:
    """The files of a store, byte for byte."""
    return {each.name: each.read_bytes() for each in queues.glob("*.db")}


async def main() -> int:
    """Try `REMORA NAME [FIXTURE]`; 1 when something is otherwise than it has to be."""
    work = Path(tempfile.mkdtemp(prefix="remora-upgrade-"))
    old, name, fixture = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]) if sys.argv[3:] else None
    try:
        async with kafka_alone(f"demo-{os.getpid()}", keep=False) as bootstrap:
            problems = await tried(old, name, work, fixture, bootstrap)
    except DemoError as exc:
        problems = [str(exc)]
    for problem in problems:
        print(f"WRONG  {problem}")
    if problems:
        print(f"logs: {work}")
        return 1
    print("PASS  the upgrade")
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
