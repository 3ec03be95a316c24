"""Prepare a trace: read, drop, shape, order, number, write. Everything is done beside `out`, which appears whole."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import HotKey, PreparedDirectory, Trace, write
from remora_pipeline.replay.paths import location, pattern
from remora_pipeline.replay.prepare import frames, task
from remora_pipeline.replay.prepare.entry import MALFORMED
from remora_pipeline.replay.prepare.formats import Format
from remora_pipeline.replay.prepare.inspect import Input, Unread
from remora_pipeline.replay.prepare.options import EVEN, NONE, RANDOM, PrepareOptions
from remora_pipeline.replay.prepare.sources import FilePiece, bare, sha256, shown
from remora_pipeline.replay.shape import WRITES

FILE_EVENTS = 500_000
LOT_BYTES = 32 << 20
"""Small files are read several by one task."""

HOTTEST = 10
LEFT_OUT = "in a file that was left out"
_MOST_REASONS = 200


@dataclass(frozen=True, slots=True)
class DroppedLine:
    """A dropped line; `where` is file and line."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was made, for people: the Trace, the first lines of each reason to drop some, writes of unknown size."""

    trace: Trace
    title: str
    examples: dict[str, tuple[DroppedLine, ...]]
    without_size: int


@dataclass(frozen=True, slots=True)
class _Read:
    """What came of reading: all rows, the beginning and length of it, and what was dropped already."""

    rows: DataFrame
    writes: int
    first_us: int
    is_whole_seconds: bool
    dropped: dict[str, int]
    examples: dict[str, tuple[DroppedLine, ...]]
    unread: dict[str, str]


def prepare(spark: SparkSession, given: Input, out: Path, options: PrepareOptions) -> Prepared:
    """Make `out` from the files; raises ReplayRefused, and leaves it as it was, if that cannot be."""
    name, form, files = given.name, given.format, given.files
    with _beside(out) as work:
        read = _read(spark, work, given, options)
        spread = options.spread or (EVEN if read.is_whole_seconds else NONE)
        marked = _marked(spark, work, read, form, options, spread)
        left_out = {row["reason"]: row["count"] for row in _left_out(marked).collect()} if marked is not None else {}
        lines = frames.writes(read.rows) if marked is None else marked
        count = (read.writes - sum(left_out.values())) * options.clone_keys
        if count <= 0:
            raise ReplayRefused(f"{name}: no write is left{_why(left_out)}")
        ordered, before = _ordered(spark, work, lines, count, options)
        prepared = PreparedDirectory(work / "prepared")
        _write_events(spark, ordered, before, options, prepared)
        events = spark.read.parquet(pattern(prepared.events))
        totals = _only(frames.totals(events).collect())
        trace = Trace(
            name=name,
            sha256=sha256(files),
            sources=tuple(shown(file.path) for file in files),
            format=form.name,
            options=options.told(spread),
            events=totals["events"],
            keys=totals["keys"],
            buckets=totals["buckets"],
            first_us=totals["first_us"],
            last_us=totals["last_us"],
            bytes=totals["bytes"],
            operations={op: totals[op] for op in WRITES if totals[op]},
            dropped=read.dropped | left_out,
            peak_per_s=_only(frames.peak(events).collect())["peak_per_s"],
            hottest=tuple(
                HotKey(row["bucket"], row["key"], row["events"], row["peak_per_s"])
                for row in frames.hottest(events, HOTTEST).collect()
            ),
            unread=read.unread,
        )
        write(prepared.trace, trace)
        try:  # `out` may be an empty folder; whatever else has come meanwhile stays
            prepared.path.replace(out)
        except OSError as exc:
            raise ReplayRefused(f"{out}: {exc.strerror}") from exc
    return Prepared(trace, form.title, read.examples, totals["without_size"])


# ------------------------------------------------------------------------------------------------ reading


def _read(spark: SparkSession, work: Path, given: Input, options: PrepareOptions) -> _Read:
    cut = given.pieces
    lots = _lots(cut)
    pieces = spark.createDataFrame(
        [
            (piece.index, bytearray(piece.path), piece.compression, piece.start, piece.end, lot)
            for piece, lot in zip(cut, lots, strict=True)
        ],
        task.PIECES,
    )
    read = task.reader(given.format.name, options.bucket, options.mapping)
    lotted = pieces.repartitionById(max(lots, default=0) + 1, "lot")
    rows = _kept(spark, lotted.mapInArrow(read, task.READ), work / "read")
    summary = frames.summary(rows, task.EXAMPLES, _MOST_REASONS).collect()
    is_cut = any(row["kind"] == task.REFUSED for row in summary)
    unread = {shown(each.path): each.reason for each in given.unread} | (_cut_short(rows, given) if is_cut else {})
    counts, examples = _dropped(rows, [row for row in summary if row["kind"] == task.DROPPED], cut)
    writes = next((row for row in summary if row["kind"] == task.WRITE), None)
    if any(reason.startswith(MALFORMED) for reason in counts):
        unread |= _other_files(rows, given, writes["count"] if writes else 0, counts, examples)
    _count_left_out(given.unread, counts, examples)
    if writes is None:
        raise ReplayRefused(f"{given.name}: there is no write in it{_why(counts)}")
    return _Read(rows, writes["count"], writes["first_us"], writes["is_whole_seconds"], counts, examples, unread)


