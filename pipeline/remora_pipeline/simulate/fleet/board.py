"""The workers' rows, as all of them read them, and what follows from the rows alone.

The policies compute that from the rows for each worker anew. Here it is computed once for each change of the rows and
kept, since a thousand workers that read equal rows come to equal figures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from remora.model.member import Member
from remora.policy.ownership import balance, loads

ROW_BYTES = 200
NAME_BYTES = 24
"""What a row takes in the store, and each shard that it names as offered or expected."""


@dataclass(frozen=True, slots=True)
class Fair:
    """By cookie: how many shards each worker has once all have arrived, and how many it should have."""

    counts: Mapping[str, int]
    targets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Means:
    """Of the workers that take part in balance by load: their number, and the sums of their usages and histories."""

    workers: int
    usage: float
    history: float


class Board:
    """The rows of all workers that count as live."""

    def __init__(self, shards: int) -> None:
        """`shards` are all that the workers share."""
        self.version = 0
        """Another number after each change of any row."""
        self.crowd = 0
        """Another number after each change of who is there, and who drains."""
        self.bytes = 0
        """What a reading of all rows reads."""
        self.rows: dict[str, Member] = {}
        self._shards = shards
        self._givers: dict[str, dict[str, None]] = {}
        self._fair: Fair | None = None
        self._means: tuple[int, Means] | None = None

    def write(self, row: Member) -> None:
        """A worker announces itself."""
        former = self.rows.get(row.cookie)
        if former == row:
            return
        self._forget(former)
        self.rows[row.cookie] = row
        self.bytes += _bytes_of(row)
        for offer in row.offers:
            self._givers.setdefault(offer.to, {})[row.cookie] = None
        self._changed(former, row)

    def remove(self, cookie: str) -> None:
        """Stops counting a worker."""
        former = self.rows.pop(cookie, None)
        if former is not None:
            self._forget(former)
            self._changed(former, None)

    def offering_to(self, cookie: str) -> dict[str, Member]:
        """The rows of those who offer something to one worker."""
        return {giver: self.rows[giver] for giver in self._givers.get(cookie, ())}

    def is_offered_something(self, cookie: str) -> bool:
        """Whether another worker offers a shard to this one."""
        return bool(self._givers.get(cookie))

    def fair(self) -> Fair:
        """The fair numbers of shards by these rows."""
        if self._fair is None:
            rows = list(self.rows.values())
            shared = max(self._shards, sum(each.shards for each in rows))
            self._fair = Fair(balance.counts(rows), balance.targets(rows, shared))
        return self._fair

    def means(self) -> Means:
        """The sums of what the workers do by these rows."""
        if self._means is None or self._means[0] != self.version:
            found = loads.loads(self.rows.values())
            sums = Means(len(found), sum(each.usage for each in found), sum(each.history for each in found))
            self._means = self.version, sums
        return self._means[1]

    def _changed(self, former: Member | None, row: Member | None) -> None:
        self.version += 1
        if former is None or row is None or former.draining != row.draining:
            self.crowd += 1
            self._fair = None
        elif _numbers(former) != _numbers(row):
            self._fair = None

    def _forget(self, former: Member | None) -> None:
        if former is None:
            return
        self.bytes -= _bytes_of(former)
        for offer in former.offers:
            self._givers.get(offer.to, {}).pop(former.cookie, None)


class Others(Mapping[str, Member]):
    """The rows of all workers but one, as they are now."""

    def __init__(self, board: Board, cookie: str) -> None:
        self._rows = board.rows
        self._cookie = cookie

    def __getitem__(self, cookie: str) -> Member:
        if cookie == self._cookie:
            raise KeyError(cookie)
        return self._rows[cookie]

    def __iter__(self) -> Iterator[str]:
        return (cookie for cookie in self._rows if cookie != self._cookie)

    def __len__(self) -> int:
        return len(self._rows) - (self._cookie in self._rows)

    def values(self) -> Collection[Member]:  # type: ignore[override]  # a list where a view would ask for each by name
        """The rows."""
        return [row for cookie, row in self._rows.items() if cookie != self._cookie]


def _numbers(row: Member) -> tuple[object, ...]:
    """What the fair numbers depend on."""
    return row.shards, row.skew, row.offers, row.expects


def _bytes_of(row: Member) -> int:
    return ROW_BYTES + NAME_BYTES * (len(row.expects) + sum(len(offer.shards) for offer in row.offers))
