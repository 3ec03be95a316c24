"""A change of a topic on RADOS stands still between two steps while another one goes on; the contract suite has real
OSDs for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.errors import ShardGone, StoreUnavailable, TopicNamed, TopicRefused, TopicUnknown
from remora.model.ingest import Removed
from remora.model.ledger import FormerQueue, Tally
from remora.model.notification import Definitions, Notification
from remora.model.shard import Shard
from remora.model.topic import Topic, generation_of
from remora.policy.ingest.notification_rules import check_removal
from remora.storage.rados.cluster.refusals import MismatchError
from remora.storage.rados.ingest.schedule import DueAction
from remora.storage.rados.layouts import ReshardableTopics
from remora.storage.rados.queues.own_queues import PREPARING, REMOVING, SEALED
from remora.storage.rados.queues.sealed_queues import Parents, Precedence, SealedLook
from remora.storage.rados.topics.registry import StoredTopic, TopicRecord
from support.stores import own_topic


@dataclass
class QueueObject:
    """A queue with the two attributes that each step compares, and its entries."""

    owner: str
    closed: str = ""
    entries: int = 0
    reservations: int = 0


@dataclass
class Cluster:
    """The registry and the queues of a cluster. Whoever takes step `stops_at`, by its name and queue, stands still once
    before it, until `thaw` is set."""

    topics: dict[str, TopicRecord] = field(default_factory=dict)
    queues: dict[str, QueueObject] = field(default_factory=dict)
    ledgers: list[FormerQueue] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    notifications: Definitions = field(default_factory=Definitions)
    stops_at: tuple[str, str] = ("", "")
    is_there: asyncio.Event = field(default_factory=asyncio.Event)
    thaw: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def own_topics(self) -> ReshardableTopics:
        """The topics as one more process has them."""
        me: Any = self
        return ReshardableTopics((me,) * 7, (me,) * 3)  # type: ignore[arg-type]  # it stands for all parts

    async def _step(self, name: str, queue: str) -> None:
        if (name, queue) == self.stops_at:
            self.stops_at = ("", "")
            self.is_there.set()
            await self.thaw.wait()

    # --- the notifications

    async def definitions(self) -> Definitions:
        return self.notifications

    async def keep_off(self, topic: str) -> None:
        check_removal(topic, self.notifications)

    # --- the registry

    async def find(self, name: str) -> TopicRecord | None:
        await self._step("find", name)
        return self.topics.get(name)

    async def existing(self, topic: Topic) -> TopicRecord:
        await self._step("find", topic.name)
        found = self.topics.get(topic.name)
        if found is None or found.stored.id != topic.id:
            raise TopicUnknown(topic.name)
        return found

    async def swap(self, name: str, old: TopicRecord | None, new: StoredTopic) -> TopicRecord:
        await self._step("swap", new.fate or new.state)
        if self.topics.get(name) != old:
            raise MismatchError(name)
        self.topics[name] = TopicRecord(new, msgspec.msgpack.encode(new))
        return self.topics[name]

    async def drop(self, name: str, old: TopicRecord) -> None:
        await self._step("drop", name)
        if self.topics.get(name) != old:
            raise MismatchError(name)
        del self.topics[name]

    # --- the queues

    async def make(self, shard: Shard, topic_id: str, check: Callable[[], Awaitable[None]]) -> None:
        self.queues.setdefault(shard.queue, QueueObject(topic_id))

    async def close(self, shard: Shard, topic_id: str, *, closed: bool) -> None:
        await self._step("close", shard.queue)
        found = self.queues.get(shard.queue)
        if found is None or found.owner != topic_id:
            raise ShardGone(f"marking {shard}")
        if found.closed != SEALED:
            found.closed = "yes" if closed else ""

    async def fence(self, shard: Shard, topic_id: str) -> None:
        await self._step("fence", shard.queue)
        found = self.queues.get(shard.queue)
        if found is not None and found.owner in (topic_id, PREPARING + topic_id):
            found.owner = REMOVING + topic_id

    async def unfence(self, shard: Shard, topic_id: str) -> None:
        await self._step("unfence", shard.queue)
        if (found := self.queues.get(shard.queue)) is not None and found.owner == REMOVING + topic_id:
            found.owner = topic_id

    async def remove(self, shard: Shard, topic_id: str, version: int | None) -> None:
        await self._step("remove", shard.queue)
        found = self.queues.get(shard.queue)
        if found is not None and found.owner == REMOVING + topic_id:
            del self.queues[shard.queue]

    async def version(self, shard: Shard) -> int:
        if shard.queue not in self.queues:
            raise ShardGone(f"there is no {shard}")
        return 1

    async def owner(self, shard: Shard) -> str | None:
        found = self.queues.get(shard.queue)
        return found.owner if found else None

    async def look(self, shard: Shard) -> SealedLook:
        return await self.shut(shard, "")

    async def stats(self, shard: Shard, *, exact: bool) -> Any:
        if shard.queue not in self.queues:
            raise ShardGone(f"there is no {shard}")
        return SimpleNamespace(entries=self.queues[shard.queue].entries)

    async def prepare(self, shard: Shard, topic_id: str, check: Callable[[], Awaitable[None]]) -> None:
        await self._step("prepare", shard.queue)
        self.queues.setdefault(shard.queue, QueueObject(PREPARING + topic_id))

    async def activate(self, shard: Shard, topic_id: str) -> None:
        await self._step("activate", shard.queue)
        found = self.queues.get(shard.queue)
        if found is None or found.owner not in (topic_id, PREPARING + topic_id):
            raise StoreUnavailable(f"activating {shard}")
        found.owner = topic_id

    async def give_up(self, shard: Shard, topic_id: str) -> None:
        await self._step("give_up", shard.queue)
        found = self.queues.get(shard.queue)
        if found is not None and found.owner == PREPARING + topic_id:
            del self.queues[shard.queue]

    async def seal(self, shard: Shard, topic_id: str) -> None:
        await self._step("seal", shard.queue)
        if (found := self.queues.get(shard.queue)) is not None and found.closed != SEALED:
            if found.owner != topic_id:
                raise StoreUnavailable(f"sealing {shard}")
            found.closed = SEALED

    async def shut(self, shard: Shard, topic_id: str) -> SealedLook:
        await self._step("shut", shard.queue)
        if shard.queue in self.silent:
            raise StoreUnavailable(f"looking at {shard}: no answer")
        found = self.queues.get(shard.queue)
        if found is None:
            raise ShardGone(f"there is no {shard}")
        if found.closed == SEALED and not found.reservations and found.owner == topic_id:
            found.owner = REMOVING + topic_id
        is_shut = found.owner == REMOVING + topic_id
        former = FormerQueue(shard.queue, generation_of(shard.queue), "i", "0/9", 0, Tally())
        return SealedLook(1, found.closed == SEALED, is_shut, found.entries, True, found.reservations, former)

    # --- what goes with a layout

    @property
    def schedule(self) -> Any:
        return SimpleNamespace(entries=self._scheduled)

    async def _scheduled(self) -> dict[DueAction, list[object]]:
        return {DueAction.COMPLETE: []}

    async def finish_redrives(self, shard: Shard) -> None:
        """Nothing is re-driven here."""

    async def keep(self, topic_id: str, queues: Sequence[FormerQueue]) -> None:
        await self._step("keep", queues[0].name)
        self.ledgers += [each for each in queues if each not in self.ledgers]

    async def kept(self, topic_id: str) -> list[FormerQueue]:
        return self.ledgers

    async def forget(self, what: object) -> None:
        if isinstance(what, str):  # what is kept of a topic's former queues; else a hold
            self.ledgers.clear()


async def overtaken(cluster: Cluster, step: tuple[str, str], act: Awaitable[object], *others: Callable[[], Any]) -> Any:
    """What an act comes to that stands still before a step while others do what they do."""
    cluster.stops_at = step
    acting = asyncio.ensure_future(act)
    await cluster.is_there.wait()
    for each in others:
        await each()
    cluster.thaw.set()
    return (await asyncio.gather(acting, return_exceptions=True))[0]


async def removed_beside_a_change(cluster: Cluster, *, discard: bool) -> tuple[Topic, Any]:
    """A topic, and what its removal comes to when another layout is opened meanwhile and gets an event."""
    topic = await cluster.own_topics.create(own_topic("t", 2))

    async def event() -> None:
        cluster.queues["t@1.2"].entries = 1

    removing = cluster.own_topics.remove(topic, discard=discard)
    answer = await overtaken(
        cluster, ("swap", "removing"), removing, lambda: cluster.own_topics.reshard(topic, 3), event
    )
    return topic, answer


async def now(cluster: Cluster, name: str = "t") -> Topic:
    found = await cluster.own_topics.find(name)
    assert found is not None
    return found


async def test_a_topic_that_is_resharded_while_it_is_removed_keeps_its_events() -> None:
    """A layout that is opened after a removal has found the topic empty is looked into as well: its events keep the
    topic, which is then as remoras of one layout cannot read it."""
    cluster = Cluster()

    topic, answer = await removed_beside_a_change(cluster, discard=False)

    assert isinstance(answer, TopicRefused)
    assert cluster.queues["t@1.2"] == QueueObject(topic.id, entries=1)
    assert cluster.topics["t"].stored.state == "resharded"


async def test_a_topic_that_is_resharded_while_it_is_removed_leaves_no_queue() -> None:
    """With its events it goes with the queues of both layouts, and all of its entries are counted."""
    cluster = Cluster()

    _, answer = await removed_beside_a_change(cluster, discard=True)

    assert answer.entries == 1
    assert cluster.queues == {}
    assert cluster.topics == {}


async def test_a_change_that_wakes_up_in_a_removal_leaves_no_queue() -> None:
    """A queue that a change makes after the removal of its topic has passed by is given up again."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 1))

    async def leave() -> None:
        await cluster.own_topics._leave(topic)
        for queue in list(cluster.queues):
            del cluster.queues[queue]

    answer = await overtaken(cluster, ("prepare", "t@1"), cluster.own_topics.reshard(topic, 2), leave)

    assert isinstance(answer, TopicRefused)
    assert cluster.queues == {}


