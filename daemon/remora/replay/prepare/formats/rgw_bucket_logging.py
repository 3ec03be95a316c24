"""radosgw's bucket logging, in both of its formats: like S3's access logs, but with keys as they are.

A journal is written before the operation completes: an operation may have failed after all. The standard format is
written afterwards, one line may be missing. Both have one second of resolution, in the gateway's zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from remora.replay.prepare.entry import Dropped, Outcome, clf_us, failed, malformed, number, write
from remora.replay.prepare.formats.s3_operations import event_of

# Keys may have spaces: the parts before and behind them are counted off from both ends.
_JOURNAL = re.compile(
    r"(?P<owner>\S+) (?P<bucket>\S+) \[(?P<time>[^\]]*)\] (?P<operation>(?:REST|BATCH|S3|WEBSITE)\.[A-Z0-9_.]+) "
    r"(?P<key>.*) (?P<size>\d{1,19}|-) (?P<version>\S+) (?P<etag>\S+)",
    re.DOTALL | re.ASCII,
)
# The request's target is encoded, so that the last `"METHOD target HTTP/x" status` is it, whatever is in the key. The
# turn-around is a number with its unit, there is no total time, and the referer stands without quotes.
_STANDARD = re.compile(
    r"(?P<owner>\S+) (?P<bucket>\S+) \[(?P<time>[^\]]*)\] (?P<address>\S+) (?P<user>\S+) (?P<request>\S+) "
    r"(?P<operation>(?:REST|BATCH|S3|WEBSITE)\.[A-Z0-9_.]+) (?P<key>.*) "
    r'"(?P<uri>[A-Z]+ \S* HTTP/[\d.]+)" (?P<status>\d{3}|-) (?P<error>\S+) (?P<length>\d+|-) (?P<size>\d{1,19}|-) - '
    r'(?P<turn>\d+ms) (?P<referer>\S*) "?(?P<agent>.*?)"? (?P<version>\S+)(?: \S+){6,}',
    re.DOTALL | re.ASCII,
)


def parse_journal(line: str) -> Sequence[Outcome]:
    """What one line of a journal says; there is no status in it."""
    found = _JOURNAL.fullmatch(line)
    if found is None:
        return (malformed("not the eight parts of a radosgw journal"),)
    return (_outcome(found, None),)


def parse_standard(line: str) -> Sequence[Outcome]:
    """What one line of the standard format says."""
    found = _STANDARD.fullmatch(line)
    if found is None:
        return (malformed("not the fields of radosgw's standard bucket logging"),)
    request = None if found["request"] == "-" else f"{found['request']} {found['operation']} {found['key']}"
    status = found["status"]
    event = event_of(found["operation"])
    if not isinstance(event, Dropped) and status != "-" and int(status) >= 300:
        return (failed(status),)
    return (_outcome(found, request),)


def _outcome(found: re.Match[str], request: str | None) -> Outcome:
    event = event_of(found["operation"])
    if isinstance(event, Dropped):
        return event
    try:
        ts_us = clf_us(found["time"])
    except ValueError:
        return malformed("time is not like 21/Nov/2026:02:14:07 +0000")
    bucket = found["bucket"].rpartition(":")[2]  # tenant:bucket
    key = "" if found["key"] == "-" else found["key"]
    return write(ts_us, event, bucket, key, number(found["size"]), request=request)
