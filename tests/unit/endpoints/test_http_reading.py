"""Answers of HTTP receivers, however they are cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.endpoints.http.answers import (
    MOST_BODY_BYTES,
    MOST_HEAD_BYTES,
    MOST_LINE_BYTES,
    Answer,
    AnswerReader,
    NotHttp,
)

WHOLE = [
    (b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204, "", True)),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n", Answer(200, "", True)),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", Answer(200, "", False)),
    (b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", Answer(503, "7", True)),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", Answer(204, "", True)),
    (b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" * 8 + b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204, "", True)),
]
UNTIL_THE_END = [
    (b"HTTP/1.0 200 OK\r\n\r\n", Answer(200, "", False)),
    (b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\nsome words", Answer(200, "", False)),
    (b"HTTP/1.1 500 No\r\n\r\nsome words", Answer(500, "", False)),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nok", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\nok", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 9\r\n\r\nok", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\nContent-Length: 9\r\n\r\nok", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nContent-Length : 9\r\n\r\nok", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\nok", Answer(200, "", False)),
]
AS_LIBCURL = [
    (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", Answer(200, "", True)),
    (b"HTTP/1.1 503 Busy\nRetry-After: 7\nContent-Length: 0\n\n", Answer(503, "7", True)),
    (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\nX: \x01\xff\r\nContent-Length: 0\r\n\r\n", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2  \r\nok\r\n0\r\n\r\n", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", Answer(200, "", True)),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Answer(200, "", True),
    ),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n0\r\n\r\n", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\ncontent-length:2 , 2\r\nX: y\r\nContent-Length: 2\r\n\r\nok", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9223372036854775808\r\n\r\nok", Answer(200, "", False)),
    (b"HTTP/1.1 204 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", Answer(204, "", True)),
    (b"HTTP/1.1 304 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Answer(304, "", True)),
    (b"HTTP/1.1 102 x\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1 204 x\r\n\r\n", Answer(204, "", True)),
    (b"HTTP/1.1 102 x\r\nConnection: close\r\n\r\nHTTP/1.1 204 x\r\n\r\n", Answer(204, "", False)),
    (b"HTTP/1.1\t204OK\r\n\r\n", Answer(204, "", True)),
    (b"HTTP/1.1  204 OK\r\n\r\n", Answer(204, "", True)),
    (b"HTTP/1.1 204 OK\r\n: x\r\nX y: z\r\n\xff: z\r\nX: a\rb\r\n\r\r\n", Answer(204, "", True)),
    (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: , chunked\r\n\r\n0\r\n\r\n", Answer(200, "", False)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b x\nok\n0 x\nX: y\n\n", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2!\r\nok\r\r\n000\r\n\r\n", Answer(200, "", True)),
    (b"HTTP/1.1 200 OK\r\nContent-Length:\r\n 2\r\n\r\nok", Answer(200, "", True)),
    (b"HTTP/1.1 503 Busy\r\nRetry-After:\r\n\t7\r\nContent-Length: 0\r\n\r\n", Answer(503, "7", True)),
    (b"HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\nContent-Length: 0\r\n\r\n", Answer(200, "", False)),
]
"""Answers that are not as they should be, and that radosgw takes all the same."""


def read(pieces: list[bytes], *, ends: bool) -> Answer | None:
    reader = AnswerReader()
    for piece in pieces:
        if (found := reader.feed(piece)) is not None:
            return found
    return reader.end() if ends else None


@pytest.mark.parametrize(("raw", "answer"), WHOLE + AS_LIBCURL)
def test_cut_at_every_byte(raw: bytes, answer: Answer) -> None:
    """An answer with an end is complete with its last byte and not before, wherever it is cut, and byte by byte."""
    for at in range(1, len(raw)):
        assert read([raw[:at], raw[at:]], ends=False) == answer
        assert read([raw[:at]], ends=True) is None, at
    assert read([bytes([each]) for each in raw], ends=False) == answer


@pytest.mark.parametrize(("raw", "answer"), UNTIL_THE_END)
def test_answers_that_end_with_the_connection(raw: bytes, answer: Answer) -> None:
    """An answer without length is complete when the connection ends, once its head is whole."""
    head = raw.rindex(b"\r\n\r\n") + 4

    assert read([raw], ends=False) is None
    for at in range(1, len(raw) + 1):
        assert read([raw[:at]], ends=True) == (answer if at >= head else None), at


def test_one_connection_gives_many_answers() -> None:
    """A reader reads one answer after the other, and forgets what the one before said."""
    reader = AnswerReader()

    found = [reader.feed(raw) for raw, answer in WHOLE if answer.stays]

    assert found == [answer for _, answer in WHOLE if answer.stays]


def test_unasked_answers_end_a_connection() -> None:
    """What comes behind an answer makes its connection useless, and does not count."""
    reader = AnswerReader()

    found = reader.feed(b"HTTP/1.1 204 x\r\n\r\nHTTP/1.1 500 x\r\n\r\n")

    assert found == Answer(204, "", False)


def test_switching_protocols() -> None:
    """101 is an answer, after which the connection is of no use."""
    reader = AnswerReader()

    found = reader.feed(b"HTTP/1.1 101 x\r\nUpgrade: y\r\nConnection: upgrade\r\n\r\nwhatever")

    assert found is not None
    assert (found.status, found.stays) == (101, False)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (b"\x15\x03\x01\x00\x02\x02F", "no HTTP"),
        (b"RTSP/1.0 200 OK\r\n\r\n", "no HTTP"),
        (b"HTTP/2.0 200 OK\r\n\r\n", "another version"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "several lengths"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n", "several lengths"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1,\r\n\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", "no number"),
        (b"HTTP/1.1 099 x\r\n\r\n", "no status"),
        (b"http/1.1 200 OK\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nX\r\n\r\n", "without a colon"),
        (b"HTTP/1.1 200 OK\r\nX: \0\r\n\r\n", "NUL"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokk\r\n", "longer than it says"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "without a size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx\r\n", "trailer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * MOST_LINE_BYTES, "between its chunks"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * MOST_LINE_BYTES,
            "between its chunks",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, "interim"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MOST_HEAD_BYTES + b"\r\n\r\n", "headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * MOST_HEAD_BYTES, "headers"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MOST_BODY_BYTES + 1), "KiB"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"8\r\nabcdefgh\r\n" * 9000, "KiB"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_what_is_no_answer(raw: bytes, why: str, size: int) -> None:
    """What is no HTTP, or has no end, is given up after a bounded number of bytes."""
    with pytest.raises(NotHttp, match=why):
        read([raw[i : i + size] for i in range(0, len(raw), size)], ends=False)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=10))
def test_any_bytes(pieces: list[bytes]) -> None:
    """Bytes of any kind are refused or wait for more; without a status line they are never an acknowledgement."""
    try:
        found = read(pieces, ends=True)
    except NotHttp:
        return
    assert found is None or b"HTTP/1." in b"".join(pieces)
