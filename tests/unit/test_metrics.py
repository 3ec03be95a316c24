"""Telemetry: what each event counts, what it says, and how often."""

from __future__ import annotations

import logging
import subprocess

import pytest
from prometheus_client import generate_latest

from devkit.processes.programs import program
from devkit.readers.samples import sample_value
from remora.codec import speedups
from remora.metrics import Telemetry
from support.telemetry import NOW_NS, Clock, exercise


@pytest.fixture
def clock() -> Clock:
    """The clock that spaces repeated lines."""
    return Clock()


@pytest.fixture
def telemetry(clock: Clock, caplog: pytest.LogCaptureFixture) -> Telemetry:
    """Telemetry whose every line is captured."""
    caplog.set_level(logging.DEBUG, logger="remora")
    return Telemetry(clock=clock)


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    """One sample of the registry."""
    return sample_value(telemetry.registry, name, labels)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events logged so far, each with its level."""
    return [f"{record.levelname} {getattr(record, 'event', '')}" for record in caplog.records]


def test_what_was_not_compiled_is_logged_once(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon without the compiled codec says so when it starts, and no worker of it does; one with it does not."""
    for implementation in ("compiled", "python"):
        monkeypatch.setattr(speedups, "IMPLEMENTATION", implementation)
        telemetry.started("0.1.0", "remora.toml", 2)
        telemetry.running("0.1.0")

    assert events(caplog) == ["INFO started", "INFO started", "WARNING not_compiled"]


def test_a_batch_counts_entries_bytes_and_ages(telemetry: Telemetry) -> None:
    """Reading, delivering and removing a batch is counted by topic, with the age of each event."""
    telemetry.listed("t", 3, 300)
    telemetry.delivered("t", 2, 250, [NOW_NS - 2_000_000_000, NOW_NS - 4_000_000], NOW_NS)
    telemetry.removed("t", 2)

    assert value(telemetry, "remora_listed_entries_total", topic="t") == 3
    assert value(telemetry, "remora_listed_bytes_total", topic="t") == 300
    assert value(telemetry, "remora_delivered_entries_total", topic="t") == 2
    assert value(telemetry, "remora_delivered_bytes_total", topic="t") == 250
    assert value(telemetry, "remora_removed_entries_total", topic="t") == 2
    assert value(telemetry, "remora_event_age_seconds_bucket", topic="t", le="0.005") == 1
    assert value(telemetry, "remora_event_age_seconds_bucket", topic="t", le="2.5") == 2
    assert value(telemetry, "remora_event_age_seconds_sum", topic="t") == 2.004
    assert value(telemetry, "remora_progress_timestamp_seconds") == NOW_NS / 1e9


