"""Events taken in over HTTP by the daemon and by durable-streams (Rust), each answered for after its sync, in turns.

One wrk sends the same requests to both: documents of one record, and batches of lines. The daemon stores them in a
topic, so it parses, validates and keys each event and chooses its shard. durable-streams appends to as many streams as
the topic has shards, in turn, with `--durability wal`; it checks that a document is JSON, and looks into no batch: that
is to its advantage. Each turn has a fresh server and directory, and what was answered is counted there afterwards.
Processor time and memory are those of all processes of a server.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import shutil
import statistics
import subprocess
import tempfile
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from devkit.bench import disk, programs
from devkit.bench.against_http_killed import Killed, Server, killed, print_killed
from devkit.bench.clusters import BenchError
from devkit.bench.embedded import NOBODY, Embedded
from devkit.bench.events import Bodies, Documents, content_type, write_wrk_script
from devkit.bench.ingest import Load
from devkit.bench.load import bodies
from devkit.bench.wrk import Answered, wrk
from devkit.clusters.state import cache_home
from devkit.processes.ports import free_port
from devkit.processes.processes import children_cpu_s, memory_bytes, spent
from remora.model.topic import Topic

STREAMS, REMORA = "durable-streams", "remora"
VERSION = "0.1.5"
SHARDS = 11
LOADS = (Load(1, 64), Load(100, 32))

MOST_CPU, LEAST_RATE = 3.5, 1.0
"""What single events may cost, and what batches must reach, as ratios to durable-streams."""


@dataclass(frozen=True)
class Turn:
    """One load on one server; `cpu_us` for an event, `others` are processors that everything else took."""

    rate: float
    p50_s: float
    p99_s: float
    cpu_us: Mapping[str, float]
    peak_rss_bytes: int
    others: float


@dataclass(frozen=True)
class Row:
    """The medians of a server's turns with one load."""

    load: str
    server: str
    rate: float
    cpu_us: float
    p50_s: float
    p99_s: float
    peak_rss_bytes: float


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    program = streams_program()
    turns: dict[str, dict[str, list[Turn]]] = {str(load): {STREAMS: [], REMORA: []} for load in LOADS}
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as name:
        syncs_per_s = disk.syncs_per_s(Path(name))
        print(f"the disk gives {syncs_per_s:,.0f} syncs/s", flush=True)
        for number in range(options.rounds):
            for load in LOADS:
                for server in (STREAMS, REMORA) if number % 2 == 0 else (REMORA, STREAMS):
                    place = Path(name) / uuid.uuid4().hex[:8]
                    place.mkdir()
                    turn = (
                        _remora(place, load, options) if server == REMORA else _streams(program, place, load, options)
                    )
                    turns[str(load)][server].append(turn)
                    _print_turn(load, server, turn)
                    shutil.rmtree(place)
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as name:
        after = list(_killed(program, Path(name), options))
    rows = [row(load, server, found) for load, servers in turns.items() for server, found in servers.items()]
    reached = goals(rows)
    _print_table(rows, reached)
    print_killed(after)
    return {
        "version": VERSION,
        "disk_syncs_per_s": syncs_per_s,
        "loads": {load: {server: list(map(asdict, found)) for server, found in servers.items()}
                  for load, servers in turns.items()},
        "rows": list(map(asdict, rows)),
        "goals": reached,
        "after_sigkill": list(map(asdict, after)),
    }  # fmt: skip


# --------------------------------------------------------------------------------------------- the servers


def streams_program() -> Path:
    """durable-streams as cargo builds it, once, into the folder of what is fetched. Raises BenchError without cargo."""
    folder = cache_home() / f"{STREAMS}-{VERSION}"
    program = folder / "bin" / f"{STREAMS}-server"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        cargo = shutil.which("cargo")
        if cargo is None:
            raise BenchError(f"{STREAMS} is missing, and so is cargo, which builds it: install Rust")
        print(f"building {STREAMS} {VERSION}, which takes minutes", flush=True)
        argv = [cargo, "install", "--quiet", "--locked", STREAMS, "--version", VERSION, "--root", str(folder)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"cargo does not build {STREAMS}: {done.stderr.strip()[-500:]}")
    return program


STREAM_PATHS = [f"/bench-{number}" for number in range(SHARDS)]


def _streams(program: Path, place: Path, load: Load, options: argparse.Namespace) -> Turn:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _streams_running(program, place, port, load) as process:
        found, turn = _measured(process.pid, url, STREAM_PATHS, place, load, options)
        stored_bytes = sum(int(_asked("HEAD", url + path, load).rpartition("_")[2]) for path in STREAM_PATHS)
    _check(load, found, stored_bytes / _request_bytes(load, options.payload))
    return turn


