"""The limits of admission: a held topic, credit of a group, entries that are not acknowledged, and bytes in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from remora.policy.admission.line import UNCHARGED, AdmissionLimit, Demand, Hold, Shortage
from remora.policy.shaping.cells import MemberAccount

_NEW_PART = 0.1


class HeldTopicLimit:
    """Lets nothing pass while an operator holds the topic; else it costs nothing, and holds nothing."""

    def __init__(self, is_held: Callable[[], bool]) -> None:
        self._is_held = is_held

    def take(self, request: Demand) -> Hold | None:
        """Lets pass whatever is wanted, or has it wait."""
        return None if self._is_held() else Hold(self, request.want, UNCHARGED)

    def settle(self, hold: Hold, amount: int) -> Sequence[AdmissionLimit]:
        """Nobody waits for what another one holds here."""
        hold.amount = amount
        return ()


class CreditLimit:
    """Credit of one group for one priority: those of other priorities never wait behind it."""

    def __init__(self, group: str, priority: str, accounts: Mapping[str, MemberAccount]) -> None:
        self.group = group
        self.priority = priority
        self._accounts = accounts

    def take(self, request: Demand) -> Hold | None:
        """Charges what is wanted, as far as there is credit; nothing where the group is disabled or gone."""
        account = self._accounts.get(self.group)
        if account is None or not account.enabled:
            return Hold(self, 0, UNCHARGED)
        if account.level(self.priority) <= 0:
            return None
        request.want = min(request.want, max(account.level(self.priority), request.least))
        account.charge(self.priority, request.want)
        return Hold(self, request.want, account.times_disabled)

    def settle(self, hold: Hold, amount: int) -> Sequence[AdmissionLimit]:
        """Charges more, or gives back; nothing where the group has forgotten the charge."""
        account, more = self._accounts.get(self.group), amount - hold.amount
        if account is None or account.times_disabled != hold.mark:
            return ()
        hold.amount = amount
        if more > 0:
            account.charge(self.priority, more)
        elif more < 0:
            account.release(self.priority, -more)
            return (self,)
        return ()


class EntryLimit:
    """Entries that are asked for, or read and not done: as many as `most` says at most, 0 for any number.

    Full of read ones, it goes on at half of them, so that not each acknowledgement wakes a reader. What was read is
    sent, so there may be more. `name` is that of the bound in the metrics.
    """

    def __init__(self, most: Callable[[], int] = lambda: 0, name: str = "") -> None:
        self._most = most
        self.name = name
        self._unacked = Unacked(most())

    @property
    def held(self) -> int:
        """Entries that are read and not done."""
        return self._unacked.count

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound now."""
        return bool(self._most())

    def take(self, request: Demand) -> Hold | None:
        """Asks for as many entries as there may be."""
        self._unacked.set_most(self._most())
        entries = entries_to_list(request.want, self._unacked.permits, request.mean)
        if not entries:
            return None
        request.want = entries
        self._unacked.asked += entries
        return Hold(self, entries)

    def settle(self, hold: Hold, amount: int) -> Sequence[AdmissionLimit]:
        """So many are asked for."""
        self._unacked.asked += amount - hold.amount
        hold.amount = amount
        return (self,)

    def listed(self, asked: int, entries: int) -> Sequence[AdmissionLimit]:
        """`entries` were read for which `asked` were asked: they are held from now on, or fewer where negative."""
        self._unacked.sent(entries)
        self._unacked.asked -= asked
        return (self,)


