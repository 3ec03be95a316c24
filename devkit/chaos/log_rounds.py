"""Rounds of faults on two sequencers for the same logs, and on the programs that use them; then everything is judged.

A seed draws the faults. Whatever it draws, both servers are asked for every log all the time, so each round has them
take logs from each other. In the end all is mended, every hole is filled, and the checker reads what the clients wrote
down and what the store holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from devkit.chaos import clusters, log_places
from devkit.chaos.clusters import ChaosError
from devkit.chaos.log_places import Place, RadosPlace, SqlitePlace
from devkit.paths import ROOT
from devkit.processes.daemon import write_config
from devkit.verdicts import linearity, log_checker
from devkit.verdicts.log_checker import Op, Run, Stored, Strike

PYTHON = sys.executable
LOGS, COUNTERS = ("orders", "audit"), ("ids",)
JOURNAL = "journal"
"""The log that clients use through `remora.log.Log`."""
LEASE_S = {"sqlite": 1.0, "rados": 2.0}
START_S, STOP_S, FINISH_S = 180.0, 120.0, 400.0
CALM_S = 0.7
CLIENTS = 2
UNAVAILABLE = 69
ENOUGH = 20_000
"""Bytes of history: some hundred answers."""

FAULTS = (
    "server_killed", "both_servers_killed", "server_stopped", "server_frozen", "server_frozen_shortly",
    "client_frozen", "client_killed", "lock_lost", "sealed", "store_frozen",
)  # fmt: skip

OF_WORKERS = ("worker_killed", "worker_frozen")
"""Of runs whose servers have workers: every other seed's."""


KILLS_OSD = "osd_killed"


def add_options(parser: argparse._ArgumentGroup) -> None:
    """What `scripts/chaos --sequencer` understands besides --store."""
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="N runs, with the seeds from --seed on")
    parser.add_argument("--kill-osds", action="store_true", help="on RADOS: OSDs are killed, too, and started again")


def run(options: argparse.Namespace) -> bool:
    """All runs; whether nothing was wrong in any. A line for each, and the verdict in the end."""
    options.rounds = options.rounds or 5
    return asyncio.run(_all(options))


async def _all(options: argparse.Namespace) -> bool:
    first = options.seed or secrets.token_hex(4)
    seeds = [str(int(first) + each) for each in range(options.seeds)] if first.isdigit() else [first]
    found: list[Report] = []
    async with _places(options) as opened:
        print("    seed  seconds  positions  appended  refused  filled  journal  epochs  wrong", flush=True)
        for seed in seeds:
            folder = Path(tempfile.mkdtemp(prefix="remora-chaos-"))
            place = await opened(folder)
            report = await _Rounds(seed, options, folder, place).run()
            found.append(report)
            _print(report)
            if report.findings:
                print(f"         histories and logs are in {folder}", flush=True)
            else:
                shutil.rmtree(folder)
    wrong = sum(len(each.findings) for each in found)
    if options.json:
        runs = [asdict(each) for each in found]
        options.json.write_text(json.dumps({"store": options.store, "runs": runs, "wrong": wrong}, indent=2))
    faults = Counter(fault for each in found for fault in each.faults)
    print("faults:", ", ".join(f"{count} {name}" for name, count in sorted(faults.items())))
    print(f"{'FAIL' if wrong else 'PASS'}  {len(found)} runs of sequencers on {options.store}, {wrong} findings")
    return not wrong


@dataclass
class Report:
    """What one run did, and what was wrong."""

    seed: str
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    epochs: int = 0
    done: dict[str, int] = field(default_factory=dict)
    findings: list[log_checker.Finding] = field(default_factory=list)


def _print(report: Report) -> None:
    done = report.done
    print(
        f"{report.seed:>8} {report.seconds:>8.1f} {done['positions']:>10} {done['appended']:>9} {done['refused']:>8} "
        f"{done['filled']:>7} {done['journal']:>8} {report.epochs:>7}  {len(report.findings):>5}",
        flush=True,
    )
    for each in report.findings:
        print(f"         {each.kind}: {each.text}")


Opened = Callable[[Path], Awaitable[Place]]


@asynccontextmanager
async def _places(options: argparse.Namespace) -> AsyncIterator[Opened]:
    """Makes the store of a run: a directory of its own, or an emptied namespace of one cluster."""
    if options.store == "sqlite":

        async def embedded(folder: Path) -> Place:
            return SqlitePlace(folder)

        yield embedded
        return
    async with clusters.running("ceph", options.name) as cluster, log_places.client(cluster) as ioctx:

        async def emptied(_: Path) -> Place:
            await asyncio.to_thread(log_places.empty, ioctx)
            return log_places.RadosPlace(cluster, ioctx)

        yield emptied


