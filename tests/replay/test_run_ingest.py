"""`remora replay run` through Spark into a real daemon: what is stored is the trace, each event once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # the name that everybody knows

from devkit.processes.daemon import Daemon, running_daemon
from devkit.processes.processes import gone
from remora.cli import group
from remora.model.exits import Exit
from remora_pipeline.replay import layout
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.prepared import read_events
from remora_pipeline.replay.run import frames
from remora_pipeline.replay.run.journal import FinalOutcome, SendIntent, journals, read_journal
from remora_pipeline.replay.run.progress import Reading
from remora_pipeline.replay.run.targets.ingest import IngestAddress, TakenTopic, check_ingest
from remora_pipeline.replay.shape import EVENT_NAMES, MARK
from replay.prepared import Wanted, prepare, rows

pytestmark = pytest.mark.spark

NOBODY = "kafka://127.0.0.1:1"
"""An endpoint that refuses every connection, so that everything stays where it was stored."""

ODD_KEYS = ("with space", "a+b%20c", "ünï/日本/😀", 'quote"\\', "new\nline", "x" * 1000, "\u2028\x01")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket, and has characters that Spark would expand."""
    with tempfile.TemporaryDirectory(prefix="re[m]ora {1,2} *") as name:
        yield Path(name)


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Daemon]:
    """A daemon on an embedded store, with a topic `t`."""
    sections: dict[str, Mapping[str, object]] = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
    }
    async with running_daemon(folder, sections) as daemon:
        done = await daemon.command("topic", "create", "t", "--endpoint", NOBODY)
        assert done.code == Exit.OK, done.err
        yield daemon


def trace(count: int) -> list[Wanted]:
    """Events a millisecond apart, over some keys, of which the first has a fourth of all."""
    rng = Random(count)
    keys = [f"k{n}" for n in range(20)] + list(ODD_KEYS)
    return [
        Wanted(
            1_000_000 * 1_600_000_000 + n * 1000,
            "DELETE" if n % 7 == 6 else ("PUT", "COPY", "MPU_COMPLETE")[n % 3],
            keys[0] if n % 4 == 0 else rng.choice(keys),
            f"bucket-{n % 2}",
            None if n % 7 == 6 else n,
        )
        for n in range(count)
    ]


async def command(*arguments: str | Path) -> Result:
    """A command of `remora` in this process, with the session of the tests."""
    return await asyncio.to_thread(CliRunner().invoke, group, ["replay", "run", *map(str, arguments)])


async def stored(daemon: Daemon) -> list[Any]:
    """The records that wait, shard by shard, each in its order."""
    dump = await daemon.command("topic", "dump", "t")
    assert dump.code == Exit.OK, dump.err
    return [json.loads(line)["notification"]["Records"][0] for line in dump.out.splitlines()]


def by_key(records: Sequence[Any]) -> dict[tuple[str, str], list[str]]:
    """The event ids of each key, in order."""
    found = defaultdict(list)
    for record in records:
        found[record["s3"]["bucket"]["name"], record["s3"]["object"]["key"]].append(record["eventId"])
    return found


def expected(run_id: str, wanted: Sequence[Wanted], without: frozenset[int] = frozenset()) -> dict[Any, list[str]]:
    """What `by_key` gives when all events but some are there, in order."""
    found = defaultdict(list)
    for row in rows(wanted):
        if row["seq"] not in without:
            found[row["bucket"], row["key"]].append(f"{run_id}/{row['seq']}")
    return found


def acked(path: Path) -> Iterator[int]:
    """What a journal says is stored; fails where anything else came of an event."""
    for line in read_journal(path):
        if isinstance(line, FinalOutcome):
            assert line.outcome == "acked"
            yield from line.seqs


