"""Rounds of load and faults on two hosts, three brokers and one store; after each, everything is looked at.

The brokers and the store stay up between rounds. A round puts load on, makes the faults that the seed has drawn, makes
good for them, takes the load off, waits until every queue is empty, reads Kafka and the store, and judges.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop
from aiokafka.admin import NewTopic

from devkit.chaos import clusters, limits, plan, receivers, stands, witness
from devkit.chaos.clusters import ChaosError, Cluster
from devkit.chaos.entries import Destination
from devkit.chaos.hosts import Host
from devkit.chaos.network import Network
from devkit.chaos.receivers import Arrivals
from devkit.chaos.senders import RESERVATION_AGE_S, Account, Client, Gateway
from devkit.chaos.stands import EXACTLY_ONCE, Fed, Mode, Stand, Wanted
from devkit.chaos.strikes import LEASE_S, Hurtable, Strikes
from devkit.chaos.witness import Witness
from devkit.verdicts.checker import Verdict, judge
from devkit.verdicts.history import Balance, History, Kind, Round, Sent, Topic
from devkit.verdicts.verdict import Copy
from remora.config import Settings
from remora.model.errors import StoreError
from remora.model.topic import generation_of, own_topic_name

PARTITIONS = 3
SHARD_BYTES = 1 << 18
IN_FLIGHT_BYTES = 3 * SHARD_BYTES
"""A record's body is up to thrice as long as the entry that it is made of."""

BOOKED = ("unaccounted", "pending", "delivered", "dead_lettered", "expired")

CLIENTS_PER_TOPIC = 2
PAUSE_S = 0.08
"""The mean of a sender's pauses."""

CALM_S = 2.0
EMPTY_S = 120.0
WORKERS = 2


def add_options(parser: argparse._ArgumentGroup) -> None:
    """What `scripts/chaos --store` understands."""
    parser.add_argument("--name", default="", help="clusters to use; those that run already are left running")
    parser.add_argument("--without-exactly-once", action="store_true", help="topics delivered at least once only")
    kinds = ("kafka", "http", "amqp", "nats", "all")
    parser.add_argument("--endpoints", choices=kinds, default="all", help="topics beside those in Kafka (default: all)")
    words = [each.word for each in plan.Fault]
    parser.add_argument(
        "--fault", choices=words, action="append", dest="faults", metavar="FAULT",
        help=f"draw none but this one, and others named so: {', '.join(words)}",
    )  # fmt: skip


def run(options: argparse.Namespace, disk: Path | None) -> bool:
    """All rounds and the verdict; whether all is well. Where it is not, logs and report are left.

    `disk` is a folder with a small file system of its own, for the embedded store.
    """
    options.seed = options.seed or secrets.token_hex(4)
    options.rounds = options.rounds or 10
    folder = Path(tempfile.mkdtemp(prefix="remora-chaos-"))
    passed = False
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            passed = runner.run(_Fleet(options, folder, disk).run())
    finally:
        if passed:
            shutil.rmtree(folder)
    return passed


