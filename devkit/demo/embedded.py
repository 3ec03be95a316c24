"""The demo without a cluster: real traffic, replayed on its own timeline through queues in files of this host.

While it runs the broker is killed, the daemon is killed and started again, and then the broker. The topic is in
exactly-once mode, so that a reader of committed records must find each event once and in order, whatever was under way.
`remora replay verify` says so from the generator's journals and from Kafka; it shares no code with the daemon. The
topic numbers its events, so that a consumer can read all partitions in the order of the commits: one does meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
import uuid
from pathlib import Path

from devkit.clusters.state import cache_home
from devkit.demo.merge import Merging
from devkit.demo.show import (
    Checks,
    Faults,
    Samples,
    console,
    show_commands,
    show_counts,
    show_metrics,
    step,
    tell,
    working_folder,
)
from devkit.demo.stand import REMORA, DemoError, Shown, kafka_alone, make_kafka_topic, output_of, result_of
from devkit.paths import SCRIPTS
from remora_pipeline.replay import layout, results

OWN_TRACE = Path(__file__).with_name("data") / "bookkeeper-history.csv.gz"
OWN_TRACE_GAP_S, USUAL_GAP_S = 0.003, 1.0
"""To what idle time is cut. The demo's own trace spans fifteen years, with seconds of some thousand events: with gaps
of milliseconds all of it fits into a minute, and its largest bursts are still within what one small host can send."""

PARTITIONS, WORKERS = 11, 2
BROKER_DIES, DAEMON_DIES, BROKER_LIVES, QUIET = 0.2, 0.3, 0.4, 0.7
"""When, as shares of the replay's length; from the last on nothing is hurt any more."""

KEPT_REPORTS = 5
MERGE_S = 60.0

QUICK_JVM = {"SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS") or "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Each command has a JVM of its own that ends before it could profit from being compiled well."""


