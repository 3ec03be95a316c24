"""Nowhere: everything is taken at once, to see how fast and how punctual the generator itself is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from remora_pipeline.replay.run.schedule import DueEvent
from remora_pipeline.replay.run.targets import AttemptResult, TargetAnswer

_DONE = TargetAnswer(AttemptResult.DONE)


class NullTarget:
    """Takes everything."""

    is_repeatable = True

    def __init__(self, batch: int) -> None:
        self.batch = batch

    async def send(self, events: Sequence[DueEvent], request: str) -> TargetAnswer:
        """Done, after one turn of the loop."""
        await asyncio.sleep(0)
        return _DONE