class _Fleet:
    """One run."""

    def __init__(self, options: argparse.Namespace, folder: Path, disk: Path | None) -> None:
        self._options, self._folder, self._disk = options, folder, disk
        self._run_id = f"chaos-{secrets.token_hex(4)}"
        self._hurtable = Hurtable()
        self._accounts: dict[str, Account] = {}
        self._rounds: list[Round] = []
        self._told: list[dict[str, Any]] = []
        self._arrived: dict[str, int] = {}
        self._verdict = Verdict()
        self._wrong: list[str] = []

    async def run(self) -> bool:
        """Whether everything is as promised."""
        options, began = self._options, time.monotonic()
        try:
            drawn = plan.rounds(options.seed, options.rounds, options.store, _faults(options))
        except ValueError as error:
            raise ChaosError(str(error)) from error
        print(f"seed {options.seed}: {options.rounds} rounds on {options.store}", flush=True)
        try:
            async with AsyncExitStack() as stack:
                await self._set_up(stack)
                print(f"set up in {time.monotonic() - began:.0f} s", flush=True)
                for number, strokes in enumerate(drawn, 1):
                    await self._round(number, strokes)
                    if self._wrong or not self._verdict.is_clean:
                        break  # it gets no better
                await self._stop()
        except (ChaosError, StoreError, TimeoutError) as error:
            self._wrong.append(f"the run could not go on: {error!r}")
        self._verdict = self._verdict if self._rounds else Verdict()
        return self._tell(time.monotonic() - began)

    # ------------------------------------------------------------------------------------------ set up

    async def _set_up(self, stack: AsyncExitStack) -> None:
        options = self._options
        ceph: Cluster | None = None
        async with asyncio.TaskGroup() as tasks:
            kafka_up = tasks.create_task(_entered(stack, clusters.running("kafka", options.name)))
            if options.store == "rados":
                ceph_up = tasks.create_task(_entered(stack, clusters.running("ceph", options.name)))
        self._kafka = kafka_up.result()
        if options.store == "rados":
            ceph = ceph_up.result()
        ports = self._kafka.env["ports"]
        doors = {ports[f"{each}/proxied/door"]: ports[f"{each}/proxied"] for each in self._kafka.daemons}
        network = await stack.enter_async_context(Network(doors).running())
        uri = f"kafka://{self._kafka.env['proxied_bootstrap']}"
        modes = {"once": Mode(uri, EXACTLY_ONCE), "least": Mode(uri)}
        if options.without_exactly_once:
            modes = {"least": Mode(uri), "other": Mode(uri)}
        ends = await self._receivers(stack)
        modes |= {name: Mode(each.uri, each.args) for name, each in ends.items()}
        faults = _faults(options)
        wanted = Wanted(self._run_id, modes, plan.Fault.SPILL in faults, plan.Fault.RESHARD in faults)
        self._stand = await stack.enter_async_context(self._open(ceph, wanted))
        self._topics = self._stand.topics
        bootstrap = self._kafka.env["bootstrap"]
        in_kafka = [each for each in self._topics if each.is_in_kafka]
        await clusters.make_kafka_topics(
            bootstrap,
            [NewTopic(each.name, PARTITIONS, plan.BROKERS, topic_configs=limits.KAFKA_TOPIC) for each in in_kafka],
        )
        self._witness = Witness(bootstrap, {each.name: each.is_exact for each in in_kafka}, PARTITIONS)
        self._ends = {each.uri: each for each in ends.values()}
        sections = _sections(self._stand)
        if plan.Fault.ANSWER_LATE in faults:
            sections["http"] = {"request_timeout": f"{receivers.HTTP_TIMEOUT_S:g}s"}
        self._hosts = [Host(number, self._folder, sections) for number in (1, 2)]
        for host in self._hosts:
            stack.push_async_callback(host.close)
        await asyncio.gather(*(host.start() for host in self._hosts))
        self._strikes = Strikes(self._hosts, self._kafka, self._stand, network, ceph, self._hurtable)
        self._senders = [sender for topic in self._topics for sender in self._senders_of(topic)]
        for sender in self._senders:
            stack.push_async_callback(sender.close)

    def _open(self, ceph: Cluster | None, wanted: Wanted) -> AbstractAsyncContextManager[Stand]:
        if ceph is None:
            return stands.sqlite(self._disk or self._folder, wanted)
        from devkit.chaos.rados_stand import in_rados  # needs Ceph's own binding, which a run on SQLite does not

        return in_rados(ceph, wanted)

    async def _receivers(self, stack: AsyncExitStack) -> Mapping[str, Arrivals]:
        """The other ends of topics that are not Kafka's, by the names of their modes."""
        asked, ends = self._options.endpoints, dict[str, Arrivals]()
        if asked == "nats" and self._options.store != "sqlite":
            raise ChaosError("no radosgw has topics at NATS: --endpoints nats goes with --store sqlite")
        if asked in ("http", "all"):
            chance = random.Random(f"{self._options.seed}/http")
            ends["http"] = over_http = await stack.enter_async_context(receivers.over_http(chance))
            self._hurtable.http = over_http
        if asked in ("amqp", "all"):
            ends["amqp"] = over_amqp = await stack.enter_async_context(receivers.over_amqp())
            self._hurtable.rabbitmq = over_amqp.broker
        if asked in ("nats", "all") and self._options.store == "sqlite":
            strict = plan.Fault.STEP_CLOCK not in _faults(self._options)
            ends["nats"] = over_nats = await stack.enter_async_context(receivers.over_nats(strict=strict))
            self._hurtable.nats = over_nats
        return ends

    async def _seen(self) -> Mapping[str, Sequence[Copy]]:
        """All records so far, by topic."""
        seen = dict(await self._witness.read())
        for uri, end in self._ends.items():
            copies = await end.read()
            for topic in (each for each in self._topics if each.uri == uri):
                seen[topic.name] = [each for each in copies if own_topic_name(each.place.shard) == topic.name]
        return seen

    def _senders_of(self, topic: Fed) -> list[Client | Gateway]:
        account = self._accounts[topic.name] = Account()
        number, seed = len(self._accounts), self._options.seed
        sockets = [host.ingest.removeprefix("unix:") for host in self._hosts]
        clients = [
            Client(f"c{number}{each}", topic.name, sockets, seed, PAUSE_S, account)
            for each in "abcdefg"[:CLIENTS_PER_TOPIC]
            if topic.takes_ingest
        ]
        store = self._stand.store
        to = Destination(topic.uri, topic.args, topic.name)
        return clients + [
            Gateway(name, (store.two_phase, shard), to, random.Random(f"{seed}/{name}"), 2 * PAUSE_S, account)
            for name, shard in zip((f"g{number}{each}" for each in "abcdefg"), topic.by_gateways, strict=False)
        ]

    # ----------------------------------------------------------------------------------------- a round

    async def _round(self, number: int, strokes: Sequence[plan.Stroke]) -> None:
        began, began_at = time.monotonic(), time.time()
        over = asyncio.Event()
        sending = [asyncio.create_task(each.run(over)) for each in self._senders]
        try:
            done = await asyncio.gather(*(self._strikes.strike(each) for each in strokes))
            await asyncio.sleep(CALM_S)
            over.set()
            await asyncio.gather(*sending)
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        for host in self._hosts:
            host.check()
        await self._strikes.heal()
        loaded_s = time.monotonic() - began
        self._wrong += await self._emptied()
        seen = await self._seen()
        self._arrived = {topic.removeprefix(f"{self._run_id}-"): len(copies) for topic, copies in seen.items()}
        self._rounds.append(
            Round(f"round {number}", began_at, time.time(), sum(plan.DOUBLINGS[each.fault] for each in strokes))
        )
        self._verdict = judge(await self._history(seen))
        self._wrong += [each for account in self._accounts.values() for each in account.surprises]
        self._wrong += self._strikes.surprises
        self._say(number, done, loaded_s, time.monotonic() - began)

    async def _emptied(self) -> list[str]:
        """Wait until nothing waits in any queue; what still does after a long time."""
        deadline = time.monotonic() + EMPTY_S
        while True:
            try:
                why = await self._left()
            except StoreError as error:
                why = [f"the store cannot be looked at: {error}"]
            else:
                if not why:
                    return []
            if time.monotonic() > deadline:
                return why
            await asyncio.sleep(0.1)

    async def _left(self) -> list[str]:
        """What waits in the queues, and former layouts of topics, which go when nothing does. Raises StoreError."""
        store = self._stand.store
        own = [await store.own_topics.find(each.name) for each in self._topics if each.takes_ingest]
        found = [each for each in own if each is not None]
        shards = [shard for each in found for shard in each.all_shards()]
        shards += [shard for each in self._topics if not each.takes_ingest for shard in each.shards]
        waiting = [each for each in await store.inspection.backlog(shards) if each.entries]
        return [f"{each.entries} entries wait in {each.shard}, held by {each.holder}" for each in waiting] + [
            f"topic {each.name} has a layout that has not gone: {each.layouts}" for each in found if each.former
        ]

    async def _history(self, seen: Mapping[str, Sequence[Copy]]) -> History:
        letters = await witness.letters(self._stand.store, [topic.name for topic in self._topics])
        balances = await self._balances()
        return History(
            [
                Topic(
                    topic.name,
                    topic.is_exact,
                    _most_shards(topic, balances.get(topic.name, ())),
                    self._sent(topic),
                    seen[topic.name],
                    letters[topic.name],
                    balances.get(topic.name, ()),
                    topic.name in self._strikes.mortal,
                    await witness.reached(self._stand.store, topic.name),
                )
                for topic in self._topics
            ],
            list(self._rounds),
            IN_FLIGHT_BYTES,
            self._strikes.thaws if len(self._rounds) == self._options.rounds else (),  # any of the run's will do
        )

    def _sent(self, topic: Fed) -> Sequence[Sent]:
        """What was sent to a topic; what a receiver has refused for good has to become a dead letter."""
        refused = self._hurtable.http.refused if self._hurtable.http else {}
        sent = self._accounts[topic.name].sent
        return [each._replace(kind=Kind.REFUSED) if each.event_id in refused else each for each in sent]

    async def _balances(self) -> Mapping[str, Sequence[Balance]]:
        """What `remora ledger` says of each shard, by topic."""
        ledger = await self._hosts[0].command("ledger", "--json")
        if not ledger.out:
            raise ChaosError(f"remora ledger ended with {ledger.code}: {ledger.err}")
        return {
            topic["topic"]: [Balance(each["queue"], *(each[name] for name in BOOKED)) for each in topic["shards"]]
            for topic in ledger.json
        }

    async def _stop(self) -> None:
        """End both hosts politely: nothing is left to do, so both ends are clean."""
        for code, host in zip(await asyncio.gather(*(each.stop() for each in self._hosts)), self._hosts, strict=True):
            if code:
                self._wrong.append(f"{host.name} ended with {code} when told to: {host.last_words()}")

    # ------------------------------------------------------------------------------------------- words

    def _say(self, number: int, done: Sequence[str], loaded_s: float, seconds: float) -> None:
        verdict, doubled = self._verdict, self._verdict.doubled[-1]
        sent = sum(len(account.sent) for account in self._accounts.values())
        again = sum(account.asked_again for account in self._accounts.values())
        print(
            f"round {number:3}  {loaded_s:4.1f} s load, {seconds - loaded_s:4.1f} s to drain and check  "
            f"{sent:8,} sent {verdict.delivered:8,} delivered {again:5,} asked again  "
            f"{doubled.records:5,} copies, {doubled.nbytes:,} of {doubled.bound_bytes:,} bytes",
            flush=True,
        )
        for each in done:
            print(f"           {each}", flush=True)
        self._told.append({"round": number, "faults": list(done), "seconds": seconds, "copies": doubled._asdict()})

    def _tell(self, seconds: float) -> bool:
        """The summary; whether all is well. The last line is the verdict."""
        options, verdict = self._options, self._verdict
        passed = not self._wrong and verdict.is_clean and len(self._rounds) == options.rounds
        counts = verdict.counts
        report = {
            "seed": options.seed,
            "store": options.store,
            "passed": passed,
            "seconds": round(seconds, 1),
            "rounds": self._told,
            "sent": dict(Counter(e.fate.name.lower() for account in self._accounts.values() for e in account.sent)),
            "delivered": verdict.delivered,
            "arrived": self._arrived,
            "thaws": getattr(getattr(self, "_strikes", None), "thaws", []),
            "counts": counts,
            "findings": [each._asdict() for each in verdict.findings],
            "wrong": self._wrong,
        }
        files = [self._folder / "report.json", *([options.json] if options.json else [])]
        for file in files:
            file.write_text(json.dumps(report, indent=2) + "\n")
        for text in [f"{each.kind}: {each.text}" for each in verdict.findings][:20] + self._wrong[:20]:
            print(f"WRONG  {text}")
        summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        print(f"{len(self._rounds)} rounds in {seconds:.0f} s: {summary}")
        if passed:
            print(f"PASS  seed {options.seed} on {options.store}: {verdict.delivered:,} delivered")
        else:
            print(
                f"FAIL  {len(verdict.findings) + len(self._wrong)} findings; logs and report: {self._folder}; again: "
                f"scripts/chaos --store {options.store} --seed {options.seed} --rounds {options.rounds}"
                + "".join(f" --fault {each}" for each in options.faults or ())
            )
        return passed


