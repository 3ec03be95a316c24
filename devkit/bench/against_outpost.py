"""A backlog posted to one nginx by the daemon and by Hookdeck Outpost (Go), in turns: one destination, the same bodies.

Outpost runs as one process with Redis, PostgreSQL and a RabbitMQ that has one scheduler. Its backlog stands in the
RabbitMQ queue from which it takes events that programs publish; it works on 100 at once in each of its steps, where its
default is 1. The daemon's backlog stands in the eleven queues of a topic of the embedded store. Rates count from the
first request that nginx has answered to the last one. Processor time and memory are those of all processes of a side,
its start included. In a last turn each side gets SIGKILL when half of the requests have come, and starts again: what
comes beyond the backlog are copies. Outpost promises no order, so none is looked at.

Its sources are built by Go, once: those of `COMMIT` in the folder `sources` beside the programs, where git puts them.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from devkit.bench import programs
from devkit.bench.backlog import store_backlog
from devkit.bench.clusters import BenchError
from devkit.bench.embedded import Embedded, own_topic
from devkit.bench.errand import Sent, medians
from devkit.bench.load import Load, bodies
from devkit.clusters.rabbitmq import RabbitMQ, running_rabbitmq
from devkit.clusters.state import cache_home
from devkit.processes.ports import free_port
from devkit.processes.processes import cpu_s, memory_bytes
from remora.model.topic import Target

OUTPOST, REMORA = "outpost", "remora"
COMMIT = "f67ae011b287ff2588cb06699d808a69bba6ab4d"
"""Of August 2026, behind release 1.2.0."""

WANTED = 20.0
"""The daemon's rate beside Outpost's."""

AT_ONCE = 100
"""What Outpost does at once of each step."""

MOST = 20_000
"""Entries of a turn of Outpost's, which would take minutes for more."""

KEY = "bench"
TENANT = "bench"
PUBLISHED = "published"
STALLED_S = 120.0


@dataclass(frozen=True)
class Row:
    """The medians of a side's turns, and how many requests came beyond the backlog around a SIGKILL."""

    server: str
    rate: float
    cpu_us: float
    receiver_cpu_us: float
    peak_rss_bytes: float
    copies: int


@dataclass(frozen=True)
class Side:
    """A backlog that waits; `started` gives the process that delivers it, and those of the services that it needs."""

    entries: int
    started: Callable[[], AbstractContextManager[tuple[subprocess.Popen[bytes], Sequence[int]]]]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    program = outpost_programs()
    turns: dict[str, list[Sent]] = {OUTPOST: [], REMORA: []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="remora-bench-")))
        folder.chmod(0o755)  # PostgreSQL has a user of its own
        sink = stack.enter_context(programs.sink(folder))
        peer = stack.enter_context(_services(folder, program, sink.url))
        make: dict[str, Callable[[argparse.Namespace], Side]] = {
            OUTPOST: peer.side,
            REMORA: partial(_remora, folder, sink.url),
        }
        for number in range(options.rounds):
            for server in (OUTPOST, REMORA) if number % 2 == 0 else (REMORA, OUTPOST):
                turns[server].append(_turn(make[server](options), sink))
                _print_turn(server, turns[server][-1])
        copies = {server: _killed(each(options), sink) for server, each in make.items()}
    rows = [row(server, turns[server], copies[server]) for server in turns]
    value = rows[1].rate / rows[0].rate
    print_table(rows, value)
    return {
        "version": COMMIT,
        "turns": {server: list(map(asdict, each)) for server, each in turns.items()},
        "rows": list(map(asdict, rows)),
        "ratio": {"wanted": WANTED, "value": value},
    }


# ------------------------------------------------------------------------------------------------ turns


def _turn(side: Side, sink: programs.Sink) -> Sent:
    """Deliver the backlog, and look every 50 ms how many requests came."""
    asked, first = _Asked(sink), sink.requests()
    with side.started() as (process, services):
        pids = [process.pid, *services]
        asked.since(first)
        cpu, receiver_cpu = sum(map(cpu_s, services)), cpu_s(sink.pid)
        began, level = _until(asked, 1)
        ended, last = _until(asked, side.entries)
        cpu, receiver_cpu = sum(map(cpu_s, pids)) - cpu, cpu_s(sink.pid) - receiver_cpu
        peak = sum(memory_bytes(pid)[1] for pid in pids)
    if last != side.entries:
        raise BenchError(f"{last:,} requests came for {side.entries:,} entries")
    per_event = 1e6 / side.entries
    return Sent(
        (last - level) / (ended - began), {"sender": cpu * per_event, "receiver": receiver_cpu * per_event}, peak
    )


