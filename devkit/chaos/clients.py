"""Clients that store events in every way the ingest API has, and keep account of what must come of it.

A client does one thing after the other, each until it is decided, so that the order of its events is known. Objects
whose last request was left without an answer are never written again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from devkit.chaos import requests
from devkit.chaos.requests import JSON, NDJSON, Answer, Connection, Event, Undecided
from devkit.verdicts.verdict import Fate, Request

OBJECTS = 6
"""Objects that a client writes again and again."""

MOST_AT_ONCE = 40
PATIENCE_S = 120.0
THINKING_S = 0.02
"""The mean of a client's pauses."""


@dataclass
class Ledger:
    """What all clients have done; `surprises` are answers that the API should never give."""

    requests: list[Request] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    asked_again: int = 0

    @property
    def stored(self) -> int:
        """Events that were acknowledged."""
        return sum(len(each.ids) for each in self.requests if each.fate is Fate.STORED)

    def enter(self, ids: Sequence[str], fate: Fate) -> None:
        self.requests.append(Request(tuple(ids), fate))


class Client:
    """One client with a topic and objects of its own."""

    def __init__(self, number: int, topic: str, seed: str, connection: Connection, ledger: Ledger) -> None:
        self._number = number
        self._path, self._reservations = f"/v1/topics/{topic}/events", f"/v1/topics/{topic}/reservations"
        self._chance = random.Random(f"{seed}/{number}")
        self._connection = connection
        self._ledger = ledger
        self._numbers = itertools.count(1)
        self._keys = itertools.count(1)
        self._answered: deque[requests.Request] = deque(maxlen=100)
        self._deeds: dict[Callable[[], Awaitable[None]], int] = {
            self._single: 30,
            self._batch: 20,
            self._two_phase: 20,
            self._interrupted: 10,
            self._cut: 8,
            self._repeated: 6,
            self._abandoned: 4,
            self._unkeyed: 3,
            self._aborted: 4,
            self._never_committed: 1,
            self._wrongly_committed: 3,
            self._malformed: 3,
            self._conflicting: 3,
            self._unknown_topic: 2,
        }

    async def run(self, ended: asyncio.Event) -> None:
        """Do one thing after the other until told to end. What stays undecided is a finding, and the client's end."""
        try:
            while not ended.is_set():
                (deed,) = self._chance.choices(list(self._deeds), weights=list(self._deeds.values()))
                await deed()
                self._ledger.done[deed.__name__.strip("_")] += 1
                await asyncio.sleep(self._chance.expovariate(1 / THINKING_S))
        except Undecided as finding:
            self._ledger.surprises.append(f"never decided: {finding}")

    # ---------------------------------------------------------------------------------------- one step

    async def _single(self) -> None:
        """One event, as a gateway posts it."""
        events = self._events(1)
        await self._store(events, self._publish(events, requests.document(events), JSON))

    async def _batch(self) -> None:
        """Several events in one request."""
        events = self._events(self._chance.randint(2, MOST_AT_ONCE))
        await self._store(events, self._publish(events, requests.lines(events), NDJSON))

    async def _interrupted(self) -> None:
        """The client goes away before the answer, and asks again with the same key."""
        events = self._events(self._chance.randint(1, MOST_AT_ONCE))
        request = self._publish(events, requests.lines(events), NDJSON)
        await self._connection.hang_up(request, self._chance.uniform(0, 0.01))
        await self._store(events, request)

    async def _abandoned(self) -> None:
        """The client goes away before the answer, and never asks again."""
        events = self._events(self._chance.randint(1, MOST_AT_ONCE), fresh=True)
        request = self._publish(events, requests.lines(events), NDJSON)
        self._leave(events, await self._connection.hang_up(request, self._chance.uniform(0, 0.01)))

    async def _cut(self) -> None:
        """The connection ends within the body, of which nothing is stored; half of the clients ask again."""
        asks_again = self._chance.random() < 0.5
        events = self._events(self._chance.randint(1, MOST_AT_ONCE), fresh=not asks_again)
        request = self._publish(events, requests.lines(events), NDJSON)
        await self._connection.cut(request, self._chance.random())
        if asks_again:
            await self._store(events, request)
        else:
            self._enter(events, Fate.REFUSED)

    async def _unkeyed(self) -> None:
        """Several events without an idempotency key, and so asked for once."""
        events = self._events(self._chance.randint(1, MOST_AT_ONCE), fresh=True)
        request = requests.Request("POST", self._path, requests.lines(events), NDJSON)
        self._leave(events, await self._connection.once(request))

    async def _repeated(self) -> None:
        """A request that was answered long ago, once more."""
        if not self._answered:
            return
        request = self._chance.choice(self._answered)
        answer = await self._decided(request)
        if answer.status != 200 or not self._is_repeat(request, answer):
            self._surprise("a repeated request was answered otherwise", request, answer)

    # -------------------------------------------------------------------------------------- two phases

    async def _two_phase(self) -> None:
        """Room is reserved, then used; sometimes the commit is cut off, sometimes it is repeated."""
        events = self._events(self._chance.randint(1, 10))
        if not (path := await self._reserve(events)):
            return
        request = requests.Request("PUT", path, requests.document(events), JSON)
        if self._chance.random() < 0.3:
            await self._connection.hang_up(request, self._chance.uniform(0, 0.01))
        await self._store(events, request)

    async def _aborted(self) -> None:
        """Room is reserved and given back, and then nobody can use it any more."""
        events = self._events(self._chance.randint(1, 10))
        if not (path := await self._reserve(events)):
            return
        for _ in range(self._chance.randint(1, 2)):
            await self._refuse([], requests.Request("DELETE", path), 204)
        await self._refuse(events, requests.Request("PUT", path, requests.document(events), JSON), 410)

    async def _never_committed(self) -> None:
        """Room is reserved, and that is all."""
        events = self._events(self._chance.randint(1, 3))
        await self._reserve(events)
        self._enter(events, Fate.REFUSED)

    async def _wrongly_committed(self) -> None:
        """A commit of other objects is refused, and the right one still possible; then another one is too late."""
        right = self._events(self._chance.randint(1, 10))
        wrong = [Event(self._id(), each.bucket, f"{each.key}.other") for each in right]
        if not (path := await self._reserve(right)):
            return
        await self._refuse(wrong, requests.Request("PUT", path, requests.document(wrong), JSON), 409)
        await self._store(right, requests.Request("PUT", path, requests.document(right), JSON))
        late = [Event(self._id(), each.bucket, each.key) for each in right]
        await self._refuse(late, requests.Request("PUT", path, requests.document(late), JSON), 409)

    async def _reserve(self, events: Sequence[Event]) -> str:
        """The path of a new reservation. One whose answer was lost is left to expire."""
        rooms = [{"bucket": each.bucket, "object": each.key, "bytes": 2000} for each in events]
        body = json.dumps({"events": rooms}).encode()
        request = requests.Request("POST", self._reservations, body, JSON)
        answer = await self._decided(request)
        if answer.status != 201:
            self._surprise("a reservation was refused", request, answer)
            self._enter(events, Fate.REFUSED)
            return ""
        return f"/v1/reservations/{answer.body['reservation']}"

    # ----------------------------------------------------------------------------------------- refused

    async def _malformed(self) -> None:
        """One bad record spoils the request, wherever it stands."""
        events = self._events(self._chance.randint(1, 10))
        bad = self._chance.choice([b'{"eventVersion":\n', b'{"eventName":"ObjectCreated:Put","s3":{}}\n', b"[]\n"])
        good = requests.lines(events).splitlines(keepends=True)
        good.insert(self._chance.randint(0, len(good)), bad)
        await self._refuse(events, self._publish(events, b"".join(good), NDJSON), 400, 422)

    async def _conflicting(self) -> None:
        """Other events under a key that was used."""
        events, others = self._events(self._chance.randint(1, 5)), self._events(self._chance.randint(1, 5))
        request = self._publish(events, requests.lines(events), NDJSON)
        await self._store(events, request)
        other = requests.Request("POST", request.path, requests.lines(others), NDJSON, request.key)
        await self._refuse(others, other, 409, 422)

    async def _unknown_topic(self) -> None:
        """A topic that nobody has made."""
        events = self._events(self._chance.randint(1, 5))
        path = "/v1/topics/nobodys/events"
        await self._refuse(events, requests.Request("POST", path, requests.lines(events), NDJSON), 404)

    # ----------------------------------------------------------------------------------------- account

    def _enter(self, events: Sequence[Event], fate: Fate, answer: Answer | None = None) -> None:
        """Note what must have become of events; of stored ones the answer is known."""
        self._ledger.enter([each.id for each in events], fate)

    def _has_all(self, answer: Answer, count: int) -> bool:
        return bool(answer.body.get("stored") == count)

    def _is_repeat(self, request: requests.Request, answer: Answer) -> bool:
        return request.method != "POST" or answer.body.get("repeated") is True

    async def _store(self, events: Sequence[Event], request: requests.Request) -> None:
        """Ask until it is answered; all is stored then."""
        answer = await self._decided(request)
        if answer.status != 200 or not self._has_all(answer, len(events)):
            self._surprise("a good request was refused", request, answer)
            self._enter(events, Fate.REFUSED)
            return
        self._enter(events, Fate.STORED, answer)
        self._answered.append(request)

    async def _refuse(self, events: Sequence[Event], request: requests.Request, *statuses: int) -> None:
        """Ask until it is answered; nothing is stored then."""
        answer = await self._decided(request)
        if answer.status not in statuses:
            self._surprise(f"expected {' or '.join(map(str, statuses))}", request, answer)
        if events:
            self._enter(events, Fate.REFUSED)

    def _leave(self, events: Sequence[Event], answer: Answer | None) -> None:
        """Take what is known after one try. A full queue has stored nothing; of other failures nobody knows."""
        if answer is None or answer.status in (500, 503):
            self._enter(events, Fate.OPEN)
        else:
            self._enter(events, Fate.STORED if answer.status == 200 else Fate.REFUSED, answer)

    async def _decided(self, request: requests.Request) -> Answer:
        answer, tries = await self._connection.decided(request, PATIENCE_S)
        self._ledger.asked_again += tries
        return answer

    def _surprise(self, what: str, request: requests.Request, answer: Answer) -> None:
        self._ledger.surprises.append(f"{what}: {request.method} {request.path} {request.key}: {answer}")

    # ------------------------------------------------------------------------------------------- names

    _bucket = "chaos"

    def _publish(self, events: Sequence[Event], body: bytes, kind: str) -> requests.Request:
        return requests.Request("POST", self._path, body, kind, f"{self._number:02}-{next(self._keys)}")

    def _events(self, count: int, *, fresh: bool = False) -> list[Event]:
        """Events of this client's objects, or of such as are used only once."""
        bucket = f"{self._bucket}-{self._number:02}"
        if fresh:
            return [Event(each := self._id(), bucket, f"once/{each}") for _ in range(count)]
        return [Event(self._id(), bucket, f"again/{'x' * self._chance.randrange(OBJECTS)}") for _ in range(count)]

    def _id(self) -> str:
        return f"{self._number:02}-{next(self._numbers):08}"
