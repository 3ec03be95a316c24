"""Who sends to a worker's topics, and as whom their endpoints are opened, by files of its host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from devkit.clock import in_virtual_time
from devkit.clusters.certificates import certificate
from devkit.waits import until
from remora.config import KafkaSettings, Settings
from remora.endpoint_kinds import addresses_of, certificate_subject
from remora.endpoints.threads import PATIENCE_S
from remora.model.shard import Origin
from remora.model.topic import Target, Topic
from remora.servers import tokens
from remora.servers.tokens import line_of, new_token
from remora.worker.introductions import FORGET_ROUNDS, MOST_KNOWN, REREAD_S, HostIntroductions
from support.ingest import ScriptedStore, ingest_site, own_topic

TARGET = Target("kafka://b:9093", "use-ssl=true&ssl-certificate-location=/c.pem&ssl-key-location=/k.pem", "t")
TOPIC = Topic("logs-eu", "", "logs-eu", TARGET, origin=Origin.REMORA)


async def no_subject(_: str) -> str:
    return ""


async def no_address(_: str) -> None:
    return None


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
    known = HostIntroductions(no_subject, no_address, lambda: changes.append(None))
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

    known = HostIntroductions(subject, no_address, changes.set)
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


class ScriptedNames:
    """A resolver: answers with what a test has written down, and not at all for a name that hangs."""

    def __init__(self, **addresses: tuple[str, ...] | None) -> None:
        self.addresses = addresses
        self.asked: list[str] = []
        self.hanging: set[str] = set()

    async def __call__(self, host: str) -> tuple[str, ...] | None:
        self.asked.append(host)
        if host in self.hanging:
            await asyncio.sleep(PATIENCE_S)
            return None
        return self.addresses.get(host)


@in_virtual_time
async def test_a_name_is_looked_up_once_asked_for_and_again_later() -> None:
    """Its addresses are known soon after the first question, others within a minute; while nobody answers, the last
    ones count; and each change is told."""
    names, changes = ScriptedNames(a=("10.0.0.1",)), asyncio.Event()
    known = HostIntroductions(no_subject, names, changes.set)
    async with running(known):
        assert known(TOPIC, ["a"]).addresses == {}
        await changes.wait()
        assert known(TOPIC, ["a"]).addresses == known.addresses == {"a": ("10.0.0.1",)}
        assert known(TOPIC).addresses == {}

        names.addresses["a"] = None
        await asyncio.sleep(2 * REREAD_S)
        assert known(TOPIC, ["a"]).addresses == {"a": ("10.0.0.1",)}

        names.addresses["a"] = ("10.0.0.2", "10.0.0.3")
        await asyncio.sleep(REREAD_S + 1)
        assert known(TOPIC, ["a"]).addresses == {"a": ("10.0.0.2", "10.0.0.3")}

    assert names.asked == ["a"] * 4


@in_virtual_time
async def test_names_that_hang_keep_no_others_for_long() -> None:
    """A name without an answer takes one of a few places for as long as its look-up waits; changes of the others are
    told once, and not each by itself."""
    hosts = [f"h{i}" for i in range(40)]
    names, changes = ScriptedNames(**dict.fromkeys(hosts, ("10.0.0.1",))), list[None]()
    names.hanging = set(hosts[:3])
    known = HostIntroductions(no_subject, names, lambda: changes.append(None))
    async with running(known):
        known(TOPIC, hosts)
        await asyncio.sleep(1)
        assert known.addresses.keys() == set(hosts[3:])
        assert len(changes) == 1


@in_virtual_time
async def test_names_that_nobody_asks_for_are_forgotten() -> None:
    """A name that was asked for in the last hour is looked up each minute; of others nothing is known any longer, and
    there is room for new ones."""
    names = ScriptedNames(**{f"h{i}": ("10.0.0.1",) for i in range(MOST_KNOWN + 1)})

    def ask_again() -> None:
        known(TOPIC, ["h0"])

    known = HostIntroductions(no_subject, names, ask_again)
    async with running(known):
        known(TOPIC, [f"h{i}" for i in range(MOST_KNOWN + 1)])
        await asyncio.sleep(1)
        assert len(known.addresses) == MOST_KNOWN
        await asyncio.sleep((FORGET_ROUNDS + 2) * REREAD_S)
        assert known.addresses.keys() == {"h0"}
        known(TOPIC, [f"h{MOST_KNOWN}"])
        await asyncio.sleep(1)
        assert known.addresses.keys() == {"h0", f"h{MOST_KNOWN}"}


async def test_the_addresses_of_a_host_are_those_that_endpoints_connect_to() -> None:
    """This host's own name has addresses of the loopback, an address is itself, and a name that is none has none."""
    found = await addresses_of("localhost")
    assert found
    assert all(ip_address(each).is_loopback for each in found)
    assert await addresses_of("10.1.2.3") == ("10.1.2.3",)
    assert await addresses_of("nobody.invalid") is None
    assert await addresses_of("x" * 64 + ".invalid") is None


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
    known = HostIntroductions(no_subject, no_address, lambda: None)
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
