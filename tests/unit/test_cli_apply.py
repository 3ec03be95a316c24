"""Topics of remora's own from a file: what is made, changed, removed and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.entries.entries import raw_entry
from devkit.processes.daemon import Ended, write_config
from remora.cli.apply_topics import TopicChange, carry_out, plan
from remora.cli.attributes import differences
from remora.cli.declared import Declared
from remora.codec.topic import parse_args
from remora.model.exits import Exit
from remora.model.shard import Origin, Shard
from remora.model.topic import Target, Topic
from remora.ports.store import ShardStore
from support.commands import Run, config, in_store, remora

__all__ = ["config", "remora"]

Apply = Callable[..., Ended]


@pytest.fixture
def apply(remora: Run, config: Path, tmp_path: Path) -> Apply:
    """Writes a file of topics and applies it to an embedded store of this test alone."""
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "queues"), "files": 2}})
    file = tmp_path / "topics.toml"

    def run(text: str, *options: str) -> Ended:
        file.write_text(text)
        return remora("topic", "apply", "-f", file, *options, "-c", config)

    return run


def own(config: Path) -> dict[str, Topic]:
    """The topics that are there, by their names."""

    async def work(store: ShardStore) -> dict[str, Topic]:
        return {topic.name: topic for topic in (await store.catalog.topics()).values()}

    return in_store(config, work)


ORDERS = """
[topic.orders]
endpoint = "kafka://broker:9093"
shards = 3
kafka-topic = "events"
time-to-live = "1d"
max-retries = 5
retry-sleep-duration = 7
opaque-data = "from orders"
capacity = "1GiB"
delivery = "exactly-once"
password-file = "secret/kafka"
args = { use-ssl = true, mechanism = "SCRAM-SHA-512", user-name = "remora", kafka-ack-level = "broker" }
"""
PAYMENTS = "[topic.payments]\nendpoint = 'kafka://broker'\n"


def write_secret(tmp_path: Path, password: str = "first") -> None:
    (tmp_path / "secret").mkdir(exist_ok=True)
    (tmp_path / "secret/kafka").write_text(f"{password}\n")


def test_topics_are_made_as_the_file_says(apply: Apply, config: Path, tmp_path: Path) -> None:
    """Every attribute of a table is the topic's, what a table leaves out has its default, and no secret is printed."""
    write_secret(tmp_path)

    done = apply(ORDERS + PAYMENTS)

    assert done.code == Exit.OK, done.err
    assert "+ orders: 3 shards, to Kafka topic events at kafka://broker:9093" in done.out.decode()
    assert b"first" not in done.out
    topics = own(config)
    orders, payments = topics["orders"], topics["payments"]
    assert (orders.shards, orders.target.topic, orders.opaque_data) == (3, "events", b"from orders")
    assert (orders.time_to_live_s, orders.max_retries, orders.retry_sleep_s) == (86400, 5, 7)
    assert orders.capacity_bytes == 1 << 30
    assert parse_args(orders.target.args) == {
        "use-ssl": "true",
        "mechanism": "SCRAM-SHA-512",
        "user-name": "remora",
        "kafka-ack-level": "broker",
        "remora-delivery": "exactly-once",
        "password": "first",
    }
    assert (payments.shards, payments.target, payments.time_to_live_s) == (
        11,
        Target("kafka://broker", "", "payments"),
        None,
    )


def test_the_key_of_a_certificate_has_a_password_of_its_own(apply: Apply, config: Path, tmp_path: Path) -> None:
    """It is read from a file as the user's is, and neither is printed."""
    write_secret(tmp_path)
    (tmp_path / "key").write_text("sesame\r\n")
    more = 'ssl-key-password-file = "key"\nargs = { ssl-certificate-location = "/c", ssl-key-location = "/k",'

    done = apply(ORDERS.replace("args = {", more))

    assert done.code == Exit.OK, done.err
    arguments = parse_args(own(config)["orders"].target.args)
    assert (arguments["password"], arguments["ssl-key-password"]) == ("first", "sesame")
    assert "args.ssl-key-password: ***" in done.out.decode()
    assert b"sesame" not in done.out


