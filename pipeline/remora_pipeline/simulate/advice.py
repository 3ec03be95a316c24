"""Model `advice`: how many shards a topic would take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from remora.model.peaks import HourPeak
from remora.policy.queues.advice import WEEK_DAYS, History, Peak, ShardBounds, advise, is_off_peak
from remora_pipeline.simulate.checks import at_least, not_negative
from remora_pipeline.simulate.form import Optional, listed, members, number, whole
from remora_pipeline.simulate.script import Form


class AdviceModel:
    """Each step stands for itself."""

    def __init__(self, config: SimpleNamespace) -> None:
        at_least(1, events=config.events, bytes=config.bytes, fewest=config.fewest)
        not_negative(commit_latency=config.commit_latency)
        self._bounds = ShardBounds(Peak(config.events, config.bytes), config.fewest, config.commit_latency)

    def step(self, _op: str, given: SimpleNamespace) -> dict[str, Any]:
        """Advise on one topic; the peaks are those of as many days as are given, too."""
        at_least(1, shards=given.shards)
        not_negative(now=given.now, peak=given.peak, days=given.days)
        for place, each in enumerate(given.peaks):
            not_negative(f"peaks[{place}].", events=each.events, bytes=each.bytes)
        peaks = [Peak(each.events, each.bytes) for each in given.peaks]
        history = History(0, [HourPeak(-24 * day, given.shards, 0, 0) for day in range(min(given.days, WEEK_DAYS))])
        found = advise(given.shards, peaks, self._bounds, history)
        return {"shards": found.shards, "because": found.because, "off_peak": is_off_peak(given.now, given.peak)}


FORM = Form(
    config=members(
        events=Optional(number, 30_000),
        bytes=Optional(number, 100_000_000),
        fewest=Optional(whole, 1),
        commit_latency=Optional(number, 0),
    ),
    ops={
        "advise": members(
            shards=whole,
            peaks=listed(members(events=number, bytes=number)),
            now=number,
            peak=number,
            days=Optional(whole, 0),
        )
    },
    begin=AdviceModel,
)
