"""Events in the embedded store of a running daemon, put there beside it, and what its ledger says of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from devkit.entries.entries import raw_entry
from devkit.processes.daemon import Daemon
from remora.config import SqliteSettings
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore


async def publish(folder: Path, name: str, numbers: Iterable[int], *, keys: int, size: int = 0) -> None:
    """Commit events, each key to a shard of its own; each with this many bytes of metadata."""
    async with SqliteStore(SqliteSettings(directory=str(folder / "queues"), files=1)) as store:
        topic = await store.own_topics.find(name)
        assert topic is not None
        events = [
            RoutedEvent(
                i % keys % topic.shards, b"bkt:k%d" % (i % keys),
                raw_entry(f"k{i % keys}", i, topic=name, padding=size),
            )
            for i in numbers
        ]  # fmt: skip
        await store.ingest.publish(topic, events)


async def drained(daemon: Daemon, name: str) -> None:
    """Return when nothing waits and the ledger balances."""

    async def is_empty() -> Any:
        shown = await daemon.command("ledger", name, "--json")
        if shown.code != 0:
            return False
        [books] = shown.json
        return books["unaccounted"] == 0 and all(each["pending"] == 0 for each in books["shards"])

    await daemon.until(is_empty, f"{name} is drained", 120)
