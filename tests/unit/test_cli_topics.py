"""Commands on topics of the embedded store: made, changed, looked at and removed, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.entries.entries import raw_entry
from devkit.processes.daemon import write_config
from remora.cli.attributes import ARGUMENTS, DEFAULTS, Given, differences, without
from remora.cli.rows import AmbiguousTopic, Row, UnknownTopic, pick
from remora.codec.topic import DELIVERY, has_literal_keys, join_args, parse_args
from remora.endpoints.amqp import target as amqp
from remora.endpoints.http import target as http
from remora.endpoints.kafka import target as kafka
from remora.endpoints.nats import target as nats
from remora.model.exits import Exit
from remora.model.shard import LockToken, Origin, Shard
from remora.model.topic import Delivery, Target, Topic
from remora.ports.store import ShardStore
from support.commands import Run, config, in_store, remora

__all__ = ["config", "remora"]


ENDPOINT = "kafka://broker:9092"
SECRET = "p&ss=w+rd %41"


@pytest.fixture
def topic(remora: Run, config: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs `remora topic ...` on an embedded store of this test alone."""
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "queues"), "files": 2}})

    def run(*words: str | Path, stdin: bytes = b"") -> Any:
        return remora("topic", *words, "-c", config, stdin=stdin)

    return run


def fill(config: Path, shard: Shard, *keys: str) -> None:
    """Commit an event for each key to a queue."""

    async def work(store: ShardStore) -> None:
        entries = [raw_entry(key, number) for number, key in enumerate(keys)]
        reservation = await store.two_phase.reserve(shard, len(entries), sum(map(len, entries)))
        await store.two_phase.commit(shard, reservation, entries)

    in_store(config, work)


def shard(queue: str) -> Shard:
    """A queue of a topic of remora's own."""
    return Shard(queue, Origin.REMORA)


def attributes(shown: dict[str, Any]) -> dict[str, Any]:
    """What `topic show --json` shows that a user can set."""
    names = ("endpoint", "endpoint_topic", "arguments", "time_to_live", "max_retries", "retry_sleep_duration",
             "opaque_data", "capacity", "closed")  # fmt: skip
    return {name: shown[name] for name in names}


# ---------------------------------------------------------------------------------------------- create


def test_a_topic_is_made_with_its_defaults(topic: Callable[..., Any]) -> None:
    """A topic with nothing but an endpoint has 11 shards and delivers to the Kafka topic of its own name."""
    done = topic("create", "orders", "--endpoint", ENDPOINT)

    assert done.code == Exit.OK, done.err
    assert done.out.decode() == "topic orders is made: 11 shards, to Kafka topic orders at kafka://broker:9092\n"
    shown = topic("show", "orders", "--json").json
    assert attributes(shown) == {
        "endpoint": ENDPOINT, "endpoint_topic": "orders", "arguments": {}, "time_to_live": "default",
        "max_retries": "default", "retry_sleep_duration": "default", "opaque_data": "", "capacity": "default",
        "closed": False,
    }  # fmt: skip
    assert shown["queues"] == ["orders", *(f"orders.{number}" for number in range(1, 11))]
    assert (shown["origin"], shown["delivered_by"], shown["shards"]) == ("remora", "remora", 11)
    assert shown["id"]


def test_a_topic_that_numbers_its_events(topic: Callable[..., Any], config: Path) -> None:
    """`show` says how far its numbers have come; another `create` finds that it differs in what stays."""
    done = topic("create", "index", "--endpoint", ENDPOINT, "--sequence", "--shards", "2")
    topic("create", "orders", "--endpoint", ENDPOINT)

    assert done.out.decode().startswith("topic index is made: 2 shards, numbered, to Kafka topic index")
    assert topic("show", "index", "--json").json["sequence"] == {"tail": 0, "delivered": 0}
    assert "sequence: tail=0, delivered=0\n" in topic("show", "index").out.decode()
    assert topic("show", "orders", "--json").json["sequence"] == "none"
    other = topic("create", "index", "--endpoint", ENDPOINT, "--shards", "2", "--if-not-exists")
    assert other.err.rstrip().endswith("differs in sequence; whether events are numbered stays")
    assert topic("create", "index", "--endpoint", ENDPOINT, "--sequence", "--shards", "2", "--if-not-exists").code == 0


