"""A real NATS server with JetStream on a disk, for tests: one that can be hurt, streams, and what lies in them.

Streams are made and read with nats-py, which shares no code with the endpoint.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import nats.js.api
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from devkit.clusters.certificates import certificate
from devkit.clusters.nkeys import public_key, seed_of
from devkit.processes.ports import free_ports
from devkit.processes.processes import freeze
from devkit.processes.programs import program

SERVER = "nats-server"
MAX_MESSAGE_BYTES = 1_000_000
PASSWORD = "pa55:w/rd"

CONFIG = """\
server_name: test
max_payload: {most}
jetstream {{ store_dir: "{folder}/js", max_mem: 64M, max_file: 1G }}
"""

USERS = """\
accounts {{
  A {{
    jetstream: enabled
    users: [
      {{ user: guest, password: guest }}
      {{ user: alice, password: "{password}" }}
      {{ nkey: {nkey} }}
      {{ user: writer, password: "{password}", permissions: {{ publish: {{ deny: ["$JS.API.STREAM.MSG.>"] }} }} }}
      {{ user: reader, password: "{password}", permissions: {{ publish: {{ allow: ["$JS.API.>"] }} }} }}
      {{ user: outsider, password: "{password}", permissions: {{ publish: {{ deny: [">"] }} }} }}
      {{ user: deaf, password: "{password}", permissions: {{ subscribe: {{ deny: [">"] }} }} }}
    ]
  }}
  B {{ users: [ {{ user: poor, password: "{password}" }} ] }}
}}
no_auth_user: guest
"""

Accounts = tuple[str, Mapping[str, str]]
"""An operator's token, and those of its accounts by their keys; the first is the server's own."""


@dataclass(frozen=True)
class Message:
    """What lies in a stream."""

    subject: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Nats:
    """One server in a folder of its own, over TLS where it is so asked."""

    def __init__(self, folder: Path, *, tls: bool = False, accounts: Accounts | None = None) -> None:
        """With `accounts` it lets in who shows a token of one of these, instead of users by name."""
        self.folder = folder
        [self.port] = free_ports(1)
        self.own = certificate(folder / "server", "localhost")
        self.client = certificate(folder / "client", "client", self.own)
        self.key = Ed25519PrivateKey.generate()
        self.seed_file = folder / "seed.nk"
        self.seed_file.write_text(seed_of(self.key) + "\n")
        self._tls, self._accounts = tls, accounts
        self._process: subprocess.Popen[bytes] | None = None
        self._write_settings()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _write_settings(self) -> None:
        pem = self.own.certificate
        tls = f'tls {{ cert_file: "{pem}", key_file: "{self.own.key}", ca_file: "{pem}", verify: true }}\n'
        users = USERS.format(password=PASSWORD, nkey=public_key(self.key, "U"))
        if self._accounts is not None:
            operator, accounts = self._accounts
            known = "".join(f"{name}: {text}\n" for name, text in accounts.items())
            own_account = f"system_account: {next(iter(accounts))}\n"
            users = f"operator: {operator}\n{own_account}resolver: MEMORY\nresolver_preload {{\n{known}}}\n"
        (self.folder / "nats.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\n{tls if self._tls else ""}'
            + CONFIG.format(most=MAX_MESSAGE_BYTES, folder=self.folder)
            + users
        )

    def start(self) -> None:
        """Return when the server takes connections."""
        ports = self.folder / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir()
        said = self.folder / "log"
        argv = [program(SERVER, SERVER), "-c", str(self.folder / "nats.conf"), "--ports_file_dir", str(ports)]
        with said.open("ab") as log:
            self._process = process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        # It writes the file once it listens, and this takes no longer than its start.
        while not list(ports.glob("*.ports")):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
                raise AssertionError("nats-server ended: " + said.read_text()[-2000:])

    def signal(self, how: signal.Signals) -> None:
        """Hurt the server."""
        os.kill(self.pid, how)

    async def freeze(self) -> None:
        """SIGSTOP; returns when the server stands still."""
        await freeze([self.pid])

    def kill(self) -> None:
        """End the server at once; its files stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    # ------------------------------------------------------------------------------ streams and messages

    @contextlib.asynccontextmanager
    async def jetstream(self, user: tuple[str, Ed25519PrivateKey] | None = None) -> AsyncIterator[Any]:
        """JetStream by nats-py, as a guest or as a user with this token and key."""
        options: dict[str, Any] = {"user": "guest", "password": "guest"}
        if user is not None:
            text, key = user
            options = {
                "user_jwt_cb": lambda: bytearray(text.encode()),
                "signature_cb": lambda nonce: base64.b64encode(key.sign(nonce.encode())),
            }
        if self._tls:
            options["tls"] = ssl.create_default_context(cafile=self.own.certificate)
            options["tls"].load_cert_chain(self.client.certificate, self.client.key)
        client = await nats.connect(f"nats://localhost:{self.port}", allow_reconnect=False, **options)
        try:
            yield client.jetstream()
        finally:
            await client.close()

    async def stream(self, name: str = "", *, subjects: Sequence[str] = (), **settings: Any) -> str:
        """Make a stream, by default of a name of its own, with the subjects that begin with its name."""
        name = name or f"s-{uuid.uuid4().hex[:12]}"
        config = nats.js.api.StreamConfig(name=name, subjects=list(subjects or [f"{name}.>"]), **settings)
        async with self.jetstream() as found:
            await found.add_stream(config)
        return name

    async def update(self, name: str, **settings: Any) -> None:
        """Change a stream."""
        async with self.jetstream() as found:
            config = (await found.stream_info(name)).config
            await found.update_stream(config.evolve(**settings))

    async def delete(self, name: str) -> None:
        async with self.jetstream() as found:
            await found.delete_stream(name)

    async def count(self, name: str) -> int:
        """How many messages a stream has."""
        async with self.jetstream() as found:
            return int((await found.stream_info(name)).state.messages)

    async def purge(self, name: str) -> None:
        """Empty a stream."""
        async with self.jetstream() as found:
            await found.purge_stream(name)

    async def read(self, name: str) -> list[Message]:
        """Everything in a stream, in order; it stays there."""
        async with self.jetstream() as found:
            state = (await found.stream_info(name)).state
            if not state.messages:
                return []
            options = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
            reading = await found.subscribe(stream=name, subject=">", config=options, ordered_consumer=True)
            messages = [await reading.next_msg(timeout=60) for _ in range(state.messages)]
            await reading.unsubscribe()
        return [Message(each.subject, each.data, each.headers or {}) for each in messages]


@contextlib.contextmanager
def running_nats(*, tls: bool = False, accounts: Accounts | None = None) -> Iterator[Nats]:
    """A server of one's own, of which nothing is left. Missing, it skips the test on a laptop and fails it in CI."""
    with tempfile.TemporaryDirectory(prefix="remora-nats-") as name:
        server = Nats(Path(name), tls=tls, accounts=accounts)
        try:
            server.start()
            yield server
        finally:
            server.kill()


class NatsHearer:
    """Remembers what an endpoint told."""

    def __init__(self) -> None:
        self.connected = 0
        self.disconnected: list[str] = []
        self.known: list[str] = []
        self.defects: list[str] = []

    def nats_connected(self, server: str) -> None:
        self.connected += 1

    def nats_disconnected(self, server: str, reason: str) -> None:
        self.disconnected.append(reason)

    def nats_known(self, server: str, by: str) -> None:
        self.known.append(by)

    def crashed(self, what: str) -> None:
        self.defects.append(what)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    """A server that no test hurts; streams keep tests apart."""
    with running_nats() as running:
        yield running


@pytest.fixture(scope="module")
def fragile_nats_server() -> Iterator[Nats]:
    """A server that tests may hurt, as long as they mend it."""
    with running_nats() as running:
        yield running
