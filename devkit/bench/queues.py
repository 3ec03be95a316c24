"""radosgw's queues, seen from outside: topics, locks, what is committed to them and what is left in them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import botocore.config
import botocore.session
import rados

from devkit.bench.clusters import BenchError, Clusters
from devkit.bench.load import Load
from remora.codec.queue_ops import decode_head
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.storage.rados import RadosStore

REGISTRY = "queues_list_object"
COMMIT_ENTRIES = 500
RAW_READ_BYTES = 1 << 20
"""About as many as a listing of 1,024 entries has."""

RAW_READS_AT_ONCE = 16
ENTRIES_THAT_FIT = 100_000
"""In one of radosgw 16's queues, of the default size: its ring has 128 MB."""


@contextmanager
def topics(
    clusters: Clusters, names: Sequence[str], uri: str, arguments: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Persistent topics, made by radosgw itself; it must run when this begins and when it ends."""
    s3 = clusters.ceph["s3"]
    sns: Any = botocore.session.get_session().create_client(
        "sns",
        endpoint_url=s3["endpoint"],
        region_name="default",
        aws_access_key_id=s3["access_key"],
        aws_secret_access_key=s3["secret_key"],
        config=botocore.config.Config(connect_timeout=10, read_timeout=60, retries={"max_attempts": 1}),
    )
    attributes = {"push-endpoint": uri, "persistent": "true", "verify-ssl": "false", **(arguments or {})}
    with ExitStack() as stack:
        for name in names:
            arn = sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]
            stack.callback(_delete_topic, sns, arn)
        yield


def _delete_topic(sns: Any, arn: str) -> None:
    with suppress(Exception):  # a clean-up that fails must not hide why
        sns.delete_topic(TopicArn=arn)


def names(clusters: Clusters, topics: Sequence[str]) -> list[str]:
    """The queues of topics: since release 19 with the tenant in front, which is empty here."""
    prefix = "" if clusters.ceph["release"] < 19 else ":"
    return [prefix + topic for topic in topics]


async def targets(store: RadosStore, names: Sequence[str]) -> list[Target]:
    """What radosgw remembered of the topics, and so writes into each entry."""
    await store.catalog.shards()
    known = await store.catalog.topics()
    return [known[Shard(name)].target for name in names]


async def fill(store: RadosStore, queue: str, load: Load, first: int, count: int) -> None:
    """Commit entries as a gateway does, only more at once."""
    shard = Shard(queue)
    for start in range(first, first + count, COMMIT_ENTRIES):
        entries = list(load.entries(start, min(COMMIT_ENTRIES, first + count - start)))
        reservation = await store.two_phase.reserve(shard, len(entries), sum(map(len, entries)))
        await store.two_phase.commit(shard, reservation, entries)


def offer(ioctx: rados.Ioctx, queues: Sequence[str], others: Sequence[str]) -> None:
    """Leave exactly these queues in the registry, and let go of locks that a radosgw which has ended left behind."""
    with rados.WriteOpCtx() as op:
        ioctx.remove_omap_keys(op, tuple(others))
        ioctx.set_omap(op, tuple(queues), (b"",) * len(queues))
        ioctx.operate_write_op(op, REGISTRY)
    for queue in (*queues, *others):
        with suppress(rados.NoData, rados.ObjectNotFound):
            ioctx.rm_xattr(queue, f"lock.{queue}_lock")


def read_raw(ioctx: rados.Ioctx, queues: Sequence[str]) -> float:
    """Read the queues' objects from end to end, several parts at once; how many bytes a second.

    Nothing that goes through a queue can be quicker: this asks neither for a lock nor for entries, and removes nothing.
    """
    began, nbytes = time.monotonic(), 0
    reading: deque[rados.Completion] = deque()

    def count(_: rados.Completion, data: bytes | None) -> None:
        nonlocal nbytes
        nbytes += len(data or b"")

    for queue in queues:
        size, _ = ioctx.stat(queue)
        for offset in range(0, size, RAW_READ_BYTES):
            reading.append(ioctx.aio_read(queue, RAW_READ_BYTES, offset, count))
            if len(reading) > RAW_READS_AT_ONCE:
                reading.popleft().wait_for_complete_and_cb()
    for each in reading:
        each.wait_for_complete_and_cb()
    return nbytes / (time.monotonic() - began)


# ------------------------------------------------------------------------------------ how full they are


@dataclass(frozen=True)
class Level:
    """How many bytes stood in the queues at a time, and what the caller wanted to know at that time."""

    at: float
    used_bytes: int
    seen: dict[str, float]


async def watch(
    ioctx: rados.Ioctx, queues: Sequence[str], patience_s: float, look: Callable[[], dict[str, float]]
) -> list[Level]:
    """Look 20 times a second until all queues are empty, or for so long nothing has left them.

    The last level is that at which the last change was seen. Raises BenchError when nothing ever left.
    """
    levels: list[Level] = []
    moved = 0
    used = dict.fromkeys(queues, -1)
    while not levels or levels[-1].used_bytes:
        began = time.monotonic()
        used |= used_bytes(ioctx, [queue for queue in queues if used[queue]])
        levels.append(Level(began, sum(used.values()), look()))
        if levels[-1].used_bytes != levels[moved].used_bytes:
            moved = len(levels) - 1
        if began - levels[moved].at > patience_s:
            break
        await asyncio.sleep(max(0.0, began + 0.05 - time.monotonic()))
    if not moved:
        raise BenchError(f"nothing left the queues for {patience_s:.0f} s")
    return levels[: moved + 1]


def used_bytes(ioctx: rados.Ioctx, queues: Sequence[str]) -> dict[str, int]:
    """From the heads, all read at once; without reservations they are short."""
    heads: dict[str, bytes] = {}
    reads = [
        ioctx.aio_read(queue, 1024, 0, lambda _, data, queue=queue: heads.__setitem__(queue, data or b""))
        for queue in queues
    ]
    for read in reads:
        read.wait_for_complete_and_cb()
    return {queue: decode_head(heads[queue]).used_bytes for queue in queues}
