"""The ingest API of a real daemon on the embedded store: from a request to Kafka, and through signals."""

from __future__ import annotations

import asyncio
import io
import json
import mmap
import signal
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.processes.daemon import PATIENT, Daemon, Options, Sections, merged, remora, running_daemon, write_config
from devkit.readers.consumer import check, read_until
from remora.model.exits import Exit
from remora.process import host_load
from remora.servers import tokens
from support.ingest import Answer, ndjson, record, records

NOBODY = "kafka://127.0.0.1:1"
"""An endpoint that refuses every connection."""


def sections(folder: Path, **ingest: object) -> Options:
    """A configuration with an embedded store, whose queues are small, and few of whose entries may be under way."""
    given: Sections = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2, "queue_bytes": "64KiB"},
        "ingest": {"listen": f"unix:{folder}/ingest"} | ingest,
        "delivery": {"max_unacked": 20},
        "ownership": {"discovery_interval": "500ms"},
        "kafka": {"connect_timeout": "3s"},
    }
    return merged(PATIENT, given)


@asynccontextmanager
async def daemon_with_topic(
    folder: Path, endpoint: str, topic: str, **ingest: object
) -> AsyncIterator[tuple[Daemon, str]]:
    """A running daemon, and the path of its topic."""
    given: Sections = sections(folder, **ingest)
    async with running_daemon(folder, given) as daemon:
        done = await daemon.command("topic", "create", topic, "--endpoint", endpoint, "--shards", "3")
        assert done.code == Exit.OK, done.err
        yield daemon, f"/v1/topics/{topic}"


