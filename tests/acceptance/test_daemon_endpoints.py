"""Kafka that dies, lacks a topic, or is not what a topic's attributes say: only that topic stops, and says why."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.clusters.kerberos import join_realm
from devkit.entries.queues import (
    Described,
    Queues,
    a_topic,
    assert_clean,
    assert_whole,
    calm,
    delivers,
    numbered,
    one_voice,
    quick,
)
from devkit.processes.daemon import Daemon, running_daemon
from remora.model.exits import Exit
from remora.policy.status.readiness import STALLED_AFTER_S

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]

SECRET = "pa55-w0rd-nobody-may-see"


async def stopped(daemon: Daemon, topic: str, state: str = "stopped") -> str:
    """Why a topic has stopped."""

    async def reason() -> str:
        shard = await daemon.shard(topic)
        return str(shard["reason"]) if shard and shard["state"] == state else ""

    return str(await daemon.until(reason, f"{topic} {state}"))


def said(daemon: Daemon, event: str, topic: str, *fields: str) -> int:
    """How often the log says this of a topic, with these fields."""
    wanted = (f" {event}: ", f" topic={topic} ", *(f" {field} " for field in fields))
    return sum(all(each in f"{line} " for each in wanted) for line in daemon.logged().splitlines())


@pytest.mark.full("a killed broker has its contract test at the gate")
@pytest.mark.guarantee("no-loss")
async def test_broker_killed_under_load(queues: Queues, fragile_kafka: Kafka, tmp_path: Path) -> None:
    """A broker that dies and comes back costs nothing but time: the status says why, and the host stays ready."""
    topic = await a_topic(queues, fragile_kafka)
    async with queues.under_load(topic) as load, running_daemon(tmp_path, quick(queues, **one_voice())) as daemon:
        await delivers(daemon, topic, 300)
        fragile_kafka.stop()
        try:
            assert fragile_kafka.address in await stopped(daemon, topic, "retrying")

            async def is_stalled() -> bool:
                shard = await daemon.shard(topic)
                return bool(shard and shard["progress_age_seconds"] > STALLED_AFTER_S)

            await daemon.until(is_stalled, "a stall")
            # One topic's endpoint is no affair of the host's.
            await daemon.until(daemon.is_ready, "a ready host")
            await daemon.until(lambda: daemon.is_ready("/-/ready/delivery"), "a host that would deliver")
            shown = (await daemon.command("status")).out.decode()
            assert fragile_kafka.address in shown
            assert await daemon.metric("remora_topic_failing", topic=topic, kind="transient") == 1
            assert (await daemon.get("/-/live"))[0] == 200
        finally:
            await fragile_kafka.start()

        await delivers(daemon, topic, load.end)

        await daemon.until(daemon.is_ready, "a ready host")
        assert await daemon.metric("remora_topic_failing", topic=topic) == 0
        await load.finish()
        await queues.drained(topic)
        assert await daemon.stop() == Exit.OK
        assert said(daemon, "topic_recovered", topic) == 1
    assert_whole(await numbered(fragile_kafka.address, topic, load.end))


@pytest.mark.full("the endpoint contract has it")
async def test_missing_topic(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A topic that Kafka does not have stops alone, is complained of once, and flows seconds after it is made."""
    missing, other = queues.make(f"kafka://{kafka.address}"), await a_topic(queues, kafka)
    await queues.fill(missing, 100)
    options = calm(queues, **one_voice())
    async with queues.under_load(other) as load, running_daemon(tmp_path, options) as daemon:
        reason = await stopped(daemon, missing)
        assert missing in reason

        async def tried_often() -> bool:
            return await daemon.metric("remora_failures_total", topic=missing, kind="configuration") >= 4

        await daemon.until(tried_often, "further attempts")
        assert said(daemon, "topic_failed", missing, "kind=configuration") == 1
        assert await daemon.metric("remora_topic_failing", topic=missing, kind="configuration") == 1
        assert await daemon.metric("remora_delivered_entries_total", topic=other) > 0
        assert await daemon.metric("remora_failures_total", topic=other) == 0
        await daemon.until(daemon.is_ready, "a ready host")

        await create_topic(kafka.address, missing)

        await delivers(daemon, missing, 100)
        await load.finish()
        await queues.drained(other)
        await queues.drained(missing)
        assert await daemon.stop() == Exit.OK
    assert_clean(await numbered(kafka.address, missing, 100))
    assert_clean(await numbered(kafka.address, other, load.end))


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_misconfigured_topics(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """Each topic that cannot work stops with its own reason, the good ones flow, and nothing shows a password."""
    env, secret = kafka.env, quote(SECRET)
    login = f"{env['user']}:{quote(env['password'])}@"
    tls = f"use-ssl=true&ca-location={env['ca']}"
    bearer = "mechanism=OAUTHBEARER&sasl-oauthbearer-token-endpoint-url=https://localhost/token"
    bad = {
        "wrong-password": (f"kafka://dev:{secret}@{env['sasl_plaintext_bootstrap']}", "mechanism=PLAIN", "password"),
        "wrong-argument": (
            f"kafka://{env['sasl_ssl_bootstrap']}",
            f"{tls}&mechanism=SCRAM-SHA-512&user-name=dev&password={secret}",
            "password",
        ),
        "unknown-ca": (f"kafka://{env['ssl_bootstrap']}", f"use-ssl=true&ca-location={env['other_ca']}", "certificate"),
        "no-ca-file": (
            f"kafka://{env['ssl_bootstrap']}",
            "use-ssl=true&ca-location=/nowhere/ca.pem",
            "/nowhere/ca.pem",
        ),
        "forgotten-at": (f"kafka://dev:{secret}", "", "port"),
        "no-host": (f"kafka://dev:{secret}@", "", "no broker"),
        "bad-boolean": (f"kafka://{kafka.address}", "use-ssl=perhaps", "use-ssl"),
        "bad-level": (f"kafka://{kafka.address}", "kafka-ack-level=all", "kafka-ack-level"),
        "bad-mechanism": (
            f"kafka://dev:{secret}@{kafka.address}",
            f"{bearer}&sasl-oauthbearer-client-id=a&sasl-oauthbearer-client-secret={secret}",
            "kafka.token_endpoints does not name this URL",
        ),
        "no-keytab": (f"kafka://{kafka.address}", "mechanism=GSSAPI", "sasl-kerberos-keytab"),
    }
    good = {
        await create_topic(kafka.address): (f"kafka://{kafka.address}", ""),
        await create_topic(kafka.address): (f"kafka://{login}{env['sasl_ssl_bootstrap']}", tls),
    }
    names = {}
    for kind, (uri, args, _) in bad.items():
        names[kind] = await create_topic(kafka.address)
        queues.make(uri, args, name=names[kind])
    for name, (uri, args) in good.items():
        queues.make(uri, args, name=name)
    for name in (*names.values(), *good):
        await queues.fill(name, 50)

    async with running_daemon(tmp_path, calm(queues, **one_voice(level="debug"))) as daemon:
        for name in good:
            await delivers(daemon, name, 50)
        reasons = {kind: await stopped(daemon, name) for kind, name in names.items()}
        for kind, (_, _, word) in bad.items():
            assert word in reasons[kind], (kind, reasons[kind])
            assert await daemon.metric("remora_topic_failing", topic=names[kind], kind="configuration") == 1
            assert said(daemon, "topic_failed", names[kind], "kind=configuration") == 1, kind

        shown = [(await daemon.get(path))[1] for path in ("/-/status", "/metrics", "/-/ready")]
        for words in (
            ["status"], ["status", "--json"], ["topic", "list"], ["topic", "list", "--json"], ["shard", "list"],
            ["topic", "show", names["forgotten-at"]], ["topic", "show", names["wrong-argument"], "--json"],
        ):  # fmt: skip
            done = await daemon.command(*words)
            assert done.code == Exit.OK, done.err
            shown += [done.out.decode(), done.err]
        assert await daemon.stop() == Exit.OK
        shown.append(daemon.logged())

    for text in shown:
        assert SECRET not in text
        assert env["password"] not in text
    for name in names.values():
        assert len(await queues.contents(name)) == 50
    for name in good:
        assert_clean(await numbered(kafka.address, name, 50))


async def test_kerberos(queues: Queues, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's keytab delivers topics in both modes; beside them one with a dead key says so and waits."""
    join_realm(kafka, monkeypatch)
    uri, mine, stale = f"kafka://{kafka.env['gssapi_bootstrap']}", kafka.env["remora_keytab"], kafka.env["stale_keytab"]
    exactly = "mechanism=GSSAPI&remora-delivery=exactly-once"
    often, once, waits = [
        queues.make(uri, args, name=await create_topic(kafka.address))
        for args in ("mechanism=GSSAPI", exactly, f"mechanism=GSSAPI&sasl-kerberos-keytab={stale}")
    ]
    for topic in (often, once, waits):
        await queues.fill(topic, 50)

    section = {"kerberos_keytab": mine, "client_files": str(Path(stale).parent)}
    async with running_daemon(tmp_path, quick(queues, kafka=section)) as daemon:
        for topic in (often, once):
            await delivers(daemon, topic, 50)
        assert await daemon.metric("remora_kafka_transactions_total", outcome="committed") > 0
        assert "Kerberos: the KDC refuses the keytab's key" in await stopped(daemon, waits)

    assert_clean(await numbered(kafka.address, often, 50))
    assert_clean(await numbered(kafka.address, once, 50, committed=True))
    assert len(await queues.contents(waits)) == 50


async def test_corrected_topic(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """Corrected attributes are used long before the next look at them is due, by the entries that waited too."""
    topic = queues.make("kafka://127.0.0.1:port", name=await create_topic(kafka.address))
    await queues.fill(topic, 50)
    async with running_daemon(tmp_path, calm(queues, delivery={"configuration_recheck": "10m"})) as daemon:
        assert "port" in await stopped(daemon, topic)

        queues.describe(Described(topic, f"kafka://{kafka.address}"))

        await delivers(daemon, topic, 50)
    assert_clean(await numbered(kafka.address, topic, 50))


async def test_broker_away_at_start(queues: Queues, fragile_kafka: Kafka, tmp_path: Path) -> None:
    """Without a broker the daemon starts, waits and says so, can be stopped, and delivers when it is back."""
    topic = await a_topic(queues, fragile_kafka)
    await queues.fill(topic, 100)
    fragile_kafka.stop()
    try:
        async with running_daemon(tmp_path, calm(queues)) as daemon:
            assert await stopped(daemon, topic, "retrying")
            assert await daemon.stop() == Exit.OK
            await daemon.start()
            assert await stopped(daemon, topic, "retrying")

            await fragile_kafka.start()

            await delivers(daemon, topic, 100)
            await queues.drained(topic)
            assert await daemon.stop() == Exit.OK
    finally:
        await fragile_kafka.start()
    assert_clean(await numbered(fragile_kafka.address, topic, 100))