def test_a_topic_has_what_it_was_given(
    topic: Callable[..., Any], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every attribute reaches the store as it was given, a password with any characters too, and shows it not."""
    for option in ("CA_DIRECTORIES", "CLIENT_FILES"):
        monkeypatch.setenv(f"REMORA_KAFKA_{option}", "/")
    (tmp_path / "password").write_text(SECRET + "\n")
    (tmp_path / "key").write_text("&sesame\r\n")

    done = topic(
        "create", "orders", "--endpoint", "kafka://broker:9093", "--shards", "3", "--kafka-topic", "of-orders",
        "--arg", "use-ssl=true", "--arg", "ca-location=/etc/a b.pem", "--arg", "user-name=rem", "--arg",
        "mechanism=SCRAM-SHA-512", "--password-file", tmp_path / "password", "--time-to-live", "1h", "--max-retries",
        "0", "--retry-sleep-duration", "90", "--opaque-data", "ä b", "--arg", "ssl-certificate-location=/etc/c.pem",
        "--arg", "ssl-key-location=/etc/k.pem", "--ssl-key-password-file", tmp_path / "key",
    )  # fmt: skip

    assert done.code == Exit.OK, done.err
    found = in_store(config, lambda store: store.own_topics.find("orders"))
    assert found is not None
    assert found.target.uri == "kafka://broker:9093"
    assert found.target.topic == "of-orders"
    assert parse_args(found.target.args) == {
        "use-ssl": "true", "ca-location": "/etc/a b.pem", "user-name": "rem", "mechanism": "SCRAM-SHA-512",
        "password": SECRET, "ssl-certificate-location": "/etc/c.pem", "ssl-key-location": "/etc/k.pem",
        "ssl-key-password": "&sesame",
    }  # fmt: skip
    assert (found.time_to_live_s, found.max_retries, found.retry_sleep_s) == (3600, 0, 90)
    assert found.opaque_data == "ä b".encode()
    assert len(found.all_shards()) == 3
    shown = [topic(*words) for words in (("show", "orders"), ("show", "orders", "--json"), ("list", "--json"))]
    for text in [done.out.decode(), done.err, *(each.out.decode() + each.err for each in shown)]:
        assert SECRET not in text
        assert "p%26ss" not in text
        assert "sesame" not in text
    assert shown[1].json["arguments"]["password"] == "***"


def test_a_client_certificate_with_an_encrypted_key(
    topic: Callable[..., Any], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password of its key comes from a file of its own, is shown nowhere, and can be taken back."""
    monkeypatch.setenv("REMORA_KAFKA_CLIENT_FILES", "/")
    (tmp_path / "key-password").write_text(f"{SECRET}\n")
    words = ("--arg", "ssl-certificate-location=/c", "--arg", "ssl-key-location=/k", "--ssl-key-password-file")

    done = topic("create", "hooks", "--endpoint", "https://receiver/in", *words, tmp_path / "key-password")
    shown = [topic("show", "hooks"), topic("show", "hooks", "--json")]
    found = in_store(config, lambda store: store.own_topics.find("hooks"))
    unset = topic("set", "hooks", "--unset", "ssl-key-password")
    after = in_store(config, lambda store: store.own_topics.find("hooks"))

    assert (done.code, unset.code) == (Exit.OK, Exit.OK), done.err + unset.err
    assert found is not None
    assert after is not None
    certificate = {"ssl-certificate-location": "/c", "ssl-key-location": "/k"}
    assert parse_args(found.target.args) == {**certificate, "ssl-key-password": SECRET}
    assert parse_args(after.target.args) == certificate
    assert all(SECRET not in each.out.decode() + each.err for each in (done, *shown))


def test_a_password_is_read_from_standard_input(topic: Callable[..., Any], config: Path) -> None:
    """With `-` for the file, nothing of the password is ever in a file or on the command line."""
    words = ("create", "orders", "--endpoint", "kafka://rem@broker", "--password-file", "-")

    done = topic(*words, stdin=b"geheim\r\n")

    assert done.code == Exit.OK, done.err
    assert "remark: the password travels unencrypted" in done.out.decode()
    found = in_store(config, lambda store: store.own_topics.find("orders"))
    assert found is not None
    assert parse_args(found.target.args) == {"password": "geheim"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--endpoint", f"kafka://rem:{SECRET}@broker"], "--password-file"),
        (["--endpoint", ENDPOINT, "--arg", f"password={SECRET}"], "--password-file"),
        (["--endpoint", ENDPOINT, "--arg", f"ssl-key-password={SECRET}"], "use --ssl-key-password-file"),
        (["--endpoint", ENDPOINT, "--arg", "use-ssl=true", "--arg", "use-ssl=false"], "given twice"),
        (["--endpoint", ENDPOINT, "--arg", "use_ssl=true"], "there is no argument 'use_ssl'; did you mean use-ssl?"),
        (["--endpoint", ENDPOINT, "--arg", "nonsense=1"], ", ".join(ARGUMENTS)),
        (["--endpoint", ENDPOINT, "--arg", "use-ssl"], "use-ssl=VALUE"),
        (["--endpoint", ENDPOINT, "--shards", "0"], "1<=x<=1024"),
        (["--endpoint", ENDPOINT, "--shards", "1025"], "1<=x<=1024"),
        (["--endpoint", ENDPOINT, "--time-to-live", "1 hour"], "with a unit"),
        (["--endpoint", ENDPOINT, "--time-to-live", "1500ms"], "whole seconds"),
        (["--endpoint", ENDPOINT, "--time-to-live", "4294967295"], "whole seconds below 4294967295"),
        (["--endpoint", ENDPOINT, "--max-retries", "-1"], "0<=x"),
        (["--endpoint", ENDPOINT, "--password-file", os.devnull], "1 to 4096 bytes"),
        ([], "--endpoint"),
    ],
)
def test_wrong_usage_of_create(topic: Callable[..., Any], config: Path, words: list[str], hint: str) -> None:
    """What cannot be meant is refused with what would do, and without repeating a secret."""
    done = topic("create", "orders", *words)

    assert done.code == Exit.USAGE
    assert hint in " ".join(done.err.split())
    assert SECRET not in done.err
    assert in_store(config, lambda store: store.own_topics.find("orders")) is None


