"""Events of traffic shaping: credit that is granted, waited for, moved and lost, by scope."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from remora.metrics.events import EventGroup, Instruments
from remora.model.traffic import Meter, Priority, limit_of


class ShapingEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        counter, gauge = instruments.counter, instruments.gauge
        both = ("scope", "priority")
        self._shaping_granted = counter(
            "remora_shaping_granted_bytes", "Bytes for which shaping granted credit.", *both
        )
        self._shaping_passed = counter(
            "remora_shaping_passed_bytes", "Bytes that went through a scope that is not enabled.", *both
        )
        self._shaping_waits = counter("remora_shaping_waits", "Listings that had to wait for credit.", *both)
        self._shaping_wait_s = instruments.histogram(
            "remora_shaping_wait_seconds",
            "Time that listings waited for credit, of each that was granted any.",
            *both,
            buckets=(0.001, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self._shaping_waiting = gauge("remora_shaping_waiting", "Listings that wait for credit now.", *both)
        self._shaping_level = gauge(
            "remora_shaping_level_bytes", "Credit of all workers in all groups; negative is a debt.", *both
        )
        self._shaping_moved = {
            "transferred": counter(
                "remora_shaping_transferred_bytes", "Credit that the spare gave to a priority.", *both
            ),
            "donated": counter(
                "remora_shaping_donated_bytes", "Credit that a priority left over, for the spare.", *both
            ),
        }
        self._shaping_lost = counter("remora_shaping_lost_bytes", "Credit that no sender used.", "scope")
        self._shaping_limit = gauge(
            "remora_shaping_limit_bytes", "Guaranteed bytes per second of all priorities and the spare.", "scope"
        )
        self._shaping_meter = {
            what: gauge(f"remora_shaping_{what}_bytes", text, "scope", "meter")
            for what, text in (
                ("guaranteed", "Bytes per second that a meter guarantees."),
                ("max", "Bytes per second that a meter allows at most; absent without a limit."),
                ("burst", "Bytes that a meter allows at once."),
            )
        }
        self._shaping_scale = gauge(
            "remora_shaping_scale_ratio",
            "How much of an adaptive spare there is, in the group with the least.",
            "scope",
        )
        self._shaping_unacked = gauge(
            "remora_shaping_unacked_bytes",
            "Bytes for which shaping granted credit and that no endpoint has acknowledged yet.",
            "scope",
        )
        self._shaping_late_s = gauge("remora_shaping_late_seconds", "How late shaping's last tick of credit was.")
        self._shown_scopes: set[str] = set()

    def shaping_granted(self, scope: str, priority: str, nbytes: int, charged: bool) -> None:
        """A listing may send `nbytes`, `charged` in a scope that is enabled."""
        (self._shaping_granted if charged else self._shaping_passed).labels(scope, priority).inc(nbytes)

    def shaping_waits(self, scope: str, priority: str) -> None:
        """A listing waits for credit."""
        self._shaping_waits.labels(scope, priority).inc()

    def shaping_waited(self, scope: str, priority: str, seconds: float) -> None:
        """A listing has waited for credit, and goes on."""
        self._shaping_wait_s.labels(scope, priority).observe(seconds)

    def shaping_waiting(self, waiting: Mapping[tuple[str, str], int]) -> None:
        """How many listings wait now, by scope and priority; those that are left out have none."""
        self._shaping_waiting.clear()
        for labels, count in waiting.items():
            self._shaping_waiting.labels(*labels).set(count)

    def shaping_level(self, scope: str, priority: str, nbytes: int) -> None:
        """The credit of all workers in the groups of a scope."""
        self._shaping_level.labels(scope, priority).set(nbytes)

    def shaping_moved(self, what: str, scope: str, priority: str, nbytes: int) -> None:
        """Credit was moved: `transferred` to a priority, or `donated` by it."""
        self._shaping_moved[what].labels(scope, priority).inc(nbytes)

    def shaping_scale(self, scope: str, ratio: float, unacked: int) -> None:
        """A scope's spare counts at this scale, and `unacked` bytes are granted and acknowledged by no endpoint."""
        self._shaping_scale.labels(scope).set(ratio)
        self._shaping_unacked.labels(scope).set(unacked)

    def shaping_lost(self, scope: str, nbytes: int) -> None:
        """Credit was left over for good."""
        self._shaping_lost.labels(scope).inc(nbytes)

    def shaping_meters(self, meters: Mapping[str, Mapping[str, Meter]], late_s: float) -> None:
        """Sets the current meters by scope and bucket; removes scopes that are left out."""
        self._shaping_late_s.set(late_s)
        for each in (self._shaping_limit, *self._shaping_meter.values()):
            each.clear()
        for gone in self._shown_scopes - meters.keys():
            for metric in (self._shaping_scale, self._shaping_unacked):
                with suppress(KeyError):
                    metric.remove(gone)
            for priority in Priority:
                with suppress(KeyError):
                    self._shaping_level.remove(gone, priority)
        self._shown_scopes = set(meters)
        for scope, by_bucket in meters.items():
            self._shaping_limit.labels(scope).set(limit_of(by_bucket))
            for bucket, meter in by_bucket.items():
                self._shaping_meter["guaranteed"].labels(scope, bucket).set(meter.guaranteed)
                self._shaping_meter["burst"].labels(scope, bucket).set(meter.burst)
                if meter.max is not None:
                    self._shaping_meter["max"].labels(scope, bucket).set(meter.max)