class Demo:
    """One run: a trace, or None for the demo's own, replayed within this many seconds."""

    def __init__(self, trace: Path | None, length_s: float, keep: bool) -> None:
        self.trace = trace or OWN_TRACE
        self.length_s, self.keep = length_s, keep
        self.name = "demo" if keep else f"demo-{os.getpid()}"
        self.topic = f"replay-{uuid.uuid4().hex[:6]}"
        self.checks, self.faults = Checks(), Faults()
        self.bootstrap = ""
        self.folder: Path
        self.run_directory: layout.RunDirectory
        self.daemon: Shown

    async def run(self) -> bool:
        """Everything; returns whether all is well."""
        async with contextlib.AsyncExitStack() as stack:
            self.folder = stack.enter_context(working_folder(self.name, self.keep))
            self.run_directory = layout.RunDirectory(self.folder / "run")
            with step("starting Kafka"):
                self.bootstrap = await stack.enter_async_context(kafka_alone(self.name, self.keep))
            await make_kafka_topic(self.bootstrap, self.topic, PARTITIONS)
            tell(f"a Kafka broker runs, with topic {self.topic}")
            trace = await self._prepare()
            before, after = await self._play(trace)
            verdict = await self._verify()
            report = await self._report()
            tell("Kafka is left running" if self.keep else "stopping Kafka")
        return self._show(verdict, before, after, report)

    # ------------------------------------------------------------------------------------- the story

    async def _prepare(self) -> layout.Trace:
        """The trace as events, with idle time cut."""
        prepared = layout.PreparedDirectory(self.folder / "trace")
        gap_s = OWN_TRACE_GAP_S if self.trace.name == OWN_TRACE.name else USUAL_GAP_S
        with step(f"preparing {self.trace.name}"):
            await self._remora("replay", "prepare", self.trace, "--out", prepared.path, "--max-gap", f"{gap_s:g}")
        trace = layout.read(prepared.trace, layout.Trace)
        tell(f"{trace.events} writes and deletes of {trace.keys} keys, in {_span_s(trace):.0f} s without longer gaps")
        return trace

    async def _play(self, trace: layout.Trace) -> tuple[Samples, Samples]:
        """Replay it while things go wrong; the metrics from before and after the quiet end."""
        self.daemon = Shown(
            self.folder,
            {
                "store": {"kind": "sqlite"},
                "sqlite": {"directory": f"{self.folder}/queues"},
                "supervisor": {"workers": WORKERS},
                "ingest": {"listen": f"unix:{self.folder}/ingest.sock"},
            },
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.daemon)
            await self._make_topic()
            merging = await stack.enter_async_context(self._merging().running())
            before = await self._replay(trace, stack)
            with step("waiting for the last events"):
                await self._until_empty()
            await self._check_merged(merging)
            after = await self.daemon.metrics()
            await self._stop()
        return before, after

    async def _make_topic(self) -> None:
        with step("starting remora"):
            await self.daemon.until_ready()
        endpoint = f"kafka://{self.bootstrap}"
        options = ["--endpoint", endpoint, "--delivery", "exactly-once", "--sequence"]
        await self.daemon.ask("topic", "create", self.topic, *options)
        tell(
            f"remora runs with {WORKERS} workers; its topic has 11 shards in files of this host, and numbers its events"
        )

    def _merging(self) -> Merging:
        return Merging(self.bootstrap, f"unix:{self.folder}/ingest.sock", self.topic, PARTITIONS)

    async def _check_merged(self, merging: Merging) -> None:
        """What the consumer that merges has read, by the numbers of the store."""
        reached = json.loads(await self.daemon.ask("topic", "show", self.topic, "--json"))["sequence"]
        with step("reading the last numbers"):
            await merging.until(reached["tail"], MERGE_S)
        tell(f"a consumer read {len(merging.numbers)} events of {len(merging.sources)} partitions in commit order")
        self.checks.add("all partitions were read in the order of the commits", merging.problems(reached["tail"]))

    async def _replay(self, trace: layout.Trace, stack: contextlib.AsyncExitStack) -> Samples:
        speed = max(0.001, _span_s(trace) / self.length_s)
        replay = asyncio.create_task(
            self._remora(
                "replay", "run", self.folder / "trace", "--out", self.run_directory.path, "--topic", self.topic,
                "--ingest", f"unix:{self.folder}/ingest.sock", "--speed", f"{speed:.4g}", "--retry-for", "5m",
            ),
            name="replay",
        )  # fmt: skip
        try:
            with step("starting the replay"):
                begins = await self._first_due(replay)
            tell(f"replaying at speed {speed:.4g}, which takes {self.length_s:.0f} s")
            before = await self._hurt(begins, stack)
            with step("replaying"):
                said = await replay
        finally:
            replay.cancel()
            await asyncio.wait([replay])
        for line in said.strip().splitlines():
            console.print(f"            [dim]{line}[/]", markup=True)
        return before

    async def _hurt(self, begins: float, stack: contextlib.AsyncExitStack) -> Samples:
        """What goes wrong, at its times; the metrics as the quiet part begins."""
        await self._moment(begins, BROKER_DIES)
        with self.faults.lasting("broker killed"):
            await output_of(SCRIPTS / "dev-kafka", "stop", "broker.1", "--signal", "KILL", "--name", self.name)
            tell("Kafka was killed")
            await self._moment(begins, DAEMON_DIES)
            with self.faults.lasting("daemon killed"):
                await self.daemon.kill_all()
                tell("remora was killed")
                await stack.enter_async_context(self.daemon)
                await self.daemon.until_ready()
            tell("remora runs again, with the same directory")
            await self._moment(begins, BROKER_LIVES)
            await output_of(SCRIPTS / "dev-kafka", "start", "broker.1", "--name", self.name)
        tell("Kafka is back")
        self.faults.write(self.run_directory.faults)
        await self._moment(begins, QUIET)
        return await self.daemon.metrics()

    async def _moment(self, begins: float, share: float) -> None:
        """Wait until so much of the replay is over; no time at all when it is already."""
        with step("replaying"):
            await asyncio.sleep(max(0.0, begins + share * self.length_s - time.time()))

    async def _first_due(self, replay: asyncio.Task[str]) -> float:
        """When the first event is due, which the journals say before anything is sent."""
        while not replay.done():
            for file in self.run_directory.journal.glob("part=*/attempt=*.jsonl"):
                first, whole, _ = file.read_bytes().partition(b"\n")
                if whole:
                    return float(json.loads(first)["t0_us"]) / 1e6
            await asyncio.sleep(0.1)
        await replay
        raise DemoError("the replay ended without a journal")

    async def _until_empty(self) -> None:
        """Return when nothing waits any more, so that what is in Kafka is all there will be."""
        deadline = time.monotonic() + 120
        while waiting := await self._waiting():
            if time.monotonic() > deadline:
                raise DemoError(f"{waiting} events still wait; {self.daemon.last_words()}")
            await asyncio.sleep(0.2)

    async def _waiting(self) -> int:
        return sum(each["entries"] for each in json.loads(await self.daemon.ask("topic", "stats", "--json")))

    async def _stop(self) -> None:
        ledger = await result_of(REMORA, "ledger", "-c", self.daemon.config)
        self.checks.add("the ledger accounts for every entry", [ledger.out + ledger.err] if ledger.code else [])
        self.checks.add("no dead letters", (await self.daemon.ask("dlq", "list")).splitlines()[1:])
        code = await self.daemon.stop()
        tell(f"SIGTERM: remora drained and ended with {code}")
        self.checks.add("the daemon drained and ended with 0", [] if code == 0 else [self.daemon.last_words()])

    # ----------------------------------------------------------------------------------- the verdict

    async def _verify(self) -> results.TopicVerdict:
        """Kafka read back. Here the sender may be late, since the daemon that it sends to was away for seconds."""
        with step("verifying"):
            done = await result_of(
                REMORA, "replay", "verify", self.run_directory.path, "--bootstrap", self.bootstrap,
                "--isolation", "read_committed", "--max-lateness", "1m", "--max-lateness-share", "1000000",
                env=QUICK_JVM,
            )  # fmt: skip
        if not self.run_directory.verdict.exists():
            raise DemoError(f"remora replay verify ended with {done.code}: {done.err.strip()[-2000:]}")
        return layout.read(self.run_directory.verdict, results.TopicVerdict)

    async def _report(self) -> Path:
        """The report, kept where the next demos will not remove it at once."""
        with step("drawing the report"):
            await self._remora("replay", "report", self.run_directory.path)
        kept = cache_home() / "demo-reports" / self.topic
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.run_directory.report, kept)
        for old in sorted(kept.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-KEPT_REPORTS]:
            shutil.rmtree(old, ignore_errors=True)
        return kept / "index.html"

    def _show(self, verdict: results.TopicVerdict, before: Samples, after: Samples, report: Path) -> bool:
        """The outcome, from the most to the least important; returns whether all is well."""
        failed = [*verdict.reasons] if verdict.verdict == results.FAIL else []
        self.checks.add("remora replay verify finds nothing lost, doubled, reordered or foreign", failed)
        unsent = verdict.counts["in_trace"] - verdict.counts["acked"]
        self.checks.add("every event of the trace was acknowledged", [f"{unsent} were not"] if unsent else [])
        console.print()
        is_well = self.checks.show_verdict(
            f"{verdict.counts['acked']} events acknowledged: each in Kafka once, in order per key"
        )
        if verdict.verdict == results.INVALID:
            console.print(f"            INVALID as a measurement: {'; '.join(verdict.reasons)}", markup=False)
        show_counts(verdict.counts)
        age = verdict.latencies["to_log"]
        console.print(f"            event age with the outage: p50 {_ms(age.p50_us)}, p99 {_ms(age.p99_us)}")
        show_metrics([self.topic], "quiet part", before, after)
        console.print(f"            report: {report}", markup=False)
        self.checks.show_each()
        if self.keep:
            self._show_what_is_kept()
        return is_well

    def _show_what_is_kept(self) -> None:
        config = self.daemon.config
        show_commands(
            f".venv/bin/remora run -c {config}",
            f".venv/bin/remora topic stats -c {config}",
            f".venv/bin/remora replay verify {self.run_directory.path} --bootstrap {self.bootstrap}",
            f"scripts/dev-kafka down --name {self.name}; rm -r {self.folder}",
        )

    async def _remora(self, *arguments: str | Path) -> str:
        """Run a command, showing it."""
        console.print(f"            [dim]$ remora {' '.join(map(str, arguments))}[/]")
        return await output_of(REMORA, *arguments, env=QUICK_JVM)


def _span_s(trace: layout.Trace) -> float:
    return (trace.last_us - trace.first_us) / 1e6


def _ms(microseconds: int) -> str:
    return f"{microseconds / 1000:.0f} ms"
