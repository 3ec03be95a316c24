"""The job of `remora pipeline maintain`: small files put together, old snapshots expired, files of no table removed.

Each step is a commit, or the removal of a file that nothing names, and what is done stays done: killed, it goes on
where it was when it is run again. It needs no Spark, and runs beside a landing: whoever commits first wins, and what
was overtaken is left for the next run.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain

from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress, existing, told_as
from remora_pipeline.replay.pipeline.iceberg.commits import COMPACTED, TRIES, FileChange, carried, commit, telling
from remora_pipeline.replay.pipeline.iceberg.locations import data_files
from remora_pipeline.replay.pipeline.iceberg.tables import ASIDE, EVENTS, INVENTORY

_FOLDERS = ("data", "metadata")
"""Where a table has its files."""

_ORDER = ("topic", "partition", "offset", "record")
"""Rows of files that are put together keep Kafka's order where they have one."""

_MOST_ROWS = 3_000_000
"""Rows of files that are put together: all of them are in memory, at some 500 bytes each, and twice while they are
sorted."""


@dataclass(frozen=True)
class UpkeepPlan:
    """How much is done. `target_bytes` is how large files shall be, `most` how many files one run puts together, and
    how many it removes; snapshots older than `keep_s` go, and files of no table that are older than `orphans_s`."""

    lake: LakeAddress
    target_bytes: int = 128 << 20
    most: int = 10_000
    keep_s: float = 7 * 86400
    orphans_s: float = 3 * 86400


@dataclass(frozen=True)
class Upkeep:
    """What was done to a table. `is_overtaken` where another process committed first, and some is left."""

    table: str
    compacted: int
    files: int
    expired: int
    removed: int
    is_overtaken: bool = False


def maintain(plan: UpkeepPlan, tell: Callable[[str], None] = lambda _: None) -> list[Upkeep]:
    """Maintain the tables that there are. Raises ReplayRefused where there are none."""
    catalog = plan.lake.connected(makes=False)
    tables = [(name, table) for name in (EVENTS, ASIDE, INVENTORY) if (table := existing(catalog, plan.lake, name))]
    if not tables:
        raise ReplayRefused(f"{plan.lake.named(EVENTS)}: there is none; `remora pipeline land` makes it")
    with told_as(plan.lake.uri):
        return [_maintained(plan, catalog, name, table, tell) for name, table in tables]


def _maintained(plan: UpkeepPlan, catalog: Catalog, name: str, table: Table, tell: Callable[[str], None]) -> Upkeep:
    whose = plan.lake.named(name)
    tell(f"{whose}: compacting")
    compacted, made, is_overtaken = compact(table, plan.target_bytes, plan.most)
    tell(f"{whose}: expiring snapshots")
    expired = expire(table, plan.keep_s)
    tell(f"{whose}: looking for files of no table")
    removed = remove_orphans(catalog.load_table(whose), plan.orphans_s, plan.most)
    return Upkeep(whose, compacted, made, expired, removed, is_overtaken)


# ------------------------------------------------------------------------------------------------ small files


def groups(files: Sequence[DataFile], target_bytes: int, most: int) -> list[list[DataFile]]:
    """Small files of one partition each that are worth being put together, up to the target's size; `most` in all."""
    by_partition: dict[tuple[int, str], list[DataFile]] = defaultdict(list)
    for file in sorted(files, key=lambda each: each.file_path):
        if file.file_size_in_bytes < target_bytes // 2:
            by_partition[file.spec_id, repr(file.partition)].append(file)
    found, left = [], most
    for small in by_partition.values():
        for group in _filled(small, target_bytes):
            if 1 < len(group) <= left:
                found.append(group)
                left -= len(group)
    return found


