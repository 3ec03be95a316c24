"""The files of a trace: found, opened whatever compressed them, cut into pieces that tasks read side by side."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare.formats import Format
from remora_pipeline.replay.prepare.streams import LOOKED_AT_BYTES, as_utf8, uncompressed, wide_encoding

PIECE_BYTES = 32 << 20
HEAD_BYTES = 256 << 10
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{bytes((first, 0x2A, 0x4D, 0x18)): "zstd" for first in range(0x50, 0x60)},  # a frame to pass over, as of pzstd
    b"BZh": "bz2",
}
_OTHERS = {
    b"\xfd7zXZ\0": (0, "xz"),
    b"PK\x03\x04": (0, "zip"),
    b"\x04\x22\x4d\x18": (0, "lz4"),
    b"7z\xbc\xaf\x27\x1c": (0, "7z"),
    b"ustar": (257, "tar"),
}
"""What is not read, and where that is told: some would be taken for the logs that are in them."""

_MOST_ALIGNED = 1 << 20
"""So far behind its place a piece may begin, for a line that begins a record."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it is when the work begins; what is appended later is not read. `compression` is Arrow's word.

    `is_wide`: it is plain, and in UTF-16. `is_of_folder`: nobody named the file itself, so that it may be another one
    than is wanted. `trouble` is why it cannot be opened.
    """

    path: Path
    nbytes: int
    compression: str | None
    is_wide: bool = False
    is_of_folder: bool = False
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class FilePiece:
    """What one task reads in one go: the lines that begin at bytes from `start` on and before `end`.

    Of Parquet it is row groups. `index` counts the pieces of all files, in their order.
    """

    index: int
    path: bytes
    compression: str | None
    start: int
    end: int | None


def shown(path: Path | bytes) -> str:
    """A path for people and for JSON, also where its bytes are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def found(paths: Sequence[Path]) -> list[SourceFile]:
    """The files, and those in folders at any depth, by name; as with Spark, none whose name begins with . or _.

    Raises ReplayRefused for a path that is not there, and for a folder without files. A file of a folder that cannot be
    opened is one with a `trouble`.
    """
    files: list[SourceFile] = []
    for path in paths:
        if not path.is_dir():
            files.append(_file(path))
            continue
        within = sorted(_within(path))
        if not within:
            raise ReplayRefused(f"{shown(path)}: there are no files in it")
        files += map(_file_of_folder, within)
    return _each_once(files)


def _within(folder: Path) -> Iterator[Path]:
    """What is in a folder at any depth; links to folders and folders that cannot be opened as they are."""
    unopened: list[OSError] = []
    for at, folders, files in os.walk(folder, onerror=unopened.append):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        links = [name for name in folders if Path(at, name).is_symlink()]
        yield from (Path(at, name) for name in (*files, *links) if not name.startswith((".", "_")))
    yield from (Path(str(exc.filename)) for exc in unopened)


def _each_once(files: Sequence[SourceFile]) -> list[SourceFile]:
    """The files, where one that is another one's too has that for its trouble: its events would be there twice.

    A file that was named goes before those of folders, and is left out of its own folder. Raises ReplayRefused for one
    that is named twice.
    """
    firsts: dict[tuple[int, int], int] = {}
    found: dict[int, SourceFile] = {}
    for place in sorted(range(len(files)), key=lambda place: files[place].is_of_folder):
        file = found[place] = files[place]
        if file.trouble is not None:
            continue
        stat = file.path.stat()
        first = firsts.setdefault((stat.st_dev, stat.st_ino), place)
        if first == place:
            continue
        trouble = f"is the same file as {shown(files[first].path)}"
        if not file.is_of_folder:
            raise ReplayRefused(f"{shown(file.path)}: {trouble}")
        if file.path == files[first].path:
            del found[place]
        else:
            found[place] = replace(file, trouble=trouble)
    return [found[place] for place in sorted(found)]


def _file_of_folder(path: Path) -> SourceFile:
    if path.is_dir():
        what = "a link to a folder: name that folder" if path.is_symlink() else "a folder that cannot be opened"
        return SourceFile(path.absolute(), 0, None, is_of_folder=True, trouble=f"is {what}")
    try:
        return replace(_file(path), is_of_folder=True)
    except ReplayRefused as exc:
        return SourceFile(path.absolute(), 0, None, is_of_folder=True, trouble=bare(str(exc), path))


def bare(reason: str, path: Path | bytes) -> str:
    """Why a file was refused, without its name in front."""
    return reason.removeprefix(shown(path)).lstrip(": ")


def _file(path: Path) -> SourceFile:
    # To open a pipe would wait for its writer, and it could not be opened twice.
    if path.exists() and not path.is_file():
        raise ReplayRefused(f"{shown(path)}: is no file: keep what comes from a pipe in one")
    try:
        with path.open("rb") as stream:
            begin = stream.read(LOOKED_AT_BYTES)
            nbytes = os.fstat(stream.fileno()).st_size
    except OSError as exc:
        raise ReplayRefused(f"{shown(path)}: {exc.strerror}") from exc
    compression = next((name for magic, name in _MAGIC.items() if begin.startswith(magic)), None)
    is_wide = compression is None and wide_encoding(begin) is not None
    return SourceFile(path.absolute(), nbytes, compression, is_wide)


