"""Lines as real servers write them, which simple ways to read a log get wrong; all lines are invented."""

from __future__ import annotations

import json
from io import BytesIO

import pytest

from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import READ, Dropped, FormatContext, FoundLine, Write, is_malformed
from remora_pipeline.replay.prepare.formats import FORMATS, detect, op_log, rgw_bucket_logging, rgw_ops, s3_access
from support.trace_lines import only

PART = Dropped("no event: a part of a multipart upload")


def found(name: str, text: str | bytes) -> list[FoundLine]:
    data = text.encode() if isinstance(text, str) else text
    return list(FORMATS[name].records(BytesIO(data), FormatContext("a.log")))


def kinds(name: str, text: str | bytes) -> list[tuple[int, str]]:
    """Lines and what they are: the key of a write, or the reason why there is none, with malformed cut short."""
    return [
        (each.line, outcome.key if isinstance(outcome, Write) else outcome.reason.partition(":")[0])
        for each in found(name, text)
        for outcome in each.outcomes
    ]


# ------------------------------------------------------------------------------------ radosgw's ops log


def ops(uri: str, operation: str = "put_obj", status: str = "200", **changes: object) -> str:
    entry: dict[str, object] = {
        "bucket": "photos",
        "time": "2026-11-21T02:14:07.482913Z",
        "operation": operation,
        "uri": f"{uri} HTTP/1.1",
        "http_status": status,
        "object_size": 7,
        "total_time": 61,
        "trans_id": "tx1",
    }
    return json.dumps(entry | changes)


@pytest.mark.parametrize(
    ("query", "operation"),
    [
        ("partNumber=1&uploadId=2~x", "put_obj"),
        ("uploadId=2~x&partNumber=1", "put_obj"),
        ("x-id=UploadPart&uploadId=2~x&a&partNumber=10000", "put_obj"),
        ("uploadId=2~x&partNumber=1?uploadId=2~x&partNumber=1", "put_obj"),  # as release 16 writes it
        ("partNumber=2&uploadId=2~x", "copy_obj"),
        ("part%4Eumber=2&upload%49d=2~x", "put_obj"),
    ],
)
def test_a_part_of_an_upload_is_no_event(query: str, operation: str) -> None:
    """An uploaded or copied part is counted as one, whatever the order of its query; release 16 writes it twice."""
    for uri in (f"PUT /photos/film.mkv?{query}", f"PUT /film.mkv?{query}"):
        assert rgw_ops.parse(ops(uri, operation)) == (PART,)
        assert rgw_ops.parse(ops(uri, operation, object="film.mkv")) == (PART,)


def test_what_only_looks_like_a_part_is_an_event() -> None:
    """Half of a part's query, and a key with all of it in its name, are no part."""
    assert only(rgw_ops.parse(ops("PUT /photos/a?partNumber=1"))).key == "a"
    assert only(rgw_ops.parse(ops("POST /photos/a?uploadId=2~x", "complete_multipart"))).op == "MPU_COMPLETE"
    named = "a%3FpartNumber=1&uploadId=2"
    assert only(rgw_ops.parse(ops(f"PUT /photos/{named}"))).key == "a?partNumber=1&uploadId=2"


