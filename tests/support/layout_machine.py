"""Random schedules of writers, owners and changes on a real store whose topic gets other numbers of shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from remora.codec.shard_hash import shard as shard_number
from remora.model.errors import TopicMoved, TopicRefused
from remora.model.ingest import ReservedRoom, RoutedEvent
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic
from remora.ports.store import ShardStore
from support.stores import QUIET_S


def routed(topic: Topic, *keys: int, mark: str = "") -> list[RoutedEvent]:
    """An event of each of these keys, where the topic has it by its hash; its payload tells its key."""
    return [
        RoutedEvent(shard_number(b"b:%d" % key, topic.shards), b"b:%d" % key, b"%d%b" % (key, mark.encode()))
        for key in keys
    ]


def rooms(events: Sequence[RoutedEvent]) -> list[ReservedRoom]:
    return [ReservedRoom(event.shard, event.key, len(event.payload)) for event in events]


class LayoutMachine:
    """Writers and owners of a real store, whose views of the topic are as old as chance has it.

    Where a reservation that was made before a change is committed to the former layout, its sender `awaits_commits`: it
    sends no other event of its keys meanwhile, whose order would not be promised.
    """

    def __init__(self, store: ShardStore, topic: Topic, rng: Random, *, awaits_commits: bool = False) -> None:
        self.store, self.name, self.rng, self.awaits_commits = store, topic.name, rng, awaits_commits
        self.views = [topic] * 3
        self.committed: defaultdict[int, int] = defaultdict(int)
        self.sent: defaultdict[int, list[int]] = defaultdict(list)
        self.reserved: list[tuple[str, list[int]]] = []
        self.generations = 0

    def keys(self) -> list[int]:
        under_way = {key for _, keys in self.reserved for key in keys} if self.awaits_commits else set()
        free = [key for key in range(30) if key not in under_way]
        return self.rng.sample(free, min(len(free), self.rng.randint(1, 5)))

    async def now(self) -> Topic:
        topic = await self.store.own_topics.find(self.name)
        assert topic is not None
        return topic

    async def shards(self) -> Sequence[Shard]:
        return (await self.now()).all_shards()

    def events(self, topic: Topic, keys: Sequence[int]) -> list[RoutedEvent]:
        return [
            RoutedEvent(shard_number(b"b:%d" % key, topic.shards), b"b:%d" % key, b"%d %d" % (key, self.committed[key]))
            for key in keys
        ]

    async def publish(self) -> None:
        keys = self.keys()
        who = self.rng.randrange(3)
        for _ in range(2):
            try:
                await self.store.ingest.publish(self.views[who], self.events(self.views[who], keys))
                break
            except TopicMoved:
                self.views[who] = await self.now()
        for key in keys:
            self.committed[key] += 1

    async def reserve(self) -> None:
        keys, topic = self.keys(), await self.now()
        asked = [each._replace(nbytes=20) for each in rooms(self.events(topic, keys))]
        self.reserved.append((await self.store.ingest.reserve(topic, asked), keys))

    async def commit(self) -> None:
        if self.reserved:
            reservation, keys = self.reserved.pop(self.rng.randrange(len(self.reserved)))
            topic = await self.now()
            if self.rng.random() < 0.2:
                await self.store.ingest.abort(topic, reservation)
                return
            await self.store.ingest.commit(topic, reservation, self.events(topic, keys), b"d")
            for key in keys:
                self.committed[key] += 1

    async def change(self) -> None:
        try:
            await self.store.own_topics.reshard(await self.now(), self.rng.choice([1, 2, 3, 4, 7, 11]))
        except TopicRefused:
            return
        self.generations += 1

    async def forget(self) -> None:
        await self.store.own_topics.forget_former(await self.now())

    async def deliver(self) -> None:
        shard = self.rng.choice(await self.shards())
        token = await self.store.locks.acquire(shard, "w", QUIET_S)
        assert isinstance(token, LockToken)
        page = await self.store.queue.read(token, b"", self.rng.randint(1, 9))
        for entry in page.entries:
            key, number = map(int, entry.split())
            if number >= len(self.sent[key]):
                self.sent[key].append(number)
        if page.entries and self.rng.random() < 0.8:
            count = len(page.entries)
            await self.store.queue.remove(token, page.positions[-1], count, Tally(delivered=count))

    async def run(self, steps: int) -> None:
        actions = [self.publish] * 5 + [self.reserve, self.commit, self.forget] + [self.deliver] * 8 + [self.change]
        for _ in range(steps):
            await self.rng.choice(actions)()
        for reservation, _ in self.reserved if self.awaits_commits else ():
            await self.store.ingest.abort(await self.now(), reservation)
        while any(each.entries for each in await self.store.inspection.backlog(await self.shards())):
            await self.deliver()
