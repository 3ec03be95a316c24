"""A store in RADOS: topics of remora's own, and topics of a radosgw whose queues are filled as that one fills them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import rados

from devkit.chaos.clusters import ChaosError, Cluster
from devkit.chaos.stands import QUEUE_BYTES, Fed, Mode, Stand, Wanted, own
from devkit.clusters.ceph import Gateway
from devkit.entries.queues import Described, metadata
from devkit.processes.daemon import rados_section
from remora.config import RadosSettings
from remora.model.shard import Shard
from remora.storage.rados import RadosStore

POOL = "default.rgw.log"
QUEUES_PER_MODE = 2
CONNECT_S = 60.0
SPILLS = "remora-spill=on"

SMALL_BYTES = 400_000
"""The ring of a queue that spills, or refuses: some seconds of its gateway's events."""

SPILLED_BYTES = 3_000_000
"""What spilled entries of a topic may take: a bound that a few of them reach."""


@asynccontextmanager
async def in_rados(cluster: Cluster, wanted: Wanted) -> AsyncIterator[Stand]:
    """A zone of this run alone in a cluster that is the chaos runs' own: what earlier runs left there is removed."""
    settings = await settings_in(cluster, wanted.run)
    async with RadosStore(settings) as store:
        await _connected(store)
        of_gateways = await asyncio.to_thread(_make_queues, cluster, wanted)
        topics = [await own(store, wanted, name) for name in wanted.modes]
        sections: dict[str, dict[str, object]] = {
            "store": {"kind": "rados"},
            "rados": rados_section(settings),
            "spill": {"topic_bytes": f"{SPILLED_BYTES}B"},
        }
        yield Stand(store, sections, [*topics, *of_gateways])


async def settings_in(cluster: Cluster, run: str) -> RadosSettings:
    """A store of a run's own in a cluster, from which it removes what earlier runs left."""
    await asyncio.to_thread(_empty, cluster)
    place = f"{POOL}:{run}"
    return RadosSettings(
        conf=cluster.env["conf"],
        name=cluster.env["admin_client"],
        keyring=cluster.env["admin_keyring"],
        pool=POOL,
        namespace=run,
        log_pool=place,
        topics_pool=place,
        op_timeout_s=5.0,
    )


def _make_queues(cluster: Cluster, wanted: Wanted) -> list[Fed]:
    """The radosgw's queues, and the metadata of their topics; of those that are small the first of each mode spills."""
    found = [
        _fed(f"{wanted.run}-gateway-{mode}-{number}", of, spills=wanted.spills and number == 0)
        for mode, of in wanted.modes.items()
        for number in range(QUEUES_PER_MODE)
    ]
    with _client(cluster, wanted.run) as ioctx:
        for each in found:
            Gateway(ioctx).make_queue(each.name, SMALL_BYTES if wanted.spills else QUEUE_BYTES)
        ioctx.write_full("pubsub.", metadata([Described(each.name, each.uri, each.args) for each in found]))
    return found


def _fed(name: str, of: Mode, *, spills: bool) -> Fed:
    args = "&".join(filter(None, (of.args, SPILLS if spills else "")))
    return Fed(name, of.is_exact, [Shard(name)], takes_ingest=False, uri=of.uri, args=args, by_gateways=[Shard(name)])


def _empty(cluster: Cluster) -> None:
    with _client(cluster, "remora") as ioctx:
        Gateway(ioctx).empty()


@contextmanager
def _client(cluster: Cluster, namespace: str) -> Iterator[rados.Ioctx]:
    """A client of its own, through Debian's binding."""
    keyring = {"keyring": cluster.env["admin_keyring"]}
    with (
        rados.Rados(conffile=cluster.env["conf"], name=cluster.env["admin_client"], conf=keyring) as administrator,
        administrator.open_ioctx(POOL) as ioctx,
    ):
        ioctx.set_namespace(namespace)
        yield ioctx


async def _connected(store: RadosStore) -> None:
    deadline = time.monotonic() + CONNECT_S
    while not store.connected:
        if time.monotonic() > deadline:
            raise ChaosError("the cluster does not answer")
        await asyncio.sleep(0.05)
