"""`remora status`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from remora.cli import admin_client
from remora.cli.options import running_option
from remora.cli.output import print_json, print_line, print_table, run_async
from remora.config import Settings
from remora.model.exits import Exit
from remora.model.words import duration, several, when
from remora.policy.queues.mends import LEAK_COMMAND
from remora.policy.queues.spill import SPILL_COMMAND
from remora.policy.status.condition import Condition, State, together

MOST_NAMED = 10


@click.command()
@running_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as JSON.")
@click.option("--check", is_flag=True, help="Print only what is wrong, and exit with 1 where anything is.")
def status(settings: Settings, as_json: bool, check: bool) -> None:
    """Show how the running daemon is doing, from its admin port.

    Topics that fail at one destination for one cause share a line. So do topics in the table that fail alike:
    `orders +10` are orders and ten more. --json has each of them, with its queues. WAITING and dead letters are counted
    every 15 s, states are those of now. Exit code 69 when no daemon answers; `remora explain` works without one.

    \b
    Example, the queues that something keeps from being delivered:
      remora status --json | jq -r '.shards[] | select(.reason != "") | [.queue, .reason] | @tsv'

    \b
    Example, for a script or a monitor: 0 when the daemon is ready and delivers all that it holds
      remora status --check || echo "look at remora"
    """
    shown = run_async(admin_client.fetch_status(settings.admin))
    if check:
        _check(shown)
        return
    if as_json:
        print_json(shown)
        return
    destinations = destination_lines(shown.get("destinations", ()))
    rooms = (*room_lines(shown["topics"]), *spill_lines(shown["topics"]))
    for line in (*status_lines(shown), *destinations, *rooms, *slo_lines(shown["topics"])):
        print_line(line)
    heads = ("TOPIC", "STATE", "FOR", "NEXT", "QUEUES", "WAITING", "ENDPOINT", "REASON")
    answer = {each["answers"] for each in shown["workers"]}
    none = "no worker that answers holds a queue" if True in answer else "which queues are held is not known"
    print_table(heads, status_rows(shown["topics"], shown["shards"]), none if False in answer else "no queue is held")
    for queues, reason in left_rows(shown["left"]):
        print_line(f"not held: {queues}: {reason}")


def silence_lines(shown: Mapping[str, Any], what: str) -> list[str]:
    """That workers do not answer, and `what` of theirs is therefore not known; nothing where all answer."""
    workers = shown.get("workers", ())
    silent = [each for each in workers if not each["answers"]]
    if not silent:
        return []
    if len(silent) == len(workers):
        return [f"no worker answers: {what} are not known"]
    do, their = ("does", "its") if len(silent) == 1 else ("do", "their")
    return [f"{len(silent)} of {len(workers)} workers {do} not answer: {their} {what} are not known"]


def _missing_lines(shown: Mapping[str, Any]) -> list[str]:
    """That fewer workers run than there are to be; a daemon of an earlier release does not say how many these are."""
    there, wanted = len(shown["workers"]), shown.get("workers_wanted", 0)
    return [f"{there} of {wanted} workers run; the log says why others do not"] if there < wanted else []


def status_lines(shown: dict[str, Any]) -> list[str]:
    """What a status says of the daemon as a whole."""
    store, where = shown["store"], f" on {shown['host']}" if shown.get("host") else ""
    health = "ready" if shown["ready"] else f"not ready: {'; '.join(shown['reasons'])}"
    return [
        f"remora {shown['version']}{where}, {health}",
        f"store: {store['description'] if store['connected'] else store['state']}",
        *(f"damaged: {each}" for each in store["damaged"]),
        f"ingest: {'not known' if shown['ingest'] is None else shown['ingest'] or 'off'}",
        *(f"workers: {each}" for each in _missing_lines(shown)),
        *(f"workers: {each}" for each in silence_lines(shown, "queues, topics and failures")),
        *(f"held: topic {each['topic']} is {each['text']}" for each in shown.get("holds", ())),
        *_letter_lines(shown),
        *unaccounted_lines(shown.get("topics", ())),
        *(f"delivery: {each}" for each in _only_of_delivery(shown)),
        *(f"slow: {each}" for each in shown.get("slow", ())),
    ]


def what_is_wrong(shown: dict[str, Any]) -> list[str]:
    """A line for each thing that keeps the daemon from taking events in or from delivering; none where all is well."""
    failing = [each for each in shown["topics"] if each.get("state") and State.named(each["state"]).is_failing]
    return [
        *(f"not ready: {each}" for each in shown["reasons"] if not shown["ready"]),
        *(f"damaged: {each}" for each in shown["store"]["damaged"]),
        *(f"delivery: {each}" for each in _only_of_delivery(shown)),
        *_missing_lines(shown),
        *(f"worker {each['number']} does not answer" for each in shown["workers"] if not each["answers"]),
        *(f"{topics}: {state}: {said}" for topics, state, *_, said in status_rows(failing, shown["shards"])),
        *room_lines(each for each in shown["topics"] if (each.get("room") or {}).get("leaks")),
        *unaccounted_lines(shown["topics"]),
    ]


def _check(shown: dict[str, Any]) -> None:
    wrong = what_is_wrong(shown)
    for line in wrong:
        print_line(line)
    if wrong:
        sys.exit(Exit.FAILURE)
    letters = _letter_lines(shown)  # stored, so that nothing is lost, and an operator's to look at
    said = f"{'nothing fails' if letters else 'all is well'}: {several(len(shown['shards']), 'queue')}"
    print_line("; ".join([said, *letters]))


def _letter_lines(shown: dict[str, Any]) -> list[str]:
    """How many dead letters are stored now, where there are any."""
    if not shown.get("dead_letters"):
        return []
    of = [f"{each['topic']} {each['dead_letters']}" for each in shown["topics"] if each["dead_letters"]]
    more = f" and {several(len(of) - MOST_NAMED, 'more topic')}" if len(of) > MOST_NAMED else ""
    named = ", ".join(of[:MOST_NAMED]) + more
    return [f"dead letters: {shown['dead_letters']} stored ({named}); `remora dlq list` shows them"]


def _only_of_delivery(shown: dict[str, Any]) -> list[str]:
    """Why nothing is delivered, where the daemon is ready in other respects."""
    reasons = shown.get("ready_to_deliver", {}).get("reasons", [])
    return [each for each in reasons if each not in shown["reasons"]]


def unaccounted_lines(topics: Iterable[dict[str, Any]]) -> list[str]:
    """The topics that have entries unaccounted for."""
    lost = [(each["topic"], (each.get("ledger") or {}).get("unaccounted")) for each in topics]
    return [
        f"ledger: topic {topic}: {several(count, 'entry', 'entries')} unaccounted for; `remora ledger` says where"
        for topic, count in lost
        if count
    ]


def room_lines(topics: Iterable[dict[str, Any]]) -> list[str]:
    """The topics whose worst queue is full by a leak, with the command that mends it, or full within a day."""
    rooms = [(each["topic"], each["room"]) for each in topics if (each.get("room") or {}).get("advice")]
    return [
        f"room: topic {topic}: {room['advice']}"
        + (f": {LEAK_COMMAND} --topic {shlex.quote(topic)}" if room["leaks"] else "")
        for topic, room in rooms
    ]


def slo_lines(topics: Iterable[dict[str, Any]]) -> list[str]:
    """The topics with a service level, and what is left of its budget since their workers' start."""
    slos = [(each["topic"], each["slo"]) for each in topics if each.get("slo")]
    return [
        f"slo: topic {topic}: {slo['objective']}: {slo['budget_left']:.1%} of the budget is left, "
        f"late or dead letters: {slo['total'] - slo['good']:,} of {several(slo['total'], 'event')}"
        for topic, slo in slos
    ]


