"""`remora send`: records from a file or standard input, into a topic of a running daemon."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import re
import secrets
import signal
import stat
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TimeElapsedColumn
from rich.text import Text

from remora.cli.options import FILE, daemon_option, gathered_into, json_option, seconds
from remora.cli.output import print_json, print_line
from remora.cli.record_sender import Counts, Outcome, RecordSender, SendPlan, reservable
from remora.cli.records import Bad, GivenRecord, Piece, read_records
from remora.cli.token_file import token_of
from remora.client import IngestClient, IngestMisconfigured, IngestUnavailable, NotPermitted
from remora.config import IngestSettings, Settings, TcpAddress, UnixAddress
from remora.model.errors import PermissionMissing, RemoraError
from remora.model.exits import Exit

IDLE_S = 0.2
"""Records that arrive one by one wait this long for others that could go with them."""

WAITING_EVERY_S = 10.0


_PREFIX = re.compile(r"[!-~]{0,200}")
_INPUT = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


class Unreadable(RemoraError):
    """The input broke off."""


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of `remora send`."""

    matching: bool
    address: str | None
    batch: int
    connections: int
    token_file: Path | None
    ca_file: Path | None
    timeout_s: float
    skip_malformed: bool
    two_phase: bool
    idempotency_prefix: str
    as_json: bool


def _checked_prefix(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """What begins a header's value; a server would refuse each record by itself for another one."""
    if not _PREFIX.fullmatch(value):
        raise click.BadParameter("expected at most 200 printable characters of ASCII without spaces")
    return value


@click.command()
@click.argument("topic", required=False)
@click.argument("file", default="-", type=_INPUT)
@click.option("--matching", is_flag=True, help="Name no topic: events go where notifications send them.")
@click.option("--to", "address", help="unix:/path, http://host:port or https://host:port  [default: as configured]")
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Records in a request.")
@click.option("--connections", type=click.IntRange(1, 64), default=4, show_default=True, help="Requests at a time.")
@click.option("--token-file", type=FILE, help="A file with the token.")
@click.option("--ca-file", type=FILE, help="Whose signature the server's certificate must have.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=seconds,
    help="How long to keep trying while the server is away or a queue is full; seconds or with a unit. Waits for a rate"
    " limit (429) count by themselves, up to 4 minutes a request.",
)
@click.option("--skip-malformed", is_flag=True, help="Count malformed records and go on.")
@click.option("--two-phase", is_flag=True, help="Reserve room for each request before it is sent.")
@click.option(
    "--idempotency-prefix",
    default="",
    callback=_checked_prefix,
    help="Begins the idempotency keys: the same input sent again, with the same options, is recognised.",
)
@json_option
@daemon_option
@gathered_into(_Options)
def send(settings: Settings, topic: str | None, file: Path, asked: _Options) -> None:
    """Send the records in FILE, or on standard input, to TOPIC of a running daemon.

    The input is lines of records in S3's event format, or {"Records":[...]} documents. Records of one bucket and key
    are stored in their order. A malformed record ends the sending once all before it are stored; the command
    reports its line. If the input has no records, only the topic is checked. At the end the command counts the records
    by outcome. Exit code 0 only if all are stored; 69 when the server could not be reached, 77 without permission;
    else 1.

    With --matching the only argument is FILE. An event that matches no notification is counted, and is no failure
    unless the server refuses it.

    \b
    Examples:
      remora send photos events.ndjson
      remora send --matching events.ndjson
    """
    if asked.matching:
        topic, file = None, _only(topic, file)
    elif topic is None:
        raise click.UsageError("Missing argument 'TOPIC'; only with --matching there is none.")
    plan = SendPlan(
        topic=topic,
        batch=asked.batch,
        connections=asked.connections,
        name=asked.idempotency_prefix or secrets.token_hex(8),
        repeatable=bool(asked.idempotency_prefix),
        two_phase=asked.two_phase,
        skip_malformed=asked.skip_malformed,
    )
    token = token_of(asked.token_file)
    (topic or "").encode()  # one that is no UTF-8 is wrong usage
    try:
        client = IngestClient(
            asked.address or _configured(settings.ingest),
            token=token,
            ca_file=asked.ca_file,
            connections=asked.connections,
            deadline_s=asked.timeout_s,
        )
    except IngestMisconfigured as exc:
        raise click.BadParameter(str(exc), param_hint="'--to'") from exc
    outcome, client.on_wait = Outcome(), WaitNotice(asked.timeout_s).tell
    with _opened(file) as fd, _progress(fd, outcome.counts) as on_read, contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_send(client, plan, fd, outcome, on_read))
    if isinstance(outcome.failure, NotPermitted) and outcome.failure.wants_token and not token:
        outcome.failure = PermissionMissing("the server wants a token: name a file with one by --token-file")
    _report(outcome, "<stdin>" if str(file) == "-" else str(file), as_json=asked.as_json, matching=asked.matching)
    sys.exit(_exit_code(outcome))


