"""The store contract: notifications are seen by all processes, outlast these, and are replaced by comparison."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from remora.model.errors import NotificationRefused, StoreUnavailable, TopicNamed
from remora.model.notification import MOST_NOTIFICATIONS, EventFilter, Notification
from remora.model.topic import Topic
from remora.ports.store import ShardStore
from remora.storage.sqlite.topics import notifications as sqlite_notifications
from support.stores import Bench, own_topic, spread

FULL = Notification(
    "thumbnails", ("thumbs", "audit"), ("raw-*",), ("s3:ObjectCreated:*",),
    EventFilter("é/", ".jpg", "a+", 0, 9, (("a", "b"),), (("c", "d"),)),
)  # fmt: skip
PLAIN = Notification("plain", ("audit",))
ONE_OF_THREE = {NotificationRefused: 2, type(None): 1}


@pytest.fixture(autouse=True)
async def topics(bench: Bench) -> None:
    """The topics that the notifications send to."""
    for name in ("thumbs", "audit"):
        await bench.store.own_topics.create(own_topic(name, 1))


async def test_seen_by_all_and_after_a_restart(bench: Bench) -> None:
    """What one store has made another one sees as it was given; it is read anew only when something has changed."""
    notifications, other = bench.store.notifications, (await bench.another()).notifications
    assert (await other.definitions()).notifications == ()
    await notifications.change(None, FULL)
    await notifications.change(None, PLAIN)
    found = await other.definitions()

    assert found.notifications == (PLAIN, FULL)
    assert await other.definitions() is found
    assert found.naming("audit") == ("plain", "thumbnails")
    assert found.naming("thumbs") == ("thumbnails",)
    await notifications.change(PLAIN, None)
    after = await other.definitions()
    assert after.notifications == (FULL,)
    assert after.version > found.version
    reopened = (await bench.reopened()).notifications
    assert (await reopened.definitions()).notifications == (FULL,)
    await reopened.change(FULL, None)
    assert (await reopened.definitions()).notifications == ()


async def test_changed_by_comparison(bench: Bench) -> None:
    """A change of what is not there as the caller believes is refused, and nothing is changed."""
    notifications, other = bench.store.notifications, replace(FULL, topics=("thumbs",))
    with pytest.raises(NotificationRefused, match="there is no notification thumbnails"):
        await notifications.change(FULL, other)
    await notifications.change(None, FULL)
    for before, why in ((None, "already"), (other, "changed meanwhile")):
        with pytest.raises(NotificationRefused, match=why):
            await notifications.change(before, replace(FULL, topics=("audit",)))

    assert (await notifications.definitions()).notifications == (FULL,)
    await notifications.change(FULL, other)
    assert (await notifications.definitions()).notifications == (other,)


async def test_not_more_than_there_may_be(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One beyond the most is refused, and one that is there can still be changed."""
    monkeypatch.setattr("remora.policy.ingest.notification_rules.MOST_NOTIFICATIONS", 2)
    notifications = bench.store.notifications
    await notifications.change(None, FULL)
    await notifications.change(None, PLAIN)

    with pytest.raises(NotificationRefused, match="2 notifications"):
        await notifications.change(None, replace(PLAIN, id="third"))
    await notifications.change(PLAIN, replace(PLAIN, topics=("thumbs",)))
    assert MOST_NOTIFICATIONS == 1000


async def test_several_change_them_at_once(bench: Bench) -> None:
    """Of processes that make or change one notification at once one succeeds; those that make others all succeed."""
    stores = [bench.store, await bench.another(), await bench.another()]
    same = await asyncio.gather(*(each.notifications.change(None, PLAIN) for each in stores), return_exceptions=True)
    assert Counter(map(type, same)) == ONE_OF_THREE

    await asyncio.gather(*(each.notifications.change(None, replace(FULL, id=f"n{i}")) for i, each in enumerate(stores)))
    found = await bench.store.notifications.definitions()
    assert [each.id for each in found.notifications] == ["n0", "n1", "n2", "plain"]

    changed = [replace(PLAIN, buckets=(f"b{i}",)) for i in range(3)]
    changing = [each.notifications.change(PLAIN, new) for each, new in zip(stores, changed, strict=True)]
    assert Counter(map(type, await asyncio.gather(*changing, return_exceptions=True))) == ONE_OF_THREE
    *_, last = (await bench.store.notifications.definitions()).notifications
    assert last in changed


