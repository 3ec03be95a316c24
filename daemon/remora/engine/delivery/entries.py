"""The entries of one session that are asked for, or read and not done: topic and destination have bounds of them."""

from __future__ import annotations

from remora.engine.delivery.shard_state import ReadStatistics
from remora.engine.entry_budget import EntryBudget
from remora.policy.permits import mean_records


class SessionEntries:
    """See the module. Whatever ends the session, `close` gives everything back."""

    def __init__(self, budget: EntryBudget, reads: ReadStatistics) -> None:
        self._budget = budget
        self._reads = reads
        self._asked = 0
        self._held = 0
        self.is_waiting = False
        """Whether a listing waits for acknowledgements."""

    @property
    def may_list(self) -> bool:
        """Whether entries are asked for, where there is a bound."""
        return self._asked > 0 or not self._budget.is_bounded

    async def ask(self, limit: int) -> int:
        """Wait until something may be listed; returns how many entries, at most `limit`."""
        self.is_waiting = True
        try:
            entries = await self._budget.ask(limit, self._reads.mean_records)
        finally:
            self.is_waiting = False
        self._asked += entries
        return entries

    def try_ask(self, limit: int) -> int:
        """As `ask`, without waiting; 0 where it would wait."""
        entries = self._budget.try_ask(limit, self._reads.mean_records)
        self._asked += entries
        return entries

    def within(self, limit: int) -> int:
        """How many entries the next listing may have, at most `limit`."""
        return min(limit, self._asked) if self._budget.is_bounded else limit

    def listed(self, entries: int) -> None:
        """A listing has come with `entries` of those that were asked for."""
        asked = min(self._asked, entries)
        self._asked -= asked
        self._held += entries
        self._budget.listed(asked, entries)

    def give_back(self, asked: int | None = None) -> None:
        """`asked` that were asked for are not listed; without a number all of them."""
        asked = self._asked if asked is None else asked
        self._asked -= asked
        self._budget.listed(asked, 0)

    def sent(self, records: int, entries: int) -> None:
        """A listing of `entries` entries made `records` records."""
        self._reads.mean_records = mean_records(self._reads.mean_records, records, entries)

    def done(self, entries: int) -> None:
        """`entries` that were listed are done."""
        self._held -= entries
        self._budget.release(entries)

    def close(self) -> None:
        """The session is over."""
        self.give_back()
        self.done(self._held)
