"""What came into topics in each of the last hours, where the workers of all hosts write it and commands read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from remora.model.peaks import HourPeak
from remora.model.topic import Topic


class Peaks(Protocol):
    """The peaks of each topic, an hour each, for 30 days. Nothing depends on them: a lost one is a gap."""

    async def keep(self, peaks: Mapping[Topic, HourPeak]) -> None:
        """Keep an hour's peak of each of these topics, and forget what is older than 30 days by then.

        Each worker keeps what its own shards had. Of those of one hour and number of shards the higher figures count,
        so that it may be called again, by any number of workers at once. What is kept of a topic of remora's own goes
        with it: one that is gone is passed over, and one that is made anew has none.
        """
        ...

    async def kept(self, topic: Topic, since: int) -> Sequence[HourPeak]:
        """What is kept of a topic from this hour on and of the 31 days that follow it, oldest first."""
        ...
