"""What the latencies of a verdict are called, and what their clocks count."""

from __future__ import annotations

from remora_pipeline.replay.report.texts import MS, US, visible

ORDER = ("service", "response", "to_log", "age", "lateness")
CURVES = ("service", "response", "to_log", "age")
"""Those that are the server's; lateness is the generator's own."""

_LABELS = {
    "service": "sent → answer",
    "response": "due → answer",
    "to_log": "due → log",
    "age": "event → log",
    "lateness": "send lateness",
}


ENOUGH = 100
"""So many events has a p99 at least: of fewer it is the largest, whatever that is."""

FEW_TOLD = f"p99 of fewer than {ENOUGH} events"


def is_few(events: int) -> bool:
    """Whether a p99 of so many events says little."""
    return events < ENOUGH


def label(name: str, *, has_schedule: bool) -> str:
    """From what until what. Where nothing was due at a time of its own, latencies count from when it was sent."""
    found = _LABELS.get(name, visible(name))
    return found if has_schedule else found.replace("due", "sent")


def clock_us(name: str) -> int:
    """What it is counted in: whole milliseconds of those that end in Kafka, microseconds of all others."""
    return MS if name in ("to_log", "age") else US