@pytest.mark.parametrize(
    ("uri", "bucket", "key"),
    [
        ("PUT /swift/v1/AUTH_x/photos/a.jpg", "photos", "a.jpg"),
        ("PUT /swift/v1/photos/a.jpg", "photos", "a.jpg"),
        ("PUT /swift/v1/AUTH_acme/photos/dir/a%20b%2Bc%25.jpg", "acme/photos", "dir/a b+c%.jpg"),
        ("PUT /swift/v1/AUTH_acme%24bob/my%20box/a.jpg", "my box", "a.jpg"),
        ("PUT /swift/v1/photos/photos/a.jpg", "photos", "photos/a.jpg"),
        ("PUT /swift/v1/photos//a//b/", "photos", "/a//b/"),
        ("PUT /swift/v1/photos/swift/v1/photos/a", "photos", "swift/v1/photos/a"),
        ("PUT /swift/v1.0/photos/a", "photos", "a"),
        ("PUT /v1/AUTH_x/photos/a", "photos", "a"),
        ("PUT /store/v1/AUTH_x/photos/a", "photos", "a"),
        ("PUT /swift/v1/AUTH_x/photos/slo?multipart-manifest=put", "photos", "slo"),
        ("PUT /swift/v1/AUTH_x/photos/%C3%BC%E2%82%AC", "", "ü€"),
        # S3's paths, which look like Swift's.
        ("PUT /photos/swift/v1/photos/a", "photos", "swift/v1/photos/a"),
        ("PUT /backup/v1/photos/a", "photos", "backup/v1/photos/a"),
        ("PUT /swift/v1/swift/a", "swift", "v1/swift/a"),
    ],
)
def test_the_container_and_object_of_swift(uri: str, bucket: str, key: str) -> None:
    """Swift's paths give container and object, with or without the account; S3's keep theirs."""
    write = only(rgw_ops.parse(ops(uri, bucket=bucket)))

    assert (write.bucket, write.key) == (bucket.rpartition("/")[2] or "photos", key)


def test_an_answer_of_swift_decides() -> None:
    """201 to a write is Swift's alone: a container called `swift`, or another prefix of paths, is read as Swift's."""
    assert only(rgw_ops.parse(ops("PUT /swift/v1/swift/a", status="201", bucket="swift"))).key == "a"
    assert only(rgw_ops.parse(ops("PUT /store/v1/photos/a", status="201"))).key == "a"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (ops("PUT /photos/other", object="a b%20+ü\n"), "a b%20+ü\n"),
        (ops("COPY /swift/v1/photos/source", "copy_obj", "201", object="copy of"), "copy of"),
        (ops("POST /photos", "post_obj", "204", object="by form"), "by form"),
        (ops("PUT /photos/-", object="-"), "-"),
        (ops("PUT /photos/a", object=""), "a"),
        (ops("PUT /photos/a", object=None), "a"),
    ],
)
def test_newer_lines_have_the_object(line: str, key: str) -> None:
    """The object of a line is its key as it is; where it is missing, or a dash, the key is in the target."""
    assert only(rgw_ops.parse(line)).key == key


def test_keys_that_an_ops_log_does_not_have() -> None:
    """Before 20.2 Swift's COPY tells only its source, and its bulk delete never tells any key: both are counted."""
    assert rgw_ops.parse(ops("COPY /swift/v1/photos/source", "copy_obj", "201")) == (
        Dropped("a copy by Swift's COPY, whose new key is not in the log"),
    )
    assert rgw_ops.parse(ops("POST /swift/v1?bulk-delete", "bulk_delete", bucket="")) == (
        Dropped("a delete of several objects that does not tell their keys"),
    )


def test_a_size_of_nothing_is_unknown_where_radosgw_knows_none() -> None:
    """radosgw writes 0 for copies and completed uploads, of which nobody knows the size then; an empty object has 0."""
    assert only(rgw_ops.parse(ops("PUT /photos/a", object_size=0))).size == 0
    assert only(rgw_ops.parse(ops("PUT /photos/a", "copy_obj", object_size=0))).size is None
    assert only(rgw_ops.parse(ops("POST /photos/a?uploadId=1", "complete_multipart", object_size=0))).size is None


A, B, C = (ops(f"PUT /photos/{key}", trans_id=key) for key in "abc")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{A}\r\n{B}\r\n{C}\r\n", id="CRLF"),
        pytest.param(A + B + C, id="without line ends"),
        pytest.param(f"[{A},{B},{C}]", id="an array"),
        pytest.param(json.dumps([json.loads(each) for each in (A, B, C)], indent=2), id="an array over many lines"),
        pytest.param("\n".join(json.dumps(json.loads(each), indent=4) for each in (A, B, C)), id="over many lines"),
        pytest.param(f"{A},\n{B}, {C}\n]", id="the stream, two on a line"),
        pytest.param(f"{A}\n\ufeff{B}\n\ufeff{C}", id="marks of byte order"),
    ],
)
def test_an_ops_log_however_it_is_laid_out(text: str) -> None:
    """One entry on each line, several on one, or one over many lines are the same entries, and nothing else."""
    writes = [key for _, key in kinds("rgw-ops", text) if key != "the frame of the socket's stream"]

    assert writes == ["a", "b", "c"]
    assert detect(text.encode(), "x", Mapping()).name == "rgw-ops"