async def ask(
    daemon: Daemon, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """One request to the daemon's socket; what is not bytes is sent as JSON."""
    data: Any = body if isinstance(body, bytes) else json.dumps(body).encode()
    data = io.BytesIO(data) if len(data) > 1 << 20 else data  # aiohttp warns of large ones
    given = {"Content-Type": "application/json"} | dict(headers or {})
    connector = aiohttp.UnixConnector(daemon.ingest.removeprefix("unix:"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, f"http://remora{path}", data=data, headers=given) as answer,
    ):
        return Answer(answer.status, answer.headers, await answer.read())


async def test_events_of_both_protocols_reach_kafka_once_and_in_order(kafka: Kafka, folder: Path) -> None:
    """Stored in one step, by lines, repeated, and in two phases: each is delivered once, in its key's order."""
    topic = await create_topic(kafka.address, f"in-{uuid.uuid4().hex[:10]}")
    async with daemon_with_topic(folder, f"kafka://{kafka.address}", topic) as (daemon, path):
        once = {"Idempotency-Key": "first"}
        first = [await ask(daemon, "POST", f"{path}/events", records("a", "b"), once) for _ in range(2)]
        lines = ndjson(*(record("a", eventId=f"line-{number}") for number in range(50)))
        by_lines = await ask(daemon, "POST", f"{path}/events", lines, {"Content-Type": "application/x-ndjson"})
        room = {"events": [{"bucket": "b", "object": "a"}, {"bucket": "b", "object": "c"}]}
        reserved = await ask(daemon, "POST", f"{path}/reservations", room)
        wrong = await ask(daemon, "PUT", reserved.headers["Location"], records("a"))
        last = {"Records": [record("a", eventId="last-a"), record("c", eventId="last-c")]}
        committed = [await ask(daemon, "PUT", reserved.headers["Location"], last) for _ in range(2)]
        given_up = await ask(daemon, "POST", f"{path}/reservations", room)
        aborted = [await ask(daemon, "DELETE", given_up.headers["Location"]) for _ in range(2)]
        late = await ask(daemon, "PUT", given_up.headers["Location"], last)

        found = await read_until(kafka.address, topic, 54)

    assert [(each.status, each.json["repeated"]) for each in first] == [(200, False), (200, True)]
    assert (by_lines.status, by_lines.json["stored"]) == (200, 50)
    assert reserved.status == 201
    assert wrong.code == "ReservationMismatch"
    assert [(each.status, each.json["repeated"]) for each in committed] == [(200, False), (200, True)]
    assert [each.status for each in aborted] == [204, 204]
    assert late.code == "ReservationExpired"
    ids = ["id-a", "id-b", *(f"line-{number}" for number in range(50)), "last-a", "last-c"]
    verdict = check(found, ids, lambda each: each.event_id)
    assert verdict.is_clean, verdict
    of_a = [each.event_id for each in found if each.event["s3"]["object"]["key"] == "a"]
    assert of_a == [each for each in ids if each not in ("id-b", "last-c")]


async def test_a_full_queue_refuses_and_keeps_what_it_has(folder: Path) -> None:
    """503 SlowDown with Retry-After, nothing of the refused request is stored, and smaller ones still fit."""
    async with daemon_with_topic(folder, NOBODY, "t") as (daemon, path):
        big = record("a", opaqueData="x" * 8000)

        accepted = 0
        while (answer := await ask(daemon, "POST", f"{path}/events", {"Records": [big] * 3})).status == 200:
            accepted += answer.json["stored"]
        small = await ask(daemon, "POST", f"{path}/events", records("a"))
        stats = (await daemon.command("topic", "stats", "t", "--json")).json

    assert (answer.status, answer.code) == (503, "SlowDown")
    assert int(answer.headers["Retry-After"]) >= 1
    assert small.status == 200
    assert 0 < accepted < 9
    assert sum(each["entries"] for each in stats) == accepted + 1


async def test_a_burst_of_large_requests_waits_and_is_stored(folder: Path) -> None:
    """64 senders at once, of eight times the memory that two workers may use: all are answered 200, none is refused,
    the host holds no more than the bound and what its two workers admit at the same moment, and requests without a body
    are answered meanwhile."""
    count, most, largest = 64, 32 << 20, 4 << 20
    bounds = {"max_held_bytes": "32MiB", "max_request_bytes": "4MiB", "request_timeout": "10m"}
    async with daemon_with_topic(folder, NOBODY, "t", **bounds) as (daemon, path):
        bodies = [json.dumps(records(f"k{number}")).encode().ljust(largest) for number in range(count)]
        senders = [asyncio.ensure_future(ask(daemon, "POST", f"{path}/events", each)) for each in bodies]
        held = 0
        with host_cells(daemon) as cells:
            while not all(each.done() for each in senders):
                assert (await ask(daemon, "GET", path)).status == 200
                held = max(held, sum(cells[host_load.NBYTES :: host_load.CELLS]))
        waited = await daemon.metric("remora_ingest_wait_seconds_count")
        stats = (await daemon.command("topic", "stats", "t", "--json")).json

    assert [each.result().status for each in senders] == [200] * count
    assert sum(each["entries"] for each in stats) == count
    assert waited > 0
    assert 0 < held <= 2 * most


@contextmanager
def host_cells(daemon: Daemon) -> Iterator[memoryview]:
    """What all workers hold, in the memory that they share: metrics say it of each worker at another moment."""
    (shared, *_) = (
        each
        for each in Path(f"/proc/{daemon.process.pid}/fd").iterdir()
        if each.readlink().name.startswith("memfd:remora-ingest")
    )
    with (
        shared.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages,
        memoryview(pages) as raw,
        raw.cast("q") as cells,
    ):
        yield cells


async def test_tokens_are_read_again_on_sighup(folder: Path) -> None:
    """A token that `remora token` adds is let in from then on, and its topics only."""
    file = folder / "tokens"
    made = await remora("token", "sender", "--topics", "t", "--append", file)
    async with daemon_with_topic(folder, NOBODY, "t", tokens=str(file)) as (daemon, path):
        bearer = {"Authorization": f"Bearer {made.out.decode().strip()}"}
        assert (await ask(daemon, "POST", f"{path}/events", records("a"))).status == 401
        assert (await ask(daemon, "POST", f"{path}/events", records("a"), bearer)).status == 200
        assert (await ask(daemon, "POST", "/v1/topics/other/events", records("a"), bearer)).status == 403

        file.write_text(tokens.line_of("other", tokens.new_token(), "*"))
        daemon.send(signal.SIGHUP)

        async def refused() -> bool:
            return (await ask(daemon, "POST", f"{path}/events", records("a"), bearer)).status == 401

        await daemon.until(refused, "the end of the old token")


async def test_a_stop_ends_slow_clients_and_takes_the_socket_away(folder: Path) -> None:
    """SIGTERM while a body is half there: the daemon ends cleanly, and nobody can connect any more."""
    async with daemon_with_topic(folder, NOBODY, "t") as (daemon, path):
        socket = daemon.ingest.removeprefix("unix:")
        reader, writer = await asyncio.open_unix_connection(socket)
        head = f"POST {path}/events HTTP/1.1\r\nHost: remora\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")

        assert await daemon.stop() == Exit.OK
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection(socket)


async def test_a_second_daemon_on_the_socket_ends_with_the_reason(folder: Path) -> None:
    """It exits with 78, and the first one goes on."""
    async with daemon_with_topic(folder, NOBODY, "t") as (daemon, path):
        other = folder / "other"
        other.mkdir(mode=0o700)
        given = sections(other, listen=daemon.ingest) | {
            "admin": {"listen": f"unix:{other}/admin", "control_socket": f"{other}/control"}
        }
        second = await remora("run", "-c", write_config(other / "remora.toml", given))

        assert second.code == Exit.CONFIG
        assert "another process listens there" in second.err
        assert (await ask(daemon, "POST", f"{path}/events", records("a"))).status == 200
