"""Files, tables and pieces of them, without Spark."""

from __future__ import annotations

import bz2
import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare import sources, streams, task
from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import (
    MALFORMED,
    NOT_UTF8,
    READ,
    Dropped,
    FormatContext,
    FoundLine,
    Outcome,
    Write,
)
from remora_pipeline.replay.prepare.formats import FORMATS, detect
from remora_pipeline.replay.prepare.inspect import inspect, sort_out, trace_name
from remora_pipeline.replay.prepare.options import PrepareOptions
from remora_pipeline.replay.prepare.tables import csv_records, moment_us, parquet_records

LINE = "o photos [21/Nov/2026:02:14:{:02} +0000] REST.PUT.OBJECT key {} 1200 - 5b0d\n"
CSV = "seq,ts_us,op,bucket,key,size\n"


def journal(count: int) -> bytes:
    return "".join(LINE.format(n % 60, n) for n in range(count)).encode()


def rows(files: list[sources.SourceFile], form: str, mapping: Mapping | None = None) -> list[dict[str, Any]]:
    """What the tasks make of files, piece by piece."""
    read = task.reader(form, None, mapping or Mapping())
    cut = sources.pieces(files, FORMATS[form])
    given = [
        {
            "piece": piece.index,
            "path": piece.path,
            "compression": piece.compression,
            "start": piece.start,
            "end": piece.end,
        }
        for piece in cut
    ]
    schema = pa.schema(
        [
            ("piece", pa.int32()),
            ("path", pa.binary()),
            ("compression", pa.string()),
            ("start", pa.int64()),
            ("end", pa.int64()),
        ]
    )
    batches: Iterator[pa.RecordBatch] = iter([pa.RecordBatch.from_pylist(given, schema=schema)])
    return [row for batch in read(batches) for row in batch.to_pylist()]


def outcomes(text: str, mapping: Mapping | None = None, bucket: str | None = None) -> list[Outcome]:
    found = csv_records(
        BytesIO(text.encode("utf-8", "surrogateescape")), FormatContext("t.csv", bucket, mapping or Mapping())
    )
    return [outcome for each in found for outcome in each.outcomes]


