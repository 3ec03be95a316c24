"""Logs of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from remora_pipeline.replay.prepare.entry import (
    Dropped,
    FormatContext,
    FoundLine,
    Outcome,
    Records,
    is_malformed,
    malformed,
)

MOST_LINE_BYTES = 16 << 20
"""No log has longer lines; a binary file has."""

BLANK = Dropped("a blank line")
TOO_LONG = malformed(f"longer than {MOST_LINE_BYTES >> 20} MiB")
MOST_JOINED = 32
"""A key with more line breaks than that is not looked for."""

_BOM = "\ufeff"
_NOTHING = " \t\f\v\r\n\0"
"""What a line without contents may have; a system that crashed leaves zeros at the end of its files."""


def numbered(stream: BinaryIO) -> Iterator[tuple[int, str | None]]:
    """The lines from 1, without their ends; None for one that is too long. What is not UTF-8 becomes surrogates.

    Files that were put one behind the other may have a mark of the byte order at the begin of any line.
    """
    line = 0
    while raw := stream.readline(MOST_LINE_BYTES):
        line += 1
        if len(raw) == MOST_LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := stream.readline(MOST_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield line, None
        else:
            yield line, raw.rstrip(b"\r\n").decode("utf-8", "surrogateescape").removeprefix(_BOM)


def is_blank(text: str) -> bool:
    """Whether there is nothing in a line."""
    return not text.strip(_NOTHING)


def each_line(parse: Callable[[str], Sequence[Outcome]]) -> Records:
    """Records of a format in which every line stands for itself."""
    return each_line_of(lambda _source: parse)


def each_line_of(parser: Callable[[FormatContext], Callable[[str], Sequence[Outcome]]]) -> Records:
    """The same, where what a line means depends on its file."""

    def records(stream: BinaryIO, source: FormatContext) -> Iterator[FoundLine]:
        parse = parser(source)
        for line, text in numbered(stream):
            yield FoundLine(line, _outcomes(text, parse), text or "")

    return records


def _outcomes(text: str | None, parse: Callable[[str], Sequence[Outcome]]) -> Sequence[Outcome]:
    if text is None:
        return (TOO_LONG,)
    return (BLANK,) if is_blank(text) else parse(text)


def each_joined(parse: Callable[[str], Sequence[Outcome]], begins: Callable[[str], bool]) -> Records:
    """Records of a format that writes line breaks within a name as they are.

    A line that `begins` a record and is none is put together with those behind it that begin none.
    """

    def records(stream: BinaryIO, source: FormatContext) -> Iterator[FoundLine]:
        waiting: list[tuple[int, str]] = []
        for line, text in numbered(stream):
            if waiting and text is not None and not begins(text) and len(waiting) < MOST_JOINED:
                waiting.append((line, text))
                joined = "\n".join(each for _, each in waiting)
                outcomes = parse(joined)
                if not any(map(is_malformed, outcomes)):
                    yield FoundLine(waiting[0][0], outcomes, joined)
                    waiting = []
                continue
            yield from (FoundLine(at, _outcomes(each, parse), each) for at, each in waiting)
            waiting = []
            outcomes = _outcomes(text, parse)
            if text is not None and begins(text) and any(map(is_malformed, outcomes)):
                waiting = [(line, text)]
            else:
                yield FoundLine(line, outcomes, text or "")
        yield from (FoundLine(at, _outcomes(each, parse), each) for at, each in waiting)

    return records
