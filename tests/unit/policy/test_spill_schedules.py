"""Schedules of a queue with runs: owners that die or stand still between any two steps, and a radosgw that takes it.

The queue object is simulated; what its operations take and book is what the daemon computes. An owner's operation is
sent with what the owner knew, and may be carried out much later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from remora.codec.queue_ops import HEAD_SIZE, QueueHead, entry_end
from remora.codec.queue_state import QueueState
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.spill import SpilledRun
from remora.policy.queues.spill import cut, logical_front, next_start, run_from

START = Position(0, HEAD_SIZE)
RING = 400
STEPS = 160

Step = Callable[[], None]


class RefusedError(Exception):
    """An operation did not pass its assertions; nothing happened."""


@dataclass
class QueueObject:
    """What lies in one object, and so changes in one operation: the ring, the runs' names, the state, and the lock."""

    head: QueueHead = field(
        default_factory=lambda: QueueHead(HEAD_SIZE, START, START, HEAD_SIZE + RING, 0, 0, 0, (), False, None, 1)
    )
    state: QueueState = field(default_factory=lambda: QueueState(START, START))
    ring: list[tuple[Position, int]] = field(default_factory=list)
    runs: tuple[SpilledRun, ...] = ()
    announced: frozenset[Position] = frozenset()
    lock: str = ""
    changes: int = 0
    came: int = 0
    left: list[tuple[str, int]] = field(default_factory=list)

    def commit(self, size: int) -> None:
        """A sender's entry, if there is room."""
        end = entry_end(self.head.tail, size, self.head)
        if self.head.bytes_between(self.head.front, end) < RING:
            self.ring.append((self.head.tail, self.came))
            self.head = replace(self.head, tail=end)
            self.came += 1

    def demand(self, cookie: str, seen: int | None = None) -> None:
        if self.lock != cookie or seen not in (None, self.changes):
            raise RefusedError

    def take_from_ring(self, end: Position) -> list[int]:
        gone = [number for at, number in self.ring if at < end]
        self.ring = [each for each in self.ring if each[0] >= end]
        self.head = replace(self.head, front=end)
        return gone


@dataclass
class World:
    """A queue, the objects of runs beside it, and what was sent."""

    queue: QueueObject = field(default_factory=QueueObject)
    objects: dict[str, list[tuple[Position, int]]] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)
    letters: dict[int, Position] = field(default_factory=dict)
    seams: int = 0
    numbers: int = 0

    def name(self) -> str:
        self.numbers += 1
        return f"r{self.numbers}"


@dataclass
class Owner:
    """A worker of remora; its steps are those of `storage/rados`."""

    world: World
    rng: Random
    cookie: str

    def steps(self) -> Iterator[Step]:
        """Live until killed: take the lock when it is free, then move and deliver by turns."""
        while True:
            queue = self.world.queue
            if queue.lock != self.cookie:
                yield self._acquire
                continue
            try:
                yield from self._move() if self.rng.random() < 0.4 else self._deliver()
            except RefusedError:
                continue

    def _acquire(self) -> None:
        queue = self.world.queue
        if queue.lock:
            return
        queue.lock = self.cookie
        settled = queue.state.settled(queue.head)
        if settled != queue.state:
            queue.state, queue.changes = settled, queue.changes + 1

    def _move(self) -> Iterator[Step]:
        queue, world = self.world.queue, self.world
        queue.demand(self.cookie)
        seen, head, state = queue.changes, queue.head, queue.state
        yield lambda: None
        queue.demand(self.cookie)
        if queue.head.front != head.front:
            raise RefusedError  # the listing demands the front
        page = queue.ring[: self.rng.randint(1, 4)]
        if not page:
            return
        end = queue.ring[len(page)][0] if len(queue.ring) > len(page) else queue.head.tail
        name = world.name()
        run = SpilledRun(name, page[0][0], end, len(page), head.bytes_between(page[0][0], end), 0, "")
        world.objects[name] = page
        yield lambda: None

        def operation() -> None:
            queue.demand(self.cookie, seen)
            assert queue.take_from_ring(end) == [number for _, number in page]
            queue.runs = (*queue.runs, run)
            queue.state, queue.changes = state.after_move(run), queue.changes + 1

        yield operation

    def _deliver(self) -> Iterator[Step]:
        queue, world = self.world.queue, self.world
        queue.demand(self.cookie)
        seen, head, state, runs = queue.changes, queue.head, queue.state, queue.runs
        at = logical_front(state.spill, head.front)
        index, limit = run_from(runs, at), self.rng.randint(1, 4)
        yield lambda: None
        queue.demand(self.cookie)
        if index == len(runs):
            if queue.head.front != head.front:
                raise RefusedError
            source, behind = [each for each in queue.ring if each[0] >= at], queue.head.tail
        else:
            source = [each for each in world.objects[runs[index].name] if each[0] >= at]
            behind = next_start(runs, index, head.front)
        page = source[:limit]
        if not page:
            return
        end = source[limit][0] if len(source) > limit else behind
        world.sent += [number for _, number in page]
        yield lambda: None
        if self.rng.random() < 0.2:
            letter, number = page[-1]

            def announce() -> None:
                queue.demand(self.cookie)
                queue.announced |= {letter}
                world.letters[number] = letter

            yield announce

        def operation() -> None:
            queue.demand(self.cookie, seen)
            share = cut(runs, state.spill, head.front, (end, len(page)), head.bytes_between)
            gone = [number for _, number in page]
            if share.takes_ring:
                assert queue.take_from_ring(end) == gone[len(page) - share.ring_entries :]
            queue.runs = tuple(each for each in queue.runs if each not in share.gone)
            queue.announced = frozenset(each for each in queue.announced if each >= end)
            tally = Tally(delivered=len(page))
            queue.state, queue.changes = state.after_cut(share, end, tally), queue.changes + 1
            queue.left += [(self.cookie, number) for number in gone]

        yield operation


