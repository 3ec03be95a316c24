"""The runbooks: a section for each alert, which an operator can follow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from remora.metrics import Telemetry
from remora.metrics.sequencer import SequencerTelemetry
from remora.policy.status.stages import EventStage
from support.telemetry import exercise, exercise_sequencer, exported, landed

ROOT = Path(__file__).parents[2]
RUNBOOKS = (ROOT / "docs/runbooks.md").read_text()
SECTIONS = dict(re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOKS))
ALERTS = {
    rule["alert"]: rule["annotations"]
    for group in yaml.safe_load((ROOT / "config/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


def test_each_alert_has_a_runbook_and_links_to_it() -> None:
    """Sections are those of the alerts, in their order, and each alert's runbook_url is the path of its own."""
    assert list(SECTIONS) == list(ALERTS)
    assert {name: each["runbook_url"] for name, each in ALERTS.items()} == {
        name: f"docs/runbooks.md#{name.lower()}" for name in SECTIONS
    }


@pytest.mark.parametrize("name", SECTIONS)
def test_a_runbook_says_all_four(name: str) -> None:
    """A section says what the alert means, where to look, what to do and when it is over, in this order."""
    assert re.findall(r"(?m)^\*\*(\w+):\*\* \S", SECTIONS[name]) == ["Means", "Look", "Do", "Over"]


def test_the_metrics_of_the_runbooks_exist() -> None:
    """Each metric of remora that a runbook names is exported."""
    telemetry, sequencer = Telemetry(), SequencerTelemetry()
    exercise(telemetry)
    exercise_sequencer(sequencer)
    named = set(re.findall(r"\bremora_[a-z_]+", RUNBOOKS))

    assert len(named) >= 12
    families = {
        re.sub(r"_(bucket|count|sum)$", "", each)
        for each in exported(telemetry) | exported(sequencer) | exported(landed())
    }
    assert named <= families


def test_each_stage_has_a_sentence() -> None:
    """The runbooks say of each stage what to look at when it rises, and stages.md from when to when it lasts."""
    for text in (RUNBOOKS, (ROOT / "docs/stages.md").read_text()):
        assert re.findall(r"(?m)^\| `([a-z_]+)` \| \S.* \|$", text)[: len(EventStage)] == list(EventStage)


def anchors(text: str) -> set[str]:
    """Of each heading, as GitHub makes them."""
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """Each file that a document links to is there, and has the heading that the link names."""
    for file, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", document.read_text()):
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), file
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text()), f"{file}#{anchor}"
