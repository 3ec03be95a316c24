"""A cluster that is away, or that this configuration can never use."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.clusters.ceph import Ceph
from devkit.clusters.kafka import Kafka
from devkit.entries.queues import Queues, a_topic, assert_clean, assert_whole, delivers, numbered, quick
from devkit.processes.daemon import STOP_S, Ended, complaints, rados_section, remora, running_daemon, write_config
from devkit.testing.cases import cases
from remora.config import RadosSettings
from remora.model.exits import Exit

pytestmark = pytest.mark.ceph

MOST_STARTS = 8


async def both(file: Path) -> tuple[Ended, Ended]:
    """What the daemon and a command say to a configuration that can never work.

    A daemon that has no verdict of the cluster within 2 s waits for it, and does not end.
    """
    for _ in range(MOST_STARTS):
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                ran = await remora("run", "-c", file)
            return ran, await remora("shard", "list", "-c", file)
    raise AssertionError(f"the cluster was slow {MOST_STARTS} times")


def configured(folder: Path, settings: RadosSettings) -> Path:
    """A configuration file for this cluster."""
    sections: dict[str, dict[str, object]] = {
        "store": {"kind": "rados"},
        "ingest": {"listen": ""},
        "rados": rados_section(settings),
        "admin": {"listen": "127.0.0.1:0"},
        "supervisor": {"run_directory": str(folder)},
    }
    return write_config(folder / "remora.toml", sections)


Break = Callable[[RadosSettings, Ceph, Path], tuple[RadosSettings, str]]


def missing_pool(settings: RadosSettings, _: Ceph, __: Path) -> tuple[RadosSettings, str]:
    return replace(settings, pool="no.such.pool"), "no.such.pool"


def missing_pool_of_topics(settings: RadosSettings, _: Ceph, __: Path) -> tuple[RadosSettings, str]:
    return replace(settings, topics_pool="no.such.pool:topics"), "no.such.pool"


def missing_keyring(settings: RadosSettings, _: Ceph, __: Path) -> tuple[RadosSettings, str]:
    return replace(settings, keyring="/nowhere/keyring"), "/nowhere/keyring"


def missing_conf(settings: RadosSettings, _: Ceph, __: Path) -> tuple[RadosSettings, str]:
    return replace(settings, conf="/nowhere/ceph.conf"), "/nowhere/ceph.conf"


def broken_conf(settings: RadosSettings, _: Ceph, folder: Path) -> tuple[RadosSettings, str]:
    (folder / "broken.conf").write_text("[global\nmon_host")
    return replace(settings, conf=str(folder / "broken.conf")), "broken.conf"


def key_of_another(settings: RadosSettings, ceph: Ceph, folder: Path) -> tuple[RadosSettings, str]:
    key = re.search(r"key = (\S+)", Path(ceph.env["keyring"]).read_text())
    assert key is not None
    (folder / "keyring").write_text(f"[client.nobody]\n\tkey = {key[1]}\n")
    return replace(settings, name="client.nobody", keyring=str(folder / "keyring")), "client.nobody"


def no_key(settings: RadosSettings, ceph: Ceph, _: Path) -> tuple[RadosSettings, str]:
    return replace(settings, name="client.nobody", keyring=ceph.env["keyring"]), "client.nobody"


def no_permission(settings: RadosSettings, ceph: Ceph, _: Path) -> tuple[RadosSettings, str]:
    other = "default.rgw.meta"  # of which this user may only see another namespace
    return replace(settings, name=ceph.env["client"], keyring=ceph.env["keyring"], pool=other), other


@pytest.mark.parametrize(
    "make_wrong",
    cases(
        missing_pool,
        missing_pool_of_topics,
        no_permission,
        more=[missing_keyring, missing_conf, broken_conf, key_of_another, no_key],
    ),
    ids=lambda each: each.__name__,
)
async def test_what_no_waiting_can_heal(make_wrong: Break, settings: RadosSettings, ceph: Ceph, tmp_path: Path) -> None:
    """A pool, file, key or permission that is missing ends daemon and commands with one line that names it, and 77."""
    wrong, name = make_wrong(settings, ceph, tmp_path)

    for done in await both(configured(tmp_path, wrong)):
        assert done.code == Exit.NO_PERMISSION
        assert done.out == b""
        assert "Traceback" not in done.err
        lines = [line for line in done.err.splitlines() if line.startswith("remora: ")]
        assert len(lines) == 1
        assert name in lines[0]


async def test_user_that_may_only_read(ceph: Ceph, queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A user that may see queues and not lock them delivers nothing, and status says what it lacks."""
    topic = await a_topic(queues, kafka)
    options = quick(queues)
    options["rados"] |= {"name": ceph.env["client"], "keyring": ceph.env["keyring"]}
    async with running_daemon(tmp_path, options) as daemon:
        left = await daemon.leaves(topic, f"locking {topic}: {ceph.env['client']} has no permission")

        assert left["reason"] in (await daemon.command("status")).out.decode()
        assert await daemon.stop() == Exit.OK


