"""Log-ins with OAUTHBEARER against a real broker with Kafka's own validator, and a token server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.certificates import Certificate, certificate
from devkit.clusters.kafka import Kafka, create_topic, read_committed, read_topic
from devkit.receivers.token_server import TokenServer, answer, token_server
from devkit.waits import PATIENT_S, until
from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint, bearer
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target
from support.kafka_sender import (
    INCARNATION,
    OWN_SHARD,
    PATIENT,
    ShardSender,
    make_records,
    push_all,
    push_in_both_modes,
    verdict,
)

pytestmark = pytest.mark.kafka

SECRET = "never-shown-secret"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """The token server's certificate."""
    return certificate(tmp_path_factory.mktemp("tokens") / "tls", "localhost")


@pytest.fixture
def tokens(kafka: Kafka, own: Certificate) -> Iterator[TokenServer]:
    """A server whose tokens the broker takes."""
    env = kafka.env
    signing_key = Path(env["token_key"])
    with token_server(
        own.certificate, own.key, signing_key, env["token_issuer"], env["token_audience"]
    ) as running:  # fmt: skip
        yield running


def settings_for(tokens: TokenServer) -> KafkaSettings:
    return replace(PATIENT, ca_directories="/", token_endpoints=(tokens.url,))


def target(kafka: Kafka, own: Certificate, tokens: TokenServer, topic: str, listener: str = "oauth") -> Target:
    args = (
        f"mechanism=OAUTHBEARER&sasl-oauthbearer-token-endpoint-url={tokens.url}&sasl-oauthbearer-client-id=remora"
        f"&sasl-oauthbearer-client-secret={SECRET}&sasl-oauthbearer-scope=kafka&ca-location={own.certificate}"
    )
    return Target(f"kafka://{kafka.env[f'{listener}_bootstrap']}", args, topic)