# ------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, zstandard.compress])
def test_files_are_read_whatever_compressed_them(tmp_path: Path, compress: Any) -> None:
    """Plain files and gzip, zstd and bzip2, also in several members, are read by their first bytes, not their names."""
    path = tmp_path / "log"
    path.write_bytes(compress(journal(10)) + compress(journal(10)))

    found = rows(sources.found([path]), "rgw-journal")

    assert [row["key"] for row in found if row["kind"] == task.WRITE] == [f"key {n}" for n in range(10)] * 2


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, zstandard.compress])
def test_a_compressed_file_that_ends_early_is_refused(tmp_path: Path, compress: Any) -> None:
    """A file that was cut is refused by its name and the last line that was read, and not taken for a short one."""
    path = tmp_path / "cut.log"
    path.write_bytes(compress(os.urandom(300_000).hex().encode().replace(b"0", b"\n"))[:-9])

    found = rows(sources.found([path]), "rgw-journal")

    (refused,) = [row["reason"] for row in found if row["kind"] == task.REFUSED]
    assert refused.startswith(f"{path}: behind line ")


ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, zstandard.compress])
def test_files_are_read_whatever_encoded_them(
    tmp_path: Path, compress: Any, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UTF-16 of both byte orders, marked or not, and UTF-8 with a mark are read as the text that they are.

    The keys have letters beyond the first plane, whose halves a chunk may part.
    """
    monkeypatch.setattr(sources, "PIECE_BYTES", 1000)
    monkeypatch.setattr(streams, "_CHUNK_BYTES", 77)
    path = tmp_path / "log"
    text = journal(100).decode().replace("key", "🌊 ü").replace("\n", "\r\n")
    path.write_bytes(compress(text.encode(encoding)))

    found = rows(sources.found([path]), "rgw-journal")

    assert [row["key"] for row in found if row["kind"] == task.WRITE] == [f"🌊 ü {n}" for n in range(100)]
    assert detect(sources.head(sources.found([path])[0]), "x", Mapping()).name == "rgw-journal"


def test_broken_utf16_is_no_text(tmp_path: Path) -> None:
    """Half of a pair, and an odd byte at the end, make their line's key one that is not UTF-8, and hurt no other."""
    path = tmp_path / "log"
    lines = journal(3).decode().splitlines(keepends=True)
    text = "".join([lines[0], lines[1].replace("key", "\ud800"), lines[2]])
    path.write_bytes(b"\xff\xfe" + text.encode("utf-16-le", "surrogatepass") + b"x")

    found = rows(sources.found([path]), "rgw-journal")

    assert [row["key"] for row in found if row["kind"] == task.WRITE] == ["key 0", "key 2"]
    assert {row["reason"]: row["count"] for row in found if row["kind"] == task.DROPPED} == {
        NOT_UTF8: 1,
        MALFORMED + "not the eight parts of a radosgw journal": 1,
    }


def test_the_zeros_of_other_files_are_no_utf16() -> None:
    """Only a text of two bytes a letter is taken for UTF-16: no log with zeros in it, and nothing that is shorter."""
    assert streams.wide_encoding(b"") is None
    assert streams.wide_encoding(b"a\0") is None
    assert streams.wide_encoding(journal(1) + bytes(900)) is None
    assert streams.wide_encoding(bytes(1000)) is None
    assert streams.wide_encoding(b"{\0}\0") == "utf-16-le"
    assert streams.wide_encoding(b"\0{\0}") == "utf-16-be"


@pytest.mark.parametrize("padding", [b"", bytes(1), bytes(511), bytes(200_000)])
def test_zeros_behind_the_members_of_gzip_are_passed_over(tmp_path: Path, padding: bytes) -> None:
    """As with gzip itself, zeros behind a member, and between two, are nothing."""
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(journal(10)) + padding + gzip.compress(journal(10)) + padding)

    found = rows(sources.found([path]), "rgw-journal")

    assert [row["kind"] for row in found].count(task.WRITE) == 20
    assert [row for row in found if row["kind"] == task.REFUSED] == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-5], id="cut in its last bytes"),
        pytest.param(lambda data: data[:-8] + bytes(8), id="another sum"),
        pytest.param(lambda data: data[: len(data) // 2] + bytes(99) + data[len(data) // 2 + 99 :], id="overwritten"),
        pytest.param(lambda data: data + b"behind", id="something behind it"),
    ],
)
def test_damaged_gzip_is_told_and_what_is_before_it_read(tmp_path: Path, damage: Any) -> None:
    """Whatever is wrong with gzip's data, the lines before are read, and the file is named with the last of them."""
    path = tmp_path / "log.gz"
    path.write_bytes(
        damage(gzip.compress(b"".join(LINE.format(n % 60, os.urandom(9).hex()).encode() for n in range(9999))))
    )

    found = rows(sources.found([path]), "rgw-journal")

    count = [row["kind"] for row in found].count(task.WRITE)
    (refused,) = [row["reason"] for row in found if row["kind"] == task.REFUSED]
    assert count > 3000
    assert refused.startswith(f"{path}: behind line ")


def test_the_lines_of_a_file_that_is_left_out(tmp_path: Path) -> None:
    """Lines are counted whether the last one is ended or not, in whatever form; a binary file has none."""

    def count(data: bytes) -> int:
        (tmp_path / "x").write_bytes(data)
        return sources.lines_in(sources.found([tmp_path / "x"])[0])

    assert [count(data) for data in (b"", b"a", b"a\n", b"a\n\nb")] == [0, 1, 1, 3]
    assert count(gzip.compress(b"a\nb\n")) == 2
    assert count("a\nb\n".encode("utf-16")) == 2
    assert count(b"a\n\0\x01\x02\n") == 0


