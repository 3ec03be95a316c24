"""The fixtures of the contract suites."""

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