async def test_both_modes_share_one_token(
    kafka: Kafka, own: Certificate, tokens: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic is delivered at least once and exactly once, with one token for all connections; no secret is logged."""
    caplog.set_level(logging.DEBUG)
    topic, records = await create_topic(kafka.address), make_records(0, 20)
    meant = target(kafka, own, tokens, topic)

    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(settings_for(tokens)) as endpoint:
        await push_in_both_modes(endpoint, OWN_SHARD, meant, records)
        assert await endpoint.up(meant) == {"1"}

    assert verdict(await read_committed(kafka.address, topic), records) == (set(), 0, [])
    assert [body for _, _, body in tokens.asked] == [b"grant_type=client_credentials&scope=kafka"]
    assert SECRET not in caplog.text
    assert "Bearer" not in caplog.text


@pytest.mark.parametrize("claims", [{"aud": "another"}, {"iss": "https://another"}, {"exp": 1}], ids=str)
async def test_a_token_that_the_broker_refuses(
    kafka: Kafka, own: Certificate, tokens: TokenServer, claims: dict[str, object]
) -> None:
    """A token that is not for this broker stops the topic with that reason, in both modes, and not with a broken
    connection; the token server is not asked for each attempt."""
    tokens.script = lambda server: server.granted(**claims)
    meant = target(kafka, own, tokens, "events")

    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(settings_for(tokens)) as endpoint:
        endpoint._desks._chance = lambda: 1e9  # the pause is the longest one
        for mode in (endpoint.route, endpoint.exact, endpoint.route):
            with pytest.raises(EndpointMisconfigured, match=r"the broker refuses the token \(invalid_token\)"):
                async with mode(OWN_SHARD, INCARNATION, meant):
                    pass

    assert len(tokens.asked) == 1


async def test_a_port_without_tokens(kafka: Kafka, own: Certificate, tokens: TokenServer) -> None:
    """A port that asks for no log-in, or for another one, is said to."""
    expected = {
        "bootstrap": "asks for no user and password",
        "sasl_plaintext_bootstrap": "does not offer this mechanism",
    }
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(settings_for(tokens)) as endpoint:
        for listener, reason in expected.items():
            meant = replace(target(kafka, own, tokens, "t"), uri=f"kafka://{kafka.env[listener]}")
            with pytest.raises(EndpointMisconfigured, match=reason):
                async with endpoint.route(OWN_SHARD, INCARNATION, meant):
                    pass


async def test_a_topic_without_a_token_is_told(kafka: Kafka, own: Certificate, tokens: TokenServer) -> None:
    """A port that only takes tokens names the mechanism to a topic that asks for none."""
    meant = Target(f"kafka://{kafka.env['oauth_bootstrap']}", "", "t")
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(PATIENT) as endpoint:
        with pytest.raises(EndpointMisconfigured, match="mechanism OAUTHBEARER"):
            async with endpoint.route(OWN_SHARD, INCARNATION, meant):
                pass


@pytest.mark.full("waits for sessions of ten seconds to be renewed several times")
async def test_sessions_are_renewed(
    kafka: Kafka, own: Certificate, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a broker hangs up on who has not logged in again for ten seconds, and tokens end after fifteen, both modes
    go on over the connections that they have, and all arrives once and in order."""
    tokens.lasts_s = 15
    renewed: list[float] = []
    show_token = bearer.show_token

    async def shown(*given: Any) -> float:
        renewed.append(await show_token(*given))
        return renewed[-1]

    monkeypatch.setattr(bearer, "show_token", shown)  # as sessions call it, not openings
    often, exactly = await create_topic(kafka.address), await create_topic(kafka.address)
    records, count = make_records(0, 1_000_000), 0
    async with (
        asyncio.timeout(PATIENT_S),
        KafkaEndpoint(settings_for(tokens)) as endpoint,
        endpoint.route(OWN_SHARD, INCARNATION, target(kafka, own, tokens, often, "oauth_brief")) as route,
        endpoint.exact(OWN_SHARD, INCARNATION, target(kafka, own, tokens, exactly, "oauth_brief")) as exact,
    ):
        while len(renewed) < 6 or len(tokens.asked) < 3:
            part = records[count : count + 10]
            batches, _ = exact.pack(part)
            await asyncio.gather(push_all(route, part), exact.commit(batches, part[-1].next_position))
            count += 10

    assert all(0 < each <= 10 for each in renewed)
    assert verdict(await read_topic(kafka.address, often), records[:count]) == (set(), 0, [])
    assert verdict(await read_committed(kafka.address, exactly), records[:count]) == (set(), 0, [])


@pytest.mark.full("waits for a session of ten seconds to end")
async def test_a_token_server_is_away(kafka: Kafka, own: Certificate, tokens: TokenServer) -> None:
    """While no token is granted a session goes on until it ends; then the topic waits with that reason, and goes on
    when tokens are granted again."""
    tokens.lasts_s = 3
    topic, records = await create_topic(kafka.address), make_records(0, 1_000_000)
    meant, count = target(kafka, own, tokens, topic, "oauth_brief"), 10
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(settings_for(tokens)) as endpoint:
        sender = ShardSender(endpoint, OWN_SHARD.queue, meant)
        await sender.send(records[:count])
        tokens.script = lambda _: answer(503, b"")
        while not is_refused(sender):
            count += 10
            sending = asyncio.create_task(sender.send(records[:count]))
            await until(partial(has_ended, sending, sender), "sent, or no token")
            if is_refused(sender):
                tokens.script = None
            await sending

    lost, _, disordered = verdict(await read_topic(kafka.address, topic), records[:count])
    assert (lost, disordered) == (set(), [])


def has_ended(sending: asyncio.Task[None], sender: ShardSender) -> bool:
    return sending.done() or is_refused(sender)


def is_refused(sender: ShardSender) -> bool:
    """Whether it waits for a token."""
    return any("grants no token now (503)" in str(each) for each in sender.failures)