@contextmanager
def opened(path: Path, compression: str | None, start: int = 0, end: int | None = None) -> Iterator[io.BufferedReader]:
    """The uncompressed contents as UTF-8 without a mark of the byte order; of a plain file only the lines that begin
    within these bytes.

    Reading raises OSError where compressed data is damaged or ends early.
    """
    with path.open("rb") as raw:
        if compression is not None:
            with uncompressed(raw, compression) as stream:
                yield as_utf8(stream)
            return
        if start > 0:
            raw.seek(start - 1)
            raw.readline()
        stream = raw if end is None else io.BufferedReader(_Until(raw, end))
        yield as_utf8(stream) if start == 0 else stream


class _Until(io.RawIOBase):
    """A file up to the end of the line that begins before `end`."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file = file
        self._end = end
        self._in_last_line = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # what BufferedReader gives
        left = self._end - self._file.tell()
        if left > 0:
            data = self._file.read(min(left, len(buffer)))
            self._in_last_line = not data.endswith(b"\n")
        elif self._in_last_line:
            data = self._file.readline(len(buffer))
            self._in_last_line = not data.endswith(b"\n") and bool(data)
        else:
            data = b""
        buffer[: len(data)] = data
        return len(data)


def head(file: SourceFile) -> bytes:
    """How the uncompressed contents begin, as far as they can be read. Raises ReplayRefused where none of them can."""
    if file.trouble is not None:
        raise ReplayRefused(f"{shown(file.path)}: {file.trouble}")
    parts: list[bytes] = []
    left = HEAD_BYTES
    try:
        with opened(file.path, file.compression) as stream:
            while left and (data := stream.read1(left)):
                parts.append(data)
                left -= len(data)
    except OSError as exc:
        if not parts:
            raise ReplayRefused(f"{shown(file.path)}: {exc.strerror or exc}") from exc
    found = b"".join(parts)
    for magic, (at, packed) in _OTHERS.items():
        if found.startswith(magic, at):
            raise ReplayRefused(f"{shown(file.path)}: is packed with {packed}: unpack it")
    return found


def lines_in(file: SourceFile) -> int:
    """The lines of a file that is not read for what it says, as far as they can be read; a binary one has none."""
    lines, last = 0, b"\n"
    with suppress(OSError, ReplayRefused):
        if b"\0" in head(file):
            return 0
        with opened(file.path, file.compression) as stream:
            while data := stream.read1(1 << 20):
                lines += data.count(b"\n")
                last = data[-1:]
    return lines + (last != b"\n")


def pieces(files: Sequence[SourceFile], form: Format) -> list[FilePiece]:
    """What tasks read. Compressed files, and formats that need the whole file, are one piece each."""
    cut: list[FilePiece] = []
    for file in files:
        for start, end in _cuts(file, form):
            cut.append(FilePiece(len(cut), os.fsencode(file.path), file.compression, start, end))
    return cut


def _cuts(file: SourceFile, form: Format) -> Sequence[tuple[int, int | None]]:
    if form.name == "parquet":
        try:
            groups = pq.ParquetFile(file.path).num_row_groups
        except (pa.ArrowException, OSError) as exc:
            raise ReplayRefused(f"{shown(file.path)}: not a whole Parquet file: {exc}") from exc
        return [(group, group + 1) for group in range(groups)]
    if file.compression is not None or file.is_wide or not form.splittable:
        return [(0, None)]
    starts = [0, *_starts(file, form.begins)] if file.nbytes else []
    return list(zip(starts, [*starts[1:], file.nbytes], strict=True))


def _starts(file: SourceFile, begins: Callable[[str], bool]) -> Iterator[int]:
    """Where a plain file is cut: at lines that begin a record, or not at all."""
    with file.path.open("rb") as stream:
        for place in range(PIECE_BYTES, file.nbytes, PIECE_BYTES):
            stream.seek(place - 1)
            stream.readline(_MOST_ALIGNED)
            while (at := stream.tell()) < min(place + _MOST_ALIGNED, place + PIECE_BYTES, file.nbytes):
                if begins(stream.readline(_MOST_ALIGNED).decode("utf-8", "replace")):
                    yield at
                    break


def sha256(files: Sequence[SourceFile]) -> str:
    """Of the contents as they lie there, one file behind the other."""
    digest = hashlib.sha256()
    for file in files:
        if file.trouble is not None:
            continue
        left = file.nbytes
        with file.path.open("rb") as stream:
            while left and (data := stream.read(min(left, 1 << 20))):
                digest.update(data)
                left -= len(data)
    return digest.hexdigest()
