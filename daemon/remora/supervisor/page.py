"""One page of metrics for all workers of a host, on which no counter goes back.

Counters and histograms are added up, with what workers had counted that have ended meanwhile, and what a worker had
counted for a topic that it does not deliver any more. Gauges follow `GAUGES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from prometheus_client import Metric
from prometheus_client.samples import Exemplar

from remora.process.pipe import Family, Shown

RETAINED_S = 900.0
"""What no worker exports any more is kept for this long: its topic is gone then, and not merely between two workers."""

Meaning: TypeAlias = Literal["sum", "most", "least", "supervisor", "processes", "nearest"]

GAUGES: Mapping[str, Meaning] = MappingProxyType(
    {
        # Ages and times: of the oldest, of the latest.
        "remora_backlog_oldest_age_seconds": "most",
        "remora_progress_timestamp_seconds": "most",
        # Each worker sees the same, or a part of the same.
        "remora_eligible_shards": "most",
        "remora_ingest_paused": "most",
        "remora_dead_letters": "most",
        "remora_members": "most",
        "remora_topic_failing": "most",
        "remora_topic_held": "most",
        "remora_topic_failing_seconds": "most",
        "remora_quarantining_workers_ratio": "most",
        "remora_usage_ratio": "most",
        "remora_usage_history_ratio": "most",
        "remora_store_connected": "least",
        # Of the worst queue.
        "remora_queue_leaked_bytes": "most",
        "remora_queue_room_bytes": "least",
        "remora_queue_seconds_until_full": "least",
        "remora_store_failing": "most",
        "remora_store_part_lost": "most",
        # Each worker reads what all queues of the store have.
        "remora_spill_bound_ratio": "most",
        # What the supervisor alone knows.
        "remora_build_info": "supervisor",
        "remora_config_last_reload_successful": "supervisor",
        "remora_ready": "supervisor",
        "remora_delivery_ready": "supervisor",
        "remora_workers": "supervisor",
        "remora_shaping_burst_bytes": "supervisor",
        "remora_shaping_guaranteed_bytes": "supervisor",
        "remora_shaping_late_seconds": "supervisor",
        "remora_shaping_level_bytes": "supervisor",
        "remora_shaping_limit_bytes": "supervisor",
        "remora_shaping_max_bytes": "supervisor",
        "remora_shaping_overridden": "supervisor",
        "remora_shaping_scale_ratio": "supervisor",
        "remora_shaping_unacked_bytes": "supervisor",
        "process_start_time_seconds": "supervisor",
        # Those of the process that is nearest to its limit, so that one divided by the other is the worst ratio.
        "process_max_fds": "nearest",
        "process_open_fds": "nearest",
        # What all processes use together, the supervisor's own included.
        "process_resident_memory_bytes": "processes",
        "process_virtual_memory_bytes": "processes",
    }
)
"""What a gauge of several workers is on the page; those that are not named are added up."""

_COUNTED = frozenset({"counter", "histogram", "summary"})

Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and its labels."""

SUPERVISOR = ""
"""The supervisor among the sources of a page; the others are workers."""


@dataclass(slots=True)
class _Merged:
    kind: str
    text: str
    samples: dict[Key, float] = field(default_factory=dict)


