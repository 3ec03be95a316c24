"""`remora spill show` and files that are compressed by zstd, beside a real cluster and a daemon that spills."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from acceptance.test_spill import MORE, SMALL, stored
from devkit.entries.queues import Queues, calm
from devkit.processes.daemon import merged, running_daemon
from devkit.receivers.http_sink import http_sink

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = pytest.mark.ceph


async def test_runs_are_shown_and_exported_by_zstd(queues: Queues, tmp_path: Path) -> None:
    """`spill show` has the runs in order, each from where the one before ends, with all that is spilled; a file whose
    name ends with .zst has the same entries, and is not written over."""
    async with http_sink() as sink:
        topic = queues.make(sink.url, ring_bytes=SMALL)
        async with running_daemon(tmp_path, merged(calm(queues), MORE)) as daemon:
            await daemon.own(topic)
            await stored(queues, topic, 1000)
            await daemon.kill_all()
            runs = (await daemon.command("spill", "show", topic, "--json")).json
            shown = await daemon.command("spill", "show", topic)
            file = tmp_path / "letters.ndjson.zst"
            exported = await daemon.command("spill", "export", topic, str(file))
            again = await daemon.command("spill", "export", topic, str(file))

    lines = [json.loads(line) for line in zstd.decompress(file.read_bytes()).splitlines()]
    assert sum(run["entries"] for run in runs) == len(lines) > 0
    assert f"{len(lines)} spilled entr" in exported.out.decode()
    assert len(runs) > 1
    assert all(one["end"] == other["first"] for one, other in itertools.pairwise(runs))
    assert [lines[0]["position"], lines[0]["queue"]] == [runs[0]["first"], topic]
    assert all(run["object"] in shown.out.decode() for run in runs)
    assert again.code != 0