@pytest.mark.parametrize("name", ["a.b", "", "tenant:t", "ä", "x" * 201])
def test_names_that_no_topic_can_have(topic: Callable[..., Any], name: str) -> None:
    """A name with a dot could be another topic's second queue; it is refused like everything but plain characters."""
    done = topic("create", name, "--endpoint", ENDPOINT)

    assert done.code == Exit.USAGE
    assert "letters, digits" in done.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--endpoint", "ftp://broker:9092"], "nats+tls:// endpoints only"),
        (["--endpoint", "broker:9092"], "nats+tls:// endpoints only"),
        (["--endpoint", "kafka://broker:99999"], "port"),
        (["--endpoint", "https://receiver:0/in"], "the endpoint's port"),
        (["--endpoint", "https://rec eiver/in"], "holds a space"),
        (["--endpoint", "https:///in"], "names no host"),
        (["--endpoint", "https://receiver/in", "--arg", "remora-batch=xml"], "records, ndjson or cloudevents"),
        (["--endpoint", "https://receiver/in", "--arg", "remora-credential=../x"], "remora-credential"),
        (["--endpoint", "https://receiver/in", "--delivery", "exactly-once"], "at-least-once only"),
        (["--endpoint", "amqp://broker"], "amqp-exchange is missing"),
        (["--endpoint", "amqp://broker/a/b", "--arg", "amqp-exchange=x"], "write %2F"),
        (["--endpoint", "kafka://"], "names no broker"),
        (["--endpoint", ENDPOINT, "--kafka-topic", "a b"], "Kafka allows no topic"),
        (["--endpoint", ENDPOINT, "--arg", "use-ssl=maybe"], "use-ssl must be true or false"),
        (["--endpoint", ENDPOINT, "--arg", "user-name=rem"], "a user without a password"),
    ],
)
def test_an_endpoint_that_cannot_work_is_refused(topic: Callable[..., Any], words: list[str], reason: str) -> None:
    """Nothing is made whose events could not be delivered."""
    done = topic("create", "orders", *words)

    assert done.code == Exit.USAGE
    assert reason in done.err
    assert len(done.err.splitlines()) == 1
    assert "there is no store" in topic("list").err


@pytest.mark.parametrize("words", [("list",), ("stats",), ("show", "orders"), ("rm", "orders"), ("dump", "orders")])
def test_looking_makes_no_store(topic: Callable[..., Any], tmp_path: Path, words: tuple[str, ...]) -> None:
    """Where there is no store yet a command says so and makes none, which would belong to the user who typed it."""
    done = topic(*words)

    assert done.code == Exit.NO_PERMISSION
    assert "queues: queues-000.db is missing; where none was in use, the first start of the daemon" in done.err
    assert not (tmp_path / "queues").exists()


