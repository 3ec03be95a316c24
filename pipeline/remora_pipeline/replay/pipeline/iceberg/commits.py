"""Why every event is in the journal once: a snapshot says up to which offset of each partition it goes.

A batch's files belong to nothing until one commit of the catalog puts them into the table, and the summary of the
snapshot that it makes has the batch's number and the offsets behind its last records. A run begins where the newest
such summary ends. Killed before the commit, a batch has left files of no table, which `maintain` removes; killed
behind it, the batch has landed, whoever was told. Another process that has landed meanwhile moves the table's head:
the catalog refuses the commit, and the offsets are looked at again before the next try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles, _SnapshotProducer

from remora_pipeline.replay.errors import ReplayError, ReplayRefused

T = TypeVar("T")

_KEY = "remora.landed"
_PREFIX = "remora."
COMPACTED = "compacted-by"
"""What a snapshot says that only has the rows of the one before in other files."""

TRIES = 10
"""How often a commit is tried that the catalog refuses since another process was quicker."""


class LandedOffsets(msgspec.Struct, frozen=True):
    """What a snapshot says of what has landed: the last batch, -1 for none, the offset behind the last record of each
    partition, and the totals."""

    batch: int = -1
    ends: dict[int, int] = msgspec.field(default_factory=dict)
    events: int = 0
    bad: int = 0


def landed_in(table: Table, at: Snapshot | None = None) -> LandedOffsets:
    """What has landed in a table, or had by a snapshot. Raises ReplayRefused where its snapshots do not say."""
    said = carried(table, at).get(_KEY)
    return understood(table, said, LandedOffsets) if said else LandedOffsets()


def understood(table: Table, said: str, kind: type[T]) -> T:
    """What a snapshot says of remora's. Raises ReplayRefused where another program has changed it."""
    try:
        return msgspec.json.decode(said, type=kind)
    except (ValueError, RecursionError) as exc:
        raise ReplayRefused(
            f"{'.'.join(table.name())}: a snapshot does not say what has landed as remora does: {exc}"
        ) from exc


def carried(table: Table, at: Snapshot | None = None) -> dict[str, str]:
    """What remora said in the newest snapshot that has anything of its own, for a snapshot that changes no rows; of
    those up to `at`, where that is given.

    Raises ReplayRefused where another program has expired that.
    """
    found: dict[str, str] = {}
    for snapshot in _back_to_what_is_said(table, at):
        found = _said(snapshot)
    return found


def telling(table: Table) -> set[int]:
    """The snapshots by which a landing or an inventory goes on: the newest one, back to the one that says how far."""
    found: set[int] = set()
    with suppress(ReplayRefused):  # another program has expired some of them already
        for snapshot in _back_to_what_is_said(table, None):
            found.add(snapshot.snapshot_id)
    return found


def _said(snapshot: Snapshot) -> dict[str, str]:
    said = snapshot.summary.additional_properties if snapshot.summary else {}
    return {key: value for key, value in said.items() if key.startswith(_PREFIX)}


def _back_to_what_is_said(table: Table, at: Snapshot | None) -> Iterator[Snapshot]:
    """The snapshots from the newest one, or from `at`, back to the first that says anything of remora's."""
    snapshot = at or table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        if _said(snapshot):
            return
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
        if snapshot is None and parent is not None:
            raise ReplayRefused(
                f"{'.'.join(table.name())}: no snapshot says what has landed: another program has expired them"
            )


def append(table: Table, files: Sequence[DataFile], before: LandedOffsets, after: LandedOffsets) -> None:
    """Put a batch's files into a table, all of them once, if what has landed is still `before`.

    Raises ReplayRefused where another process has landed meanwhile.
    """
    said = {_KEY: msgspec.json.encode(after).decode()}
    commit(table, FileChange(added=files), said, lambda: landed_in(table) == before, lambda: landed_in(table) == after)


@dataclass(frozen=True)
class FileChange:
    """Files that come into a table, and files that go."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()


def commit(
    table: Table,
    change: FileChange,
    said: Mapping[str, str],
    is_as_before: Callable[[], bool],
    is_done: Callable[[], bool],
) -> None:
    """Make one snapshot of a change, which says what it is, if the table's newest snapshot is what it was made for.

    Another program's snapshot in between is no hindrance, unless it has removed the files that go. Raises ReplayRefused
    where another process of remora's was quicker; with the same change there is nothing to do.
    """
    for _ in range(TRIES):
        table.refresh()
        if is_done():  # an earlier try has come through, and its answer was lost
            return
        if not is_as_before():
            raise ReplayRefused(f"{'.'.join(table.name())}: another process lands into it or changes it")
        with suppress(CommitFailedException, CommitStateUnknownException, ValidationException):
            _commit_once(table, change, said, is_as_before)
            return
    raise ReplayError(f"{'.'.join(table.name())}: its catalog has refused a commit {TRIES} times")


def _commit_once(table: Table, change: FileChange, said: Mapping[str, str], is_as_before: Callable[[], bool]) -> None:
    with table.transaction() as transaction:
        producer: _SnapshotProducer[Any]
        if change.removed:
            producer = _GuardedOverwrite(
                operation=Operation.OVERWRITE, transaction=transaction, io=table.io, snapshot_properties=dict(said)
            )
        else:
            producer = _GuardedAppend(
                operation=Operation.APPEND, transaction=transaction, io=table.io, snapshot_properties=dict(said)
            )
        producer.is_as_before = is_as_before
        for file in change.removed:
            producer.delete_data_file(file)
        for file in change.added:
            producer.append_data_file(file)
        producer.commit()


class _Guarded:
    """Asks once more, before each try on a head that has moved, whether the table is what a change was made for.

    pyiceberg tries an append again on whatever is there by then. Its own tries are wanted: by the snapshot's id they
    find out whether a refused one has come through, before any of its files are removed.
    """

    is_as_before: Callable[[], bool]

    def _validate_concurrency(self) -> None:
        if not self.is_as_before():
            raise ValidationException("another process was quicker")
        super()._validate_concurrency()  # type: ignore[misc]  # of the class that this one stands before


class _GuardedAppend(_Guarded, _MergeAppendFiles):
    """An append."""


class _GuardedOverwrite(_Guarded, _OverwriteFiles):
    """Files in the place of others."""
