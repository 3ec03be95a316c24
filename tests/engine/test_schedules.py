"""Schedules in which limits, times to live, attempts, clocks and owners change between any two readings of a queue.

Whatever is decided of an entry then stays decided: it is delivered or a dead letter, and no later entry of its key goes
before that is settled. The judge looks at the very moment of each push and each commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeExactRoute, FakeQueue, FakeRoute, FakeStore, Fate, Verdict
from engine.runs import START_S, a_topic, a_worker, drained, running
from remora.codec.topic import DEAD_LETTER_TOPIC
from remora.config import DeliverySettings
from remora.engine.claims import move
from remora.metrics import Telemetry
from remora.model.errors import (
    EndpointError,
    EndpointMisconfigured,
    EndpointUnavailable,
    EntryRefused,
    RemoraError,
    StoreUnavailable,
)
from remora.model.ledger import Tally
from remora.model.record import Record
from remora.model.shard import Shard
from remora.ports.endpoint import Batch

TROUBLE_S = 90.0
KEYS = 4


class World:
    """A store and an endpoint whose limits and troubles are drawn anew again and again, for a while."""

    def __init__(self, rng: Random, *, is_exact: bool) -> None:
        self.rng = rng
        self.is_exact = is_exact
        self.store, self.endpoint = FakeStore(tells=rng.random() < 0.5), FakeEndpoint(lanes=rng.randint(1, 4))
        self.queue: FakeQueue = self.store.make("t")
        self.keys: list[bytes | None] = []
        self.clock_ahead_s = 0.0
        self.most_bytes = 2000
        self.poisoned = False
        self.is_away = self.has_letter_topic = False
        self.unaware: set[int] = set()
        self.parked_before: set[bytes] = set()
        self.draw()
        self.store.before = self.store.after = self._store
        self.endpoint.fate, self.endpoint.verdict = self._fate, self._verdict
        self.endpoint.too_large = lambda record: len(record.body) > self.most_bytes
        self.endpoint.opening = lambda _: EndpointUnavailable("away") if self.is_away and self.is_troubled else None
        self.endpoint.letter_failure = lambda: (
            None if self.has_letter_topic else EndpointMisconfigured("no dead-letter topic")
        )
        self.endpoint.batch_records = rng.randint(1, 20)

    # ------------------------------------------------------------------------------------- what changes

    def draw(self) -> None:
        """Other limits, another clock, another state of the endpoint."""
        rng = self.rng
        self.clock_ahead_s = rng.choice([0, 0, 0, 3600, -3600])
        self.most_bytes = rng.choice([700, 2000, 100_000])
        self.poisoned = rng.random() < 0.3
        self.is_away, self.has_letter_topic = rng.random() < 0.2, rng.random() < 0.6
        args = [f"{DEAD_LETTER_TOPIC}=letters"] if rng.random() < 0.5 else []
        args += ["remora-delivery=exactly-once"] if self.is_exact else []
        topic = a_topic(max_retries=rng.choice([None, None, 1, 5]))
        self.store.metadata["t"] = replace(
            topic,
            time_to_live_s=rng.choice([None, None, 20, 1800]),
            target=replace(topic.target, args="&".join(args)),
        )

    def calm(self) -> None:
        """All goes well from now on."""
        self.clock_ahead_s, self.has_letter_topic, self.poisoned = 0.0, True, False

    def break_lock(self) -> None:
        """Take the lock away. Its holder learns that at its next call of the store, and pushes what it has read."""
        self.queue.holder = None
        self.unaware = {id(route) for route in self.endpoint.routes}
        self.parked_before = self._parked()

    def append(self, count: int) -> None:
        """Commit entries: most of them good, some large, some poison for the endpoint, some garbage."""
        rng = self.rng
        for _ in range(count):
            number, key = len(self.keys), f"k{rng.randrange(KEYS)}"
            kind = rng.choices(["good", "large", "garbage"], [12, 2, 1])[0]
            created = START_S + asyncio.get_running_loop().time()
            self.keys.append(None if kind == "garbage" else b"bkt/" + key.encode())
            padding = 3000 if kind == "large" else 0
            self.queue.append(b"?" if kind == "garbage" else raw_entry(key, number, created=created, padding=padding))

    @property
    def is_troubled(self) -> bool:
        return asyncio.get_running_loop().time() < TROUBLE_S

    def time_ns(self) -> int:
        return int((START_S + self.clock_ahead_s + asyncio.get_running_loop().time()) * 1e9)

    def _hits(self, chance: float) -> bool:
        return self.is_troubled and self.rng.random() < chance

    def _store(self, call: str) -> RemoraError | float | None:
        if self._hits(0.05):
            return StoreUnavailable(f"{call}: no answer")
        return self.rng.choice([0.0, 0.001, 0.05, 1.0]) if self.is_troubled else 0.0

    def _error(self, records: Sequence[Record]) -> EndpointError | None:
        if self.poisoned and self.is_troubled and any(_number(each) % 17 == 3 for each in records):
            return EntryRefused("corrupt")
        if self._hits(0.2):
            return self.rng.choice([EndpointUnavailable("no answer"), EndpointMisconfigured("no such topic")])
        return None

    def _fate(self, route: FakeRoute, batch: Batch) -> Fate:
        self.judge(batch.records, self.parked_before if id(route) in self.unaware else self._parked())
        error = self._error(batch.records)
        arrives = self.rng.choice([None, 0, len(batch.records) // 2]) if error else None
        return Fate(self.rng.choice([0.001, 0.1, 2.0]), 0 if isinstance(error, EntryRefused) else arrives, error)

    def _verdict(self, route: FakeExactRoute, batches: Sequence[Batch]) -> Verdict:
        records = sorted((record for each in batches for record in each.records), key=_number)
        self.judge(records, self._parked())
        error = self._error(records)
        if self._hits(0.05):
            self.endpoint.epochs[route.shard] += 1
        happens = error is None or (not isinstance(error, EntryRefused) and self.rng.random() < 0.5)
        return Verdict(self.rng.choice([0.0, 0.1, 2.0]), happens, self.rng.choice([0.0, 2.0]), error)

    # ------------------------------------------------------------------------------------- the judgement

    def _parked(self) -> set[bytes]:
        return {each.position.encode() for each in self.store.parked.values()}

    def judge(self, records: Sequence[Record], forbidden: set[bytes]) -> None:
        """What is being sent has no letter that is `forbidden`, and all that stood before it of its key has arrived or
        has a letter."""
        parked = self._parked()
        settled = {_number(record) for _, record in self.endpoint.arrived}
        settled |= {i for i in range(len(self.keys)) if self.queue.marker(i) in parked}
        for record in records:
            number = _number(record)
            assert record.position not in forbidden, f"{number} is sent though it has a letter"
            open_ = [i for i in range(number) if self.keys[i] in (None, record.key) and i not in settled]
            assert not open_, f"{number} is sent before {open_} are settled"
            settled.add(number)

    def check(self) -> None:
        """Everything is settled, each key in order, and letters and ledger say the same."""
        letters = {each.position.encode(): each for each in self.store.parked.values()}
        arrived = [_number(record) for _, record in self.endpoint.arrived]
        parked = {i for i in range(len(self.keys)) if self.queue.marker(i) in letters}
        assert set(arrived) | parked == set(range(len(self.keys)))
        for key in {*self.keys} - {None}:
            firsts = [number for number in dict.fromkeys(arrived) if self.keys[number] == key]
            assert firsts == sorted(firsts)
        expired = sum(each.cause == "expired" for each in letters.values())
        assert self.queue.ledger == Tally(
            delivered=len(self.keys) - len(letters), dead_lettered=len(letters) - expired, expired=expired
        )
        if self.is_exact:
            assert len(arrived) == len(set(arrived))
            assert not parked & set(arrived)


def _number(record: Record) -> int:
    return int(record.event_id.removeprefix(b"id-"))


@pytest.mark.guarantee("no-loss")
@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32), is_exact=st.booleans())
def test_no_change_of_limits_or_owners_undoes_a_decision(seed: int, is_exact: bool) -> None:
    """Two workers take a queue from each other, or hand it over, while limits, clocks, attempts, letters and the store
    change and fail: nothing with a letter is sent, nothing passes what is not settled, and letters, Kafka and ledger
    agree."""

    @in_virtual_time
    async def play() -> None:
        rng = Random(seed)
        world = World(rng, is_exact=is_exact)
        delivery = DeliverySettings(
            list_entries=rng.choice([1, 5, 1024]),
            transaction_records=rng.choice([3, 100]),
            max_unacked=rng.choice([0, 0, 2, 20]),
            retry_cap_s=3,
            configuration_recheck_s=3,
        )
        telemetry = Telemetry()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", world.time_ns)
            world.append(rng.choice([3, 30, 100]))
            workers = [a_worker(world.store, world.endpoint, delivery, f"remora/h/b/w{i}", telemetry) for i in range(2)]
            async with running(workers[0]), running(workers[1]):
                while world.is_troubled:
                    await asyncio.sleep(rng.uniform(0.2, 8))
                    world.draw()
                    if rng.random() < 0.3:
                        world.break_lock()
                    world.append(rng.randrange(8))
                    if rng.random() < 0.3:
                        with suppress(RemoraError):  # the store fails the command, too
                            await move(world.store, Shard("t"), rng.choice(["w0", "w1"]))
                world.calm()
                await drained(world.store)

        world.check()
        assert sample_value(telemetry.registry, "remora_crashes_total") == 0

    play()
