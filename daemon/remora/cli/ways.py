"""The way to a topic's endpoint, as commands try it step by step."""

from __future__ import annotations

from collections.abc import Sequence

import click

from remora import endpoint_kinds
from remora.cli.output import print_line, run_async
from remora.config import Settings
from remora.model.errors import RemoraError
from remora.model.topic import Topic
from remora.model.words import duration
from remora.ports.endpoint import ProbeStep

check_option = click.option(
    "--check", is_flag=True, help="First try the way to the endpoint, as `topic test` does; change nothing if it fails."
)


class CheckFailed(RemoraError):
    """The way to an endpoint does not work, so that nothing was changed."""


async def steps_of(
    topic: Topic, settings: Settings, *, sends_test: bool = False, shows: bool = True
) -> list[ProbeStep]:
    """Try the way to a topic's endpoint; each step is shown as soon as it is taken."""
    steps = []
    async for each in endpoint_kinds.probe(topic, settings, sends_test=sends_test):
        steps.append(each)
        if shows:
            word = {True: "ok", False: "FAILED", None: "-"}[each.ok]
            took = "-" if each.ok is None else duration(each.seconds)
            print_line(f"{each.name:<10} {word:<6} {took:>6}  {each.said}")
    return steps


def is_well(steps: list[ProbeStep]) -> bool:
    """Whether no step failed."""
    return all(each.ok is not False for each in steps)


def require_ways(topics: Sequence[Topic], settings: Settings) -> None:
    """Try the ways to topics' endpoints before these are made or changed. Raises CheckFailed with those that fail."""
    failed = []
    for topic in topics:
        if len(topics) > 1:
            print_line(f"{topic.name}:")
        if not is_well(run_async(steps_of(topic, settings))):
            failed.append(topic.name)
    if failed:
        raise CheckFailed(f"the way to the endpoint of {', '.join(failed)} does not work; nothing was changed")