async def test_a_trace_is_stored_as_it_is(spark: SparkSession, folder: Path) -> None:
    """Each event is stored once, in order per key, with its mark; journals account for all; a rerun is refused."""
    wanted = trace(700)
    prepared, run = prepare(folder / "trace", wanted), RunDirectory(folder / "run")
    async with embedded(folder) as daemon:
        arguments: list[str | Path] = [
            prepared.path,
            "--out",
            run.path,
            "--topic",
            "t",
            "--ingest",
            daemon.ingest,
            "--run-id",
            "r1",
        ]
        done = await command(*arguments, "--speed", "5", "--batch", "7", "--json")
        again = await command(*arguments)
        nobodys = await command(prepared.path, "--out", folder / "b", "--topic", "x", "--ingest", daemon.ingest)
        records = await stored(daemon)

    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["in_trace"], told["offered"], told["acked"]) == (700, 700, 700)
    assert (told["rejected"], told["unknown"], told["dropped"]) == (0, 0, 0)
    assert by_key(records) == expected("r1", wanted)
    by_id = {record["eventId"]: record for record in records}
    assert set(by_id) == {f"r1/{seq}" for path in journals(run) for seq in acked(path)}
    for row in rows(wanted):
        record = by_id[f"r1/{row['seq']}"]
        assert record["eventName"] == EVENT_NAMES[row["op"]]
        assert record["s3"]["object"]["size"] == (row["size"] or 0)
        assert record["s3"]["object"]["metadata"] == [{"key": MARK, "val": f"r1/{row['seq']}/{row['kseq']}"}]
    assert (again.exit_code, nobodys.exit_code) == (1, 1)
    assert "was replayed into it before" in str(again.exception)
    assert "no topic" in str(nobodys.exception)
    assert not (folder / "b").exists()


def holders(path: Path) -> Iterator[int]:
    """The processes that have a file open."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process has ended
            for link in Path("/proc", number, "fd").iterdir():
                with contextlib.suppress(OSError):
                    if link.readlink() == path:
                        yield int(number)


@pytest.mark.full("the journal's kill is at the gate")
async def test_a_killed_replay_is_resumed(spark: SparkSession, folder: Path) -> None:
    """After SIGKILL in the middle, what no journal tells of is sent, nothing twice, and each key keeps its order."""
    # 25 s without an event at this speed: one that has stood still does not catch up to the end before the kill.
    wanted = [each._replace(ts_us=each.ts_us + 1_250_000 * (n >= 120)) for n, each in enumerate(trace(400))]
    prepared, run = prepare(folder / "trace", wanted), RunDirectory(folder / "run")
    async with embedded(folder) as daemon:
        arguments: list[str | Path] = [prepared.path, "--out", run.path, "--topic", "t", "--ingest", daemon.ingest]
        arguments += ["--speed", "0.05", "--batch", "3"]
        first = asyncio.create_task(command(*arguments))

        async def has_sent() -> bool:
            assert not first.done(), first.result()
            return Reading(run, 0).look().outcomes["acked"] > 50

        await daemon.until(has_sent, "the first events", 150)
        meanwhile = await command(*arguments, "--resume")
        writers = {pid for path in journals(run) for pid in holders(path)}
        for pid in writers:
            with contextlib.suppress(ProcessLookupError):  # Spark ends the others, once it has missed one
                os.kill(pid, signal.SIGKILL)
        await gone([*writers])  # their locks on the journals end with them
        broken = await first
        other = await command(*arguments, "--resume", "--speed", "7")
        done = await command(*arguments, "--resume", "--json")
        records = await stored(daemon)

    assert "is still being written" in str(meanwhile.exception)
    assert broken.exit_code == 1
    assert f" of {len(wanted)} events offered" in broken.stdout
    assert "--speed was another one" in str(other.exception)
    assert done.exit_code == 0, done.output
    told, run_id = json.loads(done.stdout), layout.read(run.run, layout.ReplayRun).run_id
    sent: set[int] = set()
    answered: set[int] = set()
    for path in journals(run):
        for line in read_journal(path):
            if isinstance(line, SendIntent):
                assert line.tries > 1 or not sent & set(line.seqs)
                sent |= set(line.seqs)
            elif isinstance(line, FinalOutcome):
                assert line.outcome == "acked"
                answered |= set(line.seqs)
    unknown = sent - answered
    assert (told["offered"], told["acked"], told["unknown"]) == (400, len(answered), len(unknown))
    there = {record["eventId"] for record in records}
    missing = frozenset(seq for seq in unknown if f"{run_id}/{seq}" not in there)
    assert by_key(records) == expected(run_id, wanted, without=missing)
    assert len(journals(run)) > 2


async def test_a_run_knows_its_topic_in_kafka_and_whether_it_numbers_events(folder: Path) -> None:
    """The check before a run asks the daemon where events of the topic go and whether it numbers them, for verify."""
    async with embedded(folder) as daemon:
        done = await daemon.command(
            "topic", "create", "numbered", "--endpoint", NOBODY, "--sequence", "--kafka-topic", "n-events"
        )
        assert done.code == Exit.OK, done.err
        server = IngestAddress(daemon.ingest, "", None)

        assert await check_ingest(server, "t") == TakenTopic("t", is_numbered=False)
        assert await check_ingest(server, "numbered") == TakenTopic("n-events", is_numbered=True)


async def test_a_dry_run_asks_the_daemon_and_sends_nothing(folder: Path) -> None:
    """A dry run says that the daemon answers and takes the topic, and names one that it does not have, or a daemon that
    is away; nothing is stored, and no directory is made."""
    prepared = prepare(folder / "trace", [Wanted(0, "PUT", "k")])
    run = folder / "run"
    async with embedded(folder) as daemon:
        argv = (prepared.path, "--out", run, "--dry-run", "--ingest", daemon.ingest)
        taken = await command(*argv, "--topic", "t")
        unknown = await command(*argv, "--topic", "none-such")
        assert await stored(daemon) == []
    away = await command(*argv, "--topic", "t")

    assert taken.exit_code == 0
    assert "would send 1 event of 1 key" in taken.output
    assert "it answers, and takes the topic t" in taken.output
    assert unknown.exit_code == 1
    assert "none-such" in str(unknown.exception)
    assert away.exit_code == 1
    assert not run.exists()


def test_what_is_asked_too_much_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """More parts than Spark runs at a time, and events of another shape, are refused in one line without Spark's."""
    prepared = prepare(tmp_path / "trace", trace(20))
    many = CliRunner().invoke(
        group, ["replay", "run", str(prepared.path), "--out", str(tmp_path / "a"), "--null", "--parts", "99"]
    )
    table = pq.read_table(prepared.events / "part-0.parquet")
    for name in ("part-0.parquet", "part-1.parquet"):
        pq.write_table(table.rename_columns([*table.column_names[:-1], "order"]), prepared.events / name)
    other = CliRunner().invoke(group, ["replay", "run", str(prepared.path), "--out", str(tmp_path / "b"), "--null"])

    assert (many.exit_code, other.exit_code) == (1, 1)
    assert str(many.exception) == "there are more parts than Spark can run tasks side by side: give less with --parts"
    assert str(other.exception) == f"{prepared.events}: the column kseq is not bigint"


