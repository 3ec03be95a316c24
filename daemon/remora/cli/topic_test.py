"""`remora topic test`: the way to a topic's endpoint, step by step."""

from __future__ import annotations

import dataclasses
import sys

import click

from remora import app
from remora.cli.options import config_option, json_option
from remora.cli.output import print_json, run_async
from remora.cli.rows import UnknownTopic, origin_option, row_named
from remora.cli.ways import is_well, steps_of
from remora.config import Settings
from remora.model.exits import Exit
from remora.model.probe import ProbeStep
from remora.model.shard import Origin


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
