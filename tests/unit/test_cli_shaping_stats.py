"""`remora shaping stats`: what became of requests for credit, since the start, an earlier output, or the last look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from remora.cli import shaping_stats
from remora.cli.shaping_stats import came_since, stats, summed_by_scope
from remora.policy.shaping.credit_flows import bound_us


def flow(group: str, priority: str = "client_low", times: int = 1, **more: Any) -> dict[str, Any]:
    """A flow of which everything was counted so many times."""
    names = ("granted_bytes", "passed_bytes", "given_back_bytes", "at_once", "deferred", "waited")
    moved = ("donated_bytes", "transferred_bytes", "group_lost_bytes")
    counters = dict.fromkeys((*names, *moved), times)
    return {"group": group, "priority": priority, **counters, "waits": {"40": times}, **more}


def shown(*flows: dict[str, Any], ticks: int = 10) -> dict[str, Any]:
    return {"flows": list(flows), "ticks": ticks, "late_ticks": 1, "scopes": []}


def test_what_came_since_is_the_difference() -> None:
    """Each counter and each bucket is that of now without that of before; of a group that is new, or whose workers
    began anew, it is that of now."""
    before = shown(flow("a", times=3), flow("gone"))

    found = came_since(before, shown(flow("a", times=5), flow("a", "max", times=2), ticks=25))

    assert found["ticks"] == 15
    assert [(each["granted_bytes"], each["waits"]) for each in found["flows"]] == [(2, {"40": 2}), (2, {"40": 2})]
    assert came_since(shown(flow("a", times=5)), shown(flow("a", times=2)))["flows"][0]["at_once"] == 2


def test_a_summary_has_a_line_for_each_scope() -> None:
    """Groups and priorities of a scope are added up, and what a group lost counts once."""
    a, b = summed_by_scope([flow("s/x"), flow("s/x", "max"), flow("s/y"), flow("t")])

    assert (a["group"], a["granted_bytes"], a["group_lost_bytes"], a["waits"]) == ("s", 3, 2, {"40": 3})
    assert (b["group"], b["granted_bytes"]) == ("t", 1)


def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str, said: dict[str, Any]) -> str:
    """What the command prints when the daemon says this."""

    async def fetch(_: object) -> dict[str, Any]:
        return said

    monkeypatch.setattr(shaping_stats, "fetch_shaping", fetch)
    config = tmp_path / "remora.toml"
    config.write_text("")
    done = CliRunner().invoke(stats, ["-c", str(config), *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_table_has_counters_and_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line for each group and priority has the quantiles in microseconds; what a group lost stands at its first."""
    said = shown(flow("s", times=4), flow("s", "max", times=1), flow("t"))

    lines = asked(monkeypatch, tmp_path, "--scope", "s", said=said).splitlines()

    assert lines[0] == "ticks: 10, late by one or more: 1"
    assert lines[1].split()[:3] == ["GROUP", "PRIORITY", "GRANTED"]
    first, second = (line.split() for line in lines[2:])
    assert first[-5:] == second[-5:] == [str(bound_us(40))] * 5
    assert len(first) == len(second) + 1


@pytest.mark.parametrize(
    ("answering", "said", "empty"),
    [
        ([True, True], [], "no request"),
        ([True, False], ["workers: 1 of 2 workers does not answer: its counters are not known"], "no request is known"),
        ([False, False], ["workers: no worker answers: counters are not known"], "no request is known"),
    ],
)
def test_workers_that_are_silent_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answering: list[bool], said: list[str], empty: str
) -> None:
    """What a worker that does not answer has counted is said to be unknown, and not taken for none."""
    workers = [{"number": number, "answers": answers} for number, answers in enumerate(answering, 1)]

    lines = asked(monkeypatch, tmp_path, said=shown() | {"workers": workers}).splitlines()

    assert lines[1:] == [*said, empty]


def test_an_earlier_output_is_subtracted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--since` takes what `--json` printed."""
    before = tmp_path / "before.json"
    before.write_text(asked(monkeypatch, tmp_path, "--json", said=shown(flow("s", times=4))))

    found = json.loads(
        asked(monkeypatch, tmp_path, "--json", "--since", str(before), said=shown(flow("s", times=9), ticks=12))
    )

    assert found["flows"][0]["waited"] == 5
    assert found["ticks"] == 2


def test_each_look_of_a_watch_shows_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--watch` prints all there is, and then at each look only what came since the one before, until it is ended."""
    looks = [shown(flow("s", times=4)), shown(flow("s", times=9), ticks=12), shown(flow("s", times=10), ticks=15)]

    async def fetch(_: object) -> dict[str, Any]:
        if not looks:
            raise KeyboardInterrupt
        return looks.pop(0)

    monkeypatch.setattr(shaping_stats, "fetch_shaping", fetch)
    (tmp_path / "remora.toml").write_text("")

    done = CliRunner().invoke(stats, ["-c", str(tmp_path / "remora.toml"), "--watch", "0.1"])

    lines = done.output.splitlines()
    assert [each.split(",")[0] for each in lines if each.startswith("ticks")] == ["ticks: 10", "ticks: 2", "ticks: 3"]
    assert [each.split()[2] for each in lines if each.startswith("s ")] == ["4B", "5B", "1B"]


def test_another_file_is_refused(tmp_path: Path) -> None:
    """What is no such output is said to be none, with exit code 2."""
    (tmp_path / "x").write_text("[]")

    done = CliRunner().invoke(stats, ["--since", str(tmp_path / "x")])

    assert done.exit_code == 2
    assert "is no output of" in done.output