def _cut_short(rows: DataFrame, given: Input) -> dict[str, str]:
    """The files that were not read to their end, and why. Raises ReplayRefused for one that was named itself."""
    named = {file.path for file in given.files if not file.is_of_folder}
    found: dict[str, str] = {}
    for row in frames.refused(rows).orderBy("piece").collect():
        path = _path(given.pieces[row["piece"]])
        if path in named:
            raise ReplayRefused(row["reason"])
        found.setdefault(shown(path), bare(row["reason"], path))
    return found


def _path(piece: FilePiece) -> Path:
    return Path(os.fsdecode(piece.path))


def _other_files(
    rows: DataFrame, given: Input, writes: int, counts: dict[str, int], examples: dict[str, tuple[DroppedLine, ...]]
) -> dict[str, str]:
    """The files of folders that are mostly not of the format: what is of it in them counts all the same.

    Raises ReplayRefused where no other file is left, or where most of what was named is of another format.
    """
    wrong: dict[Path, int] = {}
    lines: dict[Path, int] = {}
    for row in frames.malformed(rows).collect():
        path = _path(given.pieces[row["piece"]])
        wrong[path] = wrong.get(path, 0) + row["wrong"]
        lines[path] = lines.get(path, 0) + row["count"]
    other = {path for path in wrong if wrong[path] * 2 > lines[path]}
    of_folders = {file.path for file in given.files if file.is_of_folder}
    if not other & of_folders or other >= {_path(piece) for piece in given.pieces}:
        _refuse_malformed(writes, counts, examples)
    return {
        shown(path): f"mostly another format: {wrong[path]:,} of {lines[path]:,} lines are malformed"
        for path in sorted(other & of_folders)
    }


def _count_left_out(
    unread: Sequence[Unread], counts: dict[str, int], examples: dict[str, tuple[DroppedLine, ...]]
) -> None:
    """Account for the lines of files that were left out."""
    if any(each.lines for each in unread):
        counts[LEFT_OUT] = sum(each.lines for each in unread)
        examples[LEFT_OUT] = tuple(
            DroppedLine(shown(each.path), each.reason) for each in unread[: task.EXAMPLES] if each.lines
        )


def _lots(cut: Sequence[FilePiece]) -> list[int]:
    """Which task reads a piece: consecutive ones together up to LOT_BYTES."""
    lots, lot, filled = [], 0, 0
    for piece in cut:
        nbytes = piece.end - piece.start if piece.end is not None else _path(piece).stat().st_size
        if filled and filled + nbytes > LOT_BYTES:
            lot, filled = lot + 1, 0
        lots.append(lot)
        filled += nbytes
    return lots


def _refuse_malformed(writes: int, counts: dict[str, int], examples: dict[str, tuple[DroppedLine, ...]]) -> None:
    """A file that is mostly not of its format is another file."""
    wrong = {reason: count for reason, count in counts.items() if reason.startswith(MALFORMED)}
    if sum(wrong.values()) * 2 > writes + sum(counts.values()):
        worst = max(wrong, key=lambda reason: wrong[reason])
        where = examples[worst][0].where if examples.get(worst) else "the input"
        raise ReplayRefused(f"{where}: {worst.removeprefix(MALFORMED)}, as in most lines")


def _why(counts: dict[str, int]) -> str:
    told = "; ".join(f"{count} x {reason}" for reason, count in sorted(counts.items(), key=lambda each: -each[1])[:5])
    return f" ({told})" if told else ""


def _dropped(
    rows: DataFrame, told: Sequence[Row], cut: Sequence[FilePiece]
) -> tuple[dict[str, int], dict[str, tuple[DroppedLine, ...]]]:
    """How many lines were dropped for each reason, and the first of them."""
    counts: dict[str, int] = {row["reason"]: row["count"] for row in told}
    if len(told) >= _MOST_REASONS - 1:
        rest = _only(frames.dropped_lines(rows).collect())["count"] - sum(counts.values())
        counts[task.OTHER_REASONS] = counts.get(task.OTHER_REASONS, 0) + rest
    before = _lines_before(rows, cut)
    paths = {piece.index: shown(piece.path) for piece in cut}
    examples = {
        row["reason"]: tuple(
            DroppedLine(f"{paths[each['piece']]}:{before.get(each['piece'], 0) + each['line']}", each["text"])
            for each in row["first"]
        )
        for row in told
    }
    return counts, examples


