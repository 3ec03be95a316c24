"""Re-sharding where each queue is an object of its own: no schedule of its steps, each by any process and as late as
chance has it, loses, doubles or reorders an event.

A model of `storage/rados`: `layouts.py`, `sealed_queues.py`, `part_commits.py`. Each process is a
generator that stands still at each `yield`, which comes before every single operation on an object.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random

import pytest

from remora.policy.queues.layouts import parents

Steps = Generator[None, None, None]
Place = tuple[int, int]
Event = tuple[int, int]
"""A key, and the number of its event."""

KEYS = 12
NUMBERS = (1, 2, 3, 4, 5, 7)


@dataclass
class Queue:
    """A queue object; `version` grows with each write."""

    mark: str = "preparing"
    sealed: bool = False
    version: int = 0
    entries: list[Event] = field(default_factory=list)
    reserved: set[int] = field(default_factory=set)
    done: set[str] = field(default_factory=set)


@dataclass
class Intent:
    """A request: its state, and its events by the shards of the layout in which room was reserved."""

    generation: int
    parts: dict[int, list[Event]]
    reservations: dict[int, int]
    state: str = "committed"


@dataclass(frozen=True)
class Registry:
    """The topic's entry: each layout with the number of its shards."""

    open: tuple[int, int]
    former: tuple[int, int] | None = None
    coming: tuple[int, int] | None = None


