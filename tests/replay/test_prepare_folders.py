"""Folders as they lie in buckets and on disks: each file is read, or named with its reason, and every line counts."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from remora.cli import group
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import Trace
from remora_pipeline.replay.prepare import sources
from remora_pipeline.replay.prepare.inspect import inspect
from remora_pipeline.replay.prepare.job import LEFT_OUT, prepare
from remora_pipeline.replay.prepare.options import PrepareOptions

# A loaded machine may take minutes to start Spark, and to compile what each kind of query is done with.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

Prepare = Callable[..., Trace]


@pytest.fixture
def prepared(spark: SparkSession, tmp_path: Path) -> Prepare:
    """Prepare files and folders, and give what is told of the trace."""

    def prepared(*paths: Path, **options: Any) -> Trace:
        chosen, out = PrepareOptions(**options), tmp_path / "out"
        return prepare(spark, inspect(paths, out, chosen), out, chosen).trace

    return prepared


def event(number: int, **changes: object) -> dict[str, object]:
    return {
        "eventTime": f"2026-11-21T02:14:{number % 60:02}Z",
        "eventSource": "s3.amazonaws.com",
        "eventName": "PutObject",
        "requestParameters": {"bucketName": "photos", "key": f"key {number}"},
        "eventID": f"e-{number}",
        "readOnly": False,
        "managementEvent": False,
        "eventCategory": "Data",
    } | changes


def trail(*numbers: int) -> bytes:
    return json.dumps({"Records": [event(number) for number in numbers]}).encode()


def journal(*keys: str) -> bytes:
    return b"".join(b"o photos [21/Nov/2026:02:14:07 +0000] REST.PUT.OBJECT %b 9 - e\n" % key.encode() for key in keys)


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def accounted(trace: Trace) -> int:
    return trace.events + sum(trace.dropped.values())


DAY = "AWSLogs/111/CloudTrail/us-east-1/2026/11/21"


def test_a_folder_as_it_lies_in_a_bucket(prepared: Prepare, tmp_path: Path) -> None:
    """Of CloudTrail's files all are read: empty documents, digests, byte-order marks, UTF-16, an event a line."""
    folder = write_files(
        tmp_path / "logs",
        {
            f"{DAY}/a.json.gz": gzip.compress(trail(1, 2)),
            f"{DAY}/b.json.gz": gzip.compress(b'{"Records":[]}'),
            f"{DAY}/c.json": b"\xef\xbb\xbf" + trail(3),
            f"{DAY}/d.json": trail(4).decode().encode("utf-16"),
            f"{DAY}/e.json": trail(5).decode().encode("utf-16-be"),
            f"{DAY}/f.json": b"\r\n".join(json.dumps(event(n)).encode() for n in (6, 7)) + b"\r\n",
            f"{DAY}/g.json.gz": gzip.compress(json.dumps([event(8)], indent=1).encode()) + bytes(512),
            f"{DAY}/h.json": b"",
            "AWSLogs/111/CloudTrail-Digest/x.json.gz": gzip.compress(
                json.dumps({"awsAccountId": "1", "digestStartTime": "2026-11-21T02:00:00Z", "logFiles": []}).encode()
            ),
        },
    )

    trace = prepared(folder)

    assert (trace.format, trace.events, trace.unread) == ("cloudtrail", 8, {})
    assert trace.dropped == {"a digest of CloudTrail's files": 1}


def test_odd_files_of_a_folder_are_named_and_their_lines_counted(prepared: Prepare, tmp_path: Path) -> None:
    """Files of another format or of none, damaged ones and what is no file are named; every line is accounted for."""
    lines = journal(*map(str, range(400)))
    whole = gzip.compress(os.urandom(99_000).hex().encode().replace(b"0", b"\n") + b"1")
    folder = write_files(
        tmp_path / "logs",
        {
            "1.log": journal("a", "b") + b"noise\n",
            "2.log.gz": gzip.compress(lines[:200]) + gzip.compress(lines[200:]) + bytes(99),
            "3.csv": b"ts_us,op,bucket,key\n1,PUT,b,k\n",
            "README.md": b"# Logs\n\nof a bucket",
            "broken.csv": b"op,key,ts_us\nPUT,k,1\n",
            "cut.log.gz": gzip.compress(journal(*(os.urandom(9).hex() for _ in range(3000))))[:-4000],
            "damaged.gz": b"\x1f\x8b" + bytes(40),
            "garbage.gz": gzip.compress(journal("g")) + b"behind it",
            "notifications.json": b'{"Records":[{"eventSource":"ceph:s3"}]}\n',
            "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
            "other.gz": whole,
        },
    )
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "pipe")

    trace = prepared(folder)

    assert trace.format == "rgw-journal"
    told = {Path(path).name: reason for path, reason in trace.unread.items()}
    assert sorted(told) == [
        "3.csv", "README.md", "broken.csv", "cut.log.gz", "damaged.gz", "garbage.gz", "gone", "notifications.json",
        "other.gz", "picture.png", "pipe",
    ]  # fmt: skip
    assert told["3.csv"].startswith("is csv, but ")
    assert "no column is known to have the bucket" in told["broken.csv"]
    assert "in none of the known formats" in told["README.md"]
    assert "these are S3 event notifications" in told["notifications.json"]
    assert told["gone"] == "No such file or directory"
    assert told["pipe"] == "is no file: keep what comes from a pipe in one"
    assert told["cut.log.gz"].startswith("behind line ")
    read_of_cut = int(told["cut.log.gz"].split()[2].rstrip(":"))
    assert read_of_cut > 500
    lines_of_other = gzip.decompress(whole).count(b"\n") + 1
    left_out = 2 + 3 + 2 + 1 + lines_of_other
    assert trace.dropped == {"malformed: not the eight parts of a radosgw journal": 1, LEFT_OUT: left_out}
    assert accounted(trace) == 3 + 400 + read_of_cut + 1 + left_out


