"""A real RabbitMQ for tests: brokers that can be hurt, exchanges and queues, and what a consumer then reads.

What is read is read with pika, which shares no code with the endpoint.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest

from devkit.clusters.certificates import certificate
from devkit.processes.ports import free_ports
from devkit.processes.processes import family, freeze

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = SERVER.with_name("rabbitmqctl")
MAX_MESSAGE_BYTES = 1_000_000
PASSWORD = "pa55:w/rd"
START_S = 120

CONFIG = """\
listeners.tcp.default = 127.0.0.1:{port}
listeners.ssl.default = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {certificate}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
load_definitions = {folder}/definitions.json
disk_free_limit.absolute = 1MB
max_message_size = {most}
channel_max = 64
"""


@dataclass(frozen=True)
class Message:
    """What a consumer got."""

    body: bytes
    routing_key: str
    properties: pika.BasicProperties


class RabbitMQ:
    """One broker in a folder of its own. Users `guest`, `alice` (PASSWORD), and `reader`, who may not write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.tls_port, self._distribution, self._epmd_port = free_ports(4)
        self.own = certificate(folder / "server", "localhost")
        self.client = certificate(folder / "client", "client", self.own)
        self._process: subprocess.Popen[str] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._write_settings()

    @property
    def pid(self) -> int:
        """The process that has started all others of the broker."""
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def tls_address(self) -> str:
        return f"127.0.0.1:{self.tls_port}"

    def _write_settings(self) -> None:
        values = {"port": self.port, "tls_port": self.tls_port, "folder": self.folder, "most": MAX_MESSAGE_BYTES}
        files = {"certificate": self.own.certificate, "key": self.own.key}
        (self.folder / "rabbitmq.conf").write_text(CONFIG.format(**values, **files))
        (self.folder / "definitions.json").write_text(json.dumps(_definitions()))
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "environment").write_text("")

    @property
    def _environment(self) -> dict[str, str]:
        at = str(self.folder)
        return {
            "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": at,
            "RABBITMQ_NODENAME": f"test{self._distribution}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": f"{at}/data", "RABBITMQ_LOG_BASE": f"{at}/log",
            "RABBITMQ_CONFIG_FILE": f"{at}/rabbitmq", "RABBITMQ_CONF_ENV_FILE": f"{at}/environment",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{at}/plugins", "RABBITMQ_PID_FILE": f"{at}/pid",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{at}/generated",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1",
        }  # fmt: skip

    def start(self) -> None:
        """Return when the broker takes connections; its name server is started first, else it would outlive us."""
        if self._epmd is None:
            epmd = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = subprocess.Popen(epmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._process = process = subprocess.Popen(
            [SERVER], env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "completed with" in line:
                return
        raise AssertionError("RabbitMQ ended: " + "".join(said)[-2000:])

    def signal(self, how: signal.Signals) -> None:
        """Hurt the broker: its whole session, so that a shell around it does not matter."""
        assert self._process is not None
        os.killpg(self._process.pid, how)

    async def freeze(self) -> None:
        """SIGSTOP; returns when the broker stands still, in whose session are a shell and Erlang's machine."""
        assert self._process is not None
        found = []
        for pid in family(self._process.pid):
            with contextlib.suppress(ProcessLookupError):  # a helper that has just ended
                if os.getsid(pid) == self._process.pid:
                    found.append(pid)
        await freeze(found)

    def kill(self) -> None:
        """End the broker at once; its files stay."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        """End everything of it."""
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()

    async def control(self, *words: str) -> None:
        """Run rabbitmqctl."""

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [CONTROL, *words], env=self._environment, capture_output=True, text=True, timeout=START_S, check=False
            )

        done = await asyncio.to_thread(run)
        assert done.returncode == 0, f"rabbitmqctl {words}: {done.stdout}{done.stderr}"

    # ------------------------------------------------------------------------- exchanges and messages

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel of pika's."""
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port)) as connection:
            yield connection.channel()

    async def exchange(self, *, kind: str = "topic", name: str = "") -> str:
        """Make an exchange, by default of a name of its own."""
        name = name or f"x-{uuid.uuid4().hex[:12]}"

        def make() -> None:
            with self.channel() as channel:
                channel.exchange_declare(name, kind, durable=True)

        await asyncio.to_thread(make)
        return name

    async def queue(self, exchange: str, key: str = "#", **arguments: object) -> str:
        """Make a durable queue that is bound to an exchange; `_` in an argument's name stands for `-`."""
        name = f"q-{uuid.uuid4().hex[:12]}"
        settings = {each.replace("_", "-"): value for each, value in arguments.items()}

        def make() -> None:
            with self.channel() as channel:
                channel.queue_declare(name, durable=True, arguments=settings)
                channel.queue_bind(name, exchange, key)

        await asyncio.to_thread(make)
        return name

    async def bound(self) -> tuple[str, str]:
        """An exchange, and a queue that gets whatever comes there."""
        exchange = await self.exchange()
        return exchange, await self.queue(exchange)

    async def delete_exchange(self, name: str) -> None:
        def delete() -> None:
            with self.channel() as channel:
                channel.exchange_delete(name)

        await asyncio.to_thread(delete)

    async def read(self, queue: str) -> list[Message]:
        """Everything in a queue, which is empty then."""

        def take() -> list[Message]:
            found: list[Message] = []
            with self.channel() as channel:
                while True:
                    method, properties, body = channel.basic_get(queue, auto_ack=True)
                    if method is None:
                        return found
                    found.append(Message(body, method.routing_key, properties))

        return await asyncio.to_thread(take)


