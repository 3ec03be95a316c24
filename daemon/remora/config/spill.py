"""Section `spill`: whether and when entries are moved beside their queues, and how many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remora.config.checked import Checked
from remora.config.units import AnyBytes, Percent
from remora.model.errors import ConfigError
from remora.policy.spill import SpillRules


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillSettings(Checked):
    """`start` and `stop` are percentages of a queue's ring; `pool` is empty for the pool of the queues."""

    enabled: bool = False
    start: Percent = 50
    stop: Percent = 25
    topic_bytes: AnyBytes = 10_000_000_000
    total_bytes: AnyBytes = 100_000_000_000
    pool: str = ""

    @property
    def rules(self) -> SpillRules:
        """What they mean."""
        return SpillRules(self.enabled, self.start / 100, self.stop / 100, self.topic_bytes, self.total_bytes)

    def problems(self) -> Iterator[ConfigError]:
        """Each rule that these values break."""
        if self.stop >= self.start:
            yield ConfigError("spill.stop", "must be less than spill.start", binds=("spill.start",))
