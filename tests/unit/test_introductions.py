"""Who sends to a worker's topics, and as whom their endpoints are opened, by files of its host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from devkit.clock import in_virtual_time
from devkit.clusters.certificates import certificate
from devkit.waits import until
from remora.config import KafkaSettings, Settings
from remora.endpoint_kinds import certificate_subject
from remora.model.shard import Origin
from remora.model.topic import Target, Topic
from remora.servers import tokens
from remora.servers.tokens import line_of, new_token
from remora.worker.introductions import REREAD_S, HostIntroductions
from support.ingest import ScriptedStore, ingest_site, own_topic

TARGET = Target("kafka://b:9093", "use-ssl=true&ssl-certificate-location=/c.pem&ssl-key-location=/k.pem", "t")
TOPIC = Topic("logs-eu", "", "logs-eu", TARGET, origin=Origin.REMORA)


async def no_subject(_: str) -> str:
    return ""


@asynccontextmanager
async def running(known: HostIntroductions) -> AsyncIterator[None]:
    task = asyncio.ensure_future(known.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_the_tokens_of_a_topic_are_those_with_a_right_to_it() -> None:
    """Each name counts once, however many tokens it has; a right to buckets is none to a topic; and a topic of
    radosgw's has no senders with tokens."""
    changes: list[None] = []
    known = HostIntroductions(no_subject, lambda: changes.append(None))
    lines = (
        line_of("live", new_token(), "logs-*"), line_of("live", new_token(), "logs-eu"),
        line_of("all", new_token(), "*"), line_of("other", new_token(), "audit"),
        line_of("of-buckets", new_token(), "", "*"),
    )  # fmt: skip
    assert known(TOPIC).tokens == ()

    known.learn_tokens(tokens.parse("\n".join(lines).encode(), "tokens"))

    assert known(TOPIC).tokens == ("live", "all")
    assert known(replace(TOPIC, origin=Origin.RADOSGW)).tokens == ()
    assert len(changes) == 1


@in_virtual_time
async def test_a_certificate_is_read_once_asked_for_and_again_later() -> None:
    """The subject is known soon after the first question, a replaced certificate within a minute, and each change is
    told; who is not asked for is not read."""
    files, changes, read = {"/c.pem": "CN=old"}, asyncio.Event(), []

    async def subject(location: str) -> str:
        read.append(location)
        return files[location]

    known = HostIntroductions(subject, changes.set)
    async with running(known):
        await asyncio.sleep(REREAD_S + 1)
        assert read == []
        assert known(replace(TOPIC, target=Target("kafka://b:9092", "", "t"))).certificate == ""
        assert known(TOPIC).certificate == ""
        await changes.wait()
        assert known(TOPIC).certificate == "CN=old"
        changes.clear()

        files["/c.pem"] = "CN=new"
        await changes.wait()

    assert known(TOPIC).certificate == "CN=new"
    assert read == ["/c.pem", "/c.pem"]


def test_the_subject_of_a_file_that_topics_may_name(tmp_path: Path) -> None:
    """It is read from below `kafka.client_files` only; a file elsewhere, none, and a damaged one have no subject."""
    made = certificate(tmp_path / "allowed", "orders")
    other = certificate(tmp_path / "elsewhere", "orders")
    settings = Settings(kafka=KafkaSettings(client_files=str(tmp_path / "allowed")))

    assert certificate_subject(str(made.certificate), settings) == "CN=orders"
    assert certificate_subject(str(other.certificate), settings) == ""
    assert certificate_subject(str(tmp_path / "allowed/none.pem"), settings) == ""
    damaged = tmp_path / "allowed/damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert certificate_subject(str(damaged), settings) == ""


async def test_tokens_are_told_at_the_start_and_when_the_file_changes(tmp_path: Path) -> None:
    """The server of the ingest API tells its tokens, those of a changed file too, and none where none are needed."""
    known = HostIntroductions(no_subject, lambda: None)
    file = tmp_path / "tokens"
    file.write_text(line_of("bulk", new_token(), "logs-eu") + "\n")
    file.chmod(0o600)
    async with ingest_site(ScriptedStore(own_topic("t")), tmp_path, tokens=str(file), on_tokens=known.learn_tokens):
        assert known(TOPIC).tokens == ("bulk",)
        with file.open("a") as more:
            more.write(line_of("live", new_token(), "*") + "\n")
        await until(lambda: known(TOPIC).tokens == ("bulk", "live"), "the token that came")
    async with ingest_site(ScriptedStore(own_topic("t")), tmp_path, on_tokens=known.learn_tokens):
        assert known(TOPIC).tokens == ()
