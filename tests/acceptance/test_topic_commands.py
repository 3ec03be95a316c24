"""Topics of remora's own from the command line, beside a running daemon and beside a radosgw's."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.queues import Described, Queues, calm, metadata
from devkit.processes.daemon import PATIENT, Daemon, Ended, Sections, merged, remora, running_daemon, write_config
from devkit.readers.consumer import Delivered, check, read_all, read_until
from remora.model.exits import Exit
from remora.model.shard import Origin, Shard

NOBODY = "kafka://127.0.0.1:1"
"""An endpoint that refuses every connection."""

KEYS = 10


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Daemon]:
    """A daemon on an embedded store that takes events in."""
    sections: Sections = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 2},
        "ingest": {"listen": f"unix:{folder}/ingest"},
        "ownership": {"discovery_interval": "500ms"},
        "delivery": {"retry_cap": "1s"},
        "kafka": {"connect_timeout": "3s"},
    }
    async with running_daemon(folder, merged(PATIENT, sections)) as daemon:
        yield daemon


async def post(daemon: Daemon, topic: str, numbers: range) -> int:
    """Send events whose ids are their numbers, over some keys; the answer's status."""
    listen = str(daemon.sections["ingest"]["listen"])
    connector = aiohttp.UnixConnector(path=listen.removeprefix("unix:"))
    records = [
        {
            "eventVersion": "2.2",
            "eventSource": "ceph:s3",
            "eventTime": "2026-01-02T03:04:05.678901Z",
            "eventName": "ObjectCreated:Put",
            "eventId": f"id-{number}",
            "s3": {"bucket": {"name": "bkt"}, "object": {"key": f"k{number % KEYS}", "size": 1}},
        }
        for number in numbers
    ]
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://localhost/v1/topics/{topic}/events", json={"Records": records}) as answer,
    ):
        return answer.status


async def made(daemon: Daemon, *words: str) -> str:
    """A topic that `topic create` makes with these options."""
    topic = f"own-{uuid.uuid4().hex[:10]}"
    done = await daemon.command("topic", "create", topic, *words)
    assert done.code == Exit.OK, done.err
    return topic


async def waiting(daemon: Daemon, topic: str) -> int:
    """How many entries `topic stats` counts."""
    (stats,) = (await daemon.command("topic", "stats", topic, "--json")).json
    entries: int = stats["entries"]
    return entries


def assert_once_and_in_order(records: list[Delivered], numbers: range) -> None:
    verdict = check(records, [f"id-{number}" for number in numbers], lambda each: each.event_id)
    assert verdict.is_clean, verdict
    for partition in {each.partition for each in records}:
        for key in {each.key for each in records}:
            ids = [int(e.event_id[3:]) for e in records if (e.partition, e.key) == (partition, key)]
            assert ids == sorted(ids), key


@pytest.mark.guarantee("topics-of-remoras-own")
@pytest.mark.kafka
async def test_the_life_of_a_topic(kafka: Kafka, folder: Path) -> None:
    """A topic is made beside a running daemon, its events are delivered in order, and it is removed when empty."""
    target = await create_topic(kafka.address)
    async with embedded(folder) as daemon:
        topic = await made(daemon, "--endpoint", f"kafka://{kafka.address}", "--kafka-topic", target, "--shards", "5")

        assert await post(daemon, topic, range(100)) == 200
        assert await post(daemon, topic, range(100, 200)) == 200
        records = await read_until(kafka.address, target, 200)

        async def is_empty() -> bool:
            return await waiting(daemon, topic) == 0

        await daemon.until(is_empty, "an empty topic")
        removed = await daemon.command("topic", "rm", topic)
        assert removed.code == Exit.OK, removed.err
        assert await post(daemon, topic, range(1)) == 404
        assert await daemon.stop() == Exit.OK

    assert_once_and_in_order(records, range(200))
    assert {each.shard for each in records} <= {topic, *(f"{topic}.{number}" for number in range(1, 5))}
    assert len({each.shard for each in records}) > 1


