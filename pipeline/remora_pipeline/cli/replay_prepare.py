"""`remora replay prepare`: logs become events."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec

from remora.cli.options import gathered_into, json_option, length_of_time, master_option
from remora.cli.output import print_json, print_line, print_table, size
from remora.cli.steps import told
from remora.model.words import duration, several
from remora_pipeline.replay.layout import Trace, see_folder
from remora_pipeline.replay.prepare.column_map import ISO, READS, UNITS_NS, Mapping
from remora_pipeline.replay.prepare.entry import iso_us
from remora_pipeline.replay.prepare.formats import FORMATS
from remora_pipeline.replay.prepare.inspect import inspect
from remora_pipeline.replay.prepare.job import Prepared, prepare
from remora_pipeline.replay.prepare.options import EVEN, NONE, RANDOM, PrepareOptions
from remora_pipeline.replay.session import session
from remora_pipeline.replay.shape import WRITES
from remora_pipeline.replay.spark_stages import running_stage

_SHOWN_CHARS = 110
_SHOWN_FILES = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """A length of time; bare numbers are seconds."""
    if value is None:
        return None
    try:
        return _length_us(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _length_us(text: str) -> int:
    seconds = length_of_time(text)
    if not 0 < seconds < 1e11:
        raise ValueError(f"{text}: must be more than nothing")
    return max(1, round(seconds * 1_000_000))


def _until(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[int | None, int | None]:
    """A time, or a length of time after the first write: (time, length), one of them None."""
    if value is None:
        return None, None
    try:
        return None, _length_us(value)
    except ValueError:
        pass
    try:
        return iso_us(value), None
    except ValueError as exc:
        raise click.BadParameter(
            f"{value} is neither a length of time (90m) nor a time (2026-11-21T02:00:00Z)"
        ) from exc


def _one_in(_context: click.Context, _option: click.Parameter, value: str | None) -> int:
    if value is None:
        return 1
    one, _, keys = value.partition("/")
    if one != "1" or not keys.isdecimal() or not keys.isascii() or not 0 < int(keys[:10]) < 1_000_000_000:
        raise click.BadParameter(f"{value} is not like 1/10")
    return int(keys)


def _op_map(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """WORD=OPERATION,... to words and operations."""
    found: dict[str, str] = {}
    for pair in ",".join(values).split(",") if values else ():
        word, is_pair, op = pair.rpartition("=")
        if not is_pair or not word or op.upper() not in (*WRITES, *READS):
            raise click.BadParameter(f"{pair} is not WORD=OPERATION; operations are {', '.join((*WRITES, *READS))}")
        found[word] = op.upper()
    return found


def _mapping_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which column of a table means what."""
    for option in reversed(
        (
            click.option(
                "--ts-col", metavar="NAME", help="Table: the column with the time.  [default: ts_us, ts_ms ...]"
            ),
            click.option(
                "--ts-unit", type=click.Choice([*UNITS_NS, ISO]), help="Table: the unit of its numbers, or iso."
            ),
            click.option("--op-col", metavar="NAME", help="Table: the column with the operation.  [default: op]"),
            click.option(
                "--op-map",
                multiple=True,
                metavar="WORD=OP,...",
                callback=_op_map,
                help="Table: what its words for operations mean, such as 2a=PUT,28=GET.",
            ),
            click.option("--key-col", metavar="NAME", help="Table: the column with the object's key.  [default: key]"),
            click.option("--bucket-col", metavar="NAME", help="Table: the column with the bucket.  [default: bucket]"),
            click.option(
                "--size-col", metavar="NAME", help="Table: the column with the size in bytes.  [default: size]"
            ),
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class _PrepareAsked:
    """The options of `remora replay prepare`."""

    out: Path
    form: str | None
    bucket: str | None
    ts_col: str | None
    ts_unit: str | None
    op_col: str | None
    op_map: dict[str, str]
    key_col: str | None
    bucket_col: str | None
    size_col: str | None
    until: tuple[int | None, int | None]
    max_gap_us: int | None
    sample_keys: int
    clone_keys: int
    spread: str | None
    seed: int
    size_cap: int | None
    is_dry: bool
    master: str | None
    as_json: bool


@click.command("prepare")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="What is made; must not exist, or be empty.",
)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="The format.  [default: as the files begin]")
@click.option("--bucket", metavar="NAME", help="The bucket of all events, for formats that do not name it.")
@_mapping_options
@click.option(
    "--until",
    metavar="TIME",
    callback=_until,
    help="Leave out what is later: a time (2026-11-21T02:00:00Z), or how long after the first write (90m).",
)
@click.option(
    "--max-gap",
    "max_gap_us",
    metavar="DURATION",
    callback=_microseconds,
    help="Shorten times without any event to this; seconds or with a unit.",
)
@click.option("--sample-keys", metavar="1/N", callback=_one_in, help="Keep one key in N, with all of its events.")
@click.option(
    "--clone-keys",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="N times the load: every key also as `#1`, `#2` ..., at the same times.",
)
@click.option(
    "--spread",
    type=click.Choice([NONE, EVEN, RANDOM]),
    help="Where the events of a second go.  [default: even where the times are whole seconds, else none]",
)
@click.option("--seed", type=click.IntRange(0, (1 << 31) - 1), default=1, show_default=True, help="Of --spread random.")
@click.option("--size-cap", type=click.IntRange(0), metavar="BYTES", help="No object is larger.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be read, and make nothing.")
@master_option
@json_option
@gathered_into(_PrepareAsked)
def prepare_command(files: tuple[Path, ...], asked: _PrepareAsked) -> None:
    """Turn the logs FILE... into events that can be replayed, in the new folder DIR.

    Understood are AWS S3 server access logs, CloudTrail data events, radosgw's ops log and bucket logging (journal
    and standard), IBM's object-store traces, operation logs of warp and s3dlio, and any CSV with a header, or Parquet.
    Files may be compressed (gzip, zstd, bzip2); of a folder, all files are taken in order of their names. All files
    that are named must have the same format; other files of a folder are skipped and listed with the reason.

    Only what makes a notification is kept: successful writes and deletes. Every other line is counted by the reason why
    it is dropped, and the first ones are shown. The same input and options give the same events.

    \b
    Examples:
      remora replay prepare access.log.gz --out trace
      remora replay prepare logs/2026/11/ --out trace --until 2h --sample-keys 1/10
      remora replay prepare blocks.csv --out trace --ts-col when --ts-unit ns --op-col cmd \\
          --op-map 2a=PUT,28=GET --key-col lbn --bucket volume
    """
    if asked.bucket is not None and asked.bucket_col is not None:
        raise click.UsageError("--bucket and --bucket-col are both about the bucket: give one of them")
    options = PrepareOptions(
        format=asked.form,
        bucket=asked.bucket,
        mapping=Mapping(
            asked.ts_col, asked.ts_unit, asked.op_col, asked.key_col, asked.bucket_col, asked.size_col, asked.op_map
        ),
        until_us=asked.until[0],
        until_after_us=asked.until[1],
        max_gap_us=asked.max_gap_us,
        sample_keys=asked.sample_keys,
        clone_keys=asked.clone_keys,
        spread=asked.spread,
        seed=asked.seed,
        size_cap=asked.size_cap,
    )
    with told(far=running_stage) as tell:
        tell("looking at the files")
        given = inspect(files, asked.out, options)
        if asked.is_dry:
            nbytes = size(sum(each.nbytes for each in given.files))
            print_line(
                f"{given.name}: would read {several(len(given.files), 'file')}, {nbytes}, as {given.format.title}"
            )
            _print_unread({str(each.path): each.reason for each in given.unread})
            return
        see_folder(asked.out.absolute().parent)
        tell("starting Spark, then reading the logs")
        with session("replay prepare", master=asked.master) as spark:
            prepared = prepare(spark, given, asked.out, options)
    if asked.as_json:
        print_json(msgspec.to_builtins(prepared.trace))
    else:
        _print(prepared, asked.out)


