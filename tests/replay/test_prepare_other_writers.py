"""What servers and tools write that is right, and that a reader which knows one of them gets wrong; all is invented."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora_pipeline.replay.prepare import sources
from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import Dropped, FormatContext, Outcome, Write
from remora_pipeline.replay.prepare.formats import FORMATS, detect, rgw_ops, s3_access
from remora_pipeline.replay.prepare.tables import moment_us
from support.trace_lines import only, s3_line


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
    return s3_line(operation, key, uri, status, host=host)


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


# ------------------------------------------------------------------------------------ CloudTrail


def trail(**changes: object) -> dict[str, object]:
    event: dict[str, object] = {
        "eventTime": "2026-11-21T02:14:07Z",
        "eventSource": "s3.amazonaws.com",
        "eventName": "PutObject",
        "requestParameters": {"bucketName": "photos", "key": "a"},
        "eventID": "e-1",
        "eventCategory": "Data",
    }
    return event | changes


def test_an_event_that_two_accounts_are_told() -> None:
    """Owner and user of a bucket have an event of one action each, whose ids differ: it is one request."""
    shared = "s-1"
    other_key = {"bucketName": "photos", "key": "b"}
    events = [
        trail(eventID="e-1", sharedEventID=shared),
        trail(eventID="e-2", sharedEventID=shared),
        trail(eventID="e-3", sharedEventID=shared, requestParameters=other_key),
    ]

    first, second, third = (only(outcomes("cloudtrail", json.dumps({"Records": [each]}))).request for each in events)

    assert first == second != third


@pytest.mark.parametrize(
    ("named", "arns", "bucket"),
    [
        ("arn:aws:s3:eu-north-1:111:accesspoint/ap", ["arn:aws:s3:::photos/a", "arn:aws:s3:::photos"], "photos"),
        ("arn:aws:s3:eu-north-1:111:accesspoint/ap", ["arn:aws:s3:::x", "arn:aws:s3:::y"], None),
        ("arn:aws:s3:eu-north-1:111:accesspoint/ap", None, None),
        ("photos", ["arn:aws:s3:::other"], "photos"),
    ],
)
def test_the_bucket_behind_an_access_point(named: str, arns: list[str] | None, bucket: str | None) -> None:
    """A request through an access point is one for the bucket that its event has among the resources."""
    resources = None if arns is None else [{"type": "AWS::S3", "ARN": arn} for arn in arns]
    event = trail(requestParameters={"bucketName": named, "key": "a"}, resources=resources)

    assert only(outcomes("cloudtrail", json.dumps(event))).bucket == (bucket or named)


# ------------------------------------------------------------------------------------ radosgw's ops log


def ops(key: str, uri: str | None = None, **changes: object) -> str:
    entry: dict[str, object] = {
        "bucket": "photos",
        "time": "2026-11-21T02:14:07.482913Z",
        "operation": "put_obj",
        "uri": f"{uri or f'PUT /photos/{key}'} HTTP/1.1",
        "http_status": "200",
        "object_size": 7,
        "total_time": 61,
        "user_agent": "x",
        "trans_id": key,
    }
    return json.dumps(entry | changes)


@pytest.mark.parametrize(
    ("uri", "bucket"),
    [
        ("POST /photos/", "photos"),
        ("POST /photos", "photos"),
        ("POST /", "photos"),
        ("POST /acme:photos", "acme/photos"),
        ("POST /acme%3Aphotos/", "acme/photos"),
    ],
)
def test_an_upload_by_form_makes_no_object_that_is_called_like_its_bucket(uri: str, bucket: str) -> None:
    """A form is sent to its bucket, with a slash or a tenant or without: neither is the key of what it uploads."""
    line = ops("x", uri, operation="post_obj", bucket=bucket)

    assert told(rgw_ops.parse(line)) == ["an upload by form, whose key is not in the log"]


@pytest.mark.parametrize("key", ["photos", "photos/"])
def test_an_object_that_is_called_like_its_bucket(key: str) -> None:
    """Where the bucket is in the host, the whole path of a put or delete is the key, also where it is as the bucket."""
    assert only(rgw_ops.parse(ops("x", f"PUT /{key}"))).key == key
    assert only(rgw_ops.parse(ops("x", f"DELETE /{key}", operation="delete_obj"))).key == key


def test_a_delete_of_several_objects_that_names_none() -> None:
    """A request that deleted nothing is a line as well, and is counted."""
    line = ops("x", "POST /photos?delete", operation="multi_object_delete", op_data={"num_ok": 0, "objects": []})

    assert told(rgw_ops.parse(line)) == ["no event"]


A, B, C = (ops(key) for key in "abc")


@pytest.mark.parametrize("cut", [10, 60, 150, -12, -2])
@pytest.mark.parametrize(
    ("behind", "found"),
    [
        (f"{B}\n{C}", ["malformed", "b", "c"]),
        (f"[{B},\n{C},\n", ["malformed", "b", "c"]),
        (f"{B}{C}\n{A}", ["malformed", "b", "c", "a"]),
        (f"{B}", ["malformed", "b"]),
    ],
)
def test_what_a_log_has_behind_an_entry_that_was_cut(cut: int, behind: str, found: list[str]) -> None:
    """A gateway that was killed amid a line goes on in it when it is back, which costs that one entry."""
    text = f"{C}\n{A[:cut]}{behind}"

    assert told(outcomes("rgw-ops", text)) == ["c", *found]
    assert told(outcomes("rgw-ops", text.replace(f"{C}\n", C))) == ["c", *found]


def test_an_event_of_cloudtrail_behind_one_that_was_cut() -> None:
    """The same holds for events of CloudTrail that stand one on a line."""
    first, second = json.dumps(trail()), json.dumps(trail(requestParameters={"bucketName": "photos", "key": "b"}))

    assert told(outcomes("cloudtrail", f"{first}\n{first[:50]}{second}\n{first}")) == ["a", "malformed", "b", "a"]


# ------------------------------------------------------------------------------------ IBM's traces


@pytest.mark.parametrize(
    ("line", "key", "size"),
    [
        ("7 REST.PUT.OBJECT d363d3fbdc0b03 1168", "d363d3fbdc0b03", 1168),
        ("7 REST.PUT.OBJECT 5D363d3fbdc0b0ff 1168 0", "5D363d3fbdc0b0ff", 1168),
        ("7\tREST.PUT.OBJECT\t95d363d3fbdc0b03\t1168\t0\t1167", "95d363d3fbdc0b03", 1168),
        ("7  REST.PUT.OBJECT  95d363d3fbdc0b03  1168 ", "95d363d3fbdc0b03", 1168),
        ("7 REST.PUT.OBJECT 95d363d3fbdc0b03", "95d363d3fbdc0b03", None),
    ],
)
def test_fields_of_an_ibm_trace(line: str, key: str, size: int | None) -> None:
    """Three to six fields are apart by blanks or tabs, and an object's number may lack its zeros in front."""
    write = only(outcomes("ibm-cos", line))

    assert (write.ts_us, write.key, write.size) == (7_000, key, size)