def test_a_topic_without_a_number_of_shards_has_the_configured_one(
    topic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new topic has `topics.default_shards` queues; one that exists keeps its number, and is no other for that."""
    words = ("create", "orders", "--endpoint", ENDPOINT)
    monkeypatch.setenv("REMORA_TOPICS_DEFAULT_SHARDS", "3")
    made = topic(*words)
    monkeypatch.setenv("REMORA_TOPICS_DEFAULT_SHARDS", "5")

    again = topic(*words, "--if-not-exists")

    assert made.out.decode().startswith("topic orders is made: 3 shards"), made.err
    assert (again.code, again.out.decode().startswith("topic orders exists already: 3 shards")) == (Exit.OK, True)
    assert topic("show", "orders", "--json").json["queues"] == ["orders", "orders.1", "orders.2"]


def test_creating_again(topic: Callable[..., Any]) -> None:
    """It is refused; with --if-not-exists it is no error as long as the topic is just so, and says what is not."""
    words = ("create", "orders", "--endpoint", ENDPOINT, "--time-to-live", "1d")
    assert topic(*words).code == Exit.OK
    before = topic("show", "orders", "--json").json

    again = topic(*words)
    same = topic(*words, "--if-not-exists")
    other = topic(*words[:4], "--shards", "4", "--if-not-exists")

    assert again.code == Exit.FAILURE
    assert "orders" in again.err
    assert same.code == Exit.OK
    assert "exists already" in same.out.decode()
    assert other.code == Exit.FAILURE
    assert "differs in shards, time-to-live; `remora topic set` changes it" in other.err
    alone = topic(*words, "--shards", "4", "--if-not-exists")
    assert alone.err.rstrip().endswith("differs in shards; `remora topic set` changes it")
    assert topic("show", "orders", "--json").json == before


BACK = {
    "time-to-live": (["--time-to-live", "1d"], ["--time-to-live", "0"]),
    "max-retries": (["--max-retries", "3"], ["--max-retries", "0"]),
    "retry-sleep-duration": (["--retry-sleep-duration", "3"], ["--retry-sleep-duration", "0"]),
    "opaque-data": (["--opaque-data", "x"], ["--opaque-data", ""]),
    "capacity": (["--capacity", "1GB"], ["--unset", "capacity"]),
    "delivery": (["--delivery", "exactly-once"], ["--delivery", "at-least-once"]),
    "arguments": (
        ["--arg", "use-ssl=true", "--arg", "ca-location=/etc/ssl/a"],
        ["--arg", "use-ssl=0", "--arg", "ca-location="],
    ),
}
"""What `topic set` changes, and how it takes that back: each attribute has the value that it has without one."""


@pytest.mark.parametrize("attribute", BACK)
def test_creating_again_what_was_changed_and_changed_back(topic: Callable[..., Any], attribute: str) -> None:
    """With --if-not-exists a topic that was changed is otherwise than asked for; one that was changed back is not,
    though it now says what is the default."""
    words = ("create", "orders", "--endpoint", ENDPOINT, "--if-not-exists")
    there, back = BACK[attribute]
    topic(*words)

    topic("set", "orders", *there)
    changed = topic(*words)
    topic("set", "orders", *back)
    again = topic(*words)

    assert changed.code == Exit.FAILURE
    assert f"differs in {'arguments' if attribute == 'delivery' else attribute};" in changed.err
    assert (again.code, again.err) == (Exit.OK, "")


def test_creating_again_goes_by_the_configured_defaults(topic: Callable[..., Any], config: Path) -> None:
    """No limit at all is otherwise than none of the topic's own where the configuration has one for all."""
    topic("create", "orders", "--endpoint", ENDPOINT, "--max-retries", "0")
    config.write_text(f"{config.read_text()}\n[delivery]\nmax_retries = 7\n")

    none = topic("create", "orders", "--endpoint", ENDPOINT, "--if-not-exists")
    topic("set", "orders", "--max-retries", "7")
    same = topic("create", "orders", "--endpoint", ENDPOINT, "--if-not-exists")

    assert none.code == Exit.FAILURE
    assert "differs in max-retries" in none.err
    assert same.code == Exit.OK


def test_show_asks_the_server_of_a_stream(topic: Callable[..., Any]) -> None:
    """What a NATS server says of the stream is a remark, and so is that it says nothing now."""
    topic("create", "events", "--endpoint", "nats://127.0.0.1:1", "--arg", "nats-stream=S")

    shown = topic("show", "events", "--json").json

    assert shown["remarks"] == ["127.0.0.1:1: Connection refused"]


@pytest.mark.parametrize(
    "uri", ["kafka://u:p@h", "http://u:p@h", "https://h", "amqp://u:p@h", "amqps://h", "nats://u:p@h", "nats+tls://h"]
)  # fmt: skip
@pytest.mark.parametrize("argument", DEFAULTS)
def test_the_defaults_of_arguments_are_those_of_the_endpoints(uri: str, argument: str) -> None:
    """An argument with what is taken for its default means the same to each endpoint as none."""
    parse: Callable[[Target], Any] = {
        "kafka": kafka.parse_target, "http": http.parse_target, "https": http.parse_target,
        "amqp": amqp.parse_target, "amqps": amqp.parse_target, "nats": nats.parse_target, "nats+tls": nats.parse_target,
    }[uri.partition(":")[0]]  # fmt: skip
    plain = {"amqp-exchange": "x", "remora-batch": "records", "nats-stream": "s"}

    without_it = Target(uri, join_args(plain), "t")
    with_it = Target(uri, join_args(plain | {argument: DEFAULTS[argument]}), "t")

    assert replace(parse(with_it), remarks=()) == replace(parse(without_it), remarks=())
    assert has_literal_keys(with_it) == has_literal_keys(without_it)


# ------------------------------------------------------------------------------------------------- set


def test_set_changes_only_what_is_given(topic: Callable[..., Any], config: Path) -> None:
    """Everything that is not named stays, the password and the id too; an unset attribute has its default again."""
    topic("create", "orders", "--endpoint", "kafka://rem@broker", "--time-to-live", "1d", "--max-retries", "7",
          "--opaque-data", "o", "--arg", "mechanism=PLAIN", "--password-file", "-", stdin=SECRET.encode())  # fmt: skip
    before = topic("show", "orders", "--json").json

    done = topic("set", "orders", "--endpoint", "kafka://rem@other", "--unset", "time-to-live", "--unset", "mechanism",
                 "--kafka-topic", "else")  # fmt: skip

    assert done.code == Exit.OK, done.err
    assert done.out.decode().splitlines()[0] == "topic orders is changed"
    after = topic("show", "orders", "--json").json
    changed = {"endpoint": "kafka://other", "endpoint_topic": "else", "time_to_live": "default"}
    assert after == before | changed | {"arguments": {"password": "***"}, "remarks": after["remarks"]}
    found = in_store(config, lambda store: store.own_topics.find("orders"))
    assert found is not None
    assert parse_args(found.target.args) == {"password": SECRET}
    undone = topic("set", "orders", "--unset", "kafka-topic", "--unset", "opaque-data", "--unset", "max-retries")
    assert undone.code == Exit.OK
    assert topic("show", "orders", "--json").json["endpoint_topic"] == "orders"


def test_set_gives_a_topic_a_capacity_of_its_own(topic: Callable[..., Any]) -> None:
    """`show` and `stats` have it from then on, a size that no queue can have is refused, and it can be taken back."""
    topic("create", "orders", "--endpoint", ENDPOINT, "--shards", "2")

    done = topic("set", "orders", "--capacity", "2GB")
    (stats,) = topic("stats", "orders", "--json").json
    refused = [topic("set", "orders", "--capacity", each) for each in ("63KiB", "2TB", "2000000000")]
    undone = topic("set", "orders", "--unset", "capacity")

    assert done.out.decode().splitlines()[0] == "topic orders is changed"
    assert stats["capacity_bytes"] == 2 * 2_000_000_000
    assert [each.code for each in refused] == [Exit.USAGE] * 3
    assert "63KiB is outside 64KiB to 1024GiB" in refused[0].err
    assert undone.code == Exit.OK
    assert topic("stats", "orders", "--json").json[0]["capacity_bytes"] == 2 * 128_000_000
    assert topic("show", "orders", "--json").json["capacity"] == "default"


def test_setting_what_is_so_already(topic: Callable[..., Any]) -> None:
    """It is no error, and says that nothing changed: a script may do it again and again."""
    topic("create", "orders", "--endpoint", ENDPOINT, "--max-retries", "3")

    done = topic("set", "orders", "--max-retries", "3", "--unset", "time-to-live", "--open", "--shards", "11")

    assert done.code == Exit.OK
    assert done.out.decode() == "topic orders is just so already\n"


def test_set_refuses_an_endpoint_that_cannot_work(topic: Callable[..., Any]) -> None:
    """A change that would stop delivery is refused, and changes nothing."""
    topic("create", "orders", "--endpoint", "kafka://rem@broker", "--password-file", "-", stdin=b"x")
    before = topic("show", "orders", "--json").json

    done = topic("set", "orders", "--unset", "password")

    assert done.code == Exit.USAGE
    assert "a user without a password" in done.err
    assert topic("show", "orders", "--json").json == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, there) for name, (there, _) in BACK.items() if name != "arguments"),
        ("kafka-topic", ["--kafka-topic", "other"]),
        ("use-ssl", ["--arg", "use-ssl=true"]),
        ("password", ["--password-file", "-"]),
    ],
)
def test_a_value_and_its_unset_exclude_each_other(topic: Callable[..., Any], name: str, words: list[str]) -> None:
    """A change that gives an attribute a value and takes it back is refused by the attribute's name."""
    topic("create", "orders", "--endpoint", ENDPOINT)
    before = topic("show", "orders", "--json").json

    done = topic("set", "orders", *words, "--unset", name, stdin=b"x")

    assert done.code == Exit.USAGE
    assert f"{name}: give a value or --unset, not both" in done.err
    assert topic("show", "orders", "--json").json == before


