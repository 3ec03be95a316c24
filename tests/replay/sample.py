"""The sample trace in tests/data/replay: invented, the same each time, small, and with all that makes traces hard.

`python tests/replay/sample.py` writes it again.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "data" / "replay" / "sample.csv.gz"

EVENTS = 2_000
_BEGIN_S = 1_766_300_400
_BUCKETS = ("harbour-raw", "harbour-reports", "tide.archive")
_ODD = (
    "tides/gauge 7+north%2B.csv",
    "tides/Höhe/Flut – März.csv",
    "tides/潮汐/観測.json",
    'tides/"quoted", and comma.csv',
    "tides/line\nbreak.txt",
    "tides//double/slash/",
    "tides/percent%/100%25",
    "tides/🌊",
    "../tides/up & <down>?.xml",
    " leading and trailing ",
)


def rows(seed: int = 7) -> list[tuple[int, str, str, str, int | None]]:
    """(ts_us, op, bucket, key, size) in order of time: bursts with ties, hot keys, overwrites, deletes, odd names."""
    draw = random.Random(seed)
    plain = [f"tides/2025/{draw.randrange(1, 13):02}/gauge-{n:03}.csv" for n in range(300)]
    found: list[tuple[int, str, str, str, int | None]] = []
    there: set[tuple[str, str]] = set()
    second = _BEGIN_S
    while len(found) < EVENTS:
        second += draw.choice((0, 1, 1, 1, 2, 3))
        for _ in range(draw.choice((1, 1, 2, 5, 12))):
            key = plain[min(int(draw.paretovariate(0.7)) - 1, len(plain) - 1)]
            place = (draw.choice(_BUCKETS), draw.choice(_ODD) if draw.random() < 0.1 else key)
            gone = place in there and draw.random() < 0.2
            op = "DELETE" if gone else draw.choices(("PUT", "COPY", "MPU_COMPLETE"), (90, 5, 5))[0]
            (there.discard if gone else there.add)(place)
            found.append((second * 1_000_000, op, *place, None if gone else int(draw.lognormvariate(9, 2))))
    return found[:EVENTS]


def text() -> str:
    """The sample as CSV with a header, in the columns that `remora replay prepare` knows by themselves."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("seq", "ts_us", "op", "bucket", "key", "size"))
    writer.writerows((seq, *row) for seq, row in enumerate(rows()))
    return out.getvalue()


if __name__ == "__main__":
    SAMPLE.parent.mkdir(parents=True, exist_ok=True)
    SAMPLE.write_bytes(gzip.compress(text().encode(), mtime=0))