class Process:
    """A program of the run that is killed, frozen and started again."""

    def __init__(self, name: str, folder: Path, *command: str) -> None:
        self.name = name
        self._command = command
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()  # faults that hurt it at once start it again at once

    async def start(self) -> None:
        """Start it where it does not run."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
                )

    def send(self, how: signal.Signals) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, how)  # Popen's own would reap it, and asyncio then knows no exit code

    def children(self) -> list[int]:
        """The processes that it has started."""
        if self._process is None or self._process.returncode is not None:
            return []
        with suppress(OSError):
            pid = self._process.pid
            return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    async def end(self, how: signal.Signals) -> None:
        """End it with a signal; one that was asked to stop must do so in time and without an error.

        One that was only just started may not heed SIGTERM yet, and another fault may kill it meanwhile.
        """
        if self._process is None or self._process.returncode is not None:
            return
        self.send(signal.SIGCONT)
        self.send(how)
        try:
            async with asyncio.timeout(STOP_S):
                code = await self._process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            raise ChaosError(f"{self.name} does not stop within {STOP_S:g} s") from None
        if how is signal.SIGTERM and code not in (0, -signal.SIGTERM, -signal.SIGKILL):
            raise ChaosError(f"{self.name} ended with {code}: {self._log.read_text()[-2000:]}")

    async def finished(self, within_s: float, *, good: tuple[int, ...] = (0,)) -> None:
        """Wait for its own end, which must be with one of these exit codes."""
        assert self._process is not None
        try:
            async with asyncio.timeout(within_s):
                code = await self._process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            raise ChaosError(f"{self.name} takes more than {within_s:g} s: {self._log.read_text()[-2000:]}") from None
        if code not in good:
            raise ChaosError(f"{self.name} ended with {code}: {self._log.read_text()[-2000:]}")


class _Rounds:
    def __init__(self, seed: str, options: argparse.Namespace, folder: Path, place: Place) -> None:
        self._options = options
        self._folder = folder
        self._place = place
        self._rng = random.Random(seed)
        self._faults = (*FAULTS, KILLS_OSD) if options.kill_osds else FAULTS
        workers = 1 + (int(seed) % 2 if seed.isdigit() else 0)
        if workers > 1:
            self._faults = (*self._faults, *OF_WORKERS)
        self._store_fault = asyncio.Lock()
        self._lease_s = LEASE_S[options.store]
        self._report = Report(seed)
        self._strikes: list[Strike] = []
        self._epochs: list[tuple[str, int]] = []
        self._config = folder / "remora.toml"
        self._addresses = [f"unix:{folder}/{name}.sock" for name in "ab"]
        sections = {**place.sections, "sequencer": {"lease": f"{self._lease_s:g}s", "workers": workers}}
        write_config(self._config, sections)
        self._servers = [
            Process(f"sequencer-{number}", folder, PYTHON, "-m", "remora", "sequencer", "-c", str(self._config),
                    "--listen", address)
            for number, address in enumerate(self._addresses)
        ]  # fmt: skip
        self._clients = [self._client(f"client-{number}", "work") for number in range(CLIENTS)]

    def _client(self, name: str, mode: str) -> Process:
        history, seed = self._folder / f"{name}.jsonl", f"{self._report.seed}-{name}"
        command = [PYTHON, "-m", "devkit.chaos.log_client", str(self._config), str(history), seed, mode]
        return Process(name, self._folder, *command, *self._addresses)

    async def run(self) -> Report:
        """The rounds and the verdict."""
        began = time.monotonic()
        create = self._client("create", "create")
        await create.start()
        await create.finished(START_S)
        try:
            await self._mend()
            await self._progress(0)
            for number in range(self._options.rounds):
                await self._round([KILLS_OSD] if self._options.kill_osds and not number else [])
            for each in self._clients:
                await each.end(signal.SIGTERM)
            finish = self._client("finish", "finish")
            await finish.start()
            await finish.finished(FINISH_S)
            for each in self._servers:
                await each.end(signal.SIGTERM)
        finally:
            for each in [*self._clients, *self._servers]:
                await each.end(signal.SIGKILL)
        self._judge()
        self._report.seconds = time.monotonic() - began
        return self._report

    async def _round(self, demanded: list[str]) -> None:
        """Hurt what is demanded, or one to three things that are drawn, at once; mend all, and go on when positions are
        handed out again."""
        self._note_epochs()
        drawn = demanded or self._rng.sample(self._faults, self._rng.choice([1, 1, 2, 3]))
        pause_s = [self._rng.uniform(0, self._lease_s / 2) for _ in drawn]

        async def later(fault: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            self._report.faults.append(fault)
            await getattr(self, f"_{fault}")()

        answered = self._answered()
        await asyncio.gather(*map(later, drawn, pause_s))
        await self._mend()
        await self._progress(answered)
        await asyncio.sleep(self._rng.uniform(0, CALM_S))

    async def _mend(self) -> None:
        for each in [*self._servers, *self._clients]:
            await each.start()

    async def _progress(self, answered: int) -> None:
        """Wait until clients got more answers than this many."""
        deadline = time.monotonic() + START_S
        while self._answered() <= answered + ENOUGH:
            if time.monotonic() > deadline:
                raise ChaosError(f"nothing goes on within {START_S:g} s; see {self._folder}")
            await asyncio.sleep(0.05)

    def _answered(self) -> int:
        """The size of the histories, which each answer makes longer."""
        return sum(each.stat().st_size for each in self._folder.glob("client-*.jsonl"))

    def _note_epochs(self) -> None:
        self._epochs += [(log, self._place.epoch(log)) for log in (*LOGS, *COUNTERS)]

    # --------------------------------------------------------------------------------------- faults

    async def _server_killed(self) -> None:
        server = self._rng.choice(self._servers)
        await server.end(signal.SIGKILL)
        await asyncio.sleep(self._rng.choice([0.0, self._lease_s]))
        await server.start()

    async def _both_servers_killed(self) -> None:
        for each in self._servers:
            await each.end(signal.SIGKILL)
        for each in self._servers:
            await each.start()

    async def _server_stopped(self) -> None:
        server = self._rng.choice(self._servers)
        await server.end(signal.SIGTERM)
        await server.start()

    async def _server_frozen(self) -> None:
        await self._frozen(self._rng.choice(self._servers), self._lease_s * self._rng.uniform(1.1, 1.6))

    async def _server_frozen_shortly(self) -> None:
        await self._frozen(self._rng.choice(self._servers), self._lease_s * self._rng.uniform(0.1, 0.9))

    async def _worker_killed(self) -> None:
        for pid in self._rng.choice(self._servers).children()[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _worker_frozen(self) -> None:
        for pid in self._rng.choice(self._servers).children()[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(self._lease_s * self._rng.uniform(0.1, 1.6))
                os.kill(pid, signal.SIGCONT)

    async def _client_frozen(self) -> None:
        await self._frozen(self._rng.choice(self._clients), self._lease_s * self._rng.uniform(1.1, 1.6))

    async def _client_killed(self) -> None:
        await self._rng.choice(self._clients).end(signal.SIGKILL)

    async def _lock_lost(self) -> None:
        log = self._rng.choice((*LOGS, *COUNTERS, JOURNAL))
        await self._strike(log, asyncio.to_thread(self._place.take_lock_away, log))

    async def _sealed(self) -> None:
        log = self._rng.choice((*LOGS, *COUNTERS, JOURNAL))
        command = [PYTHON, "-m", "remora", "log", "seal", log, "--pool", log_places.POOL, "-c", str(self._config)]
        seal = Process("seal", self._folder, *command)

        async def sealed() -> None:
            await seal.start()
            await seal.finished(START_S, good=(0, UNAVAILABLE))  # another fault may keep the store from it

        await self._strike(log, sealed())

    async def _store_frozen(self) -> None:
        daemon, seconds = self._rng.choice(list(self._place.daemons)), self._lease_s * self._rng.uniform(0.5, 2)
        async with self._store_fault:
            await self._place.freeze(daemon, seconds)

    async def _osd_killed(self) -> None:
        assert isinstance(self._place, RadosPlace)
        daemon, seconds = self._rng.choice(list(self._place.daemons)), self._lease_s * self._rng.uniform(0, 2)
        async with self._store_fault:
            await self._place.kill(daemon, seconds)

    async def _frozen(self, process: Process, seconds: float) -> None:
        process.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send(signal.SIGCONT)

    async def _strike(self, log: str, work: Awaitable[None]) -> None:
        began = time.monotonic()
        await work
        self._strikes.append(Strike(log, began, time.monotonic()))

    # -------------------------------------------------------------------------------------- verdict

    def _judge(self) -> None:
        self._note_epochs()
        stored = {log: self._place.read(log) for log in LOGS}
        stored |= {log: Stored(self._place.epoch(log), 0, {}) for log in COUNTERS}
        ops = [op for path in sorted(self._folder.glob("*.jsonl")) for op in log_checker.ops_of(_lines(path))]
        journal = [op for op in ops if op.log == JOURNAL]
        ops = [op for op in ops if op.log != JOURNAL]
        known = Run(ops, stored, frozenset(COUNTERS), self._strikes, self._lease_s, self._epochs)
        self._report.findings = log_checker.judge(known)
        self._report.findings += linearity.judge(journal, self._place.read(JOURNAL), time.monotonic())
        self._report.epochs = sum(each.epoch for each in stored.values())
        self._report.done = _counts(ops) | {"journal": sum(op.outcome == "ok" for op in journal)}


def _counts(ops: list[Op]) -> dict[str, int]:
    done = [op for op in ops if op.outcome == "ok"]
    return {
        "positions": sum(op.count for op in done if op.what == "next"),
        "appended": sum(op.what == "append" for op in done),
        "refused": sum(op.outcome in ("stale", "taken", "trimmed") and op.what != "read" for op in ops),
        "filled": sum(op.what == "fill" for op in done),
        "unanswered": sum(op.ended is None for op in ops),
    }


def _lines(path: Path) -> Iterator[dict[str, object]]:
    """The lines of a history. A program that is started again begins to count anew, so its numbers go on."""
    base = last = 0
    for line in path.read_bytes().splitlines():
        try:
            each = json.loads(line)
        except ValueError:  # cut short by a kill
            continue
        if each["n"] == 1 and "began" in each:
            base = last
        each["n"] += base
        last = max(last, each["n"])
        yield each