def _only(first: str | None, file: Path) -> Path:
    """The input where no topic is named before it."""
    if str(file) != "-":
        raise click.UsageError(f"Got unexpected extra argument ({file}): with --matching no topic is named.")
    return _INPUT.convert(first or "-", None, None)


class WaitNotice:
    """Says on standard error what the sending waits for: at once, and then every 10 s."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._said_at = -math.inf

    def tell(self, why: str, elapsed_s: float) -> None:
        """An attempt failed, and is made again. Requests that wait side by side wait for the same."""
        if self._clock() - self._said_at >= WAITING_EVERY_S:
            self._said_at = self._clock()
            print_line(f"remora: waiting, {why} ({elapsed_s:.0f} s of {self._timeout_s:g} s)", err=True)


def _configured(settings: IngestSettings) -> str:
    """Where the daemon of this configuration listens."""
    match settings.address:
        case UnixAddress(path):
            return f"unix:{path}"
        case TcpAddress(host, port):
            scheme = "https" if settings.tls_certificate else "http"
            return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        case None:
            raise click.UsageError("ingest.listen is empty in the configuration: say where to send with --to")


async def _send(
    client: IngestClient, plan: SendPlan, fd: int, outcome: Outcome, on_read: Callable[[int], None]
) -> None:
    sender = RecordSender(client, plan, outcome)
    async with client, _until_signalled(sender, outcome), sender:
        feeding = asyncio.create_task(_feed(sender, plan, fd, outcome, on_read))
        stopped = asyncio.create_task(sender.stopped.wait())
        try:
            await asyncio.wait([feeding, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            feeding.cancel()
            await asyncio.wait([feeding])
        if not feeding.cancelled():
            feeding.result()
        if plan.topic is not None and not (outcome.counts.read or outcome.failure or outcome.interrupted):
            try:  # nothing was sent, so no answer has said yet whether there is such a topic
                await client.check_topic(plan.topic)
            except RemoraError as exc:
                outcome.failure = exc


async def _feed(
    sender: RecordSender, plan: SendPlan, fd: int, outcome: Outcome, on_read: Callable[[int], None]
) -> None:
    """Give the sender all records, up to the first malformed one where that ends it."""
    try:
        await _feed_all(sender, plan, fd, outcome, on_read)
    except OSError as exc:
        outcome.failure = Unreadable(f"cannot read on: {exc.strerror}")


async def _feed_all(
    sender: RecordSender, plan: SendPlan, fd: int, outcome: Outcome, on_read: Callable[[int], None]
) -> None:
    async with aclosing(read_records(fd)) as pieces, aclosing(_unhurried(pieces, sender)) as patient:
        # With keys that have to be the same the next time, what is sent together may not depend on when it comes.
        async for piece in pieces if plan.repeatable else patient:
            for found in piece.found:
                outcome.counts.read += 1
                each = _checked(found, plan)
                if isinstance(each, GivenRecord):
                    await sender.give(each)
                    continue
                outcome.refuse(each)
                if not plan.skip_malformed:
                    return
            on_read(piece.nbytes)


async def _unhurried(pieces: AsyncGenerator[Piece], sender: RecordSender) -> AsyncGenerator[Piece]:
    """The pieces; while none comes, what was given before is sent."""
    while True:
        coming = asyncio.ensure_future(anext(pieces, None))
        try:
            done, _ = await asyncio.wait([coming], timeout=IDLE_S)
            if not done:
                await sender.flush()
            piece = await coming
        finally:
            coming.cancel()
            await asyncio.wait([coming])
        if piece is None:
            return
        yield piece


def _checked(found: GivenRecord | Bad, plan: SendPlan) -> GivenRecord | Bad:
    if plan.two_phase and isinstance(found, GivenRecord) and not reservable(found):
        return Bad(found.line, "s3.object.key: is not UTF-8, so that no room can be reserved")
    return found


@asynccontextmanager
async def _until_signalled(sender: RecordSender, outcome: Outcome) -> AsyncIterator[None]:
    """The first signal stops the sending, requests under way are finished; a second one gives them up too."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if outcome.interrupted:
            task.cancel()
        outcome.interrupted = True
        sender.stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    if str(file) == "-":
        yield sys.stdin.fileno()
        return
    with file.open("rb", buffering=0) as opened:
        yield opened.fileno()