async def test_monitor_away_at_start(ceph: Ceph, queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """Without a monitor the daemon starts, waits and says so, can be stopped, and delivers when it is back."""
    topic = await a_topic(queues, kafka)
    await queues.fill(topic, 100)
    with ceph.frozen("mon.a"):
        async with running_daemon(tmp_path, quick(queues), ready=False) as daemon:

            async def says_why() -> bool:
                return "no monitor" in (await daemon.status())["store"]["state"]

            await daemon.until(says_why, "a reason")
            code, text = await daemon.get("/-/ready")
            assert code == 503
            assert "no monitor" in text
            assert "no monitor" in (await daemon.command("status")).out.decode()
            assert await daemon.metric("remora_store_connected") == 0
            assert await daemon.stop() == Exit.OK
        listed = await remora("shard", "list", "-c", daemon.config)
        assert listed.code == Exit.UNAVAILABLE
        assert len(complaints(listed.err)) == 1

        second = running_daemon(tmp_path, quick(queues), ready=False)
        daemon = await second.__aenter__()
    try:
        await delivers(daemon, topic, 100)
        await daemon.until(daemon.is_ready, "both workers to have found the monitor")
        await queues.drained(topic)
        assert await daemon.stop() == Exit.OK
    finally:
        await second.__aexit__(None, None, None)
    assert_clean(await numbered(kafka.address, topic, 100))


@pytest.mark.parametrize("frozen", cases(("mon.a",), more=[("osd.0", "osd.1")]), ids=["monitor", "OSDs"])
async def test_sigterm_while_the_cluster_is_away(
    frozen: tuple[str, ...], ceph: Ceph, queues: Queues, kafka: Kafka, tmp_path: Path
) -> None:
    """A daemon whose cluster does not answer under load still ends when told to, and nothing is lost."""
    topic = await a_topic(queues, kafka)
    await queues.fill(topic, 3000)
    options = quick(queues, delivery={"drain_timeout": "6s"})
    async with running_daemon(tmp_path, options) as daemon:
        await delivers(daemon, topic, 16)
        with ceph.frozen(*frozen):
            started = time.monotonic()
            code = await daemon.stop()
            took = time.monotonic() - started
        assert code in (Exit.OK, Exit.DRAIN_TIMEOUT)
        assert took < STOP_S

        await daemon.start()
        await queues.drained(topic)
        assert await daemon.stop() == Exit.OK
    assert_whole(await numbered(kafka.address, topic, 3000))


@pytest.mark.guarantee("no-loss")
async def test_osds_away_for_longer_than_the_lease(ceph: Ceph, queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """Whatever is acknowledged while the OSDs are silent is not lost, and delivery goes on by itself afterwards."""
    topic = await a_topic(queues, kafka)
    await queues.fill(topic, 3000)
    async with running_daemon(tmp_path, quick(queues)) as daemon:
        await delivers(daemon, topic, 16)
        with ceph.frozen("osd.0", "osd.1"):

            async def is_untrusted() -> bool:
                shard = await daemon.shard(topic)
                return bool(shard and "not renewed in time" in shard["reason"])

            await daemon.until(is_untrusted, "the end of trust")
        await queues.drained(topic)
        assert (await daemon.get("/-/live"))[0] == 200
        assert await daemon.stop() == Exit.OK
    assert_whole(await numbered(kafka.address, topic, 3000))
