"""`slo` of a topic: how it is declared, refused and kept, and the rules of Prometheus that come of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from devkit.processes.daemon import Ended, write_config
from devkit.processes.programs import program
from remora.cli.slo import rule_lines
from remora.cli.status import slo_lines
from remora.metrics import Telemetry
from remora.metrics.figures import SloFigures, merged_figures
from remora.model.exits import Exit
from remora.policy.status.objectives import parse_objective
from support.commands import Run, config, remora

__all__ = ["config", "remora"]

TOPICS = """
[topic.orders]
endpoint = "kafka://broker:9092"
shards = 1
slo = "99% < 5000ms over 28d"
[topic.mail]
endpoint = "kafka://broker:9092"
shards = 1
[topic.index]
endpoint = "http://h/in"
shards = 1
slo = "95% < 1m over 7d"
"""


def promtool(*arguments: str) -> str:
    """Run promtool, which must be content."""
    done = subprocess.run([program("promtool", "prometheus"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def apply(remora: Run, config: Path, text: str, **admin: int) -> Ended:
    """Apply a file of topics to an embedded store of this test alone."""
    folder = config.parent
    sqlite = {"directory": str(folder / "queues"), "files": 2}
    write_config(
        config, {"store": {"kind": "sqlite"}, "sqlite": sqlite, "admin": {"listen": f"unix:{folder}/nobody", **admin}}
    )
    (folder / "topics.toml").write_text(text)
    return remora("topic", "apply", "-f", folder / "topics.toml", "-c", config)


def test_rules_are_made_for_all_topics_that_declare_a_level(remora: Run, config: Path, tmp_path: Path) -> None:
    """A file's `slo` is kept as the argument remora-slo, and promtool accepts the rules of all topics that have one."""
    assert apply(remora, config, TOPICS).code == Exit.OK
    shown = json.loads(remora("topic", "show", "orders", "--json", "-c", config).out)
    assert shown["arguments"]["remora-slo"] == "99% < 5s over 28d"

    done = remora("slo", "rules", "-c", config)

    assert (done.code, done.err) == (Exit.OK, "")
    (tmp_path / "rules.yml").write_bytes(done.out)
    assert f"{2 * 8 + 4 + 4} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert b"mail" not in done.out
    assert b'le=\\"60.0\\"' in done.out
    assert remora("topic", "apply", "-f", tmp_path / "topics.toml", "--dry-run", "-c", config).code == Exit.OK


def test_without_levels_there_are_no_rules(remora: Run, config: Path, tmp_path: Path) -> None:
    """A store without such topics gives a file that Prometheus takes all the same."""
    assert apply(remora, config, "").code == Exit.OK
    done = remora("slo", "rules", "-c", config)
    (tmp_path / "rules.yml").write_bytes(done.out)

    assert done.code == Exit.OK
    assert "0 rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))


def test_topics_beyond_the_limit_of_series_are_named(remora: Run, config: Path) -> None:
    """With more topics than admin.metric_topics, those that no daemon says to measure have no rules and are named."""
    assert apply(remora, config, TOPICS, metric_topics=2).code == Exit.OK

    done = remora("slo", "rules", "-c", config)

    assert done.code == Exit.FAILURE
    assert done.out == b"groups: []\n"
    assert [line.split()[2] for line in done.err.splitlines()] == ["index", "orders"]
    assert "admin.metric_topics = 2, 3 topics" in done.err


@pytest.mark.parametrize(
    ("level", "why"),
    [("99% < 3s over 28d", "the nearest bounds are 2.5s and 5s"), ("often", "such as 99% < 5s over 28d")],
)
def test_what_is_no_level_is_refused_where_it_is_declared(remora: Run, config: Path, level: str, why: str) -> None:
    """A file's problem names its line, and `topic create` refuses the argument; nothing is made."""
    refused = apply(remora, config, TOPICS.replace("99% < 5000ms over 28d", level))
    created = remora(
        "topic", "create", "x", "--endpoint", "kafka://b:9092", "--arg", f"remora-slo={level}", "-c", config
    )

    assert refused.code == Exit.CONFIG
    assert "topic.orders.slo" in refused.err
    assert "line 5" in refused.err
    assert created.code != Exit.OK
    for each in (refused, created):
        assert why in each.err


