"""How long the body of a request is, which a proxy ahead of the server must not see otherwise."""

from __future__ import annotations

import pytest

from remora.servers.ingest import head
from remora.servers.ingest.head import Headers, NotHttp

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
    with pytest.raises(NotHttp, match=why):
        head._length_of(Headers(fields), version)


@pytest.mark.parametrize(
    ("fields", "length"), [([], 0), ([(LENGTH, b"12")], 12), ([(CODING, b"Chunked")], None)], ids=str
)
def test_the_length_of_a_body(fields: list[tuple[bytes, bytes]], length: int | None) -> None:
    """It is what the head says, none without a word about it, and not known of one in chunks."""
    assert head._length_of(Headers(fields), "1.1") == length
