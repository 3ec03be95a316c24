"""What stands in a server of events over HTTP after a SIGKILL in the middle: events, copies, and their order.

Each of `CLIENTS` writes an object of its own again and again, and sends its next request when the last one is answered.
One that gets no answer is sent again. When half of the requests are answered the server gets SIGKILL, and is started
again in its directory. In the end each event must be there; a copy is one that was stored and not answered for. The
daemon is measured once more with `Idempotency-Key`, by which it knows a repeat. durable-streams knows a repeat by its
producer's number, and says itself that a crash may lose that, so that a producer has to begin anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import aiohttp

from devkit.bench import load
from devkit.bench.clusters import BenchError
from devkit.bench.errand import Arrivals
from devkit.bench.events import content_type
from devkit.bench.ingest import Load
from devkit.bench.sigkill import AGAIN_S, over_a_sigkill
from remora.model.topic import Target

CLIENTS = 33
"""As many of them write into each of the load's buckets."""

EVENTS, LEAST_REQUESTS = 300, 20
"""Of each client: so many single events, and no fewer batches than this."""

NOT_NOW = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class Server:
    """A server that can be started again in its directory. `paths` are where the clients post, in turn.

    `running` gives what kills it. `keys` says whether each request has a key of its own, by which a repeat of it is
    known over a SIGKILL. `stored` reads what the running server has: the bodies of each queue, oldest first.
    """

    name: str
    url: str
    paths: Sequence[str]
    running: Callable[[], AbstractContextManager[Callable[[], object]]]
    keys: bool
    stored: Callable[[], Sequence[Sequence[bytes]]]


@dataclass(frozen=True)
class Killed:
    """What stood in a server after a SIGKILL, and how many requests got no answer and were sent again."""

    load: str
    server: str
    keys: bool
    events: int
    repeated: int
    copies: int
    inversions: int


def killed(of: Load, server: Server, payload_bytes: int) -> Killed:
    """One turn. Raises BenchError where an event is lost."""
    clients = _Clients(of.batch, server, payload_bytes)
    found = Arrivals()
    for queue in over_a_sigkill(server.running, clients.send, server.stored):
        found.add(queue)
    if found.events != clients.events:
        raise BenchError(f"{server.name}: {found.events:,} of {clients.events:,} events are there after a SIGKILL")
    repeated, inversions = clients.repeated, found.inversions or 0
    what = f"batches of {of.batch}" if of.batch > 1 else "single events"
    return Killed(what, server.name, server.keys, found.events, repeated, found.copies, inversions)


class _Clients:
    """Send all events, each client its own object's; they bear that the server is away for a while."""

    def __init__(self, batch: int, server: Server, payload_bytes: int) -> None:
        requests = max(LEAST_REQUESTS, EVENTS // batch)
        self.events, self.repeated = CLIENTS * requests * batch, 0
        entries = load.Load(0, Target("kafka://nobody", "", "bench"), payload_bytes, objects=CLIENTS)
        made = load.bodies(list(entries.entries(0, self.events)))
        self._bodies = [
            [b"".join(body + b"\n" for body in own[first : first + batch]) for first in range(0, len(own), batch)]
            for own in (made[client::CLIENTS] for client in range(CLIENTS))
        ]
        self._server, self._kind = server, {"Content-Type": content_type(batch)}
        self._answers, self._half = 0, CLIENTS * requests // 2

    async def send(self, half: Callable[[], None]) -> None:
        """Return when each request is answered; say when half of them are."""
        async with aiohttp.ClientSession(self._server.url) as session, asyncio.TaskGroup() as tasks:
            for client in range(CLIENTS):
                tasks.create_task(self._send_all(session, client, half))

    async def _send_all(self, session: aiohttp.ClientSession, client: int, half: Callable[[], None]) -> None:
        path = self._server.paths[client % len(self._server.paths)]
        for number, body in enumerate(self._bodies[client]):
            headers = self._kind | ({"Idempotency-Key": f"{client}-{number}"} if self._server.keys else {})
            tries = 1
            while not await _is_stored(session, path, body, headers):
                tries += 1
                await asyncio.sleep(AGAIN_S)
            self.repeated += tries > 1
            self._answers += 1
            if self._answers == self._half:
                half()


async def _is_stored(session: aiohttp.ClientSession, path: str, body: bytes, headers: Mapping[str, str]) -> bool:
    """Whether a request was answered for. Raises BenchError where it is refused for good."""
    try:
        async with session.post(path, data=body, headers=headers) as answer:
            if answer.ok:
                await answer.read()
                return True
            if answer.status in NOT_NOW:
                return False
            raise BenchError(f"{path}: {answer.status} {(await answer.text())[:300]}")
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
        return False


def print_killed(rows: Sequence[Killed]) -> None:
    """As a table of Markdown."""
    print("| load | server | repeats | after a SIGKILL: events | requests sent again | copies | out of order |")
    print("|---|---|---|---|---|---|---|")
    for each in rows:
        print(
            f"| {each.load} | {each.server} | {'with a key' if each.keys else 'bare'} | {each.events:,} | "
            f"{each.repeated:,} | {each.copies:,} | {each.inversions:,} |"
        )