@pytest.mark.parametrize(
    "line",
    [
        "7 REST.PUT.OBJECT 95d363d3fbdc0b031 5",
        "7 REST.PUT.OBJECT 95d363d3fbdc0b03 -1",
        "7 REST.PUT.OBJECT 95d363d3fbdc0b03 5 0 1 2",
        f"7 REST.PUT.OBJECT 95d363d3fbdc0b03 {'9' * 20}",
        "7 REST.PUT.OBJECT",
    ],
)
def test_what_is_no_line_of_an_ibm_trace(line: str) -> None:
    """More fields, a longer number and a size that is none are of no such trace."""
    assert told(outcomes("ibm-cos", line)) == ["malformed"]


# ------------------------------------------------------------------------------------ tables

SECOND = 1_795_227_247_000_000


def of_table(text: str, **mapping: str) -> list[Outcome]:
    return outcomes("csv", text, FormatContext("a.csv", "b", Mapping(**mapping)))  # type: ignore[arg-type]  # no op_map


def test_a_table_with_blanks_behind_its_commas() -> None:
    """Where each name of a header has a blank in front of it, so have the cells, and it belongs to none of them."""
    text = f'ts_us, op, bucket, key, size\n{SECOND}, PUT, b, "a, b", 5\n{SECOND}, DELETE, b, a b,\n'

    assert [each[2:6] for each in of_table(text)] == [("PUT", "b", "a, b", 5), ("DELETE", "b", "a b", None)]
    assert detect(text.encode(), "x", Mapping()).name == "csv"


