"""Threads that do one thing after the other, and the queues in RADOS that they store events into."""

from __future__ import annotations

import itertools
import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException

import rados

from devkit.bench.clusters import BenchError
from remora.codec.queue_ops import HEAD_MAGIC, encode_commit, encode_init, encode_reserve
from remora.model.errors import RemoraError

RING_BYTES = 128_000_000
CONTENTS = 64
"""Different payloads that are used in turn."""

_MAGIC = HEAD_MAGIC.to_bytes(2, "little")
"""What each queue object begins with."""


class Writers:
    """Threads that take steps until they are told to end, or one has nothing left to do."""

    def __init__(self, count: int, step: Callable[[int], bool]) -> None:
        """`step` gets a thread's number, and returns whether there is more to do."""
        self._step = step
        self._ended = threading.Event()
        self._problem: Exception | None = None
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def watch(self, seconds: float) -> bool:
        """Return after this long, or as soon as nothing is left to do; whether something is.

        Raises BenchError when a thread has failed.
        """
        ended = self._ended.wait(seconds)
        if self._problem:
            raise BenchError(f"storing failed: {self._problem!r}")
        return not ended

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        try:
            while not self._ended.is_set() and self._step(number):
                pass
        except (rados.Error, HTTPException, OSError, BenchError, RemoraError) as error:
            self._problem = error
        self._ended.set()


@contextmanager
def writing(count: int, step: Callable[[int], bool]) -> Iterator[Writers]:
    """Writers that write meanwhile."""
    writers = Writers(count, step)
    writers.start()
    try:
        yield writers
    finally:
        writers.end()


class Queues:
    """Queues of the object class that radosgw uses, which no radosgw looks at; any number of threads may use them."""

    def __init__(self, ioctx: rados.Ioctx, names: Sequence[str], payload: int, *, are_held: bool) -> None:
        self.names = names
        self._ioctx, self._are_held = ioctx, are_held
        # Librados' C interface keeps to itself which id a reservation got. The queue counts them from 1, and all
        # reservations are alike: a client that has made one commits the lowest that nobody has taken.
        self._ids = [itertools.count(1) for _ in names]
        self._request = encode_reserve(payload, 1)
        self._payloads = [os.urandom(payload) for _ in range(CONTENTS)]

    def reserve(self, queue: int) -> None:
        """Reserve room for one event."""
        self._call(queue, "2pc_queue_reserve", self._request)

    def store(self, queue: int, request: Callable[[], bool]) -> bool:
        """Reserve room, make the request, and commit an event; false where there was nothing left to ask for."""
        self.reserve(queue)
        if not request():
            return False
        self.commit(queue)
        return True

    def commit(self, queue: int) -> None:
        """Commit an event in a room that was reserved."""
        reservation = next(self._ids[queue])
        commit = encode_commit(reservation, [self._payloads[reservation % CONTENTS]])
        self._call(queue, "2pc_queue_commit", commit)

    def _call(self, queue: int, method: str, request: bytes) -> None:
        if not self._are_held:
            self._ioctx.execute(self.names[queue], "2pc_queue", method, request)
            return
        with rados.WriteOpCtx() as operation:
            operation.cmpext(_MAGIC, 0)
            operation.execute("2pc_queue", method, request)
            self._ioctx.operate_write_op(operation, self.names[queue])


@contextmanager
def new_queues(ioctx: rados.Ioctx, count: int, payload: int, *, are_held: bool = False) -> Iterator[Queues]:
    """So many queues for events of so many bytes, which are removed again.

    Where they `are_held`, each call compares a part of the object, too: then OSDs hold the object until the call is
    committed on all replicas. Releases before 16.2.15, 17.2.8 and 18.2.4 do so for every call.
    """
    names = [f"bench-{uuid.uuid4().hex[:8]}-{place}" for place in range(count)]
    ioctx.set_namespace("bench")
    try:
        for name in names:
            ioctx.execute(name, "2pc_queue", "2pc_queue_init", encode_init(RING_BYTES))
        yield Queues(ioctx, names, payload, are_held=are_held)
    finally:
        for name in names:
            with suppress(rados.Error):  # a clean-up that fails must not hide why
                ioctx.remove_object(name)


def random_key() -> bytes:
    """The key of an event, such as no other has."""
    return b"bench:%020d" % random.getrandbits(60)
