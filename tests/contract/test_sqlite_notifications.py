"""Notifications in the embedded store: seen by all processes, replaced by comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remora.config import SqliteSettings
from remora.model.errors import NotificationRefused
from remora.model.notification import MOST_NOTIFICATIONS, EventFilter, Notification
from remora.storage.sqlite import SqliteStore

FULL = Notification(
    "thumbnails", ("thumbs", "audit"), ("raw-*",), ("s3:ObjectCreated:*",),
    EventFilter("é/", ".jpg", "a+", 0, 9, (("a", "b"),), (("c", "d"),)),
)  # fmt: skip
PLAIN = Notification("plain", ("audit",))


async def test_seen_by_all_and_after_a_restart(configured: SqliteSettings, store: SqliteStore) -> None:
    """What one store has made another one sees as it was given; it is read anew only when something has changed."""
    async with SqliteStore(configured) as other:
        assert (await other.notifications.definitions()).notifications == ()
        await store.notifications.change(None, FULL)
        await store.notifications.change(None, PLAIN)
        found = await other.notifications.definitions()

        assert found.notifications == (PLAIN, FULL)
        assert await other.notifications.definitions() is found
        assert found.naming("audit") == ("plain", "thumbnails")
        assert found.naming("thumbs") == ("thumbnails",)
        await store.notifications.change(PLAIN, None)
        assert (await other.notifications.definitions()).notifications == (FULL,)
    async with SqliteStore(configured) as reopened:
        assert (await reopened.notifications.definitions()).notifications == (FULL,)


async def test_changed_by_comparison(store: SqliteStore) -> None:
    """A change of what is not there as the caller believes is refused, and nothing is changed."""
    other = replace(FULL, topics=("thumbs",))
    with pytest.raises(NotificationRefused, match="there is no notification thumbnails"):
        await store.notifications.change(FULL, other)
    await store.notifications.change(None, FULL)
    for before, why in ((None, "already"), (other, "changed meanwhile")):
        with pytest.raises(NotificationRefused, match=why):
            await store.notifications.change(before, replace(FULL, topics=("x",)))

    assert (await store.notifications.definitions()).notifications == (FULL,)
    await store.notifications.change(FULL, other)
    assert (await store.notifications.definitions()).notifications == (other,)


async def test_not_more_than_there_may_be(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One beyond the most is refused, and one that is there can still be changed."""
    monkeypatch.setattr("remora.storage.sqlite.notifications.MOST_NOTIFICATIONS", 2)
    await store.notifications.change(None, FULL)
    await store.notifications.change(None, PLAIN)

    with pytest.raises(NotificationRefused, match="2 notifications"):
        await store.notifications.change(None, replace(PLAIN, id="third"))
    await store.notifications.change(PLAIN, replace(PLAIN, topics=("thumbs",)))
    assert MOST_NOTIFICATIONS == 1000