@pytest.mark.guarantee("topics-of-remoras-own")
@pytest.mark.kafka
async def test_waiting_events_follow_the_topic_and_a_drain_waits_for_them(kafka: Kafka, folder: Path) -> None:
    """A topic is not removed while events wait; a drain closes it, and ends when they have gone to its new endpoint."""
    target = await create_topic(kafka.address)
    async with embedded(folder) as daemon:
        topic = await made(daemon, "--endpoint", NOBODY, "--kafka-topic", target)
        assert await post(daemon, topic, range(50)) == 200
        await daemon.until(lambda: is_held_and_stuck(daemon, 11), "a refused connection")

        refused = await daemon.command("topic", "rm", topic)
        timed_out = await daemon.command("topic", "rm", topic, "--drain", "--timeout", "1s")
        closed = await post(daemon, topic, range(50, 60))
        opened = await daemon.command("topic", "set", topic, "--open")
        again = await post(daemon, topic, range(50, 60))
        drain = asyncio.create_task(daemon.command("topic", "rm", topic, "--drain", "--timeout", "170s"))
        await daemon.until(lambda: is_closed(daemon, topic), "a closed topic")
        changed = await daemon.command("topic", "set", topic, "--endpoint", f"kafka://{kafka.address}")
        drained = await drain
        listed = await daemon.command("topic", "list", "--json")
        records = await read_all(kafka.address, target)
        assert await daemon.stop() == Exit.OK

    assert refused.code == Exit.FAILURE
    assert "50 entries" in refused.err
    assert timed_out.code == Exit.DRAIN_TIMEOUT
    assert "50 entries" in timed_out.err
    assert "does a daemon run?" not in timed_out.err
    assert closed == 409
    assert (opened.code, again) == (Exit.OK, 200)
    assert changed.code == Exit.OK, changed.err
    assert drained.code == Exit.OK, drained.err
    assert drained.out.decode() == f"topic {topic} is removed with 11 shards\n"
    assert listed.json == []
    assert_once_and_in_order(records, range(60))


async def is_held_and_stuck(daemon: Daemon, shards: int) -> bool:
    """Whether this many queues are held, by both workers in equal parts so that none of them is about to be moved, and
    the entries of one at least cannot be delivered."""
    held = (await daemon.status())["shards"]
    of_workers = Counter(each["worker"] for each in held).values()
    is_shared = len(of_workers) == 2 and max(of_workers) - min(of_workers) <= 1
    return len(held) == shards and is_shared and any(each["state"] == "retrying" for each in held)


async def is_closed(daemon: Daemon, topic: str) -> bool:
    shown = await daemon.command("topic", "show", topic, "--json")
    return bool(shown.json["closed"])


@pytest.mark.full("the commands' parts are at the gate")
@pytest.mark.kafka
async def test_a_topic_with_waiting_events_is_looked_into_and_given_up(kafka: Kafka, folder: Path) -> None:
    """What waits is counted, shown and held by the daemon; it is given up only when that is asked for, and counted."""
    async with embedded(folder) as daemon:
        topic = await made(daemon, "--endpoint", NOBODY, "--shards", "3")
        assert await post(daemon, topic, range(30)) == 200
        await daemon.until(lambda: is_held_and_stuck(daemon, 3), "a refused connection")
        (stats,) = (await daemon.command("topic", "stats", topic, "--json")).json
        dump = [json.loads(line) for line in (await daemon.command("topic", "dump", topic)).out.splitlines()]
        owners = [each["owner"] for each in (await daemon.command("shard", "list", "--json")).json]
        discarded = await daemon.command("topic", "rm", topic, "--discard")
        assert await daemon.stop() == Exit.OK

    assert (stats["shards"], stats["entries"], stats["entries_exact"]) == (3, 30, True)
    assert {line["notification"]["Records"][0]["eventId"] for line in dump} == {f"id-{n}" for n in range(30)}
    assert [line["queue"] for line in dump] == sorted(line["queue"] for line in dump)
    assert all(owner["is_remora"] for owner in owners)
    assert discarded.out.decode() == f"topic {topic} is removed with 3 shards; 30 entries were given up\n"


# --------------------------------------------------------------------------------------- beside a radosgw


