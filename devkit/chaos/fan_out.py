"""Clients that send events without a topic, while notifications change; each copy counts as an event of its own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from devkit.bench.embedded import Embedded
from devkit.chaos import requests
from devkit.chaos.clients import Client, Ledger
from devkit.chaos.reading import FANNED, copy_id
from devkit.chaos.requests import Answer, Connection, Event
from devkit.verdicts.verdict import Fate
from remora.model.errors import StoreUnavailable
from remora.model.notification import Notification

LONGEST_PAUSE_S = 1.0
BUCKETS = (f"{FANNED}-*",)


class Fanned:
    """The notifications of a run: one that sends to all topics but the last, always; and one to the last, at times."""

    def __init__(self, embedded: Embedded, topics: Sequence[str], seed: str) -> None:
        *always, self.at_times = topics
        self.always = tuple(always)
        self.done: Counter[str] = Counter()
        self._embedded = embedded
        self._chance = random.Random(f"{seed}/notifications")

    async def make(self) -> None:
        """Make the one that is always there."""
        async with self._embedded.store() as store:
            await store.notifications.change(None, Notification("always", self.always, BUCKETS))

    async def run(self, ended: asyncio.Event) -> None:
        """Make the other one and remove it, again and again, until told to end."""
        second = Notification("at-times", (self.at_times,), BUCKETS)
        async with self._embedded.store() as store:
            while not ended.is_set():
                await asyncio.sleep(self._chance.uniform(0, LONGEST_PAUSE_S))
                try:
                    is_there = second in (await store.notifications.definitions()).notifications
                    await store.notifications.change(*((second, None) if is_there else (None, second)))
                except StoreUnavailable:
                    self.done["notifications unavailable"] += 1
                else:
                    self.done["notifications changed"] += 1


class FanningClient(Client):
    """A client that leaves it to notifications where its events go."""

    _bucket = FANNED

    def __init__(self, number: int, fanned: Fanned, seed: str, connection: Connection, ledger: Ledger) -> None:
        super().__init__(number, "", seed, connection, ledger)
        self._path, self._reservations = "/v1/events", "/v1/reservations"
        self._fanned = fanned

    def _enter(self, events: Sequence[Event], fate: Fate, answer: Answer | None = None) -> None:
        """All copies of the first notification are stored, or none; the answer says whether the second one sent any."""
        topics = answer.body["topics"] if answer is not None and fate is Fate.STORED else None
        sent = None if topics is None else topics.get(self._fanned.at_times, 0)
        if sent not in (None, 0, len(events)):
            self._ledger.surprises.append(f"{sent} of {len(events)} events went to {self._fanned.at_times}")
        always = [copy_id(topic, each.id) for topic in self._fanned.always for each in events]
        at_times = [copy_id(self._fanned.at_times, each.id) for each in events]
        if sent:
            self._ledger.enter([*always, *at_times], fate)
            return
        self._ledger.enter(always, fate)
        self._ledger.enter(at_times, Fate.REFUSED if sent == 0 else fate)

    def _has_all(self, answer: Answer, count: int) -> bool:
        counts = [answer.body["topics"].get(topic) for topic in self._fanned.always]
        return answer.body.get("accepted") == count and counts == [count] * len(counts)

    def _is_repeat(self, _: requests.Request, answer: Answer) -> bool:
        return bool(answer.body.get("topics"))
