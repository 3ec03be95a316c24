"""The benchmarks run, on a load that is far too small to measure anything."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.state import cache_home
from devkit.processes.programs import program

pytestmark = pytest.mark.full("a benchmark measures nothing that a commit breaks")

BENCH = Path(__file__).parents[2] / "scripts/bench"


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """Clusters that the benchmarks of this module share, and that are removed afterwards."""
    for needed, package in (("ceph-osd", "ceph-osd"), ("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        program(needed, package)
    if shutil.which("nginx", path="/usr/sbin:/usr/bin") is None:
        program("nginx", "nginx-light")
    chosen = f"bench-test-{os.getpid()}"
    yield chosen
    for kind, of in (("ceph", chosen), ("ceph", f"{chosen}-slow"), ("kafka", chosen), ("kafka", f"{chosen}-doors")):
        subprocess.run([BENCH.with_name(f"dev-{kind}"), "down", "--name", of], check=False, capture_output=True)


def figures(tmp_path: Path, *arguments: str) -> Any:
    """What a benchmark writes as JSON, beside a picture; what it prints goes into the failure when it fails."""
    file = tmp_path / "figures.json"
    picture = tmp_path / "figures.png"
    argv = [str(BENCH), *arguments, "--keep", "--json", str(file), "--picture", str(picture)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert arguments[0] == "all" or picture.read_bytes()[:4] == b"\x89PNG"
    return json.loads(file.read_text())


@pytest.mark.ceph
@pytest.mark.kafka
def test_drain_measures_both_and_counts_every_event(tmp_path: Path, name: str) -> None:
    """Remora and radosgw drain the same number of entries, and each figure of the comparison is there."""
    found = figures(tmp_path, "drain", "--entries", "2000", "--queues", "3", "--partitions", "2", "--name", name)

    assert found["delivered"]["events"] == 2 * 2000  # the first are not measured
    assert (found["delivered"]["copies"], found["delivered"]["lost"]) == (0, 0)
    assert found["posted"] >= 2000  # a radosgw that is slow to come is started again, and may post again
    assert found["producer_performance"][0] > 0
    assert found["of_producer_performance"] > 0
    assert set(found["ratio"]) == {"rate", "cpu", "peak_rss"}
    assert len([rate for rate in found["raw_reads_per_s"] if rate > 0]) == 2
    for kind in ("remora", "radosgw"):
        (turn,) = found["turns"][kind]
        assert turn["entries"] == 2000
        assert 0 < turn["counted"] <= 2000
        assert turn["rate"] > 0
        assert turn["peak_rss_bytes"] > 10_000_000
        assert set(turn["cpu_s_per_1000"]) == {"daemon", "sink", "osds"}


def test_sequencers_are_measured_beside_each_other(tmp_path: Path) -> None:
    """Each server has rates with every load, all checked by the load generator, and the gates are told."""
    found = figures(
        tmp_path, "sequencer", "--seconds", "0.05", "--rounds", "1", "--connections", "4", "--depth", "4",
        "--logs", "1,2",
    )  # fmt: skip

    one = found["figures"]["one"]
    assert {"naive", "python", "ceiling"} <= set(one)
    assert {"4 synchronous", "8 x 4", "8 x 4, 2 logs", "32 synchronous, range of 64", "client, 32 tasks"} <= set(
        one["python"]
    )
    assert all(each["rate"] > 0 and each["server_ns"] > 0 for loads in one.values() for each in loads.values())
    assert one["python"]["32 synchronous, range of 64"]["of"] == "positions"
    assert found["recovery_s"][0] > 0
    assert {gate["gate"] for gate in found["gates"]} >= {"32 synchronous / naive", "32 synchronous / ceiling"}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a second worker needs a second processor")
def test_a_second_worker_is_measured_beside_a_second_process(tmp_path: Path) -> None:
    """One and two workers, and one and two processes of the ceiling, have rates, and each its gain."""
    found = figures(tmp_path, "sequencer", "--workers", "--seconds", "0.1", "--rounds", "1")

    assert set(found["rates"]) == {"remora, 1", "remora, 2", "ceiling, 1", "ceiling, 2"}
    assert all(rate > 0 for rate in (*found["medians"].values(), *found["gains"].values()))


@pytest.mark.ceph
def test_a_sequencer_is_measured_beside_a_counter_object(tmp_path: Path, name: str) -> None:
    """On Ceph positions and appends have a rate in each way, for one client and for 32."""
    found = figures(tmp_path, "sequencer", "--store", "rados", "--seconds", "0.2", "--rounds", "1", "--name", name)

    ways = {"positions": ("sequencer", "counter object"), "appends": ("sequencer", "counter object", "variable", "Log")}
    wanted = {f"{work}, {way}, {n} clients" for work, of in ways.items() for way in of for n in (1, 32)}
    assert set(found["rates"]) == wanted
    assert all(rate > 0 for rate in (*found["rates"].values(), *found["ratios"].values()))


@pytest.mark.kafka
def test_exactly_once_is_measured_beside_at_least_once(tmp_path: Path, name: str) -> None:
    """Each mode delivers the whole backlog, without a copy, at a rate that is told."""
    found = figures(tmp_path, "exactly-once", "--entries", "2000", "--rounds", "1", "--name", name)

    assert set(found["turns"]) == {"exactly-once", "at-least-once"}
    assert all(turn["rate"] > 0 and turn["copies"] == 0 for turns in found["turns"].values() for turn in turns)
    assert found["ratio"] > 0


@pytest.mark.kafka
def test_scale_walks_an_axis(tmp_path: Path, name: str) -> None:
    """Each value of an axis has its rate and its costs."""
    found = figures(tmp_path, "scale", "--entries", "500", "--axis", "shards", "--name", name)

    assert [turn["shards"] for turn in found["shards"]] == [1, 2, 4, 11, 64]
    for turn in found["shards"]:
        assert (turn["entries"], turn["copies"]) == (500, 0)
        assert turn["rate"] > 0


@pytest.mark.kafka
def test_limits_compares_with_kafkas_own_program(tmp_path: Path, name: str) -> None:
    """Kafka's own program and remora both send what they were asked to, at rates that are told."""
    found = figures(tmp_path, "limits", "--entries", "2000", "--rounds", "1", "--workers", "1", "--name", name)

    assert len(found["producer_performance"]) == len(found["turns"]) == 1
    assert found["turns"][0]["entries"] == 2000
    assert found["ratio"] > 0


