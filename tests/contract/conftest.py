"""The fixtures of the contract suites."""

from support.ceph import ceph, gateway, namespace, settings
from support.stores import bench, yard

__all__ = ["bench", "ceph", "gateway", "namespace", "settings", "yard"]