def test_entries_before_one_that_was_cut_are_read() -> None:
    """Several entries on a line, of which the last one was cut, cost that one only."""
    found = [kind for _, kind in kinds("rgw-ops", f"{A}{B}{A[:40]}\n{B}")]

    assert found == ["a", "b", "malformed", "b"]


def test_a_broken_entry_costs_no_other() -> None:
    """A line that was cut within, also within a text, is counted alone, whatever comes behind it."""
    cut = A[:30]

    assert kinds("rgw-ops", f'{cut}\n{B}\nnoise {{"\n{C}\n{{"operation":1}}\n}}\n{A}\n{cut}') == [
        (1, "malformed"),
        (2, "b"),
        (3, "malformed"),
        (4, "c"),
        (5, "malformed"),
        (6, "malformed"),
        (7, "a"),
        (8, "malformed"),
    ]


# ------------------------------------------------------------------------------------ radosgw's bucket logging

LEFT = "owner1 media [20/Nov/2026:08:00:02 +0000]"


def journal(key: str, operation: str = "REST.PUT.OBJECT", left: str = LEFT) -> str:
    return f"{left} {operation} {key} 100 - abc"


def standard(
    key: str, operation: str = "REST.PUT.OBJECT", uri: str = "", user: str = "alice", left: str = LEFT,
    tail: str = '"boto3/1" - - SigV4 - AuthHeader host - - Yes',
) -> str:  # fmt: skip
    return (
        f'{left} 192.0.2.7 {user} r1.1.1 {operation} {key} "{uri or "PUT /media/x HTTP/1.1"}" 200 - 9 7 - 5ms - {tail}'
    )


@pytest.mark.parametrize("key", ["a.txt", "b c.txt", "- -", "ü€", 'q"uo te', "REST.PUT.OBJECT x 1 - y"])
def test_a_delete_of_several_objects_in_bucket_logging(key: str) -> None:
    """Both formats have a record for each key of a delete of several objects, and each is a DELETE."""
    operation = "REST.POST.DELETE_MULTI_OBJECT"
    uri = "POST /media?delete HTTP/1.1"

    for write in (
        only(rgw_bucket_logging.parse_journal(journal(key, operation))),
        only(rgw_bucket_logging.parse_standard(standard(key, operation, uri))),
    ):
        assert (write.op, write.bucket, write.key, write.size) == ("DELETE", "media", key, None)


def test_the_request_around_several_deletes_is_no_event() -> None:
    """The standard format has one record more for the request itself, which has no key."""
    line = standard("-", "REST.POST.DELETE_MULTI_OBJECT", "POST /media?delete HTTP/1.1")

    assert rgw_bucket_logging.parse_standard(line) == (Dropped("no event: a request to delete several objects"),)


def test_versions_that_one_request_deletes_are_told_apart() -> None:
    """The records of a delete of several versions of one key have names of their own; one logged twice has the same."""
    tails = (f'"boto3/1" {version} - SigV4 - AuthHeader host - - Yes' for version in ("v1", "v2", "v1"))
    one, other, same = (
        only(rgw_bucket_logging.parse_standard(standard("a", "REST.POST.DELETE_MULTI_OBJECT", tail=tail))).request
        for tail in tails
    )

    assert one == same != other


def test_a_key_that_is_a_dash() -> None:
    """An object may be called `-`: a record of a write always has its key."""
    assert only(rgw_bucket_logging.parse_journal(journal("-"))).key == "-"
    assert only(rgw_bucket_logging.parse_standard(standard("-", uri="PUT /media/- HTTP/1.1"))).key == "-"


