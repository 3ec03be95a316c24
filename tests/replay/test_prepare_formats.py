"""What a line of each log says; all lines are invented."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import MALFORMED, READ, Dropped, FormatContext, Outcome, Write, clf_us, iso_us
from remora_pipeline.replay.prepare.formats import (
    FORMATS,
    detect,
    ibm_cos,
    op_log,
    rgw_bucket_logging,
    rgw_ops,
    s3_access,
)
from remora_pipeline.replay.prepare.sources import opened
from support.trace_lines import only, s3_line

SECOND = 1_795_227_247_000_000
"""2026-11-21 02:14:07 UTC."""


def reason(outcomes: Sequence[Outcome]) -> str:
    (outcome,) = outcomes
    assert isinstance(outcome, Dropped), outcome
    return outcome.reason


def records(name: str, text: bytes, source: FormatContext | None = None) -> list[Outcome]:
    found = FORMATS[name].records(BytesIO(text), source or FormatContext("a.log"))
    return [outcome for each in found for outcome in each.outcomes]


# ------------------------------------------------------------------------------------ S3 access logs


def test_a_put_in_an_s3_access_log() -> None:
    """A successful PUT is a write with the bucket, decoded key, size and time of its line."""
    found = only(
        s3_access.parse(s3_line(key="tides/gauge%2B7+north.csv", uri='"PUT /tides/gauge%2B7%20north.csv HTTP/1.1"'))
    )

    assert found[:6] == (SECOND, SECOND, "PUT", "photos", "tides/gauge+7 north.csv", 1200)


@pytest.mark.parametrize(
    ("operation", "op"),
    [
        ("REST.PUT.OBJECT", "PUT"),
        ("REST.POST.OBJECT", "PUT"),
        ("REST.COPY.OBJECT", "COPY"),
        ("REST.POST.UPLOAD", "MPU_COMPLETE"),
        ("REST.DELETE.OBJECT", "DELETE"),
        ("BATCH.DELETE.OBJECT", "DELETE"),
        ("S3.EXPIRE.OBJECT", "DELETE"),
        ("S3.CREATE.DELETEMARKER", "DELETE"),
    ],
)
def test_operations_of_s3_that_make_events(operation: str, op: str) -> None:
    """Writes, completed uploads and deletes, by requests and by lifecycle rules, are events; deletes have no size."""
    found = only(s3_access.parse(s3_line(operation)))

    assert found.op == op
    assert found.size == (None if op == "DELETE" else 1200)


@pytest.mark.parametrize(
    "operation",
    ["REST.GET.OBJECT", "REST.HEAD.OBJECT", "REST.PUT.PART", "REST.POST.MULTI_OBJECT_DELETE", "REST.GET.BUCKET"],
)
def test_operations_of_s3_that_make_none(operation: str) -> None:
    """Reads, parts of uploads and the request around several deletes make no event, and are counted as such."""
    assert reason(s3_access.parse(s3_line(operation))) in (READ, f"no event: {operation}")


def test_lifecycle_needs_no_status_and_a_request_does() -> None:
    """What a lifecycle rule did has no status; a request without one, or with 300 and more, wrote nothing for sure."""
    assert only(s3_access.parse(s3_line("S3.EXPIRE.OBJECT", uri="-", status="-"))).op == "DELETE"
    assert "status" in reason(s3_access.parse(s3_line(status="-")))
    assert reason(s3_access.parse(s3_line(status="403"))) == "failed with status 403"
    assert reason(s3_access.parse(s3_line(status="304"))) == "failed with status 304"


@pytest.mark.parametrize(
    ("key", "uri", "host", "expected"),
    [
        # Encoded twice in the field: the request tells.
        ("a%252B%2520b.csv", "/a%2B%20b.csv", "photos.s3.example.com", "a+ b.csv"),
        # A key that really has %2B in it, encoded once.
        ("a%252Bb.csv", "/a%252Bb.csv", "photos.s3.example.com", "a%2Bb.csv"),
        # A plus in a path, which S3 takes for a space, and others for a plus: the field decides.
        ("a+b", "/a+b", "photos.s3.example.com", "a b"),
        ("a%2Bb", "/a+b", "photos.s3.example.com", "a+b"),
        # The bucket in the path; a key that begins like the bucket.
        ("a.csv", "/photos/a.csv", "s3.example.com", "a.csv"),
        ("photos/a.csv", "/photos/a.csv", "photos.s3.example.com", "photos/a.csv"),
        ("photos/a.csv", "/photos/photos/a.csv", "s3.example.com", "photos/a.csv"),
        ("a%252Bb", "/photos/a%2Bb?partNumber=1", "s3.example.com", "a+b"),
        # An upload by form: the key is not in the path.
        ("up+load.jpg", "/", "photos.s3.example.com", "up load.jpg"),
        ("up+load.jpg", "/photos", "s3.example.com", "up load.jpg"),
        # They differ for another reason.
        ("other", "/a%20b", "photos.s3.example.com", "a b"),
        ("dir//x", "//dir//x", "-", "/dir//x"),
    ],
)
def test_a_key_is_decoded_once_and_checked_with_the_request(key: str, uri: str, host: str, expected: str) -> None:
    """The key is its field decoded once; where the request says another one, the request is right."""
    assert only(s3_access.parse(s3_line(key=key, uri=f'"PUT {uri} HTTP/1.1"', host=host))).key == expected


def test_fields_behind_the_known_ones_are_allowed() -> None:
    """New fields at the end, quotes in the user agent and a line that ends behind the times do no harm."""
    assert only(s3_access.parse(s3_line(more=" eu-north-1 new"))).key == "a.csv"
    assert only(s3_access.parse(s3_line(agent='"a "quoted" agent"'))).key == "a.csv"
    assert only(s3_access.parse(s3_line().partition(' "-" ')[0])).key == "a.csv"


def test_lines_of_one_request_are_told_apart() -> None:
    """The deletes of one request have different names, the same line logged twice has the same one."""
    one, same, other = (
        only(s3_access.parse(s3_line("BATCH.DELETE.OBJECT", key=key, uri="-"))).request for key in ("a", "a", "b")
    )

    assert one == same != other
    assert only(s3_access.parse(s3_line(request="-"))).request is None


@pytest.mark.parametrize("about", ["- -", '"-" -', '- "-"', '"-" "-"'])
def test_deletes_of_versions_by_one_request_are_told_apart(about: str) -> None:
    """Each version that one request deletes is a delete, whether referer and agent are quoted or not."""
    line = s3_line("BATCH.DELETE.OBJECT", key="a", uri="-", status="204")
    first, second = (only(s3_access.parse(line.replace('"-" "agent/1" -', f"{about} {v}"))) for v in ("v1", "v2"))

    assert (first.key, second.key) == ("a", "a")
    assert first.request != second.request


@pytest.mark.parametrize(("operation", "method"), [("REST.POST.UPLOAD", "POST"), ("REST.COPY.OBJECT", "PUT")])
def test_an_error_behind_status_200_is_a_failure(operation: str, method: str) -> None:
    """S3 answers a copy and the end of an upload with 200 at once: where an error follows, nothing was written."""
    line = s3_line(operation, uri=f'"{method} /a.csv HTTP/1.1"')

    assert only(s3_access.parse(line)).key == "a.csv"
    assert reason(s3_access.parse(line.replace(" 200 - ", " 200 InternalError "))).startswith("failed with an error")


@pytest.mark.parametrize("between", ["\r", "", " "])
def test_records_without_a_line_s_end_between_are_all_read(between: str) -> None:
    """Line ends of another kind, or files put together of which one lacked its end, cost no record."""
    lines = [s3_line(key=key, uri=f'"PUT /{key} HTTP/1.1"', request=key) for key in ("a", "b", "c")]

    found = s3_access.parse(between.join(lines))

    assert [each.key for each in found if isinstance(each, Write)] == ["a", "b", "c"]
    assert [each.request for each in found if isinstance(each, Write)] == [
        only(s3_access.parse(line)).request for line in lines
    ]


def test_an_agent_that_looks_like_a_record_is_none() -> None:
    """What a client calls itself is no record, whatever it is."""
    agent = '"x y [21/Nov/2026:02:14:07 +0000] 192.0.2.7 u R9 REST.PUT.OBJECT z"'

    assert only(s3_access.parse(s3_line(agent=agent))).key == "a.csv"


def test_a_client_that_went_away_has_written_nothing() -> None:
    """A status below 200 is of a request without an answer, in each format that tells one."""
    assert reason(s3_access.parse(s3_line(status="000"))) == "failed with status 000"
    assert reason(rgw_ops.parse(ops(http_status="0"))) == "failed with status 0"


def test_a_key_that_is_not_utf8_is_dropped() -> None:
    """Kafka's records are text: a key of other bytes is counted as such, and not mangled."""
    assert "UTF-8" in reason(s3_access.parse(s3_line(key="%ff", uri='"PUT /%ff HTTP/1.1"')))