def test_alerts_fire_while_the_budget_burns(tmp_path: Path) -> None:
    """An hour of two in ten late events fires the fast alert of that topic; one in a hundred fires none, and dead
    letters count as late. What is left of the budget is what Prometheus works out."""
    level = parse_objective("99% < 5s over 28d")
    rules = tmp_path / "rules.yml"
    rules.write_text("\n".join(rule_lines(dict.fromkeys(("bad", "good", 'o"dd', "lost"), level))) + "\n")

    def series(topic: str, late: int, parked: int = 0) -> list[dict[str, str]]:
        label = json.dumps(topic)
        rows = [
            (f'remora_event_age_seconds_bucket{{topic={label},le="5.0"}}', 1000 - late),
            (f"remora_event_age_seconds_count{{topic={label}}}", 1000),
            (f'remora_parked_entries_total{{topic={label},cause="refused"}}', parked),
        ]
        return [{"series": name, "values": f"0+{step}x90"} for name, step in rows]

    def burns(topic: str) -> dict[str, object]:
        alert = 'ALERTS{alertname="RemoraSloBurns",alertstate="firing",severity="critical",window="1h"'
        return {
            "expr": 'ALERTS{alertname="RemoraSloBurns",alertstate="firing",window="1h"}',
            "eval_time": "80m",
            "exp_samples": [{"labels": f'{alert},topic="{topic}"}}', "value": 1}],
        }

    case = {
        "interval": "1m",
        "input_series": [*series("bad", 200), *series("good", 10), *series('o"dd', 10)],
        "promql_expr_test": [
            burns("bad"),
            {
                "expr": 'round(remora_slo:budget_left:ratio{topic="good"}, 0.01)',
                "eval_time": "85m",
                "exp_samples": [{"labels": '{topic="good"}', "value": 0}],
            },
            {
                "expr": 'round(remora_slo:late:ratio_rate1h{topic="o\\"dd"}, 0.001)',
                "eval_time": "85m",
                "exp_samples": [{"labels": '{topic="o\\"dd"}', "value": 0.01}],
            },
        ],
    }
    lost = {
        "interval": "1m",
        "input_series": series("lost", 0, parked=500),
        "promql_expr_test": [burns("lost")],
    }
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [case, lost]}))

    promtool("test", "rules", str(cases))


@pytest.mark.parametrize("topic", ["\U0001f680", "{{ fail }}", "{{ $labels.severity }}", "\\ud83d\\ude80", 'a"\\\n{{{'])
def test_rules_take_every_name_of_a_topic_as_it_is(topic: str, tmp_path: Path) -> None:
    """A topic's name with what YAML, PromQL or templates would read otherwise, which S3 users of older gateways may
    choose, costs no rule, and its alert has it."""
    rules = tmp_path / "rules.yml"
    rules.write_text("\n".join(rule_lines({topic: parse_objective("99% < 5s over 28d")})) + "\n")
    count = {"topic": topic}
    of_topic = "{topic=" + json.dumps(topic, ensure_ascii=False) + "}"
    late = {"series": f"remora_event_age_seconds_count{of_topic}", "values": "0+1000x90"}
    good = {
        "series": f'remora_event_age_seconds_bucket{of_topic[:-1]},le="5.0"}}',
        "values": "0+500x90",
    }
    labels = {"severity": "critical", "window": "1h", **count}
    texts = {
        "summary": f"topic {topic} burns the budget of its service level, 99% < 5s over 28d",
        "description": "50% of its events of 1h were later than 5s.",
        "runbook_url": "docs/slo.md#remorasloburns",
    }
    fires = [{"exp_labels": labels, "exp_annotations": texts}]
    others = [
        {
            "exp_labels": labels | {"severity": severity, "window": window},
            "exp_annotations": texts | {"description": f"50% of its events of {window} were later than 5s."},
        }
        for severity, window in (("critical", "6h"), ("warning", "1d"), ("warning", "3d"))
    ]
    case = {
        "interval": "1m",
        "input_series": [late, good],
        "alert_rule_test": [{"eval_time": "80m", "alertname": "RemoraSloBurns", "exp_alerts": fires + others}],
    }
    cases = tmp_path / "cases.yml"
    cases.write_text(
        json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [case]}, ensure_ascii=False)
    )

    promtool("test", "rules", str(cases))


def test_the_budget_left_is_that_of_the_topics_own_series() -> None:
    """Events up to the bound are good, later ones and dead letters are not; a topic without a series of its own has no
    figures; and two workers' are added up."""
    telemetry = Telemetry(metric_topics=1)
    telemetry.objectives = dict.fromkeys(("orders", "beyond"), parse_objective("90% < 5s over 28d"))
    second = 1_000_000_000
    telemetry.delivered("orders", 18, 18, [0] * 9 + [second] * 9, 6 * second)
    telemetry.delivered("orders", 1, 1, [0], 4 * second)
    telemetry.dead_lettered("orders", "orders", "7", "refused", "no")
    telemetry.delivered("beyond", 1, 1, [0], second)

    figures = {each.topic: each.slo for each in telemetry.topics()}

    assert figures["orders"] == SloFigures(objective="90% < 5s over 28d", good=10, total=20, budget_left=-4.0)
    assert figures["other"] is None
    (both,) = merged_figures([each for each in telemetry.topics() if each.topic == "orders"] * 2)
    assert both.slo == SloFigures(objective="90% < 5s over 28d", good=20, total=40, budget_left=-4.0)
    shown = {"objective": "99% < 5s over 28d", "good": 99, "total": 100, "budget_left": 0.0}
    (line,) = slo_lines([{"topic": "orders", "slo": shown}, {"topic": "x", "slo": None}, {"topic": "y"}])
    assert line.startswith(
        "slo: topic orders: 99% < 5s over 28d: 0.0% of the budget is left, late or dead letters: 1 of 100 events"
    )
