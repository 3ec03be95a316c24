"""What a store and a delivery tell of the time that their stages take."""

from __future__ import annotations

from typing import Protocol

from remora.policy.status.stages import EventStage


class StageMeter(Protocol):
    """StageCounts the times of stages; called in the event loop, once for a page, a batch or a transaction."""

    def stage_took(self, stage: EventStage, at: str, seconds: float) -> None:
        """A stage has ended, which took so long; `at` is the kind of the endpoint or store."""
        ...


class _NoMeter:
    def stage_took(self, stage: EventStage, at: str, seconds: float) -> None:
        """Nothing."""


NO_METER: StageMeter = _NoMeter()