# ---------------------------------------------------------------------------------------------- parts


def _faults(options: argparse.Namespace) -> Collection[plan.Fault]:
    """Which faults may be drawn: those that were named, else plan.UNNAMED; a receiver's where topics go there.

    Where topics go to NATS alone the clock is stepped only by name: the age of an entry would be wrong, and copies
    beyond the stream's window possible.
    """
    named = {each for each in plan.Fault if each.word in options.faults} if options.faults else set(plan.UNNAMED)
    if options.endpoints not in ("http", "all"):
        named.difference_update(plan.OF_HTTP)
    if options.endpoints not in ("amqp", "all"):
        named.difference_update(plan.OF_RABBITMQ)
    if options.endpoints not in ("nats", "all") or options.store != "sqlite":
        named.difference_update(plan.OF_NATS)
    if options.endpoints == "nats" and options.faults is None:
        named.discard(plan.Fault.STEP_CLOCK)
    return named


def _most_shards(topic: Fed, balances: Sequence[Balance]) -> int:
    """How many shards of a topic can have something under way at a time: those of its two largest layouts."""
    layouts = Counter(generation_of(each.shard) for each in balances)
    return max(len(topic.shards), sum(count for _, count in layouts.most_common(2)))


async def _entered(stack: AsyncExitStack, manager: AbstractAsyncContextManager[Cluster]) -> Cluster:
    return await stack.enter_async_context(manager)


