"""Lines of S3's access log, and the one write that a parser is to make of a line."""

from __future__ import annotations

from collections.abc import Sequence

from remora_pipeline.replay.prepare.entry import Outcome, Write


def only(outcomes: Sequence[Outcome]) -> Write:
    """The write that is the only outcome."""
    (outcome,) = outcomes
    assert isinstance(outcome, Write), outcome
    return outcome


def s3_line(
    operation: str = "REST.PUT.OBJECT",
    key: str = "a.csv",
    uri: str = '"PUT /a.csv HTTP/1.1"',
    status: str = "200",
    request: str = "R1",
    host: str = "photos.s3.example.com",
    agent: str = '"agent/1"',
    more: str = "",
) -> str:
    """A line of S3's access log, of the bucket `photos`."""
    return (
        f"0aff photos [21/Nov/2026:02:14:07 +0000] 192.0.2.7 arn:aws:iam::000:user/u {request} {operation} {key}"
        f' {uri} {status} - - 1200 61 17 "-" {agent} - hostid/Ab= SigV4 TLS_AES AuthHeader {host} TLSv1.3 - -{more}'
    )