def is_whole(cluster: Cluster, topic: Topic) -> bool:
    """Whether a topic is there, and both of its queues take events."""
    return cluster.topics["t"].stored.is_ready and cluster.queues == {
        "t": QueueObject(topic.id),
        "t.1": QueueObject(topic.id, entries=1),
    }


def is_gone(cluster: Cluster) -> bool:
    """Whether nothing is left of the topic."""
    return not cluster.topics and not cluster.queues


async def left_behind(cluster: Cluster, topic: Topic) -> None:
    """Where a removal without entries has got to that found the topic empty, before an entry came."""
    await cluster.own_topics._leave(topic)
    cluster.queues["t.1"].entries = 1


STEPS = [
    *[("fence", queue) for queue in ("t", "t.1")],
    *[("unfence", queue) for queue in ("t", "t.1")],
    *[("swap", state) for state in ("removing", "stays", "spilling")],
]


@pytest.mark.parametrize("step", STEPS)
async def test_a_removal_with_entries_beside_one_without(step: tuple[str, str]) -> None:
    """Of two removals of a topic with an entry, one of which may not discard it and stands still, the topic is whole
    afterwards, or nothing of it is left; who is told that it is removed is told the truth."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))
    if step != ("swap", "removing"):
        await left_behind(cluster, topic)
    answers: list[object] = []

    async def discard() -> None:
        answers.extend(await asyncio.gather(cluster.own_topics.remove(topic, discard=True), return_exceptions=True))

    async def entry() -> None:
        if "t.1" in cluster.queues:
            cluster.queues["t.1"].entries = 1

    keeping = cluster.own_topics.remove(topic, discard=False)
    kept = await overtaken(cluster, step, keeping, entry, discard)

    assert is_gone(cluster) or is_whole(cluster, topic)
    assert is_gone(cluster) is isinstance(answers[0], Removed)
    assert isinstance(kept, (Removed, TopicRefused, TopicUnknown))


@pytest.mark.parametrize(
    "step", [("fence", "t.1"), ("swap", "goes"), ("remove", "t"), ("remove", "t.1"), ("drop", "t")]
)
async def test_a_removal_without_entries_beside_one_with(step: tuple[str, str]) -> None:
    """A removal that discards an entry and stands still is not undone half: the topic is gone in the end. The other one
    is refused, or ends it where the entry is gone."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))
    cluster.queues["t.1"].entries = 1
    answers: list[object] = []

    async def keep() -> None:
        answers.extend(await asyncio.gather(cluster.own_topics.remove(topic, discard=False), return_exceptions=True))

    discarded = await overtaken(cluster, step, cluster.own_topics.remove(topic, discard=True), keep)

    assert isinstance(discarded, Removed)
    assert is_gone(cluster)
    assert isinstance(answers[0], (TopicRefused, Removed))