def _sections(stand: Stand) -> dict[str, dict[str, object]]:
    """The configuration that both hosts share: short leases, and little in flight."""
    sections: dict[str, dict[str, object]] = {
        "ownership": {
            "lease": f"{LEASE_S:g}s",
            "renew_interval": "1500ms",
            "trust_margin": "1s",
            "discovery_interval": "500ms",
            "reservation_age": f"{RESERVATION_AGE_S:g}s",
            "reservation_interval": "1s",
            "schemes": ["kafka", "http", "amqp"],
        },
        "destinations": {"deny": []},
        "delivery": {"shard_bytes": f"{SHARD_BYTES}B", "retry_cap": "1s", "configuration_recheck": "1s"},
        "kafka": {
            # Longer than a host is frozen: when it goes on, its batches are not given up, but found acknowledged.
            "delivery_timeout": "25s",
            "transaction_timeout": "30s",
            "connect_timeout": "3s",
            "metadata_max_age": "5s",
            "max_batch_bytes": "128KiB",
        },
    }
    if any(each.name == "supervisor" for each in dataclasses.fields(Settings)):
        sections["supervisor"] = {"workers": WORKERS, "watchdog": "4s"}
    sections |= {name: dict(options) for name, options in stand.sections.items()}
    sections.setdefault("rados", {})["op_timeout"] = "1500ms"  # no longer than a renewal may wait for its repetition
    return sections
