"""`remora replay run` through Spark into a real daemon: what is stored is the trace, each event once and in order."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from remora.cli import group
from remora.model.exits import Exit
from remora.replay.layout import RunDirectory
from remora.replay.run.journal import Outcome, journals, read_journal
from remora.replay.shape import EVENT_NAMES, MARK
from replay.prepared import Wanted, prepare, rows
from support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

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
        if isinstance(line, Outcome):
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
