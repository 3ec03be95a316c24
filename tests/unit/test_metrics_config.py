"""The files for Prometheus and Grafana that are shipped: valid, and only about metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from devkit.processes.programs import program
from remora.metrics import Telemetry
from remora.metrics.sequencer import SequencerTelemetry
from support.telemetry import exercise, exercise_sequencer, exported, landed

CONFIG = Path(__file__).parents[2] / "config"
PANELS = json.loads((CONFIG / "grafana-dashboard.json").read_text())["panels"]
METRIC = re.compile(r"\b(?:remora|process)_[a-z0-9_]+\b(?!:)")


def promtool(*arguments: str) -> None:
    """Run promtool, which must be content."""
    done = subprocess.run([program("promtool", "prometheus"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def names() -> set[str]:
    """Every sample that the daemon, the sequencer and the jobs can export."""
    telemetry = Telemetry()
    exercise(telemetry)
    sequencer = SequencerTelemetry()
    exercise_sequencer(sequencer)
    return exported(telemetry) | exported(sequencer) | exported(landed())


def expressions(value: object) -> Iterator[str]:
    """Every PromQL expression in the dashboard."""
    if isinstance(value, dict):
        for key, child in value.items():
            if key in ("expr", "query") and isinstance(child, str):
                yield child
            yield from expressions(child)
    elif isinstance(value, list):
        for child in value:
            yield from expressions(child)


def dashboard() -> list[str]:
    """The expressions of the shipped dashboard."""
    return list(expressions(json.loads((CONFIG / "grafana-dashboard.json").read_text())))


def test_promtool_accepts_the_configuration_with_its_rules() -> None:
    """Prometheus would start with the shipped files."""
    promtool("check", "config", str(CONFIG / "prometheus.yml"))


def test_alerts_ask_only_for_metrics_that_exist(names: set[str]) -> None:
    """Every metric that the alerts name is exported."""
    asked = set(METRIC.findall((CONFIG / "alerts.yml").read_text()))

    assert len(asked) >= 12
    assert asked <= names


def test_the_dashboard_asks_only_for_metrics_that_exist(names: set[str]) -> None:
    """Every metric that the dashboard names is exported by the daemon."""
    asked = {name for expression in dashboard() for name in METRIC.findall(expression)}

    assert len(asked) >= 20
    assert asked <= names


def test_every_metric_is_on_the_dashboard_or_in_an_alert(names: set[str]) -> None:
    """No metric is exported for nobody, save for those that tell about the others."""
    text = (CONFIG / "alerts.yml").read_text() + (CONFIG / "grafana-dashboard.json").read_text()
    quiet = {
        "remora_config_reloads",
        "remora_discovery_failures",
        "remora_lock_renewals",
        "remora_progress_timestamp_seconds",
        "remora_landing_bad_values",
        "remora_landing_events",
        "remora_landing_offset",
        "remora_job_duration_seconds",
    }

    families = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in names if name.startswith("remora_")}

    assert {family for family in families if family not in text} == quiet


def lacks(known: object, given: object, path: str = "") -> Iterator[str]:
    """The paths of what is given and not known, or another value there."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            yield from lacks(known.get(key, "nothing"), value, f"{path}.{key}")
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        for number, value in enumerate(given):
            yield from lacks(known[number], value, f"{path}.{number}")
    elif known != given:
        yield path


def test_the_dashboard_is_one_that_grafana_knows() -> None:
    """Grafana's own models of dashboards and panels read the dashboard, and know every member of it."""
    given = json.loads((CONFIG / "grafana-dashboard.json").read_text())
    register_default_plugins()

    known = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))

    assert list(lacks(known, given)) == []
    assert list(lacks(known, {**given, "titel": "x"})) == [".titel"]


