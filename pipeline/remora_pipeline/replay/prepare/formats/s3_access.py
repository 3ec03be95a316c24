"""AWS S3 server access logs: text, separated by spaces, with one second of resolution.

They come late, out of order, and rarely doubled. Fields are only ever added at the end, so no count is demanded. A
requester may have blanks in its name, and other writers of this format leave keys as they are: fields are told by what
is in brackets or quotes, from both ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from urllib.parse import unquote, unquote_plus

from remora_pipeline.replay.prepare.entry import (
    NOT_UTF8,
    Dropped,
    Outcome,
    clf_us,
    failed,
    is_malformed,
    is_success,
    malformed,
    number,
    write,
)
from remora_pipeline.replay.prepare.formats.s3_operations import Beginning, beginnings, begins, event_of
from remora_pipeline.replay.shape import COPY, MPU_COMPLETE

_SIX = r"(?P<error>\S+) (?P<sent>\d+|-) (?P<size>\d{1,19}|-) (?P<total>\d+|-) (?P<turn>\d+|-)(?= |$)"
_ANSWERED = re.compile(rf'(?:"|(?<= )-) (?P<status>\d{{3}}) {_SIX}', re.ASCII)
_UNANSWERED = re.compile(rf'(?:"|(?<= )-) (?P<status>-) {_SIX}', re.ASCII)
_ANY_STATUS = re.compile(r'" \d{3} ', re.ASCII)
_METHOD = re.compile(r' "(?=[A-Z]+ )', re.ASCII)
_VERSION = re.compile(r" HTTP/[\d.]+$", re.ASCII)
# The host's id may be two words. Fields are only ever added behind these.
_LAST = re.compile(
    r" (?P<version>\S+)(?: (?P<host_id>.+?) (?:SigV\S+|-) \S+ (?:AuthHeader|QueryString|-) (?P<host>\S+))?", re.ASCII
)
# Of what no client asked for with a header, such as each delete of a request for several, both are unquoted dashes.
_NO_AGENT = re.compile(r' (?:"[^"]*"|-) -(?= )')
_SAID_LATER = (COPY, MPU_COMPLETE)
"""S3 answers these with 200 before they are done, and tells an error in the answer's body."""

_KEY_IN_BODY = ("BATCH.", "REST.POST.OBJECT", "SOAP.")
"""The target of these is a bucket's, or none's."""

_MORE = re.compile(
    r"\S+ \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] [^\"]* (?:REST|BATCH|S3|WEBSITE)\.[A-Z]", re.ASCII
)
"""How a record begins that stands behind another one. No new field looks so."""

_MOST_TRIED = 8
_TIME_IS_WRONG = malformed("time is not like 21/Nov/2026:02:14:07 +0000")


def parse(line: str) -> Sequence[Outcome]:
    """What one line says; what was put together without the line's end between says more."""
    parts = line.split("\r")
    if len(parts) > 2 and all(begins(part) for part in parts if part):  # what follows would copy the rest each time
        return tuple(outcome for part in parts if part for outcome in parse(part))
    told: list[Outcome] = []
    rest: str | None = line
    while rest is not None:
        outcome, rest = _first(rest)
        if told and is_malformed(outcome):
            break  # a field that only looks like a record
        told.append(outcome)
    return tuple(told)


def _first(line: str) -> tuple[Outcome, str | None]:
    """What the first record of a line says, and the next one where there may be one."""
    for begun in beginnings(line):
        fields = _fields(begun.rest)
        if fields is not None and begun.requester:
            tail = begun.rest[fields.end() :]
            more = _MORE.search(tail) if "] " in tail else None
            own, rest = (tail[: more.start()], tail[more.start() :]) if more else (tail, None)
            return _outcome(begun, fields, own), rest
    return malformed("not the fields of an S3 access log"), None


