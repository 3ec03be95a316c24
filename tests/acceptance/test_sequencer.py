"""`remora sequencer` as a process: killed, frozen, replaced, stopped; and its protocol on the wire."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devkit.clusters.certificates import certificate
from devkit.processes.daemon import Ended, Sections, rados_section, write_config
from devkit.processes.processes import freeze
from devkit.waits import PATIENT_S
from remora.client import SequencerClient, SequencerUnavailable
from remora.config import RadosSettings
from remora.model.exits import Exit
from remora.model.log import LogName
from support.sequencer_process import a_server, command

IDS, LOG = LogName(b"remora", b"ids"), LogName(b"remora", b"orders")
NEXT = bytes.fromhex("00000011 0801 1206 72656d6f7261 1a03 696473 2001".replace(" ", ""))
"""`next` of the log remora/ids in epoch 1, as ZLog's client of 2014 writes it."""
LONG_S, SHORT_S = 600, 1
"""Leases: one that no test outlives, for the locks of a server that was killed are dead at once, and one to wait for.
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket, with a configuration, a log and a counter."""
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        path = Path(name)
        configure(path, LONG_S)
        for log in ("ids", "orders"):
            kind = "counter" if log == "ids" else "log"
            assert command(path, "log", "create", log, "--kind", kind).code == 0
        yield path


def configure(folder: Path, lease_s: int) -> None:
    """Write the folder's configuration."""
    (folder / "remora.toml").write_text(
        f'[store]\nkind = "sqlite"\n[sqlite]\ndirectory = "{folder}/queues"\nfiles = 1\n'
        f'[sequencer]\nlisten = "unix:{folder}/one.sock"\nlease = "{lease_s}s"\n'
        f'admin_listen = "unix:{folder}/admin.sock"\n'
    )


