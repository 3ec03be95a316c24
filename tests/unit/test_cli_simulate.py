"""`remora simulate`: scripts in, answers out, and what is no script."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from remora.cli import group
from remora.model.exits import Exit
from remora_pipeline.cli.simulate import simulate
from support.scripts import CASES, shaping

DOCS = Path(__file__).parents[2] / "docs"
METER = {"guaranteed": 1_000_000, "burst": 10_000}
SCRIPT: dict[str, Any] = {
    "version": 1,
    "model": "shaping",
    "config": {"groups": {"host": {"meters": {"client_low": METER}}}},
    "steps": [{"op": "send", "id": "a", "bucket": "client_low", "bytes": 4_000}, {"op": "tick"}],
}


def run(document: object) -> Result:
    """What the command makes of a document on standard input; of text as it stands."""
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    return CliRunner().invoke(group, ["simulate", "-", "--json"], input=text, prog_name="remora")


def with_step(**step: Any) -> dict[str, Any]:
    """The script with one step."""
    return {**SCRIPT, "steps": [step]}


def with_group(**options: Any) -> dict[str, Any]:
    """The script with one group."""
    return {**SCRIPT, "config": {"groups": {"host": options}}}


def with_config(**config: Any) -> dict[str, Any]:
    """The script with this config beside its groups."""
    return {**SCRIPT, "config": {**SCRIPT["config"], **config}}


def test_a_table_names_what_the_script_names() -> None:
    """Each row has the words of a script, and none of the program's own; a script without steps is a sentence."""
    table = CliRunner().invoke(group, ["simulate", "-"], input=json.dumps(SCRIPT)).stdout.splitlines()

    assert table[-1].split() == ["2", "tick", "levels.host[0].client_low", "6000"]
    empty = CliRunner().invoke(group, ["simulate", "-"], input=json.dumps({**SCRIPT, "steps": []})).stdout
    assert empty == "shaping:\nthe script has no steps\n"


def test_a_file_is_answered_as_standard_input(tmp_path: Path) -> None:
    """A script in a file and on standard input gives the same bytes, again and again."""
    file = tmp_path / "script.json"
    file.write_text(json.dumps(SCRIPT))

    results = [CliRunner().invoke(group, ["simulate", str(file), "--json"]), run(SCRIPT), run(SCRIPT)]

    assert len({each.stdout for each in results}) == 1
    assert [each.exit_code for each in results] == [0, 0, 0]
    answer = json.loads(results[0].stdout)
    assert answer["results"][1]["released"] == [{"id": "a", "member": 0, "granted": 4_000}]


def test_a_person_gets_a_table_of_what_is_not_0() -> None:
    """Each figure has a row with its step, and a config that is refused is a sentence."""
    refused = next(each["input"] for each in CASES if each["name"] == "S5-08")

    done = CliRunner().invoke(group, ["simulate", "-"], input=json.dumps([SCRIPT, refused]), prog_name="remora")

    assert done.exit_code == Exit.CONFIG
    lines = [re.sub(" +", " ", each) for each in done.stdout.splitlines()]
    assert lines[:4] == [
        "shaping:",
        "STEP OP RESULT VALUE",
        "1 send passed no",
        "1 send waits_in host",
    ]
    assert "2 tick released[0].granted 4000" in lines
    assert not [each for each in lines if each.endswith(" 0")]
    assert lines[-1] == "shaping: refused: host.meters.max.guaranteed: must not be negative"


def test_a_list_is_answered_by_a_list() -> None:
    """A file with several scripts gives the answer of each, in order; one that is refused is said by the exit code."""
    refused = next(each["input"] for each in CASES if each["name"] == "S5-08")

    both = run([SCRIPT, refused])

    assert both.exit_code == Exit.CONFIG
    first, second = json.loads(both.stdout)
    assert first == json.loads(run(SCRIPT).stdout)
    assert second == {
        "version": 1,
        "model": "shaping",
        "refused": "host.meters.max.guaranteed: must not be negative",
    }
    assert (run([]).stdout, run([]).exit_code) == ("[]\n", 0)


BAD: list[tuple[object, str]] = [
    ("", "is no JSON"),
    ("{", "is no JSON"),
    (b"\xff", "is no JSON"),
    ("[" * 100_000, "is no JSON"),
    ('{"version": NaN}', "is no JSON"),
    ("9" * 5_000, "is no JSON: a number has 5000 digits"),
    (5, "must be an object"),
    ({}, "version: is missing"),
    ({**SCRIPT, "version": 2}, "version: must be 1"),
    ({**SCRIPT, "version": True}, "version: must be a whole number"),
    ({**SCRIPT, "model": "nope"}, "model: nope is unknown"),
    ({**SCRIPT, "steps": {}}, "steps: must be a list"),
    ({**SCRIPT, "extra": 1}, "extra: is unknown"),
    ({**SCRIPT, "config": {}}, "config.groups: is missing"),
    ({**SCRIPT, "config": []}, "config: must be an object"),
    ([SCRIPT, {**SCRIPT, "steps": [3]}], "[1].steps[0]: must be an object"),
    (with_group(meters=3), "config.groups.host.meters: must be an object"),
    (with_group(enabled=1), "config.groups.host.enabled: must be true or false"),
    (with_group(meters={"max": {"guaranteed": True, "burst": 1}}), "config.groups.host.meters.max.guaranteed: must be"),
    (with_group(meters={"max": {"guaranteed": 1.5, "burst": 1}}), "config.groups.host.meters.max.guaranteed: must be"),
    (with_group(nope=1), "config.groups.host.nope: is unknown"),
    (with_config(order=3), "config.order: must be a list"),
    (with_config(order=[[True]]), "config.order[0][0]: must be a whole number"),
    (with_step(), "steps[0].op: is missing"),
    (with_step(op="nope"), "steps[0].op: nope is unknown"),
    (with_step(op=["tick"]), "steps[0].op: must be a string"),
    (with_step(op="tick", times="2"), "steps[0].times: must be a whole number"),
    (with_step(op="tick", nope=1), "steps[0].nope: is unknown"),
    (
        with_step(op="tick", spend=[{"bucket": "max", "bytes": "al"}]),
        'steps[0].spend[0].bytes: must be a whole number, or "all"',
    ),
    (with_step(op="send", id="a", bucket="max"), "steps[0].bytes: is missing"),
    (with_step(op="send", id=1, bucket="max", bytes=1), "steps[0].id: must be a string"),
    (with_step(op="send", id="a", bucket="max", bytes=10**101), "steps[0].bytes: is too large"),
    ({**SCRIPT, "\n": 1}, '"\\n": is unknown'),
    ({**SCRIPT, "model": "two\nlines"}, 'model: "two\\nlines" is unknown'),
    (with_step(op=""), 'steps[0].op: "" is unknown'),
    (with_step(**{"op": "tick", "": 1}), 'steps[0]."": is unknown'),
    (with_step(**{"op": "tick", " times": 1}), 'steps[0]." times": is unknown'),
    ('{"version": 1, "version": 1, "model": "bucket", "steps": []}', "version: is there twice"),
    (
        '{"version": 1, "model": "bucket", "steps": [{"op": "fill", "\\n": 1, "\\n": 2}]}',
        'steps[0]."\\n": is there twice',
    ),
    (
        '{"version": 1, "model": "bucket", "steps": [{"op": "fill", "credit": 1, "credit": 2}]}',
        "steps[0].credit: is there",
    ),
]


