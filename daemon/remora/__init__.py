"""Delivers persistent bucket notifications from object-store gateways to Kafka."""

from importlib.metadata import version

__version__ = version("remorad")