@pytest.mark.parametrize("user", ["alice", "Accounting Department", "-", 'The "Big" One', "x REST.PUT.OBJECT y"])
@pytest.mark.parametrize("left", [LEFT, f"The Owner {LEFT}", f"tenant$some one acme:{LEFT.partition(' ')[2]}"])
def test_names_with_blanks_in_the_standard_format(user: str, left: str) -> None:
    """Owner, requester and key may have blanks, quotes and what looks like an operation in their names."""
    write = only(rgw_bucket_logging.parse_standard(standard("my key", user=user, left=left)))

    assert (write.bucket, write.key) == ("media", "my key")
    assert only(rgw_bucket_logging.parse_journal(journal("my key", left=left)))[3:5] == ("media", "my key")


@pytest.mark.parametrize(
    ("key", "target", "agent"),
    [
        ("x", "/media/x", 'a" - - "PUT /media/y HTTP/1.1" 200 - 1 1 - 1ms - "b'),
        ('x "PUT /media/y HTTP/1.1" 200 - 1 1 - 1ms - z', "/media/x%20%22PUT%20/media/y%20HTTP/1.1%22", "agent"),
        ("x", "/media/x", ""),
        ("x", "/media/x?acl", 'My "weird" agent'),
    ],
)
def test_what_looks_like_the_request_in_the_standard_format(key: str, target: str, agent: str) -> None:
    """A key or a user agent that looks like a request with its answer is not taken for it."""
    tail = f'"{agent}" - - - - - host.example - -'

    assert only(rgw_bucket_logging.parse_standard(standard(key, uri=f"PUT {target} HTTP/1.1", tail=tail))).key == key


@pytest.mark.parametrize("name", ["rgw-journal", "rgw-standard"])
def test_a_key_with_line_breaks_in_bucket_logging(name: str) -> None:
    """radosgw writes a line break in a key as it is: the record is put together, and none around it is lost."""
    line = journal if name == "rgw-journal" else standard
    text = "\n".join([line("a"), line("two\n\nlines"), "noise", line("b"), line("cut")[:60], line("c")])

    assert kinds(name, text) == [
        (1, "a"),
        (2, "two\n\nlines"),
        (5, "malformed"),
        (6, "b"),
        (7, "malformed"),
        (8, "c"),
    ]


# ------------------------------------------------------------------------------------ AWS's access log


def s3(
    requester: str = "arn:aws:iam::111:user/d", key: str = "a.csv", uri: str = "PUT /a.csv HTTP/1.1",
    operation: str = "REST.PUT.OBJECT", owner: str = "0aff", tail: str = '"-" "agent" - hostid=', status: str = "200",
) -> str:  # fmt: skip
    return (
        f"{owner} photos [21/Nov/2026:02:14:07 +0000] 192.0.2.3 {requester} R1 {operation} {key}"
        f' "{uri}" {status} - - 1200 12 9 {tail} SigV4 ECDHE AuthHeader photos.s3.example.com TLSv1.2 - -'
    )


@pytest.mark.parametrize(
    "line",
    [
        s3("arn:aws:iam::cloudfront:user/CloudFront Origin Access Identity E1EXAMPLE"),
        s3("a  name   with blanks"),
        s3("says REST.GET.OBJECT x"),
        s3('the "quoted" [one]'),
        s3(owner="The Owner"),
        s3(tail='"-" "agent" - two words='),
        s3(tail='"http://x/ "y" z" "Mozilla "weird" UA" v.1 hostid='),
        s3(tail='"() { :; }; "x" 200 - 1 2 3 4 "y"" "PUT /b HTTP/1.1" 200 - - 5 1 1 "-" - hostid='),
        s3(tail="- - - hostid="),
        s3(tail='"" "" - hostid=') + ' Yes us-east-1 new-field "quoted one"',
    ],
)
def test_names_with_blanks_in_an_access_log(line: str) -> None:
    """Blanks and quotes in owner, requester, referer, agent and the host's id move no field of a line."""
    write = only(s3_access.parse(line))

    assert (write.bucket, write.key, write.size, write.op) == ("photos", "a.csv", 1200, "PUT")


