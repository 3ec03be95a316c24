"""How even `quarantine.ratio` keeps what the destinations of a cluster are sent, in virtual time.

The case is one in which the hosts may send to any destination, as writers of a replicated log may: each host divides
what it has evenly among the destinations that it does not have in quarantine. Each destination can take another rate.
One that is sent more answers nobody in time, as a broker does whose disk is busy. Each host goes by the daemon's own
policy (`remora.policy.ownership.quarantine`), window by window. A destination in quarantine gets a tenth of a share, by
which an early release finds out that it answers. A queue of remora's has one destination: what is held back waits, and
is sent to no other one.

The figure is the deviation of a destination's rate over the cluster, of all destinations and windows:

    sigma = sqrt( 1 / (D T)  *  sum over d, t of (r(d, t) - mean)^2 )

where r(d, t) is what the hosts sent to destination d a second in window t, and mean the mean of all of these.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from typing import Any

from remora.policy.ownership.quarantine import Quarantine, QuarantineOptions

WINDOW_S = 60
MEAN_MB = 100.0
"""Megabytes a second for each destination, if all had the same."""

LEAST_MB, MOST_MB = 80.0, 200.0
"""What a destination can take lies evenly between these."""

PROBE = 0.1
ERRORS = 5
"""Of a host in a window in which it has no answer in time."""


def ratios(text: str) -> list[float]:
    """An option's value: ratios in percent, with commas between."""
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        found = [-1]
    if not all(0 <= each <= 100 for each in found):
        raise argparse.ArgumentTypeError(f"{text}: expected numbers from 0 to 100 with commas between")
    return [each / 100 for each in found]


def sweep(found: Sequence[float], hosts: int, destinations: int, minutes: int, seed: int) -> list[dict[str, Any]]:
    """A row for each ratio, first with quarantines that last for their time, then with those that end early."""
    return [
        _row(QuarantineOptions(ratio=ratio, early_release=early), hosts, destinations, minutes, seed)
        for early in (False, True)
        for ratio in found
    ]


def deviation(rates: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of rates."""
    mean = math.fsum(rates) / len(rates)
    return mean, math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / len(rates))


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """The table."""
    print("early release   ratio   deviation of a destination's rate   mean of it   most")
    for row in rows:
        early = "yes" if row["early_release"] else "no"
        figures = f"{row['stddev_mb']:>26.1f} MB/s {row['mean_mb']:>17.1f} MB/s {row['most_mb']:>6.0f}"
        print(f"{early:13} {row['ratio']:>6.0%} {figures}")


def _row(options: QuarantineOptions, hosts: int, destinations: int, minutes: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)  # a simulation that repeats
    most = [chance.uniform(LEAST_MB, MOST_MB) for _ in range(destinations)]
    known = [Quarantine(options) for _ in range(hosts)]
    rates = [_window(known, most, minute, chance) for minute in range(minutes)]
    mean, sigma = deviation([rate for each in rates for rate in each])
    return {
        "ratio": options.ratio,
        "early_release": options.early_release,
        "mean_mb": mean,
        "stddev_mb": sigma,
        "most_mb": max(map(max, rates)),
        "by_minute_mb": [deviation(each)[1] for each in rates],
    }


def _window(known: Sequence[Quarantine], most: Sequence[float], minute: int, chance: random.Random) -> list[float]:
    """What each destination is sent in one window, at whose end each host decides."""
    now, names = float(minute * WINDOW_S), [str(number) for number in range(len(most))]
    of_host = MEAN_MB * len(most) / len(known)
    parts = [[PROBE if each.is_quarantined(name, now) else 1.0 for name in names] for each in known]
    shares = [[of_host * part / math.fsum(of) for part in of] for of in parts]
    rates = [math.fsum(share[place] for share in shares) for place in range(len(most))]
    is_late = [rate > can for can, rate in zip(most, rates, strict=True)]
    for each in known:
        for name, late in zip(names, is_late, strict=True):
            if late:
                each.error(name, "timeout", ERRORS)
            else:
                each.succeeded(name, now)
        each.close(now + WINDOW_S, {name: chance.random() for name in names})
    return rates
