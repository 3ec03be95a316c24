"""A server before an embedded store with topics and notifications, for events that name no topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remora.codec.event_entry import decode
from remora.config import SqliteSettings
from remora.model.entry import S3Event
from remora.model.notification import EventFilter, Notification
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from support.ingest import Site, ingest_site, own_topic, record

EVENTS = "/v1/events"
TOPICS = ("thumbs", "audit", "other")

THUMBNAILS = Notification(
    "thumbnails", ("thumbs", "audit"), ("photos",), ("s3:ObjectCreated:*",), EventFilter(suffix=".jpg")
)
REMOVALS = Notification("removals", ("audit",), (), ("s3:ObjectRemoved:*",))


def photo(
    key: str = "a.jpg", name: str = "ObjectCreated:Put", bucket: str = "photos", **of_object: Any
) -> dict[str, Any]:
    """A record of an object in a bucket."""
    return record(key, eventName=name, s3={"bucket": {"name": bucket}, "object": {"key": key, "size": 3, **of_object}})


@dataclass
class Place:
    """A site with its store."""

    site: Site
    store: SqliteStore

    async def send(self, *given: dict[str, Any], **headers: str) -> Any:
        """Send records; the answer."""
        return await self.site.ask("POST", EVENTS, {"Records": given}, headers)

    async def entries(self, name: str) -> list[bytes]:
        """What waits in a topic, shard after shard."""
        topic = await self.topic(name)
        return [entry for shard in topic.all_shards() async for _, entry in self.store.inspection.dump(shard)]

    async def topic(self, name: str) -> Topic:
        topic = await self.store.own_topics.find(name)
        assert topic is not None
        return topic

    async def found(self, name: str) -> list[S3Event]:
        """The events of a topic."""
        return [decode(entry).event for entry in await self.entries(name)]

    async def keys(self, name: str) -> Counter[tuple[str, str]]:
        """The objects in a topic, each with the notification that sent it."""
        return Counter((each.object_key.decode(), each.configuration_id.decode()) for each in await self.found(name))


@asynccontextmanager
async def place(
    folder: Path, *notifications: Notification, change: Callable[[Topic], Topic] = lambda topic: topic, **settings: Any
) -> AsyncIterator[Place]:
    """A store of four files with topics and these notifications, and a server before it."""
    async with SqliteStore(SqliteSettings(directory=str(folder / "store"), files=4)) as store:
        for name in TOPICS:
            await store.own_topics.create(change(replace(own_topic(name), id="")))
        for each in notifications:
            await store.notifications.change(None, each)
        async with ingest_site(store, folder, **settings) as site:
            yield Place(site, store)
