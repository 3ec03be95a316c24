"""A real broker that stands still for longer than anybody waits, and works again."""

from __future__ import annotations

import re
import signal
import tempfile
import uuid
from pathlib import Path

import pytest

from acceptance.test_ingest_daemon import ask
from devkit.clusters.browser import browsing, opened
from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.queues import assert_clean, assert_whole
from devkit.processes.daemon import Daemon, Sections, running_daemon
from devkit.processes.ports import free_port
from devkit.readers.consumer import check, read_until
from remora.model.exits import Exit
from support.ingest import records

pytestmark = pytest.mark.kafka

PAUSE_S = 7 * 86400
"""The bound below which pauses are drawn evenly: the longest that a configuration may name."""

LONG_S = 600
"""A pause that no test waits for. Four draws come to less than four of these once in 100,000,000,000 times."""

MOST_STARTS = 5
"""The first transactions of a broker may take longer than a delivery may; then the test begins anew."""


async def pauses_s(daemon: Daemon) -> float:
    return await daemon.metric("remora_retry_pause_seconds_total")


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
async def test_a_thawed_broker_is_used_though_every_pause_is_long(fragile_kafka: Kafka, delivery: str) -> None:
    """When a frozen broker answers again entries leave: nobody waits for the end of the hours that were to come."""
    for _ in range(MOST_STARTS):
        topic = await create_topic(fragile_kafka.address, f"thaw-{uuid.uuid4().hex[:10]}")
        if await were_delivered(fragile_kafka, topic, delivery):
            break
    else:
        pytest.fail("a delivery to a broker that is there failed each time")

    is_exact = delivery == "exactly-once"
    found = await read_until(
        fragile_kafka.address, topic, lambda read: len({each.event_id for each in read}) >= 40, committed=is_exact
    )
    verdict = check(found, [f"id-k{number}" for number in range(40)], lambda each: each.event_id)
    (assert_clean if is_exact else assert_whole)(verdict)


async def were_delivered(kafka: Kafka, topic: str, delivery: str) -> bool:
    """Whether twenty events left before a freeze and twenty more after it; False where one failed before the freeze:
    then somebody looks already whether the broker is there, and finds no change when it thaws."""
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        folder = Path(name)
        sections: Sections = {
            "store": {"kind": "sqlite"},
            "sqlite": {"directory": str(folder / "queues"), "files": 2},
            "supervisor": {"workers": 2},
            "kafka": {"connect_timeout": "2s", "delivery_timeout": "3s"},
            "delivery": {"retry_base": f"{PAUSE_S}s", "retry_cap": f"{PAUSE_S}s"},
        }
        async with running_daemon(folder, sections) as daemon:
            endpoint = f"kafka://{kafka.address}"
            made = ("topic", "create", topic, "--endpoint", endpoint, "--shards", "4", "--delivery", delivery)
            assert (await daemon.command(*made)).code == Exit.OK

            async def publish(first: int) -> None:
                keys = [f"k{number}" for number in range(first, first + 20)]
                assert (await ask(daemon, "POST", f"/v1/topics/{topic}/events", records(*keys))).status == 200

            async def delivered_all(count: int) -> bool:
                return await daemon.metric("remora_delivered_entries_total", topic=topic) >= count

            async def failed() -> bool:
                return await daemon.metric("remora_failures_total") > 0

            async def delivered_or_failed() -> bool:
                return await delivered_all(20) or await failed()

            await publish(0)
            await daemon.until(delivered_or_failed, "deliveries")
            if await failed():
                return False
            kafka.stop(how=signal.SIGSTOP)
            try:
                await publish(20)

                async def all_pause() -> bool:
                    """All four shards have failed, and there is one at least that pauses for long."""
                    shards = (await daemon.status())["shards"]
                    retrying = [each for each in shards if each["state"] == "retrying"]
                    return len(retrying) == 4 and await pauses_s(daemon) > 4 * LONG_S

                await daemon.until(all_pause, "long pauses", 120)
                # The next pauses, if there are any, are short ones: right after an outage attempts may fail again.
                daemon.rewrite(delivery={"retry_base": "100ms"})
                daemon.send(signal.SIGHUP)
                await daemon.until(lambda: reloaded(daemon), "a reload")
            finally:
                kafka.stop(how=signal.SIGCONT)
            await daemon.until(lambda: delivered_all(40), "deliveries after the thaw", 120)
            assert await daemon.stop() == Exit.OK
    return True


async def reloaded(daemon: Daemon) -> bool:
    return await daemon.metric("remora_config_reloads_total", result="accepted") == 1


async def test_the_status_page_shows_a_frozen_broker_and_its_return(fragile_kafka: Kafka) -> None:
    """In a browser the topic stands among those that do not deliver, with the reason, until the broker is back."""
    topic = await create_topic(fragile_kafka.address, f"page-{uuid.uuid4().hex[:10]}")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        folder = Path(name)
        sections: Sections = {
            "store": {"kind": "sqlite"},
            "sqlite": {"directory": str(folder / "queues")},
            "admin": {"listen": f"127.0.0.1:{port}"},
            "kafka": {"connect_timeout": "2s", "delivery_timeout": "3s"},
        }
        async with running_daemon(folder, sections) as daemon, browsing() as browser:
            made = ("topic", "create", topic, "--endpoint", f"kafka://{fragile_kafka.address}", "--shards", "2")
            assert (await daemon.command(*made)).code == Exit.OK
            tab = await opened(browser, f"http://127.0.0.1:{port}/")
            await tab.shows("#topics tbody tr", topic)
            await tab.hides("#problems")

            async def publish(*keys: str) -> None:
                assert (await ask(daemon, "POST", f"/v1/topics/{topic}/events", records(*keys))).status == 200

            fragile_kafka.stop(how=signal.SIGSTOP)
            try:
                await publish("k0", "k1")
                await tab.shows("#problem-list li", topic)
                await tab.shows("#topics td", "ago, transient")
                await tab.shows("#topics td", "next attempt in ")
            finally:
                fragile_kafka.stop(how=signal.SIGCONT)
            await tab.hides("#problems")
            await tab.page.locator("#topics td[data-title=Delivered]", has_text=re.compile("^2$")).wait_for()
            assert tab.wrong == []
            assert all(each.startswith((f"http://127.0.0.1:{port}/", "data:")) for each in tab.asked)
