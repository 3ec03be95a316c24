"""Model `reads`: how many entries a shard's next listing asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.policy.admission.limits import Unacked, entries_to_list, mean_records
from remora.policy.delivery.retry import read_limit
from remora_pipeline.simulate.checks import at_least, not_negative
from remora_pipeline.simulate.form import Optional, flag, members, number, or_null, whole
from remora_pipeline.simulate.script import Form

MANY = 1_000


class Permits:
    """Records that one shard may still send (None: any number), and how many an entry makes on average.

    What was listed is sent, so permits may fall below 0. Of `max_unacked` records (0: any number) it is full as
    `Unacked` is.
    """

    def __init__(self, permits: int | None = None, max_unacked: int = 0, average: float | None = None) -> None:
        self.permits = permits
        self.average = average
        self._unacked = Unacked(max_unacked)

    @property
    def unacked(self) -> int:
        """How many records are under way."""
        return self._unacked.count

    @property
    def is_full(self) -> bool:
        """Whether the records under way forbid another listing."""
        return self._unacked.is_full

    def entries(self, limit: int, *, precise: bool = True, writable: bool = True) -> int:
        """How many entries to list, at most `limit`; 0: none now. Not `writable`: the endpoint takes nothing."""
        if self.is_full or (self.permits is not None and self.permits <= 0):
            return 0
        return entries_to_list(limit, self.permits if writable else 1, self.average if precise else None)

    def sent(self, records: int, entries: int) -> None:
        """A listing of `entries` entries made `records` records, which are under way now."""
        self.average = mean_records(self.average, records, entries)
        if self.permits is not None:
            self.permits -= records
        self._unacked.sent(records)

    def acked(self, records: int) -> None:
        """`records` records are acknowledged."""
        self._unacked.sent(-records)


class ReadsModel:
    """One shard's reads. It begins as after many successes."""

    def __init__(self, config: SimpleNamespace) -> None:
        at_least(1, least=config.least, most=config.most, growth=config.growth)
        not_negative(max_unacked=config.max_unacked)
        if config.average is not None and config.average <= 0:
            raise ConfigError("average", "must be above 0")
        self._config = config
        self._most: int = config.most
        self._successes = MANY
        self._is_listing = False
        self._permits = Permits(config.permits, config.max_unacked, config.average)

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """What the next listing is, or what has happened meanwhile."""
        permits = self._permits
        match op:
            case "next":
                return {"entries": self._next(given)}
            case "failed":
                self._successes = 0
            case "arrived":
                self._successes += 1
            case "begin" | "done":
                self._is_listing = op == "begin"
            case "set":
                at_least(1, most=given.most)
                self._most = given.most
            case "grant":
                not_negative(permits=given.permits)
                if permits.permits is not None:
                    permits.permits += given.permits
                return {"permits": permits.permits}
            case "sent":
                not_negative(records=given.records, entries=given.entries)
                permits.sent(given.records, given.entries)
                return {"average": permits.average, "permits": permits.permits, **self._unacked()}
            case _:
                not_negative(records=given.records)
                if given.records > permits.unacked:
                    raise ConfigError("records", f"there are {permits.unacked} not acknowledged")
                permits.acked(given.records)
                return self._unacked()
        return {}

    def _next(self, given: SimpleNamespace) -> int:
        not_negative(most_bytes=given.most_bytes, mean_bytes=given.mean_bytes)
        if self._is_listing:
            return 0
        limit = read_limit(self._successes, self._most, self._config.least, self._config.growth)
        if given.most_bytes is not None and given.mean_bytes:
            limit = min(limit, max(1, int(given.most_bytes // given.mean_bytes)))
        return self._permits.entries(limit, precise=self._config.precise, writable=given.writable)

    def _unacked(self) -> dict[str, Any]:
        return {"unacked": self._permits.unacked, "blocked": self._permits.is_full}


FORM = Form(
    config=members(
        least=Optional(whole, 16),
        most=Optional(whole, 1024),
        growth=Optional(whole, 8),
        precise=Optional(flag, True),
        average=Optional(or_null(number), None),
        permits=Optional(or_null(whole), None),
        max_unacked=Optional(whole, 0),
    ),
    ops={
        "next": members(
            writable=Optional(flag, True),
            most_bytes=Optional(or_null(whole), None),
            mean_bytes=Optional(or_null(number), None),
        ),
        "failed": members(),
        "arrived": members(),
        "begin": members(),
        "done": members(),
        "set": members(most=whole),
        "grant": members(permits=whole),
        "sent": members(records=whole, entries=whole),
        "acked": members(records=whole),
    },
    begin=ReadsModel,
)
