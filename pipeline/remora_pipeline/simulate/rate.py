"""Model `rate`: requests under limits of their token and their topic."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.policy.shaping.bucket import SECOND_US
from remora.policy.shaping.rates import Cost, Limit, Limited, Limits, Rate, RateBucket, Reserved, admit, rate_from
from remora_pipeline.simulate.checks import TICK_US, no_doubles, not_negative, one_of, within
from remora_pipeline.simulate.form import Optional, listed, members, number, or_null, text, whole
from remora_pipeline.simulate.script import Form

KINDS = ("publish", "reserve", "commit", "abort")
OUTCOMES = ("stored", "repeated", "refused")
REFUSED = 503
LIMITED = 429


class RateModel:
    """The limits of a host with one worker, and the reservations that are open."""

    def __init__(self, config: SimpleNamespace) -> None:
        within(*TICK_US, tick_us=config.tick_us)
        limits = [_limit(each) for each in config.limits]
        no_doubles((f"{each.of}:{each.name}" for each in limits), "limits")
        self._tick_us: int = config.tick_us
        self._buckets: list[RateBucket] = []
        self._limits = Limits(Limited(each, self._bucket(each.bytes), self._bucket(each.events)) for each in limits)
        self._reserved: dict[str, Reserved] = {}
        self._now = Fraction(0)

    def _bucket(self, rate: Rate | None) -> RateBucket | None:
        if rate is None:
            return None
        self._buckets.append(RateBucket(rate, self._tick_us))
        return self._buckets[-1]

    def step(self, _op: str, given: SimpleNamespace) -> dict[str, Any]:
        """One request."""
        at = Fraction(str(given.at))
        if at < self._now:
            raise ConfigError("at", "must not be before the request before")
        one_of(given.kind, KINDS, "kind")
        one_of(given.outcome, OUTCOMES, "outcome")
        not_negative(bytes=given.bytes, events=given.events)
        self._check_reservation(given)
        self._now = at
        ticks = int(at * SECOND_US // self._tick_us)
        for each in self._buckets:
            each.tick_to(ticks)
        cost = Cost(given.bytes, given.events)
        answer = self._end(given, cost) if given.kind in ("commit", "abort") else self._begin(given, cost)
        return {**answer, "levels": {f"{each.limit.of}:{each.limit.name}": _levels(each) for each in self._limits.all}}

    def _check_reservation(self, given: SimpleNamespace) -> None:
        if given.kind == "publish":
            return
        if given.id is None:
            raise ConfigError("id", "is missing")
        if given.kind == "reserve" and given.id in self._reserved:
            raise ConfigError("id", f"{given.id} is reserved already")
        if given.kind == "commit" and given.outcome == "stored" and given.id not in self._reserved:
            raise ConfigError("id", f"{given.id} is no open reservation")

    def _begin(self, given: SimpleNamespace, cost: Cost) -> dict[str, Any]:
        """A request at the door: refused before its body is read, or charged. A repeat stores no events."""
        limits = self._limits.for_request(given.token, given.topic)
        wait = admit(limits, cost)
        if wait:
            return {"status": LIMITED, "retry_after": wait}
        if given.outcome != "stored":
            for each in limits:
                each.charge(Cost(events=-cost.events))
        if given.outcome == "refused":
            return {"status": REFUSED}
        if given.kind == "publish":
            return {"status": 200}
        kept = cost if given.outcome == "stored" else Cost(cost.bytes)
        self._reserved[given.id] = Reserved(tuple(limits), kept)
        return {"status": 201}

    def _end(self, given: SimpleNamespace, cost: Cost) -> dict[str, Any]:
        """A reservation is committed or aborted, which no limit refuses; what the store refuses leaves it open."""
        if given.outcome == "refused":
            return {"status": REFUSED}
        reserved = self._reserved.pop(given.id, None) if given.outcome == "stored" else None
        if reserved is not None:
            reserved.settle(cost if given.kind == "commit" else Cost())
        return {"status": 200 if given.kind == "commit" else 204}


def _limit(each: SimpleNamespace) -> Limit:
    path = f"limits.{each.name}"
    of = one_of(each.of, ("token", "topic"), f"{path}.of")
    return Limit(
        of,
        each.name,
        (each.name,),
        bytes=rate_from((each.bytes, each.burst), ("bytes", "burst"), path),
        events=rate_from((each.events, each.burst_events), ("events", "burst_events"), path),
    )


def _levels(limited: Limited) -> dict[str, int]:
    both = {"bytes": limited.bytes, "events": limited.events}
    return {name: each.bucket.level for name, each in both.items() if isinstance(each, RateBucket)}


_RATE = Optional(or_null(whole), None)

FORM = Form(
    config=members(
        tick_us=Optional(whole, 10_000),
        limits=Optional(
            listed(members(of=text, name=text, bytes=_RATE, burst=_RATE, events=_RATE, burst_events=_RATE)), []
        ),
    ),
    ops={
        "request": members(
            at=number,
            kind=text,
            token=Optional(text, ""),
            topic=Optional(text, ""),
            bytes=Optional(whole, 0),
            events=Optional(whole, 0),
            id=Optional(or_null(text), None),
            outcome=Optional(text, "stored"),
        )
    },
    begin=RateModel,
)
