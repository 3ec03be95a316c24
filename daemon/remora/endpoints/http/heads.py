"""What the head of an answer says: its status, its Retry-After, and how its body ends. Pure.

A head is read as radosgw's libcurl reads it (7.88 to 8.23; a fuzzer holds both side by side): a receiver that works
there would get copies without end here. Nothing can be smuggled in: one answer is read for one request.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class NotHttp(Exception):
    """What came is no answer that can be read to its end; the text says why."""


class AnswerHead(NamedTuple):
    """What counts of a head. `length` is None where only the connection's end ends the body, unless it is in chunks.

    `may_stay` tells whether the connection may take another request behind the body.
    """

    status: int
    retry_after: str
    length: int | None
    is_chunked: bool
    may_stay: bool

    @property
    def is_interim(self) -> bool:
        """Whether another head follows. Behind 101 comes none: nobody here has asked for another protocol."""
        return 100 <= self.status < 200 and self.status != 101


BEGIN = b"HTTP/"
"""How an answer begins."""

END = re.compile(rb"\n(?:\r[^\n]*)?\n")
"""The end of a head: a line that is empty, or that begins with a CR."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01])[ \t]+([1-9][0-9]{2})")
_FOLD = re.compile(rb"\r*\n[ \t]+")
_NO_FIELD = re.compile(rb"\n[^:\n]*(?=\n)")
_FIELD = re.compile(rb"\n(content-length|transfer-encoding|connection|retry-after):([^\n]*)", re.IGNORECASE)

MOST_LENGTH = (1 << 63) - 1


@lru_cache(maxsize=64)
def head_of(raw: bytes) -> AnswerHead:
    """What a head says, given up to the end of its last line. Raises NotHttp.

    Remembered, since a receiver's heads differ at most in their second.
    """
    status_line = _STATUS_LINE.match(raw)
    if status_line is None:
        raise NotHttp("is of another version of HTTP, or has no status")
    if b"\0" in raw:
        raise NotHttp("has a NUL in its headers")
    if b"\n " in raw or b"\n\t" in raw:
        raw = _FOLD.sub(b" ", raw)
    if _NO_FIELD.search(raw):
        raise NotHttp("has a header without a colon")
    fields: dict[bytes, list[bytes]] = {}
    for name, value in _FIELD.findall(raw):
        fields.setdefault(name.lower(), []).append(value.strip())
    status = int(status_line[2])
    retry_after = fields.get(b"retry-after", [b""])[-1].decode("latin-1")
    may_stay = _may_stay(status_line[1], fields.get(b"connection", []))
    if status < 200 or status in (204, 304):
        return AnswerHead(status, retry_after, 0, False, may_stay and status != 101)
    if b"transfer-encoding" in fields:
        # The length counts for nothing beside it, but RFC 9112, 6.3 has the connection closed behind both.
        # Whether chunks are the last of the codings, and whether there is no doubt about it.
        codings = [each.strip().lower() for each in b",".join(fields[b"transfer-encoding"]).split(b",")]
        counting = [each for each in codings if each not in (b"", b"identity")]
        is_chunked, is_clear = counting[-1:] == [b"chunked"], counting == codings
        may_stay = may_stay and is_clear and b"content-length" not in fields
        return AnswerHead(status, retry_after, None, is_chunked, may_stay)
    length, is_clear = _length_of(fields.get(b"content-length", []))
    return AnswerHead(status, retry_after, length, False, may_stay and is_clear)


def _may_stay(minor: bytes, connection: list[bytes]) -> bool:
    said = b",".join(connection).lower()
    if b"close" in said:  # also within another word, as to older releases of libcurl
        return False
    return minor == b"1" or b"keep-alive" in [each.strip() for each in said.split(b",")]


def _length_of(values: list[bytes]) -> tuple[int | None, bool]:
    """The length, which may stand there several times alike (RFC 9110, 8.6), and whether there is no doubt about it.

    One that is too large for any counter says nothing. Raises NotHttp.
    """
    if not values:
        return None, True
    found = {each.strip() for each in b",".join(values).split(b",")}
    if not all(each.isdigit() for each in found):
        raise NotHttp("has a Content-Length that is no number")
    numbers = {each.lstrip(b"0") or b"0" for each in found}
    lengths = {int(each) for each in numbers if len(each) < 20 and int(each) <= MOST_LENGTH}
    if len(lengths) > 1:
        raise NotHttp("has several lengths")
    return (lengths.pop() if lengths else None), len(numbers) == 1