@pytest.mark.parametrize(
    "words", [["set", "nobody", "--open"], ["rm", "nobody"], ["show", "nobody"], ["dump", "nobody"]]
)
def test_unknown_topics(topic: Callable[..., Any], words: list[str]) -> None:
    """A topic that is not there is a failure of one line with its name."""
    topic("create", "orders", "--endpoint", ENDPOINT)

    done = topic(*words)

    assert done.code == Exit.FAILURE
    assert len(done.err.splitlines()) == 1
    assert "nobody" in done.err


def test_set_without_anything_to_change(topic: Callable[..., Any]) -> None:
    """Naming nothing is wrong usage."""
    assert topic("set", "orders").code == Exit.USAGE


_topics = st.builds(
    Topic,
    name=st.just("t"), tenant=st.just(""), queue=st.just("t"), origin=st.just(Origin.REMORA),
    target=st.builds(Target, uri=st.sampled_from(["kafka://a", "kafka://b"]), topic=st.sampled_from(["t", "u"]),
                     args=st.sampled_from(["", "use-ssl=true"])),
    time_to_live_s=st.none() | st.integers(0, 9), max_retries=st.none() | st.integers(0, 9),
    retry_sleep_s=st.none() | st.integers(0, 9), opaque_data=st.none() | st.just(b"o"),
    capacity_bytes=st.none() | st.just(1 << 20),
)  # fmt: skip
_given = st.builds(
    Given,
    endpoint=st.none() | st.just("kafka://c"), kafka_topic=st.none() | st.just("v"),
    args=st.dictionaries(st.sampled_from(ARGUMENTS), st.text(max_size=3)), password=st.none() | st.just("p"),
    key_password=st.none() | st.just("k"), client_secret=st.none() | st.just("s"),
    delivery=st.none() | st.sampled_from(Delivery),
    time_to_live_s=st.none() | st.integers(10, 19), max_retries=st.none() | st.integers(10, 19),
    retry_sleep_s=st.none() | st.integers(10, 19), opaque_data=st.none() | st.just(b"q"),
    capacity_bytes=st.none() | st.just(2 << 20),
)  # fmt: skip


@given(_topics, _given)
def test_what_differs_is_what_was_given(topic: Topic, given_: Given) -> None:
    """A changed topic differs from the one before in the attributes that were given, and in no other."""
    expected = {
        "endpoint": given_.endpoint, "kafka-topic": given_.kafka_topic, "time-to-live": given_.time_to_live_s,
        "max-retries": given_.max_retries, "retry-sleep-duration": given_.retry_sleep_s,
        "opaque-data": given_.opaque_data, "capacity": given_.capacity_bytes,
    }  # fmt: skip

    found = set(differences(topic, given_.on(topic)))

    assert found - {"arguments"} == {name for name, value in expected.items() if value is not None}
    assert parse_args(given_.on(topic).target.args) == parse_args(topic.target.args) | dict(given_.args) | (
        {} if given_.delivery is None else {DELIVERY: given_.delivery}
    ) | ({} if given_.password is None else {"password": given_.password}) | (
        {} if given_.key_password is None else {"ssl-key-password": given_.key_password}
    ) | ({} if given_.client_secret is None else {"sasl-oauthbearer-client-secret": given_.client_secret})


@given(_topics)
def test_unsetting_everything_leaves_the_defaults(topic: Topic) -> None:
    """A topic without any of its attributes is as one that was given nothing but its endpoint."""
    names = (
        "capacity",
        "kafka-topic",
        "max-retries",
        "opaque-data",
        "retry-sleep-duration",
        "time-to-live",
        *ARGUMENTS,
    )

    bare = Topic("t", "", "t", Target(topic.target.uri, "", "t"), origin=Origin.REMORA)
    assert without(topic, names) == bare


def test_the_delivery_mode_is_an_argument_of_the_endpoint(topic: Callable[..., Any], config: Path) -> None:
    """A mode given with --delivery is kept as remora-delivery, shown, and left to the configuration when unset."""
    made = topic("create", "orders", "--endpoint", ENDPOINT, "--delivery", "exactly-once")
    shown = topic("show", "orders", "--json").json
    listed = topic("list").out.decode()
    unset = topic("set", "orders", "--unset", "delivery")
    after = topic("show", "orders", "--json").json

    assert (made.code, unset.code) == (Exit.OK, Exit.OK), made.err + unset.err
    assert shown["arguments"] == {DELIVERY: "exactly-once"}
    assert (shown["delivery"], after["delivery"]) == ("exactly-once", "at-least-once")
    assert "exactly-once" in listed
    assert after["arguments"] == {}