def test_folders_are_read_in_order_of_names(tmp_path: Path) -> None:
    """All files of a folder, at any depth, are taken by name; hidden ones and Spark's own are not."""
    for name in ("b/2.log", "b/10.log", "a.log", ".hidden", "_SUCCESS", "c/.x/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(journal(1))

    found = [str(file.path.relative_to(tmp_path)) for file in sources.found([tmp_path])]

    assert found == ["a.log", "b/10.log", "b/2.log"]


def test_paths_that_are_not_there_are_refused(tmp_path: Path) -> None:
    """A missing file and a folder without files are refused by their names."""
    with pytest.raises(ReplayRefused, match=r"nothing\.log: No such file"):
        sources.found([tmp_path / "nothing.log"])
    with pytest.raises(ReplayRefused, match="there are no files in it"):
        sources.found([tmp_path])


@given(st.integers(1, 200), st.lists(st.integers(0, 40), max_size=12), st.booleans())
def test_pieces_have_every_line_once(size: int, lengths: list[int], is_ended: bool) -> None:
    """However a file is cut into pieces, each line is in exactly one of them, whole and in order."""
    lines = [bytes([65 + n % 26]) * length for n, length in enumerate(lengths)]
    text = b"\n".join(lines) + (b"\n" if is_ended and lines else b"")

    found = []
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        for start in range(0, len(text), size):
            with sources.opened(Path(file.name), None, start, min(start + size, len(text))) as stream:
                found.append(stream.read())

    assert b"".join(found) == text
    whole = [piece for piece in found if piece]
    assert all(piece.endswith(b"\n") for piece in whole[:-1])


def test_large_plain_logs_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain log is read in pieces that give the same writes as the whole, and tell how many lines each has."""
    monkeypatch.setattr(sources, "PIECE_BYTES", 1000)
    path = tmp_path / "log"
    path.write_bytes(journal(100))

    found = rows(sources.found([path]), "rgw-journal")

    assert [row["key"] for row in found if row["kind"] == task.WRITE] == [f"key {n}" for n in range(100)]
    assert len({row["piece"] for row in found}) > 5
    assert sum(row["count"] for row in found if row["kind"] == task.LINES) == 100


def test_dropped_lines_are_counted_with_the_first_few() -> None:
    """A reason has its count and three examples, which can be printed; beyond a hundred reasons they share one."""
    tally = task.DropTally()
    for n in range(1000):
        tally.add("often", FoundLine(n + 1, (), "x\n\x1b\udcff" * 100))
    for n in range(500):
        tally.add(f"reason {n}", FoundLine(n + 1, (), "y"))

    found = list(tally.rows(7))

    often = [row for row in found if row[11] == "often"]
    assert [row[2] for row in often] == [1, 2, 3]
    assert [row[12] for row in often] == [1000, 0, 0]
    assert all(row[13].isprintable() and row[13].isascii() for row in often)
    assert sum(row[12] for row in found) == 1500
    assert len({row[11] for row in found}) == task.MOST_REASONS + 1


# ------------------------------------------------------------------------------------ which format


def test_files_of_two_formats_that_are_named_are_refused(tmp_path: Path) -> None:
    """All files that are named must have one format; the one that has not is named, and empty files are nothing's."""
    (tmp_path / "0.log").write_bytes(b"")
    (tmp_path / "1.log").write_bytes(journal(2))
    form = sort_out(sources.found([tmp_path]), PrepareOptions())
    assert (form.format.name, [file.path.name for file in form.full]) == ("rgw-journal", ["1.log"])

    (tmp_path / "2.csv").write_text(CSV + "0,1,PUT,b,k,1\n")
    with pytest.raises(ReplayRefused, match=r"2\.csv: is csv, but .*1\.log is rgw-journal"):
        sort_out(sources.found([tmp_path / "1.log", tmp_path / "2.csv"]), PrepareOptions())


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (CSV + "0,soon,PUT,b,k,1\n", PrepareOptions(), r"t\.csv:2: as csv: column ts_us is not a time in us"),
        (CSV + "0,1,PUT,b,k,1\n", PrepareOptions(format="s3-access"), r"t\.csv:1: as s3-access: not the fields of"),
        (CSV + "0,1,write,b,k,1\n", PrepareOptions(), r"t\.csv:2: as csv: unknown operation write; --op-map"),
        (
            CSV + "0,1,PUT,b,k,1\n",
            PrepareOptions(mapping=Mapping(ts_col="when")),
            r"t\.csv:1: there is no column when \(--ts-col\)",
        ),
        (
            CSV + "0,1,PUT,b,k,1\n",
            PrepareOptions(mapping=Mapping(ts_unit="iso")),
            r"t\.csv:2: as csv: column ts_us is not a time in iso",
        ),
        (
            CSV + "0,1795227247000000,PUT,b,k,1\n",
            PrepareOptions(mapping=Mapping(ts_unit="s")),
            r"t\.csv:2: as csv: time stamp is before 1970 or after 2199",
        ),
        (
            "when,op,key\n1,PUT,k\n",
            PrepareOptions(mapping=Mapping(ts_col="when", ts_unit="s")),
            "name it with --bucket-col or --bucket",
        ),
        ("when,op,key\n1,PUT,k\n", PrepareOptions(mapping=Mapping(ts_col="when")), "in which unit is column when"),
        ("", PrepareOptions(), "there is nothing in it"),
    ],
)
def test_a_wrong_file_or_mapping_is_refused(tmp_path: Path, text: str, options: PrepareOptions, message: str) -> None:
    """What cannot be read as asked is refused with the file, the line or the option, before Spark is started."""
    (tmp_path / "t.csv").write_text(text)

    with pytest.raises(ReplayRefused, match=message):
        sort_out(sources.found([tmp_path / "t.csv"]), options)


