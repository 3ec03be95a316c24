"""The objects of spilled entries, and the list of all of them, from which those that no queue names are swept; and what
is spilled of a queue, looked at without its lock while its owner moves and removes entries.

Object `remora.runs` in remora's namespace has one omap key for each run: whose it is. The key is written before the
run's object and deleted after it, so that no run is ever without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from remora.codec.queue_ops import HEAD_SIZE, decode_head
from remora.codec.queue_state import spill_in
from remora.codec.spill import (
    RUN_KEY,
    RunOwner,
    decode_owner,
    decode_page,
    decode_run,
    digest_of,
    encode_owner,
    encode_page,
)
from remora.model.errors import CodecError, StoreDamaged, StoreError, StoreUnavailable
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import LockToken, Shard
from remora.model.spill import SpilledRun, SpillUsage
from remora.policy.ingest.reservations import Sightings
from remora.ports.credit import StoreTraffic
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import INCARNATION, RadosPart, all_values, decoded
from remora.storage.rados.cluster.placement import Locator
from remora.storage.rados.cluster.refusals import FULL, OWN, QUEUE, MismatchError, MissingError, Refusals
from remora.storage.rados.cluster.state import SPILL, STATE, StoredState, stored_state

_log = logging.getLogger(__name__)

RUNS = "remora.runs"

_PAGE = 1024
"""So many keys an OSD gives at most in one answer, also where more are asked for."""

_LOOKS = 20
_AT_ONCE = 32
_FULL_FRACTION = 0.85
_CACHED = 8
_NAMELESS_S = 3600.0
"""A run that no queue has named for this long is of a move or a removal that was cut short, or of a deleted queue."""

_WRITTEN: Refusals = MappingProxyType({**OWN, **FULL})


class Runs(RadosPart):
    """Writes, reads and deletes runs. `pool` is where new ones go; empty for the pool of the queues."""

    def __init__(self, connection: ClusterConnection, pool: str = "") -> None:
        super().__init__(connection)
        self._pool = pool
        self._cached: dict[str, Page] = {}
        self._nameless: Sightings[str] = Sightings()
        self._unread: set[str] = set()

    async def write(self, token: LockToken, run: SpilledRun, data: bytes) -> None:
        """Name a run of this queue, and store it. Raises StoreFull where the pool takes no more."""
        await self._on_list(
            WriteOp()
            .create(exclusive=False)
            .set_omap({run.name: encode_owner(token, run, str(self._locator(token.shard)))})
        )
        operation = WriteOp().create(exclusive=True).write_full(data)
        what = f"storing spilled entries of {token.shard}"
        await self._connection.run(operation, run.name, what, _WRITTEN, self._place(run.pool))

    async def packed(self, page: Page) -> bytes:
        """The bytes of a run, packed beside the loop: that takes as long as many pages of other queues."""
        return await asyncio.to_thread(encode_page, page)

    def new_name(self) -> tuple[str, str]:
        """The name of a new run, and its pool."""
        return f"{RUN_KEY}{secrets.token_hex(8)}", self._pool

    async def read(self, run: SpilledRun) -> Page:
        """The entries of a run; the last few that were read are kept. Raises StoreDamaged."""
        if (known := self._cached.get(run.name)) is not None:
            return known
        what = f"reading {run.name}"
        operation = ReadOp().assert_exists()
        content = operation.read(0, run.stored_bytes + 1)
        try:
            await self._connection.run(operation, run.name, what, locator=self._place(run.pool))
            page = await asyncio.to_thread(decode_page, content.data, run)
        except MissingError as exc:
            raise StoreDamaged(f"the {run.entries} spilled entries from {run.first} on are gone: {exc}") from exc
        except CodecError as exc:
            raise StoreDamaged(f"the {run.entries} spilled entries from {run.first} on are damaged: {exc}") from exc
        self._cached[run.name] = page
        while len(self._cached) > _CACHED:
            del self._cached[next(iter(self._cached))]
        return page

    async def discard(self, runs: Sequence[SpilledRun]) -> None:
        """Delete runs that their queue names no longer; what fails is left to the sweep."""
        for run in runs:
            self._cached.pop(run.name, None)
        for first in range(0, len(runs), _AT_ONCE):
            with contextlib.suppress(StoreError):
                await self._delete({run.name: run.pool for run in runs[first : first + _AT_ONCE]})

    async def _delete(self, pools: Mapping[str, str]) -> None:
        """Delete runs by name and pool; their names stay in the list while one of them could not be deleted."""

        async def delete(name: str, pool: str) -> None:
            with contextlib.suppress(MissingError):
                await self._connection.run(WriteOp().remove(), name, f"deleting {name}", locator=self._place(pool))

        await asyncio.gather(*(delete(*each) for each in pools.items()))
        await self._on_list(WriteOp().create(exclusive=False).remove_omap(list(pools)))

    async def usage(self) -> SpillUsage:
        """What the runs of each queue take, and why the pool of new ones takes no more."""
        by_shard: dict[Shard, int] = {}
        for owner in (await self._all()).values():
            by_shard[owner.shard] = by_shard.get(owner.shard, 0) + owner.nbytes
        return SpillUsage(by_shard, await self._why_full())

    async def _why_full(self) -> str:
        """Asked before the pool is full: with the pool of the queues full, their rings would take nothing either."""
        pool = self._place(self._pool).pool
        try:
            found = json.loads(await self._connection.session.ask_monitors("df", detail="detail"))
            stats = {each["name"]: each["stats"] for each in found["pools"]}.get(pool, {})
            used = float(stats.get("percent_used", 0.0))
            quotas = [
                float(stats.get(taken, 0.0)) / float(stats[most])
                for taken, most in (("stored", "quota_bytes"), ("objects", "quota_objects"))
                if stats.get(most)
            ]
        except (StoreError, ValueError, KeyError, TypeError, AttributeError):
            return ""  # then a pool that is full refuses the run itself
        if used >= _FULL_FRACTION:
            return f"pool {pool} is {used:.0%} full"
        of_quota = max(quotas, default=0.0)
        return f"pool {pool} has used {of_quota:.0%} of its quota" if of_quota >= _FULL_FRACTION else ""

    # ------------------------------------------------------------------------------------------ sweeping

    async def sweep(self, now: float) -> None:
        """Delete the runs that no queue named at any look of the last hour."""
        everybodys = await self._all()
        listed = {name: each for name, each in everybodys.items() if each.place == str(self._locator(each.shard))}
        owners = {(each.shard, each.incarnation) for each in listed.values()}
        named: set[str] = set()
        for shard, incarnation in owners:
            try:
                named |= await self._named(shard, incarnation)
            except CodecError as exc:  # which of its runs it names is not known, so all of them stay
                _log.debug("no spilled entries of %s are swept: %s", shard, exc)
                named |= {name for name, each in listed.items() if each.shard == shard}
        self._nameless = self._nameless.after_look(listed.keys() - named, now)
        for name in self._nameless.seen_for(_NAMELESS_S, now):
            _log.info("deleting spilled entries that no queue names: %s of %s", name, listed[name].queue)
            await self._delete({name: listed[name].pool})

    async def _named(self, shard: Shard, incarnation: str) -> set[str]:
        """The runs that a queue names; none where it is gone, or made anew. Raises CodecError."""
        found: dict[str, bytes] = {}
        more = True
        while more:
            operation = ReadOp().assert_exists().assert_xattr(INCARNATION, incarnation)
            page = operation.omap_page(max(found, default=""), RUN_KEY, _PAGE)
            try:
                await self._connection.run(operation, shard.queue, f"looking at {shard}", OWN, self._locator(shard))
            except (MissingError, MismatchError):
                return set()
            found |= page.values
            more = page.more and bool(page.values)
        return {decode_run(key, value).name for key, value in found.items()}

    async def _all(self) -> Mapping[str, RunOwner]:
        """The list of all runs, with whose they are. A run whose owner cannot be read stays, and is named once."""
        found = await all_values(self._connection, RUNS, self._own)
        self._connection.traffic.looked(sum(len(name) + len(raw) for name, raw in found.items()))
        listed: dict[str, RunOwner] = {}
        unread: set[str] = set()
        for name, raw in found.items():
            try:
                listed[name] = decode_owner(name, raw)
            except CodecError as exc:
                unread.add(name)
                if name not in self._unread:
                    _log.error("it is not counted as spilled, and never swept: %s", exc)
        self._unread = unread
        return listed

    async def _on_list(self, operation: WriteOp) -> None:
        await self._connection.run(operation, RUNS, f"writing to {RUNS}", _WRITTEN, self._own)

    def _place(self, pool: str) -> Locator:
        return Locator(pool or self._own.pool, self._own.namespace)


def run_of(page: Page, name: tuple[str, str], nbytes: int, data: bytes) -> SpilledRun:
    """The run of a page, which cost so many bytes of the ring, under a name and in a pool."""
    first, end = (Position.parse(page.positions[i].decode("ascii")) for i in (0, -1))
    return SpilledRun(name[0], first, end, len(page.entries), nbytes, len(data), digest_of(data), name[1])


def runs_of(stored: StoredState, keys: Mapping[str, bytes], what: str) -> Sequence[SpilledRun]:
    """The runs that a queue names, in order. Raises StoreDamaged where they are not what its state says is spilled."""
    try:
        runs = sorted((decode_run(key, value) for key, value in keys.items()), key=lambda run: run.first)
    except CodecError as exc:
        raise StoreDamaged(f"{what}: a run cannot be read: {exc}") from exc
    spill = stored.state.spill
    reach = sum(run.entries for run in runs)
    begins = bool(runs) and runs[0].first <= spill.front < runs[0].end and 0 <= reach - spill.entries < runs[0].entries
    if begins is not bool(spill.entries) or bool(runs) is not bool(spill.entries):
        raise StoreDamaged(f"{what}: {spill.entries} entries are spilled, but its {len(runs)} runs have {reach}")
    return runs


class QueueLook(NamedTuple):
    """State, head, runs and attributes of a queue, all of one moment."""

    stored: StoredState
    runs: Sequence[SpilledRun]
    xattrs: Mapping[str, bytes]


async def look_with_runs(
    begin: Callable[[], ReadOp], send: Callable[[ReadOp], Awaitable[object]], what: str
) -> QueueLook:
    """Look at a queue, with operations that `begin` begins. Raises what `send` raises, and StoreDamaged.

    An OSD tells 1,024 runs at a time. All that changes them changes the state, too, so answers of one state are one.
    """
    for _ in range(_LOOKS):
        operation = begin()
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        keys = operation.omap_page("", RUN_KEY, _PAGE)
        await send(operation)
        stored = stored_state(decoded(decode_head, content.data, what), xattrs.values, what)
        found, is_one = dict(keys.values), True
        while keys.more and keys.values and is_one:
            operation = begin()
            again, keys = operation.xattrs(), operation.omap_page(max(found), RUN_KEY, _PAGE)
            await send(operation)
            found |= keys.values
            is_one = again.values.get(STATE, b"") == stored.value
        if is_one:
            return QueueLook(stored, runs_of(stored, found, what), xattrs.values)
    raise StoreUnavailable(f"{what}: its runs keep changing")


async def has_runs(connection: ClusterConnection, shard: Shard, locator: Locator) -> bool:
    """Whether entries of a queue are spilled; not where it is gone."""
    operation, what = ReadOp().assert_exists(), f"looking at {shard}"
    xattrs = operation.xattrs()
    try:
        await connection.run(operation, shard.queue, what, locator=locator)
    except MissingError:
        return False
    return decoded(lambda values: spill_in(values.get(SPILL, b"")), xattrs.values, what).entries > 0


@dataclass(frozen=True, slots=True)
class SpilledView:
    """The runs of a queue at one moment, with its head and state."""

    stored: StoredState
    runs: Sequence[SpilledRun]
    incarnation: str
    reader: Runs
    traffic: StoreTraffic

    async def entries(self, after: Position) -> AsyncIterator[tuple[str, bytes]]:
        """Position and raw bytes of each spilled entry from a position on. Raises StoreDamaged also for a run that was
        delivered since.
        """
        start = max(after, self.stored.state.spill.front)
        for run in self.runs:
            if run.end <= start:
                continue
            page = await self.reader.read(run)
            first = bisect_left(page.positions, start, key=lambda each: Position.parse(each.decode("ascii")))
            for i in range(first, len(page.entries)):
                yield page.positions[i].decode("ascii"), page.entries[i]
            await self.traffic.walked(run.stored_bytes)


async def spilled_view(connection: ClusterConnection, shard: Shard, locator: Locator, reader: Runs) -> SpilledView:
    """Look at a queue. Raises ShardGone."""
    what = f"looking at {shard}"
    found = await look_with_runs(
        lambda: ReadOp().assert_exists(), lambda each: connection.run(each, shard.queue, what, QUEUE, locator), what
    )
    incarnation = found.xattrs.get(INCARNATION, b"").decode("ascii", "replace")
    return SpilledView(found.stored, found.runs, incarnation, reader, connection.traffic)


async def oldest_spilled(view: SpilledView) -> bytes | None:
    """The oldest entry of the runs; None where there is none, or it was delivered meanwhile."""
    try:
        async for _, raw in view.entries(Position(0, 0)):
            return raw
    except StoreDamaged:
        pass
    return None
