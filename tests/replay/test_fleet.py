"""`scripts/bench fleet`: scripts of `remora simulate` side by side in Spark, and fleets under the load of a trace."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from devkit.bench import fleet, inside
from devkit.bench.clusters import BenchError
from remora.simulate.side_by_side import line_of
from replay.prepared import Wanted, prepare

SECOND_US = 1_000_000


def options(**chosen: Any) -> argparse.Namespace:
    """The options of a small run."""
    parser = argparse.ArgumentParser()
    fleet.add_options(parser)
    small = {"hosts": 8, "minutes": 12, "seeds": 2, "load": 0.6, "skew": 1.0, "scenario": ["constant", "hosts"]}
    return argparse.Namespace(**{**vars(parser.parse_args([])), **small, **chosen})


def load(folder: Path, **given: Any) -> dict[str, Any]:
    """A script of one worker with two shards, under the load of a trace."""
    config = {"hosts": 1, "shards": 2, "worker_bytes_per_s": 1_000, "load": {"trace": str(folder), **given}}
    steps = [{"op": "run", "seconds": 5}, {"op": "run", "seconds": 10}, {"op": "run", "seconds": 10}]
    return {"version": 1, "model": "fleet", "config": config, "steps": steps}


def test_the_same_lines_locally_and_in_spark(tmp_path: Path, spark: SparkSession) -> None:
    """Each scenario gives the same line in a task of Spark as in this process, byte for byte and in the same order."""
    here, there = tmp_path / "here", tmp_path / "there"

    local = fleet.run(options(local=True, lines=here))
    apart = fleet.run(options(lines=there))

    assert here.read_bytes() == there.read_bytes()
    assert len(set(here.read_text().splitlines())) == 4
    assert local["turns"] == apart["turns"]
    assert sum(local["turns"][0]["by_load"]) > 0
    assert len(local["turns"][0]["read_bytes_per_s"]) == 12


def test_a_trace_is_the_load(tmp_path: Path) -> None:
    """Each event of a trace is this many bytes in its ten seconds, and after the last one nothing comes."""
    events = [Wanted(SECOND_US * second, "PUT", f"k{second}") for second in (100, 101, 109, 110)]
    prepared = prepare(tmp_path / "trace", events)

    answer = json.loads(line_of(json.dumps(load(prepared.path, event_bytes=1_000))))

    assert [each["usage"]["mean"] for each in answer["results"]] == [30.0, 10.0, 0.0]
    twice = json.loads(line_of(json.dumps(load(prepared.path, event_bytes=1_000, speed=2))))
    assert [each["usage"]["mean"] for each in twice["results"]] == [40.0, 0.0, 0.0]


def test_a_folder_that_is_no_trace(tmp_path: Path) -> None:
    """A folder without a prepared trace is refused with the option's path, and ends the benchmark with one line."""
    answer = json.loads(line_of(json.dumps(load(tmp_path))))

    assert answer["refused"].startswith(f"load.trace: {tmp_path} is no prepared trace")
    with pytest.raises(BenchError, match="is no prepared trace"):
        fleet.run(options(local=True, trace=tmp_path))


def summed(name: str, counts: inside.Seconds, **given: float) -> dict[str, list[float]]:
    """The figures of one model for events of 100 bytes, over these seconds."""
    scripts = inside.of_hosts(counts, int(given.get("hosts", 1)), event_bytes=100, room=given.get("room", 2.0))[name]
    return inside.sums(scripts, [json.loads(line_of(json.dumps(each.document))) for each in scripts], name)


BURST: inside.Seconds = [{0: 4, 1: 4}, {}, {}, {}]
"""Two requests in the first of four seconds: of a mean load of two events, the first of them fills the host."""


def test_a_burst_waits_inside_of_a_host() -> None:
    """The second of two requests waits until the store has taken the first one; what is not acknowledged stops the
    reading; and what the meter does not give at once waits for the next second."""
    assert summed("memory", BURST) == {
        "bytes pending": [400, 400, 0],
        "hosts that pause": [1, 1, 0],
        "requests that wait": [1, 0, 0],
    }
    assert summed("reads", BURST) == {"entries under way": [4, 0, 0, 0], "hosts that list nothing": [1, 1, 0, 0]}
    assert summed("shaping", BURST) == {"bytes that wait": [400, 0, 0, 0]}


def test_hosts_are_added_up() -> None:
    """Two hosts with the same events have twice the figures of one of them."""
    both = [dict.fromkeys(range(4), 4), {}, {}, {}]

    for name in inside.MODELS:
        one, two = summed(name, BURST), summed(name, both, hosts=2)
        assert two == {figure: [2 * value for value in values] for figure, values in one.items()}


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.dictionaries(st.integers(0, 9), st.integers(1, 20), max_size=5), min_size=1, max_size=8),
    room=st.sampled_from([0.3, 1.0, 3.0]),
)
def test_every_request_is_let_in_before_it_ends(counts: inside.Seconds, room: float) -> None:
    """However slow the store is: no request leaves while it waits, so none is lost, and in the end nothing is held."""
    for script in inside.of_hosts(counts, 2, event_bytes=100, room=room)["memory"]:
        admitted: set[str] = set()
        results = json.loads(line_of(json.dumps(script.document)))["results"]
        for step, result in zip(script.document["steps"], results, strict=True):
            if step["op"] == "begin":
                admitted |= {step["id"]} if result["admitted"] else set()
            else:
                assert step["id"] in admitted
                admitted |= set(result["admitted"])
        assert not results or (results[-1]["pending"], results[-1]["waiting"]) == (0, 0)


def test_the_inside_of_hosts_is_the_same_in_spark(tmp_path: Path, spark: SparkSession) -> None:
    """Each host's script gives the same line in a task of Spark as in this process, and so the same sums."""
    events = [Wanted(SECOND_US * (100 + number // 9), "PUT", f"k{number % 17}") for number in range(60)]
    chosen = {"trace": prepare(tmp_path / "trace", events).path, "hosts": 5, "inside": list(inside.MODELS)}
    here, there = tmp_path / "here", tmp_path / "there"

    local = fleet.run(options(local=True, lines=here, **chosen))
    apart = fleet.run(options(lines=there, **chosen))

    assert here.read_bytes() == there.read_bytes()
    assert len(here.read_text().splitlines()) == 5 * len(inside.MODELS)
    assert local == apart
    assert max(local["inside"]["memory"]["bytes pending"]) > 0


def test_the_inside_of_hosts_needs_a_trace() -> None:
    """Without a trace there is nothing to run."""
    with pytest.raises(BenchError, match="--inside needs --trace"):
        fleet.run(options(inside=["reads"]))
