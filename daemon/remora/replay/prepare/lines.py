"""Logs of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from remora.replay.prepare.entry import Dropped, Found, Outcome, Records, Source, malformed

MOST_LINE_BYTES = 16 << 20
"""No log has longer lines; a binary file has."""

BLANK = Dropped("a blank line")


def numbered(stream: BinaryIO) -> Iterator[tuple[int, str | None]]:
    """The lines from 1, without their ends; None for one that is too long. What is not UTF-8 becomes surrogates."""
    line = 0
    while raw := stream.readline(MOST_LINE_BYTES):
        line += 1
        if len(raw) == MOST_LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := stream.readline(MOST_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield line, None
        else:
            yield line, raw.rstrip(b"\r\n").decode("utf-8", "surrogateescape")


def each_line(parse: Callable[[str], Sequence[Outcome]]) -> Records:
    """Records of a format in which every line stands for itself."""
    return each_line_of(lambda _source: parse)


def each_line_of(parser: Callable[[Source], Callable[[str], Sequence[Outcome]]]) -> Records:
    """The same, where what a line means depends on its file."""

    def records(stream: BinaryIO, source: Source) -> Iterator[Found]:
        parse = parser(source)
        for line, text in numbered(stream):
            if text is None:
                yield Found(line, (malformed(f"longer than {MOST_LINE_BYTES >> 20} MiB"),), "")
            elif not text.strip():
                yield Found(line, (BLANK,), "")
            else:
                yield Found(line, parse(text), text)

    return records