def test_options_that_would_change_nothing_are_refused(tmp_path: Path) -> None:
    """A bucket or columns for a log that tells both by itself are refused by the option's name."""
    (tmp_path / "log").write_bytes(journal(2))

    with pytest.raises(ReplayRefused, match=r"^--bucket: radosgw bucket logging, journal tells the bucket by itself"):
        inspect([tmp_path / "log"], tmp_path / "out", PrepareOptions(bucket="b"))
    with pytest.raises(ReplayRefused, match=r"^--ts-col and the other options"):
        inspect(
            [tmp_path / "log"], tmp_path / "out", PrepareOptions(format="rgw-journal", mapping=Mapping(key_col="k"))
        )


def test_the_name_of_a_trace() -> None:
    """A trace is called as its first file without its endings, and tells how many more there are."""
    assert trace_name([Path("/x/access.log.gz")]) == "access"
    assert trace_name([Path("/x/2026"), Path("b")]) == "2026 and 1 more"
    assert trace_name([Path(".gz")]) == ".gz"


# ------------------------------------------------------------------------------------ tables


def test_a_table_with_the_usual_columns() -> None:
    """The columns ts_us, op, bucket, key and size need no options; quoted keys may have anything, lines included."""
    text = CSV + '0,1000000,put,b,"a ""q"", \nnew line",7\n1,2000000,DELETE,b,ü %2B,\n2,3000000,GET,b,k,1\n'

    assert outcomes(text) == [
        Write(1_000_000, 1_000_000, "PUT", "b", 'a "q", \nnew line', 7, None),
        Write(2_000_000, 2_000_000, "DELETE", "b", "ü %2B", None, None),
        Dropped(READ),
    ]


def test_rows_are_counted_as_lines_of_the_file() -> None:
    """A row's line is where it begins, also behind a row that takes several lines."""
    text = CSV + '0,1,PUT,b,"two\nlines",7\n1,2,PUT,b,k,1\n'

    assert [each.line for each in csv_records(BytesIO(text.encode()), FormatContext("t"))] == [2, 4]


def test_a_quote_in_a_table_that_is_never_closed_costs_no_other_row() -> None:
    """A key that begins with a quote, and was not quoted, is a broken row; all others are read, quoted ones too."""
    lines = [
        "ts_s,op,key,bucket",
        '1,PUT,"a,b',
        '2,PUT,"c",b',
        '3,PUT,"d\ne",b',
        "4,PUT,f\u2028\x0b,b",
        '5,PUT,"g ""h""",b',
    ]
    text = "\n".join([*lines, *(f"{number},PUT,k{number},b" for number in range(6, 300))])

    found = list(FORMATS["csv"].records(BytesIO(text.encode()), FormatContext("a.csv")))

    assert [each.line for each in found if not isinstance(each.outcomes[0], Write)] == [2]
    keys = [each.outcomes[0].key for each in found if isinstance(each.outcomes[0], Write)]
    assert keys[:4] == ["c", "d\ne", "f\u2028\x0b", 'g "h"']
    assert len(keys) == 4 + 294
    assert [each.line for each in found[:5]] == [2, 3, 4, 6, 7]


def test_a_table_with_a_mapping() -> None:
    """Columns, unit, words for operations and the bucket are as the user says; semicolons and a BOM do no harm."""
    mapping = Mapping(ts_col="when", ts_unit="ms", op_col="cmd", key_col="lbn", op_map={"2a": "PUT", "28": "GET"})
    text = "\ufeffwhen;cmd;lbn\n1500;2a;7\n1600;28;7\n1700;35;7\n"

    assert outcomes(text, mapping, bucket="vol") == [
        Write(1_500_000, 1_500_000, "PUT", "vol", "7", None, None),
        Dropped(READ),
        Dropped(MALFORMED + "unknown operation 35; --op-map says what it means"),
    ]


