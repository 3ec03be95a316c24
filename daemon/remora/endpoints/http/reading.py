"""Reads the answers of one connection: status, Retry-After, and where each ends. Bounded in bytes, and pure."""

from __future__ import annotations

from typing import NamedTuple

import httptools

MOST_HEAD_BYTES = 16 << 10
MOST_BODY_BYTES = 64 << 10
MOST_INTERIM = 8


class NotHttp(Exception):
    """What came is no answer that can be read to its end; the text says why."""


class Answer(NamedTuple):
    """A complete answer. `stays` tells whether the connection may take another request."""

    status: int
    retry_after: str
    stays: bool


class AnswerReader:
    """One for each connection: `feed` and `end` give the answer to the request that is under way.

    httptools was chosen for its speed (llhttp, in C). It has no call for the end of the input, so an answer without
    length, which ends with its connection, is completed here; and it takes interim answers for whole ones.

    It is as lenient as radosgw's libcurl, or a receiver that works there would get copies without end here. Nothing can
    be smuggled in: one answer is read for one request, of which status and Retry-After count only, and what comes
    behind it ends the connection.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._head_bytes = self._header_bytes = self._body_bytes = self._interim = 0
        self._in_head, self._begun = True, False
        self._has_length, self._encoding = False, b""
        self._retry_after = ""
        self._answer: Answer | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a byte of the answer has come."""
        return self._begun

    def feed(self, data: bytes) -> Answer | None:
        """The answer, once it is complete. Raises NotHttp.

        What comes behind a complete answer makes the connection useless: no request asked for it.
        """
        if not self._begun and not data.startswith(b"H"):  # the parser takes RTSP, too
            raise NotHttp("is no HTTP")
        self._begun = True
        before = len(data) if self._in_head else 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return self._taken()._replace(stays=False)  # 101, which the parser reports as any answer
        except httptools.HttpParserError as exc:
            if self._answer is not None:
                return self._taken()._replace(stays=False)
            if isinstance(exc.__context__, NotHttp):
                raise exc.__context__ from None
            raise NotHttp("is no HTTP") from exc
        if self._answer is not None:
            return self._taken()
        if self._in_head:
            self._head_bytes += before
            if self._head_bytes > MOST_HEAD_BYTES:
                raise NotHttp(f"has more than {MOST_HEAD_BYTES >> 10} KiB of headers")
        return None

    def end(self) -> Answer | None:
        """The answer that the end of the connection completes; None where it is cut short, or none is under way."""
        if self._in_head or self._ends_itself:
            return None
        status = self._parser.get_status_code()
        return Answer(status, self._retry_after, False)

    @property
    def _ends_itself(self) -> bool:
        """Whether the answer says where it ends: one whose last encoding is not chunks does not (RFC 9112, 6.3)."""
        if self._encoding:
            return self._encoding.rpartition(b",")[2].strip().lower() == b"chunked"
        return self._has_length

    def _taken(self) -> Answer:
        answer, self._answer = self._answer, None
        assert answer is not None
        self._begun = False
        return answer

    # ---------------------------------------------------------------------- called by the parser

    def on_message_begin(self) -> None:
        """A status line begins."""
        if self._answer is not None:  # behind a complete answer
            self._answer = self._answer._replace(stays=False)
            return
        self._in_head, self._has_length, self._encoding = True, False, b""
        self._head_bytes = self._header_bytes = self._body_bytes = 0
        self._retry_after = ""

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, whole."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MOST_HEAD_BYTES:
            raise NotHttp(f"has more than {MOST_HEAD_BYTES >> 10} KiB of headers")
        match name.lower():
            case b"retry-after":
                self._retry_after = value.decode("latin-1")
            case b"content-length":
                self._has_length = True
            case b"transfer-encoding":
                self._encoding += b"," + value

    def on_headers_complete(self) -> None:
        """The head has ended."""
        self._in_head = False
        if self._parser.get_http_version() not in ("1.1", "1.0"):
            raise NotHttp("is of another version of HTTP")

    def on_body(self, body: bytes) -> None:
        """A part of the body, which is not read."""
        self._body_bytes += len(body)
        if self._body_bytes > MOST_BODY_BYTES:
            raise NotHttp(f"has more than {MOST_BODY_BYTES >> 10} KiB")

    def on_message_complete(self) -> None:
        """An answer has ended, be it an interim one."""
        if self._answer is not None:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise NotHttp(f"comes after more than {MOST_INTERIM} interim ones")
            self._in_head = True
            return
        self._interim = 0
        is_clear = not (self._has_length and self._encoding)
        self._answer = Answer(status, self._retry_after, is_clear and self._parser.should_keep_alive())
        self._in_head = True
