"""`remora topic test`, and the checks of `create` and `apply`: the way to a topic's endpoint, step by step."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import click

from remora import app, endpoint_kinds
from remora.cli.options import config_option, json_option
from remora.cli.output import print_json, print_line, run_async
from remora.cli.rows import UnknownTopic, origin_option, row_named
from remora.config import Settings
from remora.model.errors import RemoraError
from remora.model.exits import Exit
from remora.model.probe import ProbeStep
from remora.model.shard import Origin
from remora.model.topic import Topic
from remora.model.words import duration

check_option = click.option(
    "--check", is_flag=True, help="First try the way to the endpoint, as `topic test` does; change nothing if it fails."
)


class CheckFailed(RemoraError):
    """The way to an endpoint does not work, so that nothing was changed."""


@click.command("test")
@click.argument("name")
@click.option("--send-test", "sends_test", is_flag=True, help="End with an s3:TestEvent, which receivers get.")
@origin_option
@config_option
@json_option
def test_command(settings: Settings, name: str, sends_test: bool, origin: Origin | None, as_json: bool) -> None:
    """Try the way to the endpoint of topic NAME, step by step, from this host.

    Looks up names, connects, agrees on TLS, logs in, and looks whether the topic, exchange or path is there and this
    user may write to it. It sends no event unless --send-test is given; where a protocol shows nothing without one it
    says so. It goes on up to the first step that fails, and ends with exit code 1 then. The daemon need not run.

    \b
    Examples:
      remora topic test orders
      remora topic test hooks --send-test
    """

    async def work() -> list[ProbeStep]:
        async with app.store_of(settings) as store:
            row = await row_named(store, name, origin)
        if row.topic is None:
            raise UnknownTopic(f"topic {name!r}: its metadata cannot be read, and nothing else tells its endpoint")
        return await steps_of(row.topic, settings, sends_test=sends_test, shows=not as_json)

    steps = run_async(work())
    if as_json:
        print_json([dataclasses.asdict(each) for each in steps])
    if not is_well(steps):
        sys.exit(Exit.FAILURE)


async def steps_of(
    topic: Topic, settings: Settings, *, sends_test: bool = False, shows: bool = True
) -> list[ProbeStep]:
    """Try the way to a topic's endpoint; each step is shown as soon as it is taken."""
    steps = []
    async for each in endpoint_kinds.probe(topic, settings, sends_test=sends_test):
        steps.append(each)
        if shows:
            print_line(step_line(each))
    return steps


def step_line(step: ProbeStep) -> str:
    """A step with its time."""
    word = {True: "ok", False: "FAILED", None: "-"}[step.ok]
    took = "-" if step.ok is None else duration(step.seconds)
    return f"{step.name:<10} {word:<6} {took:>6}  {step.said}"


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