def test_nulls_and_broken_rows_of_a_table() -> None:
    """Nulls where there must be none are counted by column; rows of another width and bytes that are no text, too."""
    nulls = "0,,PUT,b,k,1\n1,1,,b,k,1\n2,1,PUT,,k,1\n3,1,PUT,b,,1\n"
    broken = "4,1,PUT,b,k\n\n5,1,PUT,b,\udcff,1\n6,1,PUT,b,k,-\n7,1,PUT,b,k,x\n"

    found = outcomes(CSV + nulls + broken)

    assert [each.reason for each in found if isinstance(each, Dropped)] == [
        "null in column ts_us",
        "null in column op",
        "null in column bucket",
        "null in column key",
        MALFORMED + "not the 6 columns of the header",
        "a blank line",
        "the key, bucket or request id is not UTF-8",
        MALFORMED + "column size is not a number of bytes",
    ]
    assert [each.size for each in found if isinstance(each, Write)] == [None]


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("1766300400.123456", "s", 1_766_300_400_123_456),
        ("1766300400123", "ms", 1_766_300_400_123_000),
        (1_999, "ns", 1),
        (1.5, "s", 1_500_000),
        ("2026-11-21T02:14:07.5+00:00", "iso", 1_795_227_247_500_000),
        (datetime(2026, 11, 21, 2, 14, 7, tzinfo=UTC), None, 1_795_227_247_000_000),
        (b"12", "s", 12_000_000),
    ],
)
def test_times_of_tables(value: Any, unit: str | None, expected: int) -> None:
    """A time in any unit, text or type becomes whole microseconds."""
    assert moment_us(value, unit) == expected


@given(st.integers() | st.floats() | st.text() | st.binary(), st.sampled_from(["s", "ms", "us", "ns", "iso", None]))
def test_a_time_is_a_number_or_a_value_error(value: Any, unit: str | None) -> None:
    """Whatever a cell has, it is a number of microseconds, or an error that the reader counts."""
    with suppress(ValueError, ArithmeticError):
        assert isinstance(moment_us(value, unit), int)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_with_times_of_any_unit(unit: str) -> None:
    """Columns of times need no unit, finer digits are cut off; nulls are counted; other columns do not matter."""
    moment = datetime(2026, 11, 21, 2, 14, 7, tzinfo=UTC)
    table = pa.table(
        {
            "when": pa.array([moment, None], pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC")),
            "op": ["PUT", "PUT"],
            "key": pa.array([b"k\xc3\xbc", b"x"]),
            "bytes": [7.0, float("nan")],
            "other": [[1], [2]],
        }
    )
    sink = BytesIO()
    pq.write_table(table, sink)
    sink.seek(0)

    found = [
        outcome
        for each in parquet_records(sink, FormatContext("t", "b", Mapping(ts_col="when", size_col="bytes")))
        for outcome in each.outcomes
    ]

    assert found == [
        Write(1_795_227_247_000_000, 1_795_227_247_000_000, "PUT", "b", "kü", 7, None),
        Dropped("null in column when"),
    ]


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_parquet_with_a_text_that_is_not_utf8(kind: str) -> None:
    """It costs its own row only, whatever kind of text it is in; so does a size that is no number."""
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary())
    keys = pa.Array.from_buffers(pa.string(), 3, raw.buffers())  # as other writers do, without a look at it
    keys = keys.dictionary_encode() if kind == "dictionary" else keys.cast(kind)
    columns = {"ts_us": [1, 2, 3], "op": ["PUT"] * 3, "key": keys, "bucket": ["b"] * 3}
    by_size = {"sizes": pa.array(["1", "2", "x"]), "lists": pa.array([[1], [2], None])}
    found = {}
    for name, size in by_size.items():
        sink = BytesIO()
        pq.write_table(pa.table(columns | {"size": size}), sink)
        sink.seek(0)
        found[name] = [each.outcomes[0] for each in parquet_records(sink, FormatContext("t"))]

    bad = Dropped("malformed: column size is not a number of bytes")
    assert found["sizes"] == [Write(1, 1, "PUT", "b", "a", 1, None), Dropped(NOT_UTF8), bad]
    assert found["lists"] == [bad, Dropped(NOT_UTF8), Write(3, 3, "PUT", "b", "c", None, None)]


def test_parquet_is_read_by_row_groups(tmp_path: Path) -> None:
    """Each row group is a piece; together they give every row once, and a file that is damaged is refused by name."""
    path = tmp_path / "t.parquet"
    table = pa.table(
        {"ts_us": range(100), "op": ["PUT"] * 100, "bucket": ["b"] * 100, "key": [f"k{n}" for n in range(100)]}
    )
    pq.write_table(table, path, row_group_size=30)

    found = rows(sources.found([path]), "parquet")

    assert [row["key"] for row in found if row["kind"] == task.WRITE] == [f"k{n}" for n in range(100)]
    assert len({row["piece"] for row in found}) == 4
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ReplayRefused, match=r"t\.parquet: not a whole Parquet file"):
        sources.pieces(sources.found([path]), FORMATS["parquet"])