# ------------------------------------------------------------------------------------ CloudTrail


def trail(**changes: object) -> dict[str, object]:
    event: dict[str, object] = {
        "eventTime": "2026-11-21T02:14:07Z",
        "eventSource": "s3.amazonaws.com",
        "eventName": "PutObject",
        "requestParameters": {"bucketName": "photos", "key": "gauge+7 %2B.csv", "Host": "x"},
        "additionalEventData": {"bytesTransferredIn": 1200.0},
        "eventID": "e-1",
        "readOnly": False,
        "managementEvent": False,
        "eventCategory": "Data",
    }
    return {name: value for name, value in (event | changes).items() if value is not None}


def document(*events: object) -> bytes:
    return json.dumps({"Records": events}).encode()


def test_a_put_in_cloudtrail() -> None:
    """The key is as it is, the size that of the request, and the event's id tells one logged twice."""
    (found,) = records("cloudtrail", document(trail()))

    assert found == Write(SECOND, SECOND, "PUT", "photos", "gauge+7 %2B.csv", 1200, "e-1")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eventName": "GetObject", "readOnly": True}, READ),
        ({"eventName": "UploadPart"}, "no event: UploadPart"),
        ({"errorCode": "AccessDenied"}, "failed with an error code"),
        ({"eventName": "DeleteObjects"}, "a delete of several objects that does not tell their keys"),
        ({"managementEvent": True}, "a management event"),
        ({"eventSource": "lambda.amazonaws.com"}, "an event of another service than S3"),
        ({"eventTime": "soon"}, MALFORMED + "not an event of CloudTrail"),
        ({"requestParameters": None}, MALFORMED + "no bucket"),
    ],
)
def test_events_of_cloudtrail_that_are_dropped(changes: dict[str, object], expected: str) -> None:
    """Reads, failures, other services and what tells no key are counted by their reason."""
    assert records("cloudtrail", document(trail(**changes))) == [Dropped(expected)]