@pytest.mark.kafka
def test_gap_is_told_for_each_kind_of_handover(tmp_path: Path, name: str) -> None:
    """Every shard goes on being delivered through each kind of handover, and the longest gaps are told."""
    found = figures(tmp_path, "handover", "--quiet", "1", "--pace", "5", "--name", name)

    assert found["store"] == "sqlite"
    assert len(found["gaps_s"]) == 5
    for ((*gaps,),) in found["gaps_s"].values():
        assert len(gaps) == 11
        assert min(gaps) > 0


def test_a_picture_of_no_known_format_is_refused() -> None:
    """The name of a picture's file says its format, and a benchmark does not run for nothing before that is known."""
    argv = [str(BENCH), "consume", "--picture", "figures.doc"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 2
    assert "figures.doc: its name must end with .png, .svg or .pdf" in done.stderr


def test_all_runs_others_and_keeps_what_they_say(tmp_path: Path) -> None:
    """What a benchmark prints and its figures are kept, with versions, settings and the machine beside them; a
    consumer is measured by shards and partitions, for the first sight of its shards and for each round after it."""
    few = ["--more", "--records 2000 --rounds 1"]
    found = figures(tmp_path, "all", "--only", "consume", *few, "--out", str(tmp_path / "out"))

    assert found["took_s"]["consume"] > 0
    assert "bytes a shard" in (tmp_path / "out/consume.txt").read_text()
    assert (tmp_path / "out/consume.png").read_bytes()[:4] == b"\x89PNG"
    kept = json.loads((tmp_path / "out/consume.json").read_text())
    assert (kept["benchmark"], kept["settings"]["records"]) == ("consume", 2000)
    assert {row["shards"] for row in kept["rows"]} == {11, 1_000, 100_000}
    assert all(row["first"] > 0 and len(row["rates"]) == 1 for row in kept["rows"])
    assert kept["machine"]["processors"] == os.cpu_count()
    assert {"remora", "codec", "python", "commit"} <= set(kept["versions"])


@pytest.mark.ceph
@pytest.mark.kafka
def test_memory_is_told_for_each_backlog(tmp_path: Path, name: str) -> None:
    """Remora's memory is told idle, at each backlog and after the drain, which loses nothing."""
    found = figures(tmp_path, "memory", "--backlogs", "500,2000", "--hold", "1", "--queues", "3",
                    "--stuck-rounds", "3", "--name", name)  # fmt: skip

    assert [step["backlog"] for step in found["steps"]] == [0, 500, 2000, 0]
    assert all(step["peak_rss_bytes"] >= step["rss_bytes"] > 10_000_000 for step in found["steps"])
    assert found["delivered"]["lost"] == 0
    assert found["stuck"]["events"] == 3 * 100 * 63


@pytest.mark.ceph
@pytest.mark.kafka
def test_ingest_is_measured_beside_what_radosgw_asks_of_ceph(tmp_path: Path, name: str) -> None:
    """Batches and single events are counted storing and delivering, each beside radosgw's rate, and none is lost."""
    program("wrk", "wrk")
    found = figures(
        tmp_path, "ingest", "--seconds", "3", "--batch", "10", "--connections", "2", "--singles", "4",
        "--partitions", "2", "--name", name,
    )  # fmt: skip

    assert found["enqueued"]["rate"] > 0
    assert found["disk_syncs_per_s"] > 0
    loads = ["batches of 10, 2 connections", "single events, 4 connections"]
    assert [(turn["load"], turn["delivering"]) for turn in found["turns"]] == [
        (load, delivering) for delivering in (False, True) for load in loads
    ]
    assert len(found["ratio"]) == 4
    for turn in found["turns"]:
        assert turn["events"] > 0
        assert turn["rate"] > 0
        assert 0 < turn["p50_s"] <= turn["p99_s"]
        assert turn["syncs_per_s"] > 0
        assert set(turn["cpu_s_per_1000"]) == {"daemon", "generator"} | ({"broker"} if turn["delivering"] else set())
        if turn["delivering"]:  # wrk leaves its last requests without waiting for the answers
            assert turn["events"] <= turn["delivered"]["events"] <= turn["events"] + 4


def test_ingest_is_measured_at_half_of_each_rate(tmp_path: Path) -> None:
    """Each load is sent again at half of its own rate, and not a request more or less than that makes."""
    program("wrk", "wrk")
    found = figures(
        tmp_path, "ingest", "--seconds", "2", "--batch", "10", "--connections", "2", "--singles", "4", "--half",
        "--only", "store", "--without-radosgw",
    )  # fmt: skip

    full, half = found["turns"][::2], found["turns"][1::2]
    assert [turn["load"] for turn in full] == [turn["load"] for turn in half]
    for at_full, at_half, batch in zip(full, half, [10, 1], strict=True):
        assert at_full["asked_rate"] is None
        assert at_half["asked_rate"] == at_full["rate"] / 2
        assert at_half["events"] == round(at_half["asked_rate"] / batch * 2) * batch
        assert 0 < at_half["p50_s"] <= at_half["p99_s"]


def test_what_notifications_cost_is_measured(tmp_path: Path) -> None:
    """Every kind of notification has its cost in batches and alone, and every load stored all of its copies."""
    found = figures(
        tmp_path, "ingest", "--notifications", "20", "--batch", "20", "--connections", "2", "--seconds", "0.5",
        "--rounds", "1",
    )  # fmt: skip

    assert len(found["costs"]) == 8
    assert all(cost["by_name_us"] > 0 and cost["matching_us"] > 0 for cost in found["costs"].values())
    assert len(found["events_per_s"]) == 4
    assert all(len(rates) == 1 and rates[0] > 0 for rates in found["events_per_s"].values())


@pytest.mark.ceph
def test_copies_on_rados_are_measured(tmp_path: Path, name: str) -> None:
    """To one topic by name, and by notifications to one and to three: every load stored all of its copies."""
    found = figures(
        tmp_path, "ingest", "--notifications", "20", "--batch", "20", "--connections", "2", "--seconds", "0.5",
        "--rounds", "1", "--store", "rados", "--name", name,
    )  # fmt: skip

    assert set(found["events_per_s"]) == {"a topic by name", "one topic", "three topics"}
    assert all(len(rates) == 1 and rates[0] > 0 for rates in found["events_per_s"].values())


@pytest.mark.kafka
def test_footprint_is_told_idle_and_for_each_tenth(tmp_path: Path, name: str) -> None:
    """Memory is told of each idle start, after the first events, and after each tenth of them."""
    found = figures(tmp_path, "footprint", "--events", "20000", "--rounds", "1", "--rest", "0.2", "--name", name)

    assert len(found["idle"]) == 1
    assert [step["events"] for step in found["steps"]] == [800, *range(2000, 20_001, 2000)]
    for each in found["idle"] + found["steps"]:
        assert each["peak_rss_bytes"] >= each["rss_bytes"] > each["pss_bytes"] > each["own_pss_bytes"] > 10_000_000


@pytest.mark.kafka
def test_idle_tells_of_an_idle_daemon_and_of_a_restart(tmp_path: Path, name: str) -> None:
    """An idle daemon's share of a processor and its memory are told, and a restart that loses nothing of a backlog."""
    found = figures(
        tmp_path, "idle", "--topics", "20", "--settle", "0.5", "--seconds", "2", "--entries", "2000", "--restarts", "1",
        "--name", name,
    )  # fmt: skip

    assert (found["idle"]["topics"], found["idle"]["shards"]) == (20, 220)
    assert 0 <= found["idle"]["cpu"] < 2
    assert found["idle"]["peak_rss_bytes"] >= found["idle"]["rss_bytes"] > 10_000_000
    assert len(found["restart"]["firsts_s"]) == 1  # by the next one so few entries might all be delivered
    assert 0 < found["restart"]["firsts_s"][-1] <= found["restart"]["last_s"]
    assert found["restart"]["delivered"] == 2000


@pytest.mark.kafka
@pytest.mark.full("six deliveries, for a benchmark")
def test_kcat_is_measured_beside_the_daemon(tmp_path: Path, name: str) -> None:
    """Each sender has a rate and its costs, and after a SIGKILL all events are there, in order; once if asked."""
    program("kcat", "kcat")
    found = figures(tmp_path, "against", "kcat", "--entries", "60000", "--rounds", "1", "--name", name)

    kcat, at_least_once, exactly_once = found["rows"]
    assert [row["sender"] for row in found["rows"]] == ["kcat", "remora, at-least-once", "remora, exactly-once"]
    for row in found["rows"]:
        assert row["rate"] > 0
        assert row["sender_cpu_us"] > 0
        assert row["peak_rss_bytes"] > 1_000_000
        assert (row["events"], row["inversions"]) == (60_000, 0)
    assert kcat["copies"] > 0
    assert at_least_once["copies"] < 60_000
    assert exactly_once["copies"] == 0
    assert "librdkafka" in found["version"]


@pytest.mark.full("builds another server, once")
def test_durable_streams_is_measured_beside_the_daemon(tmp_path: Path) -> None:
    """Both servers store single events and batches, and each goal has its ratio."""
    program("wrk", "wrk")
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo, newer than Debian's")
    found = figures(tmp_path, "against", "durable-streams", "--seconds", "1", "--rounds", "1")

    assert [row["server"] for row in found["rows"]] == ["durable-streams", "remora"] * 2
    for row in found["rows"]:
        assert row["rate"] > 0
        assert row["cpu_us"] > 0
        assert 0 < row["p50_s"] <= row["p99_s"]
        assert row["peak_rss_bytes"] > 1_000_000
    assert [goal["value"] > 0 for goal in found["goals"].values()] == [True, True]
    for row in found["after_sigkill"]:
        assert row["events"] > 0
        assert row["inversions"] == 0
        assert row["copies"] <= (0 if row["keys"] else row["events"] / 2)


@pytest.mark.full("builds another server, once, and starts the three that it needs")
def test_outpost_is_measured_beside_the_daemon(tmp_path: Path) -> None:
    """Both sides post a backlog at some rate and cost, and after a SIGKILL each entry has come at least once."""
    program("redis-server", "redis-server")
    if shutil.which("go") is None or not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("needs Go, newer than Debian's, and Debian's package postgresql")
    if not list(cache_home().glob("outpost-*/sources")):
        try:
            socket.getaddrinfo("github.com", 443)
        except socket.gaierror:
            pytest.skip("needs Outpost's sources, which are at github.com")
    found = figures(tmp_path, "against", "outpost", "--entries", "2000", "--rounds", "1")

    assert [row["server"] for row in found["rows"]] == ["outpost", "remora"]
    for row in found["rows"]:
        assert row["rate"] > 0
        assert row["cpu_us"] > 0
        assert row["peak_rss_bytes"] > 1_000_000
        assert 0 <= row["copies"] < 2000
    assert found["ratio"]["value"] > 0


def test_redis_is_measured_beside_the_sequencer(tmp_path: Path) -> None:
    """Both ways of keeping numbers have a cost, and the goal its ratio to Redis without a disk."""
    program("redis-server", "redis-server")
    found = figures(tmp_path, "against", "redis", "--seconds", "0.05", "--rounds", "1")

    assert list(found["rows"]) == ["redis, nothing kept", "redis, each write synced", "remora sequencer"]
    assert all(row["rate"] > 0 and row["server_ns"] > 0 for row in found["rows"].values())
    assert found["ratio"]["value"] > 0
    nothing_kept, _, sequencer = found["after_sigkill"].values()
    assert nothing_kept["copies"] > 0
    assert (sequencer["copies"], sequencer["out_of_order"]) == (0, 0)


@pytest.mark.kafka
@pytest.mark.full("eight deliveries, for a benchmark, half of them by a worker that Java has to compile first")
def test_kafka_connect_is_measured_beside_the_daemon(tmp_path: Path, name: str) -> None:
    """Both ways of Kafka Connect have a rate and their costs, and after a SIGKILL a worker goes on; once if asked."""
    found = figures(tmp_path, "against", "kafka-connect", "--entries", "40000", "--rounds", "1", "--name", name)

    at_least_once, exactly_once, *remora = found["rows"]
    assert [row["sender"] for row in found["rows"][:2]] == ["kafka-connect", "kafka-connect, exactly once"]
    for row in found["rows"]:
        assert row["rate"] > 0
        assert row["sender_cpu_us"] > 0
        assert row["peak_rss_bytes"] > 1_000_000
        assert row["events"] == 40_000
    assert at_least_once["copies"] < 40_000
    assert exactly_once["copies"] == 0
    assert [row["inversions"] for row in found["rows"]] == [None, None, 0, 0]
    assert remora[1]["copies"] == 0
    assert found["version"].startswith("connect-runtime-")


@pytest.mark.kafka
def test_isolation_compares_a_topic_alone_and_beside_bad_ones(tmp_path: Path, name: str) -> None:
    """A healthy topic is measured alone and beside endpoints that were seen to fail, and the ratios are told."""
    found = figures(
        tmp_path, "isolation", "--entries", "500", "--queues", "5", "--seconds", "1", "--rounds", "1", "--name", name,
    )  # fmt: skip

    (alone,), (beside,) = found["turns"]["alone"], found["turns"]["beside"]
    assert beside["failures"] > 0
    assert all(turn["rate"] > 0 and 0 < turn["age_p50_s"] <= turn["age_p99_s"] for turn in (alone, beside))
    assert set(found["ratio"]) == {"rate", "age_p50_s", "age_p99_s", "cpu_s"}


@pytest.mark.kafka
def test_isolation_compares_a_destination_alone_and_beside_a_greedy_one(tmp_path: Path, name: str) -> None:
    """The only topic of a destination is measured alone and beside many of another one, and the ratio is told."""
    found = figures(tmp_path, "isolation", "--greedy-topics", "3", "--seconds", "1", "--name", name)

    assert set(found["share"]["rates"]) == {"alone", "beside"}
    assert found["share"]["ratio"] > 0


@pytest.mark.kafka
def test_isolation_compares_a_topic_beside_http_topics_that_hang(tmp_path: Path, name: str) -> None:
    """The backlog is delivered once all others have failed, and the ratios are told."""
    found = figures(
        tmp_path, "isolation", "--entries", "500", "--http-topics", "5", "--seconds", "1", "--rounds", "1",
        "--name", name,
    )  # fmt: skip

    (alone,), (beside,) = found["turns"]["alone"], found["turns"]["beside"]
    assert min(alone["failures"], beside["failures"]) > 0
    assert found["ratio"]["rate"] > 0


def test_endpoints_tells_of_remora_alone_over_http(tmp_path: Path) -> None:
    """Single events, batches and a receiver that refuses some are delivered without a copy, and the ratios are told."""
    found = figures(tmp_path, "endpoints", "--only", "alone", "--entries", "2000", "--rounds", "1")["alone"]

    assert set(found["ratio"]) == {"one by one", "batches of 100", "1 % of 503", "wrk"}
    for way in ("one by one", "batches of 100", "1 % of 503"):
        (turn,) = found[way]
        assert turn["rate"] > 0
        assert (turn["copies"], turn["letters"]) == (0, 0)
    assert found["batches of 100"][0]["requests"] < 500
    assert found["refused"]["connects_per_s"] < 1000  # of all on this host; without pauses they are thousands


@pytest.mark.spark
def test_replay_tells_of_the_generator_alone_and_into_ingest(tmp_path: Path) -> None:
    """Every event of each replay is acknowledged, and rates and lateness are told."""
    found = figures(tmp_path, "replay", "--rate", "500", "--seconds", "1", "--events", "2000", "--keys", "100")

    assert found["punctual"]["acked"] == 500
    assert 0 <= found["punctual"]["lateness_p50_us"] <= found["punctual"]["lateness_p99_us"]
    assert all(found[name]["acked"] == 2000 and found[name]["rate"] > 0 for name in ("null", "ingest"))
    assert found["ingest"]["daemon_cpu_s_per_1000"] > 0


@pytest.mark.kafka
def test_latency_tells_of_idle_queues_and_of_a_load(tmp_path: Path, name: str) -> None:
    """Every event of both loads is found in Kafka, and has an age; of some of them spans say what it consists of."""
    found = figures(tmp_path, "latency", "--seconds", "1", "--rate", "500", "--spans", "20", "--name", name)

    idle, steady = found["turns"]
    assert 0 < idle["events"] < 50
    assert steady["events"] == 500
    for turn in (idle, steady):
        assert -0.001 < turn["p50_s"] <= turn["p99_s"] <= turn["p999_s"]
        assert turn["spans"] >= 20
        assert 0.9 < turn["least_covered"] <= 1.05


@pytest.mark.kafka
@pytest.mark.spark
def test_replay_verify_tells_of_time_and_memory(tmp_path: Path, name: str) -> None:
    """A topic of a good replay gets its verdict, and what that took is told."""
    found = figures(tmp_path, "replay-verify", "--records", "2000", "--memory", "512m", "--name", name)

    (turn,) = found["turns"]
    assert (turn["records"], turn["verdict"]) == (2000, "PASS")
    assert turn["seconds"] > 0 < turn["cpu_s"]
    assert turn["peak_bytes"] > 100_000_000


@pytest.mark.ceph
@pytest.mark.full("starts a cluster of its own")
def test_shards_are_measured_by_commit_latency(tmp_path: Path, name: str) -> None:
    """One write to the cluster takes at least as long as its syncs wait, and each work has a rate with all its queues.

    OSDs make an operation wait for the one before only where they hold the queue.
    """
    found = figures(
        tmp_path, "shards", "--commit-latency", "20ms", "--seconds", "0.3", "--writers", "4", "--queues", "1,2",
        "--name", name,
    )  # fmt: skip

    (latency,) = found["latencies"]
    assert latency["sync_s"] > 0
    assert min(latency["one_write_s"], latency["rados_bench_s"]) >= latency["sync_s"]
    rows = {(row["work"], row["kind"], row["queues"]): row for row in found["rows"]}
    every, one = ("plain", "held", "topic"), ("held",)
    kinds = {"reserve, commit": every, "PUT 4 KB": every, "DELETE": one, "PUT 4 MB": one}
    assert set(rows) == {
        *((work, kind, queues) for work in kinds for kind in kinds[work] for queues in (1, 2)),
        *((work, "none", 0) for work in ("PUT 4 KB", "DELETE", "PUT 4 MB")),
    }
    assert all(row["rate"] > 0 and 0 < row["p50_s"] <= row["p99_s"] for row in rows.values())
    assert rows["reserve, commit", "held", 1]["waited"] > 0
    assert rows["reserve, commit", "plain", 1]["waited"] == 0


@pytest.mark.spark
def test_a_reconcile_is_measured(tmp_path: Path) -> None:
    """Exactly the differences that were made are found, or there would be no figure."""
    found = figures(tmp_path, "reconcile", "--objects", "2000", "--memory", "1g")

    assert (found["objects"], found["took_s"] > 0, found["peak_rss_bytes"] > 0) == (2000, True, True)
