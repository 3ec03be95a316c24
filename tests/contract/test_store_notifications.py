"""The store contract: notifications are seen by all processes, outlast these, and are replaced by comparison."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from remora.model.errors import NotificationRefused
from remora.model.notification import MOST_NOTIFICATIONS, EventFilter, Notification
from support.stores import Bench

FULL = Notification(
    "thumbnails", ("thumbs", "audit"), ("raw-*",), ("s3:ObjectCreated:*",),
    EventFilter("é/", ".jpg", "a+", 0, 9, (("a", "b"),), (("c", "d"),)),
)  # fmt: skip
PLAIN = Notification("plain", ("audit",))
ONE_OF_THREE = {NotificationRefused: 2, type(None): 1}


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
            await notifications.change(before, replace(FULL, topics=("x",)))

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
