"""The NATS endpoint against a real server: copies within and beyond the window, log-ins, and failures."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from devkit.clusters.certificates import certificate
from devkit.clusters.nats import Message, Nats, NatsHearer, running_nats
from devkit.clusters.nkeys import credentials, public_key, token
from devkit.receivers.streams import serving_streams
from devkit.waits import PATIENT_S
from remora.config import NatsSettings
from remora.endpoints.nats import NatsEndpoint
from remora.endpoints.tls import TlsFiles
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.model.record import DeadLetter, Record
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from support.full_names import known_by_its_full_name
from support.kafka_sender import INCARNATION, make_records, push_all

SHARD = Shard("orders", Origin.REMORA)
SETTINGS = NatsSettings(connect_timeout_s=30.0, delivery_timeout_s=60.0)
QUICK = replace(SETTINGS, connect_timeout_s=1.0, delivery_timeout_s=1.0, heartbeat_s=60.0)
ANYWHERE = TlsFiles(("/",), ("/",))
SHORT_S = 0.2
"""A window of deduplication that is over before anybody tries again."""


@pytest.fixture
def hearer() -> NatsHearer:
    return NatsHearer()


@pytest.fixture
async def endpoint(hearer: NatsHearer) -> AsyncIterator[NatsEndpoint]:
    """A running endpoint that reports to the hearer."""
    async with NatsEndpoint(SETTINGS, hearer, ANYWHERE) as running:
        yield running


def target(server: Nats, stream: str, args: str = "", *, login: str = "") -> Target:
    return Target(f"nats://{login}{server.address}", f"nats-stream={stream}{args}", stream)


async def push(endpoint: NatsEndpoint, to: Target, records: list[Record]) -> None:
    async with asyncio.timeout(PATIENT_S), endpoint.route(SHARD, INCARNATION, to) as route:
        assert await push_all(route, records) == []


async def failure(
    endpoint: NatsEndpoint, to: Target, kind: type[EndpointError], records: list[Record] | None = None
) -> str:
    """Why nothing can be delivered there."""
    with pytest.raises(kind) as caught:
        await push(endpoint, to, records or make_records(0, 3, keys=1))
    return str(caught.value)


def numbers(messages: list[Message]) -> list[int]:
    return [int(each.body.partition(b",")[0]) for each in messages]


# ---------------------------------------------------------------------------------------------- copies


@pytest.mark.guarantee("duplicates")
async def test_copies_within_the_window(nats_server: Nats, endpoint: NatsEndpoint, hearer: NatsHearer) -> None:
    """What another owner sends again within the window is dropped by the stream, and nothing is asked for first."""
    to = target(nats_server, await nats_server.stream())
    records = [each._replace(created_ns=time.time_ns()) for each in make_records(0, 40)]

    await push(endpoint, to, records[:20])
    async with NatsEndpoint(SETTINGS, hearer, ANYWHERE) as other:
        await push(other, to, records)

    assert sorted(numbers(await nats_server.read(to.topic))) == list(range(40))
    assert hearer.known == ["window"] * 20


@pytest.mark.guarantee("duplicates")
async def test_copies_beyond_the_window(nats_server: Nats, endpoint: NatsEndpoint, hearer: NatsHearer) -> None:
    """When the window has forgotten them, the last message of each object's subject shows what has arrived."""
    to = target(nats_server, await nats_server.stream(duplicate_window=SHORT_S))
    await push(endpoint, to, make_records(0, 20, keys=5))
    await _window_is_over(nats_server, to)

    async with NatsEndpoint(SETTINGS, hearer, ANYWHERE) as other:
        await push(other, to, make_records(0, 40, keys=5))

    found = numbers(await nats_server.read(to.topic))
    assert sorted(found) == list(range(40))
    for key in range(5):
        assert [each for each in found if each % 5 == key] == list(range(key, 40, 5))
    assert hearer.known == ["look"] * 20


@pytest.mark.parametrize(("template", "login"), [("%7Btopic%7D.%7Bbucket%7D", ""), ("", "writer:pa55%3Aw%2Frd@")])
async def test_copies_that_are_not_noticed(
    nats_server: Nats, endpoint: NatsEndpoint, template: str, login: str
) -> None:
    """Where objects share subjects, or the user may not read the stream, nothing shows copies beyond the window."""
    stream = await nats_server.stream(duplicate_window=SHORT_S)
    to = target(nats_server, stream, f"&nats-subject={template}" if template else "", login=login)
    await push(endpoint, to, make_records(0, 3, keys=1))
    await _window_is_over(nats_server, to)

    async with NatsEndpoint(SETTINGS, None, ANYWHERE) as other:
        await push(other, to, make_records(0, 3, keys=1))

    assert numbers(await nats_server.read(stream)) == [0, 1, 2] * 2