@pytest.mark.parametrize("discard", [True, False])
@pytest.mark.parametrize("step", [("find", "t"), ("swap", "removing")])
async def test_a_topic_that_is_named_while_its_removal_begins(step: tuple[str, str], discard: bool) -> None:
    """A notification that is made before the registry tells of a removal keeps its topic, which takes events again."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))

    async def name() -> None:
        cluster.notifications = Definitions((Notification("n", ("t",)),))

    answer = await overtaken(cluster, step, cluster.own_topics.remove(topic, discard=discard), name)

    assert isinstance(answer, TopicNamed)
    assert cluster.topics["t"].stored.state == "ready"
    assert [each.owner for each in cluster.queues.values()] == [topic.id] * 2


async def test_one_that_finds_nothing_beside_one_that_finds_an_entry() -> None:
    """A removal that comes when another one has decided that the topic stays lets it come back whole first, and leaves
    nothing of it where it is empty by then."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))
    await left_behind(cluster, topic)

    async def delivered() -> None:
        cluster.queues["t.1"].entries = 0

    first = asyncio.ensure_future(
        overtaken(
            cluster,
            ("unfence", "t.1"),
            cluster.own_topics.remove(topic, discard=False),
            delivered,
            lambda: cluster.own_topics.remove(topic, discard=False),
        )
    )

    assert isinstance(await first, TopicRefused)
    assert is_gone(cluster)


async def test_what_was_decided_is_carried_out_by_the_next() -> None:
    """A topic whose removal had decided that it stays, and stopped there, is brought back whole by the next removal,
    which then finds its entry."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))
    await left_behind(cluster, topic)
    stopped = asyncio.ensure_future(cluster.own_topics.remove(topic, discard=False))
    cluster.stops_at = ("unfence", "t.1")
    await cluster.is_there.wait()
    stopped.cancel()

    with pytest.raises(TopicRefused, match="1 entry"):
        await cluster.own_topics.remove(topic, discard=False)

    assert is_whole(cluster, topic)
    assert cluster.topics["t"].stored.fate == ""


@pytest.mark.parametrize("closed", [True, False])
async def test_a_topic_that_is_opened_or_closed_after_its_change(closed: bool) -> None:
    """A change that stands still while another process carries it out, and the topic is closed or opened then, leaves
    no queue of it open that is to be closed, and none closed that is to be open."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))
    await cluster.own_topics.change(replace(topic, closed=not closed))

    async def change() -> None:
        await cluster.own_topics.change(replace(await now(cluster), closed=closed))

    await overtaken(
        cluster,
        ("close", "t@1.1"),
        cluster.own_topics.reshard(topic, 3),
        lambda: cluster.own_topics.reshard(topic, 3),
        change,
    )

    assert (await now(cluster)).closed is closed
    assert [cluster.queues[each.queue].closed for each in (await now(cluster)).open_shards()] == ["yes" * closed] * 3


async def test_a_queue_that_a_killed_process_has_closed_late_is_opened() -> None:
    """A change of a closed topic stands still, another process carries it out, and the topic is opened; then the first
    one closes a queue of the new layout, and is killed. The first request that is refused there has it opened again."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))
    await cluster.own_topics.change(replace(topic, closed=True))
    cluster.stops_at = ("close", "t@1.1")
    late = asyncio.ensure_future(cluster.own_topics.reshard(topic, 3))
    await cluster.is_there.wait()
    await cluster.own_topics.reshard(topic, 3)
    await cluster.own_topics.change(replace(await now(cluster), closed=False))
    late.cancel()
    await asyncio.wait([late])
    opened = await now(cluster)
    await cluster.close(opened.shard(1), topic.id, closed=True)  # its last write

    assert isinstance(await cluster.own_topics.refusal(opened), StoreUnavailable)

    assert [cluster.queues[each.queue].closed for each in opened.open_shards()] == ["", "", ""]


async def resharded(shards: int) -> tuple[Cluster, Topic]:
    """A topic of two shards that got another number while a reservation was open in its second queue; it is not now."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))
    cluster.queues["t.1"].reservations = 1
    await cluster.own_topics.reshard(topic, shards)
    cluster.queues["t.1"] = QueueObject(topic.id, SEALED)
    return cluster, topic