def test_a_failing_topic_is_logged_once(telemetry: Telemetry, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Every failure is counted, and the first is logged: the supervisor says once a minute what goes on failing."""
    for _ in range(100):
        telemetry.failed("t", "transient", "broker away")
    clock.now += 60
    telemetry.failed("t", "transient", "broker away")

    assert value(telemetry, "remora_failures_total", topic="t", kind="transient") == 101
    assert value(telemetry, "remora_topic_failing_seconds", topic="t") == 60
    assert events(caplog) == ["WARNING topic_failed"]


def test_topics_behind_one_destination_fail_and_recover_in_one_line(
    telemetry: Telemetry, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 300 topics that one broker fails the first is logged, and the end of the last with their number."""
    for at in range(300):
        telemetry.failed(
            f"t{at}", "transient", f"topic t{at} at b:9092: no answer", queue=f"t{at}", endpoint="kafka://b:9092"
        )
    clock.now += 9
    for at in range(300):
        telemetry.recovered(f"t{at}", f"t{at}")

    assert events(caplog) == ["WARNING topic_failed", "INFO topic_recovered"]
    said = caplog.records[1].__dict__["fields"]
    assert (said["topics"], said["failures"], said["seconds"]) == (300, 300, 9)


def test_a_topic_fails_while_one_of_its_queues_does(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """The gauge has the kind of the queue that is worst off, and ends when the last of them ends or moves away."""
    telemetry.failed("t", "configuration", "refused", queue="t")
    telemetry.failed("t", "transient", "no answer", queue="t.1")
    telemetry.recovered("t", "t.1")
    assert value(telemetry, "remora_topic_failing", topic="t", kind="configuration") == 1

    telemetry.left("t", "t")

    assert value(telemetry, "remora_topic_failing", topic="t", kind="configuration") is None
    assert "INFO topic_recovered" not in events(caplog)


def test_one_failing_topic_does_not_silence_another(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Each topic has its own first line."""
    telemetry.failed("a", "transient", "broker away")
    telemetry.failed("b", "transient", "broker away")

    assert len(events(caplog)) == 2


def test_a_stopped_topic_is_an_error_and_shows_until_it_recovers(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """A configuration failure asks for somebody to act; the gauge names its kind and ends with the recovery."""
    telemetry.failed("t", "transient", "broker away")
    telemetry.failed("t", "configuration", "no such Kafka topic")
    stopped = value(telemetry, "remora_topic_failing", topic="t", kind="configuration")
    before = value(telemetry, "remora_topic_failing", topic="t", kind="transient")
    telemetry.recovered("t")
    telemetry.recovered("t")

    assert (stopped, before) == (1, None)
    assert value(telemetry, "remora_topic_failing", topic="t", kind="configuration") is None
    assert events(caplog) == ["WARNING topic_failed", "ERROR topic_failed", "INFO topic_recovered"]


def test_a_failing_topic_that_was_emptied_fails_no_more(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing waits any more the gauge ends, and one line says so without calling it a recovery."""
    telemetry.failed("t", "configuration", "no such Kafka topic")
    telemetry.emptied("t")
    telemetry.emptied("t")
    telemetry.recovered("t")

    assert value(telemetry, "remora_topic_failing", topic="t", kind="configuration") is None
    assert events(caplog) == ["ERROR topic_failed", "INFO topic_emptied"]


def test_a_topic_that_comes_and_goes_does_not_fill_the_log(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that fails and recovers a hundred times within a minute gives two lines."""
    for _ in range(100):
        telemetry.failed("t", "transient", "broker away")
        telemetry.recovered("t")

    assert events(caplog) == ["WARNING topic_failed", "INFO topic_recovered"]


def test_many_parked_entries_are_counted_each_and_logged_once(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue full of undecodable entries costs one line a minute, and a count for each."""
    for place in range(1000):
        telemetry.dead_lettered("t", "t", f"0/{place}", "undecodable", "cut short")
    telemetry.dead_lettered("t", "t", "0/5", "expired", "too old")

    assert value(telemetry, "remora_parked_entries_total", topic="t", cause="undecodable") == 1000
    assert events(caplog) == ["ERROR entry_parked", "WARNING entry_parked"]


def test_a_parked_entry_of_an_unknown_topic_goes_by_its_queue(telemetry: Telemetry) -> None:
    """No series has an empty topic."""
    telemetry.dead_lettered("", ":t", "0/1", "undecodable", "cut short")

    assert value(telemetry, "remora_parked_entries_total", topic=":t", cause="undecodable") == 1


def test_a_forgotten_topic_leaves_no_series(telemetry: Telemetry) -> None:
    """Nothing of a deleted topic is exported, and its place is free for another."""
    telemetry = Telemetry(metric_topics=1)
    exercise(telemetry)
    telemetry.listed("u", 1, 1)

    telemetry.forget_topic("t")
    telemetry.listed("v", 1, 1)

    assert 'topic="t"' not in generate_latest(telemetry.registry).decode()
    assert value(telemetry, "remora_listed_entries_total", topic="other") == 1
    assert value(telemetry, "remora_listed_entries_total", topic="v") == 1


def test_forgetting_a_topic_in_other_keeps_what_others_counted(telemetry: Telemetry) -> None:
    """The shared series never goes back, whichever of its topics ends, even one named like it."""
    telemetry = Telemetry(metric_topics=0)
    telemetry.listed("a", 1, 1)
    telemetry.listed("other", 1, 1)

    telemetry.forget_topic("a")
    telemetry.forget_topic("other")

    assert value(telemetry, "remora_listed_entries_total", topic="other") == 2


def test_the_number_of_series_does_not_grow_with_topics() -> None:
    """A thousand topics beyond the limit add nothing to what is exported."""
    few, many = Telemetry(metric_topics=3), Telemetry(metric_topics=3)
    for telemetry, topics in ((few, 4), (many, 1000)):
        for i in range(topics):
            telemetry.listed(f"t{i}", 1, 1)
            telemetry.delivered(f"t{i}", 1, 1, [NOW_NS], NOW_NS)
            telemetry.backlog(f"t{i}", 1, True, 1, 0.0)
            telemetry.failed(f"t{i}", "transient", "x")

    def series(telemetry: Telemetry) -> int:
        return sum(line.startswith("remora_") for line in generate_latest(telemetry.registry).decode().splitlines())

    assert series(few) == series(many)


def test_each_remark_is_made_once(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """A topic's remarks come again with every route that is opened, and are said once each, until it is forgotten."""
    for _ in range(3):
        telemetry.remark("t", "stronger than asked")
        telemetry.remark("t", "no certificate is checked")
    telemetry.forget_topic("t")
    telemetry.remark("t", "stronger than asked")

    assert [record.getMessage() for record in caplog.records] == [
        "stronger than asked",
        "no certificate is checked",
        "stronger than asked",
    ]


def test_queues_of_others_are_named_once(telemetry: Telemetry, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A queue that stays with another owner is tried again and again, and is not logged again and again."""
    for _ in range(100):
        telemetry.handed_off({"t": "client.1 radosgw"})
        telemetry.left_alone("u", "http endpoints stay with radosgw")
        clock.now += 60
    telemetry.handed_off({"t": "client.2 radosgw"})

    assert events(caplog) == ["INFO shard_held", "INFO shard_left_alone", "INFO shard_held"]


def test_queues_of_others_are_one_line_a_round(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """The queues of a topic that many workers share are counted by owner, and those that were said are left out."""
    telemetry.handed_off({"t.0": "worker a of host h"})
    telemetry.handed_off({f"t.{n}": f"worker {'ab'[n % 2]} of host h" for n in range(6)})
    telemetry.handed_off({f"t.{n}": f"worker {'ab'[n % 2]} of host h" for n in range(6)})

    first, second = caplog.records
    assert vars(first)["fields"] == {"queue": "t.0", "owner": "worker a of host h"}
    assert vars(second)["fields"] == {"queues": 5, "owners": "worker b of host h: 3, worker a of host h: 2"}


def test_remarks_that_differ_each_time_do_not_pile_up() -> None:
    """What is remembered of a topic's remarks is bounded, and so are the queues it is remembered of."""
    telemetry = Telemetry()
    for number in range(20_000):
        telemetry.remark("t", f"remark {number}")
        telemetry.left_alone(f"queue {number}", "its topic is unknown")

    assert len(telemetry._remarks) <= 10_000
    assert max(map(len, telemetry._remarks.values())) <= 16


def test_the_store_is_reported_when_it_comes_and_goes(
    telemetry: Telemetry, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The first word comes at once, a reminder once a minute while it stays away, and one line when it is back."""
    telemetry.store_state(False, "no monitor answers")
    for _ in range(100):
        telemetry.store_state(False, "no monitor answers")
    clock.now += 61
    telemetry.store_state(False, "no monitor answers")
    telemetry.store_state(True, "a cluster")
    telemetry.store_state(True, "a cluster")

    assert events(caplog) == ["ERROR store_unavailable", "ERROR store_unavailable", "INFO store_connected"]
    assert value(telemetry, "remora_store_connected") == 1


def test_why_the_store_cannot_be_used(telemetry: Telemetry) -> None:
    """Each cause that there is, or was, has a figure of its own."""
    telemetry.store_failing({"gone": "it is away", "damaged": "a page is"}, {})
    telemetry.store_failing({"damaged": "a page is"}, {})

    assert value(telemetry, "remora_store_failing", cause="gone") == 0
    assert value(telemetry, "remora_store_failing", cause="damaged") == 1


def test_which_parts_of_the_store_are_lost(telemetry: Telemetry) -> None:
    """Each part that is lost, or was, has a figure of its own, by its path."""
    telemetry.store_failing({"directory": "both are lost"}, {"/one": "one is lost", "/two": "two is lost"})
    telemetry.store_failing({"directory": "two is lost"}, {"/two": "two is lost"})

    assert value(telemetry, "remora_store_part_lost", path="/one") == 0
    assert value(telemetry, "remora_store_part_lost", path="/two") == 1


def test_what_the_configuration_may_not_mean_is_logged(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Each remark is a warning of its own; without any nothing is said."""
    telemetry.config_remarks([])
    telemetry.config_remarks(["a.b: cut", "a.c: small"])

    assert events(caplog) == ["WARNING config_remark"] * 2


def test_reloads_tell_what_changed_and_what_waits(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """An accepted reload names the options; a refused one is an error and shows in a gauge until the next."""
    telemetry.reloaded("remora.toml", ["log.level"], ["rados.pool"])
    telemetry.reload_failed("log.level: no")
    refused = value(telemetry, "remora_config_last_reload_successful")
    telemetry.reloaded("built-in", [], [])

    assert refused == 0
    assert value(telemetry, "remora_config_last_reload_successful") == 1
    assert value(telemetry, "remora_config_reloads_total", result="refused") == 1
    assert events(caplog) == [
        "INFO config_reloaded",
        "WARNING config_needs_restart",
        "ERROR config_refused",
        "INFO config_reloaded",
    ]


def test_locks_are_counted_by_what_became_of_them(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Acquisitions, take-overs, renewals, losses, refused removals and releases have a counter each."""
    telemetry.acquired("a", False)
    telemetry.acquired("b", True)
    telemetry.renewed(0.2)
    telemetry.removal_refused("a", "somebody else has it")
    telemetry.lost("a", "somebody else has it")
    telemetry.released("b")

    assert value(telemetry, "remora_lock_acquisitions_total") == 2
    assert value(telemetry, "remora_lock_takeovers_total") == 1
    assert value(telemetry, "remora_lock_renewals_total") == 1
    assert value(telemetry, "remora_lock_renewal_seconds_bucket", le="0.5") == 1
    assert value(telemetry, "remora_lock_losses_total") == 1
    assert value(telemetry, "remora_removals_refused_total") == 1
    assert value(telemetry, "remora_lock_releases_total") == 1
    assert {"WARNING removal_refused", "WARNING shard_lost"} <= set(events(caplog))


def test_batches_are_not_logged_unless_debugging(caplog: pytest.LogCaptureFixture) -> None:
    """At the default level no batch makes a line."""
    caplog.set_level(logging.INFO, logger="remora")
    telemetry = Telemetry()

    telemetry.listed("t", 1, 1)
    telemetry.delivered("t", 1, 1, [NOW_NS], NOW_NS)
    telemetry.removed("t", 1)
    telemetry.retry("t", 1.0)

    assert not caplog.records


def test_every_metric_is_named_as_operators_expect(telemetry: Telemetry) -> None:
    """Promtool has nothing to say about the exposition."""
    promtool = program("promtool", "prometheus")
    exercise(telemetry)

    done = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(telemetry.registry), capture_output=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_transactions_are_counted_by_outcome(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Each transaction counts once, only committed ones have a duration, and only failures are logged."""
    telemetry.exact_opened("kafka:9092")
    telemetry.transaction_ended("kafka:9092", "committed", 0.02)
    assert caplog.records == []
    telemetry.transaction_ended("kafka:9092", "unknown", 9.0)

    assert value(telemetry, "remora_kafka_transactions_total", outcome="committed") == 1
    assert value(telemetry, "remora_kafka_transactions_total", outcome="unknown") == 1
    assert value(telemetry, "remora_kafka_transactions_total", outcome="fenced") == 0
    assert value(telemetry, "remora_kafka_transaction_seconds_count") == 1
    assert value(telemetry, "remora_kafka_producers", kind="exact") == 1
    assert [record.getMessage() for record in caplog.records] == ["a transaction failed"]


def test_messages_that_no_queue_got(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Each is counted, and the log names broker and exchange once; connections that are open are a gauge."""
    for _ in range(2):
        telemetry.amqp_connected("rabbit:5672")
    telemetry.amqp_disconnected("rabbit:5672", "the connection is closed")
    for _ in range(3):
        telemetry.amqp_unroutable("rabbit:5672", "events")

    assert value(telemetry, "remora_amqp_unroutable_messages_total") == 3
    assert value(telemetry, "remora_amqp_connections") == 1
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "amqp-ack-level is not routable" in warnings[0].getMessage()
