"""The S3 target: one request an event, never repeated by a library, and what a real radosgw then notifies of."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from devkit.clusters.s3 import Zone, fresh
from devkit.processes.daemon import remora, write_config
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.run.journal import FinalOutcome, Line
from remora_pipeline.replay.run.schedule import DueEvent
from remora_pipeline.replay.run.sender import ReplaySender, TaskLimits, WallClock
from remora_pipeline.replay.run.targets import AttemptResult, TargetAnswer
from remora_pipeline.replay.run.targets.s3 import Gateway, check_s3, s3_target
from remora_pipeline.replay.shape import EVENT_NAMES, MARK

KEYS = ("plain", "with space", "a+b&c=d?e#f%20g;h", "ünï/日本/😀", "quote\"'\\", "new\nline", "x" * 700)


def event(seq: int, op: str = "PUT", key: str = "k", kseq: int = 0) -> DueEvent:
    return DueEvent(seq, 0, op, "b", key, 5, kseq, hash(key))


def gateway_at(port: int) -> Gateway:
    """The gateway at a port of this host."""
    return Gateway(f"http://127.0.0.1:{port}", "default", "a", "s", "")


class Server:
    """A gateway that answers by a script: a status, or None to cut the connection; at the end of it 200."""

    def __init__(self) -> None:
        self.replies: list[int | None] = []
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.asked.append(f"{request.method} {request.path}")
        status = self.replies.pop(0) if self.replies else 200
        if status is None:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=status or 200, headers={"Retry-After": "7"} if status == 503 else {})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, Gateway]]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield server, gateway_at(runner.addresses[0][1])
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("op", ["PUT", "DELETE"])
async def test_no_library_repeats_a_request(op: str) -> None:
    """A request whose kept connection breaks is asked once, and nobody knows what came of it."""
    async with serving() as (server, gateway), s3_target(gateway, "r", 10, 1) as target:
        first = await target.send([event(0, op)], "r/1")
        server.replies = [None]
        second = await target.send([event(1, op)], "r/2")

    assert first == TargetAnswer(AttemptResult.DONE, 200)
    assert second.result is AttemptResult.LOST
    assert server.asked == [f"{op} /b/k"] * 2


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (503, TargetAnswer(AttemptResult.BUSY, 503, "503", 7.0)),
        (403, TargetAnswer(AttemptResult.REFUSED, 403, "403")),
        (500, TargetAnswer(AttemptResult.LOST, 500, "500")),
    ],
)
async def test_each_answer_tells_what_happened(status: int, expected: TargetAnswer) -> None:
    """A busy gateway is asked again after the time that it gives, a refusal is final, and a failure tells nothing."""
    async with serving() as (server, gateway), s3_target(gateway, "r", 10, 1) as target:
        server.replies = [status]
        found = await target.send([event(0)], "r/1")

    assert found == expected
    assert len(server.asked) == 1


async def test_a_gateway_that_is_not_there_got_nothing() -> None:
    """A connection that cannot be made leaves nothing unknown; and a check beforehand refuses it by its address."""
    with socket.socket() as nobody:  # no other process gets the port, and it refuses
        nobody.bind(("127.0.0.1", 0))
        gateway = gateway_at(nobody.getsockname()[1])
        async with s3_target(gateway, "r", 10, 1) as target:
            found = await target.send([event(0)], "r/1")
        with pytest.raises(ReplayRefused, match=gateway.url):
            await check_s3(gateway, "t", ["b"], copies=False, create=False)

    assert found.result is AttemptResult.BUSY


# ------------------------------------------------------------------------------------ a real radosgw


class _Kept:
    def __init__(self) -> None:
        self.lines: list[Line] = []

    def write(self, line: Line) -> None:
        self.lines.append(line)


async def replayed(gateway: Gateway, events: Sequence[DueEvent]) -> list[FinalOutcome]:
    """Send events to a gateway; what came of those that were not acked."""

    async def source() -> AsyncIterator[Sequence[DueEvent]]:
        yield events

    clock = WallClock(0, asyncio.get_running_loop().time)
    kept = _Kept()
    async with s3_target(gateway, "r9", 3, 8) as target:
        tally = await ReplaySender(target, kept, clock, TaskLimits(concurrency=8), "r9/0/0").run(source())
    assert tally.offered == len(events)
    return [line for line in kept.lines if isinstance(line, FinalOutcome) and line.outcome != "acked"]


@pytest.mark.ceph
async def test_a_real_radosgw_notifies_of_what_is_replayed(zone20: Zone, tmp_path: Path) -> None:
    """Each event makes its notification, in order per key, with its mark; a DELETE has that of what it removes."""
    zone, topic, bucket = zone20, fresh("replay"), fresh("replayed")
    env = zone.env
    gateway = Gateway(env["s3"]["endpoint"], env["region"], env["s3"]["access_key"], env["s3"]["secret_key"], "")
    operations = ("PUT", "COPY", "MPU_COMPLETE", "PUT", "DELETE", "PUT")
    events = [
        DueEvent(seq, 0, op, bucket, key, 5, kseq, lane)
        for seq, (kseq, op, lane, key) in enumerate(
            (kseq, op, lane, key) for kseq, op in enumerate(operations) for lane, key in enumerate(KEYS)
        )
    ]
    config = write_config(tmp_path / "remora.toml", zone.sections)
    async with zone.user() as user:
        await user.topic(topic, "kafka://127.0.0.1:1")
        would_be_made = await check_s3(gateway, topic, [bucket], copies=True, create=True, is_dry=True)
        assert bucket in would_be_made
        with pytest.raises(ReplayRefused, match=f"there is no bucket {bucket}"):
            await check_s3(gateway, topic, [bucket], copies=True, create=False)
        assert bucket in await check_s3(gateway, topic, [bucket], copies=True, create=True)
        assert await check_s3(gateway, topic, [bucket], copies=True, create=False) == []
        failed = await replayed(gateway, events)
        dump = await remora("topic", "dump", zone.queue(topic), "-c", config)

    assert dump.code == 0, dump.err
    assert failed == []
    found = defaultdict(list)
    for line in dump.out.splitlines():
        record = json.loads(line)["notification"]["Records"][0]
        thing = record["s3"]["object"]
        marks = {pair["key"]: pair["val"] for pair in thing["metadata"]}
        found[thing["key"]].append((record["eventName"].removeprefix("s3:"), marks.get(MARK), thing["size"]))
    expected: dict[str, list[tuple[str, str | None, int]]] = defaultdict(list)
    for each in events:
        before = expected[each.key]
        mark = before[-1][1] if each.op == "DELETE" else f"r9/{each.seq}/{each.kseq}"
        before.append((EVENT_NAMES[each.op], mark, 3))
    for key in KEYS:
        assert found[key] == expected[key]