def _killed(side: Side, sink: programs.Sink) -> int:
    """Requests beyond the backlog where what delivers it gets SIGKILL in the middle, when all of it has come."""
    asked = _Asked(sink)
    asked.since(sink.requests())
    with side.started() as (process, _):
        _until(asked, side.entries // 2)
        programs.kill(process)
    with side.started():
        _until(asked, side.entries)
        return _at_rest(asked) - side.entries


class _Asked:
    """How many requests a receiver got since a moment, without those that ask."""

    def __init__(self, sink: programs.Sink) -> None:
        self._sink, self._own, self._first = sink, 0, 0

    def since(self, count: int) -> None:
        """Count from here on."""
        self._own, self._first = 0, count

    def __call__(self) -> int:
        self._own += 1
        return self._sink.requests() - self._first - self._own


def _until(asked: _Asked, count: int) -> tuple[float, int]:
    """When so many requests had come, and how many then. Raises BenchError when none comes for two minutes."""
    level, moved = asked(), time.monotonic()
    while level < count:
        time.sleep(0.05)
        now = asked()
        if now != level:
            level, moved = now, time.monotonic()
        elif time.monotonic() > moved + STALLED_S:
            raise BenchError(f"{level:,} of {count:,} requests came, and then none for {STALLED_S:.0f} s")
    return time.monotonic(), level


def _at_rest(asked: _Asked, quiet_s: float = 5.0) -> int:
    """How many requests have come by the time that none comes for `quiet_s`. Copies come late."""
    level, moved = asked(), time.monotonic()
    while time.monotonic() < moved + quiet_s:
        time.sleep(0.1)
        now = asked()
        if now != level:
            level, moved = now, time.monotonic()
    return level


# ------------------------------------------------------------------------------------------- the daemon


def _remora(folder: Path, url: str, options: argparse.Namespace) -> Side:
    place = folder / uuid.uuid4().hex[:8]
    place.mkdir()
    more = f"\n[supervisor]\nworkers = {options.workers}\n"
    embedded = Embedded(place, queue_bytes=1 << 30, more=more)

    async def fill() -> None:
        async with embedded.store() as store:
            topic = await store.own_topics.create(own_topic("bench", url, 11))
            await store_backlog(store, topic, options.entries, options.payload, 0)

    @contextmanager
    def started() -> Iterator[tuple[subprocess.Popen[bytes], Sequence[int]]]:
        with programs.remora_on(embedded) as process:
            yield process, ()

    asyncio.run(fill())
    return Side(options.entries, started)


# ---------------------------------------------------------------------------------------------- Outpost


def outpost_programs() -> Path:
    """The folder of Outpost's programs as Go builds them, once. Raises BenchError for what is missing."""
    missing = [
        name for name in ("redis-server", "rabbitmq-server") if shutil.which(name, path="/usr/bin:/usr/sbin") is None
    ]
    if missing or _postgresql() is None:
        raise BenchError(f"{(missing or ['postgresql'])[0]} is missing: install Debian's package of this name")
    folder = cache_home() / f"{OUTPOST}-{COMMIT[:12]}"
    built, sources = folder / "bin", folder / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (built / "outpost").exists():
            return built
        go, git = shutil.which("go"), shutil.which("git")
        if go is None or git is None:
            raise BenchError(f"{OUTPOST} is missing, and so is what builds it: install Go 1.26 and git")
        if not sources.exists():
            fetched = folder / "fetched"
            shutil.rmtree(fetched, ignore_errors=True)
            _done([git, "init", "--quiet", str(fetched)])
            _done(
                [
                    git,
                    "-C",
                    str(fetched),
                    "fetch",
                    "--quiet",
                    "--depth=1",
                    "https://github.com/hookdeck/outpost",
                    COMMIT,
                ]
            )
            _done([git, "-C", str(fetched), "checkout", "--quiet", "FETCH_HEAD"])
            fetched.rename(sources)
        print(f"building {OUTPOST}, which takes minutes", flush=True)
        for name in ("outpost-server", "outpost"):
            _done([go, "build", "-C", str(sources), "-o", str(built / name), f"./cmd/{name}"])
    return built


def _postgresql() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


def _done(argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env and dict(env))
    if done.returncode:
        raise BenchError(f"{' '.join(argv[:3])} failed: {(done.stderr + done.stdout).strip()[-500:]}")


@dataclass(frozen=True)
class _Outpost:
    """Outpost's services, with a tenant and its one destination; the program itself runs in turns only."""

    built: Path
    folder: Path
    broker: RabbitMQ
    services: Sequence[int]
    env: Mapping[str, str]

    def side(self, options: argparse.Namespace) -> Side:
        """A backlog in the queue that it takes events from."""
        entries = min(options.entries, MOST)
        load = Load(0, Target("http://nobody", "", "bench"), options.payload)
        with self.broker.channel() as channel:
            for body in bodies(list(load.entries(0, entries))):
                event = b'{"tenant_id":"%s","topic":"bench","data":%s}' % (TENANT.encode(), body)
                channel.basic_publish("", PUBLISHED, event)
        return Side(entries, self.started)

    @contextmanager
    def started(self) -> Iterator[tuple[subprocess.Popen[bytes], Sequence[int]]]:
        """The program, whose services run anyway."""
        argv = ["env", *(f"{name}={value}" for name, value in self.env.items()), str(self.built / "outpost-server")]
        with programs.running(argv, self.folder / "outpost.log") as process:
            yield process, self.services

    def ask(self, method: str, path: str, body: object = None) -> None:
        """One request to its API. Raises OSError where nothing answers, and BenchError for a refusal."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.env['API_PORT']}/api/v1{path}"
        try:
            urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=10).close()
        except urllib.error.HTTPError as error:
            raise BenchError(f"{OUTPOST} refuses {method} {path}: {error.read()[:300]!r}") from error


@contextmanager
def _services(folder: Path, built: Path, url: str) -> Iterator[_Outpost]:
    with ExitStack() as stack:
        redis_port, api_port = free_port(), free_port()
        redis = stack.enter_context(
            programs.running(["redis-server", "--bind", "127.0.0.1", "--port", str(redis_port), "--dir", str(folder)],
                             folder / "redis.log")
        )  # fmt: skip
        database, database_port = stack.enter_context(_running_postgresql(folder))
        broker = stack.enter_context(running_rabbitmq())
        with broker.channel() as channel:
            channel.queue_declare(PUBLISHED, durable=True)
        server = f"amqp://guest:guest@{broker.address}"
        env = {
            "API_PORT": str(api_port), "API_KEY": KEY, "API_JWT_SECRET": KEY,
            "AES_ENCRYPTION_SECRET": "0123456789abcdef",
            "TOPICS": "bench", "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(redis_port), "DISABLE_TELEMETRY": "true",
            "POSTGRES_URL": f"postgres://outpost@127.0.0.1:{database_port}/postgres?sslmode=disable",
            "RABBITMQ_SERVER_URL": server, "PUBLISH_RABBITMQ_SERVER_URL": server, "PUBLISH_RABBITMQ_QUEUE": PUBLISHED,
            "PUBLISH_MAX_CONCURRENCY": str(AT_ONCE), "DELIVERY_MAX_CONCURRENCY": str(AT_ONCE),
            "LOG_MAX_CONCURRENCY": str(AT_ONCE), "GIN_MODE": "release", "LOG_LEVEL": "warn",
        }  # fmt: skip
        peer = _Outpost(built, folder, broker, [redis.pid, database.pid, broker.pid], env)
        _done(
            [str(built / "outpost"), "migrate", "apply", "--yes"],
            {"PATH": os.environ["PATH"], "HOME": str(folder), **env},
        )
        with peer.started():
            programs.answering(partial(peer.ask, "GET", "/healthz"), OUTPOST, folder / "outpost.log")
            peer.ask("PUT", f"/tenants/{TENANT}")
            webhook = {"type": "webhook", "topics": ["bench"], "config": {"url": url}}
            peer.ask("POST", f"/tenants/{TENANT}/destinations", webhook)
        yield peer


@contextmanager
def _running_postgresql(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server of one's own, which root may not run itself."""
    binaries, place, port = _postgresql(), folder / "postgresql", free_port()
    assert binaries is not None
    place.mkdir()
    user = pwd.getpwnam("nobody")
    prefix = []
    if os.geteuid() == 0:
        os.chown(place, user.pw_uid, user.pw_gid)
        prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
    data = str(place / "data")
    _done([*prefix, str(binaries / "initdb"), "-D", data, "-U", "outpost", "-A", "trust"])
    argv = [*prefix, str(binaries / "postgres"), "-D", data, "-p", str(port), "-k", str(place), "-h", "127.0.0.1"]
    with programs.running(argv, folder / "postgresql.log") as process:
        ready = [str(binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
        programs.answering(partial(_ready, ready), "postgresql", folder / "postgresql.log")
        yield process, port


def _ready(argv: Sequence[str]) -> None:
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        raise OSError


# ------------------------------------------------------------------------------------------------ figures


def row(server: str, turns: Sequence[Sent], copies: int) -> Row:
    """The medians of the turns."""
    found = medians(turns)
    return Row(server, found.rate, found.cpu_us["sender"], found.cpu_us["receiver"], found.peak_rss_bytes, copies)


def print_table(rows: Sequence[Row], value: float) -> None:
    """Both rows, as a table of Markdown; the ratios are to the first one."""
    print("| server | events/s | ratio | CPU, µs an event | ratio | nginx, µs | MB | after a SIGKILL: copies |")
    print("|---|---|---|---|---|---|---|---|")
    for each in rows:
        print(
            f"| {each.server} | {each.rate:,.0f} | {each.rate / rows[0].rate:.2f} | {each.cpu_us:.1f} | "
            f"{each.cpu_us / rows[0].cpu_us:.2f} | {each.receiver_cpu_us:.1f} | {each.peak_rss_bytes / 1e6:.0f} | "
            f"{each.copies:,} |"
        )
    print(f"beside Outpost: {value:.1f} of {WANTED:.0f}   {'reached' if value >= WANTED else 'MISSED'}")


def _print_turn(server: str, turn: Sent) -> None:
    print(
        f"{server:12} {turn.rate:9,.0f} events/s   CPU us an event: {turn.cpu_us['sender']:.1f}, nginx "
        f"{turn.cpu_us['receiver']:.1f}   {turn.peak_rss_bytes / 1e6:,.0f} MB",
        flush=True,
    )