@contextmanager
def _streams_running(program: Path, place: Path, port: int, load: Load) -> Iterator[subprocess.Popen[bytes]]:
    """The server with its streams, which are made unless they are there."""
    url, log = f"http://127.0.0.1:{port}", place / "log"
    argv = [str(program), "--port", str(port), "--data-dir", str(place / "data"), "--durability", "wal"]
    with programs.running(argv, log) as process:
        programs.answering(lambda: urllib.request.urlopen(f"{url}/health", timeout=10).close(), STREAMS, log)
        for path in STREAM_PATHS:
            _asked("PUT", url + path, load)
        yield process


def _asked(method: str, url: str, load: Load) -> str:
    """The offset of a stream's end, after this request."""
    request = urllib.request.Request(url, method=method, headers={"Content-Type": content_type(load.batch)})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.headers["Stream-Next-Offset"])


def _request_bytes(load: Load, record_bytes: int) -> int:
    """What a request adds to a stream: documents are kept with a comma behind each, lines as they are."""
    if load.batch == 1:
        return len(Documents(record_bytes).next()) + 1
    return len(Bodies(load.batch, record_bytes).next())


def _remora(place: Path, load: Load, options: argparse.Namespace) -> Turn:
    embedded, topic = _made(place, options)
    with _remora_running(embedded) as process:
        paths = [f"/v1/topics/{topic.name}/events"] * SHARDS
        found, turn = _measured(process.pid, f"http://{embedded.ingest}", paths, place, load, options)
    _check(load, found, asyncio.run(embedded.entries(topic)) / load.batch)
    return turn


def _made(place: Path, options: argparse.Namespace) -> tuple[Embedded, Topic]:
    """A store with a topic, and a daemon's configuration."""
    more = f"\n[supervisor]\nworkers = {options.workers}\n"
    embedded = Embedded(place, queue_bytes=1 << 30, ingest=f"127.0.0.1:{free_port()}", more=more)
    (topic,) = asyncio.run(embedded.make_topics(["bench"], NOBODY, SHARDS))
    return embedded, topic


@contextmanager
def _remora_running(embedded: Embedded) -> Iterator[subprocess.Popen[bytes]]:
    with programs.remora_on(embedded) as process:
        asyncio.run(programs.listening(process, embedded))
        yield process


def _measured(
    pid: int, url: str, paths: Sequence[str], place: Path, load: Load, options: argparse.Namespace
) -> tuple[Answered, Turn]:
    script = place / "post.lua"
    write_wrk_script(script, options.payload, load.batch, paths)
    before = spent({"server": pid}) | {"generator": children_cpu_s()}
    found = wrk(script, url, load.connections, options.seconds)
    after = spent({"server": pid}) | {"generator": children_cpu_s()}
    used = {each: after[each] - before[each] for each in after}
    machine = used.pop("machine")
    used["generator"] += used.pop("bench")
    events = found.requests * load.batch
    return found, Turn(
        rate=events / found.seconds,
        p50_s=found.p50_s,
        p99_s=found.p99_s,
        cpu_us={each: seconds * 1e6 / events for each, seconds in used.items()},
        peak_rss_bytes=memory_bytes(pid)[1],
        others=max(0.0, machine - sum(used.values())) / found.seconds,
    )


def _check(load: Load, found: Answered, there: float) -> None:
    """Raise BenchError unless whole requests are there, those answered for; wrk leaves the last ones unanswered."""
    if there % 1 or not found.requests <= there <= found.requests + load.connections:
        raise BenchError(f"{load}: {found.requests:,} requests were answered for, and {there:,.2f} are there")


# --------------------------------------------------------------------------------------------- a SIGKILL


def _killed(program: Path, folder: Path, options: argparse.Namespace) -> Iterator[Killed]:
    """What stands in each server after a SIGKILL, with each load."""
    for load in LOADS:
        for make in (partial(_streams_killed, program), partial(_remora_killed, False), partial(_remora_killed, True)):
            place = folder / uuid.uuid4().hex[:8]
            place.mkdir()
            yield killed(load, make(place, load, options), options.payload)
            shutil.rmtree(place)


@contextmanager
def _killable(running: AbstractContextManager[subprocess.Popen[bytes]]) -> Iterator[Callable[[], None]]:
    with running as process:
        yield partial(programs.kill, process)


