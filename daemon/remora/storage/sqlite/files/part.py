"""What the parts of the store share: its files, and who holds a lock."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from remora.model.errors import StoreError
from remora.model.shard import LockHolder, LockToken, Shard
from remora.model.topic import own_topic_name
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.tables.clock import boot_id, now_ns


class SqlitePart:
    """The base of the store's parts, which share its files."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def _file(self, shard: Shard) -> File:
        return self._files.file_of(own_topic_name(shard.queue))

    async def _in_each_file(
        self,
        tokens: Sequence[LockToken],
        act: Callable[[File, Sequence[LockToken]], Awaitable[dict[LockToken, StoreError]]],
    ) -> Sequence[StoreError | None]:
        """What became of each hold, where those of a file are done together and `act` names the lost ones."""
        by_file: defaultdict[File, list[LockToken]] = defaultdict(list)
        for token in tokens:
            by_file[self._file(token.shard)].append(token)
        lost: dict[LockToken, StoreError] = {}

        async def one(file: File, of_file: Sequence[LockToken]) -> None:
            try:
                lost.update(await act(file, of_file))
            except StoreError as exc:
                lost.update(dict.fromkeys(of_file, exc))

        await asyncio.gather(*(one(file, of_file) for file, of_file in by_file.items()))
        return [lost.get(token) for token in tokens]


class LockColumns(NamedTuple):
    """The columns of a lock that say who has it, as `holder_of` takes them."""

    entity: str
    cookie: str
    boot: str
    until_ns: int


def holder_of(files: Files, entity: str, cookie: str, boot: str, until_ns: int) -> LockHolder:
    """Who has a lock by its row, with nothing left of a lease that does not count any more."""
    left_s = max(0.0, (until_ns - now_ns()) / 1e9) if boot == boot_id() else 0.0
    if left_s and files.owner.is_dead(entity):
        left_s = 0.0
    return LockHolder(entity, cookie, left_s)
