"""Log-ins with Kerberos against a real broker and a real KDC."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from threading import enumerate as enumerate_threads

import pytest

from devkit.clusters.kafka import Kafka, create_topic, read_committed, read_topic
from devkit.clusters.kerberos import Kdc, join_realm, second_kdc
from devkit.waits import PATIENT_S, until
from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.model.shard import Shard
from remora.model.topic import Target
from support.kafka_sender import (
    ANYWHERE,
    INCARNATION,
    OWN_SHARD,
    PATIENT,
    ExactSender,
    ShardSender,
    Watcher,
    make_records,
    push_all,
    push_in_both_modes,
    verdict,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
def realm(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """The shared broker, whose realm this process has joined."""
    join_realm(kafka, monkeypatch)
    return kafka


def args(kafka: Kafka, who: str = "remora") -> str:
    """A log-in with the keytab of a principal."""
    return f"mechanism=GSSAPI&sasl-kerberos-keytab={kafka.env[f'{who}_keytab']}"


def target(kafka: Kafka, topic: str, who: str = "remora", listener: str = "gssapi") -> Target:
    return Target(f"kafka://{kafka.env[f'{listener}_bootstrap']}", args(kafka, who), topic)


async def deliver(meant: Target, settings: KafkaSettings = ANYWHERE) -> None:
    """Ten records, at least once."""
    async with (
        asyncio.timeout(PATIENT_S),
        KafkaEndpoint(settings) as endpoint,
        endpoint.route(OWN_SHARD, INCARNATION, meant) as route,
    ):
        await push_all(route, make_records(0, 10))


async def refusal(meant: Target, settings: KafkaSettings = ANYWHERE) -> str:
    """Why a target is misconfigured."""
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(settings) as endpoint:
        with pytest.raises(EndpointMisconfigured) as caught:
            async with endpoint.route(OWN_SHARD, INCARNATION, meant):
                pass
    return str(caught.value)


def own_keytab(kafka: Kafka, tmp_path: Path) -> str:
    """A keytab with which nobody has logged in before: random bytes in a gap behind its keys make it another log-in."""
    copy, size = tmp_path / "own.keytab", 16
    gap = (-size).to_bytes(4, "big", signed=True) + secrets.token_bytes(size)
    copy.write_bytes(Path(kafka.env["remora_keytab"]).read_bytes() + gap)
    return str(copy)


# ---------------------------------------------------------------------------------- what works


@pytest.mark.parametrize("listener", ["gssapi", "sasl_ssl"])
async def test_both_modes(realm: Kafka, listener: str) -> None:
    """A topic with a keytab of its own is delivered at least once and exactly once, with TLS and without."""
    topic, records = await create_topic(realm.address), make_records(0, 20)
    principal = f"&sasl-kerberos-principal=remora@{realm.env['realm']}&sasl-kerberos-service-name=kafka"
    tls = f"&use-ssl=true&ca-location={realm.env['ca']}" if listener == "sasl_ssl" else ""
    meant = replace(target(realm, topic, listener=listener), args=args(realm) + principal + tls)

    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(ANYWHERE) as endpoint:
        assert endpoint.check(meant) == []
        await push_in_both_modes(endpoint, OWN_SHARD, meant, records)
        assert await endpoint.up(meant) == {"1"}

    assert verdict(await read_committed(realm.address, topic), records) == (set(), 0, [])


async def test_the_operators_keytab(realm: Kafka) -> None:
    """Topics that name no keytab log in with the operator's, as the principal that he names."""
    topic = await create_topic(realm.address)
    principal = f"remora@{realm.env['realm']}"
    settings = replace(PATIENT, kerberos_keytab=realm.env["remora_keytab"], kerberos_principal=principal)
    meant = replace(target(realm, topic), args="mechanism=GSSAPI")

    await deliver(meant, settings)

    assert len(await read_topic(realm.address, topic)) == 10