@pytest.mark.parametrize(
    ("key", "path"), [("a b.csv", "/a%20b.csv"), ('say "hi" b', "/say%20%22hi%22%20b"), ('x "GET y', "/x%20%22GET%20y")]
)
def test_a_key_that_its_writer_did_not_encode(key: str, path: str) -> None:
    """Some writers leave a key as it is: blanks and quotes in it are the key's, as the request tells."""
    assert only(s3_access.parse(s3(key=key, uri=f"PUT {path} HTTP/1.1"))).key == key


def test_a_request_with_quotes_in_an_access_log() -> None:
    """AWS writes the request as it came: what looks like an answer within it is not taken for one."""
    line = s3(uri='PUT /a.csv" 200 - 1 2 3 4 HTTP/1.1', status="403")

    assert s3_access.parse(line) == (Dropped("failed with status 403"),)


@pytest.mark.parametrize("name", ["s3-access", "rgw-standard", "rgw-journal"])
def test_lines_with_blanks_belong_to_one_format(name: str) -> None:
    """Whatever has blanks in it, a line of one of the three formats is none of the others."""
    line = {
        "s3-access": s3("a b", key="c d"),
        "rgw-standard": standard("c d", user="a b"),
        "rgw-journal": journal("c d"),
    }

    for end in ("\n", "\r\n", ""):
        begin = (line[name] + end).encode()
        assert [each.name for each in FORMATS.values() if each.recognises(begin)] == [name]


def test_all_dashes_of_the_standard_format_are_no_access_log() -> None:
    """A standard record of dashes only is not taken for AWS's, whose lifecycle has as many."""
    line = standard("a", tail='"" - - - - - - - -')

    assert is_malformed(s3_access.parse(line)[0])
    assert only(rgw_bucket_logging.parse_standard(line)).key == "a"


# ------------------------------------------------------------------------------------ operation logs

HEADER = "idx\tthread\top\tclient_id\tn_objects\tbytes\tendpoint\tfile\terror\tstart\tfirst_byte\tend\tduration_ns"


def row(file: str, error: str = "", op: str = "PUT", objects: int = 1) -> str:
    times = "2026-11-21T02:14:07.5Z\t\t2026-11-21T02:14:08Z\t500000000"
    return f"1\t0\t{op}\tc1\t{objects}\t100\thttp://127.0.0.1:9000\t{file}\t{error}\t{times}"


def op_log_of(*rows: str, end: str = "\n") -> str:
    return end.join([HEADER, *rows, ""])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "error",
    [
        '"an internal error\nplease try ""again""\tlater"',
        '"one\ttab"',
        '"# no comment\n# neither\n\n"',
        r'"with \"backslashes\"' + '\nand lines"',
        '"' + "line\n" * 200 + '"',
        "plain",
        '"""',
    ],
)
def test_quoted_texts_of_an_operation_log(error: str, end: str) -> None:
    """A quoted text may have tabs, quotes and line breaks: its row is one, and fails with its error."""
    text = op_log_of(row("a"), row("b", error.replace("\n", end)), row("c"), "# warp", end=end)

    assert [kind for _, kind in kinds("op-log", text)] == ["a", "failed with an error", "c", "a comment"]


def test_quoted_keys_of_an_operation_log() -> None:
    """A key that had to be quoted is itself again; a quote within a key that is not quoted stays."""
    text = op_log_of(row('"say ""hi""\tnow"'), row('a"b'), row('"two\nlines"'))

    assert [kind for _, kind in kinds("op-log", text)] == ['say "hi"\tnow', 'a"b', "two\nlines"]


