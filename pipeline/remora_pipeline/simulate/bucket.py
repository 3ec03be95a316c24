"""Model `bucket`: one bucket by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.policy.shaping.bucket import CreditBucket
from remora_pipeline.simulate.checks import not_negative
from remora_pipeline.simulate.form import Optional, flag, members, or_null, whole
from remora_pipeline.simulate.script import Form


class BucketModel:
    """A bucket and its budget."""

    def __init__(self, config: SimpleNamespace) -> None:
        not_negative(capacity=config.capacity, budget=config.budget)
        self._bucket = CreditBucket(config.capacity, config.level, config.budget)

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """One operation, and the bucket after it."""
        result = self._done(op, given)
        bucket = self._bucket
        return {**result, "level": bucket.level, "budget": bucket.budget, "debt": bucket.debt}

    def _done(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        bucket = self._bucket
        match op:
            case "fill":
                not_negative(credit=given.credit)
                return {"overflow": bucket.fill(given.credit)}
            case "drain":
                not_negative(cost=given.cost)
                return {"ok": bucket.drain(given.cost, force=given.force)}
            case "return":
                not_negative(bytes=given.bytes)
                return {"overflow": bucket.release(given.bytes)}
            case "take_returned":
                return {"bytes": bucket.take_returned()}
            case "transfer":
                not_negative(want=given.want)
                source = CreditBucket(level=given.source)
                moved = bucket.transfer(source, given.want)
                return {"moved": moved, "source": source.level, "complete": moved == given.want}
            case "set":
                not_negative(capacity=given.capacity, budget=given.budget)
                for name, value in vars(given).items():
                    if value is not LEFT_OUT:
                        setattr(self._bucket, name, value)
                return {}
            case _:
                not_negative(credit=given.credit)
                return {"ticks": self._until_positive(given.credit)}

    def _until_positive(self, credit: int) -> int:
        """Fills until the level is above 0, the last of them by itself, those before at once."""
        bucket = self._bucket
        if bucket.level > 0:
            return 0
        most = bucket.capacity if bucket.budget is None else min(bucket.capacity, bucket.level + bucket.budget)
        if credit == 0 or most <= 0:
            raise ConfigError("credit", "never makes the level positive")
        ticks = -bucket.level // credit + 1
        bucket.fill(credit * (ticks - 1))
        bucket.fill(credit)
        return ticks


class _LeftOut:
    """A member that was not given, where null is a value."""


LEFT_OUT: Any = _LeftOut()

FORM = Form(
    config=members(capacity=Optional(whole, 0), level=Optional(whole, 0), budget=Optional(or_null(whole), None)),
    ops={
        "fill": members(credit=whole),
        "drain": members(cost=whole, force=Optional(flag, False)),
        "return": members(bytes=whole),
        "take_returned": members(),
        "transfer": members(source=whole, want=whole),
        "set": members(
            capacity=Optional(whole, LEFT_OUT),
            level=Optional(whole, LEFT_OUT),
            budget=Optional(or_null(whole), LEFT_OUT),
        ),
        "until_positive": members(credit=whole),
    },
    begin=BucketModel,
)