class Model:
    """One schedule. `without` names a rule that is left out, to see that the model notices."""

    def __init__(self, seed: int, without: str = "") -> None:
        self.rng, self.without = Random(seed), without
        self.registry = Registry((0, 3))
        self.queues: dict[Place, Queue] = {(0, number): Queue("id") for number in range(3)}
        self.intents: dict[str, Intent] = {}
        self.free = set(range(KEYS))
        self.sent: defaultdict[int, list[int]] = defaultdict(list)
        self.due: defaultdict[int, list[int]] = defaultdict(list)
        self.stored: Counter[Event] = Counter()
        self.running: list[tuple[Steps, float]] = []
        self.names = self.changes = self.moved = 0

    # ------------------------------------------------------------------------------------ requests

    def publish(self) -> Steps:
        """Some events of keys that nobody else sends; the layout may be another one by the time of each step."""
        keys = self.rng.sample(sorted(self.free), min(len(self.free), self.rng.randint(1, 5)))
        self.free -= set(keys)
        events = [(key, len(self.due[key])) for key in keys]
        while events:
            generation, shards = self.registry.open
            parts: dict[int, list[Event]] = defaultdict(list)
            for event in events:
                parts[event[0] % shards].append(event)
            rooms: dict[int, int] = {}
            for number in parts:
                yield
                if (room := self._reserve((generation, number), late=False)) is not None:
                    rooms[number] = room
            if len(rooms) < len(parts):
                self._give_back(generation, rooms)
                continue
            yield
            self.names += 1
            name = str(self.names)
            self.intents[name] = Intent(generation, dict(parts), rooms)
            for key, number in events:
                self.due[key].append(number)
            yield from self.complete(name)
            break
        self.free |= set(keys)

    def _reserve(self, place: Place, *, late: bool) -> int | None:
        queue = self.queues.get(place)
        if queue is None or queue.mark != "id" or (queue.sealed and not late):
            return None
        queue.version += 1
        queue.reserved.add(queue.version)
        return queue.version

    def _give_back(self, generation: int, rooms: dict[int, int]) -> None:
        for number, room in rooms.items():
            if (queue := self.queues.get((generation, number))) is not None:
                queue.reserved.discard(room)

    def complete(self, name: str) -> Steps:
        """What any finisher does with a committed intent."""
        intent = self.intents[name]
        for number, events in intent.parts.items():
            yield from self._complete_part(name, number, events)
        yield
        intent.state = "completed"

    def _complete_part(self, name: str, number: int, events: list[Event]) -> Steps:
        intent = self.intents[name]
        generation, groups, rooms = intent.generation, {number: events}, intent.reservations
        mark = f"{name}.{number}"
        while True:
            left: list[Event] = []
            for shard, some in groups.items():
                if not (yield from self._is_stored((generation, shard), mark, some, rooms.get(shard))):
                    left += some
            if not left:
                return
            if self.without == "asking after the look for a layout":
                yield
                if intent.state != "committed":
                    return
            yield
            layouts = [each for each in (self.registry.former, self.registry.open) if each is not None]
            later = next((each for each in layouts if each[0] > generation), None)
            assert later is not None, "a queue of the open layout takes nothing"
            yield
            if intent.state != "committed" and not self.without.startswith("asking"):
                return
            self.moved += 1
            (generation, shards), groups, rooms = later, defaultdict(list), {}
            for event in left:
                groups[event[0] % shards].append(event)

    def _is_stored(self, place: Place, mark: str, events: list[Event], room: int | None) -> Generator[None, None, bool]:
        """Commit in one queue, in a new reservation where there is none; False where the queue takes nothing."""
        while True:
            yield
            queue = self.queues.get(place)
            if queue is not None and mark in queue.done:
                return True
            if queue is None or queue.mark != "id":
                return False
            if room in queue.reserved:
                queue.version += 1
                queue.reserved.discard(room)
                queue.done.add(mark)
                queue.entries += events
                self.stored.update(events)
                return True
            yield
            room = self._reserve(place, late=True)

    # ------------------------------------------------------------------------------------ layouts

    def reshard(self) -> Steps:
        """A change, by a process that may stand still for as long as it takes others to make two more."""
        yield
        registry = self.registry
        if registry.coming is None:
            if registry.former is not None:
                return
            coming = (registry.open[0] + 1, self.rng.choice(NUMBERS))
            yield
            if self.registry != registry:
                return
            registry = self.registry = Registry(registry.open, None, coming)
            self.changes += 1
        yield from self._prepare(registry)
        if self.registry.coming == registry.coming:
            yield from self._open(registry)

    def _prepare(self, registry: Registry) -> Steps:
        assert registry.coming is not None
        generation, shards = registry.coming
        for number in range(shards):
            yield
            if (generation, number) not in self.queues:
                self.queues[generation, number] = Queue()
        yield

    def _open(self, registry: Registry) -> Steps:
        assert registry.coming is not None
        (generation, shards), (old, olds) = registry.coming, registry.open
        for number in range(shards):
            yield
            if (queue := self.queues.get((generation, number))) is not None and queue.mark == "preparing":
                queue.mark = "id"
        for number in range(olds):
            yield
            if (queue := self.queues.get((old, number))) is not None and queue.mark == "id":
                queue.sealed, queue.version = True, queue.version + 1
        yield
        if self.registry == registry:
            self.registry = Registry(registry.coming, registry.open, None)

    def _shut(self, place: Place) -> Generator[None, None, bool]:
        """Shut a sealed queue, if the look and the operation find it the same; whether nothing is left in it for ever,
        as far as that look tells. One that is gone was through."""
        yield
        queue = self.queues.get(place)
        if queue is None:
            return True
        version, is_empty = queue.version, not queue.entries
        if not queue.sealed or queue.mark == "removing" or queue.reserved:
            return queue.mark == "removing" and is_empty
        if self.without == "shutting":
            return is_empty
        yield
        if self.queues.get(place) is not queue:
            return True
        if queue.version == version or self.without == "asserting the version":
            queue.mark, queue.version = "removing", queue.version + 1
            return is_empty
        return False

    def forget(self) -> Steps:
        """The end of a former layout, by any worker."""
        registry = self.registry
        if registry.former is None:
            return
        places = [(registry.former[0], number) for number in range(registry.former[1])]
        for place in places:
            if not (yield from self._shut(place)):
                return
        if self.without != "completing what is committed":
            for name in list(self.intents):
                if self.intents[name].state == "committed" and self.intents[name].generation <= registry.former[0]:
                    yield from self.complete(name)
        for place in places:
            yield
            if place in self.queues and (self.queues[place].mark == "removing" or self.without == "shutting"):
                del self.queues[place]
        yield
        if self.registry == registry:
            self.registry = Registry(registry.open)

    # ------------------------------------------------------------------------------------ owners

    def deliver(self) -> Steps:
        """An owner of a shard reads when its parents are through, sends, and removes unless it is killed."""
        waiting = sorted(place for place, queue in self.queues.items() if queue.entries)
        if not waiting:
            return
        generation, number = place = self.rng.choice(waiting)
        yield
        registry = self.registry
        if registry.former is not None and registry.open[0] == generation:
            for parent in parents(registry.former[1], registry.open[1], number):
                if not (yield from self._shut((registry.former[0], parent))):
                    return
        queue = self.queues.get(place)
        if queue is None:
            return
        page = queue.entries[: self.rng.randint(1, 4)]
        for key, at in page:
            if at >= len(self.sent[key]):  # else a copy, which readers know by its position
                self.sent[key].append(at)
        if self.rng.random() < 0.8:
            queue.version += 1
            del queue.entries[: len(page)]

    def expire(self) -> Steps:
        """A holder gives up the reservations of a queue, which its process has held for too long."""
        for queue in self.queues.values():
            if queue.reserved and self.rng.random() < 0.3:
                queue.version += 1
                queue.reserved.clear()
        yield

    def finish(self) -> Steps:
        """A finisher comes upon an intent that is committed, whose own process may work on it, too."""
        pending = [name for name, each in self.intents.items() if each.state == "committed"]
        if pending:
            yield from self.complete(self.rng.choice(pending))

    # ------------------------------------------------------------------------------------ schedules

    def run(self, steps: int) -> bool:
        """Take steps of processes at random, then have all come to their ends; whether everything is as promised."""
        kinds = [self.publish] * 3 + [self.deliver] * 6 + [self.reshard, self.forget, self.expire] * 2 + [self.finish]
        for _ in range(steps):
            if len(self.running) < 25:
                pace = 0.03 if self.rng.random() < 0.15 else 1.0  # some stand still for a long time
                self.running.append((self.rng.choice(kinds)(), pace))
            self._step()
        while self.running:
            self._step()
        for name, intent in self.intents.items():
            if intent.state == "committed":
                self._at_once(self.complete(name))
        for _ in range(3):
            self._at_once(self.reshard() if self.registry.coming else self.forget())
            for queue in self.queues.values():
                queue.reserved.clear()
            for _ in range(400):
                self._at_once(self.deliver())
        kept = all(self.sent[key] == numbers for key, numbers in self.due.items())
        return (
            kept
            and all(count == 1 for count in self.stored.values())
            and len(self.stored) == sum(map(len, self.due.values()))
        )

    def _step(self) -> None:
        """Let a process do its next operation."""
        at = self.rng.randrange(len(self.running))
        steps, pace = self.running[at]
        if self.rng.random() < pace and next(steps, self) is self:
            del self.running[at]

    def _at_once(self, steps: Steps) -> None:
        for _ in steps:
            pass


