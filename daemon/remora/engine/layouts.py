"""Finishes changes of layouts that were cut short, and removes former layouts when their last entries are delivered.

Every worker does so: it is one operation of the store, and a repeat changes nothing. It goes on beside the readings of
the catalogue, and a few topics beside each other: a topic whose queues do not answer holds up nothing else.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from remora.engine.catalogue import Catalogue
from remora.metrics import Telemetry
from remora.model.errors import StoreError, TopicUnknown
from remora.model.topic import Topic
from remora.ports.administration import LayoutStorage

AT_ONCE = 8
"""Topics that are looked after at once."""


class LayoutKeeper:
    """See the module."""

    def __init__(self, layouts: LayoutStorage, catalogue: Catalogue, telemetry: Telemetry) -> None:
        self._layouts = layouts
        self._catalogue = catalogue
        self._telemetry = telemetry
        self._under_way: set[str] = set()

    async def run(self) -> NoReturn:
        """Look after each reading of the catalogue until cancelled. What the store cannot do now is tried again."""
        gate = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            while True:
                for topic in self._catalogue.topics.values():
                    if (topic.former or topic.coming) and topic.name not in self._under_way:
                        self._under_way.add(topic.name)
                        tasks.create_task(self._forget(topic, gate), name=f"layouts of {topic.name}")
                await self._catalogue.next_reading()

    async def _forget(self, topic: Topic, gate: asyncio.Semaphore) -> None:
        try:
            async with gate:
                if await self._layouts.forget_former(topic):
                    self._telemetry.layout_delivered(topic.label, [each.generation for each in topic.former])
        except TopicUnknown:
            return
        except StoreError as exc:
            self._telemetry.layout_kept(topic.label, str(exc))
        finally:
            self._under_way.discard(topic.name)
