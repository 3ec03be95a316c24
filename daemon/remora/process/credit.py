"""Credit of a host's workers, in memory that the supervisor and all of them see.

The supervisor deals credit out, the workers spend it, and neither waits for the other; `policy.cells` says how.

A cell is an aligned number of 8 bytes in a `memoryview`, which is read and written in one piece; `struct.pack_into`
goes byte by byte, and what it writes can be read torn. A queue between the processes would be the ready-made means, but
costs a system call for each listing and each tick.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Mapping, Sequence

from remora.policy.shaping.cells import ROW, MemberAccount
from remora.policy.shaping.classes import OTHER, scope_of
from remora.policy.shaping.rates import is_of_limit

MOST_GROUPS = 4096
"""Groups and buckets of limits that a host can have at a time: more than `shaping.groups` and the number of scopes and
limits let it have."""


class CreditMemory:
    """The cells, for `workers` workers. Each group has a slot, and each worker a place, both numbered from 0."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self._map = mmap.mmap(descriptor, _nbytes(workers))
        self._unacked_at = (1 + workers) * MOST_GROUPS
        self._rows_at = (1 + 2 * workers) * MOST_GROUPS
        self.cells = memoryview(self._map).cast("q")

    @classmethod
    def alone(cls, workers: int = 1) -> CreditMemory:
        """Memory that no other process sees."""
        descriptor = shared_memory(workers)
        try:
            return cls(descriptor, workers)
        finally:
            os.close(descriptor)

    def state(self, slot: int) -> int:
        """The cell of a group's state, which the supervisor writes: twice how often it was disabled, and 1 while it is
        enabled."""
        return slot

    def open_up(self, slot: int) -> None:
        """Let everything pass in a group from now on, and forget what was charged: it is disabled."""
        state = self.cells[self.state(slot)]
        self.cells[self.state(slot)] = ((state >> 1) + (state & 1)) * 2

    def moves(self, place: int, slot: int = 0) -> int:
        """The cell in which a worker counts its movements in a group; those of all groups lie side by side."""
        return (1 + place) * MOST_GROUPS + slot

    def unacked(self, place: int, slot: int = 0) -> int:
        """The cell in which a worker says how many bytes of a group it was granted and no endpoint has acknowledged."""
        return self._unacked_at + place * MOST_GROUPS + slot

    def row(self, place: int, slot: int) -> int:
        """The first cell of a worker's part of a group."""
        return self._rows_at + (place * MOST_GROUPS + slot) * ROW

    def clear(self, place: int, slots: int) -> None:
        """Clears a place in each of `slots` groups: its worker has ended, and has neither credit nor debt."""
        cells = self.cells
        begin, end = self.row(place, 0), self.row(place, slots)
        cells[begin:end] = memoryview(bytes((end - begin) * 8)).cast("q")
        for begin in (self.moves(place), self.unacked(place)):
            cells[begin : begin + slots] = memoryview(bytes(slots * 8)).cast("q")


class SlotCells:
    """Where the group of a slot has its cells; its members are the workers at `places`, in their order."""

    def __init__(self, memory: CreditMemory, slot: int, places: Sequence[int]) -> None:
        self._memory = memory
        self._slot = slot
        self._places = places
        self.cells = memory.cells
        self.state = memory.state(slot)

    def row(self, member: int) -> int:
        """The first cell of the worker that joins as this member."""
        return self._memory.row(self._places[member], self._slot)


def account_of(memory: CreditMemory, place: int, slot: int) -> MemberAccount:
    """The account of the worker at a place in the group of a slot."""
    cells, at = memory.cells, memory.moves(place, slot)

    def moved() -> None:
        cells[at] += 1

    return MemberAccount(SlotCells(memory, slot, (place,)), memory.row(place, slot), moved)


class HostCredit:
    """The accounts of one worker in the groups of its host, as far as the supervisor has announced them."""

    def __init__(self, memory: CreditMemory, place: int, want: Callable[[str], None]) -> None:
        """`want` asks the supervisor for a group."""
        self._memory = memory
        self._place = place
        self._want = want
        self._wanted: set[str] = set()
        self._slots: Mapping[str, int] = {}

    @property
    def groups(self) -> Collection[str]:
        """The names of all groups that there are."""
        return self._slots.keys()

    def learn(self, slots: Mapping[str, int]) -> None:
        """These groups there are, by name, with their slots."""
        for slot in {*self._slots.values()} - {*slots.values()}:
            self._memory.cells[self._memory.unacked(self._place, slot)] = 0
        self._slots = slots
        self._wanted.clear()

    def find(self, group: str) -> str | None:
        """The name under which a group is metered; None where there is none yet, which is asked for once."""
        if group in self._slots:
            return group
        if group not in self._wanted and not is_of_limit(group):
            self._wanted.add(group)
            self._want(group)
        other = f"{scope_of(group)}/{OTHER}"
        return other if other in self._slots else None

    def note_unacked(self, group: str, nbytes: int) -> None:
        """Set how many bytes of a group are granted to this worker and acknowledged by no endpoint."""
        if (slot := self._slots.get(group)) is not None:
            self._memory.cells[self._memory.unacked(self._place, slot)] = nbytes

    def account(self, group: str) -> MemberAccount:
        """The account in a group by the name that `find` gave."""
        return account_of(self._memory, self._place, self._slots[group])


def shared_memory(workers: int) -> int:
    """The descriptor of memory for `workers` workers, which inherit it. Unused parts take none."""
    descriptor = os.memfd_create("remora-credit")
    os.ftruncate(descriptor, _nbytes(workers))
    return descriptor


def _nbytes(workers: int) -> int:
    return (1 + workers * (2 + ROW)) * MOST_GROUPS * 8
