"""An endpoint that is away for longer than its queue has room refuses no event, and gets all of them in order."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.ceph import Gateway
from devkit.clusters.s3 import Zone, fresh
from devkit.entries.queues import Queues, calm
from devkit.processes.daemon import Daemon, Options, merged, running_daemon
from devkit.receivers.http_sink import HttpSink, http_sink
from devkit.waits import until
from remora.codec.lock_ops import encode_break
from remora.model.shard import Shard
from support.older import older_commits, older_daemon

pytestmark = pytest.mark.ceph

RING, SMALL = 1_000_000, 200_000
MORE: Options = {
    "ownership": {"schemes": ["http"]},
    "destinations": {"deny": []},
    "spill": {"enabled": True},
    "delivery": {"retry_cap": "1s"},
}
AWAY_S, PER_S, AT_ONCE = 600.0, 200, 16
"""`SPILL_TEST_SECONDS` and `SPILL_TEST_PER_S` have others, for a machine that has much else to do."""


def numbers(sink: HttpSink) -> dict[str, list[int]]:
    """The events that arrived, by key, without those that arrived again."""
    found: dict[str, list[int]] = {}
    for body in dict.fromkeys(sink.bodies):
        record = json.loads(body)["Records"][0]
        key, event_id = record["s3"]["object"]["key"], record["eventId"]
        number = event_id.removeprefix("id-") if event_id.startswith("id-") else record["s3"]["object"]["size"]
        found.setdefault(key, []).append(int(number))
    return found


async def stored(queues: Queues, topic: str, count: int) -> None:
    """Commit so many events, none of which is refused, as fast as their queue gets room."""
    shard = Shard(topic)

    async def has_room() -> bool:
        return (await queues.store.inspection.stats(shard)).room.room_bytes > 0.04 * SMALL

    for start in range(0, count, 10):
        await until(has_room, "room in the ring")
        await queues.fill(topic, 10, start=start, padding=100)


async def balance(daemon: Daemon, topic: str) -> dict[str, Any]:
    (found,) = (await daemon.command("ledger", topic, "--json")).json
    (shard,) = found["shards"]
    return dict(shard)


@pytest.mark.guarantee("no-loss", "order-per-object")
async def test_a_queue_holds_more_than_its_ring(queues: Queues, tmp_path: Path) -> None:
    """Four rings of events come while the endpoint is away, and none is refused; all arrive in order when it is back,
    the ledger agrees before and after, and a release meanwhile waits for what is spilled."""
    sent = 2000
    async with http_sink() as sink:
        topic = queues.make(sink.url, ring_bytes=SMALL)
        async with running_daemon(tmp_path, merged(calm(queues), MORE)) as daemon:
            await daemon.own(topic)
            await stored(queues, topic, sent)
            waiting = await balance(daemon, topic)
            listed = (await daemon.command("spill", "list", "--json")).json
            released = await daemon.command("shard", "release", topic)
            await sink.open()
            await until(lambda: _is_left(queues, topic), "a queue that is left to radosgw")
            left = await balance(daemon, topic)
            claimed = await daemon.command("shard", "claim", topic)
            await queues.drained(topic)
            done = await balance(daemon, topic)

    assert (waiting["pending"], waiting["unaccounted"]) == (sent, 0)
    assert waiting["spilled"] > sent / 2
    assert [each["queue"] for each in listed] == [topic]
    assert "spilled entries are delivered first" in released.out.decode()
    assert (left["spilled"], left["unaccounted"]) == (0, 0)
    assert claimed.code == 0, claimed.err
    assert (done["delivered"], done["pending"], done["spilled"], done["unaccounted"]) == (sent, 0, 0, 0)
    found = numbers(sink)
    assert sorted(number for each in found.values() for number in each) == list(range(sent))
    assert all(each == sorted(each) for each in found.values())


async def _is_left(queues: Queues, topic: str) -> bool:
    return Shard(topic) in await queues.store.releases.released() and not queues.gateway.lockers(topic)


async def test_what_never_gets_delivered_is_exported_and_dropped(queues: Queues, tmp_path: Path) -> None:
    """The file has the entries that were spilled, and only those leave, under a cause of their own; a worker has the
    queue when the command ends, since a radosgw would deliver behind what is left of them."""
    async with http_sink() as sink:
        topic, sent = queues.make(sink.url, ring_bytes=SMALL), 600
        async with running_daemon(tmp_path, merged(calm(queues), MORE)) as daemon:
            await daemon.own(topic)
            await stored(queues, topic, sent)
            file = tmp_path / "letters.ndjson.gz"
            exported = await daemon.command("spill", "export", topic, str(file))
            assert exported.code == 0, exported.err
            lines = gzip.decompress(file.read_bytes()).splitlines()
            dropped = await daemon.command("spill", "drop", topic, "--yes")
            assert dropped.code == 0, dropped.err
            held = queues.gateway.lockers(topic)
            after = await balance(daemon, topic)
            await sink.open()
            await queues.drained(topic)
            done = await balance(daemon, topic)

    assert [each.cookie.startswith("remora/") for each in held] == [True]
    assert after["exported"] == len(lines) > 0
    assert (after["pending"], after["unaccounted"]) == (sent - len(lines), 0)
    assert (done["delivered"], done["exported"], done["unaccounted"]) == (sent - len(lines), len(lines), 0)


OLDER = older_commits("c90864a", "eabeb60e")
"""Commits whose remoras know nothing of runs: the first release, 0.1.0, and the last one before spill."""


@pytest.mark.full("runs the code of older commits; the gate has what keeps it away, by itself")
@pytest.mark.parametrize("commit", OLDER)
async def test_a_pool_with_older_hosts(queues: Queues, tmp_path: Path, commit: str) -> None:
    """An older daemon beside one that spills delivers others' queues, and of one that has runs it takes no lock and
    delivers nothing, also when the newer is killed, and says why; one with spill switched off delivers the runs first,
    and when they are gone the older one has the queue again."""
    async with http_sink() as sink, http_sink() as other:
        topic, sent = queues.make(sink.url, ring_bytes=SMALL), 600
        await other.open()
        new, old = tmp_path / "new", tmp_path / "old"
        new.mkdir()
        plain = merged(calm(queues), {name: options for name, options in MORE.items() if name != "spill"})
        async with running_daemon(new, merged(calm(queues), MORE)) as daemon:
            await daemon.own(topic)
            await stored(queues, topic, sent)
            holder = queues.gateway.lockers(topic)
            async with older_daemon(old, plain, commit) as beside:
                await takes_others(queues, beside, other)
                assert queues.gateway.lockers(topic) == holder
                await daemon.kill_all()
                for locker in holder:
                    request = encode_break(f"{topic}_lock", locker.entity, locker.cookie)
                    queues.gateway.ioctx.execute(topic, "lock", "break_lock", request)
                await sink.open()
                await takes_others(queues, beside, other)
                said = [line for line in beside.logged(0).splitlines() if topic in line]
                assert any("released to radosgw until it is claimed" in line for line in said), said
                assert not queues.gateway.lockers(topic)
                assert not sink.bodies
                async with running_daemon(new, plain) as delivering:
                    await queues.drained(topic)
                    done = await balance(delivering, topic)
                await queues.fill(topic, 20, start=sent)
                await queues.drained(topic)

    assert (done["delivered"], done["unaccounted"]) == (sent, 0)
    found = numbers(sink)
    assert sorted(number for each in found.values() for number in each) == list(range(sent + 20))
    assert all(each == sorted(each) for each in found.values())


async def takes_others(queues: Queues, older: Daemon, sink: HttpSink) -> None:
    """Wait until an older daemon has taken a queue that was made now: it has read the catalogue since."""
    made: list[str] = []

    async def has_one() -> bool:
        made.append(queues.make(sink.url))
        await asyncio.sleep(1)
        return bool({each["queue"] for each in (await older.status())["shards"]} & set(made))

    await until(has_one, "a queue of the older daemon's")


@pytest.mark.timeout(3600)
@pytest.mark.full("ten minutes of PUTs against a real radosgw, on both releases")
async def test_radosgw_refuses_no_put_for_ten_minutes(zone: Zone, tmp_path: Path) -> None:
    """200 PUTs a second into a bucket whose queue has a ring of a megabyte, which lasts for seconds: none is refused
    while the endpoint is away, and all are delivered in order when it is back."""
    topic = fresh("spill")
    queue = zone.queue(topic)
    with zone.ceph.client(namespace=zone.env["queue_namespace"]) as ioctx:
        Gateway(ioctx).make_queue(queue, RING)  # radosgw takes it as it is
    seconds = float(os.environ.get("SPILL_TEST_SECONDS", AWAY_S))
    per_s = int(os.environ.get("SPILL_TEST_PER_S", PER_S))
    async with http_sink() as sink, zone.user() as user:
        bucket = await user.bucket(topic, await user.topic(topic, sink.url))
        async with running_daemon(tmp_path, merged(zone.sections, MORE)) as daemon:
            await daemon.command("shard", "claim", queue)
            await daemon.own(queue)
            answers = await put_for(zone, bucket, seconds, per_s)
            waiting = await balance(daemon, topic)
            await sink.open()
            await daemon.until(lambda: _is_drained(daemon, topic), "an empty queue", 900)
            done = await balance(daemon, topic)

    print(f"{zone.release}: {len(answers)} PUTs, {len(answers) / seconds:.0f}/s, {waiting}")  # noqa: T201 - the figure
    assert set(answers) == {200}
    assert waiting["spilled"] > 0
    assert (waiting["unaccounted"], done["unaccounted"], done["pending"]) == (0, 0, 0)
    found = numbers(sink)
    assert sum(map(len, found.values())) == len(answers)
    assert all(each == sorted(each) for each in found.values())


async def _is_drained(daemon: Daemon, topic: str) -> bool:
    return not (await balance(daemon, topic))["pending"]


async def put_for(zone: Zone, bucket: str, seconds: float, per_s: int) -> list[int]:
    """What radosgw answered to PUTs at a steady rate; each of some clients writes one key, a byte more each time."""
    answers: list[int] = []
    began = time.monotonic()

    async def client(name: int) -> None:
        count = 0
        while (now := time.monotonic()) < began + seconds:
            due = began + count * AT_ONCE / per_s
            if due > now:
                await asyncio.sleep(due - now)
            answers.append(await zone.raw("PUT", bucket, b"c%d" % name, b"x" * count))
            count += 1

    async with asyncio.TaskGroup() as tasks:
        for name in range(AT_ONCE):
            tasks.create_task(client(name))
    return answers
