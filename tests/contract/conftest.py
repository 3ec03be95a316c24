"""The fixtures of the contract suites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import uvloop

from devkit.clusters.ceph import ceph, gateway, namespace, settings
from devkit.clusters.kafka import fragile_kafka, kafka
from devkit.clusters.nats import fragile_nats_server, nats_server
from support.kafka_sender import endpoint, watcher
from support.sqlite import configured, store
from support.stores import bench, unhurried_stores, yard

__all__ = [
    "bench", "ceph", "configured", "endpoint", "fragile_kafka", "fragile_nats_server", "gateway", "kafka", "namespace",
    "nats_server", "settings", "store", "unhurried_stores", "watcher", "yard",
]  # fmt: skip


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What all endpoints have in common, and Kerberos, is tested on the daemon's own kind of loop, HTTP on both.

    Their transports differ in what they do at the end.
    """
    ours: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    asyncios: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    both = ours | asyncios
    loops = {
        "test_http_endpoint.py": both, "test_http_connection.py": both, "test_openings.py": ours,
        "test_endpoint_tls.py": both, "test_endpoint_contract.py": ours, "test_kafka_kerberos.py": ours,
    }  # fmt: skip
    return loops.get(str(item.path.name), asyncios)