def asked(address: str, frames: bytes, replies: int) -> list[bytes]:
    """The first replies to these bytes, with their lengths."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENT_S)
        connection.connect(address.removeprefix("unix:"))
        connection.sendall(frames)
        stream = connection.makefile("rb")
        found: list[bytes] = []
        while len(found) < replies:
            size = stream.read(4)
            found.append(size + stream.read(int.from_bytes(size, "big")))
        return found


async def test_the_bytes_of_zlogs_client_are_answered(folder: Path) -> None:
    """Its requests are answered with INIT_LOG until the log is registered, and then with 1, 2, 3, in order."""
    async with a_server(folder) as server:
        async with server.client() as client:
            assert await client.tail(IDS) == (1, 0)

        assert asked(server.address, NEXT * 3, 3) == [
            bytes.fromhex("000000020801"), bytes.fromhex("000000020802"), bytes.fromhex("000000020803")
        ]  # fmt: skip
        assert asked(server.address, NEXT.replace(b"ids", b"idz"), 1) == [bytes.fromhex("0000000408001001")]


async def test_a_clean_stop_leaves_no_hole(folder: Path) -> None:
    """The next server of a counter goes on with the very next number, in a later epoch."""
    async with a_server(folder) as server, server.client() as client:
        assert [await client.next(IDS) for _ in range(3)] == [(1, 1), (1, 2), (1, 3)]
        assert await server.ended(signal.SIGTERM) == Exit.OK

    async with a_server(folder) as server, server.client() as client:
        assert await client.next(IDS) == (2, 4)


async def test_no_position_is_handed_out_twice_over_kills(folder: Path) -> None:
    """However often the server is killed under pipelined load: the numbers of a counter are unique, and grow."""
    seen: list[int] = []
    for _ in range(4):
        async with a_server(folder) as server, server.client() as client:
            before, last = len(seen), max(seen, default=0)

            async def ask(client: SequencerClient = client) -> None:
                with suppress(asyncio.CancelledError):
                    while True:
                        seen.append((await client.next(IDS)).position)

            askers = [asyncio.ensure_future(ask()) for _ in range(50)]
            async with asyncio.timeout(PATIENT_S):
                while len(seen) < before + 2000:
                    seen.append((await client.next(IDS)).position)
            await server.ended(signal.SIGKILL)
            for each in askers:
                each.cancel()
            await asyncio.gather(*askers)
            assert min(seen[before:]) > last

    assert len(set(seen)) == len(seen)


async def test_a_thawed_server_hands_nothing_out(folder: Path) -> None:
    """While one is frozen past its lease another serves; thawed, it answers INIT_LOG to requests that wait in it."""
    configure(folder, SHORT_S)
    async with a_server(folder) as frozen, a_server(folder, "two") as other:
        async with frozen.client() as client:
            first = await client.next(IDS)
        await freeze([frozen.process.pid])
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.settimeout(PATIENT_S)
            waiting.connect(frozen.address.removeprefix("unix:"))
            waiting.sendall(NEXT * 2)
            async with other.client() as client:
                second = await client.next(IDS)
            frozen.process.send_signal(signal.SIGCONT)

            answer = waiting.recv(8)
            while len(answer) < 16:
                answer += waiting.recv(16 - len(answer))

        assert answer == bytes.fromhex("0000000408001001") * 2
        assert first.epoch < second.epoch
        assert second.position > first.position


async def test_entries_and_seals_by_command(folder: Path) -> None:
    """`append` asks the sequencer, `fill` refuses what was not handed out, `read` and its exit codes tell what stands
    there, and a sealed epoch is stale."""
    async with a_server(folder):

        def run(*words: str, data: bytes = b"") -> tuple[int, bytes]:
            done = command(folder, "log", *words, data=data)
            return done.code, done.out

        assert await asyncio.to_thread(run, "append", "orders", data=b"first") == (0, b"1\n")
        assert await asyncio.to_thread(run, "read", "orders", "1") == (0, b"first")
        assert await asyncio.to_thread(run, "fill", "orders", "2") == (1, b"")
        assert await asyncio.to_thread(run, "next", "orders") == (0, b"2\n")
        assert await asyncio.to_thread(run, "fill", "orders", "2") == (0, b"")
        assert await asyncio.to_thread(run, "read", "orders", "2") == (3, b"")
        assert await asyncio.to_thread(run, "read", "orders", "3") == (4, b"")
        assert await asyncio.to_thread(run, "trim", "orders", "1") == (0, b"")
        assert await asyncio.to_thread(run, "read", "orders", "1") == (5, b"")
        assert await asyncio.to_thread(run, "seal", "orders") == (0, b"epoch 2\n")
        stale = await asyncio.to_thread(
            command, folder, "log", "append", "orders", "--position", "9", "--epoch", "1", data=b"x"
        )
        assert (stale.code, "stale epoch" in stale.err) == (Exit.FAILURE, True)
        assert (await asyncio.to_thread(run, "next", "orders", "-n", "2"))[0] == 0


async def of_ids(folder: Path) -> dict[str, Any]:
    """What `remora log show` says of a log."""
    found: dict[str, Any] = (await asyncio.to_thread(command, folder, "log", "show", "ids", "--json")).json
    return found


async def test_a_log_is_shown_as_its_own_sequencer_has_it(folder: Path) -> None:
    """At the address in its projection, though the configuration has another one; and once that server has ended."""
    async with a_server(folder, "other") as server, server.client() as client:
        await client.next_range(IDS, 5)
        async with asyncio.timeout(PATIENT_S):
            while (shown := await of_ids(folder))["state"] == "not served":
                pass  # a command gives a server 2 s
        assert (shown["address"], shown["state"], shown["tail"]) == (server.address, "serving epoch 1", 5)
        await server.ended(signal.SIGTERM)

    shown = await of_ids(folder)
    assert (shown["state"], shown["tail"], shown["stored_tail"]) == ("not served", None, 5)


async def test_rates_are_reported(folder: Path) -> None:
    """A line for each interval on standard output, in the words of the historical server."""
    async with a_server(folder, "one", "--report-interval", "1s") as server, server.client() as client:
        await client.next_range(IDS, 50)
        assert server.process.stdout is not None
        lines = [(await server.process.stdout.readline()).decode() for _ in range(2)]

    assert all(re.fullmatch(r"\d+ positions/s, \d+ requests/s, \d+ logs, \d+ connections\n", each) for each in lines)


async def test_clients_show_certificates_over_tcp(folder: Path) -> None:
    """With an authority a client over TCP needs its certificate, and the daemon hands positions out over TLS."""
    authority = certificate(folder / "authority", "authority")
    server, own = (certificate(folder / name, name, authority) for name in ("server", "client"))
    with (folder / "remora.toml").open("a") as file:
        file.write(
            f'tls_certificate = "{server.certificate}"\ntls_key = "{server.key}"\n'
            f'tls_client_ca = "{authority.certificate}"\n'
        )
    tls = ssl.create_default_context(cafile=str(authority.certificate))
    tls.load_cert_chain(own.certificate, own.key)
    async with a_server(folder, "tcp:127.0.0.1:0") as reached:
        async with SequencerClient([reached.address], tls=tls, timeout_s=PATIENT_S) as client:
            assert [await client.next(IDS) for _ in range(3)] == [(1, 1), (1, 2), (1, 3)]
        async with SequencerClient([reached.address], timeout_s=0.5) as client:
            with pytest.raises(SequencerUnavailable):
                await client.next(IDS)


async def test_the_admin_pages_tell_of_logs_and_clients(folder: Path) -> None:
    """Status names each log with its epoch, tail and reason; metrics count positions; one log in need is seen."""
    async with a_server(folder) as server, server.client() as client:
        await client.next_range(IDS, 50)
        for _ in range(64):  # one after the other, so in as many rounds
            await client.next(IDS)
        asked(server.address, NEXT.replace(b"ids", b"idz"), 1)
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(folder / "admin.sock"))) as session:

            async def page(path: str) -> tuple[int, str]:
                async with session.get(f"http://admin{path}") as answer:
                    return answer.status, await answer.text()

            code, status = await page("/-/status")
            logs = {each["log"]: each for each in json.loads(status)["logs"]}
            assert (code, logs["remora/ids"]["state"], logs["remora/ids"]["tail"]) == (200, "serving", 114)
            assert logs["remora/ids"]["epoch"] == 1
            assert "remora/idz" in logs
            assert [(await page(path))[0] for path in ("/-/live", "/-/ready")] == [200, 200]
            metrics = (await page("/metrics"))[1]
            assert 'remora_sequencer_positions_total{log="remora/ids"} 114.0' in metrics
            assert re.search(r'remora_sequencer_round_requests_bucket\{le="1.0"\} [3-9]', metrics)
            assert "remora_sequencer_connections 1.0" in metrics
            async with a_server(folder, "two") as other:  # its admin address is taken, and it serves all the same
                frame = NEXT.replace(b"ids", b"orders").replace(b"\x00\x00\x00\x11", b"\x00\x00\x00\x14")
                frame = frame.replace(b"\x1a\x03", b"\x1a\x06")
                assert asked(other.address, frame, 1) == [bytes.fromhex("0000000408001001")]


@pytest.mark.parametrize(
    ("listen", "key"), [("0.0.0.0:0", "sequencer.listen"), ("nowhere", "sequencer.listen")], ids=["reachable", "broken"]
)
def test_an_address_that_cannot_be_is_refused_by_name(folder: Path, listen: str, key: str) -> None:
    """With the exit code of a configuration that is refused."""
    done = command(folder, "sequencer", "--listen", listen)

    assert (done.code, key in done.err) == (Exit.CONFIG, True)


@pytest.mark.parametrize("name", ["one", "tcp:127.0.0.1:0"], ids=["unix", "tcp"])
async def test_a_clean_stop_under_load_loses_no_position(folder: Path, name: str) -> None:
    """Clients that send without end get every position that was handed out, and the next server goes on behind it."""
    async with a_server(folder, name) as server:
        async with server.client() as client:
            assert (await client.next(IDS)).position == 1
        streams = [await opened(server.address) for _ in range(2)]
        senders = [asyncio.create_task(send_without_end(writer)) for _, writer in streams]
        firsts = [await reader.readexactly(1 << 16) for reader, _ in streams]
        stopping = asyncio.create_task(server.ended(signal.SIGTERM))
        rests = await asyncio.gather(*(reader.read() for reader, _ in streams))
        for sender, (_, writer) in zip(senders, streams, strict=True):
            sender.cancel()
            writer.transport.abort()
        assert await stopping == Exit.OK

    found = sorted(each for first, rest in zip(firsts, rests, strict=True) for each in positions(first + rest))
    assert found == list(range(2, len(found) + 2))
    async with a_server(folder) as server, server.client() as client:
        assert await client.next(IDS) == (2, len(found) + 2)


async def opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a server."""
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def send_without_end(writer: asyncio.StreamWriter) -> None:
    """Requests for positions, until the server has gone."""
    with suppress(OSError):
        while True:
            writer.write(NEXT * 64)
            await writer.drain()
            await asyncio.sleep(0)  # drain gives the loop to no reader while the server takes all that comes


def positions(stream: bytes) -> Iterator[int]:
    """Of whole replies those with a position, without a status."""
    place = 0
    while place < len(stream):
        size = int.from_bytes(stream[place : place + 4], "big")
        body, place = stream[place + 4 : place + 4 + size], place + 4 + size
        if body[2:3] != b"\x10" or body[1]:
            yield sum((byte & 0x7F) << 7 * shift for shift, byte in enumerate(body[1:]))


async def test_a_flood_of_unknown_logs_stops_no_other(folder: Path) -> None:
    """While one connection asks for thousands of logs that do not exist, another one gets its positions."""
    frames = b"".join(NEXT.replace(b"ids", b"%03x" % number) for number in range(4096))

    async with a_server(folder) as server, server.client() as client:
        await client.next(IDS)
        flood: Sequence[bytes] = await asyncio.to_thread(asked, server.address, frames, 4096)

        assert set(flood) == {bytes.fromhex("0000000408001001")}
        assert (await client.next(IDS)).position == 2


@pytest.fixture
def in_rados(folder: Path, settings: RadosSettings) -> Path:
    """The folder with a configuration for logs in a cluster, and leases that no test outlives."""
    sections: Sections = {
        "store": {"kind": "rados"},
        "rados": rados_section(replace(settings, mount_timeout_s=60.0)),  # a command tries once
        "sequencer": {"lease": "10m", "run_directory": f"{folder}/run", "admin_listen": f"unix:{folder}/admin"},
    }
    write_config(folder / "remora.toml", sections)
    for log in ("ids", "orders"):
        kind = "counter" if log == "ids" else "log"
        assert command(folder, "log", "create", log, "--kind", kind, "--width", "4").code == 0
    return folder