def test_only_a_put_tells_its_size_in_cloudtrail() -> None:
    """A copy's or completed upload's object is not in its request, so that nobody knows its size."""
    found = records(
        "cloudtrail", document(*(trail(eventName=name) for name in ("CopyObject", "CompleteMultipartUpload")))
    )

    assert [(each.op, each.size) for each in found if isinstance(each, Write)] == [
        ("COPY", None),
        ("MPU_COMPLETE", None),
    ]


@pytest.mark.parametrize("origin", ["aws:s3", "ceph:s3"])
def test_notifications_are_refused_by_name(origin: str) -> None:
    """S3's event notifications look like CloudTrail's document; they are refused as what they are."""
    notification = {"eventSource": origin, "eventName": "ObjectCreated:Put", "s3": {"object": {"key": "a"}}}

    with pytest.raises(ReplayRefused, match=r"a\.json:1: these are S3 event notifications"):
        detect(document(notification), "a.json", Mapping())
    with pytest.raises(ReplayRefused, match=r"a\.log: record 2: these are S3 event notifications"):
        records("cloudtrail", document(trail(), notification))


@pytest.mark.parametrize(
    "changes",
    [
        {"eventName": "PutItem", "requestParameters": {"tableName": "t", "key": {"id": {"S": "x"}}}},
        {"eventName": "Decrypt", "requestParameters": "HIDDEN_DUE_TO_SECURITY_REASONS", "readOnly": "true"},
        {"eventName": "Invoke", "additionalEventData": ["x"], "eventCategory": "Data"},
        {"eventName": "Invoke", "requestParameters": {"test": {"eventSource": "aws:s3"}}},
    ],
)
def test_other_services_have_parameters_of_their_own(changes: dict[str, object]) -> None:
    """An event of another service is told as one whatever its parameters are, and is no reason to refuse a file."""
    text = document(trail(), trail(eventSource="other.amazonaws.com", **changes))

    assert detect(text, "a.json", Mapping()).name == "cloudtrail"
    assert records("cloudtrail", text)[1:] == [Dropped("an event of another service than S3")]


@pytest.mark.parametrize(("told", "size"), [("5", 5), (5.0, 5), ("many", None), (-1, None), (None, None)])
def test_a_put_stays_an_event_however_its_bytes_are_told(told: object, size: int | None) -> None:
    """What cannot be read as a number of bytes is an unknown size, and not a lost event."""
    (found,) = records("cloudtrail", document(trail(additionalEventData={"bytesTransferredIn": told})))

    assert isinstance(found, Write)
    assert found.size == size