@pytest.mark.parametrize(
    ("left", "states"),
    [
        (QueueObject("", entries=1), ["shut"]),
        (QueueObject("", reservations=1), ["sealed"]),
        (QueueObject(""), []),
    ],
)
async def test_a_former_layout_goes_when_nothing_is_left_in_it(left: QueueObject, states: list[str]) -> None:
    """One queue with an entry, or with a reservation that may become one, keeps all of its layout, which is shut in the
    first case alone; else the ledgers of its queues are kept, and they go."""
    cluster, topic = await resharded(3)
    held = cluster.queues["t.1"]
    held.entries, held.reservations = left.entries, left.reservations

    goes = await cluster.own_topics.forget_former(topic)

    assert goes is not bool(states)
    assert [each.state for each in (await now(cluster)).former] == states
    assert {"t", "t.1"} & set(cluster.queues) == ({"t", "t.1"} if states else set())
    assert [each.name for each in cluster.ledgers] == ([] if states else ["t", "t.1"])


async def test_a_topic_is_changed_once_while_its_former_layout_has_entries() -> None:
    """Another change is refused, says what is left, and makes no queue."""
    cluster, topic = await resharded(3)
    cluster.queues["t.1"].entries = 7
    before = set(cluster.queues)

    with pytest.raises(TopicRefused, match="generation 0 still holds 7 entries of 2 shards"):
        await cluster.own_topics.reshard(topic, 4)

    assert set(cluster.queues) == before
    assert (await now(cluster)).shards == 3


@dataclass
class BusyCluster(Cluster):
    """Before each step all others have their turn."""

    async def _step(self, name: str, queue: str) -> None:
        for _ in range(self.draw.randrange(4)):
            await asyncio.sleep(0)

    draw: Random = field(default_factory=Random)


@given(st.randoms(use_true_random=False), st.lists(st.integers(1, 4), min_size=2, max_size=3))
async def test_several_commands_at_once(draw: Random, numbers: list[int]) -> None:
    """Each gets the number that it asks for, one after the other; in the end there is one layout with its queues."""
    cluster = BusyCluster(draw=draw)
    topic = await cluster.own_topics.create(own_topic("t", 2))

    found = await asyncio.gather(*[cluster.own_topics.reshard(topic, number) for number in numbers])
    while await cluster.own_topics.forget_former(topic):
        pass

    last = await now(cluster)
    assert [each.shards for each in found] == numbers
    assert (last.shards in numbers, last.former, last.coming) == (True, (), None)
    assert cluster.queues == {each.queue: QueueObject(topic.id) for each in last.open_shards()}


async def test_a_command_answers_what_it_asked_for() -> None:
    """A command that stands still after its change, while another one makes the next change, answers with its own
    number, and so does one whose former queues do not answer any longer."""
    cluster = Cluster()
    topic = await cluster.own_topics.create(own_topic("t", 2))

    first = await overtaken(
        cluster, ("shut", "t"), cluster.own_topics.reshard(topic, 3), lambda: cluster.own_topics.reshard(topic, 4)
    )
    cluster.silent = {"t@2.1"}
    last = await cluster.own_topics.reshard(topic, 5)

    assert (first.shards, last.shards) == (3, 5)
    assert (await now(cluster)).former


async def test_a_former_queue_that_does_not_answer_is_named() -> None:
    """Its layout is kept, and whoever looks after it is told why; so is a further change, unless another queue has
    entries: then it is refused with their number."""
    cluster, topic = await resharded(3)
    cluster.silent = {"t.1"}

    with pytest.raises(StoreUnavailable, match=r"t\.1: no answer"):
        await cluster.own_topics.forget_former(topic)
    with pytest.raises(StoreUnavailable, match=r"t\.1: no answer"):
        await cluster.own_topics.reshard(topic, 4)
    cluster.queues["t"].entries = 7
    with pytest.raises(TopicRefused, match="generation 0 still holds 7 entries"):
        await cluster.own_topics.reshard(topic, 4)

    assert (await now(cluster)).former
    assert cluster.ledgers == []