@pytest.mark.parametrize(("document", "why"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_no_script(document: object, why: str) -> None:
    """A document that is no script ends with code 2 and one line that says where and why, and no answer."""
    result = run(document)

    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert result.stderr.startswith(f"remora: {why}")
    assert result.stderr.count("\n") == 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    (with_config(tick_us=999), "tick_us: "),
    (with_config(tick_us=1_000_001), "tick_us: "),
    (with_config(members=0), "members: "),
    (with_config(members=10**9), "members: "),
    (with_config(order="random"), "order: "),
    (with_config(order=[]), "order: "),
    (with_config(members=2, order=[[0, 1], [1]]), "order[1]: "),
    (with_group(meters={"max": {"burst": 1}}), "host.meters.max.guaranteed: is missing"),
    (with_group(meters={"max": {"guaranteed": 1, "burst": 0}}), "host.meters.max.burst: "),
    (with_group(meters={"max": {"guaranteed": 1, "burst": 1, "max": -1}}), "host.meters.max.max: "),
    (with_group(meters={"max": {"guaranteed": 1, "burst": 1, "rate": 1}}), "host.meters.max.rate: "),
    ({**SCRIPT, "model": "bucket", "config": {"capacity": -1}, "steps": []}, "capacity: "),
    ({**SCRIPT, "model": "select", "config": {"default_class": "urgent"}, "steps": []}, "default_class: "),
    ({**SCRIPT, "model": "select", "config": {"relief_at": 101}, "steps": []}, "relief_at: "),
    (
        {**SCRIPT, "model": "select", "config": {"scopes": [{"name": "Up", "of": "host"}]}, "steps": []},
        "scopes.Up: ",
    ),
    (
        {**SCRIPT, "model": "select", "config": {"scopes": [{"name": "up", "of": "rack"}]}, "steps": []},
        "scopes.up.of: ",
    ),
    (
        {
            **SCRIPT,
            "model": "select",
            "config": {"principals": [{"name": "p", "of": "destination", "match": ["a/b"], "max_class": "tail"}]},
            "steps": [],
        },
        "principals.p.match: ",
    ),
    (
        {
            **SCRIPT,
            "model": "select",
            "config": {"principals": [{"name": "p", "of": "host", "match": ["a"], "max_class": "tail"}]},
            "steps": [],
        },
        "principals.p.of: ",
    ),
    (
        {**SCRIPT, "model": "rate", "config": {"limits": [{"of": "token", "name": "g", "bytes": 5}]}, "steps": []},
        "limits.g.burst: is missing",
    ),
    (
        {**SCRIPT, "model": "rate", "config": {"limits": [{"of": "user", "name": "g"}]}, "steps": []},
        "limits.g.of: ",
    ),
    (
        {**SCRIPT, "model": "rate", "config": {"limits": [{"of": "token", "name": "g"}] * 2}, "steps": []},
        "limits.token:g: ",
    ),
]


@pytest.mark.parametrize(("document", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_a_config_that_is_refused(document: dict[str, Any], why: str) -> None:
    """A config that the policy refuses is answered with the option's path, and ends with code 78."""
    result = run(document)

    assert result.exit_code == Exit.CONFIG
    answer = json.loads(result.stdout)
    assert list(answer) == ["version", "model", "refused"]
    assert answer["refused"].startswith(why)


def test_a_refused_step_changes_nothing() -> None:
    """Steps with values that no policy takes are refused in their place, with the member, and the run goes on."""
    bad: list[dict[str, Any]] = [
        {"op": "send", "id": "b", "bucket": "priority_queue", "bytes": 1},
        {"op": "send", "id": "b", "bucket": "max", "bytes": -1},
        {"op": "send", "id": "b", "bucket": "max", "bytes": 1, "member": 1},
        {"op": "send", "id": "b", "bucket": "max", "bytes": 1, "path": ["nope"]},
        {"op": "send", "id": "b", "bucket": "max", "bytes": 1, "path": ["host", "host"]},
        {"op": "send", "id": "a", "bucket": "max", "bytes": 1},
        {"op": "tick", "times": -1},
        {"op": "tick", "spend": [{"bucket": "max", "bytes": 1}, {"bucket": "foo", "bytes": 1}]},
        {"op": "tick", "spend": [{"bucket": "max", "bytes": -1}]},
        {"op": "settle", "bucket": "max", "granted": -1, "actual": 1},
        {"op": "level", "bucket": "max", "level": 1, "group": "nope"},
        {"op": "configure", "meters": {"foo": METER}, "enabled": False},
        {"op": "members", "members": 0},
        {"op": "pause", "us": -1},
        {"op": "window", "unacked": -1},
    ]
    show: dict[str, Any] = {"op": "show"}

    results = shaping(SCRIPT["steps"][0], show, *bad, show, **SCRIPT["config"])

    assert results[-1] == results[1]
    assert [list(each) for each in results[2:-1]] == [["refused"]] * len(bad)
    starts = [each["refused"].partition(":")[0] for each in results[2:-1]]
    assert starts == [
        *("bucket", "bytes", "member", "path[0]", "path.host", "id", "times", "spend[1].bucket", "spend[0].bytes"),
        *("granted", "group", "host.meters.foo", "members", "us", "unacked"),
    ]


ENDLESS: list[tuple[str, dict[str, Any], str]] = [
    ("quarantine", {"op": "clients", "number": 1, "ratio": 0.5, "windows": 10**9, "seed": 1}, "windows: must be from"),
    ("quarantine", {"op": "clients", "number": 10**6, "ratio": 0.5, "windows": 11, "seed": 1}, "windows: must be from"),
    ("quarantine", {"op": "clients", "number": 10**9, "ratio": 0.5, "windows": 0, "seed": 1}, "number: must be from"),
]


@pytest.mark.parametrize(("model", "step", "why"), ENDLESS, ids=[f"{model} {why}" for model, _, why in ENDLESS])
def test_a_step_that_would_not_end_is_refused(model: str, step: dict[str, Any], why: str) -> None:
    """A step that would take hours is refused with its member, at once."""
    result = run({"version": 1, "model": model, "steps": [step]})

    assert result.exit_code == 0
    assert json.loads(result.stdout)["results"][0]["refused"].startswith(why)


def test_rates_may_be_fractions() -> None:
    """Peaks and bounds of the advice on shards are plain numbers."""
    peaks = [{"events": 0.3, "bytes": 3.75}]
    steps = [{"op": "advise", "shards": 5, "peaks": peaks, "now": 0.5, "peak": 1}]

    advised = json.loads(run({"version": 1, "model": "advice", "config": {"bytes": 1.5}, "steps": steps}).stdout)

    assert advised["results"] == [{"shards": 25, "because": "bytes", "off_peak": True}]


def test_fewer_shards_by_days() -> None:
    """Where the peaks hold for a week fewer are advised, never less than `fewest` or than single requests take."""
    step = {"op": "advise", "shards": 64, "peaks": [{"events": 50, "bytes": 0}], "now": 0, "peak": 1}
    steps = [{**step, "days": days} for days in (6, 7)]

    def advised(**config: float) -> list[tuple[int, str]]:
        found = json.loads(run({"version": 1, "model": "advice", "config": config, "steps": steps}).stdout)
        return [(each["shards"], each["because"]) for each in found["results"]]

    assert advised() == [(64, ""), (1, "quiet")]
    assert advised(fewest=11) == [(64, ""), (11, "quiet")]
    assert advised(commit_latency=0.001) == [(64, ""), (26, "quiet")]


def test_shuffled_orders_depend_on_the_seed_alone() -> None:
    """The same seed visits the members in the same orders, and another one in others."""
    spend = [{"member": member, "bucket": "max", "bytes": "all"} for member in (0, 1)]
    steps = [{"op": "tick", "times": 7, "spend": spend}] * 5
    config = {
        "members": 5,
        "order": "shuffle",
        "groups": {"host": {"meters": {"max": {"guaranteed": 10_000, "burst": 500}}}},
    }

    first, again, other = (shaping(*steps, **config, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_pause_is_made_up_for() -> None:
    """Late ticks are made up one by one, a part of a tick is kept, and a long pause ends when all buckets are full."""
    results = shaping(
        {"op": "pause", "us": 15_000},
        {"op": "pause", "us": 5_000},
        {"op": "pause", "us": 10**15},
        groups={"host": {"meters": {"client_low": {"guaranteed": 10_000, "burst": 10_000}}}},
    )

    assert [each["levels"]["host"][0]["client_low"] for each in results] == [100, 200, 10_000]


def test_a_tick_ends_what_a_pause_took_of_its_time() -> None:
    """Half a tick of standing still before a tick and half a one after it are no tick more."""
    results = shaping({"op": "pause", "us": 5_000}, {"op": "tick"}, {"op": "pause", "us": 5_000}, **SCRIPT["config"])

    assert [each["ticks"] for each in results] == [0, 1, 1]


PAUSED: list[dict[str, Any]] = [
    {"meters": {"client_low": {"guaranteed": 1_003, "burst": 77, "max": 1_500}, "idle": METER}},
    {"meters": {"max": METER, "priority_queue": {"guaranteed": 71, "burst": 900}}},
    {"meters": {"max": METER, "idle": {"guaranteed": 0, "burst": 40}}},
]


@pytest.mark.parametrize("group", PAUSED, ids=["full", "spare", "never full"])
@pytest.mark.parametrize("order", ["rotate", [[1, 0], [0, 1], [1, 0]]], ids=["rotate", "listed"])
def test_a_long_pause_is_as_its_ticks(group: dict[str, Any], order: object) -> None:
    """After a pause of a minute, in which the buckets become full, all goes on as after a minute's ticks."""
    config = {"members": 2, "order": order, "groups": {"host": group}}
    spend = [{"member": 1, "bucket": bucket, "bytes": "all"} for bucket in ("max", "client_low", "idle")]
    after: list[dict[str, Any]] = [{"op": "show"}, {"op": "tick", "spend": spend}, {"op": "tick"}, {"op": "show"}]

    paused = shaping({"op": "pause", "us": 60_000_000}, *after, **config)
    ticked = shaping({"op": "tick", "times": 6_000}, *after, **config)

    assert paused[1:] == ticked[1:]


def test_a_pause_cuts_levels_to_a_smaller_burst() -> None:
    """A pause is made up for with a full bucket, too: the first tick cuts it to the burst that it has now."""
    smaller = {"client_low": {"guaranteed": 1_000, "burst": 30}}
    results = shaping(
        {"op": "tick"},
        {"op": "configure", "meters": smaller},
        {"op": "pause", "us": 10_000},
        **SCRIPT["config"],
    )

    assert results[-1]["levels"]["host"][0]["client_low"] == 30


def test_the_same_number_of_members_carries_remainders_on() -> None:
    """Workers that neither come nor go change nothing; remainders begin anew with another number of them."""
    config = {"groups": {"host": {"meters": {"client_low": {"guaranteed": 150, "burst": 100}}}}}

    def level(members: int) -> int:
        results = shaping({"op": "tick"}, {"op": "members", "members": members}, {"op": "tick"}, **config)
        return sum(each["client_low"] for each in results[-1]["levels"]["host"])

    assert (level(1), level(2)) == (3, 2)


def test_a_level_of_a_disabled_group_is_gone_when_it_is_enabled() -> None:
    """A script may set any level; a group that is enabled begins with nothing all the same."""
    results = shaping(
        {"op": "configure", "enabled": False},
        {"op": "level", "bucket": "max", "level": 7},
        {"op": "tick", "spend": [{"bucket": "max", "bytes": "all"}]},
        {"op": "configure", "enabled": True},
        **SCRIPT["config"],
    )

    assert [each["levels"]["host"][0]["max"] for each in results] == [0, 7, 7, 0]
    assert results[2]["spent"]["host"]["max"] == 0


def test_only_credit_that_comes_back_releases() -> None:
    """A level that a script sets releases nobody, nor does credit that is taken by force; what comes back does."""
    wait = [{"op": "send", "id": name, "bucket": "max", "bytes": 9} for name in "ab"]
    settle = {"op": "settle", "bucket": "max", "granted": 5}

    results = shaping(
        *wait,
        {"op": "level", "bucket": "max", "level": 9},
        {**settle, "actual": 6},
        {"op": "cancel", "id": "nobody"},
        {**settle, "actual": 5},
        {**settle, "actual": 4},
        **SCRIPT["config"],
    )

    assert [[each["id"] for each in result["released"]] for result in results[3:]] == [[], [], [], ["a"]]


def test_credit_that_comes_back_after_a_scope_was_enabled_is_held() -> None:
    """A group that is enabled again begins at 0, and with the capacities that it had."""
    settle = {"op": "settle", "bucket": "client_low", "granted": 50, "actual": 0}
    results = shaping(
        {"op": "tick"},
        {"op": "configure", "enabled": False},
        settle,
        {"op": "configure", "enabled": True},
        settle,
        **SCRIPT["config"],
    )

    assert [each["levels"]["host"][0]["client_low"] for each in results] == [10_000, 0, 0, 0, 50]


def test_a_queue_of_which_nothing_is_known_is_not_relieved() -> None:
    """null is unknown: however early relief begins, a queue is relieved for what is known of it alone."""
    document = {
        "version": 1,
        "model": "select",
        "config": {"relief_at": 0},
        "steps": [{"op": "select", "topic": "t", "state": "tail", "full": full} for full in (None, 0)],
    }

    assert [each["class"] for each in json.loads(run(document).stdout)["results"]] == ["tail", "relief"]


def test_members_come_with_nothing_and_go_with_what_they_have() -> None:
    """A worker that comes has no credit, and the credit of one that goes is gone with what waited in it."""
    results = shaping(
        {"op": "tick", "times": 3},
        {"op": "members", "members": 2},
        {"op": "send", "id": "b", "bucket": "client_low", "bytes": 10, "member": 1},
        {"op": "members", "members": 1},
        {"op": "cancel", "id": "b"},
        **SCRIPT["config"],
    )

    assert [[each["client_low"] for each in result["levels"]["host"]] for result in results[:2]] == [
        [10_000],
        [10_000, 0],
    ]
    assert results[2]["waits_in"] == "host"
    assert results[4]["ok"] is False


def test_names_that_are_no_text_are_answered() -> None:
    """A name with half a character is taken as it is, and stands so in the answer."""
    result = run('{"version": 1, "model": "split", "steps": [{"op": "split", "limit": 1, "wants": {"\\ud800": 1}}]}')

    assert result.exit_code == 0
    assert json.loads(result.stdout)["results"] == [{"shares": {"\ud800": 1}}]


def test_help_teaches_with_an_example_that_runs() -> None:
    """The example of the help is a script whose answer is what it is said to be."""
    example = (simulate.help or "").partition("echo '")[2].partition("'")[0]

    result = run(example)

    assert result.exit_code == 0
    assert json.loads(result.stdout)["results"][1]["released"] == [{"id": "a", "member": 0, "granted": 4_000}]


@pytest.mark.parametrize("document", ["shaping.md", "load.md"])
def test_examples_of_the_documents_run(document: str) -> None:
    """Each script of the documents runs, and no step of it is refused."""
    text = (DOCS / document).read_text()
    blocks = re.findall(r"(?ms)^```json\n(.*?)^```", text)

    answers = [run(each) for each in blocks]

    assert blocks
    assert [each.exit_code for each in answers] == [0] * len(blocks)
    assert not any("refused" in step for each in answers for step in json.loads(each.stdout)["results"])