def _filled(files: Sequence[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    nbytes = rows = 0
    for file in files:
        nbytes, rows = nbytes + file.file_size_in_bytes, rows + file.record_count
        if group and (nbytes > target_bytes or rows > _MOST_ROWS):
            yield group
            group, nbytes, rows = [], file.file_size_in_bytes, file.record_count
        group.append(file)
    if group:
        yield group


def compact(table: Table, target_bytes: int, most: int) -> tuple[int, int, bool]:
    """Put small files together, a commit for each group; how many there were, what they became, and whether another
    process committed first.

    Where another program has removed rows by files of deletes, the files of these rows stay as they are: files that are
    put together would have the rows again.
    """
    before = after = 0
    whole = [task.file for task in table.scan().plan_files() if not task.delete_files]
    for group in groups(whole, target_bytes, most):
        try:
            after += _put_together(table, group)
        except ReplayError:
            return before, after, True
        before += len(group)
    return before, after, False


def _put_together(table: Table, group: Sequence[DataFile]) -> int:
    """Commit files in the place of a group; how many. Raises ReplayError where another process committed first.

    What remora has said stays said: a landing goes on by the newest snapshot.
    """
    said = carried(table)
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = scan.to_table([FileScanTask(file) for file in group])
    order = [(name, "ascending") for name in _ORDER if name in rows.schema.names]
    new = list(data_files(table.metadata, rows.sort_by(order), table.io, is_together=True))
    telling = {**said, COMPACTED: "remora"}
    commit(table, FileChange(new, group), telling, lambda: carried(table) == said, lambda: False)
    return len(new)


# ---------------------------------------------------------------------------------- snapshots and files of no table


def expire(table: Table, keep_s: float) -> int:
    """Expire snapshots that are older, but for the newest one, those that bear a name, and those by which a landing or
    an inventory goes on where another program has written since; how many.

    Raises ReplayError where other processes always commit first.
    """
    oldest_ms = (datetime.now(UTC) - timedelta(seconds=keep_s)).timestamp() * 1000
    for _ in range(TRIES):
        table.refresh()
        kept = telling(table) | {each.snapshot_id for each in table.metadata.refs.values()}
        old = [each.snapshot_id for each in table.metadata.snapshots if each.timestamp_ms < oldest_ms]
        if not (going := [each for each in old if each not in kept]):
            return 0
        with suppress(CommitFailedException):
            table.maintenance.expire_snapshots().by_ids(going).commit()
            return len(going)
    raise ReplayError(f"{'.'.join(table.name())}: its catalog has refused a commit {TRIES} times")


def remove_orphans(table: Table, age_s: float, most: int) -> int:
    """Remove files of the table's folders that no snapshot of it names and that are older, `most` of them; how many.

    Those that are younger may belong to a batch that is on its way. What lies beside its folders may be another table,
    where a catalog puts a namespace below a table of the same name.
    """
    assert isinstance(table.io, PyArrowFileIO), "tables are read and written by pyarrow"
    scheme, netloc, root = PyArrowFileIO.parse_location(table.location(), table.io.properties)
    store = table.io.fs_by_scheme(scheme, netloc)
    known, oldest_ns, removed = _named(table), time.time_ns() - int(age_s * 1e9), 0
    folders = [FileSelector(f"{root}/{name}", recursive=True, allow_not_found=True) for name in _FOLDERS]
    for each in chain.from_iterable(map(store.get_file_info, folders)):
        if removed >= most:
            break
        if each.type == FileType.File and each.path not in known and each.mtime_ns < oldest_ns:
            store.delete_file(each.path)
            removed += 1
    return removed


def _named(table: Table) -> set[str]:
    """The paths of all files that the table's metadata names, as its store has them."""
    metadata = table.metadata
    found = {table.metadata_location, *(each.metadata_file for each in metadata.metadata_log)}
    found |= {each.statistics_path for each in (*metadata.statistics, *metadata.partition_statistics)}
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in found:
                continue
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return {PyArrowFileIO.parse_location(each, table.io.properties)[2] for each in found}
