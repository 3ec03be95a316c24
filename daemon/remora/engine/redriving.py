"""Re-drives dead letters: which queue each entry belongs into by now, and in which portions they are committed."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from remora.codec.event_entry import decode, renewed
from remora.codec.rendering_plain import key
from remora.codec.shard_hash import shard as shard_number
from remora.engine.catalogue import topic_among
from remora.model.entry import S3Event
from remora.model.errors import CodecError, ShardGone, TopicMoved
from remora.model.record import DeadLetter, Redrive
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic, own_topic_name
from remora.policy.delivery.letters import in_order
from remora.ports.administration import Letters
from remora.ports.delivery import Catalog

MOST_LETTERS, MOST_BYTES = 64, 1 << 20
"""What is committed together at most."""


class LetterStore(Protocol):
    """A store as planning a re-drive sees it."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def letters(self) -> Letters: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A queue, and its topic where that is one of remora's own."""

    shard: Shard
    topic: Topic | None


@dataclass(slots=True)
class Portion:
    """Letters of one queue that go into one queue, in order."""

    place: Place
    letters: list[DeadLetter] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """What a re-drive will do, and what it cannot do. The entries of `standing` letters stand in their queue yet."""

    portions: Sequence[Portion]
    undecodable: Sequence[DeadLetter]
    homeless: Sequence[DeadLetter]
    ambiguous: Sequence[DeadLetter]
    standing: Sequence[DeadLetter]

    @property
    def letters(self) -> int:
        """How many letters will be re-driven."""
        return sum(len(each.letters) for each in self.portions)


def letter_place(letter: DeadLetter) -> tuple[str, str, str]:
    """Which entry a letter is of."""
    return letter.queue, letter.incarnation, letter.position


def letter_key(letter: DeadLetter) -> bytes | None:
    """The key of a letter's entry, `bucket/object`; None when it is corrupt or cannot be decoded."""
    event = _event(letter)
    return None if event is None else key(event)


async def plan(store: LetterStore, letters: Iterable[DeadLetter], *, raw: bool, origin: Origin | None) -> RedrivePlan:
    """Find the place of each letter's entry. With `raw` also of those that say nothing, since they are corrupt or
    cannot be decoded: their own queue.

    `origin` says whose queue is meant where radosgw and remora both have one of a name.
    """
    shards, topics = frozenset(await store.catalog.shards()), await store.catalog.topics()
    portions: list[Portion] = []
    undecodable: list[DeadLetter] = []
    homeless: list[DeadLetter] = []
    ambiguous: list[DeadLetter] = []
    known = in_order(letters)
    standing = await store.letters.still_standing(known)
    alone = set(map(letter_place, standing))
    for letter in known:
        if letter_place(letter) in alone:
            continue
        sharded_by = _sharded_by(letter)
        own = [Shard(letter.queue, each) for each in Origin if origin in (None, each)]
        places = [place for each in own if (place := _place(each, sharded_by, shards, topics)) is not None]
        if sharded_by is None and not raw:
            undecodable.append(letter)
        elif not places:
            homeless.append(letter)
        elif len(places) > 1:
            ambiguous.append(letter)
        else:
            # Behind the others, in their portion where that is one of its kind.
            place = places[0]
            last = portions[-1] if portions else None
            if last is None or last.place != place or last.letters[-1].queue != letter.queue:
                portions.append(last := Portion(place))
            last.letters.append(letter)
    return RedrivePlan(portions, undecodable, homeless, ambiguous, standing)


async def carry_out(
    store: LetterStore, portions: Sequence[Portion], rate: float, now_ns: Callable[[], int] = time.time_ns
) -> AsyncIterator[int]:
    """Re-drive portion by portion, at most `rate` letters a second (0: at once); tells how many each one was.

    An error ends it: what follows of a key must not come before what could not be re-driven.
    """
    loop = asyncio.get_running_loop()
    begun, done = loop.time(), 0
    for portion in portions:
        for some in _cut(portion.letters, int(rate) if rate else MOST_LETTERS):
            if rate:
                await asyncio.sleep(max(0.0, begun + done / rate - loop.time()))
            again = [Redrive(each, _payload(each, now_ns())) for each in some]
            yield await _redriven(store, portion.place, again)
            done += len(some)


async def _redriven(store: LetterStore, place: Place, again: Sequence[Redrive]) -> int:
    """Re-drive letters that were planned for this place; where their topic has other shards by now, into these."""
    try:
        return await store.letters.redrive(place.shard, place.topic, again)
    except (TopicMoved, ShardGone):
        shards, topics = frozenset(await store.catalog.shards()), await store.catalog.topics()
        by_place: defaultdict[Place, list[Redrive]] = defaultdict(list)
        for each in again:
            found = _place(Shard(each.letter.queue, place.shard.origin), _sharded_by(each.letter), shards, topics)
            if found is None or found.shard == place.shard:
                raise
            by_place[found].append(each)
    return sum([await store.letters.redrive(new.shard, new.topic, some) for new, some in by_place.items()])


def _sharded_by(letter: DeadLetter) -> bytes | None:
    """What decides the shard of a letter's entry; None where that is corrupt or cannot be decoded."""
    event = _event(letter)
    return None if event is None else b"%b:%b" % (event.bucket_name, event.object_key)


def _event(letter: DeadLetter) -> S3Event | None:
    """The event of a letter's entry; None where it is corrupt or cannot be decoded."""
    if not letter.is_as_committed:
        return None
    try:
        return decode(letter.raw).event
    except CodecError:
        return None


def _place(
    shard: Shard, sharded_by: bytes | None, shards: frozenset[Shard], topics: Mapping[Shard, Topic]
) -> Place | None:
    """Where an entry belongs that was in this queue; None when neither it nor its topic is there any more."""
    if shard.origin is Origin.RADOSGW:
        return Place(shard, None) if shard in shards else None
    first = Shard(own_topic_name(shard.queue), Origin.REMORA)
    topic = topics.get(first) or topic_among(topics, shard)
    if topic is None:
        return None
    if sharded_by is not None:
        return Place(topic.shard(shard_number(sharded_by, topic.shards)), topic)
    return Place(shard if shard in topic.open_shards() else topic.shard(0), topic)


def _cut(letters: Sequence[DeadLetter], most: int) -> Iterator[Sequence[DeadLetter]]:
    """The letters in order, in parts that are committed together."""
    part: list[DeadLetter] = []
    nbytes = 0
    for each in letters:
        if part and (len(part) >= min(max(1, most), MOST_LETTERS) or nbytes + len(each.raw) > MOST_BYTES):
            yield part
            part, nbytes = [], 0
        part.append(each)
        nbytes += len(each.raw)
    if part:
        yield part


def _payload(letter: DeadLetter, now_ns: int) -> bytes:
    """The entry as it is committed anew: its age begins now, where it can be read."""
    if not letter.is_as_committed:
        return letter.raw
    try:
        return renewed(letter.raw, now_ns)
    except CodecError:
        return letter.raw