def lines_of(*texts: object) -> bytes:
    return b"\n".join(each if isinstance(each, bytes) else json.dumps(each).encode() for each in texts)


E1, E2, E3 = (trail(eventID=f"e-{number}") for number in (1, 2, 3))
DIGEST = {"awsAccountId": "111", "digestStartTime": "2026-11-21T02:00:00Z", "logFiles": [{"s3Bucket": "b"}]}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(document(E1) + b"\n\n" + document(E2, E3), id="a document a line"),
        pytest.param(document(E1) + document(E2) + document(E3), id="documents without line ends"),
        pytest.param(lines_of(E1, E2, E3), id="an event a line"),
        pytest.param(lines_of(E1, E2, E3).replace(b"\n", b"\r\n") + b"\r\n", id="CRLF"),
        pytest.param(json.dumps([E1, E2, E3]).encode(), id="an array"),
        pytest.param(json.dumps([{"Records": [E1]}, {"Records": [E2, E3]}]).encode(), id="an array of documents"),
        pytest.param(json.dumps([E1, E2, E3], indent=2).encode(), id="an array over many lines"),
        pytest.param(lines_of([E1], [E2, E3]), id="an array a line"),
        pytest.param(json.dumps({"Records": [E1, E2, E3]}, indent="\t").encode(), id="a document over many lines"),
        pytest.param(b"\n".join(json.dumps(e, indent=1).encode() for e in (E1, E2, E3)), id="events over many lines"),
        pytest.param(b"\xef\xbb\xbf" + lines_of(E1, E2) + b"\n\xef\xbb\xbf" + lines_of(E3), id="marks of byte order"),
        pytest.param(lines_of({"Records": []}, document(E1, E2, E3), {"Records": None}), id="empty documents"),
        pytest.param(lines_of(*({"detail-type": "x", "detail": each} for each in (E1, E2, E3))), id="EventBridge"),
    ],
)
def test_events_of_cloudtrail_however_they_are_laid_out(text: bytes) -> None:
    """Documents, arrays and events by themselves, on one line or on many, give the same events and nothing else."""
    found = records("cloudtrail", text)

    assert [each.request for each in found if isinstance(each, Write)] == ["e-1", "e-2", "e-3"]
    assert {each for each in found if isinstance(each, Dropped)} <= {Dropped("a blank line")}
    assert detect(text.removeprefix(b"\xef\xbb\xbf"), "x", Mapping()).name == "cloudtrail"


@pytest.mark.parametrize("text", [{"Records": []}, {"Records": None}, DIGEST])
def test_files_of_cloudtrail_without_events(text: object) -> None:
    """A document without records has nothing in it, and a digest is known as one; both are CloudTrail's files."""
    for data in (json.dumps(text).encode(), json.dumps(text, indent=4).encode()):
        assert detect(data, "x", Mapping()).name == "cloudtrail"
        assert records("cloudtrail", data) == ([Dropped("a digest of CloudTrail's files")] if text is DIGEST else [])


def test_broken_lines_of_cloudtrail_are_counted_one_by_one() -> None:
    """A line that was cut, or is another text, is counted, and costs none of the events around it."""
    cut = json.dumps(E2).encode()[:-40]
    text = lines_of(E1, cut, E3, b"no JSON", {"a": 1}, b'"', b"}", E2)

    found = list(FORMATS["cloudtrail"].records(BytesIO(text), FormatContext("a.log")))

    assert [
        (each.line, outcome.request) for each in found for outcome in each.outcomes if isinstance(outcome, Write)
    ] == [
        (1, "e-1"),
        (3, "e-3"),
        (8, "e-2"),
    ]
    dropped = [(each.line, outcome) for each in found for outcome in each.outcomes if isinstance(outcome, Dropped)]
    assert [line for line, _ in dropped] == [2, 4, 5, 6, 7]
    assert all(outcome.reason.startswith(MALFORMED) for _, outcome in dropped)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_of_cloudtrail_that_ends_early(indent: int | None) -> None:
    """What is whole in a document without an end is read, and the rest is one thing that is malformed."""
    text = json.dumps({"Records": [E1, E2, E3]}, indent=indent)
    cut = text[: text.index("e-3")].encode()

    found = records("cloudtrail", cut)

    assert [each.request for each in found if isinstance(each, Write)] == ["e-1", "e-2"]
    reasons = {each.reason for each in found if isinstance(each, Dropped)}
    assert reasons - {"a blank line"} == {MALFORMED + "not an object of JSON"}
    assert detect(cut, "x", Mapping()).name == "cloudtrail"


