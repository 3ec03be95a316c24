"""Carries faults out: hurts, holds, and heals again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.chaos import leaders, limits, shaping
from devkit.chaos.changer import Changer
from devkit.chaos.clusters import ChaosError, Cluster
from devkit.chaos.hosts import Host
from devkit.chaos.moves import hurt_moves
from devkit.chaos.network import Network
from devkit.chaos.plan import BROKERS, Fault, Stroke
from devkit.chaos.receivers import HTTP_TIMEOUT_S, NATS_WINDOW_S, OverHttp, OverNats
from devkit.chaos.stands import Stand
from devkit.chaos.witness import without_letters
from devkit.clusters.rabbitmq import MAX_MESSAGE_BYTES, RabbitMQ
from remora.codec.topic import DEAD_LETTER_TOPIC

LEASE_S = 6.0
ACKS_S = 0.8
"""For so long a host's acknowledgements are held back before it is frozen: then it has something to remove."""

TRYING_S = 3.0
"""For so long a thawed host is watched."""

LARGEST_STEP_S = 600.0
DRAIN_S = 20

LATE_S = 0.3
"""What it sends within this comes from before; later it may own queues again."""

MOST_FREEZES = 12
"""A thawed owner whose renewal was refused before it came to a removal, or that had nothing to do, tries nothing."""


LONGEST_SILENCE_S = 14.0
"""For so long RabbitMQ takes nothing at most: longer than the daemon waits for a confirm."""

RESHARDING_S = 5.0
"""A stroke goes on changing numbers of shards until this time is over."""

LIFE_S = 60
"""For so long entries live for a while; clocks are stepped by more."""

MOST_REFUSED = 12
"""Of records that are refused for good at a time: a topic of which more wait, and nothing arrives, stops."""

PATIENCE_S = 90.0
"""For so long a change of a topic or of a host's file is tried again, while OSDs, the disk or hosts are hurt."""


@dataclass
class Hurtable:
    """The servers of topics that are not Kafka's, where there are any."""

    rabbitmq: RabbitMQ | None = None
    nats: OverNats | None = None
    http: OverHttp | None = None


