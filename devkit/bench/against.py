"""The daemon against a program that somebody would use instead: the same bodies to the same broker, in turns.

A peer reads a file of keys and bodies and sends it with `acks=all`, as an idempotent producer, with the daemon's
compression and size of batches. The daemon delivers a backlog of the embedded store that has these bodies, in each of
its modes. So a peer reads no queue, removes nothing, and remembers nothing: that is to its advantage. Peers are `kcat`
(librdkafka, C), `confluent-kafka` (the same from Python, with an acknowledgement of each record, and once more in
transactions), and `kafka-connect` (Java: a worker that keeps a position and sends no keys; see
`devkit/bench/kafka_connect.py`).

Rates count a whole run of a peer that ends, and of the daemon the interval from the first entry that is seen to have
left until none is there. Processor time is that of sender and broker, memory the sender's most. In a last turn of each
the sender gets SIGKILL when half of the records have arrived, and is started again: a peer with its whole file. Every
topic is read back; each object was written many times, so that a record behind a later one of its object shows.

`durable-streams` takes events in over HTTP, as the daemon does (`devkit/bench/against_http.py`), `outpost` posts them
to a receiver (`devkit/bench/against_outpost.py`), and `redis` hands out numbers, as the sequencer does
(`devkit/bench/against_redis.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka

from devkit.bench import against_http, against_outpost, against_redis, confluent_sender
from devkit.bench.backlog import PARTITIONS, Backlog, Shape, backlog, measured
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import kafka_topics
from devkit.bench.errand import Arrivals, Errand, Sent, medians
from devkit.bench.kafka_connect import CONNECT, KafkaConnect
from devkit.bench.load import Load, records
from devkit.bench.programs import kill, remora_on
from devkit.processes.processes import cpu_s
from remora.config import KafkaSettings
from remora.model.topic import Delivery, Target

TITLE = "against: the daemon beside kcat, confluent-kafka, kafka-connect, durable-streams, outpost or redis"

KCAT, CONFLUENT = "kcat", "confluent-kafka"
TRANSACTION = 10_000
"""Records of one transaction of confluent-kafka's; the daemon's have about as many here."""

OBJECTS = 990
"""Objects that are written again and again; as many in each of the shards and buckets."""

AT_ONCE = 10_000

ELSEWHERE = {
    against_http.STREAMS: against_http.run,
    against_outpost.OUTPOST: against_outpost.run,
    against_redis.REDIS: against_redis.run,
}
"""Peers with no broker, and what measures each."""


@dataclass(frozen=True)
class Row:
    """The medians of a sender's turns, and what stood in the topic after a SIGKILL in the middle."""

    sender: str
    rate: float
    sender_cpu_us: float
    broker_cpu_us: float
    peak_rss_bytes: float
    events: int
    copies: int
    inversions: int | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench against` understands."""
    parser.add_argument(
        "peer",
        choices=sorted([*PEERS, *ELSEWHERE]),
        help="Debian's package, Python's (which the tests install), Java's, or one that cargo or Go builds",
    )
    parser.add_argument("--entries", type=int, default=300_000, help="of each turn (default: 300,000)")
    parser.add_argument("--payload", type=int, default=1000, help="bytes of a body (default: 1000)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the daemon (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--seconds", type=float, default=10, help="of a turn that ends by the clock (default: 10)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    if options.peer in ELSEWHERE:
        return ELSEWHERE[options.peer](options)
    peer = PEERS[options.peer]()
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, ["kafka"]) as clusters,
    ):
        turns, arrived = asyncio.run(_Comparison(clusters, Path(folder), peer, options).run())
    rows = [row(sender, each, arrived[sender]) for sender, each in turns.items()]
    print_table(rows)
    return {
        "version": peer.version,
        "turns": {sender: [asdict(turn) for turn in each] for sender, each in turns.items()},
        "rows": [asdict(each) for each in rows],
    }


class _Peer(Protocol):
    """A program, and the ways in which it sends."""

    @property
    def version(self) -> str:
        """The program's, and its library's."""
        ...

    @property
    def senders(self) -> Sequence[str]:
        """The names of the ways."""
        ...

    @property
    def keyed(self) -> bool:
        """Whether its records have keys."""
        ...

    async def turn(self, sender: str, errand: Errand) -> Sent:
        """Send the whole file."""
        ...

    async def killed(self, sender: str, errand: Errand) -> None:
        """Send the file, with one SIGKILL when half of it has arrived."""
        ...


class _Program(ABC):
    """A program that sends a file with keys, and ends; it remembers nothing."""

    keyed = True

    @abstractmethod
    def command(self, sender: str, file: Path, topic: str, properties: Mapping[str, str | int]) -> list[str]:
        """What sends the file's records to the topic; `properties` are librdkafka's."""

    async def turn(self, sender: str, errand: Errand) -> Sent:
        """See `_Peer`: the whole run of the program."""
        before, began = cpu_s(errand.broker), time.monotonic()
        process = self._started(sender, errand)
        _, status, used = await asyncio.to_thread(os.wait4, process.pid, 0)
        seconds, broker_s = time.monotonic() - began, cpu_s(errand.broker) - before
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise BenchError(f"{sender} ended with {process.returncode}")
        per_event = 1e6 / errand.entries
        cpu_us = {"sender": (used.ru_utime + used.ru_stime) * per_event, "broker": broker_s * per_event}
        return Sent(errand.entries / seconds, cpu_us, used.ru_maxrss * 1024)

    async def killed(self, sender: str, errand: Errand) -> None:
        """See `_Peer`: it is started again with its whole file."""
        process = self._started(sender, errand)
        try:
            await errand.half_arrived()
        finally:
            process.kill()
        if process.wait() != -signal.SIGKILL:
            raise BenchError(f"{sender} had ended before it was killed: take more --entries")
        if await asyncio.to_thread(self._started(sender, errand).wait):
            raise BenchError(f"{sender} failed")

    def _started(self, sender: str, errand: Errand) -> subprocess.Popen[bytes]:
        ours = KafkaSettings()
        properties: dict[str, str | int] = {
            "bootstrap.servers": errand.address, "acks": "all", "enable.idempotence": "true",
            "compression.codec": ours.compression, "batch.size": ours.max_batch_bytes,
            "message.max.bytes": ours.max_batch_bytes, "linger.ms": 5,
        }  # fmt: skip
        argv = self.command(sender, errand.file, errand.topic, properties)
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL)


class _Kcat(_Program):
    senders = (KCAT,)

    def __init__(self) -> None:
        program = shutil.which(KCAT)
        if program is None:
            raise BenchError(f"{KCAT} is missing: install Debian's package of this name")
        self._program = program
        said = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
        self.version = next((line for line in said.splitlines() if line.startswith("Version")), said)

    def command(self, sender: str, file: Path, topic: str, properties: Mapping[str, str | int]) -> list[str]:
        """See `_Program`."""
        given = [word for each in properties.items() for word in ("-X", "{}={}".format(*each))]
        return [self._program, "-q", "-P", "-t", topic, "-K", "\t", "-l", str(file), *given]


class _Confluent(_Program):
    senders = (CONFLUENT, f"{CONFLUENT}, transactions")

    def __init__(self) -> None:
        self.version = f"{version(CONFLUENT)} with librdkafka {confluent_kafka.libversion()[0]}"

    def command(self, sender: str, file: Path, topic: str, properties: Mapping[str, str | int]) -> list[str]:
        """See `_Program`."""
        argv = [sys.executable, confluent_sender.__file__, str(file), topic]
        if sender == CONFLUENT:
            return [*argv, json.dumps(dict(properties))]
        return [*argv, json.dumps({**properties, "transactional.id": topic}), str(TRANSACTION)]


PEERS: Mapping[str, Callable[[], _Peer]] = {KCAT: _Kcat, CONFLUENT: _Confluent, CONNECT: KafkaConnect}


def row(sender: str, turns: Sequence[Sent], arrived: Arrivals) -> Row:
    """The medians of the turns."""
    found = medians(turns)
    return Row(
        sender,
        found.rate,
        found.cpu_us["sender"],
        found.cpu_us["broker"],
        found.peak_rss_bytes,
        arrived.events,
        arrived.copies,
        arrived.inversions,
    )


def print_table(rows: Sequence[Row]) -> None:
    """All rows, as a table of Markdown; the ratios are to the first one."""
    print("| sender | events/s | ratio | CPU, µs an event | ratio | broker, µs | MB | after a SIGKILL: events | copies "
          "| out of order |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for each in rows:
        print(
            f"| {each.sender} | {each.rate:,.0f} | {each.rate / rows[0].rate:.2f} | {each.sender_cpu_us:.1f} | "
            f"{each.sender_cpu_us / rows[0].sender_cpu_us:.1f} | {each.broker_cpu_us:.1f} | "
            f"{each.peak_rss_bytes / 1e6:.0f} | {each.events:,} | {each.copies:,} | "
            f"{'no key' if each.inversions is None else f'{each.inversions:,}'} |"
        )


class _Comparison:
    """One run of the benchmark."""

    def __init__(self, clusters: Clusters, folder: Path, peer: _Peer, options: argparse.Namespace) -> None:
        self._clusters, self._folder, self._peer, self._options = clusters, folder, peer, options
        self._address, self._broker = clusters.kafka["bootstrap"], clusters.kafka["pids"]["broker.1"]
        self._shapes = {
            f"remora, {mode}": Shape(
                workers=options.workers, payload=options.payload, delivery=mode, objects=OBJECTS
            )
            for mode in Delivery
        }  # fmt: skip

    async def run(self) -> tuple[dict[str, list[Sent]], dict[str, Arrivals]]:
        """The turns of each sender, and what stood in its topic after a SIGKILL."""
        file = self._write_file()
        turns: dict[str, list[Sent]] = {sender: [] for sender in (*self._peer.senders, *self._shapes)}
        for number in range(self._options.rounds):
            order = -1 if number % 2 else 1  # whoever comes first finds a broker that is busy with who came before
            for sender in self._peer.senders[::order]:
                turns[sender].append(await self._turn_of_peer(sender, file))
                _print_turn(sender, turns[sender][-1])
            for sender, shape in list(self._shapes.items())[::order]:
                async with backlog(self._clusters, self._folder, self._options.entries, shape) as stored:
                    turns[sender].append(await self._remora(stored))
                    self._check(sender, await self._errand(stored.name, file).arrivals())
                _print_turn(sender, turns[sender][-1])
        arrived = {sender: await self._killed_peer(sender, file) for sender in self._peer.senders}
        for sender, shape in self._shapes.items():
            async with backlog(self._clusters, self._folder, self._options.entries, shape) as stored:
                arrived[sender] = await self._killed_remora(stored, self._errand(stored.name, file))
        return turns, arrived

    def _write_file(self) -> Path:
        """Keys and bodies, or bodies alone, one record a line."""
        file, load = self._folder / "records", Load(0, Target("kafka://nobody", "", "bench"), self._options.payload,
                                                    objects=OBJECTS)  # fmt: skip
        with file.open("wb") as lines:
            for first in range(0, self._options.entries, AT_ONCE):
                made = records(list(load.entries(first, min(AT_ONCE, self._options.entries - first))))
                keys = [record.key + b"\t" if self._peer.keyed else b"" for record in made]
                lines.write(b"".join([key + record.body + b"\n" for key, record in zip(keys, made, strict=True)]))
        return file

    def _errand(self, topic: str, file: Path, keyed: bool = True) -> Errand:
        return Errand(topic, file, self._options.entries, self._address, self._broker, keyed)

    @asynccontextmanager
    async def _errand_of_peer(self, file: Path) -> AsyncIterator[Errand]:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        async with kafka_topics(self._address, [name], PARTITIONS):
            yield self._errand(name, file, self._peer.keyed)

    async def _turn_of_peer(self, sender: str, file: Path) -> Sent:
        async with self._errand_of_peer(file) as errand:
            sent = await self._peer.turn(sender, errand)
            self._check(sender, await errand.arrivals())
        return sent

    async def _remora(self, stored: Backlog) -> Sent:
        with remora_on(stored.embedded) as process:
            pids = {"daemon": process.pid, "broker": self._broker}
            turn = await measured(stored.store, stored.topics, self._options.entries, pids)
        cpu_us = {"sender": turn.daemon_cpu_s_per_1000 * 1e3, "broker": turn.broker_cpu_s_per_1000 * 1e3}
        return Sent(turn.rate, cpu_us, turn.peak_rss_bytes)

    async def _killed_peer(self, sender: str, file: Path) -> Arrivals:
        async with self._errand_of_peer(file) as errand:
            await self._peer.killed(sender, errand)
            return await errand.arrivals()

    async def _killed_remora(self, stored: Backlog, errand: Errand) -> Arrivals:
        with remora_on(stored.embedded) as process:
            await errand.half_arrived()
            kill(process)
        with remora_on(stored.embedded) as process:
            await measured(stored.store, stored.topics, errand.entries, {"daemon": process.pid})
        return await errand.arrivals()

    def _check(self, sender: str, found: Arrivals) -> None:
        if (found.events, found.copies, found.inversions or 0) != (self._options.entries, 0, 0):
            raise BenchError(
                f"{sender}: {found.events:,} events, {found.copies} copies, {found.inversions} out of order"
            )


def _print_turn(sender: str, turn: Sent) -> None:
    print(
        f"{sender:22} {turn.rate:9,.0f} events/s   CPU us an event: {turn.cpu_us['sender']:.1f}, "
        f"broker {turn.cpu_us['broker']:.1f}   {turn.peak_rss_bytes / 1e6:,.0f} MB",
        flush=True,
    )