def radosgw(world: World, rng: Random) -> None:
    """A foreign owner takes the free queue, delivers what the ring holds, and lets it go; it knows nothing of runs."""
    queue = world.queue
    if queue.lock or not queue.ring:
        return
    count = rng.randint(1, len(queue.ring))
    end = queue.ring[count][0] if count < len(queue.ring) else queue.head.tail
    world.seams += bool(queue.runs)
    queue.left += [("radosgw", number) for number in queue.take_from_ring(end)]


def check(world: World) -> None:
    """What holds after every step."""
    queue = world.queue
    stand = [number for each in queue.runs for at, number in world.objects[each.name] if at >= queue.state.spill.front]
    left = [number for _, number in queue.left]
    assert sorted(left + stand + [number for _, number in queue.ring]) == list(range(queue.came))
    assert stand == sorted(stand)
    assert len(stand) == queue.state.spill.entries
    standing = {*stand, *(number for _, number in queue.ring)}
    assert all(at in queue.announced for number, at in world.letters.items() if number in standing)
    foreign = sum(who == "radosgw" for who, _ in queue.left)
    unaccounted = queue.state.unaccounted_bytes(queue.head)
    assert queue.state.removed.delivered == len(left) - foreign
    assert unaccounted >= 0 if foreign else unaccounted == 0


@dataclass
class Schedule:
    """What happens next is drawn: an entry comes, a lease ends, an owner is born, killed, or takes a step."""

    rng: Random
    foreign: bool
    world: World = field(default_factory=World)
    owners: list[Iterator[Step]] = field(default_factory=list)
    late: list[Step] = field(default_factory=list)
    born: int = 0

    def happen(self) -> None:
        kinds = {
            self._come: 25, self._lapse: 6, self._serve_elsewhere: 5 * self.foreign, self._kill: 4,
            self._carry_out_late: 5, self._bear: 7 * (len(self.owners) < 3), self._step: 48,
        }  # fmt: skip
        self.rng.choices(list(kinds), list(kinds.values()))[0]()
        check(self.world)

    def _come(self) -> None:
        self.world.queue.commit(self.rng.randint(1, 40))

    def _lapse(self) -> None:
        self.world.queue.lock = ""

    def _serve_elsewhere(self) -> None:
        radosgw(self.world, self.rng)

    def _kill(self) -> None:
        if self.owners:
            self.owners.pop(self.rng.randrange(len(self.owners)))

    def _carry_out_late(self) -> None:
        if self.late:
            play(self.late.pop(self.rng.randrange(len(self.late))))

    def _bear(self) -> None:
        self.born += 1
        self.owners.append(Owner(self.world, self.rng, f"w{self.born}").steps())

    def _step(self) -> None:
        if self.owners:
            step = next(self.rng.choice(self.owners))
            if self.rng.random() < 0.1:
                self.late.append(step)  # sent, and without an answer for long
            else:
                play(step)

    def end(self) -> None:
        """A last owner delivers what is left; then all that is still under way is carried out."""
        queue, last = self.world.queue, Owner(self.world, self.rng, "last").steps()
        queue.lock = ""
        while queue.lock != "last" or queue.ring or queue.runs:
            play(next(last))
        for step in self.late:
            play(step)
        check(self.world)


def play(step: Step) -> None:
    """Carry out what was sent; a refused operation changes nothing."""
    with suppress(RefusedError):
        step()


def verify(seed: int, *, foreign: bool) -> int:
    """Nothing is lost or doubled, and the order holds where no radosgw delivered behind runs; returns the seams."""
    schedule = Schedule(Random(seed), foreign)
    for _ in range(STEPS):
        schedule.happen()
    schedule.end()
    world, queue = schedule.world, schedule.world.queue
    assert sorted(number for _, number in queue.left) == list(range(queue.came)), seed
    assert not queue.runs
    assert not queue.state.spill.entries
    if not world.seams:
        ours = [number for who, number in queue.left if who != "radosgw"]
        assert ours == sorted(ours), seed
        firsts = list(dict.fromkeys(world.sent))
        assert firsts == sorted(firsts), seed
    return world.seams


@pytest.mark.parametrize("foreign", [False, True])
def test_no_schedule_loses_doubles_or_reorders(foreign: bool) -> None:
    """Whoever dies, stands still or takes over between any two steps, each entry leaves once and in its order."""
    seams = sum(verify(seed, foreign=foreign) for seed in range(200))

    assert bool(seams) is foreign


@pytest.mark.full("ten thousand schedules, of which the gate plays four hundred")
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_schedules(part: int) -> None:
    """The same holds in many more of them."""
    for seed in range(1000 * (part + 1), 1000 * (part + 2)):
        verify(seed, foreign=seed % 2 == 0)