@pytest.mark.guarantee("positions-of-a-log")
@pytest.mark.ceph
async def test_logs_in_rados_outlive_a_kill(in_rados: Path) -> None:
    """By the commands of a shell, over a SIGKILL: the host's next server takes the logs though their lease goes on, in
    the next epoch, behind all that was written; and what was appended is there."""
    ids, orders = (LogName(b"default.rgw.log", name) for name in (b"ids", b"orders"))
    async with a_server(in_rados, "one") as server, server.client() as client:
        token = await client.next(orders)
        assert (await asyncio.to_thread(append, in_rados, token.position, token.epoch)).out == b"1\n"
        late, first = await client.next(orders), await client.next(ids)
        await server.ended(signal.SIGKILL)

    async with a_server(in_rados, "two") as server, server.client() as client:
        assert await client.next(orders) == (2, 2)
        assert await client.next(ids) == (2, (1 << 20) + first.position)

    refused = await asyncio.to_thread(append, in_rados, late.position, late.epoch)
    assert (refused.code, "stale epoch" in refused.err) == (Exit.FAILURE, True)
    read = await asyncio.to_thread(command, in_rados, "log", "read", "orders", "1")
    assert (read.code, read.out) == (0, b"first")
    shown = await asyncio.to_thread(command, in_rados, "log", "list")
    assert shown.out.splitlines()[0].split() == [b"LOG", b"KIND", b"EPOCH", b"SEQUENCER"]
    assert [b"default.rgw.log/orders", b"log", b"2"] in [each.split()[:3] for each in shown.out.splitlines()]


def append(folder: Path, position: int, epoch: int) -> Ended:
    """Write at a position with its token, by command."""
    words = ["log", "append", "orders", "--position", str(position), "--epoch", str(epoch)]
    return command(folder, *words, data=b"first")