def _fields(rest: str) -> re.Match[str] | None:
    """From the request's closing quote to the times.

    A target has no blanks, so that the first of these behind ` HTTP/x` is not within it; nor is one in the referer or
    the agent, which stand behind.
    """
    found = list(islice(_ANSWERED.finditer(rest), _MOST_TRIED))
    if not found and not _ANY_STATUS.search(rest):
        found = list(islice(_UNANSWERED.finditer(rest), 1))
    return next((each for each in found if _VERSION.search(rest[: each.start()])), found[0] if found else None)


def _outcome(begun: Beginning, fields: re.Match[str], tail: str) -> Outcome:
    operation, status = begun.operation, fields["status"]
    event = event_of(operation)
    if isinstance(event, Dropped):
        return event
    if status != "-" and not is_success(status):
        return failed(status)
    if event in _SAID_LATER and fields["error"] != "-":
        return Dropped("failed with an error behind status 200")
    if status == "-" and not operation.startswith("S3."):
        return Dropped("no status, so it may have failed")
    try:
        ts_us = clf_us(begun.time)
    except ValueError:
        return _TIME_IS_WRONG
    logged, uri = _split(begun.rest[: fields.start()], is_quoted=fields[0].startswith('"'))
    no_agent = _NO_AGENT.match(tail)
    last = _LAST.match(tail[no_agent.end() :] if no_agent else tail.rpartition('"')[2])
    try:
        host = (last and last["host"]) or ""
        requested = () if operation.startswith(_KEY_IN_BODY) else _requested(uri, begun.bucket, host)
        key = _key(logged, requested)
    except UnicodeDecodeError:
        return Dropped(NOT_UTF8)
    request = None
    if begun.request != "-":
        # The lines of a request that deletes several objects share its id.
        request = f"{begun.request} {operation} {last['version'] if last else '-'} {begun.bucket} {key}"
    return write(ts_us, event, begun.bucket, key, number(fields["size"]), request=request)


def _split(text: str, *, is_quoted: bool) -> tuple[str, str | None]:
    """The key and what stands behind the opening quote; a key that its writer did not encode may have both."""
    if not is_quoted:
        return text.removesuffix(" "), None
    methods = list(_METHOD.finditer(text))
    at = methods[-1].start() if methods else text.find(' "')
    return (text[:at], text[at + 2 :]) if at >= 0 else (text, None)


def _key(logged: str, requested: Sequence[str]) -> str:
    """The key, decoded once from its field; from the request where the two differ, as some writers encode it twice.

    `requested` are the keys, still encoded, that the request may be for, the likeliest first.
    """
    if logged == "-":  # of nothing, or of an object that is called so
        return "-" if "-" in requested else ""
    once = unquote_plus(logged, errors="strict")
    if not requested or once in {way(spelt, errors="strict") for spelt in requested for way in (unquote, unquote_plus)}:
        return once
    twice = unquote_plus(once, errors="strict")
    for spelt in requested:
        if twice in (unquote(spelt, errors="strict"), unquote_plus(spelt, errors="strict")):
            return twice
    return unquote(requested[0], errors="strict")


def _requested(uri: str | None, bucket: str, host: str) -> Sequence[str]:
    """The keys, still encoded, that a request may be for, the likeliest first: the bucket is in front of the path, or
    in the host, and some hosts only look as if it were.

    None of a request for the bucket itself.
    """
    target = (uri or "").split(" ")
    path = target[1].partition("?")[0] if len(target) > 1 else ""
    if path.startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[-1] if path.count("/") > 2 else ""
    rest = path.removeprefix("/")
    is_in_host = host == bucket or host.startswith((f"{bucket}.", f"{bucket}:"))
    if rest == bucket and not is_in_host:
        return ()
    behind = [rest.removeprefix(f"{bucket}/")] if rest.startswith(f"{bucket}/") else []
    return [spelt for spelt in ([rest, *behind] if is_in_host else [*behind, rest]) if spelt]
