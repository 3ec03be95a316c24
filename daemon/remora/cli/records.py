"""Records to be sent, from a file or a pipe: found, checked as the server checks them, each with its line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from remora.codec.s3_events import Keyed, MalformedEvent, encode
from remora.model.entry import Time
from remora.model.topic import Target, Topic

READ_BYTES = 256 << 10
MOST_LINE_BYTES = 16 << 20
"""A line beyond this is malformed; no server takes it."""

MOST_DOCUMENT_BYTES = 64 << 20
"""A file of documents over several lines is read as a whole, up to this size."""

_AHEAD = 4  # pieces that are read before they are asked for
_NOWHERE = Topic("", "", "", Target("", "", ""))


class GivenRecord(NamedTuple):
    """One record, on one line as it will be sent, with what its order depends on and its entry as it may become."""

    line: int
    record: bytes
    key: bytes
    entry: bytes


class Bad(NamedTuple):
    """What stands in the input in place of a record."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """What was read in one go."""

    found: Sequence[GivenRecord | Bad]
    nbytes: int


async def read_records(fd: int) -> AsyncGenerator[Piece]:
    """The records in a file or pipe, in order, as soon as they are there. What cannot be read on ends them.

    Lines are records or `{"Records":[...]}`, whose records are taken apart. Where not even the first line is JSON by
    itself but the begin of it, the input is taken for documents over several lines.
    """
    async with aclosing(_pieces(fd)) as pieces:
        rest, line, is_first = b"", 1, True
        async for data in pieces:
            text = rest + data
            end = text.rfind(b"\n") + 1 if data else len(text)
            whole, rest = text[:end], text[end:]
            if is_first and whole.strip():
                is_first = False
                if _is_begin_of_document(whole.lstrip().split(b"\n", 1)[0]):
                    async for piece in _documents(pieces, text):
                        yield piece
                    return
            if len(rest) > MOST_LINE_BYTES:
                too_long = Bad(line + whole.count(b"\n"), f"longer than {MOST_LINE_BYTES >> 20} MiB")
                yield Piece([*_from_lines(whole, line), too_long], len(data))
                return
            yield Piece(list(_from_lines(whole, line)), len(data))
            line += whole.count(b"\n")


async def _pieces(fd: int) -> AsyncGenerator[bytes]:
    """What can be read, piece by piece; the last one is empty.

    A thread of its own reads, which does not hold up the end of the program: a read from a terminal has no end. It has
    a descriptor of its own too, so that it stays open.
    """
    own = os.dup(fd)
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes | OSError]()
    room, is_over = threading.Semaphore(_AHEAD), threading.Event()

    def hand_over(data: bytes | OSError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(queue.put_nowait, data)

    def read() -> None:
        data: bytes | OSError = b"-"
        with open(own, "rb", buffering=0) as file:
            while data and isinstance(data, bytes):
                room.acquire()
                if is_over.is_set():
                    return
                try:
                    data = file.read(READ_BYTES)
                except OSError as exc:
                    data = exc
                hand_over(data)

    threading.Thread(target=read, name="remora-send-read", daemon=True).start()
    try:
        data: bytes | OSError = b"-"
        while data:
            data = await queue.get()
            if isinstance(data, OSError):
                raise data
            room.release()
            yield data
    finally:
        is_over.set()
        room.release()


def _from_lines(text: bytes, first: int) -> Iterator[GivenRecord | Bad]:
    lines = [(number, line) for number, line in enumerate(text.split(b"\n"), first) if line.strip()]
    found = _keyed(b"\n".join([line for _, line in lines]))
    if isinstance(found, list) and len(found) == len(lines):
        for (number, line), each in zip(lines, found, strict=True):
            yield GivenRecord(number, line, *each)
        return
    for number, line in lines:
        yield from _from_line(line, number)


def _from_line(line: bytes, number: int, where: str = "") -> Iterator[GivenRecord | Bad]:
    """The records of one line, or why it has none; one malformed record of a document spoils none beside it."""
    if line.count(b'"Records"') > 1 and isinstance(twice := _keyed(line), MalformedEvent) and twice.field == "Records":
        yield Bad(number, f"{twice.field} {twice.reason}")
        return
    for i, record in enumerate(records := _split(line)):
        found = _keyed(record)
        if isinstance(found, list):
            yield GivenRecord(number, record, *found[0])
        else:
            place = f"Records[{i}]" if len(records) > 1 or where else ""
            yield Bad(number, ": ".join(part for part in (where, place, found.field, found.reason) if part))


def _split(line: bytes) -> Sequence[bytes]:
    """The records of a document on one line; the line itself when it is anything else."""
    try:
        records = msgspec.json.decode(line, type=_RecordsDocument).Records
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [line]
    return [msgspec.json.format(bytes(record), indent=-1) for record in records] or [line]


class _RecordsDocument(msgspec.Struct):
    Records: list[msgspec.Raw]


def _keyed(lines: bytes) -> list[Keyed] | MalformedEvent:
    try:
        parts = encode(lines, _NOWHERE, ndjson=True, most=1 << 40, created=Time(0, 0), seed=b"")
        return [each for part in parts for each in part.events]
    except MalformedEvent as exc:
        return exc


def _is_begin_of_document(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        return "truncated" in str(exc)
    return False


async def _documents(pieces: AsyncIterator[bytes], begin: bytes) -> AsyncIterator[Piece]:
    """The records of documents that are written over several lines."""
    whole = bytearray(begin)
    async for data in pieces:
        whole += data
        if len(whole) > MOST_DOCUMENT_BYTES:
            reason = f"documents over several lines may have {MOST_DOCUMENT_BYTES >> 20} MiB in all"
            yield Piece([Bad(1, reason)], len(whole))
            return
    try:
        text = whole.decode()
    except UnicodeDecodeError as exc:
        yield Piece([Bad(1 + whole.count(b"\n", 0, exc.start), "not valid UTF-8")], len(whole))
        return
    at, decoder = _next(text, 0), json.JSONDecoder()
    while at < len(text):
        number = 1 + text.count("\n", 0, at)
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as exc:
            line = exc.lineno if isinstance(exc, json.JSONDecodeError) else number
            yield Piece([Bad(line, f"not valid JSON: {getattr(exc, 'msg', exc)}")], len(whole))
            return
        document = text[at:end].encode().replace(b"\n", b" ")  # strings have none
        yield Piece(list(_from_line(document, number, "in the document from here")), len(document))
        at = _next(text, end)


def _next(text: str, at: int) -> int:
    """Where the next document begins."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
