"""Records with an unknown outcome after a push: which have arrived, and which still may."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

MOST_ARRIVED = 1 << 14
"""Records that arrived after their push was given up, kept for each topic of a connection."""


class Arrived:
    """Records that arrived although their push failed: when they are pushed again nothing is sent.

    Others are awaited: an answer may still come over the connection that they were sent on.
    """

    def __init__(self) -> None:
        self._arrived: OrderedDict[Hashable, None] = OrderedDict()
        self._awaited: Counter[Hashable] = Counter()
        self._changed: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._arrived)

    def add(self, record: Hashable) -> None:
        """Remember one; of too many the oldest is forgotten, which can only cost a copy."""
        self._arrived[record] = None
        if len(self._arrived) > MOST_ARRIVED:
            self._arrived.popitem(last=False)
        self.news()

    def take(self, record: Hashable) -> bool:
        """Whether this record arrived; it is forgotten then."""
        if record in self._arrived:
            del self._arrived[record]
            return True
        return False

    # --------------------------------------------------------------------------------- late answers

    def awaits(self, records: Iterable[Hashable]) -> None:
        """These were sent, and their push was given up; `tell` follows once for each of them."""
        self._awaited.update(records)

    def tell(self, records: Iterable[Hashable], *, arrived: bool) -> None:
        """These have arrived, or no answer will come any more, or one that is no acknowledgement."""
        for each in records:
            if self._awaited[each] <= 1:
                del self._awaited[each]
            else:
                self._awaited[each] -= 1
            if arrived:
                self.add(each)
        self.news()

    def news(self) -> None:
        """Something has become known of records that are awaited."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def is_awaited(self, record: Hashable) -> bool:
        """Whether an answer to it may still come."""
        return record in self._awaited

    async def take_all(
        self, records: Sequence[T], within_s: float, is_awaited: Callable[[T], bool] | None = None
    ) -> list[T]:
        """Those of them that arrived, which are forgotten then; waits so long at most for answers that may come.

        `is_awaited` knows better where these are counted elsewhere.
        """
        now, may_come = asyncio.get_running_loop().time, is_awaited or self.is_awaited
        until = now() + within_s
        while any(each not in self._arrived and may_come(each) for each in records):
            self._changed = self._changed or asyncio.Event()
            try:
                async with asyncio.timeout(until - now()):
                    await self._changed.wait()
            except TimeoutError:
                break
        return [each for each in records if self.take(each)]
