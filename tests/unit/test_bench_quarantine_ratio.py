"""The benchmark of `quarantine.ratio`: its figure, its option, and what it shows of a small cluster."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import pytest

from devkit.bench import pictures
from devkit.bench.quarantine_ratio import MEAN_MB, deviation, ratios, sweep


def test_the_deviation_is_that_of_all_rates() -> None:
    """It is the root of the mean square of what each rate differs from the mean of all."""
    rates = [0.0, 100.0, 200.0, 100.0]

    mean, sigma = deviation(rates)

    assert mean == 100.0
    assert sigma == pytest.approx(statistics.pstdev(rates))


def test_ratios_are_percents() -> None:
    """The option takes percents with commas between, and nothing else."""
    assert ratios("100,30") == [1.0, 0.3]
    for text in ("", "30%", "101", "-1", "a,b"):
        with pytest.raises(argparse.ArgumentTypeError):
            ratios(text)


def test_a_part_of_the_hosts_keeps_rates_even() -> None:
    """Where all hosts leave a destination that fails, rates differ more than where 30 % do; what is sent in all is the
    same, and equal runs give equal figures."""
    rows = sweep([1.0, 0.3], hosts=12, destinations=12, minutes=6, seed=1)

    assert [(each["ratio"], each["early_release"]) for each in rows] == [
        (1, False),
        (0.3, False),
        (1, True),
        (0.3, True),
    ]
    for all_leave, some_leave in (rows[:2], rows[2:]):
        assert all_leave["stddev_mb"] > 1.5 * some_leave["stddev_mb"]
    assert all(each["mean_mb"] == pytest.approx(MEAN_MB) for each in rows)
    assert rows == sweep([1.0, 0.3], hosts=12, destinations=12, minutes=6, seed=1)


@pytest.mark.full("loads matplotlib for a picture that nothing depends on")
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """The deviations of each minute are drawn, with and without early release."""
    rows = sweep([1.0, 0.3], hosts=4, destinations=4, minutes=3, seed=1)

    pictures.draw("fleet", {"ratios": rows}, tmp_path / "ratio.png")
    assert (tmp_path / "ratio.png").stat().st_size > 1000
