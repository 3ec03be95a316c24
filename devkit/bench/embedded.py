"""A store, made ready for a daemon: the embedded one, unless a cluster is given."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from remora.bounded import all_of
from remora.config import RadosSettings, SqliteSettings, show_size
from remora.model.shard import Origin
from remora.model.topic import Target, Topic
from remora.ports.store import ShardStore
from remora.storage.rados import RadosStore
from remora.storage.sqlite import SqliteStore

NOBODY = "kafka://127.0.0.1:1"
"""An endpoint where nobody listens: a daemon then only stores."""

_CONFIGURATION = """\
{store}

[ingest]
listen = "{ingest}"

[admin]
listen = "{admin}"
control_socket = "{control}"
"""


class Embedded:
    """A folder with a store's directory and a configuration for a daemon on it."""

    def __init__(
        self,
        folder: Path,
        queue_bytes: int = 128_000_000,
        ingest: str = "",
        directory: Path | None = None,
        more: str = "",
        rados: RadosSettings | None = None,
    ) -> None:
        """`ingest` is where events are taken in, and `directory` where the store lies: in the folder unless given.

        With `rados` the store is that cluster's. `more` are further sections of the configuration.
        """
        self._rados = rados
        self.is_rados = rados is not None
        self.settings = SqliteSettings(directory=str(directory or folder / "store"), queue_bytes=queue_bytes)
        self.ingest = ingest or f"unix:{folder / 'ingest'}"
        self.admin = f"unix:{folder / 'admin'}"
        self.configuration, self.log = folder / "remora.toml", folder / "remora.log"
        self.configuration.write_text(
            _CONFIGURATION.format(
                store=rados_sections(rados) if rados else _sqlite_sections(self.settings),
                ingest=self.ingest,
                admin=self.admin,
                control=folder / "control",
            )
            + more
        )

    def store(self) -> AbstractAsyncContextManager[ShardStore]:
        """The store itself, to be opened beside a daemon or without one."""
        return RadosStore(self._rados) if self._rados else SqliteStore(self.settings)

    async def entries(self, topic: Topic) -> int:
        """How many entries wait in a topic; without a daemon."""
        async with self.store() as store:
            return sum(each.entries for each in await store.inspection.backlog(topic.all_shards()))

    async def status(self) -> Any:
        """What the running daemon says of its workers and shards."""
        return json.loads(await self._ask("/-/status"))

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels in the running daemon."""
        text = await self._ask("/metrics")
        families = text_string_to_metric_families(text)
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def takes_events(self) -> bool:
        """Whether the running daemon takes events in. Raises what aiohttp does when nobody is there."""
        async with _asked(self.ingest, "/v1/health") as answer:
            return answer.ok

    async def _ask(self, path: str) -> str:
        async with _asked(self.admin, path) as answer:
            return await answer.text()

    async def make_topics(
        self, names: Iterable[str], endpoint: str, shards: int, *, is_sequenced: bool = False, args: str = ""
    ) -> list[Topic]:
        """Make topics that deliver to the Kafka topics of their names; some that number their events, if asked for.

        `args` are those of the endpoint.
        """
        wanted = [
            dataclasses.replace(
                own_topic(name, endpoint, shards), target=Target(endpoint, args, name), is_sequenced=is_sequenced
            )
            for name in names
        ]
        async with self.store() as store:
            return await all_of(wanted, store.own_topics.create)

    @property
    def command(self) -> Sequence[str]:
        """What comes after `remora`."""
        return ["run", "-c", str(self.configuration)]


def own_topic(name: str, endpoint: str, shards: int) -> Topic:
    """A topic of remora's own."""
    return Topic(
        name=name,
        tenant="",
        queue=name,
        target=Target(endpoint, "", name),
        origin=Origin.REMORA,
        shards=shards,
    )


def _sqlite_sections(settings: SqliteSettings) -> str:
    return (
        f'[store]\nkind = "sqlite"\n\n[sqlite]\ndirectory = "{settings.directory}"\n'
        f'queue_bytes = "{show_size(settings.queue_bytes)}"'
    )


def rados_sections(settings: RadosSettings) -> str:
    """The sections of a configuration whose store is this cluster."""
    options = {
        key.removesuffix("_s"): f"{value:g}s" if key.endswith("_s") else value
        for key, value in dataclasses.asdict(settings).items()
        if value != ""
    }
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
    return f'[store]\nkind = "rados"\n\n[rados]\n{lines}'


@asynccontextmanager
async def _asked(address: str, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    host, connector = address, None
    if address.startswith("unix:"):
        host, connector = "remora", aiohttp.UnixConnector(address.removeprefix("unix:"))
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"http://{host}{path}") as answer:
        yield answer