def test_an_unknown_delivery_mode_is_refused(topic: Callable[..., Any]) -> None:
    """A word that names no mode makes no topic, whichever option it came by."""
    topic("create", "other", "--endpoint", ENDPOINT)

    by_option = topic("create", "orders", "--endpoint", ENDPOINT, "--delivery", "twice")
    by_argument = topic("create", "orders", "--endpoint", ENDPOINT, "--arg", f"{DELIVERY}=twice")

    assert by_option.code == Exit.USAGE
    assert by_argument.code != Exit.OK
    assert "must be at-least-once or exactly-once" in by_argument.err
    assert [each["topic"] for each in topic("list", "--json").json] == ["other"]


def test_an_unknown_way_to_write_keys_is_refused(topic: Callable[..., Any]) -> None:
    """remora-keys is encoded or literal; another word makes no topic."""
    wrong = topic("create", "orders", "--endpoint", ENDPOINT, "--arg", "remora-keys=raw")
    right = topic("create", "orders", "--endpoint", ENDPOINT, "--arg", "remora-keys=literal")
    shown = topic("show", "orders", "--json").json

    assert wrong.code != Exit.OK
    assert "remora-keys must be encoded or literal" in wrong.err
    assert (right.code, shown["arguments"]) == (Exit.OK, {"remora-keys": "literal"})


# ---------------------------------------------------------------------------------------------- looking


def test_a_topic_of_many_shards(topic: Callable[..., Any], config: Path) -> None:
    """With 1,024 shards, stats add all of them up, and dump prints them in the order of their numbers."""
    topic("create", "wide", "--endpoint", ENDPOINT, "--shards", "1024")
    for number in (1023, 2, 10, 0):
        fill(config, shard(f"wide.{number}" if number else "wide"), f"first-{number}", f"second-{number}")

    (stats,) = topic("stats", "wide", "--json").json
    dump = [json.loads(line) for line in topic("dump", "wide").out.splitlines()]
    table = topic("list").out.decode().splitlines()

    assert (stats["shards"], stats["entries"], stats["reservations"]) == (1024, 8, 0)
    assert stats["capacity_bytes"] == 1024 * 128_000_000
    assert stats["bytes"] == sum(len(raw_entry(f"{each}-{n}", i)) + 10
                                 for n in (1023, 2, 10, 0) for i, each in enumerate(("first", "second")))  # fmt: skip
    assert stats["oldest_age_seconds"] > 0
    keys = [line["notification"]["Records"][0]["s3"]["object"]["key"] for line in dump]
    assert keys == [f"{each}-{number}" for number in (0, 2, 10, 1023) for each in ("first", "second")]
    assert [line["queue"] for line in dump][::2] == ["wide", "wide.2", "wide.10", "wide.1023"]
    assert len(table) == 2
    assert all(len(line) < 200 for line in [*table, *topic("show", "wide").out.decode().splitlines()])


def test_dump_of_a_corrupt_entry(topic: Callable[..., Any], config: Path, tmp_path: Path) -> None:
    """An entry whose bytes changed is dumped raw with what is wrong, not as the event that it seems to be."""
    topic("create", "orders", "--endpoint", ENDPOINT)
    fill(config, shard("orders"), "a", "b")
    changed = raw_entry("a", 0).replace(b"ObjectCreated", b"ObjectCreatex")
    for file in (tmp_path / "queues").glob("*.db"):
        file.write_bytes(file.read_bytes().replace(raw_entry("a", 0), changed))

    for options in ([], ["--raw"]):
        first, second = [json.loads(line) for line in topic("dump", "orders", *options).out.splitlines()]

        assert "not those that were committed" in first["error"]
        assert base64.b64decode(first["raw"]) == changed
        assert "error" not in second


def test_stats_of_all_topics(topic: Callable[..., Any], config: Path) -> None:
    """Each topic is a row of its own, in name order, also one that has nothing."""
    for name in ("b", "a", "a-b"):
        topic("create", name, "--endpoint", ENDPOINT, "--shards", "2")
    fill(config, shard("b.1"), "k")

    found = topic("stats", "--json").json

    assert [(each["topic"], each["origin"], each["entries"]) for each in found] == [
        ("a", "remora", 0), ("a-b", "remora", 0), ("b", "remora", 1),
    ]  # fmt: skip
    assert [line.split()[0] for line in topic("stats").out.decode().splitlines()] == ["TOPIC", "a", "a-b", "b"]
    assert topic("stats", "--origin", "radosgw", "--json").json == []


def test_the_queues_of_topics(remora: Run, topic: Callable[..., Any], config: Path) -> None:
    """`shard list` shows each queue once, with who made it and that nobody holds it."""
    topic("create", "orders", "--endpoint", ENDPOINT, "--shards", "3")

    rows = remora("shard", "list", "--json", "-c", config).json

    assert [(each["queue"], each["origin"], each["owner"]) for each in rows] == [
        ("orders", "remora", None), ("orders.1", "remora", None), ("orders.2", "remora", None),
    ]  # fmt: skip
    free = remora("shard", "release", "orders.1", "-c", config)
    assert free.out.decode() == "orders.1 was free already\n"