def _print(prepared: Prepared, out: Path) -> None:
    trace = prepared.trace
    length_s = (trace.last_us - trace.first_us) / 1e6
    print_line(
        f"{out}: {several(trace.events, 'event')} of {several(trace.keys, 'key')} in "
        f"{several(trace.buckets, 'bucket')} ({prepared.title})"
    )
    print_line(f"{_time(trace.first_us)} to {_time(trace.last_us)}, {duration(length_s)}")
    operations = ", ".join(f"{count:,} {op}" for op, count in sorted(trace.operations.items(), key=lambda o: -o[1]))
    unknown = f"; the size of {prepared.without_size:,} is not known" if prepared.without_size else ""
    print_line(f"{operations}; {size(trace.bytes)}{unknown}")
    print_line(f"times within a second: {_spread(trace)}")
    _print_dropped(prepared)
    _print_unread(trace.unread)
    _print_rates(trace, length_s)


def _time(us: int) -> str:
    return (_EPOCH + timedelta(microseconds=us)).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _spread(trace: Trace) -> str:
    match trace.options["spread"]:
        case "none":
            return "as they are (--spread none)"
        case "even":
            return "spread evenly (--spread even)"
        case _:
            return f"drawn (--spread random --seed {trace.options['seed']})"


def _print_dropped(prepared: Prepared) -> None:
    dropped = prepared.trace.dropped
    if not dropped:
        print_line()
        print_line("Nothing was dropped.")
        return
    print_line()
    print_line(f"Dropped {sum(dropped.values()):,}:")
    for reason, count in sorted(dropped.items(), key=lambda each: (-each[1], each[0])):
        print_line(f"  {count:,} {reason}")
        for example in prepared.examples.get(reason, ()):
            text = example.text if len(example.text) <= _SHOWN_CHARS else example.text[: _SHOWN_CHARS - 3] + "..."
            print_line(f"      {example.where}  {text}".rstrip())


def _print_unread(unread: dict[str, str]) -> None:
    if not unread:
        return
    print_line()
    print_line(f"Not read, or not to the end, {len(unread):,} of the files:")
    for path, reason in islice(unread.items(), _SHOWN_FILES):
        print_line(f"  {path}  {reason}")
    if len(unread) > _SHOWN_FILES:
        print_line(f"  and {len(unread) - _SHOWN_FILES:,} more, which are in trace.json")


def _print_rates(trace: Trace, length_s: float) -> None:
    print_line()
    print_line(f"At speed 1 a server must take {_mean(trace, length_s)}, {trace.peak_per_s:,} in the busiest second.")
    print_line("A key's events go one after the other, so the hottest key bounds the speed:")
    print_table(
        ("  EVENTS", "IN A SECOND", "ANSWER WITHIN", "BUCKET", "KEY"),
        [
            (
                f"  {hot.events}",
                hot.peak_per_s,
                f"{_digits(1000 / hot.peak_per_s)}ms",
                hot.bucket,
                hot.key if len(hot.key) <= _SHOWN_CHARS else f"{hot.key[: _SHOWN_CHARS - 3]}...",
            )
            for hot in trace.hottest
        ],
    )


def _mean(trace: Trace, length_s: float) -> str:
    if length_s == 0:
        return "everything at once"
    if trace.events >= length_s:
        return f"{trace.events / length_s:,.0f} events/s in the mean"
    return f"an event every {duration(length_s / trace.events)} in the mean"


def _digits(value: float) -> str:
    """Two that say something."""
    return f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}"
