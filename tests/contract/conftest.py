"""The fixtures of the contract suites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import uvloop

from support.ceph import ceph, gateway, namespace, settings
from support.kafka import fragile_kafka, kafka
from support.kafka_sender import endpoint, watcher
from support.rabbitmq import fragile_rabbitmq, rabbitmq
from support.sqlite import configured, store
from support.stores import bench, yard

__all__ = [
    "bench", "ceph", "configured", "endpoint", "fragile_kafka", "fragile_rabbitmq", "gateway", "kafka",
    "namespace", "rabbitmq", "settings", "store", "watcher", "yard",
]  # fmt: skip


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The HTTP endpoint is tested on both kinds of loop: their transports differ in what they do at the end."""
    both = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return both if item.path.name == "test_http_endpoint.py" else {"asyncio": asyncio.new_event_loop}