async def test_replaced_keytab(realm: Kafka, tmp_path: Path) -> None:
    """A keytab whose contents change makes another connection, as its own principal; the same contents share one."""
    topic, watcher, keytab = await create_topic(realm.address), Watcher(), tmp_path / "renewed.keytab"
    arguments = f"mechanism=GSSAPI&sasl-kerberos-keytab={keytab}"
    meant = Target(f"kafka://{realm.env['gssapi_bootstrap']}", arguments, topic)

    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(ANYWHERE, watcher) as endpoint:
        for who in ("remora", "brief", "remora"):
            shutil.copy(realm.env[f"{who}_keytab"], keytab)
            async with endpoint.route(OWN_SHARD, INCARNATION, meant) as route:
                await push_all(route, make_records(0, 10))

    assert watcher.opened == 2


async def test_tickets_and_sessions_end(realm: Kafka) -> None:
    """While tickets end after seconds and the broker hangs up on each session after one, all arrives once, in order."""
    often, exactly = await create_topic(realm.address), await create_topic(realm.address)
    records, count = make_records(0, 20_000), 0
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(ANYWHERE) as endpoint:
        sender = ShardSender(endpoint, "often", target(realm, often, "brief", "gssapi_brief"))
        exact = ExactSender(endpoint, "exactly", target(realm, exactly, "brief", "gssapi_brief"))
        before = len(issued_to_brief(realm))

        while not (issued := issued_to_brief(realm)[before:]) or issued[-1] <= issued[0] + 4:  # the first has ended
            count += 10
            await asyncio.gather(sender.send(records[:count]), exact.send(records[:count]))

    assert verdict(await read_topic(realm.address, often), records[:count]) == (set(), 0, [])
    assert verdict(await read_committed(realm.address, exactly), records[:count]) == (set(), 0, [])


def issued_to_brief(kafka: Kafka) -> list[int]:
    """When the KDC has issued tickets that live for four seconds, in seconds since the epoch."""
    log = (Path(kafka.env["logs"]) / "kdc.log").read_text()
    return [int(each) for each in re.findall(r"AS_REQ .* ISSUE: authtime ([0-9]+), .* brief@", log)]


# ----------------------------------------------------------------------------- what does not, and why


async def test_wrong_key(realm: Kafka) -> None:
    """A keytab whose key was changed stops its topic with that reason; another topic of the broker is delivered."""
    topic = await create_topic(realm.address)
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(ANYWHERE) as endpoint:
        with pytest.raises(EndpointMisconfigured, match="Kerberos: the KDC refuses the keytab's key"):
            async with endpoint.route(OWN_SHARD, INCARNATION, target(realm, topic, "stale")):
                pass
        with pytest.raises(EndpointMisconfigured, match="Kerberos: the KDC refuses the keytab's key"):
            async with endpoint.exact(OWN_SHARD, INCARNATION, target(realm, topic, "stale")):
                pass
        async with endpoint.route(OWN_SHARD, INCARNATION, target(realm, topic)) as route:
            await push_all(route, make_records(0, 10))

    assert len(await read_topic(realm.address, topic)) == 10


async def test_reasons(realm: Kafka, tmp_path: Path) -> None:
    """Each thing that can be wrong with a log-in is said in its own words."""
    no_keytab = tmp_path / "no.keytab"
    no_keytab.write_text("nothing")
    uri, mine = f"kafka://{realm.env['gssapi_bootstrap']}", args(realm)
    plain, passwords = f"kafka://{realm.address}", f"kafka://{realm.env['sasl_plaintext_bootstrap']}"
    expected = {
        (uri, "mechanism=GSSAPI"): "needs sasl-kerberos-keytab, or the option kafka.kerberos_keytab",
        (uri, "mechanism=GSSAPI&sasl-kerberos-keytab=/nowhere"): "sasl-kerberos-keytab /nowhere: missing or not",
        (uri, f"mechanism=GSSAPI&sasl-kerberos-keytab={no_keytab}"): "no.keytab: not a keytab",
        (uri, f"{mine}&sasl-kerberos-principal=brief"): "the keytab has no key of the principal",
        (uri, f"{mine}&sasl-kerberos-principal=a@b@c"): "Malformed representation of principal",
        (uri, f"{mine}&sasl-kerberos-service-name=stream"): "Server stream/127.0.0.1@REMORA.TEST not found",
        (uri, f"{mine}&sasl-kerberos-service-name=other"): "the broker refuses the Kerberos ticket",
        (plain, mine): "asks for no user and password",
        (passwords, mine): "the broker does not offer this mechanism",
    }

    for (place, arguments), reason in expected.items():
        assert reason in await refusal(Target(place, arguments, "events"))


