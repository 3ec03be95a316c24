"""Counts what becomes of requests for credit, by group and priority."""

from __future__ import annotations

from collections.abc import Callable

from remora.model.credit_flow import CreditFlow
from remora.policy.waits import WaitCounts


class CreditFlows:
    """See the module. It belongs to one gate."""

    def __init__(self) -> None:
        self._flows: dict[tuple[str, str], tuple[CreditFlow, WaitCounts]] = {}

    def of(self, group: str, priority: str) -> CreditFlow:
        """The counters of a group's priority, to count in."""
        return self._both(group, priority)[0]

    def let_go(self, group: str, priority: str, waited_s: float | None) -> None:
        """A request was granted: at once, or after so long."""
        flow, waits = self._both(group, priority)
        if waited_s is None:
            flow.at_once += 1
        else:
            flow.waited += 1
            waits.add(round(waited_s * 1e6))

    def sent(self, group: str, priority: str, nbytes: int, *, is_charged: bool) -> None:
        """Bytes were handed to an endpoint, charged or while the scope was disabled."""
        flow = self.of(group, priority)
        if is_charged:
            flow.granted_bytes += nbytes
        else:
            flow.passed_bytes += nbytes

    def _both(self, group: str, priority: str) -> tuple[CreditFlow, WaitCounts]:
        found = self._flows.get((group, priority))
        if found is None:
            waits = WaitCounts()
            flow = CreditFlow(group=group, priority=str(priority), waits=waits.by_bucket)
            found = self._flows[group, priority] = flow, waits
        return found

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """Forget groups that are gone."""
        self._flows = {key: each for key, each in self._flows.items() if is_known(key[0])}

    @property
    def all(self) -> list[CreditFlow]:
        """Every flow that anything was counted of."""
        return [flow for flow, _ in self._flows.values()]