@pytest.mark.ceph
@pytest.mark.full("a topic beside a radosgw's is at the gate, and the file's rules beside fakes")
async def test_a_file_of_topics_leaves_a_radosgws_alone(queues: Queues, tmp_path: Path) -> None:
    """On a cluster a file makes, changes and prunes remora's topics, and remarks on a radosgw's of the same name."""
    name = queues.make(NOBODY)
    await queues.fill(name, 3)
    before = metadata([Described(name, NOBODY)])
    config = write_config(tmp_path / "remora.toml", calm(queues))
    file = tmp_path / "topics.toml"

    async def apply(text: str, *options: str) -> Ended:
        file.write_text(text)
        return await remora("topic", "apply", "-f", file, *options, "-c", config)

    table = f"[topic.{name}]\nendpoint = '{NOBODY}'\nshards = 3\n"
    dry = await apply(table, "--dry-run")
    made = await apply(table)
    again = await apply(table, "--dry-run", "--prune")
    changed = await apply(f"{table}max-retries = 7\n")
    sequenced = await apply("[topic.numbered]\nendpoint = 'kafka://b'\nsequence = true\n")
    pruned = await apply("", "--prune")
    left = (await remora("topic", "list", "--json", "-c", config)).json

    assert (dry.code, made.code, again.code, changed.code, pruned.code) == (Exit.DIFFERS, 0, 0, 0, 0), pruned.err
    assert f"remark on {name}: radosgw has a topic of this name too" in made.out.decode()
    assert f"~ {name}\n    max-retries: default -> 7\n" in changed.out.decode()
    assert (sequenced.code, "numbered" in sequenced.err) == (Exit.FAILURE, True)
    assert f"- {name}: 3 shards\n" in pruned.out.decode()
    assert [(each["topic"], each["origin"]) for each in left] == [(name, "radosgw")]
    assert queues.gateway.ioctx.read("pubsub.", 1 << 20) == before
    assert len(await queues.contents(name)) == 3


@pytest.mark.ceph
async def test_a_topic_beside_a_radosgws_of_the_same_name(queues: Queues, tmp_path: Path) -> None:
    """On a cluster remora's topics are made, shown and removed without touching radosgw's, which are never altered."""
    name = queues.make(NOBODY)
    await queues.fill(name, 3)
    before = metadata([Described(name, NOBODY)])
    file = write_config(tmp_path / "remora.toml", calm(queues))

    async def topic(*words: str) -> Ended:
        return await remora("topic", *words, "-c", file)

    for words in (["set", name, "--max-retries", "1"], ["rm", name, "--discard"]):
        theirs = await topic(*words)
        assert theirs.code == Exit.FAILURE
        assert "radosgw's" in theirs.err
        assert "aws sns" in theirs.err
    created = await topic("create", name, "--endpoint", NOBODY, "--shards", "3")
    entry = queues.event(name, 1)
    second = Shard(f"{name}.1", Origin.REMORA)
    await queues.store.two_phase.commit(second, await queues.store.two_phase.reserve(second, 1, len(entry)), [entry])
    listed = (await topic("list", "--json")).json
    unclear = await topic("show", name)
    shown = [(await topic("show", name, "--origin", origin, "--json")).json for origin in ("radosgw", "remora")]
    queue = [await remora("shard", "release", name, *words, "-c", file) for words in ([], ["--origin", "remora"])]
    stats = (await topic("stats", "--json")).json
    refused = await topic("rm", name)
    changed = await topic("set", name, "--max-retries", "1")
    removed = await topic("rm", name, "--discard")
    left = (await topic("list", "--json")).json

    assert created.code == Exit.OK, created.err
    assert "radosgw has a topic of this name too" in created.out.decode()
    assert [(each["topic"], each["origin"], each["shards"]) for each in listed] == [
        (name, "radosgw", 1), (name, "remora", 3),
    ]  # fmt: skip
    assert (unclear.code, "--origin" in unclear.err) == (Exit.FAILURE, True)
    assert [each["origin"] for each in shown] == ["radosgw", "remora"]
    assert (queue[0].code, "--origin" in queue[0].err) == (Exit.FAILURE, True)
    assert (queue[1].code, queue[1].out.decode()) == (Exit.OK, f"{name} was free already\n")
    assert [(each["origin"], each["entries"]) for each in stats] == [("radosgw", 3), ("remora", 1)]
    assert refused.code == Exit.FAILURE
    assert "1 entry" in refused.err
    assert changed.code == Exit.OK, changed.err
    assert removed.out.decode() == f"topic {name} is removed with 3 shards; 1 entry was given up\n"
    assert [(each["topic"], each["origin"]) for each in left] == [(name, "radosgw")]
    assert queues.gateway.ioctx.read("pubsub.", 1 << 20) == before
    assert len(await queues.contents(name)) == 3
