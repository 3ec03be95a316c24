"""`remora send` beside a real daemon: everything is stored once and in order, or it says what is not."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.certificates import certificate
from devkit.processes.daemon import REMORA, Daemon, Ended, remora, running_daemon
from devkit.processes.ports import free_port
from devkit.waits import PATIENT_S
from remora.model.exits import Exit
from support.ingest import record

NOBODY = "kafka://127.0.0.1:1"
"""An endpoint that refuses every connection, so that everything stays where it was stored."""

KEYS = 13


@asynccontextmanager
async def embedded(folder: Path, **ingest: object) -> AsyncIterator[Daemon]:
    """A daemon on an embedded store, with a topic `t`."""
    sections: dict[str, Mapping[str, object]] = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
    }
    if ingest:
        sections["ingest"] = ingest
    async with running_daemon(folder, sections) as daemon:
        done = await daemon.command("topic", "create", "t", "--endpoint", NOBODY)
        assert done.code == Exit.OK, done.err
        yield daemon


def lines(numbers: range) -> bytes:
    """Records whose ids are their numbers, over some keys."""
    return b"".join(json.dumps(record(f"k{n % KEYS}", eventId=f"{n}")).encode() + b"\n" for n in numbers)


async def stored(daemon: Daemon) -> dict[str, list[int]]:
    """The numbers of the events of each key, in the order in which they wait."""
    found = defaultdict(list)
    dump = await daemon.command("topic", "dump", "t")
    assert dump.code == Exit.OK, dump.err
    for line in dump.out.splitlines():
        event = json.loads(line)["notification"]["Records"][0]
        found[event["s3"]["object"]["key"]].append(int(event["eventId"]))
    return found


def by_key(numbers: range) -> dict[str, list[int]]:
    """What `stored` gives when exactly these are there, in order."""
    return {f"k{key}": [n for n in numbers if n % KEYS == key] for key in range(KEYS) if key < len(numbers)}


def counts(ended: Ended) -> dict[str, Any]:
    """The counts that it printed with --json."""
    found: dict[str, Any] = ended.json
    return found


async def test_a_file_and_a_pipe(folder: Path) -> None:
    """A file is sent to where the configuration says, a pipe in two phases; a malformed line ends the sending."""
    (folder / "events").write_bytes(lines(range(1000)))
    async with embedded(folder) as daemon:
        first = await daemon.command("send", "t", folder / "events", "--connections", "3")
        second = await daemon.command("send", "t", "--two-phase", "--json", stdin=lines(range(1000, 1500)))
        bad = lines(range(1500, 1570)) + b"{}\n" + lines(range(1570, 1580))
        third = await daemon.command("send", "t", "-", "--json", "--batch", "7", stdin=bad)
        fourth = await daemon.command("send", "nobodys", "-", "--json", stdin=lines(range(5)))
        found = await stored(daemon)

    told = "read 1000, stored 1000, repeated 0, refused 0, not stored 0, unknown 0; fields dropped 0\n"
    assert (first.code, first.out.decode(), first.err) == (Exit.OK, told, "")
    assert (second.code, second.err) == (Exit.OK, "")
    assert counts(second)["stored"] == 500
    assert third.code == Exit.FAILURE
    assert third.err == "<stdin>:71: eventName: is missing\n"
    assert (counts(third)["read"], counts(third)["stored"], counts(third)["refused"]) == (71, 70, 1)
    assert fourth.code == Exit.FAILURE
    assert "there is no topic" in fourth.err
    assert (counts(fourth)["stored"], counts(fourth)["not_stored"]) == (0, 5)
    assert found == by_key(range(1570))


NOTIFIED = f"""
[topic.t]
endpoint = "{NOBODY}"
[topic.odd]
endpoint = "{NOBODY}"
[[notification]]
id = "all-but-three"
topics = ["t"]
filter = {{ regex = "k[0-24-9]+" }}
[[notification]]
id = "one"
topics = ["odd"]
filter = {{ suffix = "k1" }}
"""


async def test_events_without_a_topic(folder: Path) -> None:
    """With --matching a file and a pipe go where notifications send them, and what matches none is counted."""
    (folder / "topics.toml").write_text(NOTIFIED)
    (folder / "events").write_bytes(lines(range(130)))
    async with embedded(folder) as daemon:
        applied = await daemon.command("topic", "apply", "-f", folder / "topics.toml")
        assert applied.code == Exit.OK, applied.err
        first = await daemon.command("send", "--matching", folder / "events", "--connections", "3")
        second = await daemon.command("send", "--matching", "--two-phase", "--json", stdin=lines(range(130, 260)))
        found = await stored(daemon)

    told = "read 130, stored 120, unmatched 10, refused 0, not stored 0, unknown 0\n  odd: 10 stored\n  t: 120 stored\n"
    assert (first.code, first.out.decode()) == (Exit.OK, told), first.err
    assert second.code == Exit.OK, second.err
    assert (counts(second)["unmatched"], counts(second)["copies"]) == (10, {"odd": 10, "t": 120})
    assert found == {key: numbers for key, numbers in by_key(range(260)).items() if key != "k3"}


@asynccontextmanager
async def sending(daemon: Daemon, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A sender that reads from a pipe; ended afterwards, whatever becomes of it."""
    process = await asyncio.create_subprocess_exec(
        *REMORA, "send", "t", "--json", *options, "-c", str(daemon.config),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        process.stdin.close()


async def test_a_daemon_that_is_killed_and_comes_back(folder: Path) -> None:
    """Whatever it had stored when it was killed, in the end every event is there once and in order."""
    async with embedded(folder) as daemon, sending(daemon, "--batch", "2", "--timeout", "5m") as sender:
        assert sender.stdin is not None
        sender.stdin.write(lines(range(2000)))

        async def has_begun() -> bool:
            return await daemon.metric("remora_ingested_events_total") > 200

        await daemon.until(has_begun, "the first events")
        await daemon.kill_all()
        await daemon.start()
        out, err = await sender.communicate(lines(range(2000, 2500)))  # so it cannot have ended before the kill
        found = await stored(daemon)

    assert sender.returncode == Exit.OK, err.decode()
    told = json.loads(out)
    assert told["stored"] + told["repeated"] == 2500
    assert found == by_key(range(2500))


async def test_a_daemon_that_is_away(folder: Path) -> None:
    """After the time that is given nothing is stored, and the exit code says that nobody was there."""
    async with embedded(folder) as daemon:
        assert await daemon.stop() == Exit.OK
        ended = await daemon.command("send", "t", "--json", "--timeout", "0.3", stdin=lines(range(10)))

    assert ended.code == Exit.UNAVAILABLE
    assert "cannot connect" in ended.err
    assert (counts(ended)["read"], counts(ended)["not_stored"], counts(ended)["unknown"]) == (10, 10, 0)


async def test_tls_and_tokens(folder: Path) -> None:
    """With the right authority and token events are stored; without one of them nothing is, and nothing is repeated."""
    made = certificate(folder / "tls", "remora")
    token = await remora("token", "me", "--topics", "t", "--append", folder / "tokens")
    (folder / "token").write_bytes(token.out)
    (folder / "wrong").write_text("rmr_wrong\n")
    files = {"tls_certificate": str(made.certificate), "tls_key": str(made.key), "tokens": str(folder / "tokens")}
    send = ("send", "t", "-", "--json", "--timeout", "300")
    port = free_port()
    async with embedded(folder, listen=f"127.0.0.1:{port}", **files) as daemon:
        good = await daemon.command(
            *send, "--ca-file", made.certificate, "--token-file", folder / "token", stdin=lines(range(10))
        )
        unknown = await daemon.command(
            *send, "--ca-file", made.certificate, "--token-file", folder / "wrong", stdin=lines(range(10, 20))
        )
        untrusted = await daemon.command(*send, "--token-file", folder / "token", stdin=lines(range(20, 30)))
        without = await daemon.command(*send, "--ca-file", made.certificate, stdin=lines(range(30, 40)))
        found = await stored(daemon)

    assert (good.code, good.err, counts(good)["stored"]) == (Exit.OK, "", 10)
    assert (unknown.code, counts(unknown)["not_stored"]) == (Exit.NO_PERMISSION, 10)
    assert "token is not known" in unknown.err
    assert (untrusted.code, counts(untrusted)["not_stored"]) == (Exit.NO_PERMISSION, 10)
    assert "certificate" in untrusted.err
    assert (without.code, counts(without)["not_stored"]) == (Exit.NO_PERMISSION, 10)
    assert "--token-file" in without.err
    assert found == by_key(range(10))


async def test_records_are_sent_as_they_come_until_it_is_interrupted(folder: Path) -> None:
    """What a pipe gives is stored without waiting for a full batch; at SIGINT the counts are exact."""
    async with embedded(folder) as daemon, sending(daemon) as process:
        assert process.stdin is not None
        process.stdin.write(lines(range(30)))
        await daemon.counted(30, "remora_ingested_events_total")
        process.send_signal(signal.SIGINT)
        # Its input stays open: the end does not wait for more of it.
        async with asyncio.timeout(PATIENT_S):
            out = await process.stdout.read() if process.stdout else b""
            err = await process.stderr.read() if process.stderr else b""
            code = await process.wait()
        found = await stored(daemon)

    assert (code, err) == (Exit.FAILURE, b"remora: interrupted\n")
    told = json.loads(out)
    assert (told["read"], told["stored"], told["not_stored"], told["unknown"]) == (30, 30, 0, 0)
    assert found == by_key(range(30))


def test_a_terminal_is_shown_how_far_it_is(folder: Path) -> None:
    """Standard error shows a bar when it is a terminal; the counts stand alone on standard output."""
    (folder / "events").write_bytes(lines(range(10)))
    terminal, other_end = pty.openpty()
    command = (*REMORA, "send", "t", str(folder / "events"), "--to", f"unix:{folder}/nobody", "--timeout", "0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=other_end, env=dict(os.environ, TERM="xterm", COLUMNS="120")
    ) as process:
        os.close(other_end)
        shown = b"".join(iter(lambda: _read(terminal), b""))
        out = process.communicate(timeout=180)[0]
    os.close(terminal)

    assert process.returncode == Exit.UNAVAILABLE
    assert b"0 stored, 0/s" in shown
    assert shown.rstrip().endswith(b"cannot connect: No such file or directory; tried 1 time in 0 s")
    assert out == b"read 10, stored 0, repeated 0, refused 0, not stored 10, unknown 0; fields dropped 0\n"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # nobody has the other end any more
        return b""


@pytest.mark.full("a command's rare case")
async def test_an_input_without_records_still_needs_the_topic(folder: Path) -> None:
    """Sending nothing to a topic succeeds; to one that does not exist, or while the daemon is away, it fails."""
    async with embedded(folder) as daemon:
        done = await daemon.command("send", "t")
        missing = await daemon.command("send", "nosuch")
        await daemon.stop()
        away = await daemon.command("send", "t", "--timeout", "1s")

    assert (done.code, missing.code, away.code) == (Exit.OK, Exit.FAILURE, Exit.UNAVAILABLE)
    assert "nosuch" in missing.err
