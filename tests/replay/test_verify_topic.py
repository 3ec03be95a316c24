"""The checker is proven: a good topic passes, and each single change of it gets its exact verdict."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka, settled
from devkit.testing.cases import cases
from remora.cli import group
from remora_pipeline.cli.replay_verify import _recalled
from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.kafka_source import COMMITTED
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.results import FAIL, INVALID, PASS, Series, TopicVerdict
from remora_pipeline.replay.shape import MARK
from remora_pipeline.replay.verify.job import verify_run, verify_topic
from support.asked import filled, question, wrong
from support.replayed import (
    KEYS,
    RUN_ID,
    T0_US,
    Journalled,
    Rec,
    events,
    fill,
    good,
    new_topic,
    numbered,
    position,
    prepare,
    replayed,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

COUNT = 60
TRACE = events(COUNT)
HOT = [each.seq for each in TRACE if each.key == KEYS[0]]
"""The events of one key, which lie in one partition."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A replay of which everything was acked in time."""
    folder = tmp_path_factory.mktemp("good")
    return replayed(folder / "run", prepare(folder / "prepared", TRACE), TRACE, Journalled())


# ------------------------------------------------------------------------------------------ one change each


def _drop(recs: list[Rec]) -> list[Rec]:
    return recs[: HOT[10]] + recs[HOT[10] + 1 :]


def _double(recs: list[Rec]) -> list[Rec]:
    return [*recs[: HOT[10] + 1], *recs[HOT[10] :]]


def _double_much_later(recs: list[Rec]) -> list[Rec]:
    return [*recs, recs[HOT[2]]]


def _swap(a: int, b: int) -> Callable[[list[Rec]], list[Rec]]:
    def swapped(recs: list[Rec]) -> list[Rec]:
        found = list(recs)
        found[a], found[b] = recs[b], recs[a]
        return found

    return swapped


def _changed(seq: int, change: Callable[[Rec], Rec]) -> Callable[[list[Rec]], list[Rec]]:
    return lambda recs: [change(rec) if rec.seq == seq else rec for rec in recs]


def _move(rec: Rec) -> Rec:
    return replace(rec, partition=(rec.partition + 1) % 3)


def _mark(text: str) -> Callable[[Rec], Rec]:
    def change(record: Any) -> None:
        for pair in record["s3"]["object"]["metadata"]:
            if pair["key"] == MARK:
                pair["val"] = text

    return lambda rec: rec.with_value(change)


def _larger(record: Any) -> None:
    record["s3"]["object"]["size"] += 1


def _cut(recs: list[Rec]) -> list[Rec]:
    """Without the last ten records of the partition of the hottest key."""
    there = [rec for rec in recs if rec.partition == recs[HOT[0]].partition]
    return [rec for rec in recs if rec not in there[-10:]]


def _break(rec: Rec) -> Rec:
    return rec.with_header("remora-next", b"abc:7:99/1")


def _of_another(rec: Rec) -> Rec:
    return _mark("r2/0/0")(rec)


def _unreadable(recs: list[Rec]) -> list[Rec]:
    """No JSON, and two event ids."""
    cut = _changed(MID, lambda rec: replace(rec, value=rec.value[:-3]))(recs)
    return _changed(NEXT_HOT, lambda rec: rec.with_header("remora-event-id", b"r1/x"))(cut)


def _corrupt(recs: list[Rec]) -> list[Rec]:
    """The run's id in one record, and the number of the event in another."""
    return _changed(NEXT_HOT, _mark(f"{RUN_ID}/9{MID}/12"))(_changed(MID, _mark(f"r2/{MID}/12"))(recs))


MID, NEXT_HOT = HOT[12], HOT[13]
OTHERS = (24, 26)
"""Of two keys in one partition."""

MUTATIONS: dict[str, tuple[Callable[[list[Rec]], list[Rec]], dict[str, int]]] = {
    "one dropped": (_drop, {"lost": 1, "chain_gaps": 1}),
    "two of a key swapped": (
        _swap(MID, NEXT_HOT),
        {"inversions": 1, "keys_inverted": 1, "max_depth": 1, "positions_inverted": 1},
    ),
    "one in another partition": (_changed(MID, _move), {"keys_in_several_partitions": 1}),
    "ids corrupted": (_corrupt, {"lost": 2, "foreign": 2}),
    "a payload changed": (_changed(MID, lambda rec: rec.with_value(_larger)), {"lost": 1, "altered": 1}),
    "the chain broken": (_changed(MID, _break), {"chain_gaps": 1}),
    "two that cannot be read": (_unreadable, {"lost": 2, "malformed": 2}),
}