@pytest.mark.full("unit tests have the rule")
def test_a_file_of_a_folder_that_is_mostly_another_is_named(prepared: Prepare, tmp_path: Path) -> None:
    """A file that only begins as the others do does not refuse them, however large it is, and its lines are counted."""
    folder = write_files(
        tmp_path / "logs", {"1.log": journal("a", "b", "c"), "2.log": journal("d") + b"something else\n" * 500}
    )

    trace = prepared(folder)

    assert trace.unread == {str(folder / "2.log"): "mostly another format: 500 of 501 lines are malformed"}
    assert (trace.events, accounted(trace)) == (4, 504)


@pytest.mark.full("unit tests tell formats apart")
def test_the_format_of_most_files_is_that_of_a_folder(prepared: Prepare, tmp_path: Path) -> None:
    """The odd file is the one that the others are not like, wherever it stands; one that is named decides alone."""
    files = {"0.csv": b"ts_us,op,bucket,key\n1,PUT,b,k\n", "1.log": journal("a"), "2.log": journal("b")}
    folder = write_files(tmp_path / "logs", files)

    assert list(prepared(folder).unread) == [str(folder / "0.csv")]
    csv = inspect([folder / "0.csv", folder], tmp_path / "more", PrepareOptions())
    assert csv.format.name == "csv"
    assert [each.path.name for each in csv.unread] == ["1.log", "2.log"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"README": b"x\n", "a.gz": b"\x1f\x8b\x08"},
            r"none of the files can be read: .*README: 1: in none of the known",
        ),
        ({"README": b"x\n"}, r"^.*README: 1: in none of the known formats"),
        ({"a": b"", "b": b" \n"}, "there is nothing in it"),
        (
            {"a": journal("x") + b"y\n" * 9, "b": journal("x") + b"y\n" * 7},
            "not the eight parts .* as in most lines",
        ),
        (
            {"a": journal("x").replace(b"PUT", b"GET"), "README": b"x\n"},
            r"there is no write in it \(1 x a read; 1 x ",
        ),
    ],
)
def test_a_folder_without_anything_to_replay_is_refused(
    prepared: Prepare, tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    """Only a folder of which nothing can be read, or in which there is no write, is refused, and says why."""
    folder = write_files(tmp_path / "logs", files)

    with pytest.raises(ReplayRefused, match=message):
        prepared(folder)


def test_a_file_that_is_named_is_refused(prepared: Prepare, tmp_path: Path) -> None:
    """A damaged file that was asked for by its name is refused, also beside a folder."""
    folder = write_files(tmp_path / "logs", {"1.log": journal("a"), "2.log": journal("b")})
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(journal(*(os.urandom(9).hex() for _ in range(3000))))[:-4000])

    with pytest.raises(ReplayRefused, match=r"cut\.gz: behind line \d+: "):
        prepared(folder, cut)


@pytest.mark.full("unit tests have the rule")
def test_large_files_of_a_folder_are_named_once(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that many tasks read is judged as a whole."""
    monkeypatch.setattr(sources, "PIECE_BYTES", 300)
    noise = b"x" * 60 + b"\n"
    folder = write_files(
        tmp_path / "logs", {"1.log": journal(*"abcdefgh") + noise * 6, "2.log": noise * 6 + journal("i") + noise * 6}
    )

    trace = prepared(folder, format="rgw-journal")

    assert list(trace.unread) == [str(folder / "2.log")]
    assert (trace.events, accounted(trace)) == (9, 27)


@pytest.mark.full("the command says what the job gives it")
def test_the_command_names_what_it_did_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """The command ends well, and prints each file that was not read with its reason; beyond twenty it counts them."""
    folder = write_files(tmp_path / "logs", {"1.log": journal("a")} | {f"x{n:02}": b"?\n" for n in range(25)})

    result = CliRunner().invoke(group, ["replay", "prepare", str(folder), "--out", str(tmp_path / "out")])

    assert result.exit_code == 0, result.output
    assert "Not read, or not to the end, 25 of the files:" in result.output
    assert f"  {folder / 'x19'}  1: in none of the known formats" in result.output
    assert f"25 {LEFT_OUT}" in result.output
    assert "and 5 more, which are in trace.json" in result.output
    assert "x20  " not in result.output
    told: Sequence[str] = json.loads((tmp_path / "out" / "trace.json").read_text())["unread"]
    assert len(told) == 25