def test_the_secret_of_a_client_comes_from_a_file(apply: Apply, config: Path, tmp_path: Path) -> None:
    """It is kept with the topic, and neither printed nor shown."""
    write_secret(tmp_path)
    (tmp_path / "client").write_text("sesame\n")
    config.write_text(f'{config.read_text()}\n[kafka]\ntoken_endpoints = ["https://sso.example.org/*"]\n')
    more = (
        'sasl-oauthbearer-client-secret-file = "client"\nargs = { mechanism = "OAUTHBEARER",'
        ' sasl-oauthbearer-token-endpoint-url = "https://sso.example.org/token", sasl-oauthbearer-client-id = "remora",'
    )

    done = apply(ORDERS.replace('mechanism = "SCRAM-SHA-512", ', "").replace("args = {", more))

    assert done.code == Exit.OK, done.err
    assert parse_args(own(config)["orders"].target.args)["sasl-oauthbearer-client-secret"] == "sesame"
    assert "args.sasl-oauthbearer-client-secret: ***" in done.out.decode()
    assert b"sesame" not in done.out


def test_a_file_that_is_applied_again_changes_nothing(apply: Apply, config: Path, tmp_path: Path) -> None:
    """The second time every topic is as the file says, and keeps its id."""
    write_secret(tmp_path)
    apply(ORDERS + PAYMENTS)
    before = own(config)

    again, dry = apply(ORDERS + PAYMENTS), apply(ORDERS + PAYMENTS, "--dry-run")

    assert (again.code, dry.code) == (Exit.OK, Exit.OK)
    assert again.out == dry.out == b"2 topics are as the file says\n"
    assert own(config) == before


def test_a_dry_run_shows_the_difference_and_changes_nothing(apply: Apply, config: Path, tmp_path: Path) -> None:
    """A dry run ends with 3 where something differs, names each difference but no secret, and leaves all as it is."""
    write_secret(tmp_path)
    apply(ORDERS + PAYMENTS)
    before = own(config)
    write_secret(tmp_path, "second")

    text = ORDERS.replace('"1d"', '"2h"').replace("max-retries = 5\n", "").replace(', kafka-ack-level = "broker"', "")
    dry = apply(text + "[topic.new]\nendpoint = 'kafka://b'\nshards = 1", "--dry-run", "--prune")

    assert dry.code == Exit.DIFFERS
    assert dry.out.decode().splitlines() == [
        "~ orders",
        "    time-to-live: 86400 -> 7200",
        "    max-retries: 5 -> default",
        "    args.kafka-ack-level: broker -> default",
        "    password: changed",
        "+ new: 1 shard, to Kafka topic new at kafka://b",
        "- payments: 11 shards",
        "topics to make: 1, to change: 1, to remove: 1; as the file says: 0; nothing was changed",
    ]
    assert own(config) == before


def test_a_topic_is_changed_to_what_the_file_says(apply: Apply, config: Path, tmp_path: Path) -> None:
    """What differs is changed, what the file leaves out goes back to its default, and the topic stays the same one."""
    write_secret(tmp_path)
    apply(ORDERS)
    before = own(config)["orders"]

    done = apply("[topic.orders]\nendpoint = 'kafka://other:9092'\nshards = 3")

    assert done.code == Exit.OK, done.err
    after = own(config)["orders"]
    assert after == replace(
        before, target=Target("kafka://other:9092", "", "orders"), opaque_data=after.opaque_data,
        time_to_live_s=None, max_retries=None, retry_sleep_s=None, capacity_bytes=None,
    )  # fmt: skip
    assert not after.opaque_data


def test_a_path_that_is_not_shown_is_said_to_differ(apply: Apply) -> None:
    """What follows the host of an endpoint may be a secret: that it changed is said, and neither what nor what to."""
    apply("[topic.hook]\nendpoint = 'https://b/first'")

    dry = apply("[topic.hook]\nendpoint = 'https://b/second'", "--dry-run")
    made = apply("[topic.other]\nendpoint = 'https://b/second'", "--dry-run")

    assert dry.out.decode().splitlines()[:2] == ["~ hook", "    endpoint's user, path or query: changed"]
    assert made.out.decode().splitlines()[0] == "+ other: 11 shards, to https://b"


