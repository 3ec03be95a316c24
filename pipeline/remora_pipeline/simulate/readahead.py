"""Model `readahead`: what is turned back to make room."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.model.traffic import Priority
from remora.policy.admission.line import ReadAhead, Shortage, pages_to_turn_back
from remora_pipeline.simulate.checks import not_negative, priority_named
from remora_pipeline.simulate.form import Optional, listed, members, named, number, text, whole
from remora_pipeline.simulate.script import Form


class ReadAheadModel:
    """Each step stands for itself."""

    def __init__(self, config: SimpleNamespace) -> None:
        not_negative(watermark=config.watermark)
        if config.watermark > 1:
            raise ConfigError("watermark", "must be at most 1")
        self._watermark = Fraction(str(config.watermark))

    def step(self, _op: str, given: SimpleNamespace) -> dict[str, Any]:
        """A shard asks for room."""
        not_negative(limit=given.limit, held=given.held, need=given.need)
        asker = Priority(priority_named(given.priority, "priority"))
        shards: dict[str, ReadAhead] = {}
        for name, each in given.shards.items():
            for place, size in enumerate(each.listings):
                not_negative(f"shards.{name}.", **{f"listings[{place}]": size})
            priority = Priority(priority_named(each.priority, f"shards.{name}.priority"))
            shards[name] = ReadAhead(priority, tuple(each.listings))
        done = pages_to_turn_back(shards, Shortage(given.limit, given.held, given.need, asker), self._watermark)
        return {"to_free": done.to_free, "turn_back": done.pages, "freed": done.freed}


FORM = Form(
    config=members(watermark=Optional(number, 0.9)),
    ops={
        "plan": members(
            limit=whole,
            held=whole,
            need=whole,
            priority=text,
            shards=named(members(priority=text, listings=listed(whole))),
        )
    },
    begin=ReadAheadModel,
)
