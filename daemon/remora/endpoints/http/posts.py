"""Records of one shard into batches, a lane for each group of keys; one push of a batch, and how far it came."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remora.codec.speedups import in_batches
from remora.endpoints.http.requests import RequestMaker
from remora.endpoints.http.target import Batching
from remora.model.record import Record

WITHOUT_LIMIT = 1 << 62


@dataclass(slots=True, eq=False)
class Post:
    """Records of one lane, which are posted one after the other."""

    lane: int
    records: Sequence[Record]


def pack(records: Sequence[Record], lanes: int, most: int) -> list[Post]:
    """Each lane's records, in order, at most `most` in a batch. All records of a key are of one lane."""
    posts = []
    for lane, members, _ in in_batches(records, lanes, 0, WITHOUT_LIMIT):
        if len(members) <= most:
            posts.append(Post(lane, members))
        else:
            posts += [Post(lane, members[i : i + most]) for i in range(0, len(members), most)]
    return posts


class Posting:
    """An `Exchange` of one batch's records, in order. `arrived` of them are acknowledged, from the front."""

    def __init__(
        self,
        records: Sequence[Record],
        maker: RequestMaker,
        batching: Batching | None,
        is_wanted: Callable[[], bool],
        on_ack: Callable[[int, float], None],
    ) -> None:
        """`is_wanted` is asked before each request; `on_ack` gets the records and the seconds.

        `most_together` says of a record how many may go in a request that begins with it; it is in no other one then.
        `on_given_up` gives for records what is called with whether they were acknowledged too late.
        """
        self.records = records
        self._maker = maker
        self._batching = batching
        self.is_wanted = is_wanted
        self._on_ack = on_ack
        self.most_together: Callable[[Record], int | None] = lambda _: None
        self.on_given_up: Callable[[Sequence[Record]], Callable[[bool], None]] = lambda _: lambda _: None
        self._most = batching.records if batching is not None else 1
        self.arrived = 0
        self.under_way = 0
        self.requests = 0
        self._doubted: dict[int, bool] = {}  # by index, and whether no later request with it was answered

    @property
    def is_done(self) -> bool:
        """Whether all of it was acknowledged."""
        return self.arrived == len(self.records)

    @property
    def oldest(self) -> Record:
        """The first record that was not acknowledged."""
        return self.records[self.arrived]

    def next_request(self) -> bytes | None:
        """The request to post now; None when all was acknowledged, or the push is to stop."""
        at = self.arrived
        if at == len(self.records) or not self.is_wanted():
            return None
        self.requests += 1
        if self._batching is None:
            self.under_way = 1
            return self._maker.one(self.records[at], int(time.time()))
        self.under_way = count = self._fitting(self._batching, at)
        return self._maker.batch(self.records[at : at + count], int(time.time()))

    def acked(self, seconds: float) -> None:
        """The request under way was acknowledged."""
        self.arrived += self.under_way
        self._on_ack(self.under_way, seconds)
        if self._batching is not None:
            self._most = min(self._batching.records, self._most * 2)

    def given_up(self) -> Callable[[bool], None]:
        """The request under way was not answered in time."""
        return self.on_given_up(self.records[self.arrived : self.arrived + self.under_way])

    def doubted(self) -> None:
        """The request under way was sent, and its connection closed: it may have arrived, and is posted again."""
        self._doubted |= dict.fromkeys(range(self.arrived, self.arrived + self.under_way), True)

    def refused(self) -> None:
        """The request under way was answered, and not acknowledged."""
        for at in range(self.arrived, self.arrived + self.under_way) if self._doubted else ():
            if at in self._doubted:
                self._doubted[at] = False

    def unclear(self, *, is_last: bool) -> list[int]:
        """The records that may have arrived with a request like that, `is_last` where no later one was answered."""
        return [at for at, last in self._doubted.items() if at >= self.arrived and last is is_last]

    def _fitting(self, batching: Batching, at: int) -> int:
        """How many records go together: what the lane has, within the limits, and one at least."""
        known = self.most_together(self.records[at])
        if known is not None:
            self._most = min(self._most, known)
        nbytes, count = 0, 0
        for record in self.records[at : at + self._most]:
            nbytes += len(record.body)
            if count and (nbytes > batching.nbytes or self.most_together(record) is not None):
                break
            count += 1
        return count