def test_a_dry_run_before_the_first_start_shows_all_topics(apply: Apply, tmp_path: Path) -> None:
    """Where there is no store yet, every topic would be made, which makes no store; the exit code is 3."""
    dry = apply(PAYMENTS, "--dry-run")

    assert dry.code == Exit.DIFFERS, dry.err
    remark, step, _ = dry.out.decode().splitlines()
    assert "there is no store" in remark
    assert step == "+ payments: 11 shards, to Kafka topic payments at kafka://broker"
    assert not (tmp_path / "queues").exists()


def test_a_dry_run_makes_nothing_of_a_disk_that_is_away(apply: Apply, config: Path, tmp_path: Path) -> None:
    """Where the store is one to wait for, its absence is no difference, and the command fails as without --dry-run."""
    sqlite = {"directory": str(tmp_path / "away"), "if_missing": "wait"}
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": sqlite})

    dry, wet = apply(PAYMENTS, "--dry-run"), apply(PAYMENTS)

    assert (dry.code, wet.code) == (Exit.NO_PERMISSION, Exit.NO_PERMISSION)
    assert "there is no store" in dry.err


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_topic_that_another_command_makes_meanwhile_is_taken_as_made(
    config: Path, apply: Apply, is_closed: bool
) -> None:
    """A step that somebody else has taken since the plan is no failure, if it led to the very topic of the file."""
    apply(PAYMENTS)
    there = own(config)["payments"]
    wanted = replace(there, id="", closed=is_closed)
    gone = replace(there, id="another", name="gone", queue="gone")
    other = replace(wanted, max_retries=7)

    async def take(store: ShardStore) -> list[str]:
        return [
            str(each)
            for each in await carry_out(
                store, [TopicChange(None, wanted), TopicChange(gone, None), TopicChange(None, other)]
            )
        ]

    assert in_store(config, take) == ["there is a topic payments already"]
    assert own(config)["payments"] == replace(there, closed=is_closed)


def test_nothing_is_removed_without_being_asked(apply: Apply, config: Path) -> None:
    """A topic that the file does not name stays and is named; --prune removes it."""
    apply(PAYMENTS + "[topic.old]\nendpoint = 'kafka://b'")

    kept = apply(PAYMENTS)
    after_kept = own(config)
    pruned = apply(PAYMENTS, "--prune")

    assert "old: not in the file, stays (--prune removes it)" in kept.out.decode()
    assert after_kept.keys() == {"payments", "old"}
    assert pruned.code == Exit.OK
    assert own(config).keys() == {"payments"}


def test_a_topic_with_entries_is_not_pruned(apply: Apply, config: Path) -> None:
    """A topic in which entries wait stays, with the commands that help, while everything else is done."""
    apply("[topic.old]\nendpoint = 'kafka://b'\n[topic.older]\nendpoint = 'kafka://b'")

    async def fill(store: ShardStore) -> None:
        entry = raw_entry("k", 1)
        shard = Shard("old", Origin.REMORA)
        await store.two_phase.commit(shard, await store.two_phase.reserve(shard, 1, len(entry)), [entry])

    in_store(config, fill)
    done = apply(PAYMENTS, "--prune")

    assert done.code == Exit.FAILURE
    assert "`remora topic rm old` with --drain, or --discard" in done.err
    assert own(config).keys() == {"payments", "old"}


def test_a_topic_that_is_being_drained_stays_closed(apply: Apply, config: Path) -> None:
    """A file that does not speak of `closed` leaves it as it is; one that does is followed."""
    apply(PAYMENTS + "closed = true")
    made_closed = own(config)["payments"].closed

    apply(PAYMENTS + "max-retries = 1")
    left = own(config)["payments"].closed
    apply(PAYMENTS + "closed = false")

    assert (made_closed, left, own(config)["payments"].closed) == (True, True, False)


