"""Model `quarantine`: destinations that fail a worker, or many workers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.policy.ownership.quarantine import (
    ANSWERED,
    CONNECT,
    COUNTED,
    NOT_COUNTED,
    Quarantine,
    QuarantineOptions,
    owners,
)
from remora_pipeline.simulate.checks import at_least, not_negative, one_of, within
from remora_pipeline.simulate.form import Kind, Optional, flag, members, named, number, or_null, text, whole
from remora_pipeline.simulate.script import Form

KINDS = (*COUNTED, CONNECT, ANSWERED, *NOT_COUNTED)
ONE = "destination"
MOST_CLIENTS = 1_000_000
MOST_ENDS = 10_000_000
"""Windows that all clients together may close in one step: some seconds."""


class QuarantineModel:
    """One worker."""

    def __init__(self, config: SimpleNamespace) -> None:
        self._options = options_of(config)
        self._interval_s = config.interval
        self._quarantine = Quarantine(self._options)

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """Something happens at one worker; or a decision of all."""
        quarantine = self._quarantine
        match op:
            case "error":
                at_least(0, count=given.count)
                kind = one_of(given.kind, KINDS, "kind")
                if kind == ANSWERED:
                    quarantine.answered(given.destination, given.at, given.topic)
                return {"errors": quarantine.error(given.destination, kind, given.count, given.topic)}
            case "window":
                return self._close(given)
            case "look":
                return {
                    "quarantined": quarantine.is_quarantined(given.destination, given.at),
                    "held_back_by": quarantine.held_back_by(given.destination, given.topic, given.at),
                }
            case "succeeded":
                return {"released": quarantine.succeeded(given.destination, given.at, given.topic)}
            case "enable":
                quarantine.enabled = given.enabled
                return {}
            case "release":
                return {"released": quarantine.release(given.destination)}
            case "owners":
                not_negative(need=given.need)
                return {"owners": owners(given.workers, given.need)}
            case _:
                return self._clients(given)

    def _close(self, given: SimpleNamespace) -> dict[str, Any]:
        for name, chance in given.chance.items():
            if not 0 <= chance < 1:
                raise ConfigError(f"chance.{name}", "must be at least 0 and below 1")
        quarantine = self._quarantine
        closed = quarantine.close(given.at, given.chance)
        return {
            "entered": closed.entered,
            "skipped": closed.skipped,
            "released": closed.released,
            "until": quarantine.until(given.at),
            "counts": {"quarantined": quarantine.quarantined, "skipped": quarantine.skipped},
        }

    def _clients(self, given: SimpleNamespace) -> dict[str, Any]:
        """The given workers; one destination fails for all of them in each window."""
        within(0, MOST_CLIENTS, number=given.number)
        within(0, MOST_ENDS // max(1, given.number), windows=given.windows)
        chance = random.Random(given.seed)  # noqa: S311  (a script's own chance, which is to repeat)
        options = QuarantineOptions(True, self._options.threshold, self._options.time_s, _part(given.ratio))
        workers = [Quarantine(options) for _ in range(given.number)]
        entered: list[int] = []
        now = 0
        for _ in range(given.windows):
            now += self._interval_s
            for each in workers:
                each.error(ONE, COUNTED[0], options.threshold)
            closed = [each.close(now, {ONE: chance.random()}) for each in workers]
            entered.append(sum(len(each.entered) for each in closed))
        return {
            "quarantined": sum(each.is_quarantined(ONE, now) for each in workers),
            "entered": entered,
            "windows_with_entries": sum(each > 0 for each in entered),
        }


def options_of(config: SimpleNamespace) -> QuarantineOptions:
    """The options of a worker's quarantines. Raises ConfigError."""
    at_least(1, threshold=config.threshold)
    not_negative(interval=config.interval, time=config.time)
    return QuarantineOptions(
        config.enabled,
        config.threshold,
        config.time,
        _part(config.ratio),
        config.connect_errors,
        config.early_release,
    )


def options_form(ratio: float) -> Kind:
    """The form of these options, with the ratio that counts where none is given."""
    return members(
        enabled=Optional(flag, True),
        threshold=Optional(whole, 5),
        interval=Optional(number, 60),
        time=Optional(number, 1800),
        ratio=Optional(number, ratio),
        connect_errors=Optional(flag, False),
        early_release=Optional(flag, True),
    )


def _part(ratio: float) -> float:
    if not 0 <= ratio <= 1:
        raise ConfigError("ratio", "must be from 0 to 1")
    return ratio


TOPIC = Optional(text, "")

FORM = Form(
    config=options_form(ratio=1.0),
    ops={
        "error": members(at=number, destination=text, kind=text, count=Optional(whole, 1), topic=TOPIC),
        "window": members(at=number, chance=Optional(named(number), {})),
        "look": members(at=number, destination=text, topic=TOPIC),
        "succeeded": members(at=number, destination=text, topic=TOPIC),
        "enable": members(enabled=flag),
        "release": members(destination=Optional(or_null(text), None)),
        "owners": members(workers=named(flag), need=Optional(whole, 1)),
        "clients": members(number=whole, ratio=number, windows=whole, seed=whole),
    },
    begin=QuarantineModel,
)
