"""AWS S3 server access logs: text, separated by spaces, with one second of resolution.

They come late, out of order, and rarely doubled. Fields are only ever added at the end, so no count is demanded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote, unquote_plus

from remora.replay.prepare.entry import NOT_UTF8, Dropped, Outcome, clf_us, failed, malformed, number, write
from remora.replay.prepare.formats.s3_operations import event_of

_LINE = re.compile(
    r"(?P<owner>\S+) (?P<bucket>\S+) \[(?P<time>[^\]]*)\] (?P<address>\S+) (?P<requester>\S+) (?P<request>\S+) "
    r'(?P<operation>[A-Z0-9]+\.[A-Z0-9_.]+) (?P<key>\S+) (?:"(?P<uri>.*?)"|-) (?P<status>\d{3}|-) (?P<error>\S+) '
    r"(?P<sent>\d+|-) (?P<size>\d{1,19}|-) (?P<total>\d+|-) (?P<turn>\d+|-)(?= |$)"
    r'(?: (?:"(?P<referer>[^"]*)"|-) (?:"(?P<agent>.*)"|-) (?P<version>\S+) (?P<host_id>\S+)(?: \S+ \S+ \S+ '
    r"(?P<host>\S+))?)?",
    re.ASCII,
)


def parse(line: str) -> Sequence[Outcome]:
    """What one line says."""
    found = _LINE.match(line)
    if found is None:
        return (malformed("not the fields of an S3 access log"),)
    operation, status = found["operation"], found["status"]
    event = event_of(operation)
    if isinstance(event, Dropped):
        return (event,)
    if status != "-" and int(status) >= 300:
        return (failed(status),)
    if status == "-" and not operation.startswith("S3."):
        return (Dropped("no status, so it may have failed"),)
    try:
        ts_us = clf_us(found["time"])
    except ValueError:
        return (malformed("time is not like 21/Nov/2026:02:14:07 +0000"),)
    try:
        key = _key(found["key"], found["uri"], found["bucket"], found["host"] or "")
    except UnicodeDecodeError:
        return (Dropped(NOT_UTF8),)
    request = None
    if found["request"] != "-":
        # The lines of a request that deletes several objects share its id.
        request = f"{found['request']} {operation} {found['version'] or '-'} {found['bucket']} {key}"
    return (write(ts_us, event, found["bucket"], key, number(found["size"]), request=request),)


def _key(logged: str, uri: str | None, bucket: str, host: str) -> str:
    """The key, decoded once from its field; from the request where the two differ, as some writers encode it twice."""
    if logged == "-":
        return ""
    once = unquote_plus(logged, errors="strict")
    target = (uri or "").split(" ")
    path = target[1].partition("?")[0] if len(target) > 1 else ""
    requested = [spelt for spelt in _paths(path, bucket, host) if spelt]
    if not requested or once in {way(spelt, errors="strict") for spelt in requested for way in (unquote, unquote_plus)}:
        return once
    twice = unquote_plus(once, errors="strict")
    for spelt in requested:
        if twice in (unquote(spelt, errors="strict"), unquote_plus(spelt, errors="strict")):
            return twice
    return unquote(requested[0], errors="strict")


def _paths(path: str, bucket: str, host: str) -> Sequence[str]:
    """The keys, still encoded, that a path may mean, the likeliest first: the bucket is in front of it or in the host.

    None of a request for the bucket itself, such as an upload by form, whose key is in the body.
    """
    if path.startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[-1] if path.count("/") > 2 else ""
    rest = path.removeprefix("/")
    if host == bucket or host.startswith(f"{bucket}."):
        return (rest,)
    if rest == bucket:
        return ()
    if rest.startswith(f"{bucket}/"):
        return (rest.removeprefix(f"{bucket}/"), rest)
    return (rest,)