def _streams_killed(program: Path, place: Path, load: Load, _: argparse.Namespace) -> Server:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    return Server(
        name=STREAMS,
        url=url,
        paths=STREAM_PATHS,
        running=lambda: _killable(_streams_running(program, place, port, load)),
        keys=False,
        stored=lambda: [_bodies(_all_of(url + path), load) for path in STREAM_PATHS],
    )


def _all_of(url: str) -> Iterator[bytes]:
    """The parts of a stream, each of whole messages."""
    offset, is_all = "-1", None
    while not is_all:
        with urllib.request.urlopen(f"{url}?offset={offset}", timeout=60) as answer:
            offset, is_all = answer.headers["Stream-Next-Offset"], answer.headers["Stream-Up-To-Date"]
            yield answer.read()


def _bodies(parts: Iterable[bytes], load: Load) -> list[bytes]:
    """A stream's events: it is read as one array of documents, or as the lines that were sent."""
    if load.batch > 1:
        return b"".join(parts).splitlines()
    return [json.dumps(each, separators=(",", ":")).encode() for part in parts for each in json.loads(part)]


def _remora_killed(keys: bool, place: Path, _: Load, options: argparse.Namespace) -> Server:
    embedded, topic = _made(place, options)

    async def stored() -> list[list[bytes]]:
        async with embedded.store() as store:
            return [bodies([raw async for _, raw in store.inspection.dump(shard)]) for shard in topic.all_shards()]

    return Server(
        name=REMORA,
        url=f"http://{embedded.ingest}",
        paths=[f"/v1/topics/{topic.name}/events"],
        running=lambda: _killable(_remora_running(embedded)),
        keys=keys,
        stored=lambda: asyncio.run(stored()),
    )


# ------------------------------------------------------------------------------------------------ figures


def row(load: str, server: str, turns: Sequence[Turn]) -> Row:
    """The medians of the turns."""

    def median(figure: Callable[[Turn], float]) -> float:
        return statistics.median(map(figure, turns))

    return Row(
        load,
        server,
        rate=median(lambda turn: turn.rate),
        cpu_us=median(lambda turn: turn.cpu_us["server"]),
        p50_s=median(lambda turn: turn.p50_s),
        p99_s=median(lambda turn: turn.p99_s),
        peak_rss_bytes=median(lambda turn: turn.peak_rss_bytes),
    )


def goals(rows: Sequence[Row]) -> dict[str, dict[str, float | bool]]:
    """What is wanted of the ratios to durable-streams, of rows that come in pairs, and whether it is reached."""
    (single, our_single), (batch, our_batch) = zip(rows[::2], rows[1::2], strict=True)
    cpu, rate = our_single.cpu_us / single.cpu_us, our_batch.rate / batch.rate
    return {
        f"processor time, {single.load}": {"wanted": MOST_CPU, "value": cpu, "reached": cpu <= MOST_CPU},
        f"events/s, {batch.load}": {"wanted": LEAST_RATE, "value": rate, "reached": rate >= LEAST_RATE},
    }


def _print_table(rows: Sequence[Row], reached: Mapping[str, Mapping[str, float | bool]]) -> None:
    print("| load | server | events/s | ratio | CPU, µs an event | ratio | p50 / p99, ms | MB |")
    print("|---|---|---|---|---|---|---|---|")
    for peer, ours in zip(rows[::2], rows[1::2], strict=True):
        for each in (peer, ours):
            print(
                f"| {each.load} | {each.server} | {each.rate:,.0f} | {each.rate / peer.rate:.2f} | {each.cpu_us:.1f} | "
                f"{each.cpu_us / peer.cpu_us:.1f} | {each.p50_s * 1e3:.1f} / {each.p99_s * 1e3:.1f} | "
                f"{each.peak_rss_bytes / 1e6:.0f} |"
            )
    for name, goal in reached.items():
        verdict = "reached" if goal["reached"] else "MISSED"
        print(f"{name:50} {goal['value']:6.2f} of {goal['wanted']}   {verdict}")


def _print_turn(load: Load, server: str, turn: Turn) -> None:
    print(
        f"{load!s:42} {server:16} {turn.rate:9,.0f} events/s   CPU us an event: {turn.cpu_us['server']:.1f}, "
        f"generator {turn.cpu_us['generator']:.1f}   p50 {turn.p50_s * 1e3:.1f} ms, p99 {turn.p99_s * 1e3:.1f} ms   "
        f"{turn.peak_rss_bytes / 1e6:,.0f} MB   others {turn.others:.2f} processors",
        flush=True,
    )