def test_a_table_without_a_number_of_shards_has_the_configured_one_when_it_is_made(
    apply: Apply, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new topic has `topics.default_shards` queues; a changed default neither changes nor refuses one that exists."""
    monkeypatch.setenv("REMORA_TOPICS_DEFAULT_SHARDS", "3")
    apply(PAYMENTS)
    monkeypatch.setenv("REMORA_TOPICS_DEFAULT_SHARDS", "5")

    done = apply("[topic.new]\nendpoint = 'kafka://b'\n" + PAYMENTS)

    assert done.code == Exit.OK, done.err
    assert {name: found.shards for name, found in own(config).items()} == {"payments": 3, "new": 5}


def test_a_file_makes_topics_that_number_their_events(apply: Apply, config: Path) -> None:
    """`sequence` is a topic's for good: a file that says otherwise later is refused as a whole."""
    first = apply(PAYMENTS + "sequence = true")
    again = apply(PAYMENTS + "sequence = true")

    done = apply(PAYMENTS)

    assert (first.code, again.code, done.code) == (Exit.OK, Exit.OK, Exit.FAILURE)
    assert "sequence: yes" in first.out.decode()
    assert done.err == "remora: whether a topic has a sequence stays for good: payments has one; nothing was changed\n"
    assert own(config)["payments"].is_sequenced


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("[topics.a]\n", "topics", "topics are tables [topic.NAME]"),
        ("topic = 1", "topic", "expected tables"),
        ("[topic.'a b']\n", "topic.a b", "1 to 200 letters"),
        ("[topic.a]\n", "topic.a", "missing required field `endpoint`"),
        ("[topic.a]\nendpoint = 1", "topic.a.endpoint", "expected `str`, got `int`"),
        ("[topic.a]\nendpoint = 'ftp://b'", "topic.a", "nats+tls:// endpoints only"),
        ("[topic.a]\nendpoint = 'kafka://u:p@b'", "topic.a.endpoint", "a password does not belong into the file"),
        ("[topic.a]\nendpoint = 'kafka://b'\nshard = 3", "topic.a.shard", "no such option; did you mean shards?"),
        ("topic.a = 3", "topic.a", "expected a table"),
        ("[topic.a]\nendpoint = 'kafka://b'\nshards = 0", "topic.a.shards", ">= 1"),
        ("[topic.a]\nendpoint = 'kafka://b'\ntime-to-live = '1x'", "topic.a.time-to-live", "expected a duration"),
        ("[topic.a]\nendpoint = 'kafka://b'\ntime-to-live = -1", "topic.a.time-to-live", "expected a duration"),
        ("[topic.a]\nendpoint = 'kafka://b'\ntime-to-live = '1ms'", "topic.a.time-to-live", "whole seconds"),
        ("[topic.a]\nendpoint = 'kafka://b'\nargs = {usessl = true}", "topic.a.args.usessl", "did you mean use-ssl?"),
        ("[topic.a]\nendpoint = 'kafka://b'\nargs = {password = 'x'}", "topic.a.args.password", "use password-file"),
        ("[topic.a]\nendpoint = 'kafka://b'\nargs.mechanism = ['x']", "topic.a.args.mechanism", "not a list"),
        ("[topic.a]\nendpoint = 'kafka://b'\nargs = 'x'", "topic.a.args", "expected `object`, got `str`"),
        (
            "[topic.a]\nendpoint = 'kafka://b'\nargs = {ssl-key-password = 'x'}",
            "topic.a.args.ssl-key-password",
            "use ssl-key-password-file",
        ),
        ("[topic.a]\nendpoint = 'kafka://b'\npassword-file = 'none'", "topic.a.password-file", "cannot read"),
        (
            "[topic.a]\nendpoint = 'https://b'\nssl-key-password-file = 'x'",
            "topic.a.ssl-key-password-file",
            "cannot read",
        ),
        ("[topic.a]\nendpoint = 'kafka://b'\ndelivery = 'once'", "topic.a.delivery", "invalid enum value"),
    ],
)
def test_a_wrong_file_is_refused_with_the_path_of_its_key(
    apply: Apply, config: Path, tmp_path: Path, text: str, key: str, message: str
) -> None:
    """A problem is one line with the file, the key and the reason; exit code 78, and no topic is made."""
    done = apply("[topic.good]\nendpoint = 'kafka://b'\n" + text if text.startswith("[") else text)

    assert done.code == Exit.CONFIG
    (line,) = done.err.splitlines()
    assert line.startswith(f"remora: {tmp_path / 'topics.toml'}: {key}: ")
    assert message in line
    assert not own(config)


