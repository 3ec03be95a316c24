"""`remora slo`: rules of Prometheus for the service levels of topics."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from prometheus_client.utils import floatToGoString

from remora import app, endpoint_kinds
from remora.cli import admin_client
from remora.cli.groups import CommandGroup
from remora.cli.options import running_option
from remora.cli.output import print_line, run_async
from remora.cli.rows import rows_of
from remora.codec.topic import SLO, parse_args
from remora.config import Settings
from remora.model.errors import DaemonNotReachable
from remora.model.exits import Exit
from remora.model.topic import Topic
from remora.model.words import several
from remora.policy.status.objectives import BurnRate, Objective, burn_rates, duration_text, parse_objective

RUNBOOK = "docs/slo.md#remorasloburns"
QUICK, SLOW = ("5m", "30m", "1h", "2h", "6h"), ("1d", "3d")


@dataclass(frozen=True, slots=True)
class Agreed:
    """The service levels of the topics that remora delivers: those that are measured, and why others are not."""

    measured: dict[str, Objective]
    problems: list[str]


@click.group(cls=CommandGroup)
def slo() -> None:
    """Service levels of topics, which `remora-slo`, or `slo` in a file of topics, declares."""


@slo.command("rules")
@running_option
def rules_command(settings: Settings) -> None:
    """Print rules of Prometheus for the service levels of all topics that remora delivers.

    For each topic they record the part of its events that arrived late, or became dead letters, and what is left of the
    budget; alerts fire when the budget burns fast, in a long and in a short window at once. What waits counts when it
    arrives.

    A topic that admin.metric_topics leaves no series of its own has no rules: standard error names it, and the exit
    code is 1. Whether that is so is the daemon's to say where there are more topics than that.

    \b
    Example:
      remora slo rules > remora-slo.yml && promtool check rules remora-slo.yml
    """

    async def agreed() -> Agreed:
        async with app.store_of(settings) as store:
            schemes = endpoint_kinds.schemes(settings)
            topics = [row.topic for row in await rows_of(store) if row.topic and row.reason(schemes) is None]
        return await _measured(topics, settings)

    found = run_async(agreed())
    for line in rule_lines(found.measured):
        print_line(line)
    for problem in found.problems:
        print_line(f"remora: {problem}", err=True)
    if found.problems:
        sys.exit(Exit.FAILURE)


async def _measured(topics: Sequence[Topic], settings: Settings) -> Agreed:
    found, problems = {}, []
    for topic in topics:
        if text := parse_args(topic.target.args).get(SLO, ""):
            try:
                found[topic.label] = parse_objective(text)
            except ValueError as exc:
                problems.append(f"topic {topic.label}: {SLO}: {exc}")
    if len(topics) > settings.admin.metric_topics:
        own = await _with_series(settings)
        for label in found.keys() - own:
            del found[label]
            problems.append(
                f"topic {label} has no rules: it has no series of its own, or no daemon of this host knows of one "
                f"(admin.metric_topics = {settings.admin.metric_topics}, {several(len(topics), 'topic')})"
            )
    return Agreed(found, sorted(problems))


async def _with_series(settings: Settings) -> set[str]:
    """The topics with a service level that the daemon of this host measures; none where it does not answer."""
    try:
        status: dict[str, Any] = await admin_client.fetch_status(settings.admin)
    except DaemonNotReachable:
        return set()
    return {each["topic"] for each in status["topics"] if each.get("slo")}


# ------------------------------------------------------------------------------------------------------ the rules


def rule_lines(objectives: dict[str, Objective]) -> Iterator[str]:
    """The file of rules, a line at a time."""
    if not objectives:
        yield "groups: []"
        return
    yield "# Made by `remora slo rules`. Make it anew when service levels, or topics that have one, have changed."
    yield "groups:"
    for name, interval, windows in (("quick", "30s", QUICK), ("slow", "5m", SLOW)):
        yield f"  - name: remora-slo-{name}"
        yield f"    interval: {interval}"
        yield "    rules:"
        for topic, objective in objectives.items():
            for window in windows:
                yield from _rule(f"remora_slo:late:ratio_rate{window}", late(topic, objective, window), topic)
            if name == "slow":
                expr = f"1 - ({late(topic, objective, f'{objective.days}d')}) / {objective.budget:.9g}"
                yield from _rule("remora_slo:budget_left:ratio", expr, topic)
    yield "  - name: remora-slo-alerts"
    yield "    rules:"
    for topic, objective in objectives.items():
        for burn in burn_rates(objective):
            yield from _alert(topic, objective, burn)


def late(topic: str, objective: Objective, window: str) -> str:
    """The part of a topic's events that arrived late, or became dead letters, in a window; nothing without events."""
    of_topic = f"topic={_quoted(topic)}"
    le = _quoted(floatToGoString(objective.bound_s))  # type: ignore[no-untyped-call]  # prometheus-client leaves it unannotated
    arrived = f"sum(rate(remora_event_age_seconds_count{{{of_topic}}}[{window}]))"
    good = f"sum(rate(remora_event_age_seconds_bucket{{{of_topic},le={le}}}[{window}]))"
    parked = f"(sum(rate(remora_parked_entries_total{{{of_topic}}}[{window}])) or vector(0))"
    return f"({arrived} - {good} + {parked}) / ({arrived} + {parked} > 0)"


def _rule(name: str, expr: str, topic: str) -> Iterator[str]:
    yield f"      - record: {name}"
    yield f"        expr: {_quoted(expr)}"
    yield "        labels:"
    yield f"          topic: {_quoted(topic)}"


def _alert(topic: str, objective: Objective, burn: BurnRate) -> Iterator[str]:
    of_topic = f"{{topic={_quoted(topic)}}}"
    above = [f"remora_slo:late:ratio_rate{each}{of_topic} > {burn.threshold:g}" for each in (burn.long, burn.short)]
    within = duration_text(objective.bound_s)
    texts = {
        "summary": f"topic {_literal(topic)} burns the budget of its service level, {objective}",
        "description": f"{{{{ $value | humanizePercentage }}}} of its events of {burn.long} were later than {within}.",
        "runbook_url": RUNBOOK,
    }
    yield "      - alert: RemoraSloBurns"
    yield f"        expr: {_quoted(' and '.join(above))}"
    yield "        labels:"
    yield f"          topic: {_quoted(_literal(topic))}"
    yield f"          severity: {burn.severity}"
    yield f"          window: {burn.long}"
    yield "        annotations:"
    for name, text in texts.items():
        yield f"          {name}: {_quoted(text)}"


def _literal(text: str) -> str:
    """The text for labels and annotations of alerts, which Prometheus takes for templates: any S3 user names topics."""
    return text.replace("{{", '{{ "{{" }}')


def _quoted(text: str) -> str:
    """The text in quotes, as YAML and PromQL both read it: neither knows JSON's pairs of surrogates."""
    escaped = (f"\\U{ord(each):08x}" if each > "\uffff" else json.dumps(each)[1:-1] for each in text)
    return f'"{"".join(escaped)}"'