def test_a_compressed_document_of_cloudtrail_that_ends_early(tmp_path: Path) -> None:
    """The events before the damage are read, and then it is told."""
    keys = [{"bucketName": "b", "key": token_hex(40)} for _ in range(99)]
    several = [trail(eventID=f"e-{number}", requestParameters=key) for number, key in enumerate(keys)]
    file = tmp_path / "a.json.gz"
    file.write_bytes(gzip.compress(document(*several))[:-1000])
    found: list[Outcome] = []

    with opened(file, "gzip") as stream:
        lines = FORMATS["cloudtrail"].records(stream, FormatContext("a.json.gz"))
        with pytest.raises(OSError, match="Truncated or damaged gzip"):
            found.extend(outcome for line in lines for outcome in line.outcomes)

    requests = [each.request for each in found if isinstance(each, Write)]
    assert 9 < len(requests) < 99
    assert requests == [f"e-{number}" for number in range(len(requests))]


# ------------------------------------------------------------------------------------ radosgw


def ops(**changes: object) -> str:
    entry: dict[str, object] = {
        "bucket": "photos",
        "time": "2026-11-21T02:14:07.482913Z",
        "operation": "put_obj",
        "uri": "PUT /photos/gauge%2B7%20north.csv?x=1 HTTP/1.1",
        "http_status": "200",
        "object_size": 1200,
        "total_time": 61,
        "trans_id": "tx1",
        "user_agent": "agent",
    }
    return json.dumps(entry | changes)


def test_a_put_in_an_ops_log() -> None:
    """The key comes from the target, the time is when the request began, and it ended after its total time."""
    found = only(rgw_ops.parse(ops()))

    assert found == Write(SECOND + 482_913, SECOND + 543_913, "PUT", "photos", "gauge+7 north.csv", 1200, "tx1")


@pytest.mark.parametrize(
    ("uri", "bucket", "key"),
    [
        ("PUT /gauge+7.csv HTTP/1.1", "photos", "gauge+7.csv"),
        ("PUT /photos/photos/x HTTP/1.1", "photos", "photos/x"),
        ("PUT /acme:photos/x%3Fy HTTP/1.1", "acme/photos", "x?y"),
        ("PUT /photos//x HTTP/1.1", "photos", "/x"),
    ],
)
def test_the_key_in_a_target(uri: str, bucket: str, key: str) -> None:
    """The bucket, with or without its tenant, stands in front of the key or not; only percents are decoded."""
    found = only(rgw_ops.parse(ops(uri=uri, bucket=bucket)))

    assert (found.bucket, found.key) == ("photos", key)


def test_the_stream_of_the_socket() -> None:
    """A bracket in front, and commas behind objects, are taken off; a bracket alone is no line."""
    stream = f"[\n{ops()},\n[{ops(trans_id='tx2')}\n,\n{ops(trans_id='tx3')}]\n"

    found = records("rgw-ops", stream.encode())

    assert [each.request for each in found if isinstance(each, Write)] == ["tx1", "tx2", "tx3"]
    assert [each for each in found if isinstance(each, Dropped)] == [Dropped("the frame of the socket's stream")] * 2


def test_a_delete_of_several_objects_in_an_ops_log() -> None:
    """Each object that was deleted is an event with its key as it is; one that was not is counted."""
    objects = [
        {"key": "a b%20.csv", "version_id": "", "http_status": 200, "error": False},
        {"key": "locked", "version_id": "", "http_status": 403, "error": True},
        {"key": "c", "version_id": "v", "http_status": 204, "error": False},
    ]
    found = rgw_ops.parse(ops(operation="multi_object_delete", op_data={"num_ok": 2, "num_err": 1, "objects": objects}))

    assert [(each.op, each.key) for each in found if isinstance(each, Write)] == [
        ("DELETE", "a b%20.csv"),
        ("DELETE", "c"),
    ]
    assert Dropped("failed with status 403") in found
    assert "does not tell" in reason(rgw_ops.parse(ops(operation="multi_object_delete")))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (ops(operation="get_obj"), READ),
        (ops(operation="list_bucket"), READ),
        (ops(operation="init_multipart"), "no event: init_multipart"),
        (ops(http_status="404"), "failed with status 404"),
        (ops(http_status="-"), MALFORMED + "not an entry of an ops log"),
        (ops(time="yesterday"), MALFORMED + "not an entry of an ops log"),
        ("{", MALFORMED + "not an entry of an ops log"),
        ("[" * 100_000, MALFORMED + "not an entry of an ops log"),
        (ops(object_size=1 << 70), MALFORMED + "size is negative or beyond 64 bits"),
        (ops(uri="PUT /photos/%ff HTTP/1.1"), "the key, bucket or request id is not UTF-8"),
        (ops(operation="post_obj", uri="POST /photos HTTP/1.1"), "an upload by form, whose key is not in the log"),
    ],
)
def test_lines_of_an_ops_log_that_are_dropped(line: str, expected: str) -> None:
    """Reads, failures and broken lines are counted by their reason."""
    assert reason(rgw_ops.parse(line)) == expected


