"""How the workers share the shards: who the others are, how many are this one's share, and what it gives to whom.

Every second or so a worker announces itself in the store and reads who else does. It takes free shards up to its share
(`has_room`); what is beyond it is offered to those who have less, in the worker's own row:

1. the owner offers: `offers` in its row, and goes on delivering;
2. the receiver sees the offer, says so (`expects` in its row), and asks for the lock again and again;
3. the owner sees that, finishes what is in flight, removes, unlocks, and takes the offer back.

So a shard rests only from the last removal to the receiver's next try. No step gives anybody a right: only the lock
does, and a row that is old, or lies, costs at worst a needless move.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from remora.engine.held import Held
from remora.metrics import Telemetry
from remora.model.cookie import WorkerCookie
from remora.model.errors import StoreError
from remora.model.member import Member, Offer
from remora.model.shard import Shard
from remora.policy.balance import choose, deal, gifts, targets
from remora.ports.delivery import Members

LOOK_S, LOOK_OFTEN_S = 1.0, 0.25
"""How often the others are looked at: usually, and while shards move or workers begin."""

LEAST_PAUSE_S = 0.05
"""What comes together, as many shards that arrive, is said together."""

TTL_S = 10.0
"""A worker that announces nothing for this long, or for a whole lease where that is shorter, is counted no more."""

ANNOUNCEMENTS_IN_TTL = 4

STEADY_S = 1.0
"""Nothing is offered before the workers have been the same for this long: those that start together come one by one."""

FELLOWS_WITHIN_S = 3.0
"""How long the workers that start together wait for each other before they take anything."""

PATIENCE_S = 3.0
"""A worker that drains gives a shard up after this long although nobody has said that it expects it."""

EXPECT_S = 2.0
"""A shard is expected for this long after its offer was last seen: it is free then, or somebody else's."""


@dataclass(slots=True)
class Outgoing:
    """A shard on offer; `begun` when it is being given back, which nothing stops any more."""

    to: str
    since: float
    begun: bool = False


