"""`remora topic hold` and `resume` on an embedded store, beside what must mind a hold."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from devkit.processes.daemon import remora as in_a_process
from devkit.processes.daemon import write_config
from remora import app
from remora.config import load
from remora.metrics.figures import RoomFigures
from remora.metrics.series import RoomLeft
from remora.model.exits import Exit
from remora.model.member import WORKER_COOKIE, Member
from support.commands import Run, config, remora

__all__ = ["config", "remora"]


def configure(config: Path, admin: str) -> None:
    """Write the configuration of a store beside it, whose daemon answers at this address."""
    sqlite = {"directory": str(config.parent / "queues"), "files": 2}
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": sqlite, "admin": {"listen": admin}})


@contextmanager
def daemon_that_says(topics: list[dict[str, object]]) -> Iterator[str]:
    """Something with a daemon's status, in which these topics stand; its address."""
    parts: dict[str, object] = dict.fromkeys(("version", "draining", "workers", "shards", "left"))
    body = json.dumps(parts | {"topics": topics}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def topic(remora: Run, config: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs `remora topic ...` on an embedded store of this test alone, which has a topic `orders`."""
    configure(config, f"unix:{tmp_path}/nobody")

    def run(*words: str) -> Any:
        return remora("topic", *words, "-c", config)

    assert run("create", "orders", "--endpoint", "kafka://broker:9092", "--time-to-live", "2h").code == Exit.OK
    return run


def shown(topic: Callable[..., Any]) -> Any:
    return json.loads(topic("show", "orders", "--json").out).get("held", "")


def test_a_topic_is_held_and_resumed(topic: Callable[..., Any]) -> None:
    """Both commands say what they did; `topic show` has the hold while it lasts; a second hold replaces the first."""
    assert "is not held" in topic("resume", "orders").out.decode()
    held = topic("hold", "orders", "--reason", "a rebuild")
    assert held.code == Exit.OK, held.err
    first, room, expiry = held.out.decode().splitlines()
    assert first.startswith("topic orders is held by an operator until it is resumed: a rebuild; ")
    assert room.startswith("room: not known, since no daemon answers on this host")
    assert expiry == "remark: entries that are older than 2h00m become dead letters meanwhile"
    assert shown(topic) == "held by an operator until it is resumed: a rebuild"
    assert topic("list").out.decode().endswith("  remora; held by an operator until it is resumed: a rebuild\n")
    assert json.loads(topic("list", "--json").out)[0]["held"] == shown(topic)

    assert topic("hold", "orders", "--until", "2100-01-01T00:00:00+01:00").code == Exit.OK
    assert shown(topic) == "held by an operator until 2099-12-31 23:00:00Z"

    assert "topic orders is resumed after" in topic("resume", "orders").out.decode()
    assert shown(topic) == ""
    assert topic("list").out.decode().endswith("  remora\n")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (7380.0, "lasts 2h03m at its present growth; then the fullest queue refuses events"),
        (math.inf, "does not shrink at present; a full queue refuses events"),
        (None, "not known, since no worker of this host has looked at it; a full queue refuses events"),
    ],
    ids=["grows", "does not grow", "unknown"],
)
def test_a_hold_says_how_long_the_room_lasts(
    topic: Callable[..., Any], config: Path, seconds: float | None, said: str
) -> None:
    """`hold` has it from the daemon's figures of this topic: the time of its worst queue, or that it does not grow."""
    row: dict[str, object] = {"topic": "orders"}
    if seconds is not None:
        row["room"] = msgspec.to_builtins(RoomFigures.of(RoomLeft(1000, 2000, 0, seconds)))

    with daemon_that_says([{"topic": "other"}, row]) as address:
        configure(config, address)
        done = topic("hold", "orders")

    assert done.code == Exit.OK, done.err
    assert done.out.decode().splitlines()[1] == f"room: {said}"


def test_a_hold_that_is_over_is_none(topic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over a hold shows nowhere, keeps no topic from being drained, and needs no resume."""
    assert topic("hold", "orders", "--for", "2h").code == Exit.OK
    assert shown(topic) != ""
    later = time.time() + 7201
    monkeypatch.setattr(time, "time", lambda: later)

    assert shown(topic) == ""
    assert "is not held" in topic("resume", "orders").out.decode()
    assert topic("rm", "orders", "--drain").code == Exit.OK


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--until", "2001-01-01T00:00:00Z"], "over already"),
        (["--for", "0s"], "over already"),
        (["--for", "1h", "--until", "2100-01-01T00:00:00Z"], "exclude each other"),
        (["--until", "tomorrow"], "is not a time such as"),
        (["--for", "soon"], "--for"),
        (["--for", "300000000h"], "behind the year 9999"),
        (["--for", "9" * 400], "behind the year 9999"),
        (["--until", "9999-12-31T23:59:59-14:00"], "behind the year 9999"),
    ],
)
def test_wrong_ends_are_refused(topic: Callable[..., Any], words: list[str], said: str) -> None:
    """An end that has passed, that no date can say, that is given twice or that is no time is wrong usage, and nothing
    is held."""
    done = topic("hold", "orders", *words)

    assert done.code == Exit.USAGE
    assert said in done.err
    assert shown(topic) == ""


def test_a_held_topic_is_not_drained(topic: Callable[..., Any]) -> None:
    """`rm --drain` would wait for a delivery that does not come: it refuses at once and leaves the topic open; without
    a hold it goes."""
    topic("hold", "orders", "--reason", "a rebuild")

    refused = topic("rm", "orders", "--drain", "--timeout", "1h")

    assert refused.code == Exit.FAILURE
    assert "held by an operator until it is resumed: a rebuild" in refused.err
    assert "`remora topic resume orders`" in refused.err
    assert json.loads(topic("show", "orders", "--json").out)["closed"] is False
    topic("resume", "orders")
    assert topic("rm", "orders", "--drain").code == Exit.OK


def test_a_held_topic_is_removed(topic: Callable[..., Any]) -> None:
    """`rm` removes a held topic that is empty; one that is made anew under its name is not held."""
    topic("hold", "orders")

    assert topic("rm", "orders").code == Exit.OK
    assert topic("hold", "orders").code == Exit.FAILURE
    assert topic("create", "orders", "--endpoint", "kafka://broker:9092").code == Exit.OK
    assert shown(topic) == ""


def test_hosts_with_an_older_remora_are_named(topic: Callable[..., Any], config: Path) -> None:
    """A host whose workers know of no holds goes on delivering, and `hold` names it."""
    older = Member(f"{WORKER_COOKIE}a1/b/w", "a1", hostname="alpha")
    newer = Member(f"{WORKER_COOKIE}b2/b/w", "b2", hostname="beta", release="9")

    async def hold() -> str:
        async with app.store_of(load(config)) as store:
            await store.members.announce(older, 600)
            await store.members.announce(newer, 600)
            return (await in_a_process("topic", "hold", "orders", "-c", config)).out.decode()

    said = asyncio.run(hold())

    assert "remark: alpha (a1) runs an older remora, which goes on delivering what it owns" in said
    assert "beta" not in said


def test_a_topic_that_remora_does_not_deliver_is_not_held(topic: Callable[..., Any], remora: Run) -> None:
    """Of a topic that does not exist nothing is held, and the error names those that do."""
    done = topic("hold", "order")

    assert done.code == Exit.FAILURE
    assert "orders" in done.err


def test_explain_says_that_a_topic_is_held(topic: Callable[..., Any], remora: Run, config: Path) -> None:
    """Also while no daemon runs `explain` says until when and why a topic is held, and how it is resumed."""
    topic("hold", "orders", "--reason", "a rebuild")

    said = remora("explain", "orders", "-c", config).out.decode()

    assert "its topic is held by an operator until it is resumed: a rebuild" in said
    assert "try: remora topic resume orders" in said