def test_swift_s_archives_do_not_tell_their_objects() -> None:
    """An archive that Swift unpacks makes objects whose names are not in the log, and is told as that."""
    line = ops(operation="bulk_upload", uri="PUT /swift/v1/photos?extract-archive=tar HTTP/1.1")

    assert reason(rgw_ops.parse(line)) == "an upload of an archive that does not tell its objects' keys"


def test_a_delete_needs_no_size() -> None:
    """A delete is an event whatever its line says of a size."""
    assert only(rgw_ops.parse(ops(operation="delete_obj", http_status="204", object_size=-1))).size is None


def test_an_ops_log_with_bytes_that_are_no_text() -> None:
    """A user agent of any bytes does not cost the line, as radosgw writes it as it is."""
    line = ops().encode().replace(b'"agent"', b'"\xff\xfe"')

    assert isinstance(records("rgw-ops", line)[0], Write)


def test_a_journal_of_bucket_logging() -> None:
    """Keys with spaces stand as they are between four parts on the left and three on the right."""
    line = "loader acme:photos [21/Nov/2026:03:14:07 +0100] REST.PUT.OBJECT  a  b - c%20.csv 1200 - 5b0d9d1e"

    assert only(rgw_bucket_logging.parse_journal(line)) == Write(
        SECOND, SECOND, "PUT", "photos", " a  b - c%20.csv", 1200, None
    )
    gone = "loader photos [21/Nov/2026:02:14:07 +0000] REST.DELETE.OBJECT old.csv - null -"
    assert only(rgw_bucket_logging.parse_journal(gone))[2:6] == ("DELETE", "photos", "old.csv", None)


def standard(
    key: str = "a.csv", operation: str = "REST.PUT.OBJECT", status: str = "200", agent: str = '"boto3/1"'
) -> str:
    return (
        f"loader photos [21/Nov/2026:02:14:07 +0000] 192.0.2.7 loader 5f1b.4179.99 {operation} {key} "
        f'"PUT /photos/x%20y HTTP/1.1" {status} - 48213 1200 - 12ms - {agent} - - SigV4 - AuthHeader rgw.test - - -'
    )


@pytest.mark.parametrize("key", ["a.csv", "with  spaces", 'a "GET /x HTTP/1.1" 200 key', "a+b%20", "- - -"])
def test_the_standard_format_of_bucket_logging(key: str) -> None:
    """Keys stand as they are, whatever is in them; the turn-around with its unit is no obstacle."""
    found = only(rgw_bucket_logging.parse_standard(standard(key)))

    assert found[:6] == (SECOND, SECOND, "PUT", "photos", key, 1200)


def test_failures_in_the_standard_format() -> None:
    """Status 300 and more wrote nothing; reads are reads whatever their status."""
    assert reason(rgw_bucket_logging.parse_standard(standard(status="412"))) == "failed with status 412"
    assert reason(rgw_bucket_logging.parse_standard(standard(operation="REST.GET.OBJECT", status="404"))) == READ
    assert only(rgw_bucket_logging.parse_standard(standard(agent='"a "b" c"'))).key == "a.csv"


# ------------------------------------------------------------------------------------ IBM, warp


def test_an_ibm_trace() -> None:
    """Milliseconds become microseconds, ranges are no obstacle, deletes have no size, the file tells the bucket."""
    text = b"""86400117 REST.PUT.OBJECT 0a1b2c3d4e5f6071 1200
86400230 REST.GET.OBJECT 0a1b2c3d4e5f6071 1200 0 499
86400231 REST.GET.OBJECT 0a1b2c3d4e5f6072 0 0 -1
86409004 REST.DELETE.OBJECT 0a1b2c3d4e5f6071
86409005 REST.PUT.OBJECT short 1
"""

    found = records("ibm-cos", text, FormatContext("IBMObjectStoreTrace001Part0"))

    assert found == [
        Write(86_400_117_000, 86_400_117_000, "PUT", "ibm001", "0a1b2c3d4e5f6071", 1200, None),
        Dropped(READ),
        Dropped(READ),
        Write(86_409_004_000, 86_409_004_000, "DELETE", "ibm001", "0a1b2c3d4e5f6071", None, None),
        Dropped(MALFORMED + "not the fields of an IBM object-store trace"),
    ]


