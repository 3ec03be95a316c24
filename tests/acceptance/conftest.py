"""The fixtures of the acceptance tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.clusters.ceph import ceph, gateway, namespace, settings
from devkit.clusters.kafka import fragile_kafka, kafka
from devkit.clusters.rabbitmq import fragile_rabbitmq, rabbitmq
from devkit.clusters.s3 import Zone, running_zone
from devkit.clusters.spark import spark
from devkit.entries.queues import queues
from support.stores import unhurried_stores

__all__ = [
    "ceph", "fragile_kafka", "fragile_rabbitmq", "gateway", "kafka", "namespace", "queues", "rabbitmq", "settings",
    "spark", "unhurried_stores",
]  # fmt: skip


@pytest.fixture(scope="session")
def zone16() -> Iterator[Zone]:
    """A radosgw 16.2."""
    with running_zone(16) as zone:
        yield zone


@pytest.fixture(scope="session")
def zone20() -> Iterator[Zone]:
    """A radosgw 20.2."""
    with running_zone(20) as zone:
        yield zone


@pytest.fixture(params=[16, 20], scope="session")
def zone(request: pytest.FixtureRequest) -> Zone:
    """Each of the releases in turn."""
    found: Zone = request.getfixturevalue(f"zone{request.param}")
    return found