@pytest.mark.parametrize("is_within", [False, True])
async def test_ledgers_that_are_kept_while_their_topic_is_removed(is_within: bool) -> None:
    """They go with the topic, also where whoever keeps them stands still and wakes up after the removal, or within."""
    cluster, topic = await resharded(3)
    cluster.stops_at, kept_on = ("keep", "t"), cluster.thaw
    forgetting = asyncio.ensure_future(cluster.own_topics.forget_former(topic))
    await cluster.is_there.wait()

    cluster.stops_at = ("drop", "t") if is_within else ("", "")
    cluster.is_there, cluster.thaw = asyncio.Event(), asyncio.Event()
    removing = asyncio.ensure_future(cluster.own_topics.remove(topic, discard=True))
    await (cluster.is_there.wait() if is_within else removing)
    kept_on.set()
    assert not await forgetting
    cluster.thaw.set()
    await removing

    assert cluster.topics == {}
    assert cluster.ledgers == []


@dataclass
class ClusterWithALateEvent(Cluster):
    """An event that was under way lands in a queue right before a removal fences that."""

    lands_in: str = ""

    async def fence(self, shard: Shard, topic_id: str) -> None:
        if shard.queue == self.lands_in:
            self.queues[shard.queue].entries = 1
        await super().fence(shard, topic_id)


async def test_a_removal_that_is_refused_while_a_former_layout_goes() -> None:
    """That queues of the former layout are gone, whose ledgers are kept, does not make it a removal which has begun:
    the topic stays, and takes events."""
    cluster = ClusterWithALateEvent(lands_in="t@1.2")
    topic = await cluster.own_topics.create(own_topic("t", 2))
    cluster.queues["t.1"].reservations = 1
    await cluster.own_topics.reshard(topic, 3)
    cluster.queues["t.1"].reservations = 0

    async def remove() -> None:
        with pytest.raises(TopicRefused, match="1 entry of t waits"):
            await cluster.own_topics.remove(topic, discard=False)

    await cluster.own_topics._all_shut("t", await cluster.existing(topic))
    await overtaken(cluster, ("swap", "resharded"), cluster.own_topics.forget_former(topic), remove)

    assert cluster.topics["t"].stored.state == "resharded"
    assert cluster.queues["t@1.2"] == QueueObject(topic.id, entries=1)


async def test_a_removal_that_is_refused_before_a_layout_is_prepared() -> None:
    """That no queue of the coming layout is there yet does not make it a removal which has begun: the topic stays, and
    its change is finished."""
    cluster = ClusterWithALateEvent(lands_in="t.1")
    topic = await cluster.own_topics.create(own_topic("t", 2))
    await cluster.own_topics._announce_layout(topic, await cluster.existing(topic), 3)

    with pytest.raises(TopicRefused, match="1 entry of t waits"):
        await cluster.own_topics.remove(topic, discard=False)

    assert (await cluster.own_topics.reshard(topic, 3)).generation == 1


async def test_a_shard_waits_until_its_parents_are_through() -> None:
    """It waits for a parent that has entries, and for one without that is not shut yet, as some may land there; when
    all are through it begins, and says where they ended."""
    cluster, _ = await resharded(1)
    me: Any = cluster
    child = (await now(cluster)).open_shards()[0]
    cluster.queues["t"].entries, cluster.queues["t.1"].reservations = 3, 1

    async def why() -> str:
        return (await Parents(me, me, me, lambda _: None).before(child)).why

    assert await why() == "waits for t of generation 0: 3 entries, and 1 more"
    cluster.queues["t"].entries = 0
    assert await why() == "waits for t.1 of generation 0: 1 open reservation"
    cluster.queues["t.1"].reservations = 0
    assert await Parents(me, me, me, lambda _: None).before(child) == Precedence("", b"t=i:0/9,t.1=i:0/9")
