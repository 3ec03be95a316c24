"""What the demo stands on: a Ceph cluster, a Kafka broker, an HTTP sink and the daemon, each for as long as needed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from aiohttp import web
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from devkit.clusters.topics import TopicNotMade, make_topics
from devkit.paths import SCRIPTS
from devkit.processes.daemon import Daemon, Sections, merged
from devkit.processes.ports import free_port

REMORA = Path(sys.executable).with_name("remora")


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


# ------------------------------------------------------------------------------------------- programs


@dataclass(frozen=True)
class Ended:
    """What a program gave."""

    code: int
    out: str
    err: str


async def result_of(*argv: str | Path, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Ended:
    """What a program prints, whatever it ends with. Cancelled, it interrupts the program and all its children."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=dict(os.environ) | dict(env or {})
    )
    try:
        out, err = await process.communicate(stdin)
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        await process.wait()
        raise
    return Ended(process.returncode or 0, out.decode(), err.decode(errors="replace"))


async def output_of(*argv: str | Path, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
    """What a program prints that must end with 0; `env` is added to the environment."""
    done = await result_of(*argv, stdin=stdin, env=env)
    if done.code:
        raise DemoError(f"{Path(argv[0]).name} {argv[1]} ended with {done.code}: {done.err.strip()[-2000:]}")
    return done.out


@contextlib.asynccontextmanager
async def clusters(ceph: str, kafka: str, release: int, keep: bool) -> AsyncIterator[tuple[dict[str, Any], str]]:
    """A Ceph cluster with radosgw and a Kafka broker of these names: Ceph's variables, and the broker's address."""
    await remove_orphans()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(output_of(SCRIPTS / "dev-ceph", "up", "--name", ceph, "--release", str(release)))
            tasks.create_task(output_of(SCRIPTS / "dev-kafka", "up", "--name", kafka))
        yield await variables("ceph", ceph), str((await variables("kafka", kafka))["bootstrap"])
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        if not keep:
            await asyncio.gather(remove("ceph", ceph), remove("kafka", kafka))


@contextlib.asynccontextmanager
async def kafka_alone(name: str, keep: bool) -> AsyncIterator[str]:
    """A Kafka broker of this name; its address."""
    await remove_orphans()
    try:
        await output_of(SCRIPTS / "dev-kafka", "up", "--name", name)
        yield str((await variables("kafka", name))["bootstrap"])
    finally:
        if not keep:
            await remove("kafka", name)


async def variables(kind: str, name: str) -> dict[str, Any]:
    """What a cluster tells its clients."""
    env: dict[str, Any] = json.loads(await output_of(SCRIPTS / f"dev-{kind}", "env", "--json", "--name", name))
    return env


async def remove(kind: str, name: str) -> None:
    await output_of(SCRIPTS / f"dev-{kind}", "down", "--name", name)


async def remove_orphans() -> None:
    """Remove the clusters of demos that were killed outright."""
    for line in (await output_of(SCRIPTS / "dev/running")).splitlines():
        kind, name = line.split()
        if is_orphan(name):
            await remove(kind, name)


def is_orphan(name: str) -> bool:
    """Whether a name ends with the process of a demo that is no more."""
    pid = name.removeprefix("demo-")
    return pid != name and pid.isdecimal() and not is_running(int(pid))


def is_running(pid: int) -> bool:
    """Whether there is such a process, whosever it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# -------------------------------------------------------------------------------------------- clients


def radosgw_client(service: str, env: dict[str, Any]) -> Any:
    """A client of radosgw, as its users have it: "s3" for buckets and objects, "sns" for topics."""
    config = AioConfig(
        retries={"max_attempts": 1},
        s3={"addressing_style": "path"},
        max_pool_connections=32,
        # Checksums that newer clients add by themselves are unknown to older gateways.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return get_session().create_client(
        service,
        config=config,
        region_name=env["region"],
        endpoint_url=env["s3"]["endpoint"],
        aws_access_key_id=env["s3"]["access_key"],
        aws_secret_access_key=env["s3"]["secret_key"],
    )


async def make_kafka_topic(bootstrap: str, name: str, partitions: int) -> None:
    """Makes a topic: neither the broker nor remora makes one by itself. Raises DemoError."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await make_topics(admin, [NewTopic(name, partitions, 1)])
    except TopicNotMade as exc:
        raise DemoError(str(exc)) from exc
    finally:
        await admin.close()


class Sink:
    """An HTTP endpoint that writes down what radosgw posts.

    /held answers only when told to, and then with 503, so that radosgw takes nothing for delivered and its queue
    stays as it is. /mirror answers at once.
    """

    def __init__(self) -> None:
        self.held: dict[bytes, None] = {}
        self.mirrored: list[bytes] = []
        self.url = ""
        self._refusal = asyncio.Event()

    async def __aenter__(self) -> Sink:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/held", self._take_held)
        app.router.add_post("/mirror", self._take_mirrored)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0])
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.refuse()
        await self._runner.cleanup()

    def refuse(self) -> None:
        """Answer everything that is held now."""
        self._refusal.set()
        self._refusal = asyncio.Event()

    async def _take_held(self, request: web.Request) -> web.Response:
        self.held[await request.read()] = None
        await self._refusal.wait()
        return web.Response(status=503)

    async def _take_mirrored(self, request: web.Request) -> web.Response:
        self.mirrored.append(await request.read())
        return web.Response()


# --------------------------------------------------------------------------------------------- daemon


def rados_sections(env: dict[str, Any]) -> Sections:
    """The configuration of a daemon that delivers the queues of this cluster."""
    rados = {"conf": env["conf"], "name": env["client"], "keyring": env["keyring"]}
    return {"store": {"kind": "rados"}, "ingest": {"listen": ""}, "rados": rados}


class Shown(Daemon):
    """A daemon with a configuration file of the smallest kind, which people may start again."""

    def __init__(self, folder: Path, sections: Sections, program: Path = REMORA) -> None:
        """`sections` are those of the store and the ingest API."""
        own = {"admin": {"listen": f"127.0.0.1:{free_port()}", "control_socket": f"{folder}/control.sock"}}
        super().__init__(folder, merged(own, sections), command=(str(program),))
        del self.sections["supervisor"]["run_directory"]
        if program != REMORA:
            del self.sections["admin"]["control_socket"]  # earlier releases know neither
        self.rewrite()
        self._program = program

    async def __aenter__(self) -> Shown:
        await self.start(ready=False)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.kill_all()
        await self.close()

    async def ask(self, *arguments: str) -> str:
        """What a command of `remora` prints with the daemon's configuration."""
        return await output_of(self._program, *arguments, "-c", self.config)

    async def until_ready(self) -> None:
        """Wait for /-/ready to say yes. Raises DemoError."""
        try:
            await self.until(self.is_ready, "a start")
        except AssertionError as exc:
            raise DemoError(str(exc)) from exc

    async def metrics(self) -> dict[tuple[str, str, str], float]:
        """The present samples, by name, `topic` and `le`."""
        _, text = await self.get("/metrics")
        return {
            (sample.name, sample.labels.get("topic", ""), sample.labels.get("le", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
