"""How long the body of a request is, and where its lines end: a proxy ahead of the server must not see it otherwise."""

from __future__ import annotations

import pytest

from remora.servers.http import head
from remora.servers.http.head import Headers, HeadReader, NotARequest

LENGTH, CODING = b"content-length", b"transfer-encoding"


@pytest.mark.parametrize(
    ("fields", "version", "why"),
    [
        ([(LENGTH, b"1"), (CODING, b"chunked")], "1.1", "both"),
        ([(CODING, b"chunked"), (LENGTH, b"1")], "1.1", "both"),
        ([(LENGTH, b"1"), (LENGTH, b"1")], "1.1", "several"),
        ([(LENGTH, b"1"), (LENGTH, b"2")], "1.1", "several"),
        ([(CODING, b"chunked"), (CODING, b"chunked")], "1.1", "nothing else"),
        ([(CODING, b"gzip, chunked")], "1.1", "nothing else"),
        ([(CODING, b"identity")], "1.1", "nothing else"),
        ([(CODING, b"chunked")], "1.0", "nothing else"),
        ([(LENGTH, b"+1")], "1.1", "no number"),
        ([(LENGTH, b"1, 1")], "1.1", "no number"),
        ([(LENGTH, b"0x1")], "1.1", "no number"),
        ([(LENGTH, "١".encode())], "1.1", "no number"),
        ([(LENGTH, b"")], "1.1", "no number"),
        ([(LENGTH, b"1" * 30)], "1.1", "no number"),
    ],
)
def test_a_body_that_two_could_measure_differently(fields: list[tuple[bytes, bytes]], version: str, why: str) -> None:
    """It is refused by the head itself, also where the parser ahead of it would let it pass."""
    with pytest.raises(NotARequest, match=why):
        head._length_of(Headers(fields), version)


@pytest.mark.parametrize(
    ("fields", "length"), [([], 0), ([(LENGTH, b"12")], 12), ([(CODING, b"Chunked")], None)], ids=str
)
def test_the_length_of_a_body(fields: list[tuple[bytes, bytes]], length: int | None) -> None:
    """It is what the head says, none without a word about it, and not known of one in chunks."""
    assert head._length_of(Headers(fields), "1.1") == length


@pytest.mark.parametrize("ahead", [b"\n", b"\r", b"\n\n", b"\r\n\n"], ids=repr)
def test_half_an_end_of_a_line_ahead_of_a_head(ahead: bytes) -> None:
    """It is refused, though the parser would pass it over: who is ahead may take it for a part of another request."""
    with pytest.raises(NotARequest, match="a line does not end in CR LF"):
        HeadReader().read(ahead + b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 0)


def test_a_head_that_comes_again_is_not_read_again() -> None:
    """Connections that get the same bytes get the same head, unless it is a long one, and each finds where it ends."""
    short = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    long = short.replace(b"h\r\n", b"h\r\nX: %b\r\n" % (b"x" * 1024))

    heads = [HeadReader().read(b"\r\n" + raw + b"body", 2) for raw in (short, short, long, long)]

    assert [found and found[1] for found in heads] == [2 + len(each) for each in (short, short, long, long)]
    first, again, of_long, of_long_again = (found and found[0] for found in heads)
    assert first is again
    assert of_long is not of_long_again
