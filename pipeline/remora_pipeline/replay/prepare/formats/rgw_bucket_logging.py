"""radosgw's bucket logging, in both of its formats: like S3's access logs, but with keys as they are.

A journal is written before the operation completes: an operation may have failed after all. The standard format is
written afterwards, one line may be missing. Both have one second of resolution, in the gateway's zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from urllib.parse import unquote

from remora_pipeline.replay.prepare.entry import (
    Dropped,
    Outcome,
    clf_us,
    failed,
    is_success,
    malformed,
    no_event,
    number,
    write,
)
from remora_pipeline.replay.prepare.formats.s3_operations import Beginning, beginnings, event_of
from remora_pipeline.replay.shape import DELETE

# A request that deletes several objects has a record of this for each of them; in the standard format there is one more
# for the request itself, without a key.
_MULTI_DELETE = "REST.POST.DELETE_MULTI_OBJECT"
# Keys may have blanks: what is before and behind them is counted off from both ends.
_JOURNAL = re.compile(r"(?P<key>.+) (?P<size>\d{1,19}|-) (?P<version>\S+) (?P<etag>\S+)", re.DOTALL | re.ASCII)
# The turn-around is a number with its unit, there is no total time, and the referer stands without quotes.
_ANSWER = re.compile(
    r'" (?P<status>\d{3}|-) (?P<error>\S+) (?P<length>\d+|-) (?P<size>\d{1,19}|-) - \d+ms(?= |$)', re.ASCII
)
_REQUEST = re.compile(r"[A-Z]+ (?P<target>\S*) HTTP/[\d.]+", re.ASCII)
_MOST_TRIED = 8


def parse_journal(line: str) -> Sequence[Outcome]:
    """What one line of a journal says; there is no status in it."""
    begun = next(beginnings(line), None)
    found = _JOURNAL.fullmatch(begun.rest.rstrip()) if begun is not None and not begun.request else None
    if begun is None or found is None:
        return (malformed("not the eight parts of a radosgw journal"),)
    return (_outcome(begun, found["key"], found["size"], None),)


def parse_standard(line: str) -> Sequence[Outcome]:
    """What one line of the standard format says."""
    for begun in beginnings(line):
        if begun.requester and (found := _answered(begun.rest)) is not None:
            return (_standard(begun, *found),)
    return (malformed("not the fields of radosgw's standard bucket logging"),)


def _answered(rest: str) -> tuple[str, re.Match[str]] | None:
    """The key, and the answer behind the request.

    Keys and agents stand as they are, and may look like a request with its answer; the request's target is encoded,
    and has neither blanks nor quotes. Of several requests that is the one which is for the key in front of it; else
    the last one.
    """
    found: tuple[str, re.Match[str]] | None = None
    for answer in islice(_ANSWER.finditer(rest), _MOST_TRIED):
        key, quote, uri = rest[: answer.start()].rpartition(' "')
        request = _REQUEST.fullmatch(uri)
        if not key or not quote or request is None:
            continue
        found = key, answer
        if unquote(request["target"].partition("?")[0]).endswith(f"/{key}"):
            break
    return found


def _standard(begun: Beginning, key: str, answer: re.Match[str]) -> Outcome:
    status = answer["status"]
    if not isinstance(_event(begun, key), Dropped) and status != "-" and not is_success(status):
        return failed(status)
    request = None
    if begun.request != "-":
        # Objects that one request deletes share its id, and so may versions of one object.
        version = begun.rest[answer.end() :].rpartition('"')[2].split(" ")[1:2]
        request = " ".join([begun.request, begun.operation, *version, key])
    return _outcome(begun, key, answer["size"], request)


def _event(begun: Beginning, key: str) -> str | Dropped:
    if begun.operation == _MULTI_DELETE:
        return no_event("a request to delete several objects") if key == "-" else DELETE
    return event_of(begun.operation)


def _outcome(begun: Beginning, key: str, size: str, request: str | None) -> Outcome:
    event = _event(begun, key)
    if isinstance(event, Dropped):
        return event
    try:
        ts_us = clf_us(begun.time)
    except ValueError:
        return malformed("time is not like 21/Nov/2026:02:14:07 +0000")
    bucket = begun.bucket.rpartition(":")[2]  # tenant:bucket
    return write(ts_us, event, bucket, key, number(size), request=request)