def test_which_queues_a_release_is_about(remora: Run, topic: Callable[..., Any], config: Path) -> None:
    """A release names a queue, a topic or all; --all means radosgw's queues, of which there are none here."""
    topic("create", "orders", "--endpoint", ENDPOINT, "--shards", "3")

    every = remora("shard", "release", "--topic", "orders", "-c", config)
    nobodys = [remora("shard", word, "--all", "-c", config) for word in ("release", "claim")]
    wrong = [
        remora("shard", word, *words, "-c", config)
        for word in ("release", "claim")
        for words in ([], ["orders", "--all"], ["orders", "--topic", "orders"], ["--topic", "orders", "--all"])
    ]
    unknown = remora("shard", "release", "--topic", "nothing", "-c", config)

    assert every.code == Exit.OK, every.err
    assert every.out.decode().splitlines() == [
        f"{name} was free already" for name in ("orders", "orders.1", "orders.2")
    ]
    assert [(each.code, each.out) for each in nobodys] == [(Exit.OK, b"")] * 2
    assert [(each.code, "--topic or --all" in each.err) for each in wrong] == [(2, True)] * 8
    assert (unknown.code, "no persistent topic" in unknown.err) == (Exit.FAILURE, True)


def test_a_scheme_goes_with_all_queues(remora: Run, topic: Callable[..., Any], config: Path) -> None:
    """One kind of endpoint can be named where all queues are meant, and nowhere else; only kinds that there are."""
    topic("create", "orders", "--endpoint", "https://hooks.example.com/x", "--arg", "remora-batch=records")

    every = remora("shard", "claim", "--all", "--scheme", "https", "-c", config)
    wrong = remora("shard", "claim", "orders", "--scheme", "https", "-c", config)
    unknown = remora("shard", "claim", "--all", "--scheme", "ftp", "-c", config)

    assert (every.code, every.out) == (Exit.OK, b"")
    assert (wrong.code, "--scheme goes with --all" in wrong.err) == (Exit.USAGE, True)
    assert (unknown.code, "'ftp' is not one of" in unknown.err) == (Exit.USAGE, True)


def _row(label: str, tenant: str = "", origin: Origin = Origin.RADOSGW) -> Row:
    queue = f"{tenant}:{label}" if tenant else label
    topic = Topic(label, tenant, queue, Target("kafka://b", "", label), origin=origin)
    return Row(topic.label, topic, topic.all_shards())


def test_a_name_that_both_have() -> None:
    """A topic of radosgw's and one of remora's may share a name: which is meant has to be said."""
    rows = [_row("t"), _row("t", origin=Origin.REMORA)]

    with pytest.raises(AmbiguousTopic, match="--origin"):
        pick(rows, "t")
    assert [pick(rows, "t", origin).origin for origin in Origin] == list(Origin)


def test_a_name_in_several_tenants() -> None:
    """The name alone is not enough then; the label of one is, even if it is another's bare name."""
    rows = [_row("t", "a"), _row("t", "b"), _row("u", "a"), _row("u")]

    with pytest.raises(AmbiguousTopic, match="a:t, b:t"):
        pick(rows, "t")
    assert pick(rows, "b:t") is rows[1]
    assert pick(rows, "u") is rows[3]


def test_an_unknown_name_among_thousands() -> None:
    """The message names some of the known ones, not all."""
    with pytest.raises(UnknownTopic) as refused:
        pick([_row(f"topic-{number:05}") for number in range(5000)], "x")

    assert "and 4980 more" in str(refused.value)
    assert len(str(refused.value)) < 500


# ---------------------------------------------------------------------------------------------- removing


def test_a_topic_with_entries_is_not_removed(topic: Callable[..., Any], config: Path) -> None:
    """Removal says how many entries wait and what can be done; --discard removes it and counts what it gave up."""
    topic("create", "orders", "--endpoint", ENDPOINT, "--shards", "2")
    fill(config, shard("orders"), "a", "b")
    fill(config, shard("orders.1"), "c")

    refused = topic("rm", "orders")

    assert refused.code == Exit.FAILURE
    assert "3 entries" in refused.err
    assert "--drain" in refused.err
    assert "--discard" in refused.err
    assert topic("stats", "orders", "--json").json[0]["entries"] == 3
    discarded = topic("rm", "orders", "--discard")
    assert discarded.out.decode() == "topic orders is removed with 2 shards; 3 entries were given up\n"
    assert topic("list", "--json").json == []


def test_an_empty_topic_is_removed(topic: Callable[..., Any]) -> None:
    """Nothing waits, so nothing has to be said; a topic of the name can be made again, and is another one."""
    topic("create", "orders", "--endpoint", ENDPOINT)
    first = topic("show", "orders", "--json").json["id"]

    done = topic("rm", "orders")

    assert (done.code, done.out.decode()) == (Exit.OK, "topic orders is removed with 11 shards\n")
    assert topic("create", "orders", "--endpoint", ENDPOINT).code == Exit.OK
    assert topic("show", "orders", "--json").json["id"] != first


def test_a_drain_that_nobody_helps(topic: Callable[..., Any], config: Path) -> None:
    """Without a daemon a drain ends with its time: the topic stays, closed, until it is opened or drained again."""
    topic("create", "orders", "--endpoint", ENDPOINT, "--shards", "2")
    fill(config, shard("orders.1"), "a", "b")

    done = topic("rm", "orders", "--drain", "--timeout", "0")

    assert done.code == Exit.DRAIN_TIMEOUT
    assert (
        "2 entries and 0 reservations wait in 1 of 2 queues, some of which no worker holds: does a daemon run?"
        in done.err
    )
    assert "`remora topic set orders --open`" in done.err
    assert topic("show", "orders", "--json").json["closed"] is True
    assert "closed for new events" in topic("list").out.decode()
    assert topic("set", "orders", "--open").code == Exit.OK
    assert topic("show", "orders", "--json").json["closed"] is False


