"""A topic of remora's own on a cluster, into which threads store events: the store's own calls, without HTTP."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from devkit.bench.embedded import NOBODY, own_topic
from devkit.bench.writers import random_key
from remora.config import RadosSettings
from remora.model.ingest import ReservedRoom, RoutedEvent
from remora.model.topic import Topic
from remora.storage.rados import RadosStore

T = TypeVar("T")


class TopicQueues:
    """The queues of one topic; any number of threads may use them."""

    def __init__(self, store: RadosStore, topic: Topic, payload: int, *, in_two_steps: bool) -> None:
        self.names: Sequence[str] = [shard.queue for shard in topic.all_shards()]
        self._loop, self._store, self._topic = asyncio.get_running_loop(), store, topic
        self._payload, self._in_two_steps = os.urandom(payload), in_two_steps

    def store(self, queue: int, request: Callable[[], bool]) -> bool:
        """Reserve room, make the request, and commit the event; false where there was nothing left to ask for."""
        event = RoutedEvent(queue, random_key(), self._payload)
        if not self._in_two_steps:
            self._wait(self._store.ingest.publish(self._topic, [event]))
            return request()
        room = ReservedRoom(queue, event.key, len(self._payload))
        reservation = self._wait(self._store.ingest.reserve(self._topic, [room]))
        if not request():
            return False
        self._wait(self._store.ingest.commit(self._topic, reservation, [event], b"bench"))
        return True

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


@contextmanager
def new_topic(settings: RadosSettings, shards: int, payload: int, *, in_two_steps: bool) -> Iterator[TopicQueues]:
    """A topic of so many shards for events of so many bytes, which is removed again.

    An event is stored `in_two_steps` with the request between them, or else by one publish before the request.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="store")
    thread.start()
    ended, made = asyncio.Event(), Future[TopicQueues]()

    async def keep() -> None:
        try:
            async with RadosStore(settings) as store:
                topic = await store.own_topics.create(own_topic(f"bench-{uuid.uuid4().hex[:8]}", NOBODY, shards))
                made.set_result(TopicQueues(store, topic, payload, in_two_steps=in_two_steps))
                await ended.wait()
                await store.own_topics.remove(topic, discard=True)
        except Exception as error:
            if made.done():
                raise
            made.set_exception(error)

    kept = asyncio.run_coroutine_threadsafe(keep(), loop)
    try:
        yield made.result()
    finally:
        loop.call_soon_threadsafe(ended.set)
        kept.result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
