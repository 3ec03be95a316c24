"""`remora topic stats --advice`: what comes into a topic's queues while it watches, and how many shards that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devkit.entries.entries import raw_entry
from devkit.processes.daemon import write_config
from remora import app
from remora.cli.advice import MOST, advice
from remora.cli.rows import row_named
from remora.config import load
from remora.model.exits import Exit
from remora.model.shard import Origin, Shard
from remora.policy.advice import Committed, Observed, Peak, key_that_makes_it
from remora.ports.store import ShardStore
from support.commands import Run, config, remora

__all__ = ["config", "remora"]


@pytest.fixture
def topic(remora: Run, config: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs `remora topic ...` on an embedded store of this test alone, with a topic of two shards."""
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "queues"), "files": 1}})

    def run(*words: str) -> Any:
        return remora("topic", *words, "-c", config)

    assert run("create", "orders", "--endpoint", "kafka://broker:9092", "--shards", "2").code == Exit.OK
    return run


async def commit(store: ShardStore, queue: str, *keys: str) -> None:
    """Commit an event for each key."""
    shard = Shard(queue, Origin.REMORA)
    entries = [raw_entry(key, number) for number, key in enumerate(keys)]
    reservation = await store.two_phase.reserve(shard, len(entries), sum(map(len, entries)))
    await store.two_phase.commit(shard, reservation, entries)


def watched(config: Path, minutes: list[dict[str, list[str]]], window_s: float) -> dict[str, Any]:
    """What is advised where in each window these keys come into these queues."""

    async def run() -> dict[str, Any]:
        now, left = [0.0], list(minutes)

        async with app.store_of(load(config), make=True) as store:

            async def pause(_: float) -> None:
                for queue, keys in left.pop(0).items():
                    await commit(store, queue, *keys)
                now[0] += window_s

            row = await row_named(store, "orders", None)
            (found,) = await advice(store, [row], 60.0 * len(minutes), pause, lambda: now[0])
        assert not left
        return found

    return asyncio.run(run())


def test_the_busiest_minute_of_the_busiest_queue_decides(topic: Callable[..., Any], config: Path) -> None:
    """Of all minutes and queues the highest rate counts, and as many shards are advised as would bring it to half, with
    the command that makes them."""
    hot = [f"k{number}" for number in range(90)]

    found = watched(config, [{"orders.1": hot, "orders": ["a"]}, {"orders": ["b"]}], 0.002)

    assert (found["busiest_queue"], found["peak_events_per_second"]) == ("orders.1", 45_000)
    assert (found["shards"], found["advised_shards"], found["because"]) == (2, 6, "events")
    assert (found["off_peak"], found["one_key"]) == (True, None)
    assert found["command"] == "remora topic set orders --shards 6"
    assert found["peak_bytes_per_second"] > 45_000 * len(raw_entry("k10", 0))


def test_one_key_is_named(topic: Callable[..., Any], config: Path) -> None:
    """Where most of the entries of the busiest queue have one key, the advice names it."""
    keys = ["hot"] * 60 + [f"k{number}" for number in range(50)]

    found = watched(config, [{"orders": keys}], 0.001)

    assert found["because"] == "events"
    assert found["command"] is None
    assert found["one_key"] is not None
    assert found["one_key"].endswith("/hot")


def test_the_command_changes_nothing(topic: Callable[..., Any], config: Path) -> None:
    """The command watches, says that a quiet topic has shards enough, and leaves all as it is."""
    before = topic("show", "orders", "--json").json

    table = topic("stats", "orders", "--advice", "--watch", "0.01")
    (found,) = topic("stats", "--advice", "--watch", "0.01", "--json").json

    assert table.out.decode().splitlines()[1].split()[:3] == ["orders", "2", "2"]
    assert "no queue is too busy" in table.out.decode()
    assert table.err == "remora: 00:00 watching what comes in, for 10ms\n"
    assert (found["advised_shards"], found["because"], found["peak_events_per_second"]) == (2, "", 0)
    assert topic("show", "orders", "--json").json == before
    assert topic("stats", "orders", "--advice", "--watch", "soon").code == Exit.USAGE


def test_rates_are_those_between_two_looks() -> None:
    """Peaks stay, the rate of now goes on, and a queue that is new, gone or made anew says nothing."""
    observed = Observed()
    observed.add({"a": Committed(0, 10.0), "b": Committed(5, 0.0)}, {"a": Committed(600, 0.0)}, 60.0)
    observed.add({"a": Committed(600, 0.0)}, {"a": Committed(660, 0.0), "b": Committed(900, 1.0)}, 60.0)

    assert observed.peaks == {"a": Peak(10, 100)}
    assert (observed.now, observed.peak) == (1.0, 10.0)
    observed.add({"a": Committed(660, 0.0)}, {"a": Committed(3, 0.0)}, 60.0)
    assert (observed.now, observed.peaks) == (0.0, {"a": Peak(10, 100)})


def test_a_key_needs_most_of_many() -> None:
    """Half of the entries are not most of them, and of a few nothing is said."""
    assert key_that_makes_it(["a"] * 51 + ["b"] * 49) == "a"
    assert key_that_makes_it(["a"] * 50 + ["b"] * 50) is None
    assert key_that_makes_it(["a"] * 99) is None
    assert Peak(30_000, 100_000_000) == MOST
