"""Records of one shard into batches: a lane for each group of keys, as Kafka's partitions divide them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remora.codec.speedups import in_batches
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