def test_all_problems_of_a_file_are_reported_at_once(apply: Apply) -> None:
    """Each thing that is wrong is told in a line, with the line of the file, several of one topic too."""
    done = apply("""[topic.a]
shards = 0
tim-to-live = 3
password-file = 'none'
[topic.b]
endpoint = 'kafka://b'
[topic.c]
endpoint = 'amqp://b'
[topic.d]
endpoint = 'kafka://u:p@b'
retry-sleep-duration = 'x'
args = { usessl = true, password = 'p' }
[other]
[topic.e]
endpoint = 'kafka://-b,b:0'
shards = 0
args = { mechanism = 'NONE', usessl = true }
""")

    assert done.code == Exit.CONFIG
    assert [(line.split(": ")[2], int(line.rpartition(" (line ")[2][:-1])) for line in done.err.splitlines()] == [
        ("other", 13),
        ("topic.a.shards", 2),
        ("topic.a.tim-to-live", 3),
        ("topic.a", 1),
        ("topic.a.password-file", 4),
        ("topic.c", 7),
        ("topic.d.endpoint", 10),
        ("topic.d.args.usessl", 12),
        ("topic.d.args.password", 12),
        ("topic.d.retry-sleep-duration", 11),
        ("topic.e.shards", 16),
        ("topic.e.args.usessl", 17),
        ("topic.e", 14),
    ]
    assert done.err.splitlines()[-1].partition(": topic.e: ")[2].split("; ") == [
        "broker 1 of the endpoint is not a host name or address",
        "broker 2 of the endpoint: the port is not a number from 1 to 65535",
        "mechanism: only PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI, OAUTHBEARER can be used (line 14)",
    ]


def test_a_file_that_is_no_toml_is_named(apply: Apply, tmp_path: Path) -> None:
    """What cannot be parsed is refused by the file's name."""
    done = apply("[topic.a\n")

    assert done.code == Exit.CONFIG
    assert done.err.startswith(f"remora: {tmp_path / 'topics.toml'} is not TOML: ")


# ------------------------------------------------------------------------------------------------ the plan

NAMES = st.sampled_from("abcd")
TOPICS = st.builds(
    lambda name, uri, shards, retries, closed: Topic(
        name, "", name, Target(uri, "", name), shards=shards, max_retries=retries, closed=closed,
        origin=Origin.REMORA, id=f"id of {name}",
    ),
    NAMES, st.sampled_from(["kafka://a", "kafka://b"]), st.integers(1, 2), st.none() | st.integers(0, 1), st.booleans(),
)  # fmt: skip


def by_name(topics: list[Topic]) -> list[Topic]:
    return list({topic.name: topic for topic in topics}.values())


@given(st.lists(TOPICS), st.lists(st.tuples(TOPICS, st.none() | st.booleans())), st.booleans())
def test_a_plan_leads_to_the_file_and_touches_nothing_else(
    there: list[Topic], wanted: list[tuple[Topic, bool | None]], prune: bool
) -> None:
    """After its steps every declared topic is as declared, every other one is as before or, pruned, gone; a second plan
    is empty."""
    present = by_name(there)
    closed = {topic.name: says for topic, says in wanted}
    declared = [Declared(replace(each, id=""), closed[each.name], []) for each in by_name([t for t, _ in wanted])]
    after: dict[str, Any] = {topic.name: topic for topic in present}
    steps = plan(present, declared, prune=prune).steps

    for step in steps:
        assert step.to or step.was
        if step.to is None:
            del after[step.name]
        else:
            after[step.name] = step.to

    names = {each.topic.name for each in declared}
    for each in declared:
        meant = replace(each.topic, closed=after[each.topic.name].closed if each.closed is None else each.closed)
        assert not differences(after[each.topic.name], meant)
    assert {t.name for t in present if t.name not in names and after.get(t.name) != t} == (
        {t.name for t in present if t.name not in names} if prune else set()
    )
    assert not plan(list(after.values()), declared, prune=prune).steps
