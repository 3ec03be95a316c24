"""Entries that cannot be delivered: kept as dead letters, counted, and in nobody's way."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.queues import Queues, calm, delivers, one_voice
from devkit.processes.daemon import complaints, remora, running_daemon
from devkit.processes.programs import program
from devkit.readers.consumer import check, read_until
from devkit.waits import until
from remora.model.exits import Exit

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]

LIMIT = 20_000
"""The largest batch that the Kafka topic takes."""

GARBAGE = b"\x07\x01\x10\x00\x00\x00this is no entry"


@pytest.mark.guarantee("no-loss")
async def test_dead_letters(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """What cannot be decoded or is too large is parked with its bytes before it is removed; all others arrive."""
    topic = await create_topic(kafka.address, max_message_bytes=LIMIT)
    queues.make(f"kafka://{kafka.address}", name=topic)
    large = queues.event(topic, 1000, padding=3 * LIMIT)
    await queues.fill(topic, 10)
    await queues.commit(topic, GARBAGE)
    await queues.fill(topic, 10, start=10)
    await queues.commit(topic, large)
    await queues.fill(topic, 10, start=20)

    async with running_daemon(tmp_path, calm(queues, kafka={"compression": "none"})) as daemon:
        await delivers(daemon, topic, 30)
        await queues.drained(topic)

        assert await daemon.metric("remora_parked_entries_total", topic=topic, cause="undecodable") == 1
        assert await daemon.metric("remora_parked_entries_total", topic=topic, cause="too_large") == 1
        assert await daemon.metric("remora_parked_entries_total") == 2

        async def balance() -> Any:
            shown = await daemon.command("ledger", topic, "--json")
            return shown.json if shown.code == Exit.OK else None

        [books] = await daemon.until(balance, "a ledger in balance")
        [shard] = books["shards"]
        assert (shard["committed"], shard["delivered"], shard["dead_lettered"]) == (32, 30, 2)
        assert (books["unaccounted"], shard["pending"]) == (0, 0)
        listed = await daemon.command("dlq", "list", topic, "--json")
        assert listed.code == Exit.OK, listed.err
        letters = listed.json
        assert [(each["cause"], base64.b64decode(each["raw"])) for each in letters] == [
            ("undecodable", GARBAGE),
            ("too_large", large),
        ]
        table = (await daemon.command("dlq", "list", topic)).out.decode().splitlines()
        assert len(table) == 3

        for letter, raw in zip(letters, (GARBAGE, large), strict=True):
            place = f"{letter['incarnation']}:{letter['position']}"
            assert place in "".join(table)
            shown = await daemon.command("dlq", "show", topic, place)
            assert {name: shown.json[name] for name in letter} == letter
            assert (await daemon.command("dlq", "show", topic, place, "--raw")).out == raw
        decoded = await remora("entry", "decode", stdin=large)
        assert json.loads(decoded.out)["Records"][0]["eventId"] == "id-1000"
        broken = await remora("entry", "decode", stdin=GARBAGE)
        assert broken.code == Exit.FAILURE
        assert "entry.event at byte 6" in broken.err
        unknown = await daemon.command("dlq", "show", topic, "0/1")
        assert unknown.code == Exit.FAILURE
        assert len(complaints(unknown.err)) == 1
        assert await daemon.stop() == Exit.OK

    verdict = check(
        await read_until(kafka.address, topic, 30), [f"id-{i}" for i in range(30)], lambda each: each.event_id
    )
    parked = [f"{each['incarnation']}:{each['position']}" for each in letters]
    assert [f"{place.incarnation}:{place.turn}/{place.offset}" for _, place in verdict.gaps] == parked
    verdict.gaps.clear()
    assert verdict.is_clean, verdict


async def test_queue_of_garbage(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A queue that holds nothing else is emptied into dead letters, with as many log lines as one of them needs."""
    topic = queues.make(f"kafka://{kafka.address}", name=await create_topic(kafka.address))
    await queues.commit(topic, *(GARBAGE + bytes([i]) for i in range(200)))

    async with running_daemon(tmp_path, calm(queues, **one_voice())) as daemon:
        await queues.drained(topic)

        assert len((await daemon.command("dlq", "list", topic, "--json")).json) == 200
        assert daemon.logged().count("entry_parked") == 1
        await daemon.counted(200, "remora_removed_entries_total", topic=topic)


async def test_metrics_are_what_happened(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """After a small known run every figure on the page is right, and Prometheus' own check likes the page."""
    topic = queues.make(f"kafka://{kafka.address}", name=await create_topic(kafka.address))
    await queues.fill(topic, 70)
    await queues.commit(topic, GARBAGE)
    await queues.fill(topic, 30, start=70)
    entries = await queues.contents(topic)

    async with running_daemon(tmp_path, calm(queues)) as daemon:
        await delivers(daemon, topic, 100)
        await queues.drained(topic)
        await daemon.counted(101, "remora_removed_entries_total", topic=topic)

        async def counts_failures() -> str:
            """The page, once the next reading of the topics has begun all their series."""
            _, page = await daemon.get("/metrics")
            return page if "remora_failures_total{" in page else ""

        page = await until(counts_failures, "the series of the topic begin")
        records = await read_until(kafka.address, topic, 100)
        assert await daemon.stop() == Exit.OK

    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    mine = ("topic", topic)
    assert found["remora_listed_entries_total", mine] == 101
    assert found["remora_listed_bytes_total", mine] == sum(map(len, entries))
    assert found["remora_delivered_entries_total", mine] == 100
    assert found["remora_delivered_bytes_total", mine] == sum(len(each.value) for each in records)
    assert found["remora_removed_entries_total", mine] == 101
    assert found["remora_parked_entries_total", ("cause", "undecodable"), mine] == 1
    assert found["remora_event_age_seconds_count", mine] == 100
    assert found["remora_event_age_seconds_bucket", ("le", "+Inf"), mine] == 100
    assert 0 < found["remora_event_age_seconds_sum", mine] < 100 * 600
    assert found["remora_owned_shards",] == found["remora_eligible_shards",] == 1
    assert found["remora_lock_acquisitions_total",] == 1
    assert found["remora_ready",] == found["remora_store_connected",] == 1
    for name in ("lock_takeovers", "lock_losses", "lock_renewal_failures", "crashes", "discovery_failures"):
        assert found[f"remora_{name}_total",] == 0
    assert {value for key, value in found.items() if key[0] in ("remora_failures_total", "remora_retries_total")} == {0}
    assert promtool(page) == (0, "", "")


def promtool(page: str) -> tuple[int, str, str]:
    """What Prometheus' own tool says of a page."""
    command = [program("promtool", "prometheus"), "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr
