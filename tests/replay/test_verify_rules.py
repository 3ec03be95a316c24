"""What follows from counts, and what is computed without Spark."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from remora.cli import group
from remora_pipeline.replay import properties
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.results import FAIL, INVALID, PASS, Percentiles
from remora_pipeline.replay.verify.caveats import caveats
from remora_pipeline.replay.verify.distributions import POINTS, Class, rank, tail
from remora_pipeline.replay.verify.judgement import VerdictRules, judge
from remora_pipeline.replay.verify.seams import ShownEnd, ShownLayout, ShownTopic, families, lineages
from remora_pipeline.replay.verify.series import Axis

GOOD = dict.fromkeys(
    (
        "lost", "altered", "foreign", "malformed", "ghosts", "inversions", "keys_in_several_partitions",
        "keys_misplaced", "final_state_wrong", "duplicates", "resent", "chain_gaps", "chain_gaps_explained",
        "out_of_window", "unchained",
    ),
    0,
) | {"in_trace": 9, "offered": 9, "acked": 9, "in_kafka": 9}  # fmt: skip
RULES = VerdictRules("count", "fail", 5_000, 0.1)


def late(p99_us: int) -> Percentiles:
    """A lateness."""
    return Percentiles("", 9, 0, 0, p99_us, p99_us, p99_us)


@pytest.mark.parametrize(
    ("changes", "rules", "verdict"),
    [
        ({}, RULES, PASS),
        *[({name: 1}, RULES, FAIL) for name in ("lost", "altered", "foreign", "malformed", "ghosts", "inversions")],
        *[({name: 1}, RULES, FAIL) for name in ("keys_in_several_partitions", "final_state_wrong", "chain_gaps")],
        ({"keys_misplaced": 1}, RULES, FAIL),
        ({"of_other_topics": 1}, RULES, FAIL),
        ({"out_of_window": 1}, RULES, INVALID),
        ({"chain_gaps": 3, "chain_gaps_explained": 3}, RULES, PASS),
        ({"chain_gaps": 3, "chain_gaps_explained": 2}, RULES, FAIL),
        ({"duplicates": 1}, RULES, PASS),
        ({"duplicates": 1}, VerdictRules("fail", "fail", 5_000, 0.1), FAIL),
        ({"duplicates": 1, "resent": 1}, VerdictRules("fail", "fail", 5_000, 0.1), PASS),
        ({"foreign": 1}, VerdictRules("count", "count", 5_000, 0.1), PASS),
        ({"offered": 8}, RULES, INVALID),
        ({"acked": 0}, RULES, INVALID),
        ({"lost": 1, "offered": 8}, RULES, FAIL),
    ],
)
def test_what_a_count_leads_to(changes: dict[str, int], rules: VerdictRules, verdict: str) -> None:
    """Everything that is wrong fails, what is unproven is invalid, and the first outweighs the second."""
    found = judge(GOOD | changes, None, 1_000, rules)

    assert found.verdict == verdict
    assert bool(found.reasons) == (verdict != PASS)


def test_reasons_agree_with_their_counts() -> None:
    """One is in the singular with all that belongs to it, and the same sentence has the plural of two."""
    counts = GOOD | {"out_of_window": 0, "in_trace": 0, "offered": 0}
    wrong = ("lost", "ghosts", "inversions", "final_state_wrong", "chain_gaps")

    one, two = (judge(counts | dict.fromkeys(wrong, n), None, 0.0, RULES).reasons for n in (1, 2))

    assert one == (
        "1 event was acknowledged and is not in Kafka",
        "1 event is in Kafka that was refused or never sent",
        "1 record comes behind later ones of its key",
        "1 key does not end with its last acknowledged event",
        "1 gap in the chain of positions has no dead letters that explain it",
    )
    assert two[0] == "2 events were acknowledged and are not in Kafka"
    assert two[4] == "2 gaps in the chain of positions have no dead letters that explain them"


@pytest.mark.parametrize(("unchained", "verdict"), [(0, PASS), (8, PASS), (9, INVALID)])
def test_a_topic_without_positions_proves_nothing(unchained: int, verdict: str) -> None:
    """Where no record tells its position, and no journal what was sent, no gap could be seen."""
    counts = {name: n for name, n in GOOD.items() if name not in ("in_trace", "offered", "acked", "out_of_window")}

    assert judge(counts | {"unchained": unchained}, None, 0.0, RULES).verdict == verdict


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        ("ingest", {}, ["opaqueData", "the last record of each queue"]),
        ("s3", {}, ["the gateway writes the records", "the last record of each queue"]),
        (None, {"unchained": 9}, ["without a journal", "9 records tell no position"]),
        (None, {"ends_untold": 2}, ["without a journal", "the last record of each queue", "2 records begin shards"]),
        (None, {"keys_in_several_shards": 1}, ["without a journal", "the last record of each queue", "shards are"]),
        ("ingest", {"keys_in_several_shards": 1}, ["opaqueData", "the last record of each queue"]),
        (None, {"keys_misplaced": 1}, ["without a journal", "the last record of each queue", "keys are looked for"]),
    ],
)
def test_what_nobody_can_know_is_said(target: str | None, changes: dict[str, int], said: list[str]) -> None:
    """A verdict names what was not compared, by where the records come from and what they tell."""
    found = caveats(target, GOOD | changes)

    assert [text[: len(begin)] for text, begin in zip(found, said, strict=True)] == said


def shown(layouts: dict[int, int], *ended: str) -> ShownTopic:
    """What a topic shows with these numbers of shards by generation, and queues that went."""
    ends = [ShownEnd(each, f"of {each}", f"0/{number}") for number, each in enumerate(ended)]
    return ShownTopic(tuple(ShownLayout(*each) for each in layouts.items()), tuple(ends))


@pytest.mark.parametrize(
    ("topic", "child", "parents"),
    [
        (shown({1: 4}, "t", "t.1"), "t@1", {"t"}),
        (shown({1: 4}, "t", "t.1"), "t@1.3", {"t.1"}),
        (shown({1: 3}, "t", "t.1"), "t@1.2", {"t", "t.1"}),
        (shown({1: 1}, "t", "t.1"), "t@1", {"t", "t.1"}),
        (shown({2: 2}, "t@1", "t@1.1", "t@1.2", "t@1.3"), "t@2.1", {"t@1.1", "t@1.3"}),
        (shown({2: 2}, "t", "t@1", "t@1.1"), "t@2.1", {"t@1.1"}),
        (shown({2: 2}, "t", "t@1", "t@1.1"), "t@1.1", {"t"}),
        # One of four queues has gone yet: how many there were is what the layout says.
        (shown({0: 4, 1: 2}, "t.3"), "t@1.1", {"t.3"}),
        (shown({0: 4, 1: 2}, "t.3"), "t@1", set()),
        (shown({0: 2}), "t", set()),
    ],
)
def test_a_generation_stands_for_the_ends_of_a_shards_parents(topic: ShownTopic, child: str, parents: set[str]) -> None:
    """Of what the topic shows those ends are meant that may hold an earlier event of a key of the shard."""
    found = families(topic)

    names = {says: family for name, says, family in found.children if name == child}
    (says,) = names or {"": ""}
    ends = {end for family, end in found.ends if family == names.get(says)}
    assert {end.partition("=")[0] for end in ends} == parents
    assert {end.partition("=")[2] for end in ends} == {
        f"{each.incarnation}:{each.end}" for each in topic.ended if each.queue in parents
    }
    assert not parents or says == f"generation={int(child.partition('@')[2].partition('.')[0]) - 1}"


def test_a_shard_without_an_incarnation_has_no_end() -> None:
    """Nothing was ever delivered from it, so no chain of it can be cut."""
    topic = ShownTopic((ShownLayout(1, 2),), (ShownEnd("t", "", "0/0"), ShownEnd("t.1", "i", "0/9")))

    assert families(topic).ends == [("1/1", "t.1=i:0/9")]


def test_queues_that_took_over_from_each_other_share_a_lineage() -> None:
    """Those of a change, and of the changes before and after it; a topic that was made anew begins another one."""
    first, second, third = [("t", "a"), ("t.1", "b")], [("t@1", "c")], [("t@2", "d"), ("t@2.1", "e")]
    anew = [("t", "x"), ("t@1", "y")]

    found = lineages([(third[0], second), (second[0], first), (third[1], second), (anew[1], anew[:1])])

    assert {name for name, lineage in found.items() if lineage == found["t", "a"]} == {*first, *second, *third}
    assert found["t", "x"] == found["t@1", "y"] != found["t", "a"]


@pytest.mark.parametrize(
    ("p99_us", "gap_us", "verdict"),
    [
        (5_000, 100, PASS),
        (5_001, 100, INVALID),
        (2_001, 20_000, INVALID),
        (2_000, 20_000, PASS),
        (5_001, 1e9, INVALID),
    ],
)
def test_a_generator_may_be_so_late(p99_us: int, gap_us: float, verdict: str) -> None:
    """The limit is 5 ms, or a tenth of the mean gap where that can be kept."""
    assert judge(GOOD, late(p99_us), gap_us, RULES).verdict == verdict


@given(st.integers(1, 10**7), st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]))
def test_the_nearest_rank(samples: int, share: float) -> None:
    """At least the share of all samples is not above the percentile, and one sample fewer would not do."""
    found = rank(samples, share)

    assert 1 <= found <= samples
    assert found >= samples * share - 1e-3
    assert found == 1 or found - 1 < samples * share + 1e-3


@given(st.lists(st.integers(1, 50), min_size=1, max_size=2_000))
def test_a_tail_is_short_and_ends_with_the_largest(counts: list[int]) -> None:
    """It falls to 0 at the largest value, in few points."""
    found = tail([Class(i, count, i * 10) for i, count in enumerate(counts)])

    assert found[-1] == ((len(counts) - 1) * 10, 0.0)
    assert len(found) <= POINTS
    assert list(found) == sorted(found)
    assert [share for _, share in found] == sorted((share for _, share in found), reverse=True)


@given(st.integers(0, 2**53), st.integers(0, 10**12))
def test_intervals_are_round_and_few(origin_us: int, span_us: int) -> None:
    """There are at most 300 of them, and none is shorter than a tenth of a second."""
    axis = Axis.over(origin_us, origin_us + span_us)

    assert axis.interval_us >= 100_000
    assert span_us // axis.interval_us < 300
    assert axis.interval_us / 10 ** int(math.log10(axis.interval_us)) in (1, 2, 5)


def test_settings_of_kafkas_clients(tmp_path: Path) -> None:
    """What its tools read, the client on the driver understands too."""
    path = tmp_path / "client.properties"
    path.write_text(
        "# for tests\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism = SCRAM-SHA-256\nsasl.jaas.config="
        "org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '  username="reader" password="p=q;r";\n'
    )

    found = properties.read(path)

    assert properties.client_options(found) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "reader",
        "sasl_plain_password": "p=q;r",
    }


def test_settings_are_read_as_java_reads_them(tmp_path: Path) -> None:
    """Backslashes are taken out of values, and once more between quotation marks; any separator will do; a comment has
    no second line."""
    path = tmp_path / "client.properties"
    path.write_text(
        "! Windows: C:\\\nsecurity.protocol:SASL_PLAINTEXT \r\nsasl.mechanism PLAIN\nsasl.jaas.config = "
        "org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        r"""  username="m\u00fcller" password="a\\\\b\\"c\\101" ;"""
    )

    found = properties.read(path)

    # Java's parser of login modules gets this, and takes the rest out.
    assert found["sasl.jaas.config"].endswith(r"""username="müller" password="a\\b\"c\101" ;""")
    assert properties.client_options(found) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "müller",
        "sasl_plain_password": r"""a\b"cA""",
    }


def test_settings_of_a_catalog_are_taken_as_they_stand(tmp_path: Path) -> None:
    """A key or token with backslashes, at its end too, is what the file has behind the sign."""
    path = tmp_path / "catalog.config"
    path.write_text("# a comment\\\ns3.secret-access-key = a\\\\b=\\\ntoken=t\n")

    assert properties.pairs(path) == {"s3.secret-access-key": "a\\\\b=\\", "token": "t"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("group.id=x", "line 1: group.id"),
        ("\nsecurity.protocol", "line 2"),
        ("security.protocol=SASL_SSL\nsasl.jaas.config=secret", "sasl.jaas.config"),
        ("security.protocol=SSL\nssl.truststore.location=/none", "ssl.truststore.type"),
        ("security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/none", "ssl.truststore.location"),
    ],
)
def test_settings_that_are_not_understood_are_named(tmp_path: Path, text: str, named: str) -> None:
    """A setting that the driver cannot follow is refused by its name, and no value is told."""
    path = tmp_path / "client.properties"
    path.write_text(text)

    with pytest.raises(ReplayRefused) as caught:
        properties.read(path)

    assert named in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "say which: RUN"),
        (["--topic", "t", "--since", "1h", "--from", "2026-11-21"], "--since and --from"),
        (["--topic", "t", "--from", "2026-11-21T02:00:00Z", "--to", "2026-11-21T01:00:00"], "--to must be later"),
        (["--topic", "t", "--from", "yesterday"], "'yesterday' is not a time"),
        (["--topic", "t", "--settle", "soon"], "soon"),
        (["none-such"], "none-such"),
    ],
)
def test_wrong_usage_is_told(argv: list[str], told: str) -> None:
    """Options that do not go together are refused with exit code 2 before Spark is started."""
    found: Any = CliRunner().invoke(group, ["replay", "verify", "--bootstrap", "127.0.0.1:1", *argv])

    assert found.exit_code == 2
    assert told in found.output


@pytest.mark.parametrize(
    "wrong", [{"options": {}}, {"options": {"from_us": "x", "to_us": None, "edge_us": 1}}, {"offsets": {"x": [0, 5]}}]
)
def test_a_verdict_that_does_not_say_what_it_judged_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """A verdict that somebody has edited, or another program wrote, is named in one line before anything is started."""
    times = {"from_us": None, "to_us": None, "edge_us": 1}
    told: dict[str, Any] = {
        "verdict": PASS, "reasons": [], "topic": "t", "run_id": None, "isolation": "read_committed",
        "timestamp_type": "CreateTime", "offsets": {"0": [0, 5]}, "options": times, "counts": {}, "examples": {},
        "latencies": {}, "caveats": [], "undecided": {},
    }  # fmt: skip
    file = tmp_path / "verdict.json"
    file.write_text(json.dumps(told | wrong))

    done = CliRunner().invoke(group, ["replay", "verify", "--topic", "t", "--bootstrap", "h:1", "--offsets", str(file)])

    assert isinstance(done.exception, ReplayRefused)
    assert f"{file}: does not say what was judged" in str(done.exception)
