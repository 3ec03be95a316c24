"""Answers of HTTP receivers are read as libcurl reads them, the client that radosgw posts with.

A receiver that works with radosgw would get copies without end where its answers were not taken here. So what libcurl
takes is taken, with the same status and as early, and a connection is kept only where libcurl keeps it. Where this is
not so, on purpose, it stands in `EXCEPTIONS` and in docs/endpoints-http.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from devkit.paths import ROOT
from devkit.readers.libcurl import LibcurlRead, libcurl_read
from remora.endpoints.http.answers import AnswerReader, NotHttp

CUT = "cut short"


class Own(NamedTuple):
    """What became of an answer here; `status` is 0 where it is none, for the reason `error`."""

    status: int
    error: str
    is_early: bool
    stays: bool


def own_read(pieces: Sequence[bytes]) -> Own:
    """Read these bytes, behind which the connection ends."""
    reader = AnswerReader()
    try:
        found = next((each for piece in pieces if (each := reader.feed(piece))), None)
    except NotHttp as exc:
        return Own(0, str(exc), True, False)
    if found is not None:
        return Own(found.status, "", True, found.stays)
    found = reader.end()
    return Own(0, CUT, False, False) if found is None else Own(found.status, "", False, False)


# ------------------------------------------------------------------------------------- what differs on purpose


class Deviation(NamedTuple):
    """An answer that is read otherwise here: as the documentation names it, and whether one is of its kind."""

    name: str
    is_one: Callable[[bytes, LibcurlRead, Own], bool]


def _is_cut_head(raw: bytes, theirs: LibcurlRead, own: Own) -> bool:
    return own.error == CUT and not theirs.is_early


def _has_no_status_line(raw: bytes, theirs: LibcurlRead, own: Own) -> bool:
    lines = re.findall(rb"^http/.*", raw, re.IGNORECASE | re.MULTILINE)
    return not all(re.match(rb"HTTP/1\.[01][ \t]+[1-9][0-9]{2}", each) for each in lines)


def _is_odd_overflow(raw: bytes, theirs: LibcurlRead, own: Own) -> bool:
    return "Content-Length" in own.error and re.search(rb"[0-9]{19}[^\r\n]", raw) is not None


def _is_switch(raw: bytes, theirs: LibcurlRead, own: Own) -> bool:
    return own.status == 101 and theirs.status in (0, 101)


def _has_coding(raw: bytes, theirs: LibcurlRead, own: Own) -> bool:
    return own.status > 0 and theirs.error.startswith("61:")


def _has_length_beside_coding(raw: bytes, theirs: LibcurlRead, own: Own) -> bool:
    return own.status > 0 and "Content-Length" in theirs.error and b"transfer-encoding" in raw.lower()


def _is_of_older_libcurl(raw: bytes, theirs: LibcurlRead, own: Own) -> bool:
    if "Carriage return" in theirs.error or "Multiple Location" in theirs.error:
        return own.status > 0
    return own.status > 0 and "subversion" in theirs.error and re.search(rb"HTTP/1\.[01][ \t]{2}", raw) is not None


EXCEPTIONS = (
    Deviation("cut short within its headers", _is_cut_head),
    Deviation("without a status line of HTTP/1", _has_no_status_line),
    Deviation("a number beyond all bounds with something behind it", _is_odd_overflow),
    Deviation("is complete with its headers", _is_switch),
    Deviation("an encoding other than chunks", _has_coding),
    Deviation("beside an encoding counts for nothing", _has_length_beside_coding),
    Deviation("older releases of libcurl", _is_of_older_libcurl),
)


def test_what_differs_is_documented() -> None:
    """Each way in which answers are read otherwise than by libcurl stands in the documentation."""
    text = " ".join((ROOT / "docs/endpoints-http.md").read_text().split())

    assert [each.name for each in EXCEPTIONS if each.name not in text] == []


# ----------------------------------------------------------------------------------------------------- answers

_ENDS = st.sampled_from([b"\r\n"] * 8 + [b"\n"] * 2 + [b"\r\r\n"])
_VERSIONS = st.sampled_from([b"HTTP/1.1"] * 12 + [b"HTTP/1.0"] * 3 + [b"HTTP/2", b"HTTP/1.2", b"http/1.1", b"HTTP/1"])
_STATUSES = st.sampled_from(
    [*b"200 200 200 204 204 304 201 205 299 500 503 429 400 404 301 599 999 000 99 2000 20 20x".split(), b""]
)
_REASONS = st.sampled_from([b" OK", b" OK", b" OK", b"", b" ", b"  Very Good ", b" \xff\x01", b"OK", b"\t", b" :"])
_LENGTHS = (
    b"Content-Length: 0|Content-Length: 2|Content-Length: 2|content-length:2|Content-Length: 2, 2|Content-Length: 2,2,2"
    b"|Content-Length: 2, 3|Content-Length: 3|Content-Length: 2 |Content-Length:\t2|Content-Length: 02"
    b"|Content-Length: +2|Content-Length: 2x|Content-Length: 2 x|Content-Length:|Content-Length: -1"
    b"|Content-Length: 0x2|Content-Length : 2|Content-Length: 2,|Content-Length: ,2|Content-Length: 2;q"
    b"|Content-Length: 99999999999999999999|Content-Length: 9223372036854775807|Content-Length: 9223372036854775808"
    b"|Content-Length:\r\n 2|Content-Length: 2\r\n |Content-Length\r\n : 2|Content-Length: 2\r\n , 2"
).split(b"|")
_CODINGS = (
    b"Transfer-Encoding: chunked|Transfer-Encoding: chunked|transfer-encoding:CHUNKED|Transfer-Encoding: chunked "
    b"|Transfer-Encoding: chunked,|Transfer-Encoding: ,chunked|Transfer-Encoding: identity"
    b"|Transfer-Encoding: identity, chunked|Transfer-Encoding: chunked, identity|Transfer-Encoding: gzip"
    b"|Transfer-Encoding: gzip, chunked|Transfer-Encoding: foo|Transfer-Encoding:|Transfer-Encoding: chunked;q=1"
    b"|Transfer-Encoding : chunked|Transfer-Encoding: chunked, chunked|Transfer-Encoding: xchunked"
    b"|Transfer-Encoding: chunkedx|TE: chunked|Transfer-Encoding:\r\n\tchunked"
).split(b"|")
_OTHERS = (
    b"Server: x|Connection: close|Connection: keep-alive|connection: Keep-Alive, close|Connection: closed"
    b"|Connection: upgrade|Connection:close |Connection: keep-alivex|Connection: x close|Proxy-Connection: close"
    b"|Connection:\r\n close|Retry-After: 3|X: a\r\n b|X: a\n\tb|nocolon|: x|X y: z|X\0: z|X: \0|X: a\rb|\xffX: y|X|"
    b"|\rfoo|Content-Encoding: gzip|Location: /x|WWW-Authenticate: Basic|Set-Cookie: a=b|Keep-Alive: timeout=5"
    b"|Trailer: X|Upgrade: h2c|Alt-Svc: x|Content-Range: bytes 0-1/2"
).split(b"|")
_HEADERS = st.lists(st.sampled_from(_LENGTHS) | st.sampled_from(_CODINGS) | st.sampled_from(_OTHERS), max_size=3)
_BODIES = st.sampled_from(
    b"|ok|o|okx|2~ok~0~~|2~ok~0~~|2\nok\n0\n\n|2;a=b~ok~0~X: y~~|0~~|0~|0\n\n|00~~|2 ~ok~0 ~~|2junk~ok~0~~| 2~ok~0~~"
    b"|2~ok\r~0~~|2~ok0~~|2~okk~0~~|2~ok~0~junk~~|2~ok~0~X: y\n\n|2~ok~0~ X: y~~|2~ok~0~X: y\rz~~|2~ok~0~\r~~"
    b"|2~ok~0~\n|00000000000000002~ok~0~~|0000000000000002~ok~0~~|FFFFFFFFFFFFFFFF~ok~0~~|~|-2~ok~0~~|0x2~ok~0~~"
    b"|2\rok~0~~|2\r3~ok~0~~|HTTP/1.1 500 No~~".replace(b"~", b"\r\n").split(b"|")
)
_INTERIM = st.builds(
    lambda status, headers: b"HTTP/1.1 %b x\r\n%b\r\n" % (status, b"".join(each + b"\r\n" for each in headers)),
    st.sampled_from(b"100 100 102 103 199 101".split()),
    st.lists(st.sampled_from(_LENGTHS + _CODINGS + _OTHERS), max_size=1),
)
_HEAD = st.builds(
    lambda line, headers, end, last: end.join([b"".join(line), *headers]) + end + last,
    st.tuples(_VERSIONS, st.sampled_from([b" "] * 10 + [b"  ", b"\t", b""]), _STATUSES, _REASONS),
    _HEADERS,
    _ENDS,
    _ENDS,
)
_WHOLE = st.builds(
    lambda before, head, body, behind: b"".join([*before, head, body, behind]),
    st.lists(_INTERIM, max_size=2),
    _HEAD,
    _BODIES,
    st.sampled_from([b""] * 8 + [b"x", b"\r\n", b"HTTP/1.1 500 x\r\n\r\n"]),
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """An answer, mostly one that is nearly right; now and then it is cut, or has a character that is wrong."""
    raw = draw(_WHOLE)
    match draw(st.sampled_from(["whole", "whole", "whole", "whole", "cut", "other"])):
        case "cut":
            raw = raw[: draw(st.integers(0, len(raw)))]
        case "other":
            at = draw(st.integers(0, len(raw)))
            raw = raw[:at] + bytes([draw(st.integers(0, 127))]) + raw[at + draw(st.integers(0, 1)) :]
    return raw


def is_excused(raw: bytes, theirs: LibcurlRead, own: Own) -> bool:
    """Whether it is one of the exceptions."""
    return any(each.is_one(raw, theirs, own) for each in EXCEPTIONS)


@settings(max_examples=1200)
@given(answers(), st.integers(1, 40))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", 1)
@example(b"HTTP/1.1 200 OK\r\nServer: x\r\n", 1)
@example(b"HTTP/1.1 101 x\r\n\r\n", 1)
@example(b"HTTP/2 200 OK\r\n\r\n", 1)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999 x\r\n\r\n", 1)
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", 1)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 2x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1)
@example(b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n", 1)
@example(b"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n", 1)
@example(b"HTTP/1.1 200 OK\r\nLocation: /x\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n", 1)
def test_beside_libcurl(raw: bytes, size: int) -> None:
    """An answer that libcurl takes is taken, with its status and as early; one that it refuses is refused; a connection
    that it closes is closed; and it is the same however the answer is cut."""
    theirs, own = libcurl_read(raw), own_read([raw])
    in_pieces = own_read([raw[i : i + size] for i in range(0, len(raw), size)])

    assert in_pieces[:3] == own[:3]
    if not is_excused(raw, theirs, own):
        assert own.status == theirs.status
        assert own.is_early == theirs.is_early or not own.status
    if own.stays and theirs.status:
        assert theirs.stays