def test_a_header_of_an_operation_log_that_repeats_a_name() -> None:
    """A row that is cut short before the last column that is needed is malformed, however many names there are."""
    header = HEADER.replace("client_id", "thread").replace("endpoint", "thread")
    cut = row("a").rpartition("\t2026-11-21T02:14:08Z")[0]
    quoted = cut.replace("\ta\t", '\t"a"\t')

    assert kinds("op-log", "\n".join([header, row("a"), cut, quoted, row("b")])) == [
        (2, "a"),
        (3, "malformed"),
        (4, "malformed"),
        (5, "b"),
    ]


def test_a_quote_that_is_never_closed_costs_no_other_row() -> None:
    """Rows behind an open quote are found again, and each of the lines that are none is counted."""
    text = op_log_of(row("a"), row("b", '"open')[:60], "of it", row("c"), row("d", '"open'), row("e"), '1\t0\t"PUT')

    assert kinds("op-log", text) == [
        (2, "a"),
        (3, "malformed"),
        (4, "malformed"),
        (5, "c"),
        (6, "malformed"),
        (7, "e"),
        (8, "malformed"),
    ]


@pytest.mark.parametrize(
    ("file", "bucket", "key"),
    [
        ("dir/a b", op_log.BUCKET, "dir/a b"),
        ("s3://box/dir/a b", "box", "dir/a b"),
        ("gs://box/dir/a", "box", "dir/a"),
        ("az://box/dir/a", "box", "dir/a"),
        ("s3a://box/dir//a", "box", "dir//a"),
        ("S3://box//a", "box", "/a"),
        ("http://127.0.0.1:9000/box/dir/a", "box", "dir/a"),
        ("https://host/box/a", "box", "a"),
        ("file:///mnt/box/a", op_log.BUCKET, "mnt/box/a"),
        ("direct:///mnt/a", op_log.BUCKET, "mnt/a"),
        ("not a://uri", op_log.BUCKET, "not a://uri"),
    ],
)
def test_uris_of_an_operation_log(file: str, bucket: str, key: str) -> None:
    """A URI of any scheme names bucket and key; that of a file names no bucket."""
    (only_found,) = found("op-log", op_log_of(row(file)))

    assert only(only_found.outcomes)[3:5] == (bucket, key)


@pytest.mark.parametrize("file", ["(batch)", "s3://box/(batch)"])
def test_a_batch_of_an_operation_log(file: str) -> None:
    """`(batch)` stands for several objects, of which no key is known; it is no key."""
    several = "one line for several objects, which does not tell their keys"

    text = op_log_of(row(file, op="DELETE", objects=10), row(file, op="DELETE"), row("(batch) one"))
    assert [kind for _, kind in kinds("op-log", text)] == [several, several, "(batch) one"]


def test_the_header_of_an_operation_log_behind_comments() -> None:
    """Comments and blank lines may stand before the header, whose names may be quoted."""
    quoted = "\t".join(f'"{name}"' for name in HEADER.split("\t"))
    text = f"# warp 1.4\n\n{quoted}\n{row('a')}\n"

    assert detect(text.encode(), "x", Mapping()).name == "op-log"
    assert kinds("op-log", text) == [(4, "a")]


@pytest.mark.parametrize("name", ["s3-access", "rgw-ops", "rgw-journal", "rgw-standard"])
def test_zeros_at_the_end_are_a_blank_line(name: str) -> None:
    """Zeros, as a system that crashed leaves them at the end of a file, are nothing that is malformed."""
    line = {"s3-access": s3(), "rgw-ops": A, "rgw-journal": journal("a"), "rgw-standard": standard("a")}[name]

    assert [kind for _, kind in kinds(name, f"{line}\n" + "\0" * 5000)][1:] == ["a blank line"]


def test_reads_stay_reads() -> None:
    """What only reads is counted as a read in each format, whatever is in its names."""
    assert s3_access.parse(s3("a b", operation="REST.GET.OBJECT")) == (Dropped(READ),)
    assert rgw_bucket_logging.parse_standard(standard("c d", "REST.GET.OBJECT", user="a b")) == (Dropped(READ),)
    assert rgw_ops.parse(ops("HEAD /swift/v1/AUTH_x/photos/a", "get_obj")) == (Dropped(READ),)
