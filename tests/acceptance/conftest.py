"""The fixtures of the acceptance tests."""

from __future__ import annotations

from devkit.clusters.ceph import ceph, gateway, namespace, settings
from devkit.clusters.kafka import fragile_kafka, kafka
from devkit.clusters.s3 import zone, zone16, zone20
from devkit.clusters.spark import spark
from devkit.entries.queues import queues
from support.stores import unhurried_stores

__all__ = [
    "ceph", "fragile_kafka", "gateway", "kafka", "namespace", "queues", "settings",
    "spark", "unhurried_stores", "zone", "zone16", "zone20",
]  # fmt: skip
