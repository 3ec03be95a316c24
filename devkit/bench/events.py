"""S3 event records on their way into the ingest API: as radosgw's notifications are, and each with an id of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

NUMBERS_A_BODY = 10_000
"""Event n of body m has the number m * NUMBERS_A_BODY + n in its id."""

_STAND_IN = "<number>"

# Prepared bodies differ in one number, which wrk's Lua puts in; everything else would only slow the generator down.
_LUA = """\
local pieces = {{ {pieces} }}
local paths = {{ {paths} }}
local numbers = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "{kind}"
function request()
    numbers = numbers + 1
    local path = paths[numbers % math.max(1, #paths) + 1]
    return wrk.format(nil, path, nil, table.concat(pieces, string.format("{number}", numbers)))
end
function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\\n{{"requests": %d, "seconds": %f, "p50_s": %f, "p99_s": %f, "refused": %d, "broken": %d}}\\n',
        summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
        errors.status, errors.connect + errors.read + errors.write + errors.timeout
    ))
end
"""


class Bodies:
    """Bodies of `batch` records, one a line; every one has new event ids and new keys."""

    def __init__(self, batch: int, record_bytes: int) -> None:
        self._pieces = _pieces(record_bytes)
        self._batch = batch
        self._turns = itertools.count()
        self._ends = [b"%04d" % place for place in range(batch)]

    def next(self) -> bytes:
        """One body."""
        turn = b"%06d" % next(self._turns)
        return b"\n".join([(turn + end).join(self._pieces) for end in self._ends])


class Documents:
    """Documents of one record, as radosgw posts them; every one has a new event id and a new key."""

    def __init__(self, record_bytes: int) -> None:
        self._pieces = _single(record_bytes).encode().split(_STAND_IN.encode())
        self._turns = itertools.count()

    def next(self) -> bytes:
        """One body."""
        return (b"%010d" % next(self._turns)).join(self._pieces)


def write_wrk_script(path: Path, record_bytes: int, batch: int = 1, paths: Sequence[str] = ()) -> None:
    """A script for wrk that posts `Documents`, or `Bodies` of a batch, and prints its figures as a line of JSON.

    It posts to these paths in turn; without any, to that of the URL that wrk is given.
    """
    text, number = _single(record_bytes), "%010d"
    if batch > 1:
        record, number = _record(record_bytes), "%06d"
        text = "\n".join(record.replace(_STAND_IN, f"{_STAND_IN}{place:04d}") for place in range(batch))
    path.write_text(
        _LUA.format(
            pieces=_quoted(text.split(_STAND_IN)), paths=_quoted(paths), kind=content_type(batch), number=number
        )
    )


def content_type(batch: int) -> str:
    """That of a document of one record, or of a batch's lines."""
    return "application/x-ndjson" if batch > 1 else "application/json"


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(f"[==[{text}]==]" for text in texts)


def _pieces(record_bytes: int) -> list[bytes]:
    """What stands around the ten digits that a record is known by, wherever they occur in it."""
    return _record(record_bytes).encode().split(_STAND_IN.encode())


def _single(record_bytes: int) -> str:
    return f'{{"Records":[{_record(record_bytes)}]}}'


def _record(record_bytes: int) -> str:
    """JSON with stand-ins that is as long as asked for, when these are replaced; 840 bytes is about the least."""
    text = _text("")
    digits = text.count(_STAND_IN) * (10 - len(_STAND_IN))
    return _text("n" * max(0, record_bytes - len(text) - digits))


def _text(note: str) -> str:
    record = {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "awsRegion": "",
        "eventTime": "2026-11-21T03:01:28.808357Z",
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "dev"},
        "requestParameters": {"sourceIPAddress": ""},
        "responseElements": {
            "x-amz-request-id": f"47b27c29-bc9f-4a25-a2eb-d03d45ce1680.4213.1157{_STAND_IN}",
            "x-amz-id-2": "1075-default-default",
        },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "to-bench",
            "bucket": {
                "name": "bench",
                "ownerIdentity": {"principalId": "dev"},
                "arn": "arn:aws:s3:::bench",
                "id": "47b27c29-bc9f-4a25-a2eb-d03d45ce1680.4215.1",
            },
            "object": {
                "key": f"photos/2026/11/21/img-{_STAND_IN}.jpg",
                "size": 1048576,
                "eTag": "fbade9e36a3f36d3d676c1b808451dd7",
                "versionId": "",
                "sequencer": "8809016B10D74030",
                "metadata": [{"key": "x-amz-meta-note", "val": note}],
                "tags": [],
            },
        },
        "eventId": f"1795230088.{_STAND_IN}.fbade9e36a3f36d3d676c1b808451dd7",
        "opaqueData": "",
    }
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)