class Strikes:
    """Everything of a run that can be hurt. `thaws` is what each owner tried that was frozen beyond its lease.

    `mortal` are the topics whose entries were given a limited life.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        kafka: Cluster,
        stand: Stand,
        network: Network,
        ceph: Cluster | None,
        receivers: Hurtable,
    ) -> None:
        self._hosts, self._kafka, self._fed, self._ceph = hosts, kafka, stand.topics, ceph
        self._topics = [each.name for each in stand.topics if each.is_in_kafka]
        self._network, self._ballast, self._rabbitmq = network, stand.ballast, receivers.rabbitmq
        self._store = stand.store
        self._nats, self._http = receivers.nats, receivers.http
        self.thaws: list[int] = []
        self.surprises: list[str] = []
        self.mortal: set[str] = set()
        self._deeds: dict[Fault, Callable[[Stroke], Awaitable[str]]] = {
            Fault.KILL_WORKER: self._kill_worker,
            Fault.KILL_SUCCESSOR: self._kill_successor,
            Fault.KILL_HOST: self._kill_host,
            Fault.FREEZE_WORKER: self._freeze_worker,
            Fault.FREEZE_HOST: self._freeze_host,
            Fault.PAUSE_HOST: self._pause_host,
            Fault.KILL_BROKER: self._kill_broker,
            Fault.FREEZE_BROKER: self._freeze_broker,
            Fault.MOVE_LEADERS: self._move_leaders,
            Fault.CUT: self._cut,
            Fault.DELAY: self._delay,
            Fault.KILL_OSD: self._kill_osd,
            Fault.FULL_DISK: self._fill_disk,
            Fault.STEP_CLOCK: self._step_clock,
            Fault.DRAIN: self._drain,
            Fault.RELOAD: self._reload,
            Fault.LOWER_LIMIT: self._lower_limit,
            Fault.CHANGE_LIFE: self._change_life,
            Fault.SHAPE: self._shape,
            Fault.KILL_RABBITMQ: self._kill_rabbitmq,
            Fault.FREEZE_RABBITMQ: self._freeze_rabbitmq,
            Fault.BLOCK_RABBITMQ: self._block_rabbitmq,
            Fault.LOWER_RABBITMQ: self._lower_rabbitmq,
            Fault.REFUSE: self._refuse,
            Fault.ANSWER_LATE: self._answer_late,
            Fault.KILL_NATS: self._kill_nats,
            Fault.FREEZE_NATS: self._freeze_nats,
            Fault.FILL_NATS: self._fill_nats,
            Fault.SPILL: self._spill,
            Fault.RESHARD: self._reshard,
        }

    async def strike(self, stroke: Stroke) -> str:
        """Do it and make good for it; one line that says what was done."""
        await asyncio.sleep(stroke.after_s)
        began = time.monotonic()
        done = await self._deeds[stroke.fault](stroke)
        return f"{stroke.fault.value}: {done} ({time.monotonic() - began:.1f} s)"

    async def heal(self) -> None:
        """Wait until all brokers and OSDs serve again."""
        for cluster in (each for each in (self._kafka, self._ceph) if each):
            for daemon in cluster.daemons:
                await cluster.start(daemon)

    def _host(self, stroke: Stroke) -> Host:
        return self._hosts[stroke.target % len(self._hosts)]

    def _broker(self, stroke: Stroke) -> str:
        return f"broker.{stroke.target % BROKERS + 1}"

    def _worker(self, stroke: Stroke) -> tuple[Host, int]:
        host = self._host(stroke)
        workers = sorted(host.delivering)
        return host, workers[stroke.target // len(self._hosts) % len(workers)]

    # -------------------------------------------------------------------------------------- processes

    async def _kill_worker(self, stroke: Stroke) -> str:
        host, pid = self._worker(stroke)
        host.send(signal.SIGKILL, pid)
        return f"{host.name}, process {pid}"

    async def _kill_successor(self, stroke: Stroke) -> str:
        """The supervisor must outlive both: a host that has ended by itself is found at the next look."""
        host, pid = self._worker(stroke)
        before, deadline = set(host.delivering), time.monotonic() + PATIENCE_S
        host.send(signal.SIGKILL, pid)
        while not (new := set(host.delivering) - before - {host.pid}):
            host.check()
            if time.monotonic() > deadline:
                self.surprises.append(f"{host.name} started no worker in place of a killed one for {PATIENCE_S:.0f} s")
                break
            await asyncio.sleep(0.01)
        if new:
            host.send(signal.SIGKILL, *new)
        return f"{host.name}, process {pid}, then {', '.join(map(str, new)) or 'none'}"

    async def _kill_host(self, stroke: Stroke) -> str:
        host = self._host(stroke)
        await host.kill()
        await asyncio.sleep(4 * stroke.strength)
        await host.start()
        return f"{host.name}, started again"

    async def _freeze_worker(self, stroke: Stroke) -> str:
        host, pid = self._worker(stroke)
        host.send(signal.SIGSTOP, pid)
        await asyncio.sleep(2 + 6 * stroke.strength)
        host.send(signal.SIGCONT, pid)
        return f"{host.name}, process {pid}"

    async def _freeze_host(self, stroke: Stroke) -> str:
        """Freeze an owner beyond its lease; again when it tried nothing afterwards, because it had nothing to do."""
        times = sends = refusals = 0
        while not (sends or refusals or times == MOST_FREEZES):
            host = await self._owner(stroke)
            sends, refusals = await self._frozen(host, LEASE_S + 1.5 + 2 * stroke.strength)
            times += 1
        self.thaws.append(sends + refusals)
        return f"{host.name} at last, {times} in all; thawed, it tried {sends} sends and was refused {refusals} times"

    async def _owner(self, stroke: Stroke) -> Host:
        """The host that was drawn; the other one when that owns nothing, and so has nothing to try."""
        host = self._host(stroke)
        return host if await host.owned() else self._hosts[(stroke.target + 1) % len(self._hosts)]

    async def _frozen(self, host: Host, seconds: float) -> tuple[int, int]:
        """Freeze a host while acknowledgements are on their way to it, so that it finds them when it goes on.

        What it then tried: sends over connections from before, and removals and transactions that were refused.
        """
        with self._network.held(host.name):
            await asyncio.sleep(ACKS_S)
            pids = self._stop(host)
        await asyncio.sleep(seconds)
        offset, thawed_at = host.log.stat().st_size, time.monotonic()
        sent_before = self._network.sends(host.name, thawed_at)
        host.send(signal.SIGCONT, *pids)
        await asyncio.sleep(LATE_S)
        sends = max(0, self._network.sends(host.name, thawed_at) - sent_before)
        await asyncio.sleep(TRYING_S - LATE_S)
        return sends, host.logged(offset).count('"event": "removal_refused"')

    async def _pause_host(self, stroke: Stroke) -> str:
        host = self._host(stroke)
        pids = self._stop(host)
        await asyncio.sleep(1 + (LEASE_S - 3) * stroke.strength)
        host.send(signal.SIGCONT, *pids)
        return host.name

    def _stop(self, host: Host) -> Sequence[int]:
        """Freeze the supervisor first, so that it does not see its workers stand still."""
        host.send(signal.SIGSTOP)
        pids = host.everybody
        host.send(signal.SIGSTOP, *pids)
        return pids

    # ---------------------------------------------------------------------------------------- brokers

    async def _kill_broker(self, stroke: Stroke) -> str:
        broker = self._broker(stroke)
        await self._kafka.hurt(broker, signal.SIGKILL)
        await asyncio.sleep(1 + 4 * stroke.strength)
        await self._kafka.start(broker, wait=False)
        return broker

    async def _freeze_broker(self, stroke: Stroke) -> str:
        broker = self._broker(stroke)
        await self._kafka.hurt(broker, signal.SIGSTOP)
        try:
            await asyncio.sleep(1 + 6 * stroke.strength)
        finally:
            await self._kafka.hurt(broker, signal.SIGCONT)
        return broker

    async def _move_leaders(self, stroke: Stroke) -> str:
        broker = self._broker(stroke)
        number = int(broker.removeprefix("broker."))
        moved = await leaders.move(self._kafka.env["bootstrap"], self._topics, number, 1 + stroke.strength)
        return f"{moved} partitions away from {broker}"

    async def _cut(self, stroke: Stroke) -> str:
        times = 1 + stroke.target % 3
        for _ in range(times):
            with self._network.cut():
                await asyncio.sleep(0.2 + 1.3 * stroke.strength)
            await asyncio.sleep(0.5)
        return f"{times} times"

    async def _delay(self, stroke: Stroke) -> str:
        delay_s = 0.05 + 0.4 * stroke.strength
        with self._network.delayed(delay_s):
            await asyncio.sleep(4)
        return f"{delay_s:.2f} s each way"

    # --------------------------------------------------------------------------------------- RabbitMQ

    async def _kill_rabbitmq(self, stroke: Stroke) -> str:
        assert self._rabbitmq is not None
        await asyncio.to_thread(self._rabbitmq.kill)
        await asyncio.sleep(4 * stroke.strength)
        await asyncio.to_thread(self._rabbitmq.start)
        return "started again with its files"

    async def _freeze_rabbitmq(self, stroke: Stroke) -> str:
        """It stands still for less than `amqp.delivery_timeout`, or for longer."""
        assert self._rabbitmq is not None
        seconds = 1 + (LONGEST_SILENCE_S - 1) * stroke.strength
        await self._rabbitmq.freeze()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._rabbitmq.signal(signal.SIGCONT)
        return f"for {seconds:.1f} s"

    async def _block_rabbitmq(self, stroke: Stroke) -> str:
        """It stops reading from those who publish, and tells them."""
        assert self._rabbitmq is not None
        seconds = 1 + (LONGEST_SILENCE_S - 1) * stroke.strength
        await self._rabbitmq.control("set_vm_memory_high_watermark", "0")
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._rabbitmq.control("set_vm_memory_high_watermark", "0.4")
        return f"for {seconds:.1f} s"

    async def _lower_rabbitmq(self, stroke: Stroke) -> str:
        """Have larger entries become dead letters for a while. A limit counts for connections that are made later."""
        assert self._rabbitmq is not None
        for nbytes in (limits.SMALLER, MAX_MESSAGE_BYTES):
            await self._rabbitmq.control("eval", f"application:set_env(rabbit, max_message_size, {nbytes}).")
            await self._rabbitmq.control("close_all_connections", "the limit has changed")
            await asyncio.sleep(2 + 3 * stroke.strength)
        return f"{limits.SMALLER} bytes"

    # ------------------------------------------------------------------------------------------- HTTP

    async def _refuse(self, stroke: Stroke) -> str:
        """Some records are refused for good; events come in until each is a dead letter, so that others arrive."""
        assert self._http is not None
        count, deadline = 1 + int((MOST_REFUSED - 1) * stroke.strength), time.monotonic() + 2 * PATIENCE_S
        topics, left = [each.name for each in self._fed], ""
        self._http.refuse(count)
        while not self._http.has_refused or (
            left := ", ".join(await without_letters(self._store, topics, self._http.refused))
        ):
            if time.monotonic() > deadline:
                self.surprises.append(
                    f"refused for good and no dead letters: {left or 'fewer were refused than meant'}"
                )
                break
            await asyncio.sleep(0.2)
        self._http.refuse(0)
        return f"{count} records"

    async def _answer_late(self, stroke: Stroke) -> str:
        """A fifth of what arrives is answered after the daemon's time-out, at times after twice that."""
        assert self._http is not None
        seconds = HTTP_TIMEOUT_S * (1 + 2 * stroke.strength)
        self._http.is_late = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._http.is_late = False
        return f"for {seconds:.1f} s"

    # ------------------------------------------------------------------------------------------- NATS

    async def _kill_nats(self, stroke: Stroke) -> str:
        """It is away for longer than its stream knows ids."""
        assert self._nats is not None
        await asyncio.to_thread(self._nats.server.kill)
        await asyncio.sleep(NATS_WINDOW_S * (1.2 + stroke.strength))
        await asyncio.to_thread(self._nats.server.start)
        return "started again with its files"

    async def _freeze_nats(self, stroke: Stroke) -> str:
        """It stands still for less than `nats.delivery_timeout`, or for longer."""
        assert self._nats is not None
        seconds = 1 + (LONGEST_SILENCE_S - 1) * stroke.strength
        await self._nats.server.freeze()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._nats.server.signal(signal.SIGCONT)
        return f"for {seconds:.1f} s"

    async def _fill_nats(self, stroke: Stroke) -> str:
        """The stream takes no further message for longer than it knows ids."""
        assert self._nats is not None
        await self._nats.fill()
        try:
            await asyncio.sleep(NATS_WINDOW_S * (0.5 + stroke.strength))
        finally:
            await self._nats.empty()
        return "has room again"

    # ------------------------------------------------------------------------------------- the stores

    async def _kill_osd(self, stroke: Stroke) -> str:
        assert self._ceph is not None
        osd = self._ceph.daemons[stroke.target % len(self._ceph.daemons)]
        await self._ceph.hurt(osd, signal.SIGKILL)
        await asyncio.sleep(4 * stroke.strength)
        await self._ceph.start(osd)
        return osd

    async def _fill_disk(self, stroke: Stroke) -> str:
        if self._ballast is None:
            return "left out: the store has no disk of its own here"
        await asyncio.to_thread(_fill, self._ballast)
        try:
            await asyncio.sleep(1 + 3 * stroke.strength)
        finally:
            self._ballast.unlink()
        return "to the last byte"

    async def _spill(self, stroke: Stroke) -> str:
        """Kafka and the HTTP receiver are away while owners are hurt within moves."""
        if self._http is not None:
            self._http.is_away = True
        try:
            with self._network.cut():
                done = await hurt_moves(self._hosts, random.Random(stroke.strength), LEASE_S)
        finally:
            if self._http is not None:
                self._http.is_away = False
        if not done:
            self.surprises.append("no owner came to a move while endpoints were away")
        return ", ".join(done)

    # --------------------------------------------------------------------------------------- commands

    async def _step_clock(self, stroke: Stroke) -> str:
        """It stays wrong until it is stepped again."""
        host = self._host(stroke)
        seconds = LARGEST_STEP_S * (2 * stroke.strength - 1)
        host.step_clock(seconds)
        return f"{host.name} by {seconds:+.0f} s"

    async def _drain(self, stroke: Stroke) -> str:
        host = self._host(stroke)
        drained = await host.command("drain", "--timeout", str(DRAIN_S))
        if drained.code not in (0, 3):
            self.surprises.append(f"remora drain ended with {drained.code}: {drained.err}")
        await asyncio.sleep(2 * stroke.strength)
        undone = await host.command("drain", "--undo")
        if undone.code:
            self.surprises.append(f"remora drain --undo ended with {undone.code}: {undone.err}")
        return f"{host.name}, exit code {drained.code}, and undone"

    async def _reload(self, stroke: Stroke) -> str:
        host, entries = self._host(stroke), 256 << stroke.target % 3
        host.rewrite(delivery={"list_entries": entries})
        host.send(signal.SIGHUP)
        return f"{host.name}, delivery.list_entries is {entries}"

    # ---------------------------------------------------------------------------------------- limits

    async def _lower_limit(self, stroke: Stroke) -> str:
        """Have larger entries become dead letters for a while, and those of some topics have no place to go."""
        stopped = [each.name for each in self._fed if each.takes_ingest and each.is_in_kafka and not each.is_exact]
        await self._set(stopped, "--arg", f"{DEAD_LETTER_TOPIC}={self._topics[0]}-missing")
        await limits.limit(self._kafka.env["bootstrap"], self._topics, limits.SMALLER)
        await asyncio.sleep(2 + 3 * stroke.strength)
        await limits.limit(self._kafka.env["bootstrap"], self._topics, limits.LARGEST)
        await asyncio.sleep(1.5)
        await self._set(stopped, "--unset", DEAD_LETTER_TOPIC)
        return f"{limits.SMALLER} bytes, and letters of {len(stopped)} topics had no place to go"

    async def _change_life(self, stroke: Stroke) -> str:
        """Give up entries of remora's own topics after a time and after few attempts, for a while."""
        own = [each.name for each in self._fed if each.takes_ingest]
        self.mortal.update(own)
        await self._set(own, "--time-to-live", f"{LIFE_S}s", "--max-retries", "1")
        await asyncio.sleep(2 + 4 * stroke.strength)
        await self._set(own, "--unset", "time-to-live", "--unset", "max-retries")
        return f"{LIFE_S} s and one retry for {len(own)} topics"

    async def _reshard(self, stroke: Stroke) -> str:
        """Give remora's own topics other numbers of shards for a while, one change behind the other."""
        ended, own = asyncio.Event(), [each.name for each in self._fed if each.takes_ingest]
        changer = Changer(lambda: contextlib.nullcontext(self._store), own, f"{stroke.target}/{stroke.strength}")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(changer.run(ended))
            await asyncio.sleep(RESHARDING_S * (1 + stroke.strength))
            ended.set()
        return ", ".join(f"{count} {what}" for what, count in sorted(changer.done.items()))

    async def _shape(self, stroke: Stroke) -> str:
        """Let every host limit its traffic, otherwise each time, by its file and a reload; then let all go again."""
        chance = random.Random(stroke.strength)
        changes = 8
        for _ in range(changes):
            for host, scopes in [(each, shaping.scopes(chance)) for each in self._hosts]:
                host.rewrite(shaping={"scope": scopes})
                host.reload()
            await asyncio.sleep(chance.uniform(0.1, 1.5))
        for host in self._hosts:
            host.rewrite(shaping={"scope": []})
        deadline = time.monotonic() + PATIENCE_S
        for host in self._hosts:
            while not host.reload():  # a host that was killed serves again when it does
                if time.monotonic() > deadline:
                    raise ChaosError(f"{host.name} serves no more: {host.last_words()}")
                await asyncio.sleep(0.1)
        return f"{changes} reloads of {len(self._hosts)} hosts, and no limit in the end"

    async def _set(self, topics: Sequence[str], *options: str) -> None:
        """Change topics of remora's own, as soon as their store takes it."""
        deadline = time.monotonic() + PATIENCE_S
        for topic in topics:
            while (done := await self._hosts[0].command("topic", "set", topic, *options)).code:
                if time.monotonic() > deadline:
                    raise ChaosError(f"remora topic set {topic} {' '.join(options)} ended with {done}")
                await asyncio.sleep(0.5)


def _fill(ballast: Path) -> None:
    """Take all room that there is."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(os.urandom(1 << 12)):
            pass
