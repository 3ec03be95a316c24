"""Kills the daemon again and again while events are stored, and judges in the end what became of them.

One daemon on the embedded store or on RADOS, one store for all rounds, a real broker. Clients store events without
pause; the daemon is killed with SIGKILL at random moments, also while it starts, and started again with a new listener.
Before that a worker may be killed, or a worker or the supervisor frozen for a while. Each request that was not answered
is repeated until it is, so that in the end it is known of almost every event what must have become of it.
The last round has no kill: what is stored then arrives once.
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
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka.admin import NewTopic

from devkit.bench.embedded import Embedded
from devkit.chaos.changer import Changer
from devkit.chaos.clients import Client, Ledger
from devkit.chaos.clusters import ChaosError, make_kafka_topics, running
from devkit.chaos.fan_out import Fanned, FanningClient
from devkit.chaos.power import PowerCutDisk, power_cut_disk
from devkit.chaos.reading import Reader
from devkit.chaos.requests import Connection
from devkit.paths import SCRIPTS
from devkit.processes.processes import children, gone
from devkit.verdicts.verdict import Arrived, Fate, Kill, judge
from remora.model.topic import Topic
from remora.storage.rados import RadosStore
from remora.storage.rados.ingest.intent_log import IntentState
from remora.storage.rados.ingest.schedule import DueAction
from remora.storage.sqlite.repair.checks import check_directory

REMORA = Path(sys.executable).with_name("remora")

SHARDS = {"wide": 11, "narrow": 1, "once": 4}
"""Topics, with their shards; the clients take turns with them."""

EXACTLY_ONCE = {"once": "remora-delivery=exactly-once"}
"""Endpoint arguments of the topics that show each event once."""

STROKES = ("worker killed", "worker frozen", "supervisor frozen")
STRUCK = 0.6
"""Share of the rounds in which something is done to a daemon that answers, before it is killed."""

LONGEST_FREEZE_S = 1.5

PARTITIONS = 4
KILLED_WHILE_STARTING = 0.25
"""Share of the rounds; in the others the daemon has answered a request before."""

QUEUE_BYTES = 16_000_000
DISK_MB = 2048
SHORT_LEASES = """
[ownership]
lease = "20s"
renew_interval = "5s"
trust_margin = "2s"
discovery_interval = "500ms"
reservation_age = "20s"
reservation_interval = "1s"

[supervisor]
watchdog = "15s"
"""
"""A killed daemon leaves its locks in RADOS until they are stale, and a reservation holds up a change of shards."""

LONGEST_LIFE_S = 2.0
START_S = 60.0
DRAIN_S = 120.0


@dataclass
class Daemon:
    """A daemon that is started and killed; `kills` is when it or a worker was, or was frozen, `struck` how often.

    With a `disk` the power of its host goes instead.
    """

    embedded: Embedded
    disk: PowerCutDisk | None = None
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    kills: list[Kill] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    started_at: float = 0.0
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.answers.clear()
        self.started_at = time.monotonic()
        with self.embedded.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                REMORA,
                *self.embedded.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def until_it_answers(self) -> float:
        """Wait until a client got an answer: seconds since the start."""
        assert self._process is not None
        answered, ended = asyncio.create_task(self.answers.wait()), asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait([answered, ended], timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answered.cancel()
            ended.cancel()
        self.check()
        if not self.answers.is_set():
            raise ChaosError(f"the daemon has not answered within {START_S:.0f} s: {self.last_words()}")
        return time.monotonic() - self.started_at

    async def until_all_are_ready(self) -> None:
        """Wait until all its workers are ready: one that is killed before ends the start, as it has to."""
        deadline = self.started_at + START_S
        while not (await self.embedded.status())["ready"]:
            self.check()
            if time.monotonic() > deadline:
                raise ChaosError(f"not all workers are ready within {START_S:.0f} s: {self.last_words()}")
            await asyncio.sleep(0.02)

    def check(self) -> None:
        """Raise ChaosError when the daemon has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise ChaosError(f"the daemon ended by itself with {self._process.returncode}: {self.last_words()}")

    async def kill(self) -> None:
        """SIGKILL, of supervisor and workers; a daemon that has ended before is an error."""
        assert self._process is not None
        before, workers = time.time(), children(self._process.pid)
        with suppress(ProcessLookupError):
            if self.disk is not None:
                os.killpg(self._process.pid, signal.SIGSTOP)
                self.disk.drop()
            os.killpg(self._process.pid, signal.SIGKILL)
        code = await self._process.wait()
        if code != -signal.SIGKILL:
            raise ChaosError(f"the daemon ended by itself with {code}: {self.last_words()}")
        await gone(workers)  # one that waits for the disk has the listening sockets a little longer
        if self.disk is not None:
            await self.disk.come_back()
        self.kills.append(Kill(before, time.time()))
        self.struck["daemon killed"] += 1

    async def strike(self, stroke: str, chance: random.Random) -> None:
        """Do one of STROKES, once the start is over. The supervisor starts a killed worker again."""
        assert self._process is not None
        await self.until_all_are_ready()
        pid, freeze_s = self._process.pid, chance.uniform(0.1, LONGEST_FREEZE_S)
        if stroke != "supervisor frozen":
            workers = children(pid)
            if not workers:
                return
            pid = chance.choice(sorted(workers))
        before = time.time()
        with suppress(ProcessLookupError):
            if stroke == "worker killed":
                os.kill(pid, signal.SIGKILL)
                await _until_ended(pid, self._process.pid)
            else:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(freeze_s)
                os.kill(pid, signal.SIGCONT)
        self.kills.append(Kill(before, time.time()))
        self.struck[stroke] += 1

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self.check()
        self._process.terminate()
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def __aenter__(self) -> Daemon:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def last_words(self) -> str:
        return "\n".join(self.embedded.log.read_text(errors="replace").splitlines()[-15:])


