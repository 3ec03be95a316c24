"""Whole traces through Spark: order, numbers, shaping, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from remora.cli import group
from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.layout import PreparedDirectory, Trace
from remora_pipeline.replay.prepare import frames, job, sources
from remora_pipeline.replay.prepare.inspect import inspect
from remora_pipeline.replay.prepare.job import Prepared, prepare
from remora_pipeline.replay.prepare.options import PrepareOptions
from remora_pipeline.replay.session import session
from remora_pipeline.replay.shape import EVENT
from replay.sample import SAMPLE
from replay.sample import rows as sample_rows

# A loaded machine may take minutes to start Spark, and to compile what each kind of query is done with.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SECOND = 1_795_227_247
HEADER = ("seq", "ts_us", "op", "bucket", "key", "size")

Make = Callable[..., tuple[Prepared, list[dict[str, Any]]]]


def events(out: Path) -> list[dict[str, Any]]:
    """All events, by their number; each file is in order by itself."""
    found: list[dict[str, Any]] = []
    for file in sorted(PreparedDirectory(out).events.glob("*.parquet")):
        rows = pq.read_table(file).to_pylist()
        assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
        found += rows
    return sorted(found, key=lambda row: int(row["seq"]))


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Make:
    """Prepare files, and give what was made and the events."""

    def make(*paths: Path, name: str = "out", **options: Any) -> tuple[Prepared, list[dict[str, Any]]]:
        chosen, out = PrepareOptions(**options), tmp_path / name
        made = prepare(spark, inspect(paths, out, chosen), out, chosen)
        found = events(out)
        assert_numbered(found)
        return made, found

    return make


def assert_numbered(found: list[dict[str, Any]]) -> None:
    """`seq` counts all events in order of time, `kseq` those of each key in the order of `seq`."""
    assert [row["seq"] for row in found] == list(range(len(found)))
    assert [row["ts_us"] for row in found] == sorted(row["ts_us"] for row in found)
    seen: Counter[tuple[str, str]] = Counter()
    for row in found:
        place = (row["bucket"], row["key"])
        assert row["kseq"] == seen[place]
        seen[place] += 1


def table(path: Path, *rows: tuple[object, ...]) -> Path:
    """A CSV file of (ts_us, op, bucket, key, size)."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *((n, *row) for n, row in enumerate(rows))])
    return path


# ------------------------------------------------------------------------------------ whole traces


