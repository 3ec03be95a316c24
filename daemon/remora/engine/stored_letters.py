"""Counts the dead letters that are stored now, of all queues of the store, those of topics that are gone included."""

from __future__ import annotations

import asyncio

from remora.engine.catalogue import Catalogue
from remora.metrics import Telemetry
from remora.model.errors import CodecError, StoreError
from remora.model.shard import Origin, Shard
from remora.ports.delivery import DeliveryStore

LEAST_S = 15.0
REST = 50
"""A count that took long is made again after this many times as long, so that very many letters cost little."""


class LetterCounter:
    """See the module. One worker of a host counts, since all of them see the same store."""

    def __init__(self, store: DeliveryStore, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry

    async def run(self, catalogue: Catalogue) -> None:
        """Count again and again until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            await self.count(catalogue)
            await asyncio.sleep(max(LEAST_S, REST * (now() - began)))

    async def count(self, catalogue: Catalogue) -> None:
        """Count once. What cannot be counted now is shown as it was."""
        try:
            found = await self._store.letters.counts()
        except (StoreError, CodecError):
            return
        counts: dict[str, int] = {}
        for queue, count in found.items():
            # The topic that the queue is of now; else the queue's name, which its topic had.
            topics = (catalogue.topic(Shard(queue, origin)) for origin in Origin)
            label = next((each.label for each in topics if each is not None), queue)
            counts[label] = counts.get(label, 0) + count
        self._telemetry.letters_stored(counts)
