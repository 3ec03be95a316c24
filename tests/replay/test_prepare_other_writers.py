"""What servers and tools write that is right, and that a reader which knows one of them gets wrong; all is invented."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import pytest

from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import Dropped, FormatContext, Outcome, Write
from remora_pipeline.replay.prepare.formats import FORMATS, detect, s3_access


def only(outcomes: Sequence[Outcome]) -> Write:
    (outcome,) = outcomes
    assert isinstance(outcome, Write), outcome
    return outcome


def outcomes(name: str, text: str | bytes, source: FormatContext | None = None) -> list[Outcome]:
    data = text.encode() if isinstance(text, str) else text
    return [each for line in FORMATS[name].records(BytesIO(data), source or FormatContext("a.log")) for each in line[1]]


def told(found: Sequence[Outcome]) -> list[str]:
    """The key of each write, and the reason why another outcome is none, up to its first colon."""
    return [each.key if isinstance(each, Write) else each.reason.partition(":")[0] for each in found]


# ------------------------------------------------------------------------------------ AWS's access log


def s3(
    key: str,
    uri: str,
    operation: str = "REST.PUT.OBJECT",
    host: str = "photos.s3.eu-north-1.amazonaws.com",
    status: str = "200",
) -> str:
    return (
        f"0aff photos [21/Nov/2026:02:14:07 +0000] 192.0.2.3 arn:aws:iam::111:user/d R1 {operation} {key}"
        f' {uri} {status} - - 1200 12 9 "-" "agent" - hostid= SigV4 ECDHE AuthHeader {host} TLSv1.2 - -'
    )


@pytest.mark.parametrize("host", ["photos.s3.eu-north-1.amazonaws.com", "photos.internal:8080", "photos:8080"])
def test_a_path_with_the_bucket_in_front_whatever_the_host_is(host: str) -> None:
    """A target with the bucket in front of it is the object's of the key's field, though the host begins like it."""
    write = only(s3_access.parse(s3("dir/a+b.pdf", '"PUT /photos/dir/a%20b.pdf HTTP/1.1"', host=host)))
    twice = only(s3_access.parse(s3("a%252Bb", '"PUT /photos/a%2Bb HTTP/1.1"', host=host)))

    assert (write.key, twice.key) == ("dir/a b.pdf", "a+b")


@pytest.mark.parametrize("target", ["/photos/?delete", "/photos?delete", "/?delete", "/photos/", "/"])
@pytest.mark.parametrize("operation", ["BATCH.DELETE.OBJECT", "REST.POST.OBJECT"])
@pytest.mark.parametrize("host", ["s3.example.com", "photos.s3.example.com"])
def test_a_request_for_a_bucket_tells_no_key(target: str, operation: str, host: str) -> None:
    """The key of a delete among several, or of an upload by form, is in its field, whatever the request is for."""
    line = s3("x/y+z", f'"POST {target} HTTP/1.1"', operation, host, "204")

    assert only(s3_access.parse(line)).key == "x/y z"


def test_an_object_of_an_access_log_that_is_called_a_dash() -> None:
    """A dash is the key where the request is for it, and none where it is for nothing else."""
    assert only(s3_access.parse(s3("-", '"PUT /- HTTP/1.1"'))).key == "-"
    assert only(s3_access.parse(s3("-", '"PUT /photos/- HTTP/1.1"', host="s3.example.com"))).key == "-"
    assert told(s3_access.parse(s3("-", '"PUT /x HTTP/1.1"'))) == ["malformed"]


@pytest.mark.parametrize(
    ("operation", "op"), [("SOAP.PutObject", "PUT"), ("SOAP.CopyObject", "COPY"), ("SOAP.DeleteObject", "DELETE")]
)
def test_operations_of_soap(operation: str, op: str) -> None:
    """Logs of many years have operations of SOAP, whose names are written otherwise."""
    write = only(s3_access.parse(s3("a+b", '"POST /soap HTTP/1.1"', operation)))

    assert (write.op, write.key) == (op, "a b")
    assert s3_access.parse(s3("a", '"POST /soap HTTP/1.1"', "SOAP.GetObject")) == (Dropped("a read"),)
    assert detect(s3("-", '"POST /soap HTTP/1.1"', "SOAP.CreateBucket").encode(), "x", Mapping()).name == "s3-access"
