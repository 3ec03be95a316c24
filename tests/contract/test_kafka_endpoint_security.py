"""TLS, users and passwords against a real broker, and what is said when they do not fit."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Thread
from urllib.parse import quote

import pytest
import uvloop

from devkit.clusters.certificates import certificate, encrypt
from devkit.clusters.kafka import Kafka, create_topic, read_topic, running_kafka
from devkit.waits import PATIENT_S
from remora import endpoint_kinds
from remora.config import KafkaSettings, Settings
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.model.shard import Origin as ShardOrigin
from remora.model.topic import Target, Topic
from support.kafka_sender import (
    ANYWHERE,
    INCARNATION,
    OWN_SHARD,
    ShardSender,
    Watcher,
    make_records,
    push_all,
    push_in_both_modes,
    verdict,
)

pytestmark = pytest.mark.kafka

WRONG = "wr0ng-pa55word"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(autouse=True)
def patient_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has refused us has time for the look that finds out why."""
    monkeypatch.setattr("remora.endpoints.kafka.identity.LOOK_TIMEOUT_S", 30.0)


def login(kafka: Kafka, mechanism: str = "PLAIN", password: str = "") -> str:
    return f"user-name={kafka.env['user']}&password={password or kafka.env['password']}&mechanism={mechanism}"


def tls(kafka: Kafka, ca: str = "ca") -> str:
    return f"use-ssl=true&ca-location={kafka.env[ca]}"


async def deliver(uri: str, args: str, topic: str, settings: KafkaSettings = ANYWHERE) -> None:
    async with (
        asyncio.timeout(PATIENT_S),
        KafkaEndpoint(settings) as endpoint,
        endpoint.route(OWN_SHARD, INCARNATION, Target(uri, args, topic)) as route,
    ):
        await push_all(route, make_records(0, 10))


async def refusal(uri: str, args: str, settings: KafkaSettings | None = None) -> str:
    """Why a target is misconfigured."""
    async with KafkaEndpoint(settings or ANYWHERE) as endpoint, asyncio.timeout(PATIENT_S):
        with pytest.raises(EndpointMisconfigured) as caught:
            async with endpoint.route(OWN_SHARD, INCARNATION, Target(uri, args, "events")):
                pass
    return str(caught.value)


# ---------------------------------------------------------------------------------- what works


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["sasl_ssl", "sasl_plaintext"])
async def test_login(kafka: Kafka, listener: str, mechanism: str) -> None:
    """Each mechanism logs in, with TLS and without, with user and password of the arguments."""
    topic = await create_topic(kafka.address)
    args = login(kafka, mechanism) + ("&" + tls(kafka) if listener == "sasl_ssl" else "")

    await deliver(f"kafka://{kafka.env[f'{listener}_bootstrap']}", args, topic)

    assert len(await read_topic(kafka.address, topic)) == 10


async def test_login_in_the_uri(kafka: Kafka) -> None:
    """User and password of the URI log in as well."""
    topic = await create_topic(kafka.address)
    user, password = quote(kafka.env["user"]), quote(kafka.env["password"])

    await deliver(f"kafka://{user}:{password}@{kafka.env['sasl_ssl_bootstrap']}", tls(kafka), topic)

    assert len(await read_topic(kafka.address, topic)) == 10


async def test_tls_alone(kafka: Kafka) -> None:
    """TLS works without a user, by address and by host name."""
    topic = await create_topic(kafka.address)
    port = kafka.env["ssl_bootstrap"].rpartition(":")[2]

    await deliver(f"kafka://localhost:{port}", tls(kafka), topic)

    assert len(await read_topic(kafka.address, topic)) == 10


async def test_unchecked_certificate(kafka: Kafka) -> None:
    """verify-ssl=false accepts a certificate of an unknown authority."""
    topic = await create_topic(kafka.address)

    await deliver(f"kafka://{kafka.env['ssl_bootstrap']}", "use-ssl=true&verify-ssl=false", topic)

    assert len(await read_topic(kafka.address, topic)) == 10


def client(kafka: Kafka, who: str = "client") -> str:
    """TLS with a certificate of the client's."""
    place = kafka.env[who]
    return f"{tls(kafka)}&ssl-certificate-location={place}.crt&ssl-key-location={place}.key"


