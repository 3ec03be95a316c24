"""Who waits for credit, and how a request goes along its groups: one member's part.

In each group there is one queue for each priority, first in first out. Priorities never block each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from remora.policy.cells import PRIORITIES


class Account(Protocol):
    """What a request needs of a group: one in memory, or a view of what the supervisor deals out."""

    @property
    def enabled(self) -> bool:
        """Whether the group is shaped now; else everything passes."""

    @property
    def times_disabled(self) -> int:
        """Tells charges apart that a group has forgotten, since it was disabled: they are not given back."""

    def is_open(self, priority: str) -> bool:
        """Whether a request may pass at once, with no other one waiting before it."""

    def level(self, bucket: str) -> int:
        """The credit of this member; negative is a debt."""

    def charge(self, priority: str, amount: int) -> None:
        """Take from this member's credit, from any level."""

    def give_back(self, priority: str, amount: int) -> None:
        """Return credit that was charged; what does not fit serves the other members."""

    def count(self, priority: str, amount: int, *, charged: bool) -> None:
        """Something goes, charged here, or because the group is disabled."""


@dataclass(slots=True)
class Request:
    """Bytes that a listing is expected to bring, wanted from all groups of its path, narrow to wide.

    `want` shrinks to what a group has; after the last group it is what was granted. `least` is what a group with any
    credit gives in any case.
    """

    name: str
    priority: str
    path: tuple[str, ...]
    want: int
    least: int
    place: int = 0
    charges: list[tuple[str, int, int]] = field(default_factory=list)
    """Group, amount, and how often the group had been disabled then."""

    @property
    def waits_in(self) -> str:
        """The group in which it waits."""
        return self.path[self.place]


_NOBODY: deque[Request] = deque()


class Waiting:
    """The queues of one member, in the groups as they are ordered, narrow to wide."""

    def __init__(self, groups: Mapping[str, Account]) -> None:
        self._groups = groups
        self._queues: dict[tuple[str, str], deque[Request]] = {}
        self._requests: dict[str, Request] = {}
        self._has_come_back = False

    def __contains__(self, name: str) -> bool:
        return name in self._requests

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._requests)

    def waiting(self, group: str, priority: str) -> tuple[str, ...]:
        """Who waits in a group, the first one first."""
        return tuple(each.name for each in self._queues.get((group, priority), ()))

    def ask(self, request: Request) -> bool:
        """Whether the request is granted at once, then `want`; else it waits where a group does not let it pass.

        The groups before that one are charged meanwhile.
        """
        return self._go_on(request)

    def release(self) -> list[Request]:
        """Let go on who can now, group by group, the highest priority first; answers those whose way is at its end."""
        done: list[Request] = []
        self._has_come_back = True
        while self._requests and self._has_come_back:
            self._has_come_back = False
            waited_in = {name for name, _ in self._queues}
            for name in [name for name in self._groups if name in waited_in]:
                group = self._groups[name]
                for priority in PRIORITIES:
                    queue = self._queues.get((name, priority), _NOBODY)
                    while queue and group.is_open(priority):
                        request = queue.popleft()
                        self._forget(request, queue)
                        del self._requests[request.name]
                        self._pay(request)
                        if self._go_on(request):
                            done.append(request)
        return done

    def cancel(self, name: str) -> bool:
        """Give up a request and give back what it was charged; whether it waited. Asking twice is no error."""
        request = self._requests.pop(name, None)
        if request is None:
            return False
        queue = self._queues[request.waits_in, request.priority]
        queue.remove(request)
        self._forget(request, queue)
        self._give_back(request, 0)
        return True

    def _forget(self, request: Request, queue: deque[Request]) -> None:
        """Deletes a queue that has become empty, so that a class without waiters costs nothing."""
        if not queue:
            del self._queues[request.waits_in, request.priority]

    def _go_on(self, request: Request) -> bool:
        while request.place < len(request.path):
            key = (request.waits_in, request.priority)
            if key in self._queues or not self._groups[request.waits_in].is_open(request.priority):
                self._queues.setdefault(key, deque()).append(request)
                self._requests[request.name] = request
                return False
            self._pay(request)
        self._finish(request)
        return True

    def _pay(self, request: Request) -> None:
        """Charge the group where the request is, as far as it is enabled, and go to the next."""
        name = request.waits_in
        group = self._groups[name]
        if group.enabled:
            level = group.level(request.priority)
            request.want = min(request.want, max(level, request.least))
            group.charge(request.priority, request.want)
            request.charges.append((name, request.want, group.times_disabled))
        request.place += 1

    def _finish(self, request: Request) -> None:
        """All groups let it pass: those before the narrowest place get back what they were charged beyond it."""
        self._give_back(request, request.want)
        charged = {name for name, _, _ in request.charges}
        for name in request.path:
            self._groups[name].count(request.priority, request.want, charged=name in charged)

    def _give_back(self, request: Request, keep: int) -> None:
        for name, amount, times_disabled in request.charges:
            group = self._groups[name]
            if amount > keep and group.times_disabled == times_disabled:
                group.give_back(request.priority, amount - keep)
                self._has_come_back = True