def add_options(parser: argparse._ArgumentGroup) -> None:
    """What `scripts/chaos --ingest` understands."""
    parser.add_argument("--clients", type=int, default=8, help="clients at a time (default: 8)")
    parser.add_argument("--reshard", action="store_true", help="give the topics other numbers of shards all the time")
    parser.add_argument("--fan-out", action="store_true", help="half of the clients send events without a topic")
    parser.add_argument("--power-loss", action="store_true", help="throw away what was not synced at each kill")
    parser.add_argument("--bootstrap", default="", help="a broker that runs (default: one is made and removed)")


def run(options: argparse.Namespace) -> bool:
    """All rounds and the verdict; whether all is well. Where it is not, the daemon's folder is left."""
    options.seed = options.seed or secrets.token_hex(4)
    options.rounds = options.rounds or 200
    folder = Path(tempfile.mkdtemp(prefix="remora-chaos-"))
    is_evidence = True
    try:
        wrong = asyncio.run(_run(options, folder))
        is_evidence = bool(wrong)
    except KeyboardInterrupt:
        is_evidence = False
        raise
    finally:
        if is_evidence:
            print(f"the daemon's log and files are in {folder}")
        else:
            shutil.rmtree(folder)
    return not wrong


async def _run(options: argparse.Namespace, folder: Path) -> list[str]:
    """All rounds on the store that was asked for; what is wrong."""
    if options.store != "rados":
        with power_cut_disk(folder / "store", DISK_MB) if options.power_loss else nullcontext() as disk:
            return await _Chaos(options, Embedded(folder, QUEUE_BYTES), disk).run()
    from devkit.chaos.rados_stand import settings_in  # needs Ceph's own binding, which a run on SQLite does not

    async with running("ceph", options.name) as cluster:
        settings = await settings_in(cluster, f"chaos-{secrets.token_hex(4)}")
        return await _Chaos(options, Embedded(folder, more=SHORT_LEASES, rados=settings)).run()