def test_an_error_of_a_task_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """What a task had to say ends the command as its one line, and the journals stay."""
    prepared = prepare(tmp_path / "trace", [Wanted(n, "PUT" if n < 50 else "BREW", "k") for n in range(100)])
    done = CliRunner().invoke(
        group, ["replay", "run", str(prepared.path), "--out", str(tmp_path / "a"), "--null", "--speed", "0"]
    )

    assert done.exit_code == 1
    assert str(done.exception) == "event 50: there is no operation BREW"
    assert len(journals(RunDirectory(tmp_path / "a"))) == 2


def test_every_key_is_in_one_part_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """Each part has all events of its keys in the order of the trace, and hot keys are spread over the parts."""
    wanted = [Wanted(n // 2, "PUT", f"hot{n % 4}" if n % 8 else f"k{n}") for n in range(2000)]
    events = frames.with_lanes(read_events(spark, prepare(tmp_path, wanted)))
    hot = {row.lane: row.events for row in frames.hottest(events).limit(4).collect()}
    chosen = frames.spread(hot, 4)
    parted = frames.ordered(frames.with_parts(spark, events, chosen, 4), 4)
    found = parted.withColumn("part", F.spark_partition_id()).collect()

    parts_of, last = defaultdict(set), dict[int, int]()
    for row in found:
        parts_of[row.key].add(row.part)
        assert last.get(row.part, -1) < row.seq
        last[row.part] = row.seq
    assert sorted(row.seq for row in found) == list(range(2000))
    assert all(len(parts) == 1 for parts in parts_of.values())
    assert len({min(parts_of[f"hot{n}".encode()]) for n in range(4)}) == 4
    journal = spark.createDataFrame([([1, 2],), ([2, 5],), (None,)], "seqs array<long>")
    left = frames.not_attempted(events, journal)
    assert left.columns == events.columns
    assert {row.seq for row in left.collect()} == set(range(2000)) - {1, 2, 5}


def test_lanes_go_largest_first_into_the_emptiest_part() -> None:
    """No part has more than the largest lane above another one."""
    chosen = frames.spread({lane: 100 - lane for lane in range(30)}, 3)
    loads = [sum(100 - lane for lane, part in chosen.items() if part == each) for each in range(3)]
    assert max(loads) - min(loads) <= 100 - 29
    assert frames.spread({}, 3) == {}
