"""The brokers and the Ceph cluster of a run: made when they do not run, hurt, mended, and removed again."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from devkit.clusters.topics import TopicNotMade, make_topics
from devkit.paths import SCRIPTS

OPTIONS = {
    "kafka": ("--brokers", "3", "--heap", "384m", "--proxied"),
    "ceph": ("--no-rgw",),
}


class ChaosError(Exception):
    """The run cannot go on; the text says why."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster of one kind, `kafka` or `ceph`."""

    kind: str
    name: str
    env: Mapping[str, Any]

    async def hurt(self, daemon: str, how: signal.Signals) -> None:
        """Send a daemon a signal; of one that ends it the end is waited for."""
        await _dev(self.kind, "stop", "--name", self.name, daemon, "--signal", how.name.removeprefix("SIG"))

    async def start(self, daemon: str, *, wait: bool = True) -> None:
        """Bring a daemon back where it does not run; returns when it serves, unless told not to wait."""
        await _dev(self.kind, "start", "--name", self.name, daemon, *([] if wait else ["--no-wait"]))

    @property
    def daemons(self) -> Sequence[str]:
        """The daemons that are worth hurting."""
        return [each for each in self.env["daemons"] if each.startswith(("broker.", "osd."))]


async def make_kafka_topics(bootstrap: str, topics: Sequence[NewTopic]) -> None:
    """Kafka topics, which remora never makes."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        await make_topics(client, topics)
    except TopicNotMade as exc:
        raise ChaosError(str(exc)) from exc
    finally:
        await client.close()


@asynccontextmanager
async def running(kind: str, name: str) -> AsyncIterator[Cluster]:
    """A cluster of this name; made, and removed afterwards, where none runs. An empty name is one of this run alone."""
    name = name or f"chaos-{secrets.token_hex(4)}"
    ran = await _is_running(kind, name)
    try:
        await _dev(kind, "up", "--name", name, *OPTIONS[kind])
        yield Cluster(kind, name, json.loads(await _dev(kind, "env", "--json", "--name", name)))
    finally:
        if not ran:
            await _dev(kind, "down", "--name", name)


async def _is_running(kind: str, name: str) -> bool:
    process = await asyncio.create_subprocess_exec(
        SCRIPTS / f"dev-{kind}",
        "status",
        "--name",
        name,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait() in (0, 3)


async def _dev(kind: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        SCRIPTS / f"dev-{kind}", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        raise ChaosError(f"dev-{kind} {' '.join(arguments)} failed: {err.decode(errors='replace').strip()[-1000:]}")
    return out.decode()
