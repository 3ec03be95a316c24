"""Where a worker's shards wait for credit before they read what they are to send.

A shard asks before it lists its queue, so who waits holds no memory, no open transaction and nothing in a lane. What
was read has been paid for: it goes as fast as its endpoint takes it, also while the shard is handed over. Each request
goes along the groups of its topic, narrow to wide, and waits in the first that does not let it pass.

Off, when no scope is configured, it costs a comparison for each listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from remora.codec.topic import TRAFFIC_CLASS, parse_args
from remora.metrics import Telemetry
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.model.traffic import Priority, ScopeKind, TrafficClass
from remora.policy.classes import Rules, scope_of
from remora.policy.waiting import Account, Request, Waiting
from remora.ports.credit import Bank, Budgets, NoBank, NoBudgets

_RANK = MappingProxyType({kind: rank for rank, kind in enumerate(ScopeKind)})


@dataclass(frozen=True, slots=True)
class Way:
    """Which groups the listings of a topic pass, narrow to wide, and the highest class that they may have."""

    groups: tuple[str, ...]
    highest: TrafficClass


class Passing:
    """The account of a group that is no more: everything passes."""

    enabled = False
    times_disabled = -1

    def is_open(self, priority: str) -> bool:
        """True."""
        return True

    def level(self, bucket: str) -> int:
        """Nothing."""
        return 0

    def charge(self, priority: str, amount: int) -> None:
        """Nothing happens."""

    def give_back(self, priority: str, amount: int) -> None:
        """Nothing happens."""

    def count(self, priority: str, amount: int, *, charged: bool) -> None:
        """Nothing is counted."""


@dataclass(slots=True)
class Grant:
    """What a listing may send, in bytes. It is settled when its records are known, and closed when they are sent.

    Closing gives back what was charged and not handed to the endpoint, whatever the reason.
    """

    gate: Gate
    request: Request
    nbytes: int
    handed: int = 0

    def settle(self, actual: int) -> None:
        """The records have `nbytes` bytes: the difference comes back, or is taken by force."""
        self.gate.settle(self.request, self.nbytes, actual)
        self.nbytes = actual

    def part(self, nbytes: int) -> Grant:
        """A grant of its own for `nbytes` of them, which this one has no longer."""
        self.nbytes -= nbytes
        return Grant(self.gate, self.request, nbytes)

    def hand(self, nbytes: int) -> None:
        """`nbytes` of them are handed to the endpoint, and count whatever becomes of them."""
        self.handed += nbytes
        self.gate.count(self.request, nbytes)

    def close(self) -> None:
        """Nothing more of it will be sent."""
        self.settle(min(self.nbytes, self.handed))


@dataclass(frozen=True, slots=True)
class Wish:
    """What a shard asks for: `want` bytes of a topic, and those of one entry, `least`, at least.

    `at_tail` is False with a backlog, and where nothing is known yet.
    """

    topic: Topic
    shard: Shard
    want: int
    least: int
    at_tail: bool = False


@dataclass(slots=True)
class Pending:
    """A request for credit. `grant` is there as soon as it was granted."""

    gate: Gate
    wish: Wish
    request: Request
    asked_at: float
    grant: Grant | None = None
    waited_in: str = ""
    """The scope in which it began to wait."""
    _granted: asyncio.Future[None] | None = None

    @property
    def reason(self) -> str:
        """Where it waits, for the status."""
        return f"waits for {self.request.priority} of {self.request.waits_in}"

    async def wait(self) -> Grant:
        """Return when it is granted. Cancelling this leaves the request in its place: `cancel` gives it up."""
        if self.grant is None:
            if self._granted is None:
                self._granted = asyncio.get_running_loop().create_future()
                self.gate.waits(self)
            await asyncio.shield(self._granted)
        assert self.grant is not None
        return self.grant

    def cancel(self) -> None:
        """Give the request up, and what it was charged or granted back. Doing so again is no error."""
        self.gate.cancel(self)

    def pass_(self) -> None:
        """It has been granted."""
        self.grant = Grant(self.gate, self.request, self.request.want)
        self.gate.count_unacked(self.request, self.request.want)
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)


class Gate:
    """See the module. It belongs to one worker and its event loop."""

    def __init__(self, telemetry: Telemetry, bank: Bank | None = None, budgets: Budgets | None = None) -> None:
        self._telemetry = telemetry
        self._budgets: Budgets = budgets or NoBudgets()
        self._bank: Bank = bank or NoBank()
        self._rules = Rules()
        self._tick_s = 0.01
        self._accounts: dict[str, Account] = {}
        self._kinds: Mapping[str, ScopeKind] = {}
        self._waiting = Waiting(self._accounts)
        self._pending: dict[str, Pending] = {}
        self._ways: dict[tuple[str, str, str, str], Way] = {}
        self._unacked: dict[str, int] = {}
        self._asked = 0
        self._timer: asyncio.TimerHandle | None = None
        self._full: Mapping[Shard, float] = {}

    @property
    def is_on(self) -> bool:
        """Whether any scope is configured, enabled or not."""
        return bool(self._rules.scopes)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._pending)

    def waiting_by_scope(self) -> dict[tuple[str, str], int]:
        """How many requests wait, by scope and priority."""
        found: dict[tuple[str, str], int] = {}
        for each in self._pending.values():
            key = (scope_of(each.request.waits_in), each.request.priority)
            found[key] = found.get(key, 0) + 1
        return found

    def configure(self, rules: Rules, tick_s: float) -> None:
        """Use other rules from the next request on. Who waits in a group that is no more goes on at once."""
        self._rules, self._tick_s = rules, tick_s
        self._kinds = {each.name: each.of for each in rules.scopes}
        self._ways.clear()
        self.refresh()

    def refresh(self) -> None:
        """Groups have come or gone: what is known of them is asked for anew.

        One that is no more lets everything pass, and is forgotten when no request that waits has it before itself.
        """
        shared = {each.name: each.shared_limit for each in self._rules.scopes if each.shared_limit is not None}
        limits = {name: shared[scope] for name in self._bank.groups if (scope := scope_of(name)) in shared}
        self._budgets.configure(limits, lambda: {each.request.waits_in for each in self._pending.values()})
        for name in list(self._accounts):
            known = self._bank.find(name) == name and scope_of(name) in self._kinds
            self._accounts[name] = self._open(name) if known else Passing()
        for name, nbytes in self._unacked.items():
            self._bank.note_unacked(name, nbytes)
        self.surveyed(self._full)
        self._look()
        needed = {name for each in self._pending.values() for name in each.request.path}
        for name, account in list(self._accounts.items()):
            if isinstance(account, Passing) and name not in needed:
                del self._accounts[name]

    # ------------------------------------------------------------------------------------------ asking

    def way_of(self, topic: Topic) -> Way:
        """Which groups a topic's listings pass."""
        destination = topic.target.redacted.partition("://")[2]
        asked = parse_args(topic.target.args).get(TRAFFIC_CLASS, "")
        key = (topic.label, topic.tenant, destination, asked)
        way = self._ways.get(key)
        if way is None:
            groups = self._rules.groups_of(topic.label, topic.tenant, destination)
            way = self._ways[key] = Way(groups, self._rules.highest_class(topic.label, asked))
        return way

    def priority_of(self, topic: Topic, shard: Shard, *, at_tail: bool) -> Priority:
        """The priority of a shard of this topic; `at_tail` as in a Wish."""
        way, full = self.way_of(topic), self._full.get(shard, 0.0)
        return self._rules.class_of(way.highest, way.groups, at_tail=at_tail, full_percent=full).priority

    def has_backlog(self, *, truncated: bool, newest_age_s: float) -> bool:
        """Whether a listing shows that its shard is catching up."""
        return self._rules.has_backlog(truncated=truncated, newest_age_s=newest_age_s)

    def ask(self, wish: Wish) -> Pending:
        """Ask for the bytes of a listing."""
        pending = Pending(self, wish, self._request(wish), asyncio.get_running_loop().time())
        self._enter(pending)
        if pending.grant is None:
            self._tick_soon()
        return pending

    def waits(self, pending: Pending) -> None:
        """Somebody begins to wait for a request that was not granted at once."""
        request = pending.request
        pending.waited_in = scope_of(request.waits_in)
        self._telemetry.shaping_waits(pending.waited_in, request.priority)
        self._budgets.waits(request.waits_in)

    def surveyed(self, full: Mapping[Shard, float]) -> None:
        """How full the queues are, in percent; those that are left out are nearly empty. Who waits in a class that its
        shard has no longer goes to the end of the other one."""
        self._full = full
        for pending in list(self._pending.values()):
            if self._priority_of(pending.wish) != pending.request.priority:
                self.cancel(pending)
                pending.request = self._request(pending.wish)
                self._enter(pending)

    def force(self, wish: Wish) -> None:
        """Charge the bytes that are wanted without waiting, whatever the levels are."""
        request = self._request(wish)
        for name in request.path:
            account = self._accounts[name]
            is_charged = account.enabled
            if is_charged:
                account.charge(request.priority, wish.want)
            self._count(name, request.priority, wish.want, charged=is_charged)

    def _enter(self, pending: Pending) -> None:
        if self._waiting.ask(pending.request):
            self._pass(pending)
        else:
            self._pending[pending.request.name] = pending

    def _pass(self, pending: Pending) -> None:
        """Each scope counts for how long the grant has waited, which for most of them is not at all."""
        waited_s = asyncio.get_running_loop().time() - pending.asked_at
        for scope in {scope_of(name) for name in pending.request.path}:
            seconds = waited_s if scope == pending.waited_in else 0.0
            self._telemetry.shaping_waited(scope, pending.request.priority, seconds)
        pending.pass_()

    def _request(self, wish: Wish) -> Request:
        way = self.way_of(wish.topic)
        path = [name for group in way.groups if (name := self._bank.find(group)) is not None]
        for name in path:
            if name not in self._accounts:
                self._add(name)
        self._asked += 1
        return Request(str(self._asked), self._priority_of(wish), tuple(path), wish.want, wish.least)

    def _priority_of(self, wish: Wish) -> Priority:
        return self.priority_of(wish.topic, wish.shard, at_tail=wish.at_tail)

    def _add(self, name: str) -> None:
        """Let a group be known; groups are gone through from narrow to wide."""
        self._accounts[name] = self._open(name)
        in_order = sorted(self._accounts.items(), key=lambda each: self._rank(each[0]))
        self._accounts.clear()
        self._accounts.update(in_order)

    def _rank(self, name: str) -> int:
        kind = self._kinds.get(scope_of(name))
        return _RANK[kind] if kind is not None else len(_RANK)  # of a group that is no more nobody waits

    def _open(self, name: str) -> Account:
        return self._bank.account(name, _uncounted)

    # ---------------------------------------------------------------------------------------- granting

    def settle(self, request: Request, granted: int, actual: int) -> None:
        """A grant was really worth this much."""
        self.count_unacked(request, actual - granted)
        has_come_back = False
        for name, _, times_disabled in request.charges:
            account = self._accounts.get(name)
            if account is None or account.times_disabled != times_disabled:
                continue
            if actual > granted:
                account.charge(request.priority, actual - granted)
            elif actual < granted:
                account.give_back(request.priority, granted - actual)
                has_come_back = True
        if has_come_back and self._waiting:
            self._look()

    def count(self, request: Request, nbytes: int) -> None:
        """So many bytes of a grant are used."""
        charged = {name for name, _, _ in request.charges}
        for name in request.path:
            self._count(name, request.priority, nbytes, charged=name in charged)

    def _count(self, name: str, priority: str, nbytes: int, *, charged: bool) -> None:
        scope = scope_of(name)
        if scope in self._kinds:
            self._telemetry.shaping_granted(scope, priority, nbytes, charged)
            self._budgets.granted(name, nbytes)

    def count_unacked(self, request: Request, nbytes: int) -> None:
        """So many bytes more, or fewer, are granted to a request and acknowledged by no endpoint."""
        for name in request.path:
            unacked = self._unacked[name] = self._unacked.get(name, 0) + nbytes
            self._bank.note_unacked(name, unacked)
            if not unacked:
                del self._unacked[name]

    def cancel(self, pending: Pending) -> None:
        """Give a request up."""
        if self._pending.pop(pending.request.name, None) is not None:
            self._waiting.cancel(pending.request.name)
        elif pending.grant is not None:
            pending.grant.close()

    def _look(self) -> None:
        """Let go on who can by now."""
        for request in self._waiting.release():
            self._pass(self._pending.pop(request.name))

    def _tick_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        """One timer for all who wait, while anybody does."""
        self._timer = None
        self._look()
        if self._pending:
            self._tick_soon()


def _uncounted(_priority: str, _nbytes: int, _charged: bool) -> None:
    """Nothing: a grant counts when its bytes are handed over, since it is expected to be larger."""
