"""Where a worker's shards wait before they read: for credit to send, then for entries, then for bytes to hold.

A shard asks for credit before it reads, so who waits for it holds no memory, no open transaction and nothing in a lane.
What was read has been paid for: it goes as fast as its endpoint takes it, also while the shard is handed over.

Without a configured scope of shaping, credit costs a comparison for each page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from remora.codec.topic import TRAFFIC_CLASS, parse_args
from remora.metrics import Telemetry
from remora.model.record import Page
from remora.model.shard import Shard
from remora.model.topic import Target, Topic
from remora.model.traffic import PrincipalKind, Priority, ScopeKind, TrafficClass
from remora.policy.admission.limits import ByteLimit, CreditLimit, EntryLimit
from remora.policy.admission.line import AdmissionLimit, Demand, WaitingLine
from remora.policy.shaping.cells import MemberAccount
from remora.policy.shaping.classes import NO_ADDRESSES, Introduction, Parties, Rules, names_in, scope_of
from remora.policy.shaping.credit_flows import CreditFlow, CreditFlows
from remora.ports.credit import Bank, Budgets, NoBank, NoBudgets

_PRIORITIES = tuple(Priority)
_INTRODUCED = (PrincipalKind.TOKEN, PrincipalKind.CERTIFICATE)
_KINDS = MappingProxyType({kind: rank for rank, kind in enumerate(ScopeKind)})


@dataclass(frozen=True, slots=True)
class Way:
    """Which groups the pages of a topic pass, narrow to wide, and the highest class that they may have.

    `addresses` are those of its brokers, by name, where they decide about its groups.
    """

    groups: tuple[str, ...]
    highest: TrafficClass
    addresses: str = ""


@dataclass(frozen=True, slots=True)
class QueueFill:
    """How full a queue is, in percent, and how many entries wait in it, as of the last survey."""

    percent: float = 0.0
    entries: int = 0


EMPTY = QueueFill()


@dataclass(slots=True)
class Grant:
    """What a page may send, in bytes. It is settled when its records are known, and closed when they are sent.

    Closing gives back what was charged and not handed to the endpoint, whatever the reason.
    """

    gate: Gate
    request: Demand
    nbytes: int
    handed: int = 0

    def settle(self, actual: int) -> None:
        """The records have this many bytes: the difference comes back, or is taken by force."""
        self.gate.charge(self.request, actual - self.nbytes)
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


@dataclass(slots=True, eq=False)
class Pending:
    """A shard's request for credit, which may outlive a session. `grant` is there as soon as it was granted.

    `at_tail` is False with a backlog, and where nothing is known yet.
    """

    gate: Gate
    topic: Topic
    shard: Shard
    at_tail: bool
    request: Demand
    turn: asyncio.Future[None]
    asked_at: float
    grant: Grant | None = None
    waited_in: str = ""
    """The group in which it began to wait."""

    @property
    def group(self) -> str:
        """The group in which it waits."""
        limit = self.request.waits_in
        assert isinstance(limit, CreditLimit)
        return limit.group

    @property
    def reason(self) -> str:
        """Where it waits, for the status."""
        return f"waits for {self.request.priority} of {self.group}{self.gate.shown_addresses(self)}"

    async def wait(self) -> None:
        """Return when it is granted. Cancelling this leaves the request in its place: `cancel` gives it up."""
        await asyncio.shield(self.turn)

    def cancel(self) -> None:
        """Give the request up, and what it was charged or granted back. Doing so again is no error."""
        self.gate.cancel(self)


class Gate:
    """See the module. It belongs to one worker and its event loop."""

    def __init__(self, telemetry: Telemetry, bank: Bank | None = None, budgets: Budgets | None = None) -> None:
        self.introduce: Callable[[Topic, Sequence[str]], Introduction] = lambda _, __: Introduction()
        """Who sends to a topic and receives from it, with the addresses of the hosts of these names."""
        self._telemetry = telemetry
        self._budgets: Budgets = budgets or NoBudgets()
        self._bank: Bank = bank or NoBank()
        self._rules = Rules()
        self._tick_s = 0.01
        self._accounts: dict[str, MemberAccount] = {}
        self._kinds: Mapping[str, ScopeKind] = {}
        self._line = WaitingLine(self._rank, self._begins_to_wait)
        self._pending: dict[Demand, Pending] = {}
        self._turns: dict[Demand, asyncio.Future[None]] = {}
        self._crowded: dict[ByteLimit, None] = {}
        self._evicting: set[ByteLimit] = set()
        self._ways: dict[tuple[str, str, Target], Way] = {}
        self._limits: dict[tuple[str, str], CreditLimit] = {}
        self._unacked: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flows = CreditFlows()
        self._fills: Mapping[Shard, QueueFill] = {}

    # --------------------------------------------------------------------------- entries, and bytes to hold

    async def admit(self, request: Demand) -> None:
        """Wait until all limits of a request let it pass. Whatever ends the wait early, it holds nothing then."""
        if not self._line.ask(request):
            turn = self._turns[request] = asyncio.get_running_loop().create_future()
            self.free(())
            try:
                await turn
            except asyncio.CancelledError:
                self.release(request)
                raise
            finally:
                del self._turns[request]
        else:
            self.free(())

    def admit_now(self, request: Demand) -> bool:
        """As `admit`, without waiting and without passing anybody by; whether it was granted."""
        is_granted = self._line.ask_now(request)
        self.free(())
        return is_granted

    def release(self, request: Demand) -> None:
        """Return all that a request holds."""
        self._line.cancel(request)
        self.free(())

    def free(self, limits: Sequence[AdmissionLimit]) -> None:
        """More may pass in these limits: let go on who can."""
        if not self._line:
            return
        self._line.free(limits)
        before = [(each, self._line.first(each)) for each in self._line.freed if isinstance(each, ByteLimit)]
        self._look()
        for room, first in before:
            if self._line.first(room) is not first:
                self._crowded[room] = None
        while self._crowded:
            self.make_room(self._crowded.popitem()[0])

    def make_room(self, room: ByteLimit) -> None:
        """Have others release some for the first that waits; then for the next one, as long as that helps."""
        if room not in self._evicting:
            self._evicting.add(room)
            try:
                while (first := self._line.first(room)) is not None:
                    for where, short in room.shortages(first):
                        where.evict(short)
                        if self._line.first(room) is not first:
                            break
                    else:
                        break
            finally:
                self._evicting.discard(room)
        if room.within is not None and self._line:
            self.make_room(room.within)

    def _begins_to_wait(self, request: Demand) -> None:
        limit = request.waits_in
        if isinstance(limit, ByteLimit):
            self._crowded[limit] = None
        elif isinstance(limit, EntryLimit) and limit.name:
            self._telemetry.unacked_waited(limit.name)

    # ------------------------------------------------------------------------------------------ shaping

    @property
    def is_on(self) -> bool:
        """Whether any scope is configured, enabled or not."""
        return bool(self._rules.scopes)

    @property
    def waiting(self) -> int:
        """How many requests wait for credit."""
        return len(self._pending)

    @property
    def flows(self) -> list[CreditFlow]:
        """What became of requests for credit, by group and priority."""
        return self._flows.all

    def waiting_by_scope(self) -> dict[tuple[str, str], int]:
        """How many requests wait for credit, by scope and priority."""
        found: dict[tuple[str, str], int] = {}
        for each in self._pending.values():
            key = (scope_of(each.group), str(each.request.priority))
            found[key] = found.get(key, 0) + 1
        return found

    def configure(self, rules: Rules, tick_s: float) -> None:
        """Use other rules from the next request on. Who waits in a group that is gone goes on at once."""
        self._rules, self._tick_s = rules, tick_s
        self._kinds = {each.name: each.of for each in rules.scopes}
        self.refresh()

    def refresh(self) -> None:
        """Groups have come or gone, or senders and receivers have other names: what is known of them is asked for anew.

        A group that is gone lets everything pass.
        """
        self._ways.clear()
        shared = {each.name: each.shared_limit for each in self._rules.scopes if each.shared_limit is not None}
        limits = {name: shared[scope] for name in self._bank.groups if (scope := scope_of(name)) in shared}
        self._budgets.configure(limits, lambda: {each.group for each in self._pending.values()})
        self._accounts.clear()
        self._flows.keep(self._is_known)
        self._limits = {each: limit for each, limit in self._limits.items() if self._is_known(limit.group)}
        self._accounts |= {each.group: self._bank.account(each.group) for each in self._limits.values()}
        for name, nbytes in self._unacked.items():
            self._bank.note_unacked(name, nbytes)
        for pending in list(self._pending.values()):
            self._ask_again(pending)
        self._look_for_credit()

    def _is_known(self, group: str) -> bool:
        return self._bank.find(group) == group and scope_of(group) in self._kinds

    def way_of(self, topic: Topic) -> Way:
        """Which groups a topic's pages pass."""
        key = (topic.label, topic.owner, topic.target)
        way = self._ways.get(key)
        if way is None:
            parties = self._parties_of(topic)
            highest = self._rules.highest_class(parties, parse_args(topic.target.args).get(TRAFFIC_CLASS, ""))
            groups = self._rules.groups_of(parties)
            decides = groups != self._rules.groups_of(replace(parties, addresses=NO_ADDRESSES))
            shown = ", ".join(f"{name} is {' and '.join(found)}" for name, found in parties.addresses.items())
            way = self._ways[key] = Way(groups, highest, shown if decides else "")
        return way

    def _parties_of(self, topic: Topic) -> Parties:
        destination = topic.target.redacted.partition("://")[2]
        names = names_in(destination) if self._rules.has_networks else ()
        is_asked = names or any(each.of in _INTRODUCED for each in self._rules.principals)
        known = self.introduce(topic, names) if is_asked else Introduction()
        return Parties(
            topic.label, topic.tenant, destination, topic.owner, known.certificate, known.tokens, known.addresses
        )

    def priority_of(self, topic: Topic, shard: Shard, *, at_tail: bool) -> Priority:
        """The priority of a shard of this topic; `at_tail` as in a Pending."""
        way, full = self.way_of(topic), self._fills.get(shard, EMPTY).percent
        return self._rules.class_of(way.highest, way.groups, at_tail=at_tail, full_percent=full).priority

    def shown_addresses(self, pending: Pending) -> str:
        """The addresses for which a request waits in its group, in brackets; nothing where names decide."""
        is_there = self._kinds.get(scope_of(pending.group)) is ScopeKind.DESTINATION
        addresses = self.way_of(pending.topic).addresses if is_there else ""
        return f" ({addresses})" if addresses else ""

    def has_backlog(self, shard: Shard, page: Page, newest_age_s: float) -> bool:
        """Whether a page shows that its shard is catching up; what waits is known by the page and by the last survey,
        of which the higher count holds."""
        waiting = max(self._fills.get(shard, EMPTY).entries, len(page.entries) + page.truncated)
        return self._rules.behind.has_backlog(truncated=page.truncated, newest_age_s=newest_age_s, waiting=waiting)

    def request(self, topic: Topic, shard: Shard, want: int, least: int, *, at_tail: bool) -> Demand:
        """A request for the credit of `want` bytes of a topic, and those of one entry, `least`, at least."""
        way, priority = self.way_of(topic), self.priority_of(topic, shard, at_tail=at_tail)
        path = [name for group in way.groups if (name := self._bank.find(group)) is not None]
        return Demand(priority, tuple(self._limit(name, priority) for name in path), want, least)

    def ask_now(self, request: Demand) -> Grant | None:
        """The credit of a request, where it need not wait for it."""
        return self._grant(request) if self._line.ask_now(request) else None

    def ask(self, topic: Topic, shard: Shard, request: Demand, *, at_tail: bool) -> Pending:
        """Let a request for credit wait, where there is none at once."""
        loop = asyncio.get_running_loop()
        pending = Pending(self, topic, shard, at_tail, request, loop.create_future(), loop.time())
        self._enter(pending)
        if pending.grant is None:
            pending.waited_in = pending.group
            self._telemetry.shaping_waits(scope_of(pending.group), request.priority)
            self._flows.of(pending.group, request.priority).deferred += 1
            self._budgets.waits(pending.group)
            self._tick_soon()
        return pending

    def surveyed(self, fills: Mapping[Shard, QueueFill]) -> None:
        """How full the queues are; those that are left out are nearly empty. Who waits in a class that its shard has no
        longer goes to the end of the other one."""
        self._fills = fills
        for each in list(self._pending.values()):
            if self.priority_of(each.topic, each.shard, at_tail=each.at_tail) != each.request.priority:
                self._ask_again(each)

    def force(self, request: Demand) -> None:
        """Charge the bytes that are wanted without waiting, whatever the levels are."""
        for name in groups_of(request):
            if is_charged := self._accounts[name].enabled:
                self._accounts[name].charge(request.priority, request.want)
            self._count(name, request.priority, request.want, charged=is_charged)

    def use_store(self, priority: Priority, nbytes: int) -> bool:
        """The host's traffic with its store, beside listings, takes so many bytes without waiting.

        Returns whether there is credit for more, and nobody waits for it.
        """
        scope = next((each for each in self._rules.scopes if each.of is ScopeKind.STORE), None)
        if scope is None or (name := self._bank.find(scope.name)) is None:
            return True
        limit = self._limit(name, priority)
        self.force(Demand(priority, (limit,), nbytes))
        return self._line.first(limit) is None and self._accounts[name].is_open(priority)

    def cancel(self, pending: Pending) -> None:
        """Give a request up."""
        if self._pending.pop(pending.request, None) is not None:
            self._line.cancel(pending.request)
        elif pending.grant is not None:
            pending.grant.close()

    def _ask_again(self, pending: Pending) -> None:
        """Let a request wait where its shard's pages pass by now, at the end; one that waits there already stays."""
        before = pending.request
        request = self.request(pending.topic, pending.shard, before.wanted, before.least, at_tail=pending.at_tail)
        if (request.priority, groups_of(request)) != (before.priority, groups_of(before)):
            self.cancel(pending)
            pending.request = request
            self._enter(pending)

    def _enter(self, pending: Pending) -> None:
        if self._line.ask(pending.request):
            self._pass(pending)
        else:
            self._pending[pending.request] = pending

    def _pass(self, pending: Pending) -> None:
        waited_s = asyncio.get_running_loop().time() - pending.asked_at
        pending.grant = self._grant(pending.request, pending.waited_in, waited_s)
        if not pending.turn.done():
            pending.turn.set_result(None)

    def _grant(self, request: Demand, waited_in: str = "", waited_s: float = 0.0) -> Grant:
        """Each scope counts for how long the grant has waited, which for most of them is not at all."""
        for name in groups_of(request):
            has_waited = name == waited_in
            self._telemetry.shaping_waited(scope_of(name), request.priority, waited_s if has_waited else 0.0)
            self._flows.let_go(name, request.priority, waited_s if has_waited else None)
        self.count_unacked(request, request.want)
        return Grant(self, request, request.want)

    def _limit(self, name: str, priority: Priority) -> CreditLimit:
        limit = self._limits.get((name, priority))
        if limit is None:
            if name not in self._accounts:
                self._accounts[name] = self._bank.account(name)
            limit = self._limits[name, priority] = CreditLimit(name, priority, self._accounts)
        return limit

    def _rank(self, limit: AdmissionLimit) -> int:
        """Credit is looked at from narrow to wide groups, in each from the highest priority on."""
        if not isinstance(limit, CreditLimit):
            return 0
        kind = self._kinds.get(scope_of(limit.group))  # of a group that is gone nobody waits
        rank = _KINDS[kind] if kind is not None else len(_KINDS)
        return rank * len(_PRIORITIES) + _PRIORITIES.index(Priority(limit.priority))

    # ---------------------------------------------------------------------------------------- granting

    def charge(self, request: Demand, more: int) -> None:
        """A grant is worth so much more than was charged, or less."""
        self.count_unacked(request, more)
        for hold, name in zip(request.holds, groups_of(request), strict=True):
            if more < 0 and hold.is_charged:
                self._flows.of(name, request.priority).given_back_bytes -= more
            self._line.settle(hold, hold.amount + more)
        self._look()

    def count(self, request: Demand, nbytes: int) -> None:
        """So many bytes of a grant are used."""
        for hold, name in zip(request.holds, groups_of(request), strict=True):
            self._count(name, request.priority, nbytes, charged=hold.is_charged)

    def _count(self, name: str, priority: str, nbytes: int, *, charged: bool) -> None:
        scope = scope_of(name)
        if scope in self._kinds:
            self._telemetry.shaping_granted(scope, priority, nbytes, charged)
            self._flows.sent(name, priority, nbytes, is_charged=charged)
            self._budgets.granted(name, nbytes)

    def count_unacked(self, request: Demand, nbytes: int) -> None:
        """So many bytes more, or fewer, are granted to a request and acknowledged by no endpoint."""
        for name in groups_of(request):
            unacked = self._unacked[name] = self._unacked.get(name, 0) + nbytes
            self._bank.note_unacked(name, unacked)
            if not unacked:
                del self._unacked[name]

    def _look(self) -> None:
        """Let go on who can where something was freed."""
        for request in self._line.look():
            pending = self._pending.pop(request, None)
            if pending is not None:
                self._pass(pending)
            elif not (turn := self._turns[request]).done():
                turn.set_result(None)

    def _look_for_credit(self) -> None:
        """Let go on who can, in all groups."""
        self._line.free([each for each in self._line.waited_in if isinstance(each, CreditLimit)])
        self._look()

    def _tick_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        """One timer for all who wait for credit, while anybody does."""
        self._timer = None
        self._look_for_credit()
        if self._pending:
            self._tick_soon()


def groups_of(request: Demand) -> list[str]:
    """The groups that a request for credit passes, narrow to wide."""
    return [each.group for each in request.limits if isinstance(each, CreditLimit)]
