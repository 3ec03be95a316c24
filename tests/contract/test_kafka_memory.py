"""Topics that fail again and again, for hours: what a worker holds stays the same, though nobody collects garbage."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
import uvloop

from devkit.clusters.certificates import certificate
from devkit.clusters.kafka import Kafka
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from devkit.testing.cases import cases
from devkit.waits import until
from engine.fakes import FakeStore
from engine.runs import QUICK, a_topic, running
from remora.config import DeliverySettings, KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint, lookup
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.topic import Target

RESTLESS = DeliverySettings(retry_base_s=0.001, retry_cap_s=0.001, configuration_recheck_s=0.001)
"""A topic that cannot be delivered is tried again at once."""

WARM, TIMES = 50, 400
"""How often a topic fails before its memory is looked at first, and how often until it is looked at again."""

LOOKS = 10
"""How many failures in turn are looked at each time: an attempt under way then may hold hundreds of objects."""


@contextlib.asynccontextmanager
async def rude_port() -> AsyncIterator[str]:
    """The address of something that is no Kafka: it hangs up at the first word."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def failing(uri: str, args: str) -> AsyncIterator[Telemetry]:
    """A worker with a queue whose entry cannot be delivered there."""
    store, telemetry = FakeStore(tells=True), Telemetry()
    store.make("bad", raw_entry("k", 0, topic="bad"))
    store.metadata["bad"] = replace(a_topic("bad"), target=Target(uri, args, "bad"))
    settings = KafkaSettings(connect_timeout_s=5, ca_directories="/")
    async with KafkaEndpoint(settings, telemetry) as endpoint:
        worker = Worker(store, [endpoint], telemetry, WorkerSetup("remora/h/b/w1", QUICK, RESTLESS), Random(7))
        async with running(worker) as task:
            yield telemetry
            task.cancel()


def failures(telemetry: Telemetry) -> int:
    kinds = ("transient", "configuration", "fenced")
    values = [sample_value(telemetry.registry, "remora_failures_total", {"topic": "bad", "kind": k}) for k in kinds]
    return int(sum(filter(None, values)))


@dataclass(frozen=True)
class Left:
    """What this many failures left behind: objects that nothing reaches any more, and others."""

    failures: int
    garbage: int
    kept: int


async def fails_again(telemetry: Telemetry, times: int = 1) -> None:
    """Return as soon as the topic failed so many times more."""
    before = failures(telemetry)
    await until(lambda: failures(telemetry) >= before + times, "failures", 120)


async def least_objects(telemetry: Telemetry) -> int:
    """How many objects there are at the least of some failures in turn; garbage counts until somebody collects it."""
    least = len(gc.get_objects())
    for _ in range(LOOKS):
        await fails_again(telemetry)
        least = min(least, len(gc.get_objects()))
    return least


async def failures_leave(uri: str, args: str, times: int, warm: int = WARM) -> Left:
    """What a topic leaves behind that fails so often, while nobody looks for garbage."""
    async with failing(uri, args) as telemetry:
        await fails_again(telemetry, warm)
        gc.collect()
        gc.disable()
        try:
            began, before = failures(telemetry), await least_objects(telemetry)
            await fails_again(telemetry, times)
            count, garbage = failures(telemetry) - began, gc.collect()
            return Left(count, garbage, await least_objects(telemetry) - before)
        finally:
            gc.enable()


async def cannot_work(way: str, mode: str, folder: Path) -> Left:
    """What a topic leaves that cannot work in this way."""
    ca = certificate(folder / "tls", "localhost").certificate
    (folder / "junk").write_bytes(bytes(range(256)) * 100)
    (folder / "large").write_bytes(ca.read_bytes() + b"\n" * (2 << 20))
    async with rude_port() as rude:
        uri, args = {
            "missing": ("kafka://127.0.0.1:1", f"use-ssl=true&ca-location={folder}/nothing"),
            "junk": ("kafka://127.0.0.1:1", f"use-ssl=true&ca-location={folder}/junk"),
            "large": ("kafka://127.0.0.1:1", f"use-ssl=true&ca-location={folder}/large"),
            "elsewhere": ("kafka://127.0.0.1:1", "use-ssl=true&ca-location=relative"),
            "closed": ("kafka://127.0.0.1:1", ""),
            "closed-tls": ("kafka://127.0.0.1:1", f"use-ssl=true&ca-location={ca}"),
            "rude": (f"kafka://{rude}", ""),
            "rude-tls": (f"kafka://{rude}", f"use-ssl=true&ca-location={ca}"),
            "no-uri": ("kafka://", ""),
        }[way]
        return await failures_leave(uri, f"{args}&remora-delivery={mode}", TIMES)


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@pytest.mark.parametrize("mode", cases("exactly-once", more=["at-least-once"]))
@pytest.mark.parametrize(
    "way", cases("missing", "closed", "rude-tls", more=["junk", "large", "elsewhere", "closed-tls", "rude", "no-uri"])
)
def test_failures_leave_nothing(tmp_path: Path, way: str, mode: str) -> None:
    """A topic that cannot work is tried hundreds of times, and nothing of an attempt is left, nor waits for a look."""
    left = uvloop.run(cannot_work(way, mode, tmp_path))

    assert left.garbage < left.failures / 10, left
    assert left.kept < left.failures / 2, left


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@pytest.mark.kafka
@pytest.mark.parametrize("mode", cases("exactly-once", more=["at-least-once"]))
@pytest.mark.parametrize("way", cases("no-such-topic", "password", more=["no-login", "tls-to-plain"]))
def test_refusals_leave_nothing(kafka: Kafka, way: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broker refuses is tried again and again, and nothing of an attempt is left, nor waits for a look."""
    monkeypatch.setattr(lookup, "DOUBT_S", 0.0)
    uri, args = {
        "no-such-topic": (kafka.address, ""),
        "password": (kafka.env["sasl_plaintext_bootstrap"], "user-name=dev&password=wrong"),
        "no-login": (kafka.env["sasl_plaintext_bootstrap"], ""),
        "tls-to-plain": (kafka.address, "use-ssl=true&verify-ssl=false"),
    }[way]

    left = uvloop.run(failures_leave(f"kafka://{uri}", f"{args}&remora-delivery={mode}", times=30, warm=10))

    assert left.garbage < left.failures / 10, left
    assert left.kept < 1000, left  # an attempt may be under way when it is counted