def test_the_sample_is_prepared_without_options(make: Make, spark: SparkSession, tmp_path: Path) -> None:
    """Every write of a trace is an event, in its order, spread evenly within its second, as trace.json tells."""
    made, found = make(SAMPLE)

    given = sample_rows()
    assert [(row["op"], row["bucket"], row["key"], row["size"]) for row in found] == [row[1:] for row in given]
    assert [row["ts_us"] // 1_000_000 for row in found] == [row[0] // 1_000_000 for row in given]
    in_second = [row["ts_us"] for row in found if row["ts_us"] // 1_000_000 == given[0][0] // 1_000_000]
    assert in_second == [given[0][0] + n * 1_000_000 // len(in_second) for n in range(len(in_second))]
    trace = layout.read(PreparedDirectory(tmp_path / "out").trace, Trace)
    assert trace == made.trace
    assert (trace.name, trace.format, trace.options) == ("sample", "csv", {"spread": "even"})
    assert trace.events == len(given)
    assert trace.keys == len({row[2:4] for row in given})
    assert trace.buckets == 3
    assert trace.operations == Counter(row[1] for row in given)
    assert trace.bytes == sum(row[4] or 0 for row in given)
    assert (trace.first_us, trace.last_us) == (found[0]["ts_us"], found[-1]["ts_us"])
    assert trace.peak_per_s == max(Counter(row[0] for row in given).values())
    assert trace.dropped == {}
    top = Counter(row[2:4] for row in given).most_common(1)[0]
    assert (trace.hottest[0].bucket, trace.hottest[0].key, trace.hottest[0].events) == (*top[0], top[1])
    read = spark.read.parquet(str(PreparedDirectory(tmp_path / "out").events))
    assert [(field.name, field.dataType) for field in read.schema] == [(field.name, field.dataType) for field in EVENT]


@pytest.mark.full("a larger trace than the gate's")
def test_a_trace_of_many_files_and_partitions(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever files, tasks and partitions events go through, they have one order and numbers, and each time without
    events is cut to --max-gap, wherever it falls.
    """
    monkeypatch.setattr(job, "FILE_EVENTS", 300)
    monkeypatch.setattr(job, "LOT_BYTES", 1)
    folder = tmp_path / "folder"
    folder.mkdir()
    given = sample_rows()
    for number in range(3):
        table(folder / f"{number}.csv", *given[number::3])
    (folder / "empty.csv").touch()
    (folder / "3.csv.gz").write_bytes(gzip.compress(table(tmp_path / "x", *given[:1]).read_bytes()))

    made, found = make(folder, spread="none", max_gap_us=1_500_000)

    # What began at once is in the order of the files, and within them of the lines.
    in_order = sorted([*given[0::3], *given[1::3], *given[2::3], given[0]], key=lambda row: row[0])
    cut, expected = 0, []
    for before, row in zip([in_order[0], *in_order], in_order, strict=False):
        cut += max(0, row[0] - before[0] - 1_500_000)
        expected.append((row[0] - cut, *row[1:]))
    assert cut > 0
    assert [tuple(row[name] for name in HEADER[1:]) for row in found] == expected
    assert len(list(PreparedDirectory(tmp_path / "out").events.glob("*.parquet"))) == 7
    assert made.trace.sources == tuple(
        str(folder / name) for name in ("0.csv", "1.csv", "2.csv", "3.csv.gz", "empty.csv")
    )


def test_requests_that_are_logged_twice_or_late(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An S3 log comes out of order and doubled: events are in order of time, each request once, the rest is counted
    with its lines; an empty folder is taken for the output.
    """
    monkeypatch.setattr(sources, "PIECE_BYTES", 300)

    def line(second: int, request: str, operation: str = "REST.PUT.OBJECT", status: int = 200, key: str = "k") -> str:
        return (
            f"0aff photos [21/Nov/2026:02:14:{second:02} +0000] 192.0.2.7 u {request} {operation} {key}"
            f' "PUT /{key} HTTP/1.1" {status} - - 5 9 9 "-" "agent" - h SigV4 - AuthHeader photos.s3.test TLSv1.3 - -\n'
        )

    log = tmp_path / "access.log"
    log.write_text(
        line(9, "R3")
        + line(7, "R1")
        + line(8, "R2", status=403)
        + line(7, "R1")
        + line(8, "R4", "REST.GET.OBJECT")
        + "what is this\n"
        + line(9, "R5", "BATCH.DELETE.OBJECT", key="a")
        + line(9, "R5", "BATCH.DELETE.OBJECT", key="b")
        + line(9, "R5", "REST.POST.MULTI_OBJECT_DELETE", key="-")
        + line(12, "R6")
    )
    (tmp_path / "out").mkdir()

    made, found = make(log, until_after_us=5_000_000)

    assert [(row["op"], row["key"], row["ts_us"] - SECOND * 1_000_000) for row in found] == [
        ("PUT", "k", 0),
        ("PUT", "k", 2_000_000),
        ("DELETE", "a", 2_333_333),
        ("DELETE", "b", 2_666_666),
    ]
    assert made.trace.dropped == {
        "a read": 1,
        "after --until": 1,
        "failed with status 403": 1,
        "logged twice (the same request)": 1,
        "malformed: not the fields of an S3 access log": 1,
        "no event: REST.POST.MULTI_OBJECT_DELETE": 1,
    }
    (example,) = made.examples["malformed: not the fields of an S3 access log"]
    assert (example.where, example.text) == (f"{log}:6", "what is this")


@pytest.mark.full("another trace of the same job is at the gate")
def test_an_ops_log_is_sorted_by_begin_and_ties_by_end(make: Make, tmp_path: Path) -> None:
    """Lines of an ops log come as requests end: they are sorted by their begin, and of two that began at once the one
    that ended first is first.
    """
    entries = [("fast", 7, 10, "t1"), ("other", 6, 5000, "t2"), ("slow", 7, 900, "t3"), ("fastest", 7, 1, "t4")]
    log = tmp_path / "ops.json"
    log.write_text(
        "".join(
            json.dumps(
                {
                    "bucket": "b",
                    "time": f"2026-11-21T02:14:0{second}.000500Z",
                    "operation": "put_obj",
                    "uri": f"PUT /b/{key} HTTP/1.1",
                    "http_status": "200",
                    "total_time": took,
                    "trans_id": request,
                }
            )
            + "\n"
            for key, second, took, request in entries
        )
    )

    made, found = make(log)

    assert [row["key"] for row in found] == ["other", "fastest", "fast", "slow"]
    assert {row["ts_us"] % 1_000_000 for row in found} == {500}
    assert made.trace.options == {"spread": "none"}
    assert made.without_size == 4


def test_the_command_tells_what_it_made(spark: SparkSession, tmp_path: Path) -> None:
    """The command prints counts, reasons with their first lines, and the hottest keys; names of folders and files may
    have blanks, percents, brackets and other letters. Standard error says what it does meanwhile.
    """
    odd = tmp_path / "a b+%20[x]{y}*ü"
    odd.mkdir()
    rows = [*((n * 1_000_000, "2a", "b", "hot\nkey", 900) for n in range(3)), (9, "28", "b", "k", 1)]
    trace, out = table(odd / "blocks [1].csv", *rows), odd / "out [*]"

    result = CliRunner().invoke(
        group, ["replay", "prepare", str(trace), "--out", str(out), "--op-map", "2a=PUT,28=get"]
    )

    assert result.exit_code == 0, result.output
    assert "3 events of 1 key in 1 bucket" in result.output
    assert "1 a read" in result.output
    assert [each in result.stderr for each in ("00:00 looking at the files", "starting Spark")] == [True, True]
    assert f"{trace}:8  3,9,28,b,k,1" in result.output
    assert "hot\\nkey" in result.output
    assert [row["key"] for row in events(out)] == ["hot\nkey"] * 3
    assert sorted(path.name for path in odd.iterdir()) == ["blocks [1].csv", "out [*]"]


# ------------------------------------------------------------------------------------ shaping


def lines(spark: SparkSession, *rows: tuple[int, str, str | None]) -> DataFrame:
    """Writes of (ts_us, key, request), in the order of a file."""
    given = [
        (ts, ts, 0, n, 0, "PUT", "b", key, 900 if n else None, request, None)
        for n, (ts, key, request) in enumerate(rows)
    ]
    columns = "ts_us long, end_us long, piece int, line long, item int, op string, bucket string, key string, size long"
    return spark.createDataFrame(given, f"{columns}, request string, reason string").repartition(3)


@pytest.mark.full("an option of a job; the job is at the gate")
def test_random_spreading_is_seeded_and_keeps_the_order(spark: SparkSession) -> None:
    """The same seed gives the same times, another one others; all stay within their second and keep their order."""
    given = lines(spark, *((n // 40 * 1_000_000, f"k{n}", None) for n in range(80)))

    def times(seed: int) -> list[int]:
        return [row["ts_us"] for row in frames.spread_randomly(given, seed).orderBy("line").collect()]

    one, other = times(3), times(4)
    assert one == times(3) != other
    for found in (one, other):
        assert found == sorted(found)
        assert [ts_us // 1_000_000 for ts_us in found] == [0] * 40 + [1] * 40
        assert 300_000 < sum(ts_us % 1_000_000 for ts_us in found) / 80 < 700_000
    assert [ts_us % 1_000_000 for ts_us in one[:40]] != [ts_us % 1_000_000 for ts_us in one[40:]]


@pytest.mark.full("an option of a job; the job is at the gate")
def test_sampling_keeps_keys_whole(spark: SparkSession) -> None:
    """Of many keys about one in four is kept, each with all of its events or none."""
    given = lines(spark, *((n, f"k{n % 200}", None) for n in range(400)))

    found = frames.mark_unsampled(given, 4).collect()

    kept = Counter(row["key"] for row in found if row["reason"] is None)
    assert set(kept.values()) == {2}
    assert 20 < len(kept) < 90
    assert {row["reason"] for row in found} == {None, "not in --sample-keys"}


@pytest.mark.full("an option of a job; the job is at the gate")
def test_cloning_multiplies_keys_and_not_gaps(spark: SparkSession) -> None:
    """Each clone of a key has its times and order, and sizes up to the cap; a size that nobody knows stays unknown."""
    found = frames.in_order(frames.shaped(lines(spark, (5, "k", None), (7, "k", None)), 3, 100), 2).collect()

    assert [(row["ts_us"], row["key"], row["size"]) for row in sorted(found, key=lambda row: row["ts_us"])] == [
        (ts_us, key, size) for ts_us, size in ((5, None), (7, 100)) for key in ("k", "k#1", "k#2")
    ]


def test_lines_without_a_request_are_not_twice(spark: SparkSession) -> None:
    """Only what has the same name as an earlier line is marked; lines without a name all stay."""
    found = frames.mark_repeated(lines(spark, (5, "a", None), (5, "a", None), (9, "b", "R1"), (7, "c", "R1"))).collect()

    assert sorted(row["key"] for row in found if row["reason"] is None) == ["a", "a", "c"]


def test_the_hottest_key_is_told_by_its_busiest_second(spark: SparkSession) -> None:
    """The most events of a key within any second are counted, also where a second of the clock ends in between."""
    times = [900_000, 1_100_000, 1_899_999, 1_900_000, 5_000_000]
    given = lines(
        spark, *((ts_us, "hot", None) for ts_us in times), (6, "cold", None), (7, "warm", None), (8, "warm", None)
    )

    found = frames.hottest(given, 2).collect()

    assert [(row["key"], row["events"], row["peak_per_s"]) for row in found] == [("hot", 5, 3), ("warm", 2, 2)]


# ------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,GET,b,k,1\n", r"t: there is no write in it \(1 x a read\)"),
        ("0,1,PUT,b,k,1\n" + "0,x,PUT,b,k,1\n" * 4, r"t\.csv:3: column ts_us is not a time in us, as in most"),
    ],
)
def test_what_gives_no_trace_is_refused(make: Make, tmp_path: Path, text: str, message: str) -> None:
    """Input without writes, or mostly of another format, is refused with the reasons, and nothing is left behind."""
    (tmp_path / "t.csv").write_text(",".join(HEADER) + "\n" + text)

    with pytest.raises(ReplayRefused, match=message):
        make(tmp_path / "t.csv")

    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_file_that_breaks_off_is_refused_and_nothing_left(make: Make, tmp_path: Path) -> None:
    """A file that turns out to be damaged within Spark is refused in one line; no folder is made."""
    whole = table(tmp_path / "whole.csv", *sample_rows() * 5)
    log = tmp_path / "cut.csv.gz"
    log.write_bytes(gzip.compress(whole.read_bytes())[:-30])
    whole.unlink()

    with pytest.raises(ReplayRefused, match=r"cut\.csv\.gz: behind line \d+: Truncated"):
        make(log)

    assert [path.name for path in tmp_path.iterdir()] == ["cut.csv.gz"]


def test_a_folder_that_is_used_is_refused(tmp_path: Path) -> None:
    """An existing folder with anything in it is refused, and so is one in a folder that is not there."""
    trace = table(tmp_path / "t.csv", (5, "PUT", "b", "k", 900))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("x")

    with pytest.raises(ReplayRefused, match="used: exists already"):
        inspect([trace], tmp_path / "used", PrepareOptions())
    with pytest.raises(ReplayRefused, match="is not a folder, so out cannot be made in it"):
        inspect([trace], tmp_path / "nowhere/out", PrepareOptions())


def test_an_error_of_spark_is_one_line(spark: SparkSession) -> None:
    """What Spark raises, in a task or while it plans, is told in one line."""

    def broken(batches: Any) -> Any:
        raise ValueError("odd thing")

    with pytest.raises(ReplayError, match=r"^Spark: ValueError: odd thing$"), session("test") as same:
        same.range(1).mapInArrow(broken, "id long").collect()
    with pytest.raises(ReplayError, match=r"^Spark: \[UNRESOLVED_COLUMN") as caught, session("test") as same:
        same.range(1).select("nothing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        ["--sample-keys", "10"],
        ["--sample-keys", "1/0"],
        ["--op-map", "PUT"],
        ["--op-map", "x=WRITE"],
        ["--until", "tomorrow"],
        ["--max-gap", "0"],
        ["--ts-unit", "minutes"],
        ["--bucket", "b", "--bucket-col", "c"],
    ],
)
def test_options_that_are_wrong_are_usage_errors(tmp_path: Path, options: list[str]) -> None:
    """A wrong option is told by its name, with exit code 2."""
    result = CliRunner().invoke(group, ["replay", "prepare", "x.csv", "--out", str(tmp_path / "out"), *options])

    assert result.exit_code == 2
    assert options[0] in result.output