@pytest.mark.guarantee("what-a-verdict-says")
@pytest.mark.parametrize(
    "name",
    cases(
        "one dropped",
        "two of a key swapped",
        more=[
            "a payload changed",  # at the gate each kind of change of a record is one of test_verify_records.py
            "one in another partition",
            "ids corrupted",
            "the chain broken",
            "two that cannot be read",
        ],
    ),
)
def test_each_change_gets_its_exact_verdict(spark: SparkSession, kafka: Kafka, run: RunDirectory, name: str) -> None:
    """One change of a good topic fails, with the counts of that change and no others, and it is shown."""
    mutate, expected = MUTATIONS[name]

    verdict = verify_run(spark, run, question(kafka, filled(kafka, mutate(good(TRACE))))).verdict

    assert (verdict.verdict, wrong(verdict)) == (FAIL, expected)
    assert verdict.counts["in_kafka"] == sum(
        verdict.counts[each] for each in ("distinct", "duplicates", "altered", "foreign", "malformed")
    )
    shown = {name for name in expected if name not in ("keys_inverted", "max_depth")}
    assert set(verdict.examples) == shown
    assert all(len(verdict.examples[each]) == expected[each] for each in shown)


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
@pytest.mark.guarantee("order-over-all-shards")
def test_a_whole_shard_that_is_missing_shows_in_the_numbers(spark: SparkSession, kafka: Kafka) -> None:
    """A topic without one of its shards has whole chains, and gaps in its numbers: it fails by these alone."""
    recs = numbered(good(TRACE))
    kept = [rec for rec in recs if rec.header("remora-shard") != b"photos.1"]

    whole = verify_topic(spark, question(kafka, filled(kafka, recs))).verdict
    verdict = verify_topic(spark, question(kafka, filled(kafka, kept))).verdict

    assert (whole.verdict, wrong(whole), whole.counts["numbered"]) == (PASS, {}, COUNT)
    assert (verdict.verdict, set(wrong(verdict))) == (FAIL, {"number_gaps"})
    assert all(str(each.detail).endswith("numbers before it are missing") for each in verdict.examples["number_gaps"])
    assert verdict.reasons == (
        f"{verdict.counts['number_gaps']} gaps in the numbers have no dead letters that explain them",
    )


def _exchanged(recs: list[Rec]) -> list[Rec]:
    """The positions of two neighbours of different keys, in one queue and one partition."""
    last: dict[tuple[int, bytes], int] = {}
    found = list(recs)
    for n, rec in enumerate(recs):
        place = rec.partition, rec.header("remora-shard")
        before = last.get(place, n)
        if n > COUNT // 3 and recs[before].key != rec.key:
            for name in ("remora-pos", "remora-next"):
                found[n] = found[n].with_header(name, recs[before].header(name))
                found[before] = found[before].with_header(name, rec.header(name))
            return found
        last[place] = n
    raise AssertionError("no two keys share a queue and a partition")


def _divided(recs: list[Rec]) -> list[Rec]:
    """The last record of a queue lies in another queue of the topic."""
    last = max((rec for rec in recs if rec.header("remora-shard") == b"photos.0"), key=lambda rec: rec.seq)
    return _changed(last.seq, lambda rec: rec.with_header("remora-shard", b"photos.7"))(recs)


def _adopted(recs: list[Rec]) -> list[Rec]:
    """The last record of a queue lies in a queue of another topic, so that no chain breaks."""
    last = max((rec for rec in recs if rec.header("remora-shard") == b"photos.1"), key=lambda rec: rec.seq)
    return _changed(last.seq, lambda rec: rec.with_header("remora-shard", b"photos-2@1.1"))(recs)


@pytest.mark.guarantee("what-a-verdict-says")
def test_headers_are_judged_as_well(spark: SparkSession, kafka: Kafka, run: RunDirectory, tmp_path: Path) -> None:
    """With a journal exchanged positions, a key in two shards, a shard of another topic, and numbers that all records
    of a topic that numbers its events lack each fail by a name of their own; a topic alone does not fail for queues
    that may have come after others, or are another topic's."""
    told = layout.read(run.run, layout.ReplayRun)
    numbering = RunDirectory(tmp_path / "run")
    shutil.copytree(run.path, numbering.path)
    layout.write(numbering.run, msgspec.structs.replace(told, is_numbered=True))
    topic = filled(kafka, _adopted(_divided(_exchanged(good(TRACE)))))

    verdict = verify_run(spark, numbering, question(kafka, topic)).verdict
    alone = verify_topic(spark, question(kafka, topic)).verdict

    expected = {"keys_in_several_shards": 1, "positions_inverted": 1, "without_number": COUNT}
    expected |= {"of_other_topics": 1}
    assert (verdict.verdict, wrong(verdict)) == (FAIL, expected)
    assert len(verdict.reasons) == 4
    assert {name: len(shown) for name, shown in verdict.examples.items()} == expected | {"without_number": 20}
    assert verdict.examples["keys_in_several_shards"][0].detail == "shards photos.0, photos.7"
    assert verdict.examples["of_other_topics"][0].shard == "photos-2@1.1"
    assert (alone.verdict, wrong(alone)) == (PASS, {}), "the other queue may have come after the first"