@pytest.mark.parametrize(
    ("name", "bucket"),
    [("/x/IBMObjectStoreTrace042Part3.gz", "ibm042"), ("My Trace_1.txt", "my-trace-1"), ("….txt", "ibm")],
)
def test_the_bucket_of_an_ibm_trace(name: str, bucket: str) -> None:
    """Parts of one trace are one bucket; other files are a bucket with a name that S3 would take."""
    assert ibm_cos.bucket_of(name) == bucket


WARP = "idx\tthread\top\tclient_id\tn_objects\tbytes\tendpoint\tfile\terror\tstart\tfirst_byte\tend\tduration_ns"
OLD_WARP = "idx,thread,op,n_objects,bytes,file,error,start,first_byte,end,duration_ns"
START, END = "2026-11-21T02:14:07.000000250Z", "2026-11-21T03:14:08.5+01:00"


def test_an_operation_log() -> None:
    """Columns are bound by their names; reads, failures and comments are dropped, `s3://` names the bucket itself."""
    rows = [
        f"0\t1\tPUT\tc\t1\t1200\thttp://h\tdir/a b.rnd\t\t{START}\t\t{END}\t1",
        f"1\t1\tGET\tc\t1\t1200\thttp://h\tdir/a b.rnd\t\t{START}\t\t{END}\t1",
        f"2\t1\tDELETE\tc\t1\t0\thttp://h\ts3://other/x\t\t{START}\t\t{END}\t1",
        f"3\t1\tDELETE\tc\t100\t0\thttp://h\t\t\t{START}\t\t{END}\t1",
        f"4\t1\tPUT\tc\t1\t1\thttp://h\tx\tslow down\t{START}\t\t{END}\t1",
        "5\t1\tPUT",
        "# warp put",
    ]
    found = records("op-log", "\n".join([WARP, *rows]).encode())

    assert found[0] == Write(SECOND, SECOND + 1_500_000, "PUT", op_log.BUCKET, "dir/a b.rnd", 1200, None)
    assert found[1] == Dropped(READ)
    assert isinstance(found[2], Write)
    assert found[2][2:6] == ("DELETE", "other", "x", None)
    assert [each.reason.split(" ")[0] for each in found[3:] if isinstance(each, Dropped)] == [
        "one",
        "failed",
        "malformed:",
        "a",
    ]


def test_an_old_operation_log() -> None:
    """The older form, with commas and fewer columns, is bound by its names too."""
    found = records(
        "op-log", f'{OLD_WARP}\n0,1,PUT,1,7,"a,b",,{START},,{END},1\n'.encode(), FormatContext("x", bucket="given")
    )

    assert [(each.bucket, each.key, each.size) for each in found if isinstance(each, Write)] == [("given", "a,b", 7)]


# ------------------------------------------------------------------------------------ all of them