def test_a_drain_without_a_terminal_says_what_it_waits_for(
    topic: Callable[..., Any], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that nobody delivers are waited for with a line of how many there are, before the time is over."""
    monkeypatch.setattr("remora.cli.own_topic.SILENT_S", 0.01)
    topic("create", "orders", "--endpoint", ENDPOINT, "--shards", "2")
    fill(config, shard("orders.1"), "a")

    done = topic("rm", "orders", "--drain", "--timeout", "1")

    assert "remora: 00:00 waiting until 1 entry is delivered, for up to 1 s" in done.err


@pytest.mark.parametrize("words", [[], ["--timeout", "0"]], ids=" ".join)
def test_an_empty_topic_is_drained_at_once(topic: Callable[..., Any], words: list[str]) -> None:
    """With nothing to wait for, a drain is a removal, however short its time."""
    topic("create", "orders", "--endpoint", ENDPOINT)

    done = topic("rm", "orders", "--drain", *words)

    assert (done.code, done.err) == (Exit.OK, "")
    assert topic("list", "--json").json == []


@pytest.mark.parametrize("words", [["--discard", "--drain"], ["--timeout", "5s"]], ids=" ".join)
def test_wrong_usage_of_rm(topic: Callable[..., Any], words: list[str]) -> None:
    """Options that contradict each other are wrong usage."""
    assert topic("rm", "orders", *words).code == Exit.USAGE


# ------------------------------------------------------------------------------- hosts, users and damage

WITHOUT_CEPH = """
import ctypes, os, sys
real = ctypes.CDLL.__init__
def refusing(self, name, *args, **kwargs):
    if "rados" in str(name):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    real(self, name, *args, **kwargs)
ctypes.CDLL.__init__ = refusing
sys.modules["rados"] = None
def say_what_was_loaded():
    print(*(name for name in sys.modules if "rados" in name and sys.modules[name]), file=sys.stderr, flush=True)
end = os._exit
def end_at_once(code):
    say_what_was_loaded()
    end(code)
os._exit = end_at_once
from remora.cli import main
try:
    main()
finally:
    say_what_was_loaded()
"""
"""Runs a command where neither librados nor its binding can be had, and names the modules for it that were loaded.

A command ends at once where a thread has not ended yet, if only by an instant: then nothing behind `main` runs."""


def without_ceph(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """A command on a host without Ceph."""
    command = [sys.executable, "-c", WITHOUT_CEPH, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_host_without_ceph(topic: Callable[..., Any], config: Path, tmp_path: Path) -> None:
    """The embedded store loads nothing of Ceph and works, while the store on RADOS says what is missing."""
    commands: Sequence[Sequence[str | Path]] = (
        ["--help"],
        ["check-config", config],
        ["topic", "create", "orders", "--endpoint", ENDPOINT, "-c", config],
        ["topic", "list", "-c", config],
    )

    done = [without_ceph(*words) for words in commands]
    rados = without_ceph("topic", "list", "-c", write_config(tmp_path / "rados.toml", {"store": {"kind": "rados"}}))

    assert [(each.returncode, each.stderr) for each in done] == [(0, "\n")] * len(commands)
    assert "orders" in done[-1].stdout
    assert rados.returncode == Exit.NO_PERMISSION
    said, loaded = rados.stderr.splitlines()
    assert "apt install librados2" in said
    assert "remora.storage.librados" in loaded


def test_a_damaged_file(remora: Run, topic: Callable[..., Any], config: Path, tmp_path: Path) -> None:
    """What is sound is printed, the damaged file is named, and the exit code says that it is not all."""
    names = {"a", "b", "c", "d"}
    for name in names:
        topic("create", name, "--endpoint", ENDPOINT, "--shards", "1")
    damaged = tmp_path / "queues" / "queues-001.db"
    damaged.write_bytes(damaged.read_bytes()[:100] + b"\xff" * damaged.stat().st_size)

    done = [topic("stats", "--json"), topic("list", "--json"), remora("shard", "list", "--json", "-c", config)]

    for each in done:
        assert each.code == Exit.FAILURE
        assert str(damaged) in each.err
    sound = {each["topic"] for each in done[0].json}
    assert set() < sound < names
    assert {each["topic"] for each in done[1].json} == {each["queue"] for each in done[2].json} == sound
    for name in names - sound:
        shown = topic("show", name)
        assert shown.code == Exit.FAILURE
        assert str(damaged) in shown.err


def test_a_backup_is_restored(topic: Callable[..., Any], remora: Run, config: Path, tmp_path: Path) -> None:
    """A copy made and put back as the manual says has what waited then, in queues of other incarnations."""
    topic("create", "orders", "--endpoint", ENDPOINT, "--shards", "1")
    fill(config, shard("orders"), "a", "b")
    before = in_store(config, incarnation)

    assert remora("store", "backup", tmp_path / "copies", "-c", config).code == Exit.OK
    fill(config, shard("orders"), "c")
    for file in (tmp_path / "queues").glob("queues-*"):
        file.unlink()
    assert remora("store", "restore", tmp_path / "copies", "-c", config).code == Exit.OK

    dump = [json.loads(line)["notification"] for line in topic("dump", "orders").out.splitlines()]
    assert [each["Records"][0]["s3"]["object"]["key"] for each in dump] == ["a", "b"]
    assert in_store(config, incarnation) not in ("", before)


async def incarnation(store: ShardStore) -> str:
    """That of the first queue of `orders`."""
    token = await store.locks.acquire(shard("orders"), "test", 60)
    assert isinstance(token, LockToken)
    await store.locks.release(token)
    return token.incarnation
