"""Queues that leak room, as operators and the clients of a radosgw see them: named, mended, and never in the way."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.s3 import Zone, fresh
from devkit.entries.queues import Queues, calm
from devkit.processes.daemon import Daemon, Sections, merged, remora, running_daemon, write_config
from devkit.receivers.http_sink import http_sink
from devkit.waits import until
from remora.model.exits import Exit
from support.leaks import fill_by_leak, room_now

pytestmark = pytest.mark.ceph

NOBODY = "kafka://127.0.0.1:1"
NAMED_S, MENDED_S = 30.0, 60.0


def rooms(status: Any) -> dict[str, Any]:
    """What a status says of the room of topics."""
    return {each["topic"]: each["room"] for each in status["topics"] if each["room"]}


async def test_queues_are_mended_by_hand(queues: Queues, tmp_path: Path) -> None:
    """Without a daemon, and whoever holds the queue: a dry run says what leaks, a mend what it gave back, and the store
    which OSDs it has."""
    leaky, fine = queues.make(NOBODY), queues.make(NOBODY)
    fill_by_leak(queues.gateway.ioctx, leaky)
    assert queues.gateway.lock(leaky)
    file = write_config(tmp_path / "remora.toml", calm(queues))

    dry = await remora("shard", "heal", "--all", "--dry-run", "-c", file)
    (stats,) = (await remora("topic", "stats", leaky, "--json", "-c", file)).json
    explained = await remora("explain", leaky, "-c", file)
    before = room_now(queues.gateway.ioctx, leaky)
    done = await remora("shard", "heal", leaky, "-c", file)
    checked = await remora("check-config", file, "--store")
    unclear = await remora("shard", "heal", "-c", file)

    ring, leaked = 32 << 20, (32 << 20) - 300
    said = f"{leaky} leaks {leaked} bytes, and 300 of {ring} are free"
    assert set(dry.out.decode().splitlines()) == {said, f"{fine} leaks nothing, and {ring} of {ring} bytes are free"}
    assert (stats["leaked_bytes"], stats["room_bytes"], stats["entries"]) == (leaked, 300, 0)
    assert f"full by a leak of 34 MB of Ceph < 19.2.4; 0 wait in it\n    try: remora shard heal {leaky}" in (
        explained.out.decode()
    )
    assert before.leaked_bytes == leaked
    assert (done.code, done.out.decode()) == (Exit.OK, f"{said}; mended: 0 leak, and {ring} are free\n")
    assert room_now(queues.gateway.ioctx, leaky).leaked_bytes == 0
    assert "; OSDs " in checked.out.decode()
    assert unclear.code == Exit.USAGE


@pytest.mark.full("waits for two looks of the daemon; the gate has its loop, the mend and the commands by themselves")
@pytest.mark.parametrize("heal", ["off", "full"])
async def test_the_daemon_names_and_mends(queues: Queues, tmp_path: Path, heal: str) -> None:
    """The status names a queue that is full by a leak within 30 s; it is mended and counted within 60 s, save where the
    operator wants no mends."""
    topic = queues.make(NOBODY)
    async with running_daemon(tmp_path, calm(queues, rados={"heal": heal})) as daemon:
        await daemon.own(topic)
        fill_by_leak(queues.gateway.ioctx, topic)

        async def named() -> bool:
            return topic in (found := rooms(await daemon.status())) and bool(found[topic]["leaks"])

        await until(named, "the leak in the status", NAMED_S)
        shown = (await daemon.command("status")).out.decode()
        assert f"room: topic {topic}: full by a leak of 34 MB of Ceph < 19.2.4: remora shard heal --topic " in shown
        assert "; OSDs " in shown
        if heal == "full":
            await daemon.counted(1, "remora_queue_mends_total")
            await until(lambda: _is_well(daemon, topic), "a well queue", MENDED_S)
            assert room_now(queues.gateway.ioctx, topic).leaked_bytes == 0
            assert "queue_mended" in daemon.logged()
        else:
            assert room_now(queues.gateway.ioctx, topic).room_bytes == 300
            by_hand = await daemon.command(*shlex.split(f"shard heal --topic {topic}"))
            assert (by_hand.code, room_now(queues.gateway.ioctx, topic).leaked_bytes) == (Exit.OK, 0)


async def _is_well(daemon: Daemon, topic: str) -> bool:
    return not rooms(await daemon.status())[topic]["advice"]


@pytest.mark.full("needs a radosgw, and waits for a look of the daemon; on both releases")
async def test_a_put_that_was_refused_is_taken_again(zone: Zone, tmp_path: Path) -> None:
    """A PUT into a bucket whose queue is full by a leak gets 503, and soon 200 again, by the daemon alone; its event is
    delivered."""
    topic = fresh("leaks")
    queue = zone.queue(topic)
    more: Sections = {"ownership": {"schemes": ["http"]}, "destinations": {"deny": []}}
    async with http_sink() as sink, zone.user() as user:
        await sink.open()
        bucket = await user.bucket(topic, await user.topic(topic, sink.url))

        async def taken() -> bool:
            return await zone_put(zone, bucket, b"after") == 200

        async with running_daemon(tmp_path, merged(zone.sections, more)) as daemon:
            await daemon.command("shard", "claim", queue)
            await daemon.own(queue)
            assert await zone_put(zone, bucket, b"before") == 200
            await until(lambda: len(sink.bodies) == 1, "the first event")
            with zone.ceph.client(namespace=zone.env["queue_namespace"]) as ioctx:
                fill_by_leak(ioctx, queue)
                first = await zone_put(zone, bucket, b"refused")

                began = time.monotonic()
                await until(taken, "a PUT that is taken", MENDED_S)
                print(f"refused for {time.monotonic() - began:.1f} s on {zone.release}")  # noqa: T201 - the figure
                await until(lambda: len(sink.bodies) == 2, "the second event")
                assert first == 503
                assert room_now(ioctx, queue).leaked_bytes <= 100
            assert await daemon.metric("remora_queue_mends_total") == 1


async def zone_put(zone: Zone, bucket: str, key: bytes) -> int:
    return await zone.raw("PUT", bucket, key, b"x")
