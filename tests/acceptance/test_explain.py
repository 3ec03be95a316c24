"""`remora explain` beside a real daemon and a real Kafka: where events are, why they wait, and what it cannot know."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from acceptance.test_ingest_daemon import ask
from acceptance.test_radosgw_topics import stuck
from devkit.clusters.kafka import Kafka, create_topic
from devkit.clusters.s3 import Zone
from devkit.processes.daemon import Daemon, Sections, complaints, running_daemon
from devkit.processes.processes import freeze
from remora.model.exits import Exit
from support.ingest import records

pytestmark = pytest.mark.kafka

NOBODY = "kafka://127.0.0.1:1"


@asynccontextmanager
async def embedded(folder: Path, **others: dict[str, object]) -> AsyncIterator[Daemon]:
    """A daemon on an embedded store."""
    sections: Sections = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "delivery": {"retry_cap": "1s"},
        "kafka": {"connect_timeout": "3s"},
        **others,
    }
    async with running_daemon(folder, sections) as daemon:
        yield daemon


async def made(daemon: Daemon, topic: str, endpoint: str, *keys: str) -> None:
    """Make a topic of three shards and store an event for each key."""
    done = await daemon.command("topic", "create", topic, "--endpoint", endpoint, "--shards", "3")
    assert done.code == Exit.OK, done.err
    assert (await ask(daemon, "POST", f"/v1/topics/{topic}/events", records(*keys))).status == 200


async def explained(daemon: Daemon, *arguments: str, code: Exit = Exit.OK) -> Any:
    """What the command says as JSON."""
    done = await daemon.command("explain", *arguments, "--json")
    assert done.code == code, done.err
    return json.loads(done.out)


async def text(daemon: Daemon, *arguments: str, code: Exit = Exit.OK) -> str:
    """What the command says to a person."""
    done = await daemon.command("explain", *arguments)
    assert done.code == code, done.err
    return done.out.decode()


async def retries(daemon: Daemon, topic: str) -> dict[str, Any]:
    """The queue of a topic that fails, as soon as it does."""
    found: dict[str, Any] = {}

    async def fails() -> bool:
        nonlocal found
        shards = [each for each in (await daemon.status())["shards"] if each["topic"] == topic]
        found = next((each for each in shards if each["state"] == "retrying"), {})
        return bool(found)

    await daemon.until(fails, "a failure")
    return found


async def test_all_copies_of_an_event_without_a_topic_are_found(tmp_path: Path) -> None:
    """An event that notifications have sent to two topics is found in a queue of each, and `--topic` looks into one."""
    async with embedded(tmp_path) as daemon:
        for topic in ("thumbs", "audit", "other"):
            await made(daemon, topic, NOBODY, "dog.jpg")
        chosen = ("--topic", "thumbs", "--topic", "audit", "--bucket", "b", "--suffix", ".jpg")
        done = await daemon.command("notification", "create", "photos", *chosen)
        assert done.code == Exit.OK, done.err

        async def sent() -> bool:
            answer = await ask(daemon, "POST", "/v1/events", records("cat.jpg"))
            return answer.status == 200 and bool(answer.json["topics"])

        await daemon.until(sent, "the notification is known")
        found = await explained(daemon, "b/cat.jpg")
        shown = await text(daemon, "b/cat.jpg")
        (of_one,) = (await explained(daemon, "b/cat.jpg", "--topic", "audit"))["waiting"]

    assert found["kind"] == "event"
    places = {(each["queue"].partition(".")[0], each["key"], each["event_id"]) for each in found["waiting"]}
    assert places == {(topic, "b/cat.jpg", "id-cat.jpg") for topic in ("thumbs", "audit")}
    assert len(found["waiting"]) == 2
    assert all(f"waits in queue {each['queue']}" in shown for each in found["waiting"])
    assert of_one["queue"] in {each["queue"] for each in found["waiting"]}


async def test_an_event_that_waits_is_found_with_what_stands_before_it(tmp_path: Path) -> None:
    """By id and by key: its queue, the entries before it, why it waits and what to type, with and without daemon."""
    async with embedded(tmp_path) as daemon:
        await made(daemon, "orders", NOBODY, "k", "k", "first")
        queue = (await retries(daemon, "orders"))["queue"]

        by_key = await explained(daemon, "b/k")
        assert by_key["kind"] == "event"
        assert [(each["key"], each["event_id"]) for each in by_key["waiting"]] == [("b/k", "id-k")] * 2
        first, second = by_key["waiting"]
        assert first["queue"] == second["queue"]
        assert first["ahead"] < second["ahead"]
        assert (by_key["dead_letters"], by_key["not_known"]) == ([], [])

        by_bucket = await explained(daemon, "b", "--topic", "orders")
        assert {each["key"].partition("/")[0] for each in by_bucket["waiting"]} == {"b"}
        assert len(by_bucket["waiting"]) >= len(by_key["waiting"])

        by_id = await explained(daemon, "id-k", "--topic", "orders")
        assert [each["position"] for each in by_id["waiting"]] == [first["position"], second["position"]]
        stats = next(each for each in by_id["queues"] if each["queue"] == first["queue"])
        assert stats["entries"] > second["ahead"]
        assert (stats["ledger"]["pending"], stats["ledger"]["unaccounted"]) == (stats["entries"], 0)

        of_queue = await explained(daemon, queue, "--as", "queue")
        (found,) = of_queue["queues"]
        assert found["state"] == "retrying"
        assert found["why"].startswith("retrying for ")
        assert found["reason"] in found["why"]
        assert found["command"] == "remora topic test orders"
        assert found["last_failure"] == found["last_failure"] | {
            "of": "queue", "kind": "transient", "reason": found["reason"]
        }  # fmt: skip
        assert found["failures"] >= 1
        assert found["owner"]["cookie"].startswith("remora/")
        assert f"{found['owner']['lease_left_seconds']:.0f}" != "0"
        shown = await text(daemon, "orders")
        assert shown.startswith("topic orders: 3 queues, 3 entries, oldest ")
        assert "try: remora topic test orders" in shown
        assert " failed in a row; the last failure was " in await text(daemon, "id-first")
        assert "QUEUE" not in shown, "the topic's name is not taken for that of its first queue"

        assert await daemon.stop() == Exit.OK
        away = await explained(daemon, queue, "--as", "queue")
        (found,) = away["queues"]
        assert (found["state"], found["owner"]) == (None, None)
        assert found["why"] == "no worker holds it, and no daemon answers on this host"
        assert found["command"] == "systemctl status remora"
        (silence,) = away["not_known"]
        assert silence.startswith("what the workers are doing: no daemon answers on unix:/")
        assert "waits in queue" in await text(daemon, "id-first")


async def test_an_event_that_was_delivered_is_found_in_kafka(kafka: Kafka, tmp_path: Path) -> None:
    """With its partition and offset where a broker is named; else the command says what it cannot know, and fails."""
    topic = await create_topic(kafka.address, f"explain-{uuid.uuid4().hex[:10]}")
    async with embedded(tmp_path) as daemon:
        await made(daemon, topic, f"kafka://{kafka.address}", "k", "other")
        await daemon.counted(2, "remora_delivered_entries_total", topic=topic)
        await daemon.counted(2, "remora_removed_entries_total", topic=topic)
        for what in ("id-k", "b/k"):
            found = await explained(daemon, what, "--topic", topic, "--bootstrap", kafka.address)
            assert (found["waiting"], found["not_known"]) == ([], [])
            assert [(each["topic"], each["event_id"]) for each in found["delivered"]] == [(topic, "id-k")]
            assert {"partition", "offset", "timestamp"} <= found["delivered"][0].keys()

        async def not_known(*arguments: str) -> str:
            found = await explained(daemon, *arguments, "--topic", topic, code=Exit.FAILURE)
            return "; ".join(found["not_known"])

        assert "with --bootstrap it is looked for in Kafka" in await not_known("id-k")
        assert "whether Kafka had it before" in await not_known("id-of-none", "--bootstrap", kafka.address)
        ever = "--bootstrap", kafka.address, "--since", "49000d"
        assert "whether Kafka had it before 1970-01-01 00:00:00Z (--since)" in await not_known("id-of-none", *ever)
        assert "whether it was ever committed: no reservation is open" in await not_known("id-of-none")
        reserved = await ask(
            daemon, "POST", f"/v1/topics/{topic}/reservations", {"events": [{"bucket": "b", "object": "l"}]}
        )
        assert reserved.status < 300, reserved.body
        assert "whether it is in 1 open reservation:" in await not_known("id-later")

        done = await daemon.command("explain", "id-k", "--topic", topic, "--bootstrap", "127.0.0.1:1")
        assert (done.code, len(complaints(done.err))) == (Exit.FAILURE, 1)
        assert "127.0.0.1:1" in done.err
        assert b"found nowhere" in done.out
        done = await daemon.command("explain", "nothing", "--as", "queue")
        assert (done.code, done.err) == (Exit.FAILURE, "remora: queue 'nothing': there is none\n")


@pytest.mark.full("one topic is at the gate")
async def test_an_event_is_found_in_one_of_many_topics_of_kafka(kafka: Kafka, tmp_path: Path) -> None:
    """Topics that the broker does not have are named, those of other endpoints are not looked for, and the record of
    the event is found by its key, URL-encoded or not."""
    topic = await create_topic(kafka.address, f"explain-{uuid.uuid4().hex[:10]}")
    async with embedded(tmp_path) as daemon:
        await made(daemon, "elsewhere", NOBODY, "other")
        await made(daemon, "by-http", "http://127.0.0.1:1/", "other")
        await made(daemon, topic, f"kafka://{kafka.address}", "a b+ü%")
        await daemon.counted(1, "remora_delivered_entries_total", topic=topic)
        for key in ("b/a b+ü%", "b/a%20b%2B%C3%BC%25", "b/a+b%2B%C3%BC%25"):
            found = await explained(daemon, key, "--bootstrap", kafka.address)
            assert [each["topic"] for each in found["delivered"]] == [topic], key
            assert found["not_known"] == [
                f"whether topic 'elsewhere' of Kafka has it: {kafka.address} has no such topic"
            ]


@pytest.mark.full("what a silent server costs a command has unit tests")
async def test_what_is_there_is_said_when_kafka_or_the_daemon_is_silent(tmp_path: Path) -> None:
    """A waiting event is shown although the broker does not answer, and although the daemon or a worker stands still;
    what is asked for in vain is said, and who holds the lock is not taken for another host."""
    async with embedded(tmp_path, supervisor={"watchdog": "80s"}) as daemon:
        await made(daemon, "orders", NOBODY, "k")
        held = await retries(daemon, "orders")
        done = await daemon.command("explain", "b/k", "--bootstrap", "127.0.0.1:1")
        assert (done.code, len(complaints(done.err))) == (Exit.FAILURE, 1)
        assert b"waits in queue" in done.out

        await freeze([(await daemon.workers())[held["worker"]]])
        (found,) = (await explained(daemon, held["queue"], "--as", "queue"))["queues"]
        assert found["why"].startswith("a worker of this host holds it and does not answer: ")
        assert found["command"] == "remora status"

        await daemon.freeze_all()
        frozen = await explained(daemon, "b/k")
        assert frozen["queues"][0]["why"].startswith("a worker of this host holds it, and its daemon does not answer; ")
        assert frozen["queues"][0]["command"] == "systemctl status remora"
        (silence,) = frozen["not_known"]
        assert silence.endswith("no answer in time")

        await daemon.kill_all()
        (found,) = (await explained(daemon, held["queue"], "--as", "queue"))["queues"]
        assert found["why"].startswith("no worker holds it, and no daemon answers on this host; the lock of worker ")
        assert found["why"].endswith(" has run out")
        assert found["command"] == "systemctl status remora"


@pytest.mark.parametrize("what", ["", "  "])
async def test_nothing_to_be_explained_is_refused(tmp_path: Path, what: str) -> None:
    """An empty WHAT, as of a variable that is not set, is a wrong use of the command and no event that is nowhere."""
    async with embedded(tmp_path) as daemon:
        done = await daemon.command("explain", what)
        assert (done.code, done.out) == (Exit.USAGE, b"")
        assert "WHAT is empty" in done.err


async def test_a_dead_letter_is_found_with_its_cause(tmp_path: Path) -> None:
    """An event that was given up is shown with why, after how many attempts, and the command that shows all of it."""
    async with embedded(tmp_path, delivery={"max_retries": 1, "retry_base": "50ms", "retry_cap": "50ms"}) as daemon:
        await made(daemon, "orders", NOBODY, "k")
        await daemon.counted(1, "remora_parked_entries_total", topic="orders")
        (letter,) = (await explained(daemon, "b/k"))["dead_letters"]
        assert letter["cause"] == "exhausted"
        assert letter["attempts"] >= 1
        assert letter["reason"]
        of_topic = await text(daemon, "orders")
        assert "given up since its ledger began: dead lettered 1" in of_topic
        assert "try: remora dlq list --topic orders" in of_topic
        shown = await text(daemon, "id-k")
        command = next(line for line in shown.splitlines() if "try: " in line).partition("try: remora ")[2]
        done = await daemon.command(*command.split())
        assert (done.code, json.loads(done.out)["cause"]) == (Exit.OK, "exhausted")


@pytest.mark.ceph
async def test_a_queue_of_a_radosgw_is_explained(zone16: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """While remora holds it and fails, and after it was released, when radosgw delivers it."""
    async with stuck(zone16, kafka, tmp_path, "a", "b") as one:
        (found,) = (await explained(one.daemon, one.queue, "--as", "queue"))["queues"]
        assert (found["state"], found["origin"]) == ("retrying", "radosgw")
        assert found["why"].startswith("retrying for ")

        event = await explained(one.daemon, f"{one.topic}/b")
        (place,) = event["waiting"]
        assert (place["queue"], place["ahead"]) == (one.queue, 1)

        assert (await one.daemon.command("shard", "release", one.queue)).code == Exit.OK
        (found,) = (await explained(one.daemon, one.queue, "--as", "queue"))["queues"]
        assert found["why"] == "it is released to radosgw until it is claimed"
        assert found["command"].startswith("remora shard claim ")
