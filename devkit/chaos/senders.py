"""Who stores events in a run: clients of the ingest API, and gateways that commit to queues in two phases.

Each does one thing after the other, until it is decided, so that the order of a key's events is known. A key whose
last commit was left without an answer is never used again: it may still happen, after the next one.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from devkit.chaos import entries, requests
from devkit.chaos.requests import NDJSON, Answer, Connection, Event, Request, Undecided
from devkit.verdicts.history import Kind, Sent
from devkit.verdicts.verdict import Fate
from remora.model.errors import StoreError, StoreFull, StoreUnavailable
from remora.model.shard import Shard
from remora.ports.producer import TwoPhase

KEYS = 5
MOST_AT_ONCE = 20
PATIENCE_S = 120.0
ANSWER_S = 3.0
"""After this a client asks the other host."""

RESERVATION_AGE_S = 20.0
"""How long a gateway may take over a commit: what it has reserved must not be given up before."""

SLOW_SHARE = 0.06
SLOWEST_S = 6.0
"""Some gateways take a while between the two phases; what they have reserved stands open under faults meanwhile."""

BAD_SHARE = 0.04
TOO_LARGE = 100_000
"""Characters of noise in an entry that is too large for its Kafka topic."""

LARGE_SHARE, LARGE = 0.02, 20_000
"""Of entries that fit into their Kafka topic, save while its limit is lowered; and characters of noise in them."""


@dataclass
class Account:
    """What was sent to one topic."""

    sent: list[Sent] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    asked_again: int = 0


class Keys:
    """The keys of one sender, each with the number of its next event."""

    def __init__(self, sender: str, chance: random.Random) -> None:
        self._sender, self._chance = sender, chance
        self._names = [f"k{number}" for number in range(KEYS)]
        self._generations = itertools.count(1)
        self._numbers: dict[str, itertools.count[int]] = {}

    def draw(self, most: int) -> list[tuple[str, int]]:
        """Some keys, each with a number of its own."""
        return [self._next(name) for name in self._chance.choices(self._names, k=self._chance.randint(1, most))]

    def _next(self, name: str) -> tuple[str, int]:
        return name, next(self._numbers.setdefault(name, itertools.count(1)))

    def leave(self, names: Sequence[str]) -> None:
        """Use other keys than these from now on."""
        for name in set(names):
            place = self._names.index(name)
            self._names[place] = f"k{place}g{next(self._generations)}"


class Client:
    """Stores batches through the ingest API, at whichever host answers, until each is decided."""

    def __init__(
        self, name: str, topic: str, hosts: Sequence[str], seed: str, pause_s: float, account: Account
    ) -> None:
        """`hosts` are the sockets of their ingest APIs."""
        self._name, self._topic, self._account, self._pause_s = name, topic, account, pause_s
        self._chance = random.Random(f"{seed}/{name}")
        self._keys = Keys(name, self._chance)
        self._opened = [Connection(each, timeout_s=ANSWER_S) for each in hosts]
        self._connections = itertools.cycle(self._opened)
        self._host = next(self._connections)
        self._requests = itertools.count(1)

    async def close(self) -> None:
        for each in self._opened:
            await each.close()

    async def run(self, over: asyncio.Event) -> None:
        """Store one batch after the other until told to end."""
        while not over.is_set():
            await self._store()
            await asyncio.sleep(self._chance.expovariate(1 / self._pause_s))

    async def _store(self) -> None:
        drawn = self._keys.draw(MOST_AT_ONCE)
        key = f"{self._name}-{next(self._requests)}"
        ids = [entries.event_id(f"{self._name}.{name}", number) for name, number in drawn]
        events = [Event(event, self._name, name) for event, (name, _) in zip(ids, drawn, strict=True)]
        request = Request("POST", f"/v1/topics/{self._topic}/events", requests.lines(events), NDJSON, key)
        try:
            answer = await self._decided(request)
        except Undecided as finding:
            self._account.surprises.append(f"never decided: {finding}")
            fate = Fate.OPEN
            self._keys.leave([name for name, _ in drawn])
        else:
            fate = Fate.STORED if answer.status == 200 else Fate.REFUSED
            if fate is Fate.REFUSED:
                self._account.surprises.append(f"a good request was refused: {request.path} {key}: {answer}")
        self._account.sent += [
            Sent(event, f"{self._name}/{name}", number, fate, key)
            for event, (name, number) in zip(ids, drawn, strict=True)
        ]

    async def _decided(self, request: Request) -> Answer:
        """Ask one host and then the other until there is an answer for good."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            answer = await self._host.once(request)
            if answer and answer.is_final:
                return answer
            if asyncio.get_running_loop().time() > deadline:
                raise Undecided(f"{request.path} {request.key}: {answer or 'no answer'}")
            self._account.asked_again += 1
            self._host = next(self._connections)
            await asyncio.sleep(requests.PAUSE_S)


class Gateway:
    """Commits entries to one queue in two phases, as a radosgw does; a few of them cannot be delivered."""

    def __init__(
        self,
        name: str,
        queue: tuple[TwoPhase, Shard],
        to: entries.Destination,
        chance: random.Random,
        pause_s: float,
        account: Account,
    ) -> None:
        """Its entries go into the `queue` and carry the destination `to`; `pause_s` is the mean between two batches."""
        self._name, self._to, self._account = name, to, account
        self._store, self._shard = queue
        self._pause_s, self._chance = pause_s, chance
        self._keys = Keys(name, self._chance)
        self._bad = itertools.count(1)
        self._requests = itertools.count(1)

    async def close(self) -> None:
        """Nothing to close: the store is the run's."""

    async def run(self, over: asyncio.Event) -> None:
        """Commit one batch after the other until told to end."""
        while not over.is_set():
            await self._commit()
            await asyncio.sleep(self._chance.expovariate(1 / self._pause_s))

    async def _commit(self) -> None:
        drawn = self._keys.draw(MOST_AT_ONCE)
        request = f"{self._name}-{next(self._requests)}"
        batch = [self._good(name, number, request) for name, number in drawn]
        if self._chance.random() < BAD_SHARE * MOST_AT_ONCE / 2:
            batch.insert(self._chance.randint(0, len(batch)), self._spoilt(request))
        payloads = [payload for _, payload in batch]
        fate = await self._two_phases(payloads)
        if fate is Fate.OPEN:
            self._keys.leave([name for name, _ in drawn])
        self._account.sent += [sent._replace(fate=fate) for sent, _ in batch]

    async def _two_phases(self, payloads: Sequence[bytes]) -> Fate:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            reservation = await self._store.reserve(self._shard, len(payloads), sum(map(len, payloads)))
        except StoreError:
            return Fate.REFUSED
        if self._chance.random() < SLOW_SHARE:
            await asyncio.sleep(self._chance.uniform(0, SLOWEST_S))
        try:
            await self._store.commit(self._shard, reservation, payloads)
        except StoreUnavailable:
            return Fate.OPEN
        except StoreFull:
            return Fate.REFUSED
        except StoreError as refusal:
            if (age_s := now() - began) < RESERVATION_AGE_S:
                self._account.surprises.append(f"a reservation of {age_s:.1f} s was not good any more: {refusal}")
            return Fate.REFUSED
        return Fate.STORED

    def _good(self, name: str, number: int, request: str) -> tuple[Sent, bytes]:
        event = entries.event_id(f"{self._name}.{name}", number)
        sent = Sent(event, f"{self._name}/{name}", number, Fate.OPEN, request)
        if self._chance.random() < LARGE_SHARE:
            return sent._replace(kind=Kind.EITHER), self._entry(event, name, entries.noise(self._chance, LARGE))
        return sent, self._entry(event, name)

    def _spoilt(self, request: str) -> tuple[Sent, bytes]:
        number = next(self._bad)
        event = entries.event_id(f"{self._name}.bad", number)
        sent = Sent(event, f"{self._name}/bad", number, Fate.OPEN, request, Kind.BAD)
        if self._chance.random() < 0.5 or not self._to.uri.startswith("kafka:"):  # only a Kafka topic has a limit here
            return sent, entries.undecodable(event)
        return sent, self._entry(event, "bad", entries.noise(self._chance, TOO_LARGE))

    def _entry(self, event: str, key: str, note: str = "") -> bytes:
        return entries.entry(event, self._name, key, self._to, note or event)