class MetricsPage:
    """What was counted by whom. The sources are workers, by cookie, and the supervisor itself."""

    def __init__(self) -> None:
        self._families: dict[str, Sequence[Family]] = {}
        self._counted: dict[str, dict[Key, float]] = {}
        self._retained: dict[Key, float] = {}
        self._about: dict[Key, tuple[str, str, str]] = {}
        self._exported_at: dict[Key, float] = {}
        self._exemplars: dict[Key, Shown] = {}

    def take(self, source: str, families: Sequence[Family], now: float) -> None:
        """What a source exports now; what it exported before and does no longer stays counted."""
        counted: dict[Key, float] = {}
        for family in families:
            if family.kind in _COUNTED:
                for sample in family.samples:
                    key = (sample.name, tuple(sorted(sample.labels.items())))
                    counted[key] = sample.value
                    self._about[key] = (family.name, family.kind, family.text)
                    shown = self._exemplars.get(key)
                    if sample.exemplar and (shown is None or shown.at < sample.exemplar.at):
                        self._exemplars[key] = sample.exemplar
        self._exported_at.update(dict.fromkeys(counted, now))
        before = self._counted.get(source, {})
        anew = {self._series(key) for key, value in before.items() if counted.get(key, -1.0) < value}
        for key, value in before.items() if anew else ():
            if self._series(key) in anew:
                self._retained[key] = self._retained.get(key, 0.0) + value
        self._families[source] = families
        self._counted[source] = counted

    def _series(self, key: Key) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What a sample is counted with: the buckets of a histogram, their number and sum begin anew together."""
        return self._about[key][0], tuple(each for each in key[1] if each[0] != "le")

    def ended(self, source: str) -> None:
        """A worker has ended: what it had counted stays, its gauges go."""
        self._families.pop(source, None)
        for key, value in self._counted.pop(source, {}).items():
            self._retained[key] = self._retained.get(key, 0.0) + value

    def metrics(self, now: float) -> list[Metric]:
        """The page."""
        old = [key for key, at in self._exported_at.items() if now - at > RETAINED_S]
        # A silent worker said them long ago where the page is rarely asked for; they are on the page all the same.
        for key in [key for key in old if not any(key in counted for counted in self._counted.values())]:
            del self._exported_at[key], self._about[key]
            self._retained.pop(key, None)
            self._exemplars.pop(key, None)
        merged: dict[str, _Merged] = {}
        nearest = max(self._families, key=lambda each: _ratio_of_descriptors(self._families[each]), default=SUPERVISOR)
        for source, families in self._families.items():
            for family in families:
                if GAUGES.get(family.name) == "nearest" and source != nearest:
                    continue
                if family.kind not in _COUNTED:
                    into = merged.setdefault(family.name, _Merged(family.kind, family.text))
                    _add_gauge(into.samples, family, source)
        for each in (*self._counted.values(), self._retained):
            for key, value in each.items():
                name, kind, text = self._about[key]
                samples = merged.setdefault(name, _Merged(kind, text)).samples
                samples[key] = samples.get(key, 0.0) + value
        return [_metric(name, each, self._exemplars) for name, each in merged.items()]


def _ratio_of_descriptors(families: Sequence[Family]) -> float:
    """How many of the descriptors that it may have a process has open."""
    values = {family.name: family.samples[0].value for family in families if family.samples}
    return values.get("process_open_fds", 0.0) / (values.get("process_max_fds") or math.inf)


def _add_gauge(samples: dict[Key, float], family: Family, source: str) -> None:
    meaning = GAUGES.get(family.name, "sum")
    if meaning not in ("processes", "nearest") and (meaning == "supervisor") != (source == SUPERVISOR):
        return
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        before = samples.get(key)
        samples[key] = sample.value if before is None else _together(meaning, before, sample.value)


def _together(meaning: Meaning, before: float, value: float) -> float:
    match meaning:
        case "most":
            return max(before, value)
        case "least":
            return min(before, value)
        case _:
            return before + value


def _metric(name: str, merged: _Merged, exemplars: Mapping[Key, Shown]) -> Metric:
    metric = Metric(name, merged.text, merged.kind)
    for (sample, labels), value in _in_order(merged.samples):
        shown = exemplars.get((sample, labels))
        exemplar = Exemplar(shown.labels, shown.value, shown.at) if shown else None
        metric.add_sample(sample, dict(labels), value, exemplar=exemplar)
    return metric


def _in_order(samples: Mapping[Key, float]) -> Iterable[tuple[Key, float]]:
    """A histogram's samples of the same labels stand together, the buckets by their bounds."""

    def place(item: tuple[Key, float]) -> tuple[tuple[tuple[str, str], ...], bool, float, str]:
        (name, labels), _ = item
        bound = next((float(value) for label, value in labels if label == "le"), None)
        others = tuple(pair for pair in labels if pair[0] != "le")
        return (others, bound is None, bound or 0.0, name)

    return sorted(samples.items(), key=place)