async def test_of_topics_that_are_there(bench: Bench) -> None:
    """No notification is made, or changed to one, that sends to a topic that there is not; the refusal names each."""
    notifications = bench.store.notifications
    await notifications.change(None, PLAIN)
    for before, topics in ((None, ("lost", "audit", "gone")), (PLAIN, ("gone", "lost"))):
        with pytest.raises(NotificationRefused, match="there is no topic") as caught:
            await notifications.change(before, Notification("plain" if before else "new", topics))
        assert all(f"there is no topic '{name}'" in str(caught.value) for name in ("lost", "gone"))

    assert (await notifications.definitions()).notifications == (PLAIN,)


@pytest.mark.parametrize("discard", [True, False])
async def test_a_topic_that_is_named_stays(bench: Bench, discard: bool) -> None:
    """A topic that notifications send to is not removed, whoever asks: it goes on taking events, and goes when they are
    gone."""
    other = await bench.another()
    await bench.store.notifications.change(None, FULL)
    await bench.store.notifications.change(None, PLAIN)
    topic = await _found(other, "audit")
    with pytest.raises(TopicNamed, match=r"\(plain, thumbnails\)"):
        await other.own_topics.remove(topic, discard=discard)

    await other.ingest.publish(await _found(other, "audit"), spread(topic, 1))
    await bench.store.notifications.change(PLAIN, None)
    await bench.store.notifications.change(FULL, None)
    assert (await other.own_topics.remove(topic, discard=True)).entries == 1


async def test_a_topic_goes_behind_the_look_of_a_change(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a topic is removed when a change of notifications has looked at it, only one of both is done."""
    monkeypatch.setattr(sqlite_notifications, "_WITHIN_S", 0)  # who would have to wait gives up
    other, removed = await bench.another(), []

    async def remove() -> None:
        with suppress(StoreUnavailable):
            removed.append(await other.own_topics.remove(await _found(other, "audit"), discard=False))

    _then(monkeypatch, bench.store.notifications, "topics_there", remove)
    with suppress(NotificationRefused):
        await bench.store.notifications.change(None, PLAIN)

    named = (await bench.store.notifications.definitions()).naming("audit")
    assert [bool(named), bool(removed)] in ([True, False], [False, True])
    assert (await bench.store.own_topics.find("audit") is None) == bool(removed)


async def test_a_change_behind_the_look_of_a_removal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a notification is made when the removal of its topic has looked at all of them, only one of both is done,
    and a topic that stays takes events as before."""
    monkeypatch.setattr(sqlite_notifications, "_WITHIN_S", 0)
    other, topic = await bench.another(), await _found(bench.store, "audit")

    async def make() -> None:
        with suppress(StoreUnavailable):
            await other.notifications.change(None, PLAIN)

    _then(monkeypatch, bench.store.notifications, "definitions", make)
    with suppress(TopicNamed):
        await bench.store.own_topics.remove(topic, discard=False)

    there = await bench.store.own_topics.find("audit")
    assert bool((await other.notifications.definitions()).naming("audit")) == (there is not None)
    if there is not None:
        await bench.store.ingest.publish(there, spread(there, 1))


async def test_changes_and_removals_at_once(bench: Bench) -> None:
    """Of a notification that is made and its topic that is removed at the same time one stays, never both or none."""
    other = await bench.another()
    for i in range(10):
        topic = await bench.topic(1, f"t{i}")
        made, removed = await asyncio.gather(
            other.notifications.change(None, Notification(f"n{i}", (topic.name,))),
            bench.store.own_topics.remove(topic, discard=False),
            return_exceptions=True,
        )

        assert {type(made), type(removed)} & {NotificationRefused, TopicNamed}
        named = (await other.notifications.definitions()).naming(topic.name)
        assert not named or await other.own_topics.find(topic.name) is not None


async def _found(store: ShardStore, name: str) -> Topic:
    topic = await store.own_topics.find(name)
    assert topic is not None
    return topic


def _then(patch: pytest.MonkeyPatch, of: object, name: str, act: Callable[[], Awaitable[None]]) -> None:
    """Have this done once, when the method has been called for the first time and before it answers."""
    method, acts = getattr(of, name), [act]

    async def called(*given: Any) -> Any:
        answer = await method(*given)
        if acts:
            await acts.pop()()
        return answer

    patch.setattr(of, name, called)