async def test_client_certificate(kafka: Kafka) -> None:
    """A client certificate lets in where the broker asks for one, to deliver at least once and exactly once."""
    topic, records = await create_topic(kafka.address), make_records(0, 20)
    target = Target(f"kafka://{kafka.env['mutual_ssl_bootstrap']}", client(kafka), topic)

    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(ANYWHERE) as endpoint:
        await push_in_both_modes(endpoint, OWN_SHARD, target, records)

    assert verdict(await read_topic(kafka.address, topic), records) == (set(), 0, [])


async def test_encrypted_key(kafka: Kafka, tmp_path: Path) -> None:
    """An encrypted key is used with its password; without it, or with a wrong one, the topic stops and says so."""
    made, folder = certificate(tmp_path / "own", "localhost"), tmp_path
    (folder / "locked.key").write_bytes(encrypt(made.key, "open sesame"))
    uri = f"kafka://{kafka.env['mutual_ssl_bootstrap']}"
    args = f"{tls(kafka)}&ssl-certificate-location={made.certificate}&ssl-key-location={folder / 'locked.key'}"

    assert "encrypted, and ssl-key-password is empty" in await refusal(uri, args)
    assert "ssl-key-password is wrong" in await refusal(uri, f"{args}&ssl-key-password={WRONG}")
    # The key opens: it is the broker that does not trust the certificate then.
    assert "does not accept the client certificate" in await refusal(uri, f"{args}&ssl-key-password=open sesame")


async def test_replaced_client_certificate(kafka: Kafka, tmp_path: Path) -> None:
    """A renewed certificate and key under the same names are used by a connection of their own, from the next route."""
    topic, watcher = await create_topic(kafka.address), Watcher()
    place = tmp_path / "renewed"
    args = f"{tls(kafka)}&ssl-certificate-location={place}.crt&ssl-key-location={place}.key"
    target = Target(f"kafka://{kafka.env['mutual_ssl_bootstrap']}", args, topic)

    def renew(who: str) -> None:
        for kind in ("crt", "key"):
            shutil.copy(f"{kafka.env[who]}.{kind}", f"{place}.{kind}")

    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(ANYWHERE, watcher) as endpoint:
        for who in ("stranger", "client"):
            renew(who)
            with pytest.raises(EndpointMisconfigured) if who == "stranger" else nullcontext():
                async with endpoint.route(OWN_SHARD, INCARNATION, target) as route:
                    await push_all(route, make_records(0, 10))

    assert watcher.opened == 1
    assert len(await read_topic(kafka.address, topic)) == 10


async def test_client_certificate_is_missing(kafka: Kafka) -> None:
    """A broker that asks for a client certificate, or does not know the signer of ours, is said to."""
    uri = f"kafka://{kafka.env['mutual_ssl_bootstrap']}"

    assert "asks for a client certificate" in await refusal(uri, tls(kafka))
    assert "does not accept the client certificate" in await refusal(uri, client(kafka, "stranger"))


async def test_client_files_are_the_operators_choice(kafka: Kafka) -> None:
    """Without kafka.client_files no topic uses a certificate of this host's."""
    uri, nothing = f"kafka://{kafka.env['mutual_ssl_bootstrap']}", replace(ANYWHERE, client_files="")

    assert "not below a directory of kafka.client_files" in await refusal(uri, client(kafka), nothing)


async def test_one_broker_of_the_list_suffices(kafka: Kafka) -> None:
    """Brokers of the list that do not answer, or hang, delay nothing as long as one lets us in."""
    topic = await create_topic(kafka.address)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts = f"127.0.0.1:1,127.0.0.1:{mute.getsockname()[1]}"
        async with asyncio.timeout(PATIENT_S):
            settings = replace(ANYWHERE, connect_timeout_s=60)
            await deliver(f"kafka://{hosts}", f"kafka-brokers={kafka.address}", topic, settings)

    assert len(await read_topic(kafka.address, topic)) == 10


