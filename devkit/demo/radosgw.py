"""The demo of a cluster: what a real radosgw commits reaches Kafka.

How the bytes are compared: the topic begins with an HTTP endpoint, to which radosgw itself posts every entry of
its queue. That endpoint writes the bodies down and does not take them, so that the entries stay in the queue.
Then the topic is given its Kafka endpoint, remora takes the queue from radosgw and delivers the very same
entries. What follows live is compared with what radosgw posts for a second topic of the same bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devkit.demo import verdict
from devkit.demo.s3_load import Load
from devkit.demo.show import Checks, Samples, console, show_commands, show_metrics, step, tell, working_folder
from devkit.demo.stand import DemoError, Shown, Sink, clusters, make_kafka_topic, rados_sections, radosgw_client
from devkit.readers.consumer import Delivered, check, read_until

PARTITIONS = 3
GATEWAY_LOOKS_S = 60.0
"""radosgw looks for new queues every 30 s."""


class Demo:
    """One run."""

    def __init__(self, release: int, keep: bool) -> None:
        self.release, self.keep = release, keep
        self.name = f"demo{release}" if keep else f"demo-{os.getpid()}"
        self.topic = f"demo-{uuid.uuid4().hex[:8]}"
        self.checks = Checks()
        self.count = 0
        self.arn = ""
        self.bootstrap = ""
        self.folder: Path
        self.sink: Sink
        self.daemon: Shown
        self.load: Load

    async def run(self) -> bool:
        """Everything; returns whether all is well."""
        async with contextlib.AsyncExitStack() as stack:
            self.folder = stack.enter_context(working_folder(self.name, self.keep))
            with step("starting Ceph with radosgw, and Kafka"):
                running = clusters(self.name, self.name, self.release, self.keep)
                env, self.bootstrap = await stack.enter_async_context(running)
            tell(f"Ceph {self.release}.2 with radosgw and a Kafka broker are running")
            await self._play(env)
            tell("Ceph and Kafka are left running" if self.keep else "stopping Ceph and Kafka")
        if self.keep:
            self._show_what_is_kept()
        return self.checks.show(
            f"{self.count} notifications from radosgw {self.release}.2: each in Kafka once, "
            "in order per key, with radosgw's bytes"
        )

    async def _play(self, env: dict[str, Any]) -> None:
        self.daemon = Shown(self.folder, rados_sections(env))
        async with radosgw_client("s3", env) as s3, radosgw_client("sns", env) as sns, Sink() as self.sink:
            self.load = Load(s3, self.topic)
            async with self.daemon:
                await self._make_topic(s3, sns)
                backlog = await self._backlog(sns)
                before = await self._live(s3, sns, backlog)
                after = await self.daemon.metrics()
                await self._stop()
            self._judge(await self._read(self.load.count), backlog)
        show_metrics([self.topic], "live part", before, after)

    # ------------------------------------------------------------------------------------- the story

    async def _make_topic(self, s3: Any, sns: Any) -> None:
        await make_kafka_topic(self.bootstrap, self.topic, PARTITIONS)
        self.arn = await self._point_topic_to(sns, f"{self.sink.url}/held")
        await s3.create_bucket(Bucket=self.topic)
        await self._notify(s3, main=self.arn)
        tell(f"radosgw has bucket and persistent topic {self.topic}; its HTTP endpoint takes nothing yet")
        with step("starting remora"):
            await self.daemon.until_ready()
        tell("remora runs, and leaves HTTP topics to radosgw:")
        for line in (await self.daemon.ask("topic", "list")).splitlines():
            if line.startswith(("TOPIC", self.topic)):
                console.print(f"            [dim]{line}[/]", markup=True)

    async def _point_topic_to(self, sns: Any, endpoint: str) -> str:
        attributes = {"push-endpoint": endpoint, "persistent": "true", "OpaqueData": "from the demo"}
        return str((await sns.create_topic(Name=self.topic, Attributes=attributes))["TopicArn"])

    async def _notify(self, s3: Any, **topics: str) -> None:
        """Send the bucket's events to these topics."""
        events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
        configs = [{"Id": name, "TopicArn": arn, "Events": events} for name, arn in topics.items()]
        await s3.put_bucket_notification_configuration(
            Bucket=self.topic, NotificationConfiguration={"TopicConfigurations": configs}
        )

    async def _backlog(self, sns: Any) -> int:
        """Entries that radosgw posts and cannot get rid of, and that remora then delivers; returns how many."""
        with step("writing, copying, uploading in parts and deleting objects through S3"):
            await self.load.round()
        count = self.load.count
        tell(f"{count} notifications of {len(self.load.expected)} keys wait in the queue")
        with step("waiting for radosgw to look for new queues, every 30 s"):
            await self._until_posted(count)
        tell(f"radosgw has posted all {count}, and the endpoint has written them down without taking one")

        await self._point_topic_to(sns, f"kafka://{self.bootstrap}")
        with step("taking the queue from radosgw"):
            claimed = await self.daemon.ask("shard", "claim", self.topic if self.release == 16 else f":{self.topic}")
        self.sink.refuse()
        tell(f"the topic has a Kafka endpoint now; {claimed.split(' (')[0]}")
        since = time.monotonic()
        with step("reading Kafka"):
            found = await self._read(count)
        tell(f"{len(found)} notifications are in Kafka {time.monotonic() - since:.1f} s later")
        return count

    async def _until_posted(self, count: int) -> None:
        """Wait for every body. What radosgw had listed earlier is refused once, so that it lists everything."""
        seen, deadline = 0, time.monotonic() + GATEWAY_LOOKS_S
        while len(self.sink.held) < count:
            if time.monotonic() > deadline:
                raise DemoError(f"radosgw posted only {len(self.sink.held)} of {count} in {GATEWAY_LOOKS_S:.0f} s")
            await asyncio.sleep(1)
            if 0 < len(self.sink.held) == seen:
                self.sink.refuse()
            seen = len(self.sink.held)

    async def _live(self, s3: Any, sns: Any, backlog: int) -> Samples:
        """Operations while remora delivers; returns the metrics from before them."""
        attributes = {"push-endpoint": f"{self.sink.url}/mirror", "OpaqueData": "from the demo"}
        mirror = await sns.create_topic(Name=f"{self.topic}-mirror", Attributes=attributes)
        await self._notify(s3, main=self.arn, mirror=mirror["TopicArn"])
        before = await self.daemon.metrics()
        with step("the same through S3 again, while remora delivers"):
            await self.load.round()
            await self._read(self.load.count)
        tell(
            f"{self.load.count - backlog} more were caused and delivered live, and posted by radosgw to a second topic"
        )
        return before

    async def _stop(self) -> None:
        """What remains, and the drain."""
        stats = (await self.daemon.ask("topic", "stats", self.topic, "--exact")).splitlines()
        waiting = stats[1].split()[3]
        self.checks.add("nothing waits in the queue", [] if waiting == "0" else stats)
        letters = (await self.daemon.ask("dlq", "list")).splitlines()[1:]
        self.checks.add("no dead letters", letters)
        code = await self.daemon.stop()
        tell(f"SIGTERM: remora drained and ended with {code}")
        self.checks.add("the daemon drained and ended with 0", [] if code == 0 else [self.daemon.last_words()])

    async def _read(self, at_least: int) -> list[Delivered]:
        return await read_until(self.bootstrap, self.topic, at_least)

    # ----------------------------------------------------------------------------------- the verdict

    def _judge(self, records: Sequence[Delivered], backlog: int) -> None:
        expected = {f"{self.topic}/{key}".encode(): events for key, events in self.load.expected.items()}
        caused = [(key, event) for key, events in expected.items() for event in events]
        found = check(records, caused, lambda each: (each.key, verdict.event_of(each)))
        bodies = [each.value for each in sorted(records, key=lambda each: each.place.order)]
        posted, mirrored = list(self.sink.held), self.sink.mirrored
        self.count = len(records)
        self.checks.add("every notification that S3 caused is in Kafka", [*map(str, found.lost + found.unexpected)])
        self.checks.add("and only once", [*map(str, found.duplicated)])
        disorder = [*map(str, (*found.reordered, *found.scattered)), *verdict.disordered(records, expected)]
        self.checks.add("in the order of the operations, per key", disorder)
        self.checks.add("the chain of remora-pos and remora-next is whole", [*map(str, found.gaps)])
        self.checks.add(
            f"the first {len(posted)} are byte for byte what radosgw posted for the same entries",
            verdict.differences(bodies[:backlog], posted),
        )
        self.checks.add(
            f"the other {len(mirrored)} are byte for byte its posts to the second topic, but for ids made per topic",
            verdict.differences(verdict.masked(bodies[backlog:]), verdict.masked(mirrored)),
        )

    def _show_what_is_kept(self) -> None:
        """Commands to look at it, and to remove it."""
        show_commands(
            f".venv/bin/remora run -c {self.daemon.config}",
            f".venv/bin/remora topic list -c {self.daemon.config}",
            f"scripts/dev-ceph down --name {self.name}; scripts/dev-kafka down --name {self.name}",
        )
