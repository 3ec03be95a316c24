"""The fixtures of the contract suites."""

from support.ceph import ceph, gateway, namespace, settings
from support.kafka import fragile_kafka, kafka
from support.stores import bench, yard

__all__ = ["bench", "ceph", "fragile_kafka", "gateway", "kafka", "namespace", "settings", "yard"]
