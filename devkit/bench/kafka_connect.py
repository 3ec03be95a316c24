"""Kafka Connect beside the daemon, as `against` has it: FileStreamSource in a distributed worker, with one task.

It reads a file of bodies, decodes nothing, and sends no key: that is to its advantage, and nobody promises an order of
an object's records. It keeps its position in Kafka: after a SIGKILL it goes on from the last one that is kept. That is
up to a minute old (`offset.flush.interval.ms`), or exact with `exactly.once.source.support`. Java's options are those
of Kafka's own script.

A worker lasts, so it is measured as the daemon is, from the first record that is seen in the topic to the last one;
before that it has sent the whole file to another topic, by which Java has compiled what that needs.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from devkit.bench import programs
from devkit.bench.backlog import PARTITIONS, PATIENCE_S
from devkit.bench.clusters import BenchError, kafka_jars
from devkit.bench.delivered import kafka_topics
from devkit.bench.errand import Errand, Sent
from devkit.processes.ports import free_port
from remora.config import KafkaSettings

CONNECT = "kafka-connect"
EXACTLY_ONCE = f"{CONNECT}, exactly once"

POLLED = 10_000
"""Lines that a task hands over at once: a transaction, where there are any. The daemon's have about as many here."""

KEPT_IN = ("config", "offset", "status")
"""What a worker keeps in topics of Kafka."""

HEAP = ("-Xms256M", "-Xmx2G")
PERFORMANCE = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
"""As Kafka's own scripts start a worker, which take others from the same variable of the environment."""


class KafkaConnect:
    """A peer of `against`."""

    senders = (CONNECT, EXACTLY_ONCE)
    keyed = False

    def __init__(self) -> None:
        if shutil.which("java") is None:
            raise BenchError(f"java, which {CONNECT} needs, is missing: run scripts/setup")
        self._jars = kafka_jars("--connect")
        self.version = next(self._jars.glob("connect-runtime-*.jar")).stem

    async def turn(self, sender: str, errand: Errand) -> Sent:
        """Have a worker that is warm send the file."""
        warm_up = replace(errand, topic=f"{errand.topic}-warm-up")
        async with self._cluster(sender, errand) as cluster, cluster.worker() as worker:
            async with kafka_topics(errand.address, [warm_up.topic], PARTITIONS):
                await worker.create(warm_up)
                await warm_up.all_arrived()
                await worker.delete(warm_up)
            await worker.create(errand)
            return await errand.watched(worker.process.pid)

    async def killed(self, sender: str, errand: Errand) -> None:
        """Kill the worker in the middle; the next one knows the connector and its position from Kafka."""
        async with self._cluster(sender, errand) as cluster:
            async with cluster.worker() as worker:
                await worker.create(errand)
                await errand.half_arrived()
                programs.kill(worker.process)
            await errand.unfinished()
            async with cluster.worker():
                await errand.all_arrived()

    @asynccontextmanager
    async def _cluster(self, sender: str, errand: Errand) -> AsyncIterator[_Cluster]:
        """What a worker needs, and what is there when the next one comes."""
        kept = {kind: f"{errand.topic}-{kind}" for kind in KEPT_IN}
        folder, port, ours = errand.file.parent / f"{errand.topic}-connect", free_port(), KafkaSettings()
        folder.mkdir()
        settings = {
            "bootstrap.servers": errand.address,
            "group.id": errand.topic,
            **{f"{kind}.storage.topic": topic for kind, topic in kept.items()},
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "exactly.once.source.support": "enabled" if sender == EXACTLY_ONCE else "disabled",
            "listeners": f"http://127.0.0.1:{port}",
            "plugin.discovery": "service_load",
            "producer.acks": "all",
            "producer.enable.idempotence": "true",
            "producer.compression.type": ours.compression,
            "producer.batch.size": ours.max_batch_bytes,
            "producer.max.request.size": ours.max_batch_bytes,
            "producer.linger.ms": 5,
        }
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        performance = shlex.split(os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "")) or PERFORMANCE
        argv = ["java", *HEAP, *performance, "-cp", f"{self._jars}/*", main, str(file)]
        async with kafka_topics(errand.address, list(kept.values()), 1, {"cleanup.policy": "compact"}):
            yield _Cluster(argv, f"http://127.0.0.1:{port}", folder / "worker.log")


@dataclass(frozen=True)
class _Cluster:
    argv: list[str]
    url: str
    log: Path

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[_Worker]:
        """A worker that runs; it need not answer yet. It gets SIGTERM in the end, and sends what it has."""
        with programs.running(self.argv, self.log) as process:
            async with aiohttp.ClientSession(self.url) as session:
                yield _Worker(process, session)


@dataclass(frozen=True)
class _Worker:
    process: subprocess.Popen[bytes]
    _session: aiohttp.ClientSession

    async def create(self, errand: Errand) -> None:
        """Make a connector that sends the file to the topic."""
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(errand.file),
            "topic": errand.topic,
            "batch.size": str(POLLED),
        }
        await self._asked("POST", "/connectors", {"name": errand.topic, "config": config}, 201)

    async def delete(self, errand: Errand) -> None:
        """Remove the connector again."""
        await self._asked("DELETE", f"/connectors/{errand.topic}", None, 204)

    async def _asked(self, method: str, path: str, body: object, wanted: int) -> None:
        """Ask until it is done: a worker that starts does not listen, and one whose group changes says 409."""
        deadline, said = time.monotonic() + PATIENCE_S, "no answer"
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                async with self._session.request(method, path, json=body) as answer:
                    said = f"{answer.status} {await answer.text()}"
                    if answer.status == wanted:
                        return
            except aiohttp.ClientError as error:
                said = str(error)
            await asyncio.sleep(0.1)
        raise BenchError(f"{CONNECT} does not {method} {path}: {said[:500]}")
