"""`scripts/bench fleet`: scripts of `remora simulate` side by side in Spark, and fleets under the load of a trace."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from devkit.bench import fleet
from devkit.bench.clusters import BenchError
from remora_pipeline.simulate.side_by_side import line_of
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
