"""Samples of metrics, as tests ask for them: again and again, of registries with hundreds of metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry


def sample_value(registry: CollectorRegistry, name: str, labels: dict[str, str] | None = None) -> float | None:
    """The value of a sample, None where there is none. The registry's own `get_sample_value` collects every metric.

    Not for collectors that do not tell their metrics' names beforehand, like that of the sequencer.
    """
    for metric in registry.restricted_registry([name]).collect():
        for each in metric.samples:
            if each.name == name and each.labels == (labels or {}):
                return each.value
    return None
