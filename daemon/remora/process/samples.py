"""A process's metrics as values: a worker sends them to the supervisor, which makes one page of those of all."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, samples

from remora.process.pipe import Family, Sample, Shown


def families(registry: CollectorRegistry) -> list[Family]:
    """All that a registry exports. A value that is no number is left out: JSON has none for it."""
    return [
        Family(
            family.name,
            family.type,
            family.documentation,
            [_sample(each) for each in family.samples if math.isfinite(each.value)],
        )
        for family in registry.collect()
    ]


def _sample(found: samples.Sample) -> Sample:
    shown = found.exemplar
    exemplar = Shown(dict(shown.labels), shown.value, float(shown.timestamp or 0)) if shown else None
    return Sample(found.name, found.labels, found.value, exemplar)