def test_a_key_keeps_the_blanks_in_front_of_it() -> None:
    """In a table whose header has no blanks they are the key's."""
    assert told(of_table(f"ts_us,op,key\n{SECOND},PUT, a \n{SECOND}, put ,b\n")) == [" a ", "b"]


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("1795227247", "s"),
        ("1.795227247e9", "s"),
        ("1.795227247E+15", "us"),
        ("1795227247000000.0", "us"),
        ("2026-11-21 02:14:07 UTC", "iso"),
        ("2026-11-21 02:14:07.000 UTC", "iso"),
        ("2026-11-21 02:14:07.000000123 +0000 UTC", "iso"),
        ("2026-11-21T02:14:07z", "iso"),
        ("2026-11-21 02:14:07 GMT", "iso"),
    ],
)
def test_times_as_programs_write_them(text: str, unit: str) -> None:
    """Numbers with an exponent, and times whose zone is called UTC, are times."""
    (write,) = of_table(f"when,op,key\n{text},PUT,a\n", ts_col="when", ts_unit=unit)

    assert isinstance(write, Write)
    assert write.ts_us == SECOND


@pytest.mark.parametrize("us", range(360_760, 360_770))
def test_a_time_that_is_a_float_keeps_its_microseconds(us: int) -> None:
    """A float of seconds is the number that it stands for, and not the next one below."""
    assert moment_us((SECOND + us) / 1e6, "s") == SECOND + us


@pytest.mark.parametrize("size", ["", "-", "NaN", "nan", "NULL", "None", "NA", "\\N", " "])
def test_a_size_that_a_table_does_not_know(size: str) -> None:
    """What programs write for nothing is an unknown size, and costs no event."""
    (write,) = of_table(f"ts_us,op,key,size\n{SECOND},PUT,a,{size}\n")

    assert isinstance(write, Write)
    assert write.size is None


def test_a_delete_of_a_table_needs_no_size() -> None:
    """A delete is an event whatever stands in the column of sizes."""
    (write,) = of_table(f"ts_us,op,key,size\n{SECOND},DELETE,a,-1x\n")

    assert isinstance(write, Write)


# ------------------------------------------------------------------------------------ files


def test_a_file_of_zstd_that_begins_with_a_frame_to_pass_over(tmp_path: Path) -> None:
    """Programs that compress side by side write such frames between others, and before the first one."""
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    packed = [pa.compress(text, codec="zstd", asbytes=True) for text in (b"a\n", b"b\n")]
    path = tmp_path / "a.zst"
    path.write_bytes(b"".join(skipped + each for each in packed))

    (file,) = sources.found([path])
    with sources.opened(file.path, file.compression) as stream:
        assert stream.read() == b"a\nb\n"


JOURNAL = "owner1 media [20/Nov/2026:08:00:02 +0000] REST.PUT.OBJECT a b 100 - abc"
STANDARD = (
    'owner1 media [20/Nov/2026:08:00:02 +0000] 192.0.2.7 alice r1.1.1 REST.PUT.OBJECT a "PUT /media/a HTTP/1.1" 200'
    ' - 9 7 - 5ms - "boto3/1" - - SigV4 - AuthHeader host - - Yes'
)
_WHOLE = (A, s3("a", '"PUT /a HTTP/1.1"'), JOURNAL, STANDARD, "7 REST.PUT.OBJECT 95d363d3fbdc0b03 5")
_PIECES = st.sampled_from(_WHOLE) | st.builds(lambda line, end: line[:end], st.sampled_from(_WHOLE), st.integers(0, 90))
_LINES = st.lists(
    st.lists(_PIECES | st.sampled_from(["", " ", "{", "}", '"', "[", "\0"]) | st.text(), max_size=3).map("".join)
)


@given(_LINES)
@pytest.mark.parametrize("name", ["s3-access", "rgw-ops", "rgw-journal", "rgw-standard", "ibm-cos"])
def test_every_line_is_accounted_for(name: str, lines: list[str]) -> None:
    """Whatever stands on the lines of a log, whole or cut, each is a write, or counted with a reason."""
    data = "\n".join(lines).encode("utf-8", "surrogatepass")

    found = list(FORMATS[name].records(BytesIO(data), FormatContext("a.log")))

    assert all(each.outcomes for each in found)
    assert [each.line for each in found] == sorted({each.line for each in found})
    if name not in ("rgw-ops", "rgw-journal", "rgw-standard"):  # of these a record may take several lines
        assert len(found) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
