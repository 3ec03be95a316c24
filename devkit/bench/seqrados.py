"""What a sequencer is good for on RADOS: positions, and appends, beside a counter object that clients swap themselves.

Without a sequencer a client reads a counter object and writes the next number back, on condition that it is still the
one that was read. Each attempt takes two round trips to an OSD, one of them to its journal, and of all clients that try
at once one succeeds. `remora sequencer` hands positions out from memory.

Appends write an entry of 1 KiB each, over 8 stripes, with positions from the sequencer, from a counter object, and from
a variable of the writers' own process, which shows what the stripes allow at best; and through `remora.log.Log`, which
all appenders of a process share. A figure counts only when the
positions that were taken are exactly 1 to their number, and the log ends with the last of them.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import itertools
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.embedded import rados_sections
from devkit.bench.sequencer import sequencer_running
from remora.client import SequencerClient
from remora.config import RadosSettings
from remora.log import Log
from remora.model.log import LogKind, LogName
from remora.ports.log import Logs
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.refusals import MismatchError, Refusals
from remora.storage.rados.logs.log_store import RadosLogStore

CLIENTS = (1, 32)
WIDTH = 8
ENTRY = bytes(range(256)) * 4
NUMBER = "number"

_SWAPPED: Refusals = MappingProxyType({errno.ECANCELED: (MismatchError, "another client was first")})

Next = Callable[[], Awaitable[tuple[int, int]]]
"""Takes the next position: epoch and position."""

Rates = dict[tuple[str, int], float]
"""Positions or appends a second, by the kind of work and the number of clients."""


class CounterObject(RadosPart):
    """A number in an object of its own, which each client increments by comparing and swapping."""

    def __init__(self, connection: ClusterConnection, name: str) -> None:
        super().__init__(connection)
        self._name = name

    async def create(self) -> None:
        """Make the object, with 0."""
        await self._run(WriteOp().create(exclusive=True).set_xattr(NUMBER, _number(0)))

    async def next(self) -> int:
        """Increment the number; returns the new one."""
        while True:
            read = ReadOp().assert_exists()
            xattrs = read.xattrs()
            await self._run(read)
            number = int(xattrs.values[NUMBER], 16) + 1
            try:
                await self._run(WriteOp().assert_xattr(NUMBER, _number(number - 1)).set_xattr(NUMBER, _number(number)))
            except MismatchError:
                continue
            return number

    async def _run(self, operation: ReadOp | WriteOp) -> None:
        await self._connection.run(operation, self._name, "the counter object", _SWAPPED, self._own)


def _number(value: int) -> str:
    return f"{value:016x}"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures. Raises BenchError where a position is missing or comes twice."""
    with running_clusters(options.name, options.keep, ["ceph"]) as clusters:
        rates = measure(clusters, options.rounds, options.seconds)
    for (what, clients), rate in rates.items():
        print(f"{what:28} {clients:3} clients  {rate:9,.0f}/s", flush=True)
    ratios = {
        f"{work}, {clients} clients: sequencer / {other}":
            rates[f"{work}, sequencer", clients] / rates[f"{work}, {other}", clients]
        for work, other in (("positions", "counter object"), ("appends", "counter object"), ("appends", "variable"))
        for clients in CLIENTS
    }  # fmt: skip
    ratios |= {
        f"appends, {clients} clients: Log / variable":
            rates["appends, Log", clients] / rates["appends, variable", clients]
        for clients in CLIENTS
    }  # fmt: skip
    for what, ratio in ratios.items():
        print(f"{what}  {ratio:.2f}", flush=True)
    return {"rates": {f"{what}, {clients} clients": rate for (what, clients), rate in rates.items()}, "ratios": ratios}


def measure(clusters: Clusters, rounds: int, seconds: float) -> Rates:
    """The medians of `rounds` windows for each kind of work and number of clients, which take turns."""
    settings = replace(clusters.place_of_its_own(f"bench-{uuid.uuid4().hex[:8]}"), op_timeout_s=30.0)
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as name:
        configuration, address = Path(name) / "remora.toml", f"unix:{name}/sequencer.sock"
        sequencer = f'\n\n[sequencer]\nrun_directory = "{name}"\nadmin_listen = "unix:{name}/admin.sock"\n'
        configuration.write_text(rados_sections(settings) + sequencer)
        with sequencer_running(configuration, address):
            return asyncio.run(_measure(settings, address, rounds, seconds))


async def _measure(settings: RadosSettings, address: str, rounds: int, seconds: float) -> Rates:
    rates: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    async with Writers(settings, address) as writers:
        for _, clients in itertools.product(range(rounds), CLIENTS):
            for what in ("sequencer", "counter object"):
                rates[f"positions, {what}", clients].append(await writers.take(what, clients, seconds))
            rates["appends, Log", clients].append(await writers.append_to_log(clients, seconds))
            for what in ("sequencer", "counter object", "variable"):
                rates[f"appends, {what}", clients].append(await writers.append(what, clients, seconds))
    return {key: statistics.median(each) for key, each in rates.items()}


