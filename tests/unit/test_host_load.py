"""Bounds that hold for all workers of a host."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from remora.process.host_load import HostLoad, clear, shared_memory


@pytest.fixture
def memory() -> Iterator[int]:
    """Memory for two workers."""
    descriptor = shared_memory(2)
    yield descriptor
    os.close(descriptor)


def test_each_sees_what_all_hold(memory: int) -> None:
    """Connections and bytes are sums over the workers, and each changes its own only."""
    first, second = HostLoad(memory, 2, 0), HostLoad(memory, 2, 1)
    first.hold_connections(3)
    first.hold_bodies(100)
    second.hold_connections(4)
    second.hold_bodies(50)

    assert (first.connections, first.nbytes) == (second.connections, second.nbytes) == (7, 150)
    assert (first.nbytes_of_others, second.nbytes_of_others) == (50, 100)


def test_a_worker_that_ended_holds_nothing(memory: int) -> None:
    """Its place is cleared by its supervisor, and a successor begins with nothing."""
    first, second = HostLoad(memory, 2, 0), HostLoad(memory, 2, 1)
    first.hold_connections(3)
    first.hold_bodies(100)
    second.hold_connections(4)
    second.hold_bodies(50)

    clear(memory, 0)
    assert (second.connections, second.nbytes) == (4, 50)

    HostLoad(memory, 2, 1)
    assert (first.connections, first.nbytes) == (0, 0)


def test_all_workers_know_whether_ingest_is_paused(memory: int) -> None:
    """What the worker says counts that saw it change last, and what an ended one has said is forgotten."""
    first, second = HostLoad(memory, 2, 0), HostLoad(memory, 2, 1)
    assert not first.is_paused

    first.turn(is_paused=True)
    assert second.is_paused
    second.turn(is_paused=False)
    assert not first.is_paused
    first.turn(is_paused=True)
    clear(memory, 0)
    assert not second.is_paused


def test_a_worker_knows_whether_another_one_has_an_older_body(memory: int) -> None:
    """By when the oldest body of each began whose length is not known; 0 is none."""
    first, second = HostLoad(memory, 2, 0), HostLoad(memory, 2, 1)
    first.hold_bodies(1, 100)
    second.hold_bodies(1, 200)

    assert second.has_older(200)
    assert not first.has_older(100)
    first.hold_bodies(0)
    assert not second.has_older(200)
