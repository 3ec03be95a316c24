"""Reads the head of a request: strictly, within bounds, and without a doubt about where the request ends.

httptools (llhttp) checks characters and framing. What decides where a body ends is checked here once more, so that no
proxy before this server can be of another opinion: https://www.rfc-editor.org/rfc/rfc9112#section-11.2
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import unquote

import httptools

VERSIONS = MappingProxyType({"1.1": (1, 1), "1.0": (1, 0)})
"""The versions of HTTP that are taken."""

MOST_LINE = 4096 + 256
MOST_FIELDS = 64
MOST_HEAD = 64 << 10
"""Bytes of a line: a target or a value of 4 KiB with its name; headers; bytes of a head as a whole."""

MOST_KEPT, _MOST_KEPT_BYTES = 256, 1024
"""Heads that are kept for when they come again, and how long such a one may be: less than a line."""

_END = b"\r\n\r\n"
_MOST_DIGITS = 18

_VALUE = re.compile(
    rb"(?:\[[0-9A-Za-z:.%_~!$&'()*+,;=-]+\]"  # an address of IPv6, or of a version to come
    rb"|(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)"  # a name, which may be empty
    rb"(?::[0-9]*)?"
)


def host_fault(values: Sequence[bytes], version: tuple[int, int]) -> str:
    """Why a request with these Host headers is refused; empty where it is not. HTTP/1.0 needs none."""
    if not values:
        return "" if version < (1, 1) else "there is no Host"
    if len(values) > 1:
        return "there are several Host"
    return "" if _is_valid(values[0]) else "Host is no name or address with a port or none"


@lru_cache(maxsize=256)
def _is_valid(value: bytes) -> bool:
    return _VALUE.fullmatch(value) is not None


class NotARequest(Exception):
    """What came is no request that is taken here; the text says why."""


class Headers:
    """The headers of a request by their names in lower case: texts, in which bytes beyond UTF-8 are surrogates."""

    __slots__ = ("_all", "_first")

    def __init__(self, found: list[tuple[bytes, bytes]]) -> None:
        self._all = found
        self._first = dict(reversed(found))

    def __contains__(self, name: bytes) -> bool:
        return name in self._first

    def get(self, name: bytes, default: str = "") -> str:
        """The value, the first one where there are several."""
        value = self.given(name)
        return default if value is None else value

    def given(self, name: bytes) -> str | None:
        """The value as `get` gives it, None where there is none."""
        value = self._first.get(name)
        return None if value is None else _text(value)

    def every(self, name: bytes) -> list[str]:
        """All values of a header, in their order."""
        return [_text(value) for value in self.values(name)]

    @property
    def repeats(self) -> bool:
        """Whether any header stands more than once."""
        return len(self._all) != len(self._first)

    def values(self, name: bytes) -> Sequence[bytes]:
        """All values of a header, in their order, as they came."""
        if name not in self._first:
            return ()
        if not self.repeats:
            return (self._first[name],)
        return [value for each, value in self._all if each == name]


class Head:
    """A request's first line and headers. `length` is None for a body in chunks, and 0 where there is none.

    It never changes: of two requests whose heads have the same bytes, both may have the same one.
    """

    __slots__ = ("headers", "keeps_alive", "length", "method", "target", "version")

    def __init__(
        self, method: bytes, target: bytes, version: str, headers: Headers, length: int | None, keeps_alive: bool
    ) -> None:
        self.method = method.decode("ascii")
        self.target = target
        self.version = version
        self.headers = headers
        self.length = length
        self.keeps_alive = keeps_alive

    @property
    def path(self) -> str:
        """The target's path, decoded."""
        return path_of(self.target)

    @property
    def waits_to_go_on(self) -> bool:
        """Whether the client sends its body only after 100; one of HTTP/1.0 knows no such answer (RFC 9110, 10.1.1)."""
        return self.version != "1.0" and self.headers.get(b"expect").lower() == "100-continue"


