"""What the demo judges beyond the chain of positions: the order of S3's operations, radosgw's bytes, and ages.

Shares no code with the daemon. Each check returns what it found wrong, as texts; an empty list is a good one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from devkit.readers.consumer import Delivered

Event = tuple[str, int]


def event_of(record: Delivered) -> Event:
    """Name and object size."""
    event = record.event
    return event["eventName"], event["s3"]["object"]["size"]


def disordered(records: Iterable[Delivered], expected: Mapping[bytes, Sequence[Event]]) -> list[str]:
    """Keys whose events are not in the order in which they were caused."""
    by_key: dict[bytes, list[Event]] = defaultdict(list)
    for each in records:
        by_key[each.key].append(event_of(each))
    return [f"order of {key!r}: {found}" for key, found in by_key.items() if found != list(expected.get(key, ()))]


def differences(bodies: Iterable[bytes], posted: Iterable[bytes]) -> list[str]:
    """Bodies that radosgw did not post in exactly these bytes, and those of its posts that are not there."""
    ours, theirs = Counter(bodies), Counter(posted)
    only_ours, only_theirs = (ours - theirs).elements(), (theirs - ours).elements()
    return [f"only in Kafka: {each!r}" for each in only_ours] + [f"only from radosgw: {each!r}" for each in only_theirs]


def masked(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """The bodies without what two notifications of one operation never share: two clock readings and a name."""
    for each in bodies:
        yield re.sub(rb'"(eventId|sequencer|configurationId)":"[^"]*"', rb'"\1":"..."', each)


# -------------------------------------------------------------------------------------------- metrics


def quantile(share: float, buckets: Mapping[float, float]) -> float:
    """As Prometheus' histogram_quantile: `buckets` are cumulative counts by their upper bounds, +Inf included."""
    bounds = sorted(buckets)
    rank = share * buckets[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            if bound == float("inf"):
                break
            return lower + (bound - lower) * (rank - below) / max(1e-9, buckets[bound] - below)
        lower, below = bound, buckets[bound]
    return lower
