"""How a demo tells its story: lines with the time, a list of checks, a verdict at the end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from devkit.clusters.state import cache_home
from devkit.demo import verdict
from devkit.demo.stand import DemoError, is_orphan
from remora_pipeline.replay import layout

Samples = Mapping[tuple[str, str, str], float]
"""Metrics by name, `topic` and `le`."""

console = Console(highlight=False, soft_wrap=True)
started = time.monotonic()


def tell(text: str) -> None:
    """One line of progress."""
    console.print(f"[dim]{time.monotonic() - started:6.1f} s[/]  {text}")


@contextlib.contextmanager
def step(doing: str) -> Iterator[None]:
    """Something that takes a while: a spinner on a terminal."""
    with console.status(f"{doing} ..."):
        yield


class Checks:
    """What was looked at, with what was found wrong."""

    def __init__(self) -> None:
        self._found: list[tuple[str, list[str]]] = []

    def add(self, what: str, wrong: Sequence[str]) -> None:
        """One more; `wrong` is empty when all is well."""
        self._found.append((what, list(wrong)))

    def show(self, praise: str) -> bool:
        """Print all of them and the verdict; returns whether all is well."""
        self.show_each()
        return self.show_verdict(praise)

    def show_each(self) -> None:
        """Print all of them, with the first things that were found wrong."""
        for what, wrong in self._found:
            console.print(f"            {'[red]WRONG[/]' if wrong else '[green]ok[/]   '}  {what}")
            for each in wrong[:5]:
                console.print(f"                     {each[:600]}", markup=False)

    def show_verdict(self, praise: str) -> bool:
        """Print PASS with this praise, or FAIL; returns whether all is well."""
        failed = sum(bool(wrong) for _, wrong in self._found)
        if failed:
            console.print(f"[bold red]FAIL[/]  {failed} of {len(self._found)} checks failed")
        else:
            console.print(f"[bold green]PASS[/]  {praise}")
        return not failed


class Faults:
    """What was done to the servers, and when; the report's pictures show it."""

    def __init__(self) -> None:
        self._found: list[layout.Fault] = []

    @contextlib.contextmanager
    def lasting(self, name: str) -> Iterator[None]:
        """Something is wrong for as long as the block runs."""
        since = time.time()
        yield
        self._found.append(layout.Fault(name, int(since * 1e6), int(time.time() * 1e6)))

    def write(self, file: Path) -> None:
        """Leave them for the report."""
        layout.write(file, sorted(self._found, key=lambda each: each.from_us))


def show_metrics(topics: Sequence[str], part: str, before: Samples, after: Samples) -> None:
    """The excerpt of /metrics that an operator would look at first; ages are of the part between the two."""
    name = "remora_event_age_seconds_bucket"
    ages: dict[float, float] = {}
    for (metric, topic, le), count in after.items():
        if metric == name and topic in topics:
            ages[float(le)] = ages.get(float(le), 0.0) + count - before.get((name, topic, le), 0.0)
    table = Table("from /metrics", "", box=None, padding=(0, 2, 0, 12))
    table.add_row(f"remora_event_age_seconds, {part}: p50", f"{verdict.quantile(0.5, ages) * 1000:.0f} ms")
    table.add_row(f"remora_event_age_seconds, {part}: p99", f"{verdict.quantile(0.99, ages) * 1000:.0f} ms")
    for metric in ("delivered_entries", "removed_entries", "failures", "parked_entries"):
        total = sum(
            count for (found, topic, _), count in after.items() if found == f"remora_{metric}_total" and topic in topics
        )
        table.add_row(f"remora_{metric}_total", f"{total:.0f}")
    console.print(table)


def show_counts(counts: Mapping[str, int]) -> None:
    """What a verification counted: what came of the events, then what may not be."""
    good = ("in_trace", "acked", "unknown", "rejected", "in_kafka")
    bad = ("lost", "duplicates", "inversions", "keys_in_several_partitions", "ghosts", "foreign", "chain_gaps")
    for names in (good, bad):
        line = ", ".join(f"{name.replace('_', ' ')} {counts[name]}" for name in names if name in counts)
        console.print(f"            {line}")


def show_commands(*lines: str) -> None:
    """What to type next."""
    for line in lines:
        console.print(f"            {line}", markup=False)


@contextlib.contextmanager
def working_folder(name: str, keep: bool) -> Iterator[Path]:
    """For the daemon's configuration, which may name a keyring, its log, and the embedded store's files."""
    folder = cache_home() / "demo" / name
    for old in [folder, *(each for each in folder.parent.glob("demo-*") if is_orphan(each.name))]:
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder)


async def run_to_the_end(story: Coroutine[None, None, bool]) -> int:
    """Run a demo to its end or to the first signal; whatever was started is stopped before this returns."""
    demo = asyncio.create_task(story)
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

    def interrupt() -> None:
        tell("interrupted: stopping what was started")
        demo.cancel()
        for each in signals:  # further ones must not end the clearing up
            asyncio.get_running_loop().add_signal_handler(each, lambda: None)

    for each in signals:
        asyncio.get_running_loop().add_signal_handler(each, interrupt)
    try:
        return 0 if await demo else 1
    except asyncio.CancelledError:
        return 130
    except DemoError as exc:
        console.print(f"[bold red]FAIL[/]  {exc}")
    except Exception:
        console.print_exception()
        console.print("[bold red]FAIL[/]  the demo itself broke, see above")
    return 1
