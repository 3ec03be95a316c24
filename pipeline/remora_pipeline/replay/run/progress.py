"""How far a replay is, from its journals alone: they are read along while tasks write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from remora.cli import steps
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.run.journal import FinalOutcome, Line, SendIntent, Tail, journals
from remora_pipeline.replay.shape import OUTCOMES, UNKNOWN

_LOOK_S = 0.25


@dataclass
class JournalCounts:
    """Events by what all journals say of them; the rate is of what was sent since `since_us`."""

    since_us: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    attempted: int = 0
    repetitions: int = 0
    limited: int = 0
    limited_us: int = 0
    """How often requests waited for a rate limit (429), and for how long together."""
    _answered: int = 0
    _lately: int = 0
    _first_us: int = 0
    _last_us: int = 0

    @property
    def final(self) -> int:
        """The number of events with a known outcome."""
        return sum(self.outcomes.values())

    @property
    def rate(self) -> float:
        """Events answered for each second, from the first request to the last answer."""
        return self._lately * 1e6 / max(1, self._last_us - self._first_us) if self._lately else 0.0

    def add(self, line: Line) -> None:
        """Count a line."""
        match line:
            case SendIntent(tries=1):
                self.attempted += len(line.seqs)
                if line.sent_us >= self.since_us:
                    self._first_us = min(self._first_us or line.sent_us, line.sent_us)
            case SendIntent():
                self.repetitions += 1
            case FinalOutcome():
                self.outcomes[line.outcome] = self.outcomes.get(line.outcome, 0) + len(line.seqs)
                self.limited += line.limited
                self.limited_us += line.limited_us
                if line.done_us is not None:
                    self._answered += len(line.seqs)
                    if line.done_us >= self.since_us:
                        self._lately += len(line.seqs)
                        self._last_us = max(self._last_us, line.done_us)

    def settled(self) -> dict[str, int]:
        """The outcomes, after the last writer has ended: what was sent and not answered for is unknown."""
        return self.outcomes | {UNKNOWN: self.outcomes[UNKNOWN] + self.attempted - self._answered}


class Reading:
    """Reads all journals of a run along."""

    def __init__(self, run: RunDirectory, since_us: int) -> None:
        self._run = run
        self._tails: dict[Path, Tail] = {}
        self.counts = JournalCounts(since_us)

    def look(self) -> JournalCounts:
        """Count what is new. Raises ReplayRefused for a journal that cannot be read."""
        for path in journals(self._run):
            for line in self._tails.setdefault(path, Tail(path)).lines():
                self.counts.add(line)
        return self.counts


@contextmanager
def shown(reading: Reading, total: int) -> Iterator[None]:
    """A bar on standard error while the block runs, where that is a terminal; elsewhere a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        with steps.told(far=lambda: _far(reading, total)) as tell:
            tell(f"sending {total:,} events")
            yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total, told="")

        def update() -> None:
            with suppress(ReplayError):  # the job itself says so
                counts = reading.look()
                what = "sending" if counts.attempted else "starting"
                progress.update(task, description=what, completed=counts.final, told=told(counts))

        with steps.again_and_again(_LOOK_S, update):
            yield


def _far(reading: Reading, total: int) -> str:
    """How far the sending is, with the time left."""
    try:
        counts = reading.look()
    except ReplayError:  # the job itself says so
        return ""
    if not counts.attempted:
        return ""
    left_s = int((total - counts.final) / counts.rate) if counts.rate else 0
    left = f", about {left_s // 60:02}:{left_s % 60:02} left" if counts.rate else ""
    return f"{counts.final:,} of {total:,}, {told(counts)}{left}"


def told(counts: JournalCounts) -> str:
    """The figures beside the bar."""
    troubles = [f"{number:,} {name}" for name, number in counts.outcomes.items() if number and name != "acked"]
    return ", ".join([f"{counts.outcomes['acked']:,} acked", *troubles, f"{counts.rate:,.0f}/s"])