EXAMPLES = {
    "s3-access": s3_line(),
    "cloudtrail": document(trail()).decode(),
    "rgw-ops": ops(),
    "rgw-journal": "loader photos [21/Nov/2026:02:14:07 +0000] REST.PUT.OBJECT a b 1200 - 5b0d",
    "rgw-standard": standard(),
    "ibm-cos": "86400117 REST.PUT.OBJECT 0a1b2c3d4e5f6071 1200",
    "op-log": f"{WARP}\n0\t1\tPUT\tc\t1\t1\th\tx\t\t{START}\t\t{END}\t1",
    "csv": "seq,ts_us,op,bucket,key,size\n0,1,PUT,b,k,1",
    "parquet": "PAR1",
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_recognised_and_no_other_takes_it(name: str) -> None:
    """The beginning of a file of each format is recognised as that one, and by no other format."""
    begin = EXAMPLES[name].encode()

    assert detect(begin, "x", Mapping()).name == name
    assert [each.name for each in FORMATS.values() if each.recognises(begin)] == [name]


@pytest.mark.parametrize("text", [b"hello world\n", b"\x00\x01\x02", b'{"a": 1}\n', b"a,b,c\n1,2,3\n"])
def test_what_no_format_takes_is_refused(text: bytes) -> None:
    """A file of none of the formats is refused by its name and first line."""
    with pytest.raises(ReplayRefused, match=r"x\.log:1: in none of the known formats"):
        detect(text, "x.log", Mapping())


def test_columns_that_are_named_make_it_a_table() -> None:
    """Where the user says which column is what, a text is a CSV file, whatever its header."""
    assert detect(b"when;what\n", "x", Mapping(ts_col="when")).name == "csv"


@pytest.mark.parametrize(
    "text",
    [
        "21/Nov/2026:02:14:07",
        "21/Xxx/2026:02:14:07 +0000",
        "31/Feb/2026:02:14:07 +0000",
        "",
        "٢١/Nov/2026:02:14:07 +0000",
    ],
)
def test_a_time_that_is_none(text: str) -> None:
    """A text that is no time of a log raises ValueError."""
    with pytest.raises(ValueError):
        clf_us(text)


def test_times_keep_their_microseconds() -> None:
    """Times are cut to whole microseconds, go by their zone, and are UTC where they name none."""
    assert iso_us("2026-11-21T02:14:07.4829139Z") == SECOND + 482_913
    assert iso_us("2026-11-21 02:14:07") == iso_us("2026-11-21T04:14:07+02:00") == SECOND
    assert clf_us("20/Nov/2026:21:14:07 -0500") == SECOND


PARSERS: tuple[Callable[[str], Sequence[Outcome]], ...] = (
    s3_access.parse,
    rgw_ops.parse,
    rgw_bucket_logging.parse_journal,
    rgw_bucket_logging.parse_standard,
    ibm_cos.parser(FormatContext("x")),
)

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_BITS = st.sampled_from(
    [
        *s3_line().split(" "),
        *standard().split(" "),
        "%ff",
        "%",
        '"',
        "[",
        "]",
        "-",
        "٣",
        "9" * 30,
        "\ud800",
        "\udcff",
        " ",
    ]
)
_LINES = st.lists(_BITS | st.text(max_size=5), max_size=30).map(" ".join) | st.text()
_ENTRIES = st.dictionaries(
    st.sampled_from(["time", "uri", "operation", "http_status", "bucket", "object_size", "total_time", "op_data"]),
    _JSON,
)


@given(_LINES | _ENTRIES.map(lambda entry: ops(**entry)))
@example(ops(total_time=float("nan")))
@example(ops(uri="\ud800", trans_id="\ud800"))
@example(ops(operation="\ud800"))
def test_no_line_raises(line: str) -> None:
    """Whatever a line has, it is rows that can be stored as text, or a reason."""
    for parse in PARSERS:
        for outcome in parse(line):
            if isinstance(outcome, Write):
                "".join((outcome.op, outcome.bucket, outcome.key, outcome.request or "")).encode()
                assert outcome.bucket
                assert outcome.key
                assert 0 <= outcome.ts_us <= outcome.end_us
            else:
                assert outcome.reason


_CHANGES = st.lists(st.dictionaries(st.sampled_from(sorted(trail())), _JSON))


@given(st.binary() | _CHANGES.map(lambda several: document(*(trail(**changes) for changes in several))))
@example(b"a\rb,c\n")
@pytest.mark.parametrize("name", ["cloudtrail", "op-log", "csv", "rgw-ops"])
def test_no_file_raises_but_what_names_it(name: str, data: bytes) -> None:
    """Whatever a file has, reading it gives rows or reasons, or refuses the file by its name."""
    try:
        for outcome in records(name, data):
            assert isinstance(outcome, Write | Dropped)
    except ReplayRefused as exc:
        assert str(exc).startswith("a.log:")  # noqa: PT017  # most files are refused, and need not be


_KEYS = st.text(min_size=1).filter(
    lambda key: key == key.strip() and "\n" not in key and "\r" not in key and key != "-"
)


@given(_KEYS.filter(lambda key: key.isprintable()))
def test_keys_come_back_as_they_were(key: str) -> None:
    """A key is found again in each log as its writer put it there."""
    path = quote(key)
    assert only(s3_access.parse(s3_line(key=quote_plus(key), uri=f'"PUT /{path} HTTP/1.1"'))).key == key
    assert only(rgw_ops.parse(ops(uri=f"PUT /photos/{path} HTTP/1.1"))).key == key
    journal = f"o photos [21/Nov/2026:02:14:07 +0000] REST.PUT.OBJECT {key} 1200 - 5b0d"
    assert only(rgw_bucket_logging.parse_journal(journal)).key == key
    assert only(rgw_bucket_logging.parse_standard(standard(key))).key == key
