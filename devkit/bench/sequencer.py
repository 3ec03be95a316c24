"""How many positions a second the sequencer hands out, beside a naive server and the most that one thread can do.

All servers run at the same time and are measured in turn, in random order: the naive one (an asyncio protocol with
protobuf's objects), `remora sequencer` with its core in Python and compiled, and the ceiling (C, which parses nothing);
with --peer any other server that speaks the protocol and runs already, its log registered by a first request: ZLog's
C++ server, which docs/benchmarks-archive.md says how to build, or an older `remora sequencer`. The load is C, too
(seqload.c), and checks in every window that each position comes exactly once; a run that fails this has no figure.

On *one CPU* server and client share a processor: a rate there is requests for each second of processor time that the
two use together, which is what they reach with the processor to themselves. On *two CPUs* each has its own, and a rate
is requests a second; a ping-pong before and after tells whether the processors are near each other. A window in which
other processes took more than 0.15 of these processors is left out where there is a quieter one; figures without any
such are marked busy. Positions that come in ranges are positions, and never requests.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.bench.clusters import BenchError
from devkit.paths import ROOT
from remora.client import SequencerClient
from remora.codec.speedups import IMPLEMENTATION
from remora.model.log import LogKind, LogName

TITLE = "sequencer: positions a second, beside a naive server and the ceiling"

SOURCES = Path(__file__).resolve().parent
POOL = "remora"
NEAR_NS, FAR_NS = 200, 300
MOST_OTHERS = 0.15
CLIENT_TASKS = (1, 32, 1000)
RANGE = 64
RECOVERIES = 3
PERCENTILES = ("p50", "p99", "p999")


@dataclass(frozen=True)
class Load:
    """Connections with this many requests under way on each, over this many logs; `range` is 0 for single positions."""

    connections: int
    depth: int = 1
    logs: int = 1
    range: int = 0

    @property
    def name(self) -> str:
        what = f"{self.connections} synchronous" if self.depth == 1 else f"{self.connections} x {self.depth}"
        if self.logs > 1:
            what += f", {self.logs} logs"
        return what + (f", range of {self.range}" if self.range else "")


@dataclass(frozen=True)
class Server:
    """A server that runs; `logs` are POOL/NAME:EPOCH."""

    name: str
    address: str
    pid: int
    logs: Sequence[str]


@dataclass(frozen=True)
class Gate:
    """A ratio of two rates, or a rate, and what it must reach with the compiled core. `of` and `by` are servers' loads.

    `of` without a server is that of remora. `place` is "one" or "near", `by` is None for a rate alone.
    """

    name: str
    of: str
    by: tuple[str, str] | None
    wanted: float
    place: str = "one"


GATES = (
    Gate("32 synchronous / naive", "32 synchronous", ("naive", "32 synchronous"), 1.3),
    Gate("32 synchronous / ceiling", "32 synchronous", ("ceiling", "32 synchronous"), 0.85),
    Gate("8 x 16 / naive", "8 x 16", ("naive", "8 x 16"), 5),
    Gate("8 x 64 / ceiling", "8 x 64", ("ceiling", "8 x 64"), 0.95),
    Gate("8 x 16, 4 logs / naive on one", "8 x 16, 4 logs", ("naive", "8 x 16"), 5),
    Gate("client, 1,000 tasks / naive", "client, 1000 tasks", ("naive", "client, 1000 tasks"), 2.5, "near"),
    Gate("32 synchronous / peer", "32 synchronous", ("peer", "32 synchronous"), 1.0),
    Gate("8 x 16 / peer", "8 x 16", ("peer", "8 x 16"), 12),
    Gate("8 x 64 / peer", "8 x 64", ("peer", "8 x 64"), 30),
    Gate("32 synchronous, requests/s", "32 synchronous", None, 180_000),
    Gate("8 x 16, near, requests/s", "8 x 16", None, 500_000, "near"),
    Gate("8 x 16, far, requests/s", "8 x 16", None, 500_000, "far"),
    Gate("32 synchronous, range of 64, near, positions/s", "32 synchronous, range of 64", None, 3e6, "near"),
)

Windows = Mapping[str, Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]]
"""Of each placement, server and load."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench sequencer` understands."""
    parser.add_argument(
        "--store",
        choices=("sqlite", "rados"),
        default="sqlite",
        help="rados: positions and appends on Ceph instead, beside a counter object that is compared and swapped",
    )
    parser.add_argument("--seconds", type=float, default=1, help="of a window (default: 1)")
    parser.add_argument("--rounds", type=int, default=9, help="windows of each server and load (default: 9)")
    numbers = _numbers
    parser.add_argument("--connections", type=numbers, default=(1, 8, 32, 64), help="synchronous (default: 1,8,32,64)")
    parser.add_argument("--depth", type=numbers, default=(16, 64), help="requests under way (default: 16,64)")
    parser.add_argument("--logs", type=numbers, default=(1, 4), help="logs of a pipelined load (default: 1,4)")
    parser.add_argument(
        "--network", action="store_true", help="over two network namespaces with a delay between them; needs root"
    )
    parser.add_argument(
        "--workers",
        action="store_true",
        help="what a second worker brings, beside the ceiling's second process, and beside --peer",
    )
    parser.add_argument("--peer", metavar="HOST:PORT", help="another server that speaks the protocol, and runs")
    parser.add_argument("--peer-pid", type=int, metavar="PID", help="its process")
    parser.add_argument(
        "--peer-log", default=f"{POOL}/bench-0:1", metavar="POOL/NAME:EPOCH", help="(default: %(default)s)"
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures. Raises BenchError where a server breaks the protocol."""
    if (options.peer is None) != (options.peer_pid is None):
        raise BenchError("--peer and --peer-pid belong together")
    if options.store == "rados":
        from devkit.bench import seqrados  # it needs librados

        return seqrados.run(options)
    if options.network:
        from devkit.bench import seqnetwork  # it imports this module

        return seqnetwork.run(options.seconds, options.rounds)
    if options.workers:
        from devkit.bench import seqworkers  # it imports this module

        return seqworkers.run(options.seconds, options.rounds, _peer(options))
    cpus = sorted(os.sched_getaffinity(0))[-2:]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="remora-bench-")))
        programs = Programs(folder)
        servers = [
            stack.enter_context(_naive()),
            *(stack.enter_context(remora_on(folder, core, max(options.logs))) for core in cores()),
            stack.enter_context(programs.ceiling()),
        ]
        if (peer := _peer(options)) is not None:
            servers.append(peer)
        bench = Bench(options, programs, servers, cpus)
        windows = bench.windows()
        calls = bench.calls_per_request()
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as name:
        recovery = _recoveries(Path(name), min(RECOVERIES, options.rounds))
    figures = {place: {server: {load: summary(each, place) for load, each in loads.items()}
                       for server, loads in of.items()} for place, of in windows.items()}  # fmt: skip
    found = {"figures": figures, "calls": calls, "recovery_s": recovery, "gates": gates(figures)}
    _print(found)
    return found


def _peer(options: argparse.Namespace) -> Server | None:
    """The server that --peer names."""
    return Server("peer", options.peer, options.peer_pid, [options.peer_log]) if options.peer else None


def cores() -> list[str]:
    """Those of this installation, the quickest last."""
    return ["python", "compiled"] if IMPLEMENTATION == "compiled" else ["python"]


# ----------------------------------------------------------------------------------------------- programs


class Programs:
    """The load generator and the ceiling, compiled into a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises BenchError where there is no C compiler, or it finds fault with them."""
        self._folder = folder
        compiler = shutil.which("cc")
        if compiler is None:
            raise BenchError("there is no C compiler (Debian's package gcc)")
        for name in ("seqload", "seqceiling"):
            source = SOURCES / f"{name}.c"
            argv = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", str(folder / name), str(source)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BenchError(f"{source.name} does not compile: {done.stderr}")

    def load(self, server: Server, load: Load, seconds: float, cpu: int) -> dict[str, float]:
        """A window of load on a server, from this processor. Raises BenchError where the server breaks a rule."""
        argv = self.load_words(server.address, load, seconds, ["--pid", server.pid, *server.logs[: load.logs]])
        return _figures(argv, f"{server.name}, {load.name}", cpu)

    def load_words(self, address: str, load: Load, seconds: float, logs: Sequence[object]) -> list[object]:
        """The command of a window of load on these logs, which options may stand before."""
        return [
            self._folder / "seqload", "run", address, "--connections", load.connections, "--depth", load.depth,
            "--range", load.range, "--seconds", seconds, *logs,
        ]  # fmt: skip

    def ping_pong_ns(self, cpus: Sequence[int]) -> float:
        """How long a cache line takes from one of two processors to the other and back."""
        done = subprocess.run([self._folder / "seqload", "ping-pong", *map(str, cpus)], capture_output=True, check=True)
        return 2 * float(done.stdout)

    @contextmanager
    def ceiling(self, processes: int = 1) -> Iterator[Server]:
        """The ceiling, running."""
        host, port = free_address()
        argv = [str(self._folder / "seqceiling"), host, port, str(processes)]
        with started(argv, "stdout", "listening") as pid:
            yield Server("ceiling", f"{host}:{port}", pid, [f"{POOL}/bench-0:1"])

    @contextmanager
    def ceiling_on(self, within: Sequence[str], host: str, port: str) -> Iterator[str]:
        """The ceiling, running within another command; its address."""
        with started([*within, str(self._folder / "seqceiling"), host, port], "stdout", "listening"):
            yield f"{host}:{port}"


def _figures(argv: Sequence[object], what: str, cpu: int) -> dict[str, float]:
    """What a program prints that runs on this processor alone."""
    done = subprocess.run(
        ["taskset", "--cpu-list", str(cpu), *map(str, argv)], capture_output=True, text=True, check=False,
        env=_environment(),
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"{what}: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


@contextmanager
def _naive() -> Iterator[Server]:
    host, port = free_address()
    argv = [sys.executable, "-m", "devkit.bench.seqnaive", host, port]
    with started(argv, "stdout", "listening") as pid:
        yield Server("naive", f"{host}:{port}", pid, [f"{POOL}/bench-0:1"])


@contextmanager
def remora_on(folder: Path, core: str, logs: int, workers: int = 1) -> Iterator[Server]:
    """`remora sequencer` on a store of its own, with this core, and its logs registered."""
    host, port = free_address()
    configuration = configuration_in(folder, f"{core}-{workers}", workers)
    names = [f"bench-{number}" for number in range(logs)]
    pure = {"REMORA_PURE_PYTHON": "1"} if core == "python" else {}
    with sequencer_running(configuration, f"{host}:{port}", **pure) as pid:
        epochs = asyncio.run(_epochs(f"{host}:{port}", names))
        yield Server(core, f"{host}:{port}", pid, [f"{POOL}/{name}:{epochs[name]}" for name in names])


def configuration_in(folder: Path, name: str, workers: int = 1, kind: LogKind = LogKind.LOG) -> Path:
    """The file of a configuration with a store of this name, where logs of this kind are made on request."""
    file = folder / f"{name}.toml"
    file.write_text(
        f'[store]\nkind = "sqlite"\n[sqlite]\ndirectory = "{folder}/{name}"\nfiles = 1\n'
        f'[sequencer]\ncreate = "{kind}"\nworkers = {workers}\n'
    )
    return file


@contextmanager
def sequencer_running(configuration: Path, address: str, **environment: str) -> Iterator[int]:
    """`remora sequencer` with this configuration, which listens on this address; its pid."""
    argv = [sys.executable, "-m", "remora", "sequencer", "-c", str(configuration), "--listen", address]
    with started(argv, "stderr", "listens on", **environment) as pid:
        yield pid


async def _epochs(address: str, names: Sequence[str]) -> dict[str, int]:
    async with SequencerClient([address], timeout_s=60) as client:
        return {name: (await client.tail(LogName(POOL.encode(), name.encode()))).epoch for name in names}


def free_address() -> tuple[str, str]:
    """A host and a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return "127.0.0.1", str(found.getsockname()[1])


@contextmanager
def started(argv: Sequence[str], stream: str, until: str, **environment: str) -> Iterator[int]:
    """A program that runs, once it has printed a line with these words; it is killed in the end."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: subprocess.PIPE}
    with subprocess.Popen(argv, env=_environment(**environment), text=True, **pipes) as process:  # type: ignore[call-overload]  # mypy knows no keywords of a dictionary
        try:
            for line in getattr(process, stream):
                if until in line:
                    break
            else:
                raise BenchError(f"{argv[0]} did not start")
            yield process.pid
        finally:
            process.kill()


# ------------------------------------------------------------------------------------------------ windows


class Bench:
    """All windows of a run."""

    def __init__(
        self, options: argparse.Namespace, programs: Programs, servers: Sequence[Server], cpus: Sequence[int]
    ) -> None:
        """`cpus` are the processors of server and client; with one alone there is no placement on two."""
        self._options = options
        self._programs = programs
        self._servers = servers
        self._cpus = cpus

    def loads(self, server: Server) -> list[Load]:
        """Those that a server is measured with."""
        found = [Load(each) for each in self._options.connections]
        found += [Load(8, depth, logs) for depth in self._options.depth for logs in self._options.logs]
        if server.name in ("python", "compiled"):
            found.append(Load(32, range=RANGE))
        return [load for load in found if load.logs <= len(server.logs)]

    def windows(self) -> Windows:
        """Every server with every load, in each placement, in random order in each round."""
        found: dict[str, dict[str, dict[str, list[Mapping[str, Any]]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        order = random.SystemRandom()
        kinds = ["one", "two"] if len(self._cpus) > 1 else ["one"]
        for number in range(self._options.rounds):
            due: list[tuple[str, Server, Load | int]] = []
            for kind, server in itertools.product(kinds, self._servers):
                due += [(kind, server, load) for load in self.loads(server)]
                if server.name not in ("ceiling", "peer"):
                    due += [(kind, server, tasks) for tasks in CLIENT_TASKS]
            order.shuffle(due)
            for kind, server, load in due:
                place, name, window = self._window(kind, server, load)
                found[place][server.name][name].append(window)
            print(f"round {number + 1} of {self._options.rounds}", file=sys.stderr, flush=True)
        return found

    def _window(self, kind: str, server: Server, load: Load | int) -> tuple[str, str, Mapping[str, Any]]:
        """One window: its placement, the load's name, and its figures."""
        used = self._cpus if kind == "two" else self._cpus[-1:]
        before_ns = self._programs.ping_pong_ns(used) if kind == "two" else 0
        if isinstance(load, Load):
            name, cpu = load.name, used[-1]
            found = watched(server.pid, used, lambda: self._programs.load(server, load, self._options.seconds, cpu))
        else:
            argv = [sys.executable, "-m", "devkit.bench.seqclient", server.address, POOL, "bench-0", load,
                    self._options.seconds]  # fmt: skip
            name = f"client, {load} tasks"
            found = watched(server.pid, used, lambda: _figures(argv, server.name, used[-1]))
            found["requests"] = found["positions"]
        place = "one"
        if kind == "two":
            place = placement(before_ns, self._programs.ping_pong_ns(used))
        return place, name, found

    def calls_per_request(self) -> dict[str, dict[str, float]]:
        """System calls of each server for a request, counted by strace in a window of its own; none without it."""
        found: dict[str, dict[str, float]] = {}
        strace = shutil.which("strace")
        if strace is None:
            return found
        for server in self._servers:
            found[server.name] = {}
            for load in (Load(32), Load(8, 16)):
                with suppress(_CannotTraceError), _traced(strace, server.pid) as calls:
                    requests = self._programs.load(server, load, self._options.seconds, self._cpus[-1])["requests"]
                    found[server.name][load.name] = calls() / requests
        return found


def watched(pid: int, cpus: Sequence[int], load: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What a load says that shares these processors with its server, or has the last one of them.

    With the server's processor time, where the load does not say it, and what others took of the processors.
    """
    pin(pid, cpus[0])
    busy, began, own = _busy_s(cpus), time.monotonic(), time.clock_gettime(_clock(pid))
    found = load()
    took_s = time.monotonic() - began
    found.setdefault("server_cpu_s", time.clock_gettime(_clock(pid)) - own)
    ours = found["server_cpu_s"] + found["client_cpu_s"]
    return {**found, "others": max(0.0, (_busy_s(cpus) - busy - ours) / took_s)}


def placement(before_ns: float, after_ns: float) -> str:
    """How far two processors are from each other by two looks: near, far, or neither."""
    if max(before_ns, after_ns) < NEAR_NS:
        return "near"
    return "far" if min(before_ns, after_ns) > FAR_NS else "unclear"


def pin(pid: int, *cpus: int) -> None:
    """Bind a process with all its threads to these processors."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cpus)


def _clock(pid: int) -> int:
    """The clock of a process' processor time, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def _busy_s(cpus: Sequence[int]) -> float:
    """Processor time of these processors that was not idle; what a hypervisor took away counts."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name in {f"cpu{each}" for each in cpus}:
            user, nice, system, _, _, irq, softirq, steal = map(int, values[:8])
            total += (user + nice + system + irq + softirq + steal) * tick_s
    return total


class _CannotTraceError(Exception):
    """The kernel does not let this process be traced."""


@contextmanager
def _traced(strace: str, pid: int) -> Iterator[Any]:
    """Have strace count a process' system calls; what is yielded ends that and returns how many there were."""
    argv = [strace, "-f", "-c", "-q", "-U", "calls,name", "-p", str(pid)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        traced = Path(f"/proc/{pid}/status")

        def calls() -> int:
            process.send_signal(signal.SIGINT)
            said = process.communicate()[1]
            return int(re.search(r"^\s*(\d+) total$", said, re.MULTILINE)[1])  # type: ignore[index]  # strace says so

        try:
            while re.search(r"^TracerPid:\s*0$", traced.read_text(), re.MULTILINE):
                if process.poll() is not None:
                    raise _CannotTraceError
            yield calls
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)


# ----------------------------------------------------------------------------------------------- recovery


def _recoveries(folder: Path, times: int) -> list[float]:
    """Seconds from the kill of a server to the first position of another one of the host that runs beside it."""
    configuration = configuration_in(folder, "recovery")
    return [asyncio.run(_recovery(folder, configuration)) for _ in range(times)]


async def _recovery(folder: Path, configuration: Path) -> float:
    log = LogName(POOL.encode(), b"recovery")
    one, other = (f"unix:{folder}/{name}.sock" for name in ("one", "other"))
    with sequencer_running(configuration, one) as pid:
        async with SequencerClient([one], timeout_s=60) as client:
            last = (await client.next(log)).position
        with sequencer_running(configuration, other):
            async with SequencerClient([other], timeout_s=60) as client:
                os.kill(pid, signal.SIGKILL)
                began = time.monotonic()
                if (await client.next(log)).position < last:
                    raise BenchError("the position went back")
                return time.monotonic() - began


# ------------------------------------------------------------------------------------------------ figures


def summary(windows: Sequence[Mapping[str, Any]], place: str) -> dict[str, Any]:
    """Medians of windows, of the quiet ones where there are any; rates with quartiles."""
    quiet = [each for each in windows if each["others"] <= MOST_OTHERS]
    used = quiet or windows
    spent = "positions" if all(each["positions"] != each["requests"] for each in used) else "requests"
    rates = [each[spent] / _seconds(each, place) for each in used]
    low, rate, high = statistics.quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
    found: dict[str, Any] = {
        "rate": rate,
        "quartiles": [low, high],
        "of": spent,
        "rates": rates,
        "busy": not quiet,
        "left_out": len(windows) - len(used),
        "others": statistics.median(each["others"] for each in used),
        "wall_rate": statistics.median(each[spent] / each["took_s"] for each in used),
    }
    for side in ("server", "client"):
        key = f"{side}_cpu_s"
        found[f"{side}_ns"] = statistics.median(each[key] / each["requests"] * 1e9 for each in used)
    if "client_calls" in used[0]:
        found["client_calls"] = statistics.median(each["client_calls"] / each["requests"] for each in used)
    for key in (f"{name}_s" for name in PERCENTILES):
        if key in used[0]:
            found[key] = statistics.median(each[key] for each in used)
    return found


def _seconds(window: Mapping[str, Any], place: str) -> float:
    """What a rate is for each of: on one processor the time that both used of it."""
    seconds: float = window["server_cpu_s"] + window["client_cpu_s"] if place == "one" else window["took_s"]
    return seconds


def gates(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each gate: its value, what it must reach, and whether it does; without a value it was not run."""
    found = []
    for gate in GATES:
        value = _rate(figures, gate.place, "compiled", gate.of)
        if gate.by is not None:
            beside = _rate(figures, gate.place, *gate.by)
            value = value / beside if value and beside else None
        found.append(
            {"gate": gate.name, "wanted": gate.wanted, "value": value,
             "reached": None if value is None else value >= gate.wanted}
        )  # fmt: skip
    return found


def _rate(figures: Mapping[str, Any], place: str, server: str, load: str) -> float | None:
    rate: float | None = figures.get(place, {}).get(server, {}).get(load, {}).get("rate")
    return rate


def _print(found: Mapping[str, Any]) -> None:
    for place, servers in found["figures"].items():
        title = {"one": "one CPU, for each second of it", "unclear": "two CPUs, neither near nor far"}
        print(f"-- {title.get(place, f'two CPUs, {place}')}")
        for server, loads in servers.items():
            for load, each in sorted(loads.items()):
                low, high = each["quartiles"]
                more = [f"{name} {each[f'{name}_s'] * 1e6:.0f} µs" for name in PERCENTILES if f"{name}_s" in each]
                more += ["busy"] * each["busy"]
                print(
                    f"{server:9} {load:30} {each['rate']:12,.0f} {each['of']}/s ({low:,.0f} to {high:,.0f})   "
                    f"{each['server_ns']:.0f} + {each['client_ns']:.0f} ns   {', '.join(more)}"
                )
    for server, calls in found["calls"].items():
        print(f"system calls of {server} a request:", ", ".join(f"{load} {n:.2f}" for load, n in calls.items()))
    print("kill to first position:", ", ".join(f"{each * 1e3:.0f} ms" for each in found["recovery_s"]))
    for gate in found["gates"]:
        if gate["value"] is not None:
            verdict = "reached" if gate["reached"] else "MISSED"
            print(f"{gate['gate']:50} {gate['value']:12,.2f} of {gate['wanted']:,}   {verdict}")
