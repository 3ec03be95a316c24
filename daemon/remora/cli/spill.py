"""`remora spill`: entries that were moved beside their queues, since they could not be delivered."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import IO

import click
import msgspec

from remora import app
from remora.cli.groups import CommandGroup
from remora.cli.options import config_option, daemon_option, json_option
from remora.cli.output import ask, print_json, print_line, print_table, run_async, size
from remora.cli.rows import look_at, origin_option
from remora.cli.trace import myself, trace
from remora.cli.which import find_queue
from remora.config import Settings
from remora.engine.claims import drop_spilled
from remora.model.position import Position
from remora.model.shard import Origin, Shard, ShardStats
from remora.model.spill import SpilledRun
from remora.model.words import duration, several
from remora.ports.store import ShardStore

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@click.group(cls=CommandGroup)
def spill() -> None:
    """Show and give up spilled entries: those that were moved beside their queues on RADOS, to be delivered later.

    They are delivered before what their queue holds, by every daemon, also where `spill.enabled` is false.

    \b
    Start with:
      remora spill list
    """


@spill.command("list")
@daemon_option
@json_option
def list_command(settings: Settings, as_json: bool) -> None:
    """List the queues that have spilled entries. Takes no lock.

    \b
    Example:
      remora spill list --json | jq -r '.[] | [.queue, .spilled_entries] | @tsv'
    """

    async def look() -> list[ShardStats]:
        async with app.store_of(settings) as store:
            found = await look_at(store, await store.catalog.shards())
            return [found[each] for each in sorted(found) if found[each].spilled_entries]

    stats = run_async(look())
    if as_json:
        print_json([_as_json(each) for each in stats])
        return
    print_table(
        ("QUEUE", "MADE BY", "SPILLED", "BYTES", "OLDEST"),
        [
            (
                each.shard.queue,
                each.shard.origin,
                each.spilled_entries,
                size(each.spilled_bytes),
                duration(each.oldest_age_s),
            )
            for each in stats
        ],
        "no entry is spilled",
    )


@spill.command("show")
@click.argument("queue")
@origin_option
@daemon_option
@json_option
def show_command(settings: Settings, queue: str, origin: Origin | None, as_json: bool) -> None:
    """Show the runs of QUEUE: pieces of its ring in the order in which they are delivered. Takes no lock.

    \b
    Example:
      remora spill show orders
    """

    async def look() -> Sequence[SpilledRun]:
        async with app.store_of(settings) as store:
            return await store.spill.runs(await find_queue(store, queue, origin))

    runs = run_async(look())
    if as_json:
        print_json([msgspec.to_builtins(_RunRow.of(each)) for each in runs])
        return
    print_table(
        ("FROM", "UP TO", "ENTRIES", "BYTES", "STORED", "OBJECT"),
        [(str(r.first), str(r.end), r.entries, size(r.nbytes), size(r.stored_bytes), r.name) for r in runs],
        f"no entry of {queue} is spilled",
    )


class _RunRow(msgspec.Struct):
    """A run with the names that `remora spill show --json` promises."""

    first: str
    end: str
    entries: int
    bytes: int
    stored_bytes: int
    object: str
    pool: str

    @classmethod
    def of(cls, run: SpilledRun) -> _RunRow:
        return cls(str(run.first), str(run.end), run.entries, run.nbytes, run.stored_bytes, run.name, run.pool)


@spill.command("export")
@click.argument("queue")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@origin_option
@config_option
def export_command(settings: Settings, queue: str, file: Path, origin: Origin | None) -> None:
    """Write the spilled entries of QUEUE to a new FILE, an entry a line as JSON; they stay spilled.

    A name that ends with .gz or .zst has it compressed. `remora spill drop` gives up what was exported last.

    \b
    Example:
      remora spill export orders /var/backups/orders.ndjson.zst
    """

    async def work() -> int:
        async with app.store_of(settings) as store:
            found = await find_queue(store, queue, origin)
            runs = await store.spill.runs(found)
            if not runs:
                return 0
            count = await _write(file, found, _before(store, found, runs[-1].end))
            await store.spill.exported(found, str(runs[-1].end))
            return count

    count = run_async(work())
    written = several(count, f"spilled entry of {queue} is", f"spilled entries of {queue} are")
    print_line(f"{written} in {file}" if count else f"no entry of {queue} is spilled")


async def _before(store: ShardStore, shard: Shard, end: Position) -> AsyncIterator[tuple[str, bytes]]:
    async for position, raw in store.spill.entries(shard):
        if Position.parse(position) >= end:
            return
        yield position, raw


async def _write(file: Path, shard: Shard, entries: AsyncIterator[tuple[str, bytes]]) -> int:
    """Write entries to a file that does not exist; returns how many."""
    count = 0
    with _new_file(file) as out:
        async for position, raw in entries:
            row = {"queue": shard.queue, "position": position, "raw": base64.b64encode(raw).decode()}
            out.write(msgspec.json.encode(row) + b"\n")
            count += 1
    return count


@contextlib.contextmanager
def _new_file(file: Path) -> Iterator[IO[bytes]]:
    """A file that did not exist, and is on the disk with its name in the end, since it may be all that is left.

    Where that fails there is no file: one with a part of the entries looks as if it had them all.
    """
    raw_file = file.open("xb")
    try:
        with raw_file:
            with _packed(file, raw_file) as out:
                yield out
            raw_file.flush()
            os.fsync(raw_file.fileno())
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as exc:
        file.unlink()
        raise OSError(exc.errno, exc.strerror, str(file)) from exc
    except BaseException:
        file.unlink()
        raise


def _packed(file: Path, raw_file: IO[bytes]) -> IO[bytes]:
    match file.suffix:
        case ".gz":
            return gzip.GzipFile(fileobj=raw_file, mode="wb")  # type: ignore[return-value]  # it writes bytes
        case ".zst":
            return zstd.ZstdFile(raw_file, mode="wb")  # type: ignore[return-value]  # it writes bytes
        case _:
            return os.fdopen(os.dup(raw_file.fileno()), "wb")


@spill.command("drop")
@click.argument("queue")
@click.option("--yes", is_flag=True, help="Do not ask.")
@origin_option
@config_option
def drop_command(settings: Settings, queue: str, yes: bool, origin: Origin | None) -> None:
    """Give up the spilled entries of QUEUE that were exported: the file is all that is left of them.

    The queue's owner loses its lock for a moment. What was spilled since the export stays. The ledger counts the
    entries as exported; no dead letters are stored.

    \b
    Example:
      remora spill export orders orders.ndjson.gz && remora spill drop orders --yes
    """

    async def work() -> int:
        async with app.store_of(settings) as store:
            found = await find_queue(store, queue, origin)
            by = myself(settings)
            count = await drop_spilled(store, found, by)
            trace("spill_drop", "spilled entries were given up", queue=queue, entries=count, **by.known)
            return count

    if not yes:
        ask(f"Give up the exported entries of {queue} for good?")
    count = run_async(work())
    given_up = several(count, f"exported entry of {queue} was", f"exported entries of {queue} were")
    print_line(f"{given_up} given up" if count else f"nothing of {queue} was exported")


def _as_json(stats: ShardStats) -> dict[str, object]:
    """A queue's figures with the names that `remora spill list --json` promises."""
    return {
        "queue": stats.shard.queue,
        "origin": str(stats.shard.origin),
        "spilled_entries": stats.spilled_entries,
        "spilled_bytes": stats.spilled_bytes,
        "entries": stats.entries,
        "oldest_age_seconds": stats.oldest_age_s,
    }
