"""`remora topic stats --advice`: what comes into a topic's queues while it watches, and how many shards that takes."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devkit.entries.entries import raw_entry
from devkit.processes.daemon import write_config
from remora import app
from remora.cli.advice import ArrivalWatch, _why, advice
from remora.cli.rows import row_named
from remora.config import Settings, load
from remora.model.exits import Exit
from remora.model.peaks import HourPeak
from remora.model.shard import Origin, Shard
from remora.policy.queues.advice import Committed, Observed, Peak, key_that_makes_it
from remora.ports.store import ShardStore
from remora.storage.sqlite import SqliteStore
from support.commands import Run, config, remora

__all__ = ["config", "remora"]

HOUR = 494_006
"""2026-05-10, 14:00 UTC."""


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


def watched(
    config: Path, minutes: list[dict[str, list[str]]], window_s: float, kept: Sequence[HourPeak] = ()
) -> dict[str, Any]:
    """What is advised where in each window these keys come into these queues, and these peaks are kept."""

    async def run() -> dict[str, Any]:
        now, left = [0.0], list(minutes)

        settings = load(config)
        async with app.store_of(settings, make=True) as store:

            async def pause(_: float) -> None:
                for queue, keys in left.pop(0).items():
                    await commit(store, queue, *keys)
                now[0] += window_s

            row = await row_named(store, "orders", None)
            assert row.topic is not None
            for each in kept:
                await store.peaks.keep({row.topic: each})
            watch = ArrivalWatch(60.0 * len(minutes), HOUR, pause, lambda: now[0])
            (found,) = await advice(store, [row], settings, watch)
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
    assert (Settings().advice.events, Settings().advice.bytes) == (30_000, 100_000_000)


def days(*events: int, shards: int = 2) -> list[HourPeak]:
    """A peak at 14:00 on each of the last days, the last one first."""
    return [HourPeak(HOUR - 24 * day, shards, each, 700 * each) for day, each in enumerate(events)]


@pytest.mark.parametrize(
    ("kept", "shards", "why"),
    [
        (
            days(45_000, 45_000, 9, 31_000, 48_000, 40_000, 40_000),
            7,
            (
                "too many events for one queue on 6 of the last 7 days (peak 48,000 events/s a shard on {4} at 14:00"
                " UTC); now is a good time: remora topic set orders --shards 7"
            ),
        ),
        (
            days(9, 45_000),
            6,
            (
                "too many events for one queue on 1 of 2 days that are kept (peak 45,000 events/s a shard on {1} at"
                " 14:00 UTC); now is a good time: remora topic set orders --shards 6"
            ),
        ),
        (days(9), 2, "no queue is too busy; 1 day of history"),
        (days(9, 9, 9), 2, "no queue is too busy; 3 days of history"),
        (days(*[9] * 7), 2, "no queue is too busy"),
    ],
)
def test_days_that_are_kept_count(
    topic: Callable[..., Any], config: Path, kept: list[HourPeak], shards: int, why: str
) -> None:
    """The last days count beside what is watched, and the advice says on how many of them it was too much; with fewer
    than seven it says how many there are."""
    found = watched(config, [{"orders": ["a"]}], 60.0, kept)

    dates = [datetime.fromtimestamp((HOUR - 24 * day) * 3600, UTC).date() for day in range(7)]
    assert (found["advised_shards"], _why(found)) == (shards, why.format(*dates))
    assert found["days_known"] == len(kept)


def test_fewer_shards_are_advised_after_a_quiet_week(remora: Run, topic: Callable[..., Any], config: Path) -> None:
    """Of a topic with many shards in which little came for a week it is said that fewer would do, never below
    `topics.default_shards`; after six days nothing is said."""
    assert topic("set", "orders", "--shards", "64").code == Exit.OK
    quiet = days(*[90] * 7, shards=64)
    assert watched(config, [{}], 60.0, quiet[:6])["because"] == ""

    found = watched(config, [{}], 60.0, quiet)

    assert (found["because"], found["advised_shards"]) == ("quiet", 11)
    assert found["command"] == "remora topic set orders --shards 11"
    assert _why(found) == (
        "fewer would do, by 7 days and more (peak 90 events/s a shard on 2026-05-10 at 14:00 UTC): "
        "remora topic set orders --shards 11"
    )
    assert topic("set", "orders", "--shards", "11", "--wait").code == Exit.OK
    assert watched(config, [{}], 60.0, quiet)["because"] == ""


def test_thresholds_are_options(topic: Callable[..., Any], config: Path) -> None:
    """`advice.events` and `advice.bytes` say what is too much for one shard."""
    written = tomllib.loads(config.read_text())
    keys = [f"k{number}" for number in range(60)]
    assert watched(config, [{"orders": keys}], 1.0)["because"] == ""

    write_config(config, {**written, "advice": {"events": 50}})
    assert watched(config, [{"orders": keys}], 1.0)["because"] == "events"
    write_config(config, {**written, "advice": {"bytes": "64KiB"}})
    assert watched(config, [{"orders": keys * 10}], 1.0)["because"] == "bytes"


def test_commits_count_on_rados_alone(topic: Callable[..., Any], config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each shard commits for itself nobody is advised to have fewer than single requests need at the latency of
    `advice.commit_latency`."""
    assert topic("set", "orders", "--shards", "64").code == Exit.OK
    quiet = days(*[50] * 7, shards=64)
    assert watched(config, [{}], 60.0, quiet)["advised_shards"] == 11
    monkeypatch.setattr(SqliteStore, "kind", "rados")
    assert watched(config, [{}], 60.0, quiet)["because"] == ""

    written = tomllib.loads(config.read_text())
    write_config(config, {**written, "advice": {"commit_latency": "1ms"}})

    assert watched(config, [{}], 60.0, quiet)["advised_shards"] == 26