# ------------------------------------------------------------------------------------------ what is shown


class _StoredSoFar(ProgressColumn):
    """How many records are stored by now."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def render(self, task: Task) -> Text:
        """The figure, and the rate over the whole time."""
        stored = self._counts.stored + self._counts.repeated
        rate = stored / task.elapsed if task.elapsed else 0.0
        return Text(f"{stored:,} stored, {rate:,.0f}/s")


@contextmanager
def _progress(fd: int, counts: Counts) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal; yields a function that takes the bytes read."""
    status = os.fstat(fd)
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(binary_units=True), _StoredSoFar(counts), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("sending", total=total)
        yield lambda nbytes: progress.advance(task, nbytes)


def _report(outcome: Outcome, name: str, *, as_json: bool, matching: bool) -> None:
    counts = outcome.counts
    for bad in outcome.refusals:
        print_line(f"{name}:{bad.line}: {bad.reason}", err=True)
    if counts.refused > len(outcome.refusals):
        print_line(f"remora: {counts.refused - len(outcome.refusals)} more were refused", err=True)
    if outcome.failure is not None:
        print_line(f"remora: {outcome.failure}", err=True)
    if outcome.interrupted:
        print_line("remora: interrupted", err=True)
    if as_json:
        said = dataclasses.asdict(counts) | {"not_stored": counts.not_stored}
        print_json(said | ({"copies": dict(sorted(outcome.copies.items()))} if matching else {}))
        return
    if matching:
        print_line(
            f"read {counts.read}, stored {counts.stored}, unmatched {counts.unmatched}, refused {counts.refused},"
            f" not stored {counts.not_stored}, unknown {counts.unknown}"
        )
        for topic, copies in sorted(outcome.copies.items()):
            print_line(f"  {topic}: {copies} stored")
        return
    print_line(
        f"read {counts.read}, stored {counts.stored}, repeated {counts.repeated}, refused {counts.refused},"
        f" not stored {counts.not_stored}, unknown {counts.unknown}; fields dropped {counts.dropped_fields}"
    )


def _exit_code(outcome: Outcome) -> Exit:
    if isinstance(outcome.failure, IngestUnavailable):
        return Exit.UNAVAILABLE
    if isinstance(outcome.failure, PermissionMissing):
        return Exit.NO_PERMISSION
    is_complete = outcome.counts.all_stored and outcome.failure is None and not outcome.interrupted
    return Exit.OK if is_complete else Exit.FAILURE