def spill_lines(topics: Iterable[dict[str, Any]]) -> list[str]:
    """The topics that have spilled entries."""
    spilled = [
        (each["topic"], several(each["spilled_entries"], "entry", "entries"))
        for each in topics
        if each.get("spilled_entries")
    ]
    return [f"spilled: topic {name}: {entries}, to be delivered first: {SPILL_COMMAND}" for name, entries in spilled]


def destination_lines(destinations: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each destination that fails and each cause, with how many topics and events wait for it."""
    return [
        f"{each['state_text']}: {each['destination'] or 'unknown'}: {each['cause']}: {_counted(each)}, "
        f"for {duration(each['since_seconds'])}{_next(each)}"
        for each in destinations
    ]


def _counted(each: dict[str, Any]) -> str:
    events = "? events" if each["entries"] is None else several(each["entries"], "event")
    at_least = "at least " if each.get("entries_at_least") else ""  # a daemon of an earlier release does not say
    return f"{several(each['topics'], 'topic')}, {at_least}{events}"


def _next(each: dict[str, Any]) -> str:
    at_s = each["next_attempt_seconds"]
    return "" if at_s is None else f", the next attempt {when(at_s)}"


def status_rows(topics: Iterable[dict[str, Any]], shards: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each topic that this host holds queues of; those that fail alike share one, the worst come first."""
    of_topic: dict[str, list[dict[str, Any]]] = {}
    for each in shards:
        of_topic.setdefault(each["topic"] or each["queue"], []).append(each)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in topics:
        if each.get("state") and (held := of_topic.get(each["topic"])):
            endpoints = ", ".join(sorted({shard["endpoint"] for shard in held if shard["endpoint"]})) or "-"
            remarks = sorted({remark for shard in held for remark in shard["remarks"]})
            said = "; ".join(filter(None, [each["reason"], *remarks]))
            fails = State.named(each["state"]).is_failing
            groups.setdefault(("" if fails else each["topic"], each["state"], endpoints, said), []).append(each)
    worst_first = sorted(groups.items(), key=lambda group: list(State).index(State.named(group[0][1])))
    return [_row(endpoints, said, members) for (_, _, endpoints, said), members in worst_first]


def _row(endpoints: str, said: str, members: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    found = together(topic_condition(each) for each in members)
    assert found is not None
    waiting = [each["backlog_entries"] for each in members if each["backlog_entries"] is not None]
    tilde = "" if all(each["backlog_exact"] for each in members) else "~"
    at_least = "at least " if len(waiting) < len(members) else ""
    return (
        some(each["topic"] for each in members),
        found.text,
        duration(found.since_s),
        "-" if found.next_attempt_s is None else when(found.next_attempt_s).removeprefix("in "),
        str(sum(each["queues"] for each in members)),
        f"{at_least}{tilde}{sum(waiting)}" if waiting else "-",
        endpoints,
        said,
    )


def topic_condition(topic: dict[str, Any]) -> Condition:
    """How a topic does, as the status says."""
    state, next_s = State.named(topic["state"]), topic["next_attempt_seconds"]
    return Condition(state, topic["reason"], topic["since_seconds"], next_s, topic["trying"])


def left_rows(left: list[dict[str, str]]) -> list[tuple[str, str]]:
    """The queues that are not held, those for the same reason together."""
    groups: dict[str, list[str]] = {}
    for each in left:
        groups.setdefault(each["reason"] + (f" ({each['owner']})" if each.get("owner") else ""), []).append(
            each["queue"]
        )
    return [(some(queues), reason) for reason, queues in groups.items()]


def some(queues: Iterable[str]) -> str:
    """The first of some queues, and how many there are besides."""
    first, *others = queues
    return f"{first} +{len(others)}" if others else first