async def test_keytabs_are_the_operators_choice(realm: Kafka) -> None:
    """Without kafka.client_files no topic uses a keytab of this host's."""
    reason = await refusal(target(realm, "events"), KafkaSettings())

    assert "not below a directory of kafka.client_files" in reason


async def test_the_extra_is_missing(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the Python package a topic with Kerberos is stopped, naming the extra; others are delivered."""
    monkeypatch.setitem(sys.modules, "gssapi", None)
    topic = await create_topic(kafka.address)

    assert "the extra remorad[gssapi] has it" in await refusal(
        Target(f"kafka://{kafka.address}", "mechanism=GSSAPI&sasl-kerberos-keytab=/k", topic)
    )
    await deliver(Target(f"kafka://{kafka.address}", "", topic))

    assert len(await read_topic(kafka.address, topic)) == 10


# ------------------------------------------------------------------------------------ a KDC in trouble


@pytest.fixture
async def kdc(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kdc]:
    """A KDC that nobody else asks, so that it may be hurt."""
    async with second_kdc(kafka, tmp_path, monkeypatch) as own:
        yield own


async def test_kdc_is_away(kafka: Kafka, kdc: Kdc, tmp_path: Path) -> None:
    """While no KDC answers a topic waits with that reason, and it is delivered when the KDC is back."""
    topic = await create_topic(kafka.address)
    arguments = f"mechanism=GSSAPI&sasl-kerberos-keytab={own_keytab(kafka, tmp_path)}"
    meant = Target(f"kafka://{kafka.env['gssapi_bootstrap']}", arguments, topic)
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(ANYWHERE) as endpoint:
        kdc.stop()
        with pytest.raises(EndpointUnavailable, match=f"Cannot contact any KDC for realm '{kafka.env['realm']}'"):
            async with endpoint.route(OWN_SHARD, INCARNATION, meant):
                pass
        await kdc.start()
        async with endpoint.route(OWN_SHARD, INCARNATION, meant) as route:
            await push_all(route, make_records(0, 10))

    assert len(await read_topic(kafka.address, topic)) == 10


async def test_kdc_is_silent(kafka: Kafka, kdc: Kdc, tmp_path: Path) -> None:
    """A KDC that never answers delays only its own topics, which all together take one thread while they wait."""
    topic = await create_topic(kafka.address)
    arguments = f"mechanism=GSSAPI&sasl-kerberos-keytab={own_keytab(kafka, tmp_path)}"
    meant = Target(f"kafka://{kafka.env['gssapi_bootstrap']}", arguments, topic)
    patient = replace(ANYWHERE, connect_timeout_s=2 * PATIENT_S)

    async def wait(endpoint: KafkaEndpoint, number: int) -> None:
        async with endpoint.exact(Shard(f"shard.{number}"), INCARNATION, meant):
            pass

    kdc.freeze()
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(patient) as endpoint:
        waiting = [asyncio.create_task(wait(endpoint, number)) for number in range(8)]
        await until(lambda: bool(threads()), "a thread asks the KDC")
        async with endpoint.route(OWN_SHARD, INCARNATION, Target(f"kafka://{kafka.address}", "", topic)) as route:
            await push_all(route, make_records(0, 10))
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
    brief = replace(ANYWHERE, connect_timeout_s=3)
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(brief) as endpoint:
        with pytest.raises(EndpointUnavailable, match=r"Kerberos tickets: no answer within 2\.4 s|no answer in time"):
            await wait(endpoint, 0)
    asking = len(threads())
    kdc.thaw()
    await until(lambda: not threads(), "no thread waits for the KDC")

    assert asking == 1
    assert len(await read_topic(kafka.address, topic)) == 10


def threads() -> list[Thread]:
    """Those that wait for an answer that may never come."""
    return [each for each in enumerate_threads() if each.name == "remora-blocking"]
