"""What a long job tells of itself while it runs."""

from __future__ import annotations

import io
import re
import threading

from remora.cli.steps import told


class Log(io.StringIO):
    """A log file that says when it has this many lines."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self._lines = lines
        self.is_long = threading.Event()

    def write(self, text: str) -> int:
        """As a file does."""
        written = super().write(text)
        if self.getvalue().count("\n") >= self._lines:
            self.is_long.set()
        return written


def test_a_step_that_lasts_is_told_again_and_again() -> None:
    """Without a terminal each step makes a line when it begins, and further ones while it lasts, with the time."""
    log = Log(4)

    with told(log, every_s=0.01) as tell:
        tell("reading 7 records")
        assert log.is_long.wait(60)
        tell("comparing")

    lines = log.getvalue().splitlines()
    assert all(re.fullmatch(r"remora: \d\d:\d\d (reading 7 records|comparing|starting)", line) for line in lines)
    assert sum(line.endswith("reading 7 records") for line in lines) > 1
    assert lines[-1].endswith("comparing")


def test_how_far_a_step_is_stands_behind_it() -> None:
    """The further lines of a step say how far it is by then; its first one, and those where nobody knows, do not."""
    log, far = Log(4), iter(["1 of 9 tasks", "", "9 of 9 tasks"])

    with told(log, every_s=0.01, far=lambda: next(far, "9 of 9 tasks")) as tell:
        tell("reading")
        assert log.is_long.wait(60)

    assert [line.split(" ", 2)[2] for line in log.getvalue().splitlines()[:4]] == [
        "reading",
        "reading (1 of 9 tasks)",
        "reading",
        "reading (9 of 9 tasks)",
    ]


def test_a_step_is_told_as_it_begins() -> None:
    """A step has its line at once, however long the next one of the clock is away."""
    log = Log(1)

    with told(log, every_s=3600) as tell:
        tell("reading")
        assert log.getvalue() == "remora: 00:00 reading\n"


def test_what_ends_soon_makes_no_line() -> None:
    """With a time that may pass in silence the first line comes after it, and none where the block ends before."""
    short, long = Log(1), Log(2)

    with told(short, every_s=3600, after_s=3600) as tell:
        tell("waiting")
    with told(long, every_s=0.01, after_s=0.02) as tell:
        tell("waiting")
        assert long.is_long.wait(60)

    assert short.getvalue() == ""
    assert long.getvalue().startswith("remora: 00:00 waiting\n")


class Terminal(io.StringIO):
    """A terminal that nobody reads."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_a_terminal_has_one_line_for_steps_within_steps() -> None:
    """A step that is told within another takes its line over, and gives it back."""
    outer, inner = Terminal(), Terminal()

    with told(outer) as tell:
        tell("looking")
        with told(inner) as tell_more:
            tell_more("waiting for the cluster")

    shown = re.findall("looking|waiting for the cluster", outer.getvalue())
    assert (shown[-1], inner.getvalue()) == ("looking", "")
