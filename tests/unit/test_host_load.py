"""Bounds that hold for all workers of a host."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from remora.process.host_load import HostLoad, clear, shared_memory
from remora.servers.ingest.body_budget import BodyBudget
from remora.servers.ingest.problems import Problem


@pytest.fixture
def memory() -> Iterator[int]:
    """Memory for two workers."""
    descriptor = shared_memory(2)
    yield descriptor
    os.close(descriptor)


def test_each_sees_what_all_hold(memory: int) -> None:
    """Connections and bytes are sums over the workers, and each changes its own only."""
    first, second = HostLoad(memory, 2, 0), HostLoad(memory, 2, 1)
    first.hold(connections=3, nbytes=100)
    second.hold(connections=4)
    second.hold(nbytes=50)

    assert (first.connections, first.nbytes) == (second.connections, second.nbytes) == (7, 150)


def test_a_worker_that_ended_holds_nothing(memory: int) -> None:
    """Its place is cleared by its supervisor, and a successor begins with nothing."""
    first, second = HostLoad(memory, 2, 0), HostLoad(memory, 2, 1)
    first.hold(connections=3, nbytes=100)
    second.hold(connections=4, nbytes=50)

    clear(memory, 0)
    assert (second.connections, second.nbytes) == (4, 50)

    HostLoad(memory, 2, 1)
    assert (first.connections, first.nbytes) == (0, 0)


def test_bytes_of_one_worker_leave_less_room_in_another(memory: int) -> None:
    """A request that one worker holds is refused room in another one until it is done."""
    first, second = BodyBudget(100, HostLoad(memory, 2, 0)), BodyBudget(100, HostLoad(memory, 2, 1))
    with first.share() as large:
        large.cover(80)
        with second.share() as share, pytest.raises(Problem, match="hold 80 of at most 100 bytes"):
            share.cover(30)
    with second.share() as share:
        share.cover(100)
