"""The worked examples of docs/shaping.md: their scripts, tables, pictures and configurations say the same."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from remora import config
from remora.model.traffic import Meter, meters_from
from support.scripts import run

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "shaping.md").read_text()
EXAMPLES = ("backlog", "tenant", "outage")
CONFIGURED_IN = {"backlog": 1, "tenant": 0, "outage": 1}
"""Which of the page's configurations an example is about."""

FOR_THE_OUTAGE = {"priority_queue": Meter(5_000_000, 5_000_000, 30_000_000)}


def table(name: str) -> list[tuple[int, int, dict[str, int]]]:
    """The rows behind an example's picture: from which second, to which, and the megabytes a second by priority."""
    found = re.search(r"(?m)^\| second \|(?:.*\|\n)+", PAGE[PAGE.index(f"images/shaping-{name}.png") :])
    assert found is not None
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in found[0].splitlines())
    return [
        (
            int(row[0].partition(" to ")[0]),
            int(row[0].partition(" to ")[2]),
            {each: int(cell.removesuffix(" MB")) for each, cell in zip(header[1:], row[1:], strict=True)},
        )
        for row in rows
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples_come_out_as_the_page_says(name: str) -> None:
    """In each second of a row of the table, the script's priorities have the rates that stand there, and no others."""
    results = run(json.loads((DOCS / f"simulate/{name}.json").read_text()))["results"]
    seconds = [spent for each in results for spent in each.get("spent", {}).values()]

    for begin, end, said in table(name):
        for spent in seconds[begin - 1 : end]:
            megabytes = {priority: round(nbytes / 1e6) for priority, nbytes in spent.items()}
            assert {priority: rate for priority, rate in megabytes.items() if rate or priority in said} == said


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples_have_the_meters_of_the_page(name: str) -> None:
    """A script has the meters of the page's configuration; the outage's change is what the page's command makes."""
    document = json.loads((DOCS / f"simulate/{name}.json").read_text())
    example = re.findall(r"(?s)```toml\n(.*?)```", PAGE)[CONFIGURED_IN[name]]
    scopes = {each.name: each.by_bucket for each in config.from_document(tomllib.loads(example)).shaping.scope}
    changes = [each["meters"] for each in document["steps"] if each["op"] == "configure"]

    for scope, given in document["config"]["groups"].items():
        assert meters_from(given["meters"], "meters") == scopes[scope]
    if changes:
        assert "--priority priority_queue --rate 5MB --max 30MB\n" in PAGE
        changed = scopes["uplink"] | FOR_THE_OUTAGE
        assert [meters_from(each, "meters") for each in changes] == [changed, scopes["uplink"]]


def test_a_script_is_drawn(tmp_path: Path) -> None:
    """`scripts/draw-shaping` makes a picture of a script, and says in one line what cannot be drawn."""
    script, bad = DOCS / "simulate/outage.json", tmp_path / "bad.json"
    bad.write_text('{"version": 1, "model": "shaping", "config": {"groups": {}}, "steps": []}')
    program, picture = DOCS.parent / "scripts/draw-shaping", tmp_path / "a.png"
    drawn, refused = (
        subprocess.run([program, each, picture], capture_output=True, text=True, check=False) for each in (script, bad)
    )

    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (refused.returncode, refused.stderr) == (1, f"draw-shaping: {bad}: steps: there is no tick to draw\n")
