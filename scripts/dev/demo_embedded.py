"""The demo without a cluster: durable queues in files of this host, filled over HTTP, delivered to a real Kafka.

The broker is stopped while events are taken in, and the daemon is killed while they wait. So what is in Kafka in the
end was kept on disk, and nothing had a chance to be sent twice: each event must be there exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import demo_verdict as verdict
from demo_events import Traffic, batches, ndjson
from demo_show import Checks, Samples, console, show_commands, show_metrics, step, tell, working_folder
from demo_stand import REMORA, SCRIPTS, Daemon, kafka_alone, make_kafka_topic, output_of

from remora.client import IngestClient

PARTITIONS = 3
FIRST, LIVE = 2000, 1000
"""Events of each topic that wait before delivery begins, and that follow while remora delivers."""


class Demo:
    """One run."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.name = "demo" if keep else f"demo-{os.getpid()}"
        run = uuid.uuid4().hex[:6]
        self.photos, self.documents = f"photos-{run}", f"documents-{run}"
        self.traffic = {self.photos: Traffic("photos", 1), self.documents: Traffic("documents", 2)}
        self.checks = Checks()
        self.bootstrap = ""
        self.folder: Path
        self.daemon: Daemon

    async def run(self) -> bool:
        """Everything; returns whether all is well."""
        async with contextlib.AsyncExitStack() as stack:
            self.folder = stack.enter_context(working_folder(self.name, self.keep))
            with step("starting Kafka"):
                self.bootstrap = await stack.enter_async_context(kafka_alone(self.name, self.keep))
            for topic in self.traffic:
                await make_kafka_topic(self.bootstrap, topic, PARTITIONS)
            tell(f"a Kafka broker runs, with topics {self.photos} and {self.documents}")
            await self._play()
            tell("Kafka is left running" if self.keep else "stopping Kafka")
        if self.keep:
            self._show_what_is_kept()
        total = sum(each.count for each in self.traffic.values())
        return self.checks.show(f"{total} events: each acknowledged from disk, in Kafka once, in order per key")

    async def _play(self) -> None:
        self.daemon = Daemon(
            self.folder,
            f'[store]\nkind = "sqlite"\n\n[sqlite]\ndirectory = "{self.folder}/queues"\n\n'
            f'[ingest]\nlisten = "unix:{self.folder}/ingest.sock"\n',
        )
        async with self.daemon:
            await self._make_topics()
            await self._take_in_without_kafka()
            await self._die()
        async with self.daemon:
            await self.daemon.until_ready()
            tell("remora runs again, with the same directory")
            await self._deliver()
            before, after = await self._live()
            await self._stop()
        await self._judge()
        show_metrics(list(self.traffic), before, after)

    # ------------------------------------------------------------------------------------- the story

    async def _make_topics(self) -> None:
        with step("starting remora"):
            await self.daemon.until_ready()
        for topic in self.traffic:
            await self.daemon.ask("topic", "create", topic, "--endpoint", f"kafka://{self.bootstrap}")
        tell("remora runs; its topics, each with 11 shards in files of this host:")
        for line in (await self.daemon.ask("topic", "list")).splitlines():
            console.print(f"            [dim]{line}[/]", markup=True)

    async def _take_in_without_kafka(self) -> None:
        await output_of(SCRIPTS / "dev-kafka", "stop", "broker.1", "--signal", "KILL", "--name", self.name)
        tell("Kafka was killed")
        with step("sending events"):
            await self._send_by_command(self.photos, FIRST)
            await self._send_in_two_phases(self.documents, FIRST)
        waiting = {
            each["topic"]: each["entries"] for each in json.loads(await self.daemon.ask("topic", "stats", "--json"))
        }
        wanted = {topic: traffic.count for topic, traffic in self.traffic.items()}
        self.checks.add("every acknowledged event waits on disk while Kafka is away", _difference(waiting, wanted))
        tell(f"{sum(waiting.values())} events are acknowledged and wait")

    async def _die(self) -> None:
        await self.daemon.kill()
        tell("remora was killed")

    async def _deliver(self) -> None:
        with step("starting Kafka"):
            await output_of(SCRIPTS / "dev-kafka", "start", "broker.1", "--name", self.name)
        since = time.monotonic()
        with step("reading Kafka"):
            found = [len(await self._read(topic)) for topic in self.traffic]
        tell(f"Kafka is back; {sum(found)} events are in it {time.monotonic() - since:.1f} s later")

    async def _live(self) -> tuple[Samples, Samples]:
        """Events while remora delivers, and the metrics before and after."""
        before = await self.daemon.metrics()
        with step("sending more while remora delivers"):
            await asyncio.gather(
                self._send_by_command(self.photos, LIVE), self._send_in_two_phases(self.documents, LIVE)
            )
            for topic in self.traffic:
                await self._read(topic)
        tell(f"{2 * LIVE} more were delivered live")
        return before, await self.daemon.metrics()

    async def _stop(self) -> None:
        stats = json.loads(await self.daemon.ask("topic", "stats", "--json"))
        self.checks.add("nothing waits any more", [str(each) for each in stats if each["entries"]])
        self.checks.add("no dead letters", (await self.daemon.ask("dlq", "list")).splitlines()[1:])
        code = await self.daemon.stop()
        tell(f"SIGTERM: remora drained and ended with {code}")
        self.checks.add("the daemon drained and ended with 0", [] if code == 0 else [self.daemon.last_words()])

    # ---------------------------------------------------------------------------------------- sending

    async def _send_by_command(self, topic: str, count: int) -> None:
        """What a shell script does."""
        file = self.folder / "events.ndjson"
        file.write_bytes(ndjson(self.traffic[topic].records(count)))
        tell((await output_of(REMORA, "send", topic, file, "-c", self.daemon.config)).strip().splitlines()[-1])

    async def _send_in_two_phases(self, topic: str, count: int) -> None:
        """What a gateway does: reserve, do the operation, commit; and abort when the operation fails."""
        traffic, aborted, repeated = self.traffic[topic], 0, 0
        async with IngestClient(f"unix:{self.folder}/ingest.sock") as client:
            for number, records in enumerate(batches(traffic.records(count), 20)):
                reservation = await client.reserve(topic, [_room(record) for record in records])
                await client.commit(reservation, records)
                if number % 10 == 0:  # as if the answer had been lost
                    repeated += (await client.commit(reservation, records)).repeated
                if number % 10 == 5:
                    given_up = traffic.records(20)
                    await client.abort(await client.reserve(topic, [_room(record) for record in given_up]))
                    traffic.forget(given_up)
                    aborted += 1
        tell(f"{count} events committed in two phases; {aborted} reservations aborted, {repeated} commits repeated")

    # ----------------------------------------------------------------------------------- the verdict

    async def _read(self, topic: str) -> list[verdict.Message]:
        return await verdict.read_topic(self.bootstrap, topic, PARTITIONS, self.traffic[topic].count, timeout_s=60)

    async def _judge(self) -> None:
        missing: list[str] = []
        doubled: list[str] = []
        disordered: list[str] = []
        gaps: list[str] = []
        for topic, traffic in self.traffic.items():
            messages = await self._read(topic)
            missing += verdict.missing(messages, traffic.expected)
            doubled += verdict.doubled(messages)
            disordered += verdict.disordered(messages, traffic.expected)
            gaps += verdict.gaps(messages)
        self.checks.add("every acknowledged event is in Kafka, and none that was aborted", missing)
        self.checks.add("and only once", doubled)
        self.checks.add("in the order of the requests, per key", disordered)
        self.checks.add("the chains of remora-pos and remora-next are whole, in all shards", gaps)

    def _show_what_is_kept(self) -> None:
        config = self.daemon.config
        show_commands(
            f".venv/bin/remora run -c {config}",
            f".venv/bin/remora topic stats -c {config}",
            f".venv/bin/remora send {self.photos} {self.folder}/events.ndjson -c {config}",
            f"scripts/dev-kafka down --name {self.name}; rm -r {self.folder}",
        )


def _room(record: dict[str, Any]) -> tuple[str, str, int]:
    """Bucket, object, and what the event may need at most."""
    return record["s3"]["bucket"]["name"], record["s3"]["object"]["key"], 4096


def _difference(found: dict[str, int], wanted: dict[str, int]) -> Sequence[str]:
    return [] if found == wanted else [f"found {found}, expected {wanted}"]