class _Chaos:
    """One run."""

    def __init__(self, options: argparse.Namespace, embedded: Embedded, disk: PowerCutDisk | None = None) -> None:
        self._options = options
        self._chance = random.Random(options.seed)
        self._ledger = Ledger()
        self._embedded = embedded
        self._daemon = Daemon(self._embedded, disk)
        run_id = secrets.token_hex(4)
        self._names = {f"chaos-{run_id}-{name}": shards for name, shards in SHARDS.items()}
        self._args = {f"chaos-{run_id}-{name}": args for name, args in EXACTLY_ONCE.items()}
        self._topics: list[Topic] = []
        self._changer = Changer(self._embedded.store, list(self._names), str(options.seed))
        self._fanned = Fanned(self._embedded, list(self._names), str(options.seed)) if options.fan_out else None
        self._start_s = 1.0

    async def run(self) -> list[str]:
        """What is wrong."""
        options, began = self._options, time.monotonic()
        print(f"seed {options.seed}: {options.rounds} rounds, {options.clients} clients", flush=True)
        async with AsyncExitStack() as stack:
            bootstrap = options.bootstrap or await stack.enter_async_context(broker())
            await make_kafka_topics(bootstrap, [NewTopic(name, PARTITIONS, 1) for name in self._names])
            for name, shards in self._names.items():
                args = self._args.get(name, "")
                self._topics += await self._embedded.make_topics([name], f"kafka://{bootstrap}", shards, args=args)
            if self._fanned:
                await self._fanned.make()
            reader = await stack.enter_async_context(Reader(bootstrap, list(self._names), PARTITIONS, self._args))
            await stack.enter_async_context(self._daemon)
            try:
                await self._play(stack, reader)
                wrong = await self._leftovers()
            except ChaosError as error:
                wrong = [str(error)]
        wrong += self._ledger.surprises + judge(self._ledger.requests, reader.arrived, self._daemon.kills)
        self._tell(wrong, reader.arrived, time.monotonic() - began)
        return wrong

    async def _play(self, stack: AsyncExitStack, reader: Reader) -> None:
        """The rounds, the calm, the end of all requests, and the drain."""
        ended = asyncio.Event()
        tasks = [asyncio.create_task(client.run(ended)) for client in await self._clients(stack)]
        if self._options.reshard:
            tasks.append(asyncio.create_task(self._changer.run(ended)))
        if self._fanned:
            tasks.append(asyncio.create_task(self._fanned.run(ended)))
        try:
            for number in range(1, self._options.rounds + 1):
                await self._round(number, reader.arrived)
                reader.check()
                for task in tasks:
                    if task.done():
                        task.result()
                if reader.arrived.wrong or self._ledger.surprises:
                    break  # it gets no better
            await self._daemon.start()
            await self._daemon.until_it_answers()
            await asyncio.sleep(LONGEST_LIFE_S)
            ended.set()
            await asyncio.gather(*tasks)
            await self._drain(reader)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _clients(self, stack: AsyncExitStack) -> list[Client]:
        clients: list[Client] = []
        names = list(self._names)
        for number in range(self._options.clients):
            connection = Connection(self._embedded.ingest.removeprefix("unix:"), self._daemon.answers.set)
            stack.push_async_callback(connection.close)
            seed, ledger = self._options.seed, self._ledger
            if self._fanned and number % 2:
                clients.append(FanningClient(number, self._fanned, seed, connection, ledger))
            else:
                clients.append(Client(number, names[number % len(names)], seed, connection, ledger))
        return clients

    async def _round(self, number: int, arrived: Arrived) -> None:
        """Start the daemon, and kill it before or after its first answer."""
        await self._daemon.start()
        if self._chance.random() < KILLED_WHILE_STARTING:
            await asyncio.sleep(self._chance.uniform(0, self._start_s))
        else:
            self._start_s = await self._daemon.until_it_answers()
            await asyncio.sleep(self._chance.uniform(0, LONGEST_LIFE_S))
            if self._chance.random() < STRUCK:
                await self._daemon.strike(self._chance.choice(STROKES), self._chance)
                await asyncio.sleep(self._chance.uniform(0, LONGEST_LIFE_S / 4))
        answering, lived_s = self._daemon.answers.is_set(), time.monotonic() - self._daemon.started_at
        await self._daemon.kill()
        ledger = self._ledger
        print(
            f"round {number:3}  killed after {lived_s:5.2f} s, {'answering' if answering else 'starting '}   "
            f"{ledger.stored:8,} acknowledged {len(arrived.firsts):8,} in Kafka {arrived.repeated:6,} copies "
            f"{ledger.asked_again:6,} asked again",
            flush=True,
        )

    async def _drain(self, reader: Reader) -> None:
        """Wait for all that was acknowledged, end the daemon politely, and read what is left in Kafka."""
        due = {each for request in self._ledger.requests if request.fate is Fate.STORED for each in request.ids}
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline and not due <= reader.arrived.firsts.keys():
            self._daemon.check()
            reader.check()
            await asyncio.sleep(0.1)
        # Layouts go a moment after their entries, and what a killed worker left is finished by others within seconds.
        while time.monotonic() < deadline and (await self._has_former_layouts() or await self._has_open_requests()):
            self._daemon.check()
            await asyncio.sleep(0.1)
        if code := await self._daemon.stop():
            raise ChaosError(f"the daemon ended with {code} when told to: {self._daemon.last_words()}")
        await reader.to_the_end(DRAIN_S)

    async def _has_former_layouts(self) -> bool:
        async with self._embedded.store() as store:
            return any(topic.former for topic in (await store.catalog.topics()).values())

    async def _has_open_requests(self) -> bool:
        """Whether a request is committed on RADOS and not in all queues yet; it was never answered."""
        async with self._embedded.store() as store:
            if not isinstance(store, RadosStore):
                return False  # a daemon finishes them before it says that it is ready
            for log in (store.ingest.requests, store.ingest.fan_outs):
                for entry in (await log.schedule.entries())[DueAction.COMPLETE]:
                    known = await log.intents.load(entry.name)
                    if known is not None and known.state is IntentState.COMMITTED:
                        return True
        return False

    async def _leftovers(self) -> list[str]:
        """Entries that stand in the store although all is delivered, and letters that nobody should have written."""
        async with self._embedded.store() as store:
            shards = await store.catalog.shards()
            left = [
                f"{each.entries} entries left in {each.shard}"
                for each in await store.inspection.backlog(shards)
                if each.entries
            ]
            left += [
                f"a former layout of {topic.name} is left: {topic.former}"
                for topic in (await store.catalog.topics()).values()
                if topic.former
            ]
            left += [
                f"dead letter: {each.queue} {each.position} {each.reason}" async for each in store.letters.stored()
            ]
        if self._daemon.disk is not None:
            left += [each.text for file in check_directory(self._daemon.disk.place) for each in file.problems]
        return left

    def _tell(self, wrong: Sequence[str], arrived: Arrived, seconds: float) -> None:
        """The summary."""
        ledger, fates = self._ledger, Counter[Fate]()
        for request in self._ledger.requests:
            fates[request.fate] += len(request.ids)
        summary = {
            "seed": self._options.seed,
            "kills": self._daemon.struck["daemon killed"],
            "struck": dict(sorted(self._daemon.struck.items())),
            "seconds": round(seconds, 1),
            "events": {fate.name.lower(): fates[fate] for fate in Fate},
            "lost_bytes": self._daemon.disk.lost_bytes if self._daemon.disk else 0,
            "in_kafka": len(arrived.firsts),
            "copies": arrived.repeated,
            "asked_again": ledger.asked_again,
            "changes": dict(self._changer.done + (self._fanned.done if self._fanned else Counter())),
            "done": dict(sorted(ledger.done.items())),
            "wrong": list(wrong),
        }
        if self._options.json:
            self._options.json.write_text(json.dumps(summary, indent=2) + "\n")
        for counts in (ledger.done, self._daemon.struck, summary["changes"]):
            print("  ".join(f"{count:,} {name}" for name, count in sorted(counts.items())))
        print(
            f"{summary['kills']} kills in {seconds:.0f} s; events: {fates[Fate.STORED]:,} acknowledged, "
            f"{fates[Fate.REFUSED]:,} not to be stored, {fates[Fate.OPEN]:,} never answered; "
            f"{len(arrived.firsts):,} in Kafka, and {arrived.repeated:,} further copies"
        )
        if self._options.power_loss:
            print(f"{summary['lost_bytes']:,} bytes that were not synced were thrown away")
        for each in wrong[:20]:
            print(f"WRONG  {each}")
        if wrong:
            print(
                f"FAIL  {len(wrong)} findings; the same decisions again: scripts/chaos --ingest --rounds "
                f"{self._options.rounds} --clients {self._options.clients} --seed {self._options.seed}"
                + (" --reshard" if self._options.reshard else "")
                + (" --fan-out" if self._options.fan_out else "")
                + (" --power-loss" if self._options.power_loss else "")
                + (" --store rados" if self._options.store == "rados" else "")
            )
        else:
            print(
                "PASS  every acknowledged event is stored once and delivered, nothing else is; batches and order hold"
            )


async def _until_ended(worker: int, supervisor: int) -> None:
    while worker in children(supervisor):  # noqa: ASYNC110 - nothing tells of another process's child
        await asyncio.sleep(0.005)


# ------------------------------------------------------------------------------------------------ Kafka


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """A broker of one's own, removed afterwards: its address."""
    name = f"chaos-{secrets.token_hex(4)}"
    try:
        await _dev_kafka("up", "--name", name)
        yield json.loads(await _dev_kafka("env", "--json", "--name", name))["bootstrap"]
    finally:
        await _dev_kafka("down", "--name", name)


async def _dev_kafka(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        SCRIPTS / "dev-kafka", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        raise ChaosError(f"dev-kafka {' '.join(arguments)} failed: {err.decode(errors='replace').strip()[-1000:]}")
    return out.decode()