def _strayed(recs: list[Rec]) -> list[Rec]:
    """A record from within a queue lies in another queue of the topic."""
    return _changed(MID, lambda rec: rec.with_header("remora-shard", b"photos.7"))(recs)


def _made_again(recs: list[Rec]) -> list[Rec]:
    """The topic, and behind it all of it once more as of other queues, which have the names of the first in part."""
    other = {b"photos.0": b"photos.1", b"photos.1": b"photos.2", b"photos.2": b"photos.0"}
    again = []
    for rec in recs:
        shard = rec.header("remora-shard")
        changed = rec.with_header("remora-shard", other.get(shard, shard))
        for name in ("remora-pos", "remora-next"):
            if value := changed.header(name):
                changed = changed.with_header(name, b"other" + value[value.index(b":") :])
        again.append(changed)
    return [*recs, *again]


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
def test_a_topic_alone_is_judged_by_shards_that_it_had_at_one_time(spark: SparkSession, kafka: Kafka) -> None:
    """A key in two shards that were delivered beside each other fails; not one that the topic put elsewhere when it was
    made again."""
    strayed = verify_topic(spark, question(kafka, filled(kafka, _strayed(good(TRACE))))).verdict
    again = verify_topic(spark, question(kafka, filled(kafka, _made_again(good(TRACE))))).verdict

    assert wrong(strayed)["keys_in_several_shards"] == 1
    assert again.counts["keys_in_several_shards"] == 0