# ----------------------------------------------------------------------------- what does not, and why


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_wrong_password(kafka: Kafka, mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong password is called that, and stands neither in the reason nor in any log line."""
    caplog.set_level(logging.DEBUG)

    reason = await refusal(f"kafka://{kafka.env['sasl_plaintext_bootstrap']}", login(kafka, mechanism, WRONG))

    assert "refused user and password" in reason
    assert WRONG not in reason
    assert WRONG not in caplog.text


async def test_unknown_authority(kafka: Kafka) -> None:
    """A certificate that the given authority has not signed is not trusted."""
    reason = await refusal(f"kafka://{kafka.env['ssl_bootstrap']}", tls(kafka, "other_ca"))

    assert "certificate is not trusted" in reason


async def test_authority_of_the_system(kafka: Kafka) -> None:
    """Without ca-location the system's authorities decide, and they do not know the test's."""
    assert "certificate is not trusted" in await refusal(f"kafka://{kafka.env['ssl_bootstrap']}", "use-ssl=true")


async def test_tls_to_a_plain_port(kafka: Kafka) -> None:
    """use-ssl against a port without TLS is said to be that."""
    reason = await refusal(f"kafka://{kafka.address}", "use-ssl=true&verify-ssl=false")

    assert "use-ssl is set, but this port speaks no TLS" in reason


@pytest.mark.parametrize("listener", ["ssl", "sasl_ssl"])
async def test_plain_to_a_tls_port(kafka: Kafka, listener: str) -> None:
    """A port that speaks TLS is said to, when use-ssl is not set."""
    reason = await refusal(f"kafka://{kafka.env[f'{listener}_bootstrap']}", "")

    assert "this port speaks TLS, but use-ssl is not set" in reason


async def test_login_is_missing(kafka: Kafka) -> None:
    """A port that asks for a user is said to, with its mechanisms."""
    reason = await refusal(f"kafka://{kafka.env['sasl_plaintext_bootstrap']}", "")

    assert "asks for user-name and password" in reason
    assert "SCRAM-SHA-256" in reason


async def test_login_is_not_asked_for(kafka: Kafka) -> None:
    """A user at a port that asks for none is refused, with the reason."""
    assert "asks for no user and password" in await refusal(f"kafka://{kafka.address}", login(kafka))


def test_reasons_on_uvloop(kafka: Kafka) -> None:
    """The same reasons are found on uvloop, whose broken connections look different."""
    ssl, plain = f"kafka://{kafka.env['ssl_bootstrap']}", f"kafka://{kafka.address}"
    login_uri, mutual = f"kafka://{kafka.env['sasl_ssl_bootstrap']}", f"kafka://{kafka.env['mutual_ssl_bootstrap']}"
    expected = {
        (mutual, tls(kafka)): "asks for a client certificate",
        (mutual, client(kafka, "stranger")): "does not accept the client certificate",
        (ssl, tls(kafka, "other_ca")): "certificate is not trusted",
        (ssl, ""): "this port speaks TLS",
        (plain, "use-ssl=true"): "speaks no TLS",
        (plain, login(kafka)): "asks for no user and password",
        (login_uri, tls(kafka)): "asks for user-name and password",
        (login_uri, f"{tls(kafka)}&{login(kafka, 'SCRAM-SHA-512', WRONG)}"): "refused user and password",
    }

    reasons = {case: uvloop.run(refusal(*case)) for case in expected}

    for case, reason in reasons.items():
        assert expected[case] in reason


def test_silent_tls_on_uvloop(tmp_path: Path) -> None:
    """Of a connection to a port that speaks TLS and then falls silent nothing is left when the event loop ends."""
    own = certificate(tmp_path / "tls", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    held: list[ssl.SSLSocket] = []

    def hold() -> None:
        with suppress(OSError):  # the test ends
            while True:
                held.append(context.wrap_socket(mute.accept()[0], server_side=True))

    with socket.create_server(("127.0.0.1", 0)) as mute:
        holder = Thread(target=hold)
        holder.start()
        uri = f"kafka://127.0.0.1:{mute.getsockname()[1]}"
        args = f"use-ssl=true&ca-location={own.certificate}"

        async def reach() -> None:
            async with KafkaEndpoint(replace(ANYWHERE, connect_timeout_s=2.0)) as endpoint:
                with pytest.raises(EndpointUnavailable, match="no answer in time"):
                    async with endpoint.route(OWN_SHARD, INCARNATION, Target(uri, args, "t")):
                        pass

        try:
            uvloop.run(reach())
        finally:
            mute.shutdown(socket.SHUT_RDWR)
            holder.join()
            for each in held:
                each.close()


async def test_unreadable_authority(kafka: Kafka, tmp_path: Path) -> None:
    """A ca-location that does not exist, or holds no certificate, is named."""
    uri, no_ca = f"kafka://{kafka.env['ssl_bootstrap']}", tmp_path / "empty.pem"
    no_ca.write_text("nothing")

    assert "/does/not/exist: missing or not" in await refusal(uri, "use-ssl=true&ca-location=/does/not/exist")
    assert "no certificate authority in PEM" in await refusal(uri, f"use-ssl=true&ca-location={no_ca}")


async def test_replaced_authority(kafka: Kafka, tmp_path: Path) -> None:
    """A CA file whose contents change makes another connection, and the old one is not used for it."""
    topic, ca, watcher = await create_topic(kafka.address), tmp_path / "ca.pem", Watcher()
    shutil.copy(kafka.env["ca"], ca)
    target = Target(f"kafka://{kafka.env['ssl_bootstrap']}", f"use-ssl=true&ca-location={ca}", topic)
    async with KafkaEndpoint(ANYWHERE, watcher) as endpoint:
        async with endpoint.route(OWN_SHARD, INCARNATION, target) as route:
            await push_all(route, make_records(0, 10))
        shutil.copy(kafka.env["other_ca"], ca)
        with pytest.raises(EndpointMisconfigured, match="not trusted"):
            async with endpoint.route(OWN_SHARD, INCARNATION, target):
                pass
        shutil.copy(kafka.env["ca"], ca)
        async with endpoint.route(OWN_SHARD, INCARNATION, target) as route:
            await push_all(route, make_records(0, 10))

    assert watcher.opened == 1


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_password_does_not_leak_to_another_topic(kafka: Kafka) -> None:
    """A topic with a wrong password fails while one with the right password delivers to the same brokers."""
    topic, watcher = await create_topic(kafka.address), Watcher()
    uri = f"kafka://{kafka.env['sasl_plaintext_bootstrap']}"
    async with (
        KafkaEndpoint(ANYWHERE, watcher) as endpoint,
        endpoint.route(OWN_SHARD, INCARNATION, Target(uri, login(kafka), topic)) as route,
    ):
        with pytest.raises(EndpointMisconfigured, match="refused user"):
            async with endpoint.route(OWN_SHARD, INCARNATION, Target(uri, login(kafka, password=WRONG), topic)):
                pass
        with pytest.raises(EndpointMisconfigured, match="asks for user-name"):
            async with endpoint.route(OWN_SHARD, INCARNATION, Target(uri, "", topic)):
                pass
        await push_all(route, make_records(0, 10))

    assert watcher.opened == 1


# ------------------------------------------------------------------------------------ permissions


@pytest.fixture(scope="module")
def strict_kafka() -> Iterator[Kafka]:
    """A broker where the user may do only what a test allows; a client without log-in may do all."""
    with running_kafka(
        "strict", "--sasl-ssl",
        "--config", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "--config", "super.users=User:ANONYMOUS",
    ) as running:  # fmt: skip
        yield running


PROBING = replace(KafkaSettings(), connect_timeout_s=20)


async def written(target: Target) -> tuple[str, bool | None]:
    """The last step of the way to a topic, which no record is written to."""
    topic = Topic("t", "", "t", target, origin=ShardOrigin.REMORA)
    steps = [each async for each in endpoint_kinds.probe(topic, replace(Settings(), kafka=PROBING), sends_test=False)]
    return steps[-1].name, steps[-1].ok


async def test_permissions(strict_kafka: Kafka) -> None:
    """Without permission to write the topic is refused; without that to read its limits Kafka's is assumed, once."""
    topic, watcher = await create_topic(strict_kafka.address, max_message_bytes=20_000), Watcher()
    another = await create_topic(strict_kafka.address)
    uri, args = f"kafka://{strict_kafka.env['sasl_plaintext_bootstrap']}", login(strict_kafka)
    target = Target(uri, args, topic)
    allow = ("--add", "--allow-principal", f"User:{strict_kafka.env['user']}", "--topic")
    async with KafkaEndpoint(ANYWHERE, watcher) as endpoint:
        with pytest.raises(EndpointMisconfigured, match="may write to no topic of this cluster"):
            async with endpoint.route(OWN_SHARD, INCARNATION, target):
                pass
        await strict_kafka.tool("AclCommand", *allow, another, "--operation", "Write")
        with pytest.raises(EndpointMisconfigured, match=f"topic {topic} at .* may not write to this topic"):
            async with endpoint.route(OWN_SHARD, INCARNATION, target):
                pass
        await strict_kafka.tool("AclCommand", *allow, topic, "--operation", "Describe")
        async with endpoint.route(OWN_SHARD, INCARNATION, target) as route:
            with pytest.raises(EndpointMisconfigured, match="may not write to this topic"):
                await push_all(route, make_records(0, 10))
        assert await written(target) == ("write", False)
        await strict_kafka.tool("AclCommand", *allow, topic, "--operation", "Write")
        assert await written(target) == ("write", True)
        noisy = [each._replace(body=b"%d," % each.ordinal + Random(0).randbytes(9000)) for each in make_records(0, 20)]
        sender = ShardSender(endpoint, "shard", target)
        async with asyncio.timeout(PATIENT_S):
            await sender.send(noisy)

    assert watcher.assumed == [(topic, 1_048_588)]
    assert len(sender.failures) <= 5  # each halves the batches, until they fit the limit that nobody may read
    assert verdict(await read_topic(strict_kafka.address, topic), noisy) == (set(), 0, [])


def test_frozen_tls_broker_on_uvloop(strict_kafka: Kafka) -> None:
    """Of connections to a broker that was frozen nothing is left when the event loop ends, over TLS neither."""

    async def deliver_and_leave() -> None:
        topic = await create_topic(strict_kafka.address)
        uri = f"kafka://{strict_kafka.env['sasl_ssl_bootstrap']}"
        target = Target(uri, f"{login(strict_kafka)}&{tls(strict_kafka)}", topic)
        await strict_kafka.tool("AclCommand", "--add", "--allow-principal", "User:*", "--topic", topic)
        async with KafkaEndpoint(ANYWHERE) as endpoint:
            async with endpoint.route(OWN_SHARD, INCARNATION, target) as route:
                await push_all(route, make_records(0, 10))
            strict_kafka.stop(how=signal.SIGSTOP)

    try:
        uvloop.run(deliver_and_leave())
    finally:
        strict_kafka.stop(how=signal.SIGCONT)


# ------------------------------------------------------------------------------------ unreachable


async def test_nobody_listens() -> None:
    """A closed port is transient and known at once."""
    async with (
        KafkaEndpoint(replace(ANYWHERE, connect_timeout_s=2 * PATIENT_S)) as endpoint,
        asyncio.timeout(PATIENT_S),
    ):
        with pytest.raises(EndpointUnavailable, match=r"127.0.0.1:1: .*refused"):
            async with endpoint.route(OWN_SHARD, INCARNATION, Target("kafka://127.0.0.1:1", "", "t")):
                pass


async def test_nobody_answers() -> None:
    """A host that accepts and never answers is transient, within the time to connect."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        target = Target(f"kafka://127.0.0.1:{mute.getsockname()[1]}", "", "t")
        async with KafkaEndpoint(KafkaSettings(connect_timeout_s=0.5)) as endpoint, asyncio.timeout(PATIENT_S):
            with pytest.raises(EndpointUnavailable, match="no answer in time"):
                async with endpoint.route(OWN_SHARD, INCARNATION, target):
                    pass


async def test_unknown_host() -> None:
    """A host name that does not resolve is transient and named."""
    async with KafkaEndpoint(ANYWHERE) as endpoint, asyncio.timeout(PATIENT_S):
        with pytest.raises(EndpointUnavailable, match=r"no-such-host\.invalid:9092"):
            async with endpoint.route(OWN_SHARD, INCARNATION, Target("kafka://no-such-host.invalid", "", "t")):
                pass


async def test_not_kafka() -> None:
    """Whatever else listens there, with or without TLS, is an error of this topic only."""

    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak_http, "127.0.0.1", 0) as server:
        uri = f"kafka://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with KafkaEndpoint(KafkaSettings(connect_timeout_s=2)) as endpoint, asyncio.timeout(PATIENT_S):
            for args in ("", "use-ssl=true"):
                with pytest.raises((EndpointUnavailable, EndpointMisconfigured)):
                    async with endpoint.route(OWN_SHARD, INCARNATION, Target(uri, args, "t")):
                        pass