def _definitions() -> dict[str, object]:
    def user(name: str, password: str) -> dict[str, object]:
        salt = secrets.token_bytes(4)
        digest = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
        algorithm = "rabbit_password_hashing_sha256"
        return {"name": name, "password_hash": digest, "hashing_algorithm": algorithm, "tags": [], "limits": {}}

    def may(name: str, write: str = ".*") -> dict[str, object]:
        return {"user": name, "vhost": "/", "configure": ".*", "write": write, "read": ".*"}

    return {
        "users": [user("guest", "guest"), user("alice", PASSWORD), user("reader", PASSWORD)],
        "vhosts": [{"name": "/"}],
        "permissions": [may("guest"), may("alice"), may("reader", write="nothing")],
    }


@contextlib.contextmanager
def running_rabbitmq() -> Iterator[RabbitMQ]:
    """A broker of one's own, of which nothing is left. Missing, it skips the test on a laptop and fails it in CI."""
    if not SERVER.exists():
        if "CI" in os.environ:
            pytest.fail("rabbitmq-server is missing: run scripts/setup")
        pytest.skip("needs Debian's package rabbitmq-server: run scripts/setup")
    with tempfile.TemporaryDirectory(prefix="remora-rabbitmq-") as name:
        broker = RabbitMQ(Path(name))
        try:
            broker.start()
            yield broker
        finally:
            broker.close()


class Hearer:
    """Remembers what an endpoint told."""

    def __init__(self) -> None:
        self.connected = 0
        self.disconnected: list[str] = []
        self.unroutable = 0
        self.defects: list[str] = []

    def amqp_connected(self, broker: str) -> None:
        self.connected += 1

    def amqp_disconnected(self, broker: str, reason: str) -> None:
        self.disconnected.append(reason)

    def amqp_unroutable(self, broker: str, exchange: str) -> None:
        self.unroutable += 1

    def crashed(self, what: str) -> None:
        self.defects.append(what)


def bodies(messages: Sequence[Message]) -> list[bytes]:
    return [each.body for each in messages]


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """A broker that no test hurts; exchanges keep tests apart."""
    with running_rabbitmq() as running:
        yield running


@pytest.fixture(scope="module")
def fragile_rabbitmq() -> Iterator[RabbitMQ]:
    """A broker that tests may hurt, as long as they mend it."""
    with running_rabbitmq() as running:
        yield running
