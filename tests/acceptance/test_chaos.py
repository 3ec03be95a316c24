"""The daemon is killed again and again while events are stored; and the verdict on that finds what is wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from devkit.chaos.plan import Fault, rounds
from devkit.clusters.kafka import Kafka
from devkit.processes.mounts import ext4
from devkit.testing.cases import MORE
from devkit.verdicts import verdict

CHAOS = Path(__file__).parents[2] / "scripts/chaos"


STORED, REFUSED, OPEN = verdict.Fate.STORED, verdict.Fate.REFUSED, verdict.Fate.OPEN


def copy(
    number: int,
    *,
    at: int | None = None,
    key: bytes = b"b/k",
    partition: int = 0,
    offset: int = -1,
    sent_at: float = 0.0,
) -> Any:
    """A record of event `number`, whose entry stands at the place `at`, by default that of its number."""
    place = number if at is None else at
    return verdict.Copy(
        event_id=f"00-{number:08}",
        key=key,
        place=verdict.Place.read("t.1", f"inc:0/{place}"),
        end=verdict.Place.read("t.1", f"inc:0/{place + 1}"),
        partition=partition,
        offset=number if offset < 0 else offset,
        at=sent_at,
    )


def request(fate: Any, *numbers: int) -> Any:
    """A request with these events."""
    return verdict.Request(tuple(f"00-{number:08}" for number in numbers), fate)


def judged(requests: Iterable[Any], copies: Iterable[Any], kills: Iterable[tuple[float, float]] = ()) -> list[str]:
    """What the verdict says."""
    arrived = verdict.Arrived()
    for each in copies:
        arrived.add(each)
    found: list[str] = verdict.judge(list(requests), arrived, [verdict.Kill(*each) for each in kills])
    return found


def test_a_faultless_run_has_no_findings() -> None:
    """Acknowledged events that all arrived, a copy that a kill explains, and whole or absent open requests are well."""
    requests = [request(STORED, 1, 2), request(OPEN, 3, 4), request(OPEN, 5, 6), request(REFUSED, 7)]
    copies = [copy(1, sent_at=1.0), copy(2, sent_at=1.0), copy(1, offset=9, sent_at=3.0), copy(3), copy(4)]

    assert judged(requests, copies, [(2.0, 2.1)]) == []


def test_a_lost_event_is_found() -> None:
    """An acknowledged event that is not in Kafka is a finding."""
    (found,) = judged([request(STORED, 1, 2)], [copy(1)])

    assert found.startswith("lost: 00-00000002")


def test_an_event_that_was_stored_twice_is_found() -> None:
    """One event id at two places of the queue is a finding, whatever was killed between."""
    (found,) = judged([request(STORED, 1)], [copy(1), copy(1, at=2, sent_at=3.0)], [(1.0, 2.0)])

    assert found.startswith("stored twice: 00-00000001")


def test_a_second_visible_copy_is_found_where_each_event_is_delivered_once() -> None:
    """A copy that a kill explains is a finding in a topic that is delivered exactly once, and none in another one."""
    findings = {}
    for is_exact in (True, False):
        arrived = verdict.Arrived()
        for offset, sent_at in ((1, 1.0), (2, 3.0)):
            arrived.add(copy(1, offset=offset, sent_at=sent_at), is_exact=is_exact)
        findings[is_exact] = verdict.judge([request(STORED, 1)], arrived, [verdict.Kill(1.5, 2.0)])

    assert findings == {True: ["visible twice: 00-00000001 at 1 and at 2"], False: []}


def test_a_refused_and_an_unknown_event_are_found() -> None:
    """Events that were refused, or that nobody sent, are findings when they arrive."""
    found = judged([request(STORED, 1), request(REFUSED, 2)], [copy(1), copy(2), copy(3)])

    assert found == ["nobody stored: 00-00000002", "nobody stored: 00-00000003"]


def test_half_a_request_is_found() -> None:
    """Some but not all events of a request that was never answered are a finding."""
    (found,) = judged([request(OPEN, 1, 2, 3)], [copy(1), copy(2)])

    assert found.startswith("half a request: 2 of 3")


def test_a_key_out_of_order_is_found() -> None:
    """First copies of one key that stand in Kafka, or in their queue, in another order than sent are findings."""
    in_kafka = judged([request(STORED, 1, 2)], [copy(1, offset=5), copy(2, offset=4)])
    in_queue = judged([request(STORED, 1, 2)], [copy(1, at=2, offset=1), copy(2, at=1, offset=2)])

    assert [each.partition(":")[0] for each in in_kafka] == ["order of b/k in Kafka", "order of b/k in its queue"]
    assert [each.partition(":")[0] for each in in_queue] == ["order of b/k in its queue"]


def test_a_key_in_two_partitions_is_found() -> None:
    """A key that is spread over partitions is a finding."""
    (found,) = judged([request(STORED, 1, 2)], [copy(1), copy(2, partition=1)])

    assert found == "in several shards or partitions: b/k"


def test_a_gap_in_a_queue_is_found() -> None:
    """An entry that ends where no other one begins, though the queue goes on, is a finding."""
    (found,) = judged([request(STORED, 1, 3)], [copy(1), copy(3)])

    assert found.startswith("a gap in t.1")


@pytest.mark.parametrize(("kill", "is_found"), [((0.5, 0.9), True), ((3.5, 3.6), True), ((2.0, 2.1), False)])
def test_a_copy_needs_a_kill_between(kill: tuple[float, float], is_found: bool) -> None:
    """A second copy of an entry is a finding unless the daemon was killed between the two."""
    copies = [copy(1, sent_at=1.0), copy(1, offset=2, sent_at=3.0)]

    assert bool(judged([request(STORED, 1)], copies, [kill])) == is_found


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.kafka
@pytest.mark.full("minutes; each kind of its faults has tests at the gate")
@pytest.mark.parametrize("power", ["stays", "goes"])
def test_twenty_kills_lose_nothing_and_store_nothing_twice(tmp_path: Path, kafka: Kafka, power: str) -> None:
    """After twenty kills or power cuts under a mixed load every event is accounted for, and each kind of request was
    made."""
    summary = tmp_path / "summary.json"
    options = ["--rounds", "20", "--bootstrap", kafka.address, "--json", str(summary)]
    if power == "goes":
        ext4(1, 4096)  # whether an image may be mounted
        options.append("--power-loss")

    done = subprocess.run([str(CHAOS), "--ingest", *options], capture_output=True, text=True, check=False, timeout=400)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(summary.read_text())
    assert (found["kills"], found["wrong"]) == (20, [])
    assert found["in_kafka"] >= found["events"]["stored"] > 100
    assert found["events"]["refused"] > 0
    done_by_all = {"single", "batch", "two_phase", "interrupted", "cut", "repeated", "conflicting", "malformed"}
    assert done_by_all <= set(found["done"])
    assert (found["lost_bytes"] > 0) == (power == "goes")


def hurt(tmp_path: Path, number: int, seed: int = 15780) -> dict[str, Any]:
    """Runs chaos on the embedded store, which has to end well, and gives its report."""
    report = tmp_path / "report.json"
    options = ["--store", "sqlite", "--seed", str(seed), "--rounds", str(number), "--json", str(report)]
    done = subprocess.run([str(CHAOS), *options], capture_output=True, text=True, check=False, timeout=580)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1].startswith("PASS")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.guarantee("chaos-runs")
@pytest.mark.kafka
def test_owners_that_are_hurt_once_lose_nothing(tmp_path: Path) -> None:
    """Two hosts that deliver to three brokers, RabbitMQ and a bad HTTP receiver keep every promise in a round of
    faults."""
    found = hurt(tmp_path, 1)

    assert found["rounds"][0]["faults"]
    assert found["delivered"] > 100


@pytest.mark.full("a minute of processor time; one round is at the gate")
@pytest.mark.guarantee("chaos-runs")
@pytest.mark.kafka
def test_frozen_and_killed_owners_lose_nothing(tmp_path: Path) -> None:
    """Two hosts that deliver to three brokers, RabbitMQ, NATS and a bad HTTP receiver keep every promise while hosts,
    workers, a broker and RabbitMQ are frozen and killed, and limits of topics and of traffic change."""
    wanted = {
        Fault.FREEZE_HOST, Fault.KILL_HOST, Fault.KILL_WORKER, Fault.FREEZE_BROKER, Fault.KILL_RABBITMQ,
        Fault.LOWER_LIMIT, Fault.CHANGE_LIFE, Fault.SHAPE,
    }  # fmt: skip
    seed = next(
        each for each in count() if wanted <= {one.fault for drawn in rounds(str(each), 4, "sqlite") for one in drawn}
    )

    found = hurt(tmp_path, 4, seed)

    faults = " ".join(fault for each in found["rounds"] for fault in each["faults"])
    for expected in (
        "for longer than the lease",
        "SIGKILL of a supervisor",
        "SIGKILL of a worker",
        "SIGSTOP of a broker",
        "SIGKILL of RabbitMQ",
        "a smaller max.message.bytes",
        "another time_to_live",
        "limits of traffic",
    ):
        assert expected in faults
    assert sum(found["thaws"]) > 0
    much = {name for name, records in found["arrived"].items() if records > 100}
    assert much == {"once", "least", "http", "amqp", "nats"}
    assert found["delivered"] > 100


@pytest.mark.guarantee("positions-of-a-log")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("rados", marks=[pytest.mark.ceph, MORE])])
def test_sequencers_that_are_hurt_keep_every_promise(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """Two sequencers take logs from each other while they and their clients are killed and frozen, and locks are lost:
    the checkers find nothing, and they were given epochs, appends, refusals, and calls of `remora.log.Log`."""
    report = tmp_path / "report.json"
    options = ["--sequencer", "--store", kind, "--seed", "4", "--rounds", "4", "--json", str(report)]
    if kind == "rados":
        options += ["--name", request.getfixturevalue("ceph").name]

    done = subprocess.run(
        [str(CHAOS), "--sequencer", *options], capture_output=True, text=True, check=False, timeout=580
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1].startswith("PASS")
    (run,) = json.loads(report.read_text())["runs"]
    assert run["epochs"] > 3
    assert min(run["done"][each] for each in ("positions", "appended", "refused", "journal")) > 0


@pytest.mark.full("four seeds; the gate tries one")
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("positions-of-a-log")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("rados", marks=pytest.mark.ceph)])
def test_shared_logs_are_linearizable(request: pytest.FixtureRequest, kind: str) -> None:
    """Whatever four seeds kill and freeze, of servers, programs and OSDs, all that was seen can have happened."""
    options = ["--store", kind, "--seed", "1000", "--seeds", "4", "--rounds", "3"]
    if kind == "rados":
        options += ["--kill-osds", "--name", request.getfixturevalue("ceph").name]

    done = subprocess.run([str(CHAOS), "--sequencer", *options], capture_output=True, text=True, check=False)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_wrong_usage_is_no_verdict() -> None:
    """A run that was asked for wrongly ends with 2 and starts nothing."""
    done = subprocess.run([str(CHAOS), "--store", "paper"], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 2
    assert "PASS" not in done.stdout
