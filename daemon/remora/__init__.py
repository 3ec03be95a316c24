"""Delivers persistent bucket notifications from object-store gateways to Kafka, HTTP or AMQP."""

from importlib.metadata import version

__version__ = version("remorad")