def _lines_before(rows: DataFrame, cut: Sequence[FilePiece]) -> dict[int, int]:
    """For pieces from the middle of a file the lines before them; as many numbers as there are pieces."""
    if not any(piece.start for piece in cut):
        return {}
    lines = {row["piece"]: row["count"] for row in frames.lines(rows).collect()}
    before: dict[int, int] = {}
    so_far = 0
    for piece in cut:
        before[piece.index] = so_far = so_far if piece.start else 0
        so_far += lines.get(piece.index, 0)
    return before


# ------------------------------------------------------------------------------------------------ shaping


def _marked(
    spark: SparkSession, work: Path, read: _Read, form: Format, options: PrepareOptions, spread: str
) -> DataFrame | None:
    """All writes, with the reason why one is left out, on their new times; None when that changes nothing."""
    lines = untouched = frames.writes(read.rows)
    if form.has_requests:
        lines = frames.mark_repeated(lines)
    until_us = options.until_us
    if options.until_after_us is not None:
        until_us = read.first_us + options.until_after_us
    if until_us is not None:
        lines = frames.mark_later(lines, until_us)
    if spread == EVEN:
        lines = frames.spread_evenly(lines)
    elif spread == RANDOM:
        lines = frames.spread_randomly(lines, options.seed)
    if options.sample_keys > 1:
        lines = frames.mark_unsampled(lines, options.sample_keys)
    return None if lines is untouched else _kept(spark, lines, work / "marked")


def _left_out(marked: DataFrame) -> DataFrame:
    reasons = marked.where(F.col("reason").isNotNull()).groupBy("reason").agg(F.count(F.lit(1)).alias("count"))
    return reasons.orderBy("reason").select("reason", "count")


def _ordered(
    spark: SparkSession, work: Path, lines: DataFrame, count: int, options: PrepareOptions
) -> tuple[DataFrame, list[Row]]:
    """The `count` events in their order, file by file, and for each file its name, events and times."""
    partitions = max(int(spark.conf.get("spark.sql.shuffle.partitions", "1") or 1), math.ceil(count / FILE_EVENTS))
    shaped = frames.shaped(lines, options.clone_keys, options.size_cap)
    ordered = _kept(spark, frames.in_order(shaped, partitions), work / "ordered")
    files = ordered.groupBy(F.col("_metadata.file_name").alias("file")).agg(
        F.count(F.lit(1)).alias("events"), F.max("ts_us").alias("last_us")
    )
    return ordered, files.orderBy("file").collect()


def _write_events(
    spark: SparkSession, ordered: DataFrame, files: Sequence[Row], options: PrepareOptions, prepared: PreparedDirectory
) -> None:
    count, last_us = 0, None
    before: list[tuple[str, int, int | None]] = []
    for file in files:
        before.append((file["file"], count, last_us))
        count, last_us = count + file["events"], file["last_us"]
    table = spark.createDataFrame(before, "file string, events_before long, last_us_before long")
    numbered = frames.numbered(ordered, table)
    if options.max_gap_us is not None:
        numbered = _without_gaps(spark, numbered, options.max_gap_us)
    events = frames.events(numbered, FILE_EVENTS, math.ceil(count / FILE_EVENTS))
    events.write.parquet(location(prepared.events))


def _without_gaps(spark: SparkSession, numbered: DataFrame, most_us: int) -> DataFrame:
    cut = frames.gaps(numbered, most_us)
    in_file = {row["file"]: row["cut_us"] for row in cut.groupBy("file").agg(F.max("cut_us").alias("cut_us")).collect()}
    before, so_far = [], 0
    for file in sorted(in_file):
        before.append((file, so_far))
        so_far += in_file[file]
    return frames.without_gaps(cut, spark.createDataFrame(before, "file string, cut_before_us long"))


# ------------------------------------------------------------------------------------------------ output


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder for everything that is not finished, on the same file system as `out`; it is removed."""
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{out.name[:100]}.", dir=out.absolute().parent))
    except OSError as exc:
        raise ReplayRefused(f"{out}: {exc.strerror}") from exc
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _kept(spark: SparkSession, rows: DataFrame, path: Path) -> DataFrame:
    """The same rows, from files: what was computed is not computed again by each that reads it."""
    rows.write.parquet(location(path))
    return spark.read.schema(rows.schema).parquet(pattern(path))


def _only(rows: Sequence[Row]) -> Row:
    (row,) = rows
    return row