async def _window_is_over(server: Nats, to: Target) -> None:
    """Return when the stream has forgotten the ids that it has had so far."""
    probe = f"{to.topic}.probe.probe"
    async with server.jetstream() as found:
        await found.publish(probe, b"", headers={"Nats-Msg-Id": "probe"})
        while (await found.publish(probe, b"", headers={"Nats-Msg-Id": "probe"})).duplicate:
            pass
        await found.purge_stream(to.topic, subject=probe)


async def test_another_queues_messages_show_nothing(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """The same objects of another queue, or of another incarnation, are not taken for this one's."""
    to = target(nats_server, await nats_server.stream())
    records = make_records(0, 5, keys=1)
    for shard, incarnation in ((SHARD, "inc"), (SHARD, "inc2"), (Shard("other", Origin.REMORA), "inc")):
        async with endpoint.route(shard, incarnation, to) as route:
            await push_all(route, records)

    assert numbers(await nats_server.read(to.topic)) == [*range(5)] * 3


# ----------------------------------------------------------------------------------------- what is there


async def test_dead_letters(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """They go to their own subject, once, also into a stream that takes less; what has no room is told by its size."""
    events = await nats_server.stream()
    letters = await nats_server.stream(subjects=[f"letters-{events}"], max_msg_size=2000)
    to = target(nats_server, events, f"&remora-dead-letter-topic=letters-{events}")
    made = [
        DeadLetter("orders", "inc", f"0/{at}", f"0/{at + 1}", "refused", "why", 1, 1.0, 2.0, b"x" * size)
        for at, size in enumerate((10, 5000, 20))
    ]

    for _ in range(2):
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            await route.publish_letters(made)

    found = await nats_server.read(letters)
    assert [len(each.body) for each in found] == [10, 0, 20]
    assert found[1].headers["remora-omitted-bytes"] == "5000"
    assert [each.headers["remora-pos"] for each in found] == ["inc:0/0", "inc:0/1", "inc:0/2"]


async def test_a_limit_that_is_raised(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """A route that looks again goes by the stream's limit as it is now."""
    stream = await nats_server.stream(max_msg_size=1000)
    [record] = make_records(0, 1, size=1500)

    async with endpoint.route(SHARD, INCARNATION, target(nats_server, stream)) as route:
        _, [(refused, why)] = route.pack([record])
        await nats_server.update(stream, max_msg_size=5000)
        await route.look_again()
        assert await push_all(route, [record]) == []

    assert refused == record
    assert "more than the 1000 that the stream takes" in why
    assert len(await nats_server.read(stream)) == 1


# -------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("reader", "the user may not publish to the subjects of this topic"),
        ("outsider", "the user may not publish to $JS.API.STREAM.INFO."),
        ("deaf", "the user may not subscribe to _INBOX.>"),
        ("poor", "JetStream is not enabled"),
    ],
)
async def test_permissions(nats_server: Nats, endpoint: NatsEndpoint, user: str, reason: str) -> None:
    """What a user lacks is a matter of configuration, and named."""
    stream = await nats_server.stream()

    said = await failure(endpoint, target(nats_server, stream, login=f"{user}:pa55%3Aw%2Frd@"), EndpointMisconfigured)

    assert reason in said


async def test_a_stream_that_is_full(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """A message that it does not store is about this topic alone, waits, and is behind nothing of its key."""
    stream = await nats_server.stream(max_msgs=2, discard="new")
    to = target(nats_server, stream)
    records = make_records(0, 4, keys=1)
    with pytest.raises(EndpointUnavailable) as caught:
        await push(endpoint, to, records)
    await nats_server.update(stream, max_msgs=10)
    await push(endpoint, to, records)

    assert "the stream did not store the message; it may be full" in str(caught.value)
    assert (caught.value.kind, caught.value.arrived, caught.value.tries) == ("answered", 2, 1)
    assert numbers(await nats_server.read(stream)) == [0, 1, 2, 3]


async def test_a_stream_that_acknowledges_nothing(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """It stops the topic before anything is sent: nobody could tell what has arrived."""
    stream = await nats_server.stream(no_ack=True)

    assert "it acknowledges nothing" in await failure(endpoint, target(nats_server, stream), EndpointMisconfigured)
    assert await nats_server.read(stream) == []


async def test_a_stream_that_goes_away(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """Under way it is transient, since a server may be late with it; the next look says that it is not there."""
    stream = await nats_server.stream()
    to = target(nats_server, stream)
    async with endpoint.route(SHARD, INCARNATION, to) as route:
        await push_all(route, make_records(0, 1))
        await nats_server.delete(stream)
        with pytest.raises(EndpointUnavailable) as caught:
            await push_all(route, [each._replace(created_ns=time.time_ns()) for each in make_records(0, 1, start=1)])

    assert caught.value.kind == "answered"
    assert "no stream takes the subject" in str(caught.value)
    assert "there is no such stream" in await failure(endpoint, to, EndpointMisconfigured)


async def test_a_stream_that_is_made_again(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """A route outlives the stream: the one that is made in its place takes what was refused and what follows, once, and
    looks for none of the ids that only the former one knew."""
    stream = await nats_server.stream()
    to = target(nats_server, stream)
    records = [each._replace(created_ns=time.time_ns()) for each in make_records(0, 4)]
    async with endpoint.route(SHARD, INCARNATION, to) as route:
        await push_all(route, records[:2])
        await nats_server.delete(stream)
        with pytest.raises(EndpointUnavailable):
            await push_all(route, records[2:])
        await nats_server.stream(stream)
        await push_all(route, records[2:])
        await push_all(route, records[1:])

    assert sorted(numbers(await nats_server.read(stream))) == [1, 2, 3]


async def test_a_stream_with_other_subjects(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """A stream that does not take all subjects of the topic is a matter of configuration."""
    stream = await nats_server.stream(subjects=[f"{time.time_ns()}.only"])

    said = await failure(endpoint, target(nats_server, stream), EndpointMisconfigured)

    assert f"the stream does not take the subjects {stream}.*.*" in said


async def test_a_killed_and_a_frozen_server(fragile_nats_server: Nats) -> None:
    """One that is gone is about the server, and so is one that is silent; a look for it says that it is not up."""
    server = fragile_nats_server
    to = target(server, await server.stream())
    async with asyncio.timeout(PATIENT_S), NatsEndpoint(QUICK, None, ANYWHERE) as endpoint:
        await push(endpoint, to, make_records(0, 1))
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            await server.freeze()
            try:
                with pytest.raises(EndpointUnavailable) as frozen:
                    await push_all(route, make_records(0, 1, start=1))
                assert await endpoint.up(to) == frozenset()
            finally:
                server.kill()
        await asyncio.to_thread(server.start)
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            server.kill()
            with pytest.raises(EndpointUnavailable) as killed:
                await push_all(route, make_records(0, 1, start=1))
        with pytest.raises(EndpointUnavailable) as away:
            await push(endpoint, to, make_records(0, 1, start=1))
        await asyncio.to_thread(server.start)
        await push(endpoint, to, make_records(0, 2))

    assert [each.value.kind for each in (frozen, away)] == ["timeout", "connect"]
    assert killed.value.kind in ("unavailable", "connect")
    assert sorted(numbers(await server.read(to.topic))) == [0, 1]


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", EndpointUnavailable, "something else than NATS"),
        (b"\x15\x03\x03\x00\x02\x02\x28\r\n", EndpointMisconfigured, "this port speaks TLS"),
        (b"INFO nonsense\r\n", EndpointUnavailable, "an INFO that cannot be read"),
        pytest.param(b"INFO " + b"[" * 2000 + b"\r\n", EndpointUnavailable, "an INFO that cannot be read", id="nested"),
        (b'INFO {"max_payload":1e999}\r\n', EndpointUnavailable, "an INFO that cannot be read"),
        (b'INFO {"max_payload":1}\r\n', EndpointMisconfigured, "its release is too old"),
        (b'INFO {"headers":true,"tls_required":true}\r\n', EndpointMisconfigured, "asks for TLS"),
        (b"", EndpointUnavailable, "the connection broke"),
    ],
)
async def test_other_servers(data: bytes, kind: type[EndpointError], reason: str) -> None:
    """Whatever else listens there costs its topic only, and is named."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(data)
            await writer.drain()
            if data:
                await reader.read()
        finally:
            writer.close()

    async with serving_streams(say) as port, NatsEndpoint(SETTINGS) as endpoint:
        said = await failure(endpoint, Target(f"nats://127.0.0.1:{port}", "nats-stream=s", "t"), kind)

    assert reason in said


class MessagesInTurn:
    """A server with a stream for every subject, which answers each question; each message as `answers` says next, and
    by an acknowledgement where that says nothing more."""

    def __init__(self, *answers: bytes | None) -> None:
        self.messages: list[bytes] = []
        self.looks = 0
        self.may_look = True
        self.most_bytes = 1 << 20
        self._answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b'INFO {"headers":true,"max_payload":%d}\r\n' % self.most_bytes)
            while line := await reader.readline():
                word, *words = line.split()
                if word == b"PING":
                    writer.write(b"PONG\r\n")
                elif word in (b"PUB", b"HPUB"):
                    body = await reader.readexactly(int(words[-1]) + 2)
                    answer = self._answer(word, words[0], body)
                    if answer is not None and answer.startswith(b"-ERR"):
                        writer.write(answer)
                    elif answer is not None:
                        writer.write(b"MSG %b 1 %d\r\n%b\r\n" % (words[1], len(answer), answer))
        finally:
            writer.close()

    def _answer(self, word: bytes, subject: bytes, body: bytes) -> bytes | None:
        if word == b"HPUB":
            self.messages.append(body.partition(b"\r\n\r\n")[2].partition(b",")[0])
            return self._answers.pop(0) if self._answers else b'{"stream":"s","seq":1}'
        if subject.startswith(b"$JS.API.STREAM.MSG.GET."):
            self.looks += 1
            if not self.may_look:
                return b"-ERR 'Permissions Violation for Publish to \"%b\"'\r\n" % subject
            return b'{"error":{"code":404,"err_code":10037}}'
        return b'{"config":{"name":"s","subjects":[">"],"duplicate_window":120000000000}}'


async def test_a_message_that_the_server_loses() -> None:
    """One that nobody answers, as while a stream changes its leader, is sent again, and no connection ends for it."""
    server = MessagesInTurn(None)
    records = [each._replace(created_ns=time.time_ns()) for each in make_records(0, 2, keys=1)]
    settings = replace(SETTINGS, delivery_timeout_s=0.2)

    async with serving_streams(server.serve) as port, NatsEndpoint(settings) as endpoint:
        to = Target(f"nats://127.0.0.1:{port}", "nats-stream=s", "t")
        await failure(endpoint, to, EndpointUnavailable, records)
        async with asyncio.timeout(PATIENT_S):
            while b"1" not in server.messages:  # the time of a push may be over before a busy machine has done it
                with contextlib.suppress(EndpointUnavailable):
                    await push(endpoint, to, records)

    assert server.messages[:2] == [b"0", b"0"]


async def test_a_server_without_a_limit() -> None:
    """A server whose `max_payload` is -1 takes messages of every size, and gets them."""
    server = MessagesInTurn()
    server.most_bytes = -1

    async with serving_streams(server.serve) as port, NatsEndpoint(SETTINGS) as endpoint:
        to = Target(f"nats://127.0.0.1:{port}", "nats-stream=s", "t")
        await push(endpoint, to, make_records(0, 1, size=2 << 20))

    assert server.messages == [b"0"]


async def test_a_user_who_may_read_the_stream_no_longer() -> None:
    """Where the permission to look is taken away meanwhile, events go on without looks."""
    server = MessagesInTurn()
    async with serving_streams(server.serve) as port, NatsEndpoint(SETTINGS) as endpoint:
        to = Target(f"nats://127.0.0.1:{port}", "nats-stream=s", "t")
        await push(endpoint, to, make_records(0, 1))
        server.may_look = False
        said = await failure(endpoint, to, EndpointUnavailable)
        await push(endpoint, to, make_records(0, 3, keys=1))

    assert "the user may not read messages of the stream" in said
    assert server.messages == [b"0", b"0", b"1", b"2"]


# ------------------------------------------------------------------------------------------- log-ins, TLS


@pytest.fixture(scope="module")
def tls_server() -> Iterator[Nats]:
    """A server that speaks TLS only, and asks for a certificate."""
    with running_nats(tls=True) as running:
        yield running


async def test_an_nkey(nats_server: Nats, endpoint: NatsEndpoint) -> None:
    """A seed's file logs in; a user without one of the server's keys is refused."""
    to = target(nats_server, await nats_server.stream(), f"&nats-credentials={nats_server.seed_file}")
    await push(endpoint, to, make_records(0, 1))

    assert len(await nats_server.read(to.topic)) == 1


async def test_a_file_that_no_topic_may_name(nats_server: Nats) -> None:
    """Credentials lie below kafka.client_files, as keytabs and keys of certificates do."""
    async with NatsEndpoint(SETTINGS, None, TlsFiles()) as endpoint:
        to = target(nats_server, "s", f"&nats-credentials={nats_server.seed_file}")

        assert "not below a directory of kafka.client_files" in await failure(endpoint, to, EndpointMisconfigured)


async def test_a_credentials_file(tmp_path: Path, endpoint: NatsEndpoint) -> None:
    """A server of an operator lets in who shows a token of one of its accounts, and refuses any other."""
    operator, system, account, user = (Ed25519PrivateKey.generate() for _ in range(4))
    signed = token(public_key(operator, "O"), operator, "O", {"type": "operator"}, "operator")
    everything = {
        "subs": -1,
        "data": -1,
        "payload": -1,
        "imports": -1,
        "exports": -1,
        "wildcards": True,
        "conn": -1,
        "leaf": -1,
    }
    stored = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    of_system = token(public_key(system, "A"), operator, "O", {"type": "account", "limits": everything}, "system")
    of_account = token(
        public_key(account, "A"), operator, "O", {"type": "account", "limits": everything | stored}, "account"
    )
    of_user = token(public_key(user, "U"), account, "A", {"type": "user", "subs": -1, "data": -1, "payload": -1}, "u")
    stranger = token(public_key(user, "U"), user, "A", {"type": "user", "subs": -1, "data": -1, "payload": -1}, "u")
    (tmp_path / "u.creds").write_text(credentials(of_user, user))
    (tmp_path / "stranger.creds").write_text(credentials(stranger, user))
    known = {public_key(system, "A"): of_system, public_key(account, "A"): of_account}
    with running_nats(accounts=(signed, known)) as server:
        async with server.jetstream((of_user, user)) as found:
            await found.add_stream(name="S", subjects=["t.>"])
        to = Target(f"nats://{server.address}", f"nats-stream=S&nats-credentials={tmp_path}/u.creds", "t")
        await push(endpoint, to, make_records(0, 3))
        async with server.jetstream((of_user, user)) as found:
            assert (await found.stream_info("S")).state.messages == 3

        to = replace(to, args=f"nats-stream=S&nats-credentials={tmp_path}/stranger.creds")
        assert "the server refused the log-in" in await failure(endpoint, to, EndpointMisconfigured)


async def test_tls(tls_server: Nats, endpoint: NatsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who trusts the server's authority and shows a certificate is let in, also by the full name of the host."""
    known_by_its_full_name(monkeypatch)
    shown = f"&ssl-certificate-location={tls_server.client.certificate}&ssl-key-location={tls_server.client.key}"
    trust = f"&ca-location={tls_server.own.certificate}"
    async with tls_server.jetstream() as found:
        await found.add_stream(name="S", subjects=["t.>"])
    to = Target(f"nats+tls://localhost:{tls_server.port}", f"nats-stream=S{trust}{shown}", "t")
    await push(endpoint, to, make_records(0, 3))
    await push(endpoint, replace(to, uri=f"nats+tls://localhost.:{tls_server.port}"), make_records(3, 1))

    without = replace(to, args=f"nats-stream=S{trust}")
    assert await failure(endpoint, without, EndpointMisconfigured) in (
        f"localhost:{tls_server.port}: it asks for a client certificate",
    )
    plain = replace(to, uri=f"nats://localhost:{tls_server.port}")
    assert "the endpoint is nats and not nats+tls" in await failure(endpoint, plain, EndpointMisconfigured)


async def test_tls_that_is_wrong(nats_server: Nats, tls_server: Nats, endpoint: NatsEndpoint, tmp_path: Path) -> None:
    """A certificate of no known authority stops the topic, and so does a port without TLS."""
    other = certificate(tmp_path / "other", "localhost")
    to = Target(f"nats+tls://localhost:{tls_server.port}", f"nats-stream=S&ca-location={other.certificate}", "t")

    assert "its certificate is not trusted" in await failure(endpoint, to, EndpointMisconfigured)
    to = replace(to, uri=f"nats+tls://{nats_server.address}")
    assert "this port speaks no TLS" in await failure(endpoint, to, EndpointMisconfigured)