class Spread:
    """See the module."""

    def __init__(
        self,
        store: Members,
        telemetry: Telemetry,
        cookie: str,
        lease_s: float,
        fellows: int,
        held: Mapping[Shard, Held],
        *,
        eligible: Callable[[], int],
        wants: Callable[[Shard], bool],
        hand_over: Callable[[Shard, str], None],
        changed: Callable[[], None],
    ) -> None:
        """`eligible` tells how many shards the workers share, `wants` whether this one would take a shard.

        `hand_over` is called with a shard that its receiver waits for; `changed` when something may be taken. Before
        anything is taken, so many `fellows` are waited for, for a moment.
        """
        self._store = store
        self._telemetry = telemetry
        self._cookie = cookie
        self._ttl_s = min(TTL_S, lease_s)
        self._fellows = fellows
        self._held = held
        self._eligible = eligible
        self._wants = wants
        self._hand_over = hand_over
        self._changed = changed
        worker = WorkerCookie.parse(cookie)
        self._host = worker.host if worker else ""
        self._announced: Member | None = None
        self._announced_at = self.steady_since = asyncio.get_running_loop().time()
        self._offers: dict[Shard, Outgoing] = {}
        self._expects: dict[Shard, float] = {}
        self._promised: dict[Shard, float] = {}
        self._occasion = asyncio.Event()
        self._target: int | None = None
        self._known = 0
        self.others: Mapping[str, Member] = {}
        self.draining = False
        self._leaving = False
        self.expected = asyncio.Event()
        self._found_fellows = asyncio.Event()

    # --------------------------------------------------------------------------------------- looks

    @property
    def expects(self) -> Collection[Shard]:
        """The shards that others offer to this worker."""
        return self._expects.keys()

    @property
    def active(self) -> Sequence[Member]:
        """The others that take shards."""
        return [each for each in self.others.values() if not each.draining]

    @property
    def place(self) -> tuple[int, int]:
        """Which one this is of the workers that take shards, in an order that all of them know."""
        cookies = sorted([self._cookie, *(each.cookie for each in self.active)])
        return cookies.index(self._cookie), len(cookies)

    def has_room(self, asking: int) -> bool:
        """Whether this worker may take another shard at once, while it asks for so many already."""
        if self.draining:
            return False
        return self._target is None or len(self._held) + asking < self._target

    def is_promised(self, shard: Shard) -> bool:
        """Whether a shard is on its way to another worker: then it is left alone when it is free for a moment.

        A receiver that does not come for it, because it is frozen, keeps nobody else away for long.
        """
        seen_at = self._promised.get(shard)
        if seen_at is None or shard in self._expects:
            return False
        return asyncio.get_running_loop().time() - seen_at <= EXPECT_S

    # ------------------------------------------------------------------------------------- commands

    def drain(self, on: bool) -> None:
        """Give everything to others and take nothing, or take part again."""
        self.draining = on
        self._occasion.set()

    def forget(self, is_dead: Callable[[str], bool]) -> None:
        """Count workers no more that are dead."""
        self._meet([each for each in self.others.values() if not is_dead(each.cookie)])

    def look_soon(self) -> None:
        """Look at the others now."""
        self._occasion.set()

    async def wait_for_fellows(self) -> None:
        """Return when the workers that start together with this one have announced themselves, or after a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FELLOWS_WITHIN_S):
                await self._found_fellows.wait()

    def leave(self) -> None:
        """Take and offer nothing more: every shard is being given back, and others may take them as they come."""
        self.draining = self._leaving = True
        self._occasion.set()

    def aim(self) -> None:
        """Work out this worker's share, because the others or the shards have changed."""
        self._known = self._eligible()
        members = self._members()
        target = targets(members, self._shards_of(members))[self._cookie]
        was, self._target = self._target, target if self.active or self.draining else None
        if was != self._target:
            self._changed()
        self._telemetry.members(len(members), target)

    def released(self, shard: Shard) -> None:
        """A shard is held no more: if it was on offer, its receiver may have it now."""
        if self._offers.pop(shard, None) is not None:
            self._occasion.set()

    # ----------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Take part until cancelled; then withdraw."""
        try:
            while True:
                self._occasion.clear()
                try:
                    await self._look()
                except StoreError as exc:  # the last view stands, and locks decide anyway
                    self._telemetry.members_failed(str(exc))
                await self._rest()
        finally:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.shield(asyncio.ensure_future(self._store.withdraw(self._cookie)))

    async def _rest(self) -> None:
        await asyncio.sleep(LEAST_PAUSE_S)
        begins = asyncio.get_running_loop().time() - self.steady_since < 2 * STEADY_S
        moves = bool(self._offers or self._expects or self.draining)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_OFTEN_S if moves or begins else LOOK_S):
                await self._occasion.wait()

    async def _look(self) -> None:
        """One step: say who this is, see who else there is, and do this worker's part."""
        await self._announce()
        self._meet(await self._store.live())
        self._see_offers(asyncio.get_running_loop().time())
        self._follow_offers()
        if self.draining and not self.active:
            self._give_back()
        elif self.draining or self._is_steady:
            self._make_offers()
        await self._announce()

    async def _announce(self) -> None:
        """Write this worker's row when it says something new, or will not be believed for much longer."""
        now, row = asyncio.get_running_loop().time(), self._row()
        if row == self._announced and now - self._announced_at < self._ttl_s / ANNOUNCEMENTS_IN_TTL:
            return
        await self._store.announce(row, self._ttl_s)
        self._announced, self._announced_at = row, now

    def _row(self) -> Member:
        offers: defaultdict[str, list[Shard]] = defaultdict(list)
        for shard, outgoing in self._offers.items():
            offers[outgoing.to].append(shard)
        grouped = tuple(Offer(to, tuple(shards)) for to, shards in offers.items())
        held = len(self._held) - sum(shard in self._held for shard in self._expects)
        return Member(self._cookie, self._host, held, self.draining, grouped, tuple(self._expects))

    # ------------------------------------------------------------------------------------ the others

    def _meet(self, members: Sequence[Member]) -> None:
        """These are the workers now."""
        now, known = asyncio.get_running_loop().time(), self.others
        self.others = {each.cookie: each for each in members if each.cookie != self._cookie}
        if _working(self.others) != _working(known):
            self.steady_since = now
            self._changed()
        if len(self.others) + 1 >= self._fellows:
            self._found_fellows.set()
        offered = [shard for each in self.others.values() for offer in each.offers for shard in offer.shards]
        expected = [shard for each in self.others.values() for shard in each.expects]
        self._promised = {shard: self._promised.get(shard, now) for shard in expected} | dict.fromkeys(offered, now)
        self.aim()

    def _see_offers(self, now: float) -> None:
        """Expect what is offered to this worker, until it has it and the offer is gone, or for a moment longer."""
        offered = {
            shard
            for each in self.others.values()
            for offer in each.offers
            if offer.to == self._cookie
            for shard in offer.shards
        }
        if not self.draining:
            self._expects.update((shard, now) for shard in offered if shard in self._held or self._wants(shard))
        for shard, seen_at in list(self._expects.items()):
            is_here = shard in self._held and shard not in offered
            if is_here or now - seen_at > EXPECT_S or (self.draining and shard not in self._held):
                del self._expects[shard]
        if self._expects:
            self.expected.set()

    def _members(self) -> list[Member]:
        return [*self.others.values(), self._row()]

    def _shards_of(self, members: Sequence[Member]) -> int:
        """How many shards all share: those that are known here, or that are held by the others' own account."""
        return max(self._known, sum(each.shards for each in members))

    # ---------------------------------------------------------------------------------------- giving

    @property
    def _is_steady(self) -> bool:
        return asyncio.get_running_loop().time() - self.steady_since >= STEADY_S

    def _follow_offers(self) -> None:
        """Give the shards up whose receivers wait, and take back what nobody would take any more."""
        now = asyncio.get_running_loop().time()
        expected = {cookie: frozenset(each.expects) for cookie, each in self.others.items()}
        for shard, outgoing in list(self._offers.items()):
            receiver = self.others.get(outgoing.to)
            if outgoing.begun:
                continue
            if shard not in self._held or receiver is None or receiver.draining:
                del self._offers[shard]
            elif shard in expected[outgoing.to] or (self.draining and now - outgoing.since > PATIENCE_S):
                outgoing.begun = True
                self._hand_over(shard, outgoing.to)

    def _give_back(self) -> None:
        """There is nobody to give anything to: release it as it is."""
        if self._leaving:
            return
        for shard in list(self._held):
            self._hand_over(shard, "")

    def _make_offers(self) -> None:
        """Offer what is beyond this worker's share, some at a time."""
        members = self._members()
        planned = gifts(self._cookie, members, self._shards_of(members))
        count = sum(number for _, number in planned)
        if count == 0 or self._leaving:
            return
        now = asyncio.get_running_loop().time()
        shards = sorted(shard for shard, held in self._held.items() if not held.is_leaving)
        busy = {shard for shard in shards if self._held[shard].has_work}
        chosen = choose(shards, busy, count, on_offer=self._offers.keys())
        self._offers |= {shard: Outgoing(to, now) for shard, to in deal(chosen, planned).items()}


def _working(members: Mapping[str, Member]) -> set[tuple[str, bool]]:
    return {(each.cookie, each.draining) for each in members.values()}
