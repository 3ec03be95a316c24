"""What the benchmark beside Outpost makes of its turns and of the requests that came."""

from __future__ import annotations

import pytest

from devkit.bench.against_outpost import OUTPOST, REMORA, print_table, row
from devkit.bench.errand import Sent


def turn(rate: float, cpu_us: float) -> Sent:
    """A turn of which only rate and processor time matter."""
    return Sent(rate, {"sender": cpu_us, "receiver": 2.0}, 7)


def test_a_row_has_the_medians_of_its_turns() -> None:
    """Rate and processor time are each the median of their own, and copies are those around the SIGKILL."""
    found = row(REMORA, [turn(1.0, 9.0), turn(3.0, 5.0), turn(2.0, 1.0)], 4)

    assert (found.rate, found.cpu_us, found.receiver_cpu_us, found.copies) == (2.0, 5.0, 2.0, 4)


@pytest.mark.parametrize(("rate", "verdict"), [(2000.0, "reached"), (1999.0, "MISSED")])
def test_the_daemon_is_held_to_twenty_times_the_rate(
    capsys: pytest.CaptureFixture[str], rate: float, verdict: str
) -> None:
    """Twenty times Outpost's rate is reached, less is missed, and the last line says so."""
    rows = [row(OUTPOST, [turn(100.0, 50.0)], 3), row(REMORA, [turn(rate, 5.0)], 0)]

    print_table(rows, rate / 100.0)

    assert capsys.readouterr().out.splitlines()[-1].endswith(verdict)