def _beside(recs: list[Rec], notification: str) -> list[Rec]:
    """The topic, and beside one of its queues another one with the same events, called as a third shard."""

    def sent_by(record: Any) -> None:
        record["s3"]["configurationId"] = notification

    found = []
    for rec in recs:
        found.append(rec)
        if rec.header("remora-shard") == b"photos.0":
            found.append(rec.with_header("remora-shard", b"photos.2").with_value(sent_by))
    return found


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
def test_a_topic_that_is_called_as_a_shard_of_another_one(spark: SparkSession, kafka: Kafka) -> None:
    """It does not fail where its notifications are its own, and fails where they may be the other topic's."""
    apart = verify_topic(spark, question(kafka, filled(kafka, _beside(good(TRACE), "gateway")))).verdict
    alike = verify_topic(spark, question(kafka, filled(kafka, _beside(good(TRACE), "replay")))).verdict

    of_both = len({rec.key for rec in good(TRACE) if rec.header("remora-shard") == b"photos.0"})
    assert (apart.verdict, wrong(apart)) == (PASS, {})
    assert (alike.verdict, wrong(alike)) == (FAIL, {"keys_in_several_shards": of_both})


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
@pytest.mark.guarantee("what-a-verdict-says")
def test_records_behind_an_open_transaction_are_named(
    spark: SparkSession, kafka: Kafka, run: RunDirectory, tmp_path: Path
) -> None:
    """Acknowledged events behind a transaction that is open are not lost and prove nothing; the same offsets give the
    same verdict when the transaction has ended."""
    recs = good(TRACE)
    lane = recs[HOT[0]].partition
    behind = [rec for rec in recs[COUNT // 2 :] if rec.partition == lane]

    async def judged() -> tuple[TopicVerdict, TopicVerdict, TopicVerdict]:
        topic = await new_topic(kafka.address)
        await fill(kafka.address, topic, recs[: COUNT // 2])
        # It stays open for as long as a busy host takes, up to what brokers allow.
        producer = AIOKafkaProducer(
            bootstrap_servers=kafka.address, transactional_id=topic, transaction_timeout_ms=900_000
        )
        await producer.start()
        try:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"open", partition=lane)
            await fill(kafka.address, topic, recs[COUNT // 2 :])
            asked = question(kafka, topic, isolation=COMMITTED)
            first = (await asyncio.to_thread(verify_run, spark, run, asked)).verdict
            alone = (await asyncio.to_thread(verify_topic, spark, asked)).verdict
            await producer.abort_transaction()
        finally:
            await producer.stop()
        layout.write(tmp_path / "verdict.json", first)
        recalled, _ = _recalled(tmp_path / "verdict.json", topic)
        again = question(kafka, topic, isolation=COMMITTED, recalled=recalled)
        return first, alone, (await asyncio.to_thread(verify_run, spark, run, again)).verdict

    first, alone, again = asyncio.run(judged())

    assert (first.verdict, wrong(first)) == (INVALID, {"undecided": len(behind)})
    assert first.reasons == (f"{len(behind)} acknowledged events lie in Kafka behind a transaction that is open",)
    assert [each.seq for each in first.examples["undecided"]] == [rec.seq for rec in behind][:20]
    assert set(first.undecided) == {str(lane)}
    assert again == first
    assert wrong(alone) == {"undecided": len(behind) + 1}
    assert any("a transaction that is open" in each for each in alone.caveats)


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
@pytest.mark.guarantee("what-a-verdict-says")
def test_a_partition_whose_end_is_cut_off(spark: SparkSession, kafka: Kafka, run: RunDirectory) -> None:
    """Every event behind the cut is lost, and every key that ended there ends with another state."""
    recs = good(TRACE)
    kept = _cut(recs)
    gone = [rec.seq for rec in recs if rec not in kept]
    keys = {TRACE[seq].key for seq in gone}

    verdict = verify_run(spark, run, question(kafka, filled(kafka, kept))).verdict

    assert verdict.verdict == FAIL
    assert [each.seq for each in verdict.examples["lost"]] == gone
    assert {each.key for each in verdict.examples["final_state_wrong"]} == keys
    assert (verdict.counts["lost"], verdict.counts["final_state_wrong"]) == (10, len(keys))


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
@pytest.mark.guarantee("what-a-verdict-says")
def test_copies_count_by_the_contract(spark: SparkSession, kafka: Kafka, run: RunDirectory) -> None:
    """Copies, one at once and one much later, are counted and shown, are no inversions, and fail where they may not
    be."""
    topic = filled(kafka, _double_much_later(_double(good(TRACE))))

    verdict = verify_run(spark, run, question(kafka, topic, duplicates="fail")).verdict

    assert (verdict.verdict, verdict.reasons, wrong(verdict)) == (FAIL, ("2 records are copies",), {"duplicates": 2})
    assert [each.seq for each in verdict.examples["duplicates"]] == [HOT[10], HOT[2]]


@pytest.mark.guarantee("what-a-verdict-says")
def test_a_good_topic_passes_and_says_the_same_again(
    spark: SparkSession, kafka: Kafka, run: RunDirectory, tmp_path: Path
) -> None:
    """A topic in which two records of different keys changed places passes; its offsets, judged again after more has
    come, give the same verdict byte for byte, and all that the report needs is there."""
    topic = filled(kafka, _swap(*OTHERS)(good(TRACE)))
    options = ["replay", "verify", str(run.path), "--bootstrap", kafka.address, "--topic", topic, "--settle", "0"]
    first, again = tmp_path / "first", tmp_path / "again"

    done = _run(*options, "--out", str(first))
    assert done.exit_code == 0
    assert f"reading {COUNT} records of {topic}" in done.stderr
    asyncio.run(fill(kafka.address, topic, [_of_another(good(TRACE)[0])]))
    earlier = str(RunDirectory(first).verdict)
    assert _run(*options, "--out", str(again), "--offsets", earlier).exit_code == 0
    now = _run(*options, "--out", str(tmp_path / "now"), "--no-series")

    assert now.exit_code == 3
    assert "1 record is of no event of this run" in now.output
    assert RunDirectory(first).verdict.read_bytes() == RunDirectory(again).verdict.read_bytes()
    assert RunDirectory(first).series.read_bytes() == RunDirectory(again).series.read_bytes()
    verdict = layout.read(RunDirectory(first).verdict, TopicVerdict)
    assert (verdict.verdict, wrong(verdict)) == (PASS, {})
    assert "opaqueData" in verdict.caveats[0]
    assert {name: each.p99_us for name, each in verdict.latencies.items()} == {
        "lateness": 100, "service": 1900, "response": 2000, "to_log": 5000,
    }  # fmt: skip
    series = layout.read(RunDirectory(first).series, Series)
    assert series.origin_us == T0_US
    assert sum(each.due for each in series.intervals) == COUNT
    assert sum(each.acked for each in series.intervals) == COUNT
    assert sum(each.in_log for each in series.intervals) == COUNT
    assert series.intervals[-1].backlog_in_log == series.intervals[-1].backlog_acked == 0
    assert sum(events for _, _, events in series.density) == COUNT
    assert (series.hottest[0].key, series.hottest[0].events) == (KEYS[0], COUNT // 2)
    assert sum(series.partitions.values()) == COUNT


def _run(*argv: str) -> Any:
    return CliRunner().invoke(group, argv, catch_exceptions=False)


# ------------------------------------------------------------------------------------ what the journals say


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
@pytest.mark.guarantee("what-a-verdict-says")
def test_what_was_not_acked_may_be_missing(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """Unknown and refused events may be missing, refused and dropped ones may not be there, one that was sent twice
    may be there twice, a late one of which nobody knows is not out of order, and waits for limits are counted."""
    how = Journalled(
        outcomes={HOT[3]: "unknown", HOT[5]: "rejected", HOT[7]: "rejected", HOT[9]: "dropped", HOT[12]: "unknown"},
        unsaid=frozenset({HOT[20]}),
        tries={HOT[22]: 2},
    )
    run = replayed(tmp_path / "run", prepare(tmp_path / "prepared", TRACE), TRACE, how)
    recs = [rec for rec in good(TRACE) if rec.seq not in (HOT[3], HOT[5], HOT[20])]
    late = next(rec for rec in recs if rec.seq == HOT[12])
    recs.remove(late)
    recs.insert(recs.index(next(rec for rec in recs if rec.seq == HOT[14])) + 1, late)
    again = next(rec for rec in recs if rec.seq == HOT[22])
    recs.append(again.with_header("remora-pos", b"abc:7:8/1").with_header("remora-next", b"abc:7:8/2"))
    with (run.journal / "part=0" / "attempt=0.jsonl").open("ab") as journal:
        for waits in (b'"limited":2,"limited_us":3000000', b'"limited":1,"limited_us":500000'):
            journal.write(b'{"kind":"outcome","seqs":[],"outcome":"acked","tries":1,%b}\n' % waits)
        journal.write(b'{"kind":"outcome","seqs":[1],"outcome":"rej')

    verdict = verify_run(spark, run, question(kafka, filled(kafka, recs), duplicates="fail")).verdict

    counts = verdict.counts
    assert (counts["acked"], counts["rejected"], counts["unknown"], counts["dropped"]) == (COUNT - 6, 2, 3, 1)
    assert (counts["offered"], counts["sent"], counts["in_trace"]) == (COUNT, COUNT - 1, COUNT)
    assert (counts["lost"], counts["ghosts"], counts["duplicates"], counts["resent"]) == (0, 2, 1, 1)
    assert (counts["inversions"], counts["final_state_wrong"]) == (0, 0)
    assert (counts["limited"], counts["limited_us"]) == (3, 3_500_000)
    assert [each.seq for each in verdict.examples["ghosts"]] == [HOT[7], HOT[9]]
    assert verdict.verdict == FAIL


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
@pytest.mark.guarantee("what-a-verdict-says")
def test_a_late_or_unfinished_generator_proves_nothing(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """A generator that was later than 5 ms, and one that was stopped before the end, make a run invalid; with speed 0
    there is no lateness, and what was held by waits for limits is none."""
    topic, at_once = filled(kafka, good(TRACE)[:-2]), filled(kafka, good(TRACE, speed=0)[:-2])
    prepared = prepare(tmp_path / "prepared", TRACE)
    never = frozenset({COUNT - 1, COUNT - 2})
    late = replayed(tmp_path / "late", prepared, TRACE, Journalled(late_us=6_000, never=never))
    held = replayed(tmp_path / "held", prepared, TRACE, Journalled(late_us=6_000, held_us=4_000, never=never))
    hurried = replayed(tmp_path / "hurried", prepared, TRACE, Journalled(late_us=6_000, never=never, speed=0))

    found = verify_run(spark, late, question(kafka, topic)).verdict
    limited = verify_run(spark, held, question(kafka, topic)).verdict
    unhurried = verify_run(spark, hurried, question(kafka, at_once)).verdict

    assert limited.latencies["lateness"].p99_us == 2_000
    assert [reason.split()[0] for reason in limited.reasons] == ["2"]
    assert found.verdict == unhurried.verdict == INVALID
    assert [reason.split()[0] for reason in found.reasons] == ["2", "the"]
    assert "p99 of sent - due is 6.000 ms, more than 5.000 ms" in found.reasons[1]
    assert len(unhurried.reasons) == 1
    assert "lateness" not in unhurried.latencies


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
@pytest.mark.guarantee("what-a-verdict-says")
def test_removals_of_a_gateway_are_told_by_their_place(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """A gateway's removals, which carry no metadata, are taken for the right events: behind a refused write, with a
    copy of one, where one is missing, and where there is one too many."""
    deletes = [each.seq for each in TRACE if each.op == "DELETE" and each.key == KEYS[0]]
    before = deletes[3] - 2  # the write before that removal
    how = Journalled(outcomes={before: "rejected"})
    run = replayed(tmp_path / "run", prepare(tmp_path / "prepared", TRACE), TRACE, how, target="s3")
    recs = good(TRACE, marked=False, ids="1789.{}.aa")
    recs = [rec for rec in recs if rec.seq not in (before, deletes[2])]
    of = {rec.seq: rec for rec in recs}
    surplus = of[deletes[0]].with_header("remora-pos", b"abc:7:8/1").with_header("remora-next", b"abc:7:8/2")
    place = recs.index(of[deletes[0]]) + 1
    topic = filled(kafka, [*recs[:place], surplus, *recs[place:], of[deletes[1]]])

    verdict = verify_run(spark, run, question(kafka, topic)).verdict

    counts = {name: count for name, count in wrong(verdict).items() if not name.startswith("chain")}
    assert counts == {"lost": 1, "duplicates": 1, "foreign": 1}
    assert [each.seq for each in verdict.examples["lost"]] == [deletes[2]]
    assert [each.seq for each in verdict.examples["duplicates"]] == [deletes[1]]


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
def test_records_from_before_the_run_are_not_judged(spark: SparkSession, kafka: Kafka, run: RunDirectory) -> None:
    """What an earlier run left in the topic is read for the chain only, and counted as outside."""
    recs = good(TRACE)
    earlier = [_of_another(replace(rec, at_us=T0_US - 30_000_000)) for rec in recs[:4]]
    moved = [rec.with_header("remora-shard", b"old") for rec in earlier]

    verdict = verify_run(spark, run, question(kafka, filled(kafka, moved + recs))).verdict

    assert (verdict.verdict, wrong(verdict)) == (PASS, {"outside": 4})


@pytest.mark.full("a verdict takes Spark 10 s: the gate has one lost, swapped, changed, copied and aborted record")
@pytest.mark.guarantee("what-a-verdict-says")
def test_what_is_outside_the_window_is_not_lost(spark: SparkSession, kafka: Kafka, run: RunDirectory) -> None:
    """Acknowledged events whose records have time stamps of long before the run are told apart from lost ones, and
    prove nothing; the chain goes through them."""
    recs = good(TRACE)
    early = [rec for rec in recs if rec.partition == recs[HOT[0]].partition][:7]
    shifted = [replace(rec, at_us=rec.at_us - 7_200_000_000) if rec in early else rec for rec in recs]

    verdict = verify_run(spark, run, question(kafka, filled(kafka, shifted))).verdict

    assert (verdict.verdict, wrong(verdict)) == (INVALID, {"out_of_window": 7})
    assert [each.seq for each in verdict.examples["out_of_window"]] == [rec.seq for rec in early]
    assert "outside the window" in verdict.reasons[0]


# --------------------------------------------------------------------------------- transactions, dead letters


@pytest.mark.guarantee("what-a-verdict-says")
def test_aborted_records_are_no_loss_and_no_copies(
    spark: SparkSession, kafka: Kafka, run: RunDirectory, tmp_path: Path
) -> None:
    """Under read_committed, which is the command's default, aborted records and control records are not there: the gaps
    that they leave in the offsets are no loss, and what was aborted and sent again is no copy."""

    async def work() -> str:
        topic = await new_topic(kafka.address)
        recs = good(TRACE)
        await _transaction(kafka, topic, recs[:20], commit=False)
        await _transaction(kafka, topic, recs, commit=True)
        assert await settled(kafka.address, topic)
        return topic

    async def _transaction(kafka: Kafka, topic: str, recs: list[Rec], *, commit: bool) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=f"{topic}-{commit}")
        await producer.start()
        await producer.begin_transaction()
        sent = [
            await producer.send(
                topic, rec.value, rec.key, rec.partition, headers=list(rec.headers), timestamp_ms=rec.at_us // 1000
            )
            for rec in recs
        ]
        await asyncio.gather(*sent)  # an abort takes back what is not sent yet
        await (producer.commit_transaction() if commit else producer.abort_transaction())
        await producer.stop()

    topic = asyncio.run(work())

    every = verify_run(spark, run, question(kafka, topic)).verdict
    unasked = _run("replay", "verify", str(run.path), "--bootstrap", kafka.address, "--topic", topic, "--no-series",
                   "--settle", "0", "--duplicates", "fail", "--out", str(tmp_path))  # fmt: skip
    committed = layout.read(RunDirectory(tmp_path).verdict, TopicVerdict)

    assert (unasked.exit_code, committed.isolation) == (0, COMMITTED)
    assert (committed.verdict, wrong(committed)) == (PASS, {})
    assert sum(end - first for first, end in committed.offsets.values()) > COUNT
    assert wrong(every) == {"duplicates": 20}


@pytest.mark.guarantee("what-a-verdict-says")
@pytest.mark.parametrize("kind", cases("topic", more=["file"]))
def test_dead_letters_explain_gaps(
    spark: SparkSession, kafka: Kafka, run: RunDirectory, tmp_path: Path, kind: str
) -> None:
    """A gap that dead letters fill from end to end is explained, over the turn of a ring, and another one is not."""
    recs = good(TRACE)
    of_shard = [rec for rec in recs if rec.header("remora-shard") == recs[1].header("remora-shard")]
    parked, gone = of_shard[8:12], of_shard[20:22]
    topic = filled(kafka, [rec for rec in recs if rec not in parked + gone])
    letters = [*parked, gone[0]]
    if kind == "topic":
        name = filled(kafka, [replace(rec, value=b"raw", key=b"k") for rec in letters])
    else:
        name = str(tmp_path / "letters [a-z]{1,2}*.json")
        Path(name).write_text(json.dumps([_letter(rec) for rec in letters], indent=2))

    alone = verify_topic(spark, question(kafka, topic, letters=name)).verdict

    assert (alone.verdict, wrong(alone)) == (FAIL, {"chain_gaps": 2, "chain_gaps_explained": 1})
    assert [each.detail for each in alone.examples["chain_gaps"]] == [
        "nothing leads to it", "dead letters fill the gap before it",
    ]  # fmt: skip
    assert alone.examples["chain_gaps"][0].position == f"abc:7:{position(22)}"


def _letter(rec: Rec) -> dict[str, Any]:
    """As `remora dlq list --json` prints it."""
    incarnation, _, place = rec.header("remora-pos").decode().rpartition(":")
    return {
        "queue": rec.header("remora-shard").decode(),
        "incarnation": incarnation,
        "position": place,
        "next_position": rec.header("remora-next").decode().rpartition(":")[2],
        "cause": "expired",
        "reason": "too old",
        "attempts": 3,
        "raw": "AAAA",
    }


@pytest.mark.guarantee("what-a-verdict-says")
def test_the_chain_goes_over_a_seam(spark: SparkSession, kafka: Kafka) -> None:
    """The first record of a shard says where the shards before it ended: what is missing at their ends is a gap, also
    where nothing follows it in its own shard; a shard that is whole, and one that nothing was read of, are none."""
    recs = good(TRACE)
    before = [rec for rec in recs if rec.header("remora-shard") == recs[1].header("remora-shard")]
    first = next(rec for rec in recs if rec not in before)
    ends = b"%b=%b,t.9=f00:0/5" % (before[-1].header("remora-shard"), before[-1].header("remora-next"))
    told = [replace(rec, headers=(*rec.headers, ("remora-after", ends))) if rec is first else rec for rec in recs]

    whole = verify_topic(spark, question(kafka, filled(kafka, told))).verdict
    cut = verify_topic(spark, question(kafka, filled(kafka, [rec for rec in told if rec is not before[-1]]))).verdict

    assert (whole.verdict, wrong(whole)) == (PASS, {})
    assert (cut.verdict, wrong(cut)) == (FAIL, {"chain_gaps": 1})


def _resharded(recs: list[Rec]) -> list[Rec]:
    """The same where the topic gets as many other shards after half of the records."""
    found, ends, begun = [], dict[bytes, bytes](), set[bytes]()
    for rec in recs:
        shard = rec.header("remora-shard")
        if rec.seq < COUNT // 2:
            ends[shard] = b"%b=%b" % (shard, rec.header("remora-next"))
        else:
            after = () if shard in begun else (("remora-after", ends[shard]),)
            begun.add(shard)
            later = rec.with_header("remora-shard", shard.replace(b"photos", b"photos@1"))
            rec = replace(later, headers=(*later.headers, *after))
        found.append(rec)
    return found


@pytest.mark.guarantee("what-a-verdict-says")
@pytest.mark.parametrize("is_early", cases(True, more=[False]))
def test_a_later_generation_before_the_end_of_an_earlier_one(
    spark: SparkSession, kafka: Kafka, run: RunDirectory, *, is_early: bool
) -> None:
    """A record of a key that comes before the key's last one of the generation before is an inversion, with the journal
    of a run and without; one behind it is none."""
    told = _resharded(good(TRACE))
    topic = filled(kafka, _swap(HOT[14], HOT[15])(told) if is_early else told)

    alone = verify_topic(spark, question(kafka, topic)).verdict
    of_run = verify_run(spark, run, question(kafka, topic)).verdict

    inverted = {"inversions": 1, "keys_inverted": 1, "max_depth": 1} if is_early else {}
    assert wrong(alone) == inverted | ({"sequencer_inversions": 1} if is_early else {})
    assert wrong(of_run) == inverted


ENDS_SHOWN = {
    "cut, and shown": (FAIL, {"chain_gaps": 1}),
    "whole, and shown": (PASS, {}),
    "cut, and not shown": (PASS, {"ends_untold": 1}),
}


@pytest.mark.guarantee("what-a-verdict-says")
@pytest.mark.parametrize("name", cases("cut, and shown", more=["whole, and shown", "cut, and not shown"]))
def test_ends_that_only_the_topic_shows(spark: SparkSession, kafka: Kafka, tmp_path: Path, name: str) -> None:
    """Where a shard's first record names a generation in place of ends, what is missing at an end is a gap by what
    `topic show --json` wrote; without that the verdict says that it cannot be seen."""
    recs = good(TRACE)
    before = [rec for rec in recs if rec.header("remora-shard") == b"photos.1"]
    later = {id(rec): rec.with_header("remora-shard", b"photos@1.1") for rec in recs if rec not in before}
    told = [later.get(id(rec), rec) for rec in recs]
    first = next(place for place, rec in enumerate(told) if rec not in before)
    told[first] = replace(told[first], headers=(*told[first].headers, ("remora-after", b"generation=0")))
    incarnation, _, end = before[-1].header("remora-next").decode().rpartition(":")
    queues = [("photos.1", incarnation, end), ("photos", "", "0/0")]
    ended = [dict(zip(("queue", "incarnation", "end"), each, strict=True)) for each in queues]
    file = tmp_path / "photos.json"
    file.write_text(json.dumps({"layouts": [{"generation": 1, "shards": 3}], "ended": ended}))
    topic = filled(kafka, [rec for rec in told if rec is not before[-1] or name.startswith("whole")])
    is_shown = not name.endswith("not shown")

    found = verify_topic(spark, question(kafka, topic, ended=file if is_shown else None)).verdict

    assert (found.verdict, wrong(found)) == ENDS_SHOWN[name]
    assert is_shown or any("--ended" in each for each in found.caveats)


# --------------------------------------------------------------------------------------------- a topic alone


ALONE: dict[str, tuple[Callable[[list[Rec]], list[Rec]], str, dict[str, int]]] = {
    "copies": (lambda recs: _double_much_later(_double(recs))[2:], PASS, {"duplicates": 2}),
    "two of a key swapped, five apart": (
        _swap(MID, HOT[17]),
        FAIL,
        {"inversions": 5, "keys_inverted": 1, "max_depth": 5, "sequencer_inversions": 5},
    ),
    "no positions, two of a key swapped": (
        lambda recs: [_unchained(rec) for rec in _swap(MID, NEXT_HOT)(recs)],
        FAIL,
        {"inversions": 1, "keys_inverted": 1, "max_depth": 1, "unchained": COUNT},
    ),
    "no record tells a position": (lambda recs: [_unchained(rec) for rec in recs], INVALID, {"unchained": COUNT}),
    "a key in a partition that is not its own, a record without a key": (
        lambda recs: _changed(MID, lambda rec: replace(rec, key=None))([_of_another_place(rec) for rec in recs]),
        FAIL,
        {"keys_misplaced": 1, "malformed": 1},
    ),
    "empty": (lambda recs: [], INVALID, {}),
}


def _of_another_place(rec: Rec) -> Rec:
    return _move(rec) if TRACE[rec.seq].key == KEYS[3] else rec


def _unchained(rec: Rec) -> Rec:
    for name in ("remora-shard", "remora-pos", "remora-next"):
        rec = rec.with_header(name, None)
    return rec


@pytest.mark.guarantee("what-a-verdict-says")
@pytest.mark.parametrize(
    "name",
    cases(
        "copies",
        "two of a key swapped, five apart",
        more=[
            "no positions, two of a key swapped",
            "no record tells a position",
            "a key in a partition that is not its own, a record without a key",
            "empty",
        ],
    ),
)
def test_a_topic_alone(spark: SparkSession, kafka: Kafka, name: str) -> None:
    """Without a journal the chain, the order of each key and copies are judged, from the first record on."""
    mutate, verdict, expected = ALONE[name]

    found = verify_topic(spark, question(kafka, filled(kafka, mutate(good(TRACE))), draws=name == "copies"))

    assert (found.verdict.verdict, wrong(found.verdict)) == (verdict, expected)
    assert "lost" not in found.verdict.counts
    if found.series is not None:
        assert set(found.series.tail) == {"age"}
        assert sum(each.in_log for each in found.series.intervals) == COUNT - 2
        assert {(mark.kind, mark.depth) for mark in found.series.marks} == {("duplicate", 0)}


# -------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_verified_is_refused_by_name(
    spark: SparkSession, kafka: Kafka, run: RunDirectory, tmp_path: Path
) -> None:
    """A topic that is not there, offsets that are gone, another trace, and journals that are none are named, in one
    line, and nothing is written."""
    topic = filled(kafka, good(TRACE)[:2])
    options = ["--bootstrap", kafka.address, "--out", str(tmp_path / "out"), "--settle", "0", "--wait", "0"]
    prepared = prepare(tmp_path / "prepared", TRACE)
    broken = replayed(tmp_path / "broken", prepared, TRACE, Journalled())
    journal = broken.journal / "part=0" / "attempt=0.jsonl"
    journal.write_bytes(b"{]\n" + journal.read_bytes())
    other = replayed(tmp_path / "other", prepared, TRACE, Journalled())
    trace = layout.read(prepared.trace, layout.Trace)
    letters = tmp_path / "letters.json"
    letters.write_text('[{"queue": "q"}]')

    def refused(run: RunDirectory, *more: str) -> str:
        with pytest.raises(Exception) as caught:
            _run("replay", "verify", str(run.path), *options, *more)
        assert isinstance(caught.value, ReplayRefused)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "none-such" in refused(run, "--topic", "none-such")
    assert f"{journal}: has a line" in refused(broken, "--topic", topic)
    assert str(letters) in refused(run, "--topic", topic, "--dead-letters", str(letters))
    gone = tmp_path / "gone.json"
    verdict = verify_topic(spark, question(kafka, topic)).verdict
    layout.write(gone, msgspec.structs.replace(verdict, offsets={"0": (0, 1000)}))
    assert "partition 0" in refused(run, "--topic", topic, "--offsets", str(gone))
    layout.write(prepared.trace, msgspec.structs.replace(trace, name="another"))
    assert str(prepared.path) in refused(other, "--topic", topic)
    assert not (tmp_path / "out").exists()