class ByteLimit:
    """Bytes that may be held, inside an optional wider room.

    A request larger than all of it passes when nothing else is held, since refusing it would stop its shard for good.
    With `leaves_room` no more is held than is left free in the wider one. So there is always room for one more: the
    first that never gives back what it holds takes a half at most, the second a quarter, and those that fill up side by
    side all get the same.
    """

    def __init__(
        self,
        limit: int,
        within: ByteLimit | None = None,
        *,
        leaves_room: bool = False,
        evict: Callable[[Shortage], None] = lambda _: None,
    ) -> None:
        """`evict` may have others release some for who waits first, before it returns."""
        assert within is not None or not leaves_room
        self.limit = limit
        self.held = 0
        self.within = within
        self.evict = evict
        self._leaves_room = leaves_room
        self.short: dict[AdmissionLimit, None] = {}
        """Rooms in here that leave some, and in which a request found none."""

    @property
    def chain(self) -> tuple[ByteLimit, ...]:
        """This room and the wider ones."""
        return (self,) if self.within is None else (self, *self.within.chain)

    @property
    def reach(self) -> int:
        """How many bytes may be held as things stand, those that are held included."""
        if self.within is None:
            return self.limit
        if self._leaves_room:
            free = self.within.limit - self.within.held
            return max(0, min(self.limit, (free + self.held) // 2))
        return min(self.limit, self.within.reach)

    def take(self, request: Demand) -> Hold | None:
        """Holds all that is wanted, or nothing."""
        if self.held > 0 and self.held + request.want > self._bound:
            if self.within is not None and self._leaves_room:
                self.within.short[self] = None
            return None
        self.held += request.want
        return Hold(self, request.want)

    def settle(self, hold: Hold, amount: int) -> Sequence[AdmissionLimit]:
        """Holds so much for it."""
        more, hold.amount = amount - hold.amount, amount
        return self.adjust(more)

    def adjust(self, more: int) -> Sequence[AdmissionLimit]:
        """Holds so much more, or less; returns where there may be room by now, also in rooms that leave some here."""
        self.held += more
        if more >= 0:
            return ()
        short, self.short = self.short, {}
        return (self, *short)

    def shortages(self, request: Demand) -> Iterator[tuple[ByteLimit, Shortage]]:
        """What has to be freed, and where, for a request that waits here first; each as it is when its turn comes.

        Of the wider room's others too, where it is only for them that there is no room.
        """
        need = request.want
        if need <= self._bound:
            yield self, Shortage(self._bound, self.held, need, request.priority)
        if self.within is not None and self._leaves_room and self.held + need <= self.limit:
            yield self.within, Shortage(self.within.limit, self.within.held, self.held + 2 * need, request.priority)

    @property
    def _bound(self) -> int:
        return self.reach if self._leaves_room else self.limit


@dataclass(slots=True)
class Unacked:
    """Records under way, `most` of them at most (0: any number), and entries that reads have asked for.

    Full at that number, it goes on at half of it.
    """

    most: int = 0
    count: int = 0
    is_full: bool = False
    asked: int = 0

    @property
    def permits(self) -> int | None:
        """How many records more there may be; None: any number."""
        if not self.most:
            return None
        return 0 if self.is_full else self.most - self.count - self.asked

    def set_most(self, most: int) -> None:
        """Sets the bound, which counts at once."""
        self.most = most
        self.sent(0)

    def sent(self, records: int) -> None:
        """Counts `records` more that are under way, or fewer where negative."""
        self.count += records
        if self.most and self.count >= self.most:
            self.is_full = True
        elif 2 * self.count <= self.most or not self.most:
            self.is_full = False


def entries_to_list(limit: int, permits: int | None, average: float | None) -> int:
    """How many entries to read, at most `limit`, for `permits` records that may be sent (None: any number).

    `average` is how many records an entry makes, as far as that is known; 0: none now.
    """
    if permits is None:
        return limit
    if permits <= 0:
        return 0
    if average is None:
        return min(limit, permits)
    return min(limit, max(1, math.ceil(permits / average))) if average else limit


def mean_records(average: float | None, records: int, entries: int) -> float | None:
    """How many records an entry makes on average, after a listing of `entries` entries made `records`.

    The first listing counts whole, and one without entries not at all.
    """
    if not entries:
        return average
    new = records / entries
    return new if average is None else (1 - _NEW_PART) * average + _NEW_PART * new
