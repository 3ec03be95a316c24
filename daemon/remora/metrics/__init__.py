"""Telemetry as a list of named events: one method per event gives its metric and its log line together."""

from remora.metrics.logs import configure_logging
from remora.metrics.telemetry import Telemetry

__all__ = ["Telemetry", "configure_logging"]