def test_the_dashboard_has_a_row_for_each_question() -> None:
    """Five rows are open, one for each question of an operator; the others are closed. No two panels overlap, and none
    has the number of another one."""
    rows = [each for each in PANELS if each["type"] == "row"]
    panels = [*PANELS, *(each for row in rows for each in row["panels"])]
    places = [
        (row["title"] if row["collapsed"] else "", x, y)
        for row in rows
        for panel in (row["panels"] or PANELS)
        if panel["type"] != "row" and (row["collapsed"] or row is rows[0])
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert [row["title"] for row in rows if not row["collapsed"]] == [
        "Is anything late?",
        "Why?",
        "Since when?",
        "Who?",
        "Where does the age come from?",
    ]
    assert all(not row["panels"] for row in rows if not row["collapsed"])
    assert len(places) == len(set(places))
    assert max(x for _, x, _ in places) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    """Each panel's query is good PromQL once Grafana has filled in its variables."""
    rules = [
        {"record": f"panel:{i}", "expr": expression.replace("$__rate_interval", "1m")}
        for i, expression in enumerate(dashboard())
        if not expression.startswith("label_values(") and expression != "prometheus"
    ]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML too

    assert len(rules) > 20
    promtool("check", "rules", str(path))


def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    """A stopped topic, a parked, an old or an unaccounted entry, a queue that fills up or leaks or has no owner,
    spilled entries near their bound, a lost lock, a log that is not served or changes its epoch, a change by command
    that lasts for an hour, a landing that is behind and a lost directory are seen."""

    def series(text: str, values: str) -> dict[str, str]:
        return {"series": text, "values": values}

    def quiet(minute: int, name: str) -> dict[str, object]:
        return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}

    def fires(minute: int, name: str, severity: str, labels: str) -> dict[str, object]:
        every = f'alertname="{name}",alertstate="firing",severity="{severity}",{labels}'
        return {
            "expr": f'ALERTS{{alertname="{name}",alertstate="firing"}}',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f"ALERTS{{{every}}}", "value": 1}],
        }

    case = {
        "interval": "1m",
        "input_series": [
            series('remora_topic_failing{topic="a",kind="configuration",job="remora",instance="x"}', "1x30"),
            series('remora_parked_entries_total{topic="a",cause="refused",instance="x"}', "_x19 1x30"),
            series('remora_backlog_oldest_age_seconds{topic="a",instance="x"}', "0+60x30"),
            series('remora_eligible_shards{job="remora",instance="x"}', "3x30"),
            series('remora_owned_shards{job="remora",instance="x"}', "1x30"),
            series('remora_owned_shards{job="remora",instance="y"}', "2x10 1x20"),
            series('remora_lock_losses_total{instance="x"}', "0x5 1x30"),
            series('remora_ledger_unaccounted_entries{topic="a",instance="x"}', "0x5 2x30"),
            series('remora_store_part_lost{path="/srv/disk2",job="remora",instance="x"}', "0x5 1x30"),
            series('remora_store_part_lost{path="/srv/disk3",job="remora",instance="x"}', "1 0x30"),
            series('remora_topic_held{topic="held",instance="x"}', "1x1500"),
            series('remora_topic_held{topic="short",instance="x"}', "1x600 _x900"),
            series('remora_backlog_oldest_age_seconds{topic="held",instance="x"}', "400x1500"),
            series('remora_queue_seconds_until_full{topic="a",instance="x"}', "1e12x10 3000x20"),
            series('remora_queue_seconds_until_full{topic="a",instance="y"}', "1e12x30"),
            series('remora_queue_leaked_bytes{topic="a",instance="x"}', "0+60000x90"),
            series('remora_queue_room_bytes{topic="a",instance="x"}', "128000000-60000x90"),
            series('remora_queue_leaked_bytes{topic="slow",instance="x"}', "0+3000x90"),
            series('remora_queue_room_bytes{topic="slow",instance="x"}', "128000000-3000x90"),
            series('remora_queue_leaked_bytes{topic="gone",instance="x"}', "127000000x90"),
            series('remora_queue_room_bytes{topic="gone",instance="x"}', "0x90"),
            series('remora_spill_bound_ratio{topic="a",instance="x"}', "0.5x5 0.9x30"),
            series('remora_spill_bound_ratio{topic="short",instance="x"}', "0.5x5 0.9x3 0.5x30"),
            series('remora_spill_bound_ratio{topic="low",instance="x"}', "0.8x30"),
            series('remora_shaping_overridden{scope="uplink",job="remora",instance="x"}', "0x5 1x90"),
            series('remora_shaping_overridden{scope="eu",job="remora",instance="x"}', "0x5 1x40 0x50"),
            series('remora_sequencer_waiting_logs{job="remora-sequencer",instance="x"}', "0x5 1x30"),
            series('remora_sequencer_epoch{log="p/a",job="remora-sequencer",instance="x"}', "1x5 2 3 4 5x30"),
            series('remora_sequencer_epoch{log="p/b",job="remora-sequencer",instance="x"}', "1x5 2x30"),
            # Ends each minute, while its newest event stays at minute 0 and records wait; and one without any.
            series('remora_landing_timestamp_seconds{topic="slow",instance="x"}', "0+60x200"),
            series('remora_landing_event_time_seconds{topic="slow",instance="x"}', "0x200"),
            series('remora_landing_lag_records{topic="slow",instance="x"}', "5x200"),
            series('remora_landing_timestamp_seconds{topic="idle",instance="x"}', "0+60x200"),
            series('remora_landing_event_time_seconds{topic="idle",instance="x"}', "0x200"),
            series('remora_landing_lag_records{topic="idle",instance="x"}', "0x200"),
            # The one host has not landed since minute 10, and another one has.
            series('remora_landing_timestamp_seconds{topic="moved",instance="x"}', "600x200"),
            series('remora_landing_timestamp_seconds{topic="moved",instance="y"}', "0+60x200"),
            series('remora_landing_timestamp_seconds{topic="ended",instance="x"}', "600x200"),
        ],
        "alert_rule_test": [
            quiet(0, "RemoraTopicStopped"),
            quiet(18, "RemoraEntriesParked"),
            quiet(4, "RemoraLocksLost"),
            quiet(4, "RemoraEntriesUnaccounted"),
            quiet(5, "RemoraStorePartLost"),
            quiet(8, "RemoraQueuesWithoutOwner"),
            quiet(4, "RemoraEventsOld"),
            quiet(30, "RemoraTopicFailing"),
            quiet(14, "RemoraQueueFillsUp"),
            quiet(9, "RemoraQueueLeaks"),
            quiet(10, "RemoraSpillNearItsBound"),
            quiet(5, "RemoraSequencerLogNotServed"),
            quiet(7, "RemoraSequencerEpochsChange"),
            quiet(30, "RemoraSequencerEpochsChange"),
            quiet(64, "RemoraShapingOverridden"),
            quiet(74, "RemoraLandingBehind"),
        ],
        "promql_expr_test": [
            fires(2, "RemoraTopicStopped", "critical", 'topic="a"'),
            fires(17, "RemoraQueueFillsUp", "critical", 'topic="a"'),
            fires(12, "RemoraSpillNearItsBound", "warning", 'topic="a"'),
            {
                "expr": 'sort(ALERTS{alertname="RemoraQueueLeaks",alertstate="firing"})',
                "eval_time": "40m",
                "exp_samples": [
                    {
                        "labels": 'ALERTS{alertname="RemoraQueueLeaks",alertstate="firing",severity="warning",'
                        f'topic="{topic}"}}',
                        "value": 1,
                    }
                    for topic in ("a", "gone")
                ],
            },
            {
                "expr": 'sort(ALERTS{alertname="RemoraLandingBehind",alertstate="firing"})',
                "eval_time": "90m",
                "exp_samples": [
                    {
                        "labels": 'ALERTS{alertname="RemoraLandingBehind",alertstate="firing",severity="warning",'
                        f'topic="{topic}"}}',
                        "value": 1,
                    }
                    for topic in ("ended", "slow")
                ],
            },
            fires(8, "RemoraSequencerLogNotServed", "critical", 'instance="x",job="remora-sequencer"'),
            fires(9, "RemoraSequencerEpochsChange", "warning", 'instance="x",job="remora-sequencer",log="p/a"'),
            fires(8, "RemoraStorePartLost", "critical", 'instance="x",path="/srv/disk2"'),
            fires(1450, "RemoraTopicHeld", "warning", 'topic="held"'),
            fires(68, "RemoraShapingOverridden", "warning", 'instance="x",scope="uplink"'),
            fires(22, "RemoraEntriesParked", "warning", 'cause="refused",topic="a"'),
            fires(15, "RemoraEventsOld", "warning", 'topic="a"'),
            fires(20, "RemoraQueuesWithoutOwner", "warning", 'job="remora"'),
            fires(8, "RemoraLocksLost", "warning", 'instance="x"'),
            fires(8, "RemoraEntriesUnaccounted", "critical", 'topic="a"'),
        ],
    }
    path = tmp_path / "cases.yml"
    path.write_text(
        json.dumps({"rule_files": [str(CONFIG / "alerts.yml")], "evaluation_interval": "1m", "tests": [case]})
    )

    promtool("test", "rules", str(path))
