"""`remora replay run`: the events of a trace, sent again."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from remora.cli.options import (
    FILE,
    FOLDER,
    NEW_FOLDER,
    gathered_into,
    json_option,
    master_option,
    region_option,
    seconds,
)
from remora.cli.output import print_json, print_line
from remora.cli.steps import told
from remora.cli.token_file import token_of
from remora.model.words import several
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.layout import Options, PreparedDirectory, RunDirectory, Trace, see_folder
from remora_pipeline.replay.prepared import buckets as buckets_of
from remora_pipeline.replay.prepared import see_events, trace_of
from remora_pipeline.replay.run import job
from remora_pipeline.replay.run.plan import INGEST, NULL, S3, ReplayPlan, TargetSecrets, checked, taken
from remora_pipeline.replay.run.progress import Reading, shown
from remora_pipeline.replay.run.sender import OVERLOADS, WAIT, TaskLimits
from remora_pipeline.replay.session import ONCE, session
from remora_pipeline.replay.shape import COPY

_DEFAULT_INGEST = "unix:/run/remora/ingest.sock"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_RETRY_S = 300.0
"""The server knows a repetition for ten minutes; this stays well below."""


def _run_id(_context: click.Context, _option: click.Parameter, value: str | None) -> str:
    if value is None:
        return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"
    if not _RUN_ID.fullmatch(value):
        raise click.BadParameter("expected up to 64 letters, digits, dots, dashes or underscores")
    return value


def _speed(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of times")
    return value


def _retry_s(context: click.Context, option: click.Parameter, value: str) -> float | None:
    found = seconds(context, option, value)
    if found is not None and found > _LONGEST_RETRY_S:
        raise click.BadParameter("the most is 5m: later a server may not know a repetition any more")
    return found


@dataclass(frozen=True, slots=True)
class _RunOptions:
    """The options of `remora replay run`."""

    out: Path
    topic: str
    speed: float | None
    closed_loop: int | None
    ingest: str | None
    s3: str | None
    null: bool
    token_file: Path | None
    ca_file: Path | None
    parts: int | None
    run_id: str
    batch: int
    concurrency: int | None
    window: int
    overload: str
    retry_s: float
    size_cap: int
    create_buckets: bool
    region: str
    resume: bool
    is_dry: bool
    master: str | None
    as_json: bool


@click.command("run")
@click.argument("prepared", type=FOLDER)
@click.option("--out", required=True, type=NEW_FOLDER, help="The run's directory.")
@click.option("--topic", default="", help="remora's topic: events are sent to it, or the buckets notify it.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    callback=_speed,
    help="Times the trace's own; 0: as fast as allowed.  [default: 1]",
)
@click.option(
    "--closed-loop",
    type=click.IntRange(1, 1 << 20),
    metavar="N",
    help="As clients that wait: no schedule, and at most N requests under way, of all tasks together.",
)
@click.option(
    "--ingest",
    "ingest",
    metavar="ADDRESS",
    help=f"Send to this ingest API: unix:/path, http://host:port or https://host:port.  [default: {_DEFAULT_INGEST}]",
)
@click.option(
    "--s3",
    "s3",
    metavar="URL",
    help="Send to this S3 gateway instead, which then notifies; with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
)
@click.option("--null", "null", is_flag=True, help="Send nowhere, to measure the generator itself.")
@click.option("--token-file", type=FILE, help="A file with the ingest API's token.")
@click.option("--ca-file", type=FILE, help="Whose signature the server's certificate must have.")
@click.option(
    "--parts", type=click.IntRange(1, 4096), help="Tasks that send side by side.  [default: what Spark runs at a time]"
)
@click.option("--run-id", callback=_run_id, help="Begins every event id.  [default: made of the time]")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Most events of a request (ingest)."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 512),
    help="Requests under way, in each task.  [default: 8, or 32 with --s3]",
)
@click.option(
    "--window",
    type=click.IntRange(1, 10_000_000),
    default=10_000,
    show_default=True,
    help="Events due and not answered for, in each task.",
)
@click.option(
    "--overload",
    type=click.Choice(OVERLOADS),
    default=WAIT,
    show_default=True,
    help="When the window is full: send late, leave events out, or end.",
)
@click.option(
    "--retry-for",
    "retry_s",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=_retry_s,
    help="How long a request is tried, beside up to 4 minutes of waiting for a rate limit (429).",
)
@click.option(
    "--size-cap", type=click.IntRange(0, 1 << 30), default=1024, show_default=True, help="Most bytes of an object (S3)."
)
@click.option(
    "--create-buckets", is_flag=True, help="Create the buckets that are not there, and have them notify --topic (S3)."
)
@region_option
@click.option("--resume", is_flag=True, help="Go on with a replay that was broken off.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Ask the target, say what would be sent, and send nothing.")
@master_option
@json_option
@gathered_into(_RunOptions)
def run_command(prepared: Path, asked: _RunOptions) -> None:
    """Send the events in PREPARED again, on their own timeline, and keep a journal of each event's outcome.

    An event is sent when it is due, independently of others; only events of one key wait for each other. An event that
    cannot be sent in time is sent late (--overload), and the report has the lateness. This command alone repeats a
    request that was refused or whose answer was lost, and the ingest API never stores it twice; with S3 an event whose
    answer was lost counts as unknown.

    A directory is for one replay. After an interruption --resume sends the events that no journal has; an event that
    was sent without an answer stays unknown and is not sent again.

    \b
    Examples:
      remora replay run trace --out run-1 --topic photos --speed 60
      remora replay run trace --out run-2 --topic photos --speed 0 --ingest http://127.0.0.1:9751
      remora replay run trace --out run-3 --topic photos --speed 10 --s3 http://127.0.0.1:8000
      remora replay run trace --out run-4 --topic photos --closed-loop 16

    Exit codes: 0 all events are answered for, whatever the answers; 1 failed or interrupted; 2 wrong usage.
    """
    target, address = _target(asked.ingest, asked.s3, null=asked.null)
    if target != NULL and not asked.topic:
        raise click.UsageError("--topic is missing: say where events go to")
    speed = _pace(asked)
    if asked.overload != WAIT and not speed:
        raise click.UsageError(f"--overload {asked.overload} needs a --speed: with 0 everything is due at once")
    concurrency = asked.concurrency or (32 if target == S3 else 8)
    plan = ReplayPlan(
        run=str(asked.out.absolute()),
        run_id=asked.run_id,
        started_us=time.time_ns() // 1000,
        target=target,
        address=address,
        topic=asked.topic,
        speed=speed,
        batch=asked.batch,
        size_cap=asked.size_cap,
        region=asked.region,
        ca_file=str(asked.ca_file.absolute()) if asked.ca_file else None,
        limits=TaskLimits(concurrency, asked.window, asked.overload, asked.retry_s),
        closed_loop=asked.closed_loop,
        credentials=_credentials(target, asked.token_file, os.environ),
    )
    options: Options = {
        "batch": asked.batch, "concurrency": concurrency, "window": asked.window, "overload": asked.overload,
        "retry_for_s": asked.retry_s, "size_cap": asked.size_cap, "create_buckets": asked.create_buckets,
        "master": asked.master, "closed_loop": asked.closed_loop,
    }  # fmt: skip
    source, run = PreparedDirectory(prepared), RunDirectory(asked.out)
    trace = trace_of(source)
    see_events(source)
    parts = asked.parts
    if asked.resume:
        plan, parts = job.resumed(plan, run, trace, parts)
    else:
        job.refuse_used(run)
    buckets = buckets_of(source) if target == S3 else set()
    check = functools.partial(
        checked, buckets=sorted(buckets), copies=COPY in trace.operations, create_buckets=asked.create_buckets
    )
    if asked.is_dry:
        where = " ".join(filter(None, (target, address)))
        plan, missing = asyncio.run(check(plan, is_dry=True))
        print_line(
            f"{prepared}: would send {several(trace.events, 'event')} of {several(trace.keys, 'key')} to {where}"
        )
        print_line(f"{where}: {taken(plan, buckets, missing)}")
        return
    with ExitStack() as stack:
        with told() as tell:
            tell(f"asking {address or 'nobody'} whether it takes the events")
            plan, _ = asyncio.run(check(plan))
            see_folder(run.path)
            tell("starting Spark")
            spark = stack.enter_context(session("replay run", master=asked.master, light=True, settings=ONCE))
        reading = Reading(run, since_us=plan.started_us if not asked.resume else time.time_ns() // 1000)
        parts = parts or min(job.default_parts(spark), asked.closed_loop or 4096)
        if not asked.resume:
            job.begin(source, run, trace, plan, parts, options)
        try:
            with shown(reading, trace.events):
                punctuality = job.replay(spark, source, plan, parts, resume=asked.resume)
        except KeyboardInterrupt:
            _report(plan.run_id, trace, reading, None, as_json=asked.as_json)
            raise ReplayError("interrupted; --resume goes on with it") from None
        except ReplayError:
            _report(plan.run_id, trace, reading, None, as_json=asked.as_json)
            raise
    _report(plan.run_id, trace, reading, punctuality, as_json=asked.as_json)


def _pace(asked: _RunOptions) -> float:
    """The speed. A closed loop has no schedule."""
    if asked.closed_loop is None:
        return 1.0 if asked.speed is None else asked.speed
    if asked.speed or asked.concurrency:
        raise click.UsageError("--closed-loop says how many requests wait: leave --speed and --concurrency out")
    if asked.parts and asked.parts > asked.closed_loop:
        raise click.UsageError("--closed-loop must be --parts or more: each task has a request under way")
    return 0.0


def _target(ingest: str | None, s3: str | None, *, null: bool) -> tuple[str, str]:
    """The kind of target, and its address."""
    if (ingest is not None) + (s3 is not None) + null > 1:
        raise click.UsageError("--ingest, --s3 and --null exclude each other")
    if null:
        return NULL, ""
    return (INGEST, ingest or _DEFAULT_INGEST) if s3 is None else (S3, s3)


def _credentials(target: str, token_file: Path | None, environment: Mapping[str, str]) -> TargetSecrets:
    if target == INGEST:
        return TargetSecrets(token=token_of(token_file))
    if target == NULL:
        return TargetSecrets()
    access, secret = environment.get("AWS_ACCESS_KEY_ID", ""), environment.get("AWS_SECRET_ACCESS_KEY", "")
    if not (access and secret):
        raise click.UsageError("--s3 needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
    return TargetSecrets(access_key=access, secret_key=secret, session_token=environment.get("AWS_SESSION_TOKEN", ""))


def _report(run_id: str, trace: Trace, reading: Reading, punctuality: job.Punctuality | None, *, as_json: bool) -> None:
    """Print what came of it; without `punctuality` the replay was broken off."""
    counts = reading.look()
    outcomes = counts.settled()
    offered = sum(outcomes.values())
    if as_json:
        print_json(
            {"run_id": run_id, "in_trace": trace.events, "offered": offered}
            | outcomes
            | {"repetitions": counts.repetitions, "rate": round(counts.rate, 1)}
            | {"limited": counts.limited, "limited_us": counts.limited_us}
            | {
                "lateness_p50_us": punctuality and punctuality.p50_us,
                "lateness_p99_us": punctuality and punctuality.p99_us,
            }
        )
        return
    figures = ", ".join(f"{number:,} {name}" for name, number in outcomes.items())
    if counts.limited:
        figures += (
            f"; waited {several(counts.limited, 'time')} for a rate limit, {_milliseconds(counts.limited_us)} in all"
        )
    print_line(f"run {run_id}: {offered:,} of {several(trace.events, 'event')} offered: {figures}")
    if punctuality is not None and punctuality.p50_us is not None and punctuality.p99_us is not None:
        print_line(
            f"{counts.rate:,.0f} events/s, {several(counts.repetitions, 'request')} repeated,"
            f" lateness p50 {_milliseconds(punctuality.p50_us)}, p99 {_milliseconds(punctuality.p99_us)}"
        )


def _milliseconds(us: int) -> str:
    return f"{us / 1000:,.1f} ms" if us < 1_000_000 else f"{us / 1_000_000:,.1f} s"
