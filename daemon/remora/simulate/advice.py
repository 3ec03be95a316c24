"""Model `advice`: how many shards a topic would take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from remora.policy.advice import Peak, advise, is_off_peak
from remora.simulate.checks import at_least, not_negative
from remora.simulate.form import Optional, listed, members, number, whole
from remora.simulate.script import Form


class AdviceModel:
    """Each step stands for itself."""

    def __init__(self, config: SimpleNamespace) -> None:
        at_least(1, events=config.events, bytes=config.bytes)
        self._most = Peak(config.events, config.bytes)

    def step(self, _op: str, given: SimpleNamespace) -> dict[str, Any]:
        """Advise on one topic."""
        at_least(1, shards=given.shards)
        not_negative(now=given.now, peak=given.peak)
        for place, each in enumerate(given.peaks):
            not_negative(f"peaks[{place}].", events=each.events, bytes=each.bytes)
        found = advise(given.shards, [Peak(each.events, each.bytes) for each in given.peaks], self._most)
        return {"shards": found.shards, "because": found.because, "off_peak": is_off_peak(given.now, given.peak)}


FORM = Form(
    config=members(events=Optional(number, 30_000), bytes=Optional(number, 100_000_000)),
    ops={"advise": members(shards=whole, peaks=listed(members(events=number, bytes=number)), now=number, peak=number)},
    begin=AdviceModel,
)
