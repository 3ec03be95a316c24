"""Model `shed`: rounds of moving shards by load."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.model.member import Member
from remora.policy.ownership.shedding import (
    RESOURCES,
    Load,
    LoadReport,
    Options,
    news,
    next_history,
    plan,
    receivers,
    targets,
    usage_of,
)
from remora_pipeline.simulate.checks import not_negative, one_of
from remora_pipeline.simulate.form import Optional, flag, members, named, number, text, whole
from remora_pipeline.simulate.script import Form

STRATEGIES = ("threshold", "overload")


OPTIONS: Mapping[str, Any] = {
    "threshold": Optional(number, 10),
    "history": Optional(number, 0.9),
    "overload": Optional(number, 85),
    "minimum": Optional(number, 10_485_760),
    "difference": Optional(number, 10),
    "grace": Optional(number, 1800),
    "lower_boundary": Optional(flag, False),
    "weights": Optional(named(number), {}),
}
"""The members of a configuration that say how shards move by load, the same in each model that has them."""


def check_weights(config: SimpleNamespace) -> None:
    """Raises ConfigError for a weight of an unknown resource, or one below 0."""
    for name in config.weights:
        one_of(name, RESOURCES, f"weights.{name}")
    not_negative("weights.", **config.weights)


def check_history(config: SimpleNamespace) -> None:
    """Raises ConfigError for a share of the past that is above all of it."""
    if config.history > 1:
        raise ConfigError("history", "must be at most 1")


def options_of(config: SimpleNamespace) -> Options:
    """The policy's options."""
    return Options(
        by_overload=config.strategy == "overload",
        threshold=config.threshold,
        history=config.history,
        overload=config.overload,
        minimum=config.minimum,
        difference=config.difference,
        grace_s=config.grace,
        lower_boundary=config.lower_boundary,
    )


class ShedModel:
    """All workers of a store: their histories, and when shards were moved."""

    def __init__(self, config: SimpleNamespace) -> None:
        one_of(config.strategy, STRATEGIES, "strategy")
        check_weights(config)
        given = {name: value for name, value in vars(config).items() if name not in ("strategy", "weights", "grace")}
        not_negative(**given, grace=config.grace)
        check_history(config)
        self._options = options_of(config)
        self._weights: dict[str, float] = config.weights
        self._histories: dict[str, float] = {}
        self._moved_at: dict[str, float] = {}

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """A round, or one of the decisions beside it."""
        match op:
            case "round":
                return self._round(given)
            case "moved":
                self._moved_at[given.shard] = given.at
                return {}
            case "receivers":
                not_negative("usage.", **given.usage)
                figures = {name: percent / 100 for name, percent in given.usage.items()}
                mean = sum(figures.values()) / len(figures) if figures else 0.0
                return {"receivers": receivers(figures, mean, self._options.difference)}
            case "report":
                because = news(LoadReport(**vars(given.last)), LoadReport(**vars(given.now)))
                return {"publish": bool(because), "because": because}
            case _:
                return _targets(given)

    def _round(self, given: SimpleNamespace) -> dict[str, Any]:
        for name, each in given.workers.items():
            for resource in each.usage:
                one_of(resource, RESOURCES, f"workers.{name}.usage.{resource}")
            not_negative(f"workers.{name}.usage.", **each.usage)
            not_negative(f"workers.{name}.shards.", **each.shards)
            not_negative(f"workers.{name}.", bytes=each.bytes)
        loads = [self._load(name, each) for name, each in given.workers.items() if not each.draining]
        done = plan(loads, self._options, self._moved_at, given.at)
        if not given.dry_run:
            self._histories.update((each.name, each.history) for each in loads)
            self._moved_at.update((move.shard, given.at) for move in done.moves)
        return {
            "average": done.average,
            "usage": {each.name: each.usage for each in loads},
            "history": {each.name: each.history for each in loads},
            "needed": done.needed,
            "moves": [{"shard": each.shard, "from": each.giver, "to": each.to} for each in done.moves],
            "skipped": done.skipped,
        }

    def _load(self, name: str, worker: SimpleNamespace) -> Load:
        usage = usage_of(worker.usage, self._weights)
        history = next_history(self._histories.get(name), usage, self._options.history)
        total = sum(worker.shards.values()) if worker.bytes is None else worker.bytes
        return Load(name, usage, history, worker.shards, total)


def _targets(given: SimpleNamespace) -> dict[str, Any]:
    not_negative(shards=given.shards)
    for name, each in given.workers.items():
        not_negative(f"workers.{name}.", shards=each.shards)
    workers = [Member(name, name, each.shards, each.draining) for name, each in given.workers.items()]
    skews = {name: each.skew for name, each in given.workers.items()}
    return {"targets": targets(workers, skews, given.shards)}


_REPORT = members(at=number, rate=number, throughput=number, shards=number, usage=number)
_WORKER = members(
    usage=Optional(named(number), {}),
    shards=Optional(named(number), {}),
    bytes=Optional(number, None),
    draining=Optional(flag, False),
)

FORM = Form(
    config=members(
        strategy=Optional(text, "threshold"),
        **OPTIONS,
    ),
    ops={
        "round": members(at=number, dry_run=Optional(flag, False), workers=named(_WORKER)),
        "moved": members(shard=text, at=number),
        "receivers": members(usage=named(number)),
        "report": members(last=_REPORT, now=_REPORT),
        "targets": members(
            shards=whole,
            workers=named(members(shards=whole, skew=Optional(whole, 0), draining=Optional(flag, False))),
        ),
    },
    begin=ShedModel,
)