def run_models(seeds: range, without: str = "") -> tuple[int, int, int]:
    """How many schedules went wrong, how many changes there were, and how often a part went to a later layout."""
    wrong = changes = moved = 0
    for seed in seeds:
        model = Model(seed, without)
        try:
            wrong += not model.run(2000)
        except AssertionError:
            wrong += 1
        changes += model.changes
        moved += model.moved
    return wrong, changes, moved


@pytest.mark.guarantee("order-per-object", "no-loss", "duplicates")
def test_no_schedule_of_steps_breaks_a_promise() -> None:
    """Of 150 schedules none loses, doubles or reorders an event."""
    wrong, changes, moved = run_models(range(150))

    assert wrong == 0
    assert min(changes, moved) > 100, "the schedules hardly changed anything"


@pytest.mark.full("the same for 10,000 schedules")
@pytest.mark.guarantee("order-per-object", "no-loss", "duplicates")
def test_no_schedule_of_many_breaks_a_promise() -> None:
    """Of 10,000 schedules none loses, doubles or reorders an event."""
    assert run_models(range(150, 10_150))[0] == 0


@pytest.mark.parametrize(
    "rule",
    ["shutting", "asserting the version", "asking whether it is pending", "completing what is committed"],
)
def test_each_rule_is_needed(rule: str) -> None:
    """Where one of the rules is left out one of 600 schedules goes wrong, and none behind it is needed."""
    assert any(run_models(range(seed, seed + 1), rule)[0] for seed in range(600))