class HeadReader:
    """Reads one head after the other from the bytes of a connection.

    A request's body is passed by, and never comes here. So each head has a parser of its own, which costs a microsecond
    and cannot be confused by what came before.
    """

    def __init__(self) -> None:
        self._fresh()

    def _fresh(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._found: list[tuple[bytes, bytes]] = []
        self._target = b""
        self._is_complete = self._keeps_alive = False
        self._read = 0
        self._line = 0

    @property
    def has_begun(self) -> bool:
        """Whether a part of a head was read."""
        return self._read > 0

    def read(self, data: bytes, begin: int) -> tuple[Head, int] | None:
        """The head that begins in `data` at `begin`, and the place behind it; None while it is not complete.

        What was read of it before has to stand there again. Raises NotHttp as soon as it can be none.
        """
        done = begin + self._read
        end = data.find(_END, max(begin, done - 3))
        stop = len(data) if end < 0 else end + 4
        if end >= 0 and done == begin and stop - begin <= _MOST_KEPT_BYTES:
            return _head_of(data[begin:stop]), stop
        if stop - begin > MOST_HEAD:
            raise NotARequest(f"the head is longer than {MOST_HEAD} bytes")
        if stop - begin > MOST_LINE:
            self._check_lines(data, begin, stop)
        self._feed(data[done:stop])
        if end < 0:
            if self._is_complete:
                raise NotARequest("a line does not end in CR LF")
            self._read = stop - begin
            return None
        head = self._head(data, begin, stop)
        self._fresh()
        return head, stop

    def whole(self, data: bytes) -> Head:
        """The head that these bytes are, all of them, and less than a line may have. Raises as `read`."""
        self._feed(data)
        return self._head(data, 0, len(data))

    def _check_lines(self, data: bytes, begin: int, stop: int) -> None:
        """Refuse a line that is too long, also while its end has not come."""
        while True:
            start = begin + self._line
            end = data.find(b"\r\n", start, stop)
            if (stop if end < 0 else end) - start > MOST_LINE:
                raise NotARequest(f"a line is longer than {MOST_LINE} bytes")
            if end < 0:
                return
            self._line = end + 2 - begin

    def _feed(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:  # the request is answered as if it had not asked
            pass
        except httptools.HttpParserError as exc:
            if isinstance(exc.__context__, NotARequest):
                raise exc.__context__ from None
            raise NotARequest(str(exc).splitlines()[0][:200] if str(exc) else "it cannot be read") from exc

    def _head(self, data: bytes, begin: int, stop: int) -> Head:
        if not self._is_complete:
            raise NotARequest("it ends early")
        # llhttp would take some of these; a line has one end, and no other.
        lines = data.count(b"\n", begin, stop)
        if lines != data.count(b"\r\n", begin, stop) or lines != data.count(b"\r", begin, stop):
            raise NotARequest("a line does not end in CR LF")
        parser = self._parser
        version, headers = parser.get_http_version(), Headers(self._found)
        if version in VERSIONS and (fault := host_fault(headers.values(b"host"), VERSIONS[version])):
            raise NotARequest(fault)
        length = _length_of(headers, version)
        keeps_alive = version in VERSIONS and self._keeps_alive
        return Head(parser.get_method(), self._target, version, headers, length, keeps_alive)

    # ---------------------------------------------------------------------- called by the parser

    def on_url(self, url: bytes) -> None:
        """The target, whole or a part of it."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if len(self._found) == MOST_FIELDS:
            raise NotARequest(f"there are more than {MOST_FIELDS} headers")
        self._found.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """The head has ended. Behind a request without a body the parser forgets whether it keeps the connection."""
        self._is_complete = True
        self._keeps_alive = self._parser.should_keep_alive()


_head_of = lru_cache(maxsize=MOST_KEPT)(lambda data: HeadReader().whole(data))
"""The head that bytes are. A sender's requests have few different ones, unless each has a key of its own."""


def _length_of(headers: Headers, version: str) -> int | None:
    """How long the body is that follows; None for one in chunks. Raises NotHttp where two could disagree about it."""
    if b"transfer-encoding" in headers:
        codings = headers.every(b"transfer-encoding")
        if b"content-length" in headers:
            raise NotARequest("there are both Content-Length and Transfer-Encoding")
        if version != "1.1" or len(codings) > 1 or codings[0].lower() != "chunked":
            raise NotARequest("Transfer-Encoding can be chunked, and nothing else")
        return None
    if b"content-length" not in headers:
        return 0
    lengths = headers.every(b"content-length")
    if len(lengths) > 1:
        raise NotARequest("there are several Content-Length")
    text = lengths[0]
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise NotARequest("Content-Length is no number")
    return int(text)


@lru_cache(maxsize=512)
def path_of(target: bytes) -> str:
    """The decoded path of a target: with or without a scheme and a host, and without query and fragment."""
    path = target.partition(b"#")[0].partition(b"?")[0]
    if not path.startswith(b"/") and b"://" in path:  # as a proxy sends it
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    text = path.decode("utf-8", "surrogateescape")
    return unquote(text, errors="replace") if "%" in text else text


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