class Writers:
    """Clients of one process that take positions and append."""

    def __init__(self, settings: RadosSettings, address: str) -> None:
        """`address` is the sequencer's."""
        self._address = address
        self._store = RadosLogStore(settings)
        self._connection = ClusterConnection(settings, lambda _connected, _text: None, topics=False)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Writers:
        await self._stack.enter_async_context(self._store)
        await self._stack.enter_async_context(self._connection)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def take(self, what: str, clients: int, seconds: float) -> float:
        """Positions a second. Raises BenchError unless they are 1 and on."""
        taken: list[int] = []
        log = await self._new_log(LogKind.COUNTER, 1)
        async with self._positions(what, log, clients) as nexts:

            async def work(following: Next) -> None:
                taken.append((await following())[1])

            rate = await _rate(work, nexts, seconds)
        _check(taken, f"positions, {what}")
        return rate

    async def append(self, what: str, clients: int, seconds: float) -> float:
        """Appends a second. Raises BenchError unless each position was taken once, and the log ends with the last."""
        taken: list[int] = []
        log = await self._new_log(LogKind.LOG, WIDTH)
        async with self._positions(what, log, clients) as nexts:

            async def work(following: Next) -> None:
                epoch, position = await following()
                await self._logs.append(log, epoch, position, ENTRY)
                taken.append(position)

            rate = await _rate(work, nexts, seconds)
        _check(taken, f"appends, {what}")
        tail = (await self._logs.figures(log)).tail
        if tail != len(taken):
            raise BenchError(f"appends, {what}: {len(taken)} were acknowledged, and the log ends with {tail}")
        return rate

    async def append_to_log(self, clients: int, seconds: float) -> float:
        """Appends a second of as many tasks that share a `Log`. Raises BenchError as `append`."""
        taken: list[int] = []
        name = await self._new_log(LogKind.LOG, WIDTH)
        async with Log(self._logs, name, [self._address]) as log:
            await log.tail()

            async def work(_: Next) -> None:
                taken.append(await log.append(ENTRY))

            rate = await _rate(work, [_nothing] * clients, seconds)
        _check(taken, "appends, Log")
        return rate

    @property
    def _logs(self) -> Logs:
        return self._store.logs

    async def _new_log(self, kind: LogKind, width: int) -> LogName:
        log = LogName(self._store.default_pool.encode(), uuid.uuid4().hex.encode())
        await self._logs.create(log, kind, width)
        return log

    @asynccontextmanager
    async def _positions(self, what: str, log: LogName, clients: int) -> AsyncIterator[Sequence[Next]]:
        """As many clients, each of which takes positions of the log in this way."""
        async with AsyncExitStack() as stack:
            if what == "sequencer":
                made = [
                    await stack.enter_async_context(SequencerClient([self._address], timeout_s=60))
                    for _ in range(clients)
                ]
                for each in made:
                    await each.tail(log)
                yield [_from_sequencer(each, log) for each in made]
                return
            epoch = await self._logs.seal(log)
            if what == "variable":
                numbers = itertools.count(1)
                yield [_from_variable(numbers, epoch)] * clients
                return
            counter = CounterObject(self._connection, f"counter.{log.name.decode()}")
            await counter.create()
            yield [_from_object(counter, epoch)] * clients


async def _nothing() -> tuple[int, int]:
    raise AssertionError("a Log takes its positions itself")


def _from_sequencer(client: SequencerClient, log: LogName) -> Next:
    async def following() -> tuple[int, int]:
        token = await client.next(log)
        return token.epoch, token.position

    return following


def _from_object(counter: CounterObject, epoch: int) -> Next:
    async def following() -> tuple[int, int]:
        return epoch, await counter.next()

    return following


def _from_variable(numbers: itertools.count[int], epoch: int) -> Next:
    async def following() -> tuple[int, int]:
        return epoch, next(numbers)

    return following


async def _rate(work: Callable[[Next], Awaitable[None]], nexts: Sequence[Next], seconds: float) -> float:
    """How often a second the work is done by clients that each do it again and again for so long."""
    done = 0
    began = time.monotonic()

    async def repeat(following: Next) -> None:
        nonlocal done
        while True:  # once at least, however late it gets its turn
            await work(following)
            done += 1
            if time.monotonic() >= began + seconds:
                return

    await asyncio.gather(*map(repeat, nexts))
    return done / (time.monotonic() - began)


def _check(taken: Sequence[int], what: str) -> None:
    if sorted(taken) != list(range(1, len(taken) + 1)):
        raise BenchError(f"{what}: {len(taken)} positions were taken, and they are not 1 to {len(taken)}")
