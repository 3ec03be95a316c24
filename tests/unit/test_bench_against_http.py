"""What the benchmark against other servers of events over HTTP makes of its turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.bench.against_http import LOADS, REMORA, STREAMS, VERSION, Row, Turn, goals, row, streams_program
from devkit.bench.clusters import BenchError
from devkit.bench.events import Bodies, write_wrk_script


def turn(rate: float, cpu_us: float) -> Turn:
    """A turn of which only rate and processor time matter."""
    return Turn(rate, 0.001, 0.002, {"server": cpu_us, "generator": 1.0}, 7, 0.0)


def rows(*figures: tuple[float, float]) -> list[Row]:
    """A row for each server of each load, of one turn with this rate and processor time."""
    servers = [(str(load), server) for load in LOADS for server in (STREAMS, REMORA)]
    return [row(load, server, [turn(*each)]) for (load, server), each in zip(servers, figures, strict=True)]


def test_a_row_has_the_medians_of_its_turns() -> None:
    """Rate and processor time are each the median of their own."""
    found = row("single events", REMORA, [turn(1.0, 9.0), turn(3.0, 5.0), turn(2.0, 1.0)])

    assert (found.rate, found.cpu_us, found.peak_rss_bytes) == (2.0, 5.0, 7)


@pytest.mark.parametrize(
    ("single_cpu_us", "batch_rate", "reached"), [(35.0, 100.0, [True, True]), (35.1, 99.9, [False, False])]
)
def test_single_events_are_held_to_their_cost_and_batches_to_their_rate(
    single_cpu_us: float, batch_rate: float, reached: list[bool]
) -> None:
    """Single events may cost three and a half times what the other server needs, and batches must be as quick."""
    found = goals(rows((100.0, 10.0), (1.0, single_cpu_us), (100.0, 10.0), (batch_rate, 1000.0)))

    assert [each["reached"] for each in found.values()] == reached


def test_a_script_of_batches_sends_what_the_client_sends(tmp_path: Path) -> None:
    """The pieces of wrk's script, with a number between them, are the body of that number."""
    script = tmp_path / "post.lua"
    write_wrk_script(script, 900, 3, ["/one", "/other"])

    first = script.read_text().split("\nlocal paths")[0]
    pieces = first.removeprefix("local pieces = { [==[").removesuffix("]==] }").split("]==], [==[")

    assert "000000".join(pieces).encode() == Bodies(3, 900).next()


def test_a_server_that_was_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is there is used, and without one and without cargo the benchmark says what is missing."""
    monkeypatch.setenv("REMORA_DEV_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")

    with pytest.raises(BenchError, match="cargo"):
        streams_program()

    built = tmp_path / f"durable-streams-{VERSION}/bin/durable-streams-server"
    built.parent.mkdir()
    built.touch()
    assert streams_program() == built
