"""Checks the input before anything starts: reports most mistakes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remora.replay.errors import ReplayRefused
from remora.replay.prepare.entry import MALFORMED, Source, Write
from remora.replay.prepare.formats import FORMATS, Format, detect
from remora.replay.prepare.mapping import Mapping
from remora.replay.prepare.options import Options
from remora.replay.prepare.sources import File, Piece, found, head, opened, pieces, shown

_TABLES = ("csv", "parquet")
_TRIED = 100


@dataclass(frozen=True, slots=True)
class Input:
    """Files that were looked at: they are there, and all of one format as far as their beginnings tell."""

    name: str
    files: tuple[File, ...]
    format: Format
    pieces: tuple[Piece, ...]


def inspect(paths: Sequence[Path], out: Path, options: Options) -> Input:
    """Look at the beginning of every file. Raises ReplayRefused for what cannot be used."""
    _refuse_used(out)
    files = found(paths)
    form, full = format_of(files, options)
    _refuse_unused(form, options)
    return Input(trace_name(paths), tuple(files), form, tuple(pieces(full, form)))


def _refuse_unused(form: Format, options: Options) -> None:
    """An option that would change nothing is a misunderstanding."""
    if options.mapping != Mapping() and form.name not in _TABLES:
        raise ReplayRefused(f"--ts-col and the other options for columns are for tables; this is {form.title}")
    if options.bucket is not None and form.name not in (*_TABLES, "ibm-cos", "op-log"):
        raise ReplayRefused(f"--bucket: {form.title} tells the bucket by itself")


def format_of(files: Sequence[File], options: Options) -> tuple[Format, list[File]]:
    """The one format of all files that are not empty, and those files.

    Raises ReplayRefused with the name of the file that has another format, or none.
    """
    chosen: tuple[Format, str] | None = None
    full: list[File] = []
    for file in files:
        begin = head(file)
        if not begin.strip():
            continue
        name = shown(file.path)
        form = FORMATS[options.format] if options.format else detect(begin, name, options.mapping)
        if chosen is not None and form is not chosen[0]:
            raise ReplayRefused(f"{name}: is {form.name}, but {chosen[1]} is {chosen[0].name}: prepare them apart")
        chosen = (form, name)
        _try(file, form, options)
        full.append(file)
    if chosen is None:
        raise ReplayRefused(f"{', '.join(shown(file.path) for file in files[:3])}: there is nothing in it")
    return chosen[0], full


def _try(file: File, form: Format, options: Options) -> None:
    """Read the first lines here and now: a wrong format or mapping is refused before anything is started."""
    first = None
    try:
        with opened(file.path, file.compression) as stream:
            source = Source(shown(file.path), options.bucket, options.mapping)
            for tried, line in enumerate(form.records(stream, source), start=1):
                for outcome in line.outcomes:
                    if isinstance(outcome, Write) or not outcome.reason.startswith(MALFORMED):
                        return
                    first = first or (line.line, outcome.reason.removeprefix(MALFORMED))
                if tried == _TRIED:
                    break
    except OSError as exc:
        raise ReplayRefused(f"{shown(file.path)}: {exc}") from exc
    if first is not None:
        raise ReplayRefused(f"{shown(file.path)}:{first[0]}: as {form.name}: {first[1]}, as in the lines behind it")


def trace_name(paths: Sequence[Path]) -> str:
    """The first file's or folder's name without its endings."""
    first = shown(Path(paths[0].absolute().name))
    stem = re.sub(r"(?:\.(?:gz|zst|bz2|csv|tsv|log|jsonl?|txt|parquet))+$", "", first) or first
    return stem if len(paths) == 1 else f"{stem} and {len(paths) - 1} more"


def _refuse_used(out: Path) -> None:
    try:
        used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as exc:
        raise ReplayRefused(f"{out}: {exc.strerror}") from exc
    if used:
        raise ReplayRefused(f"{out}: exists already: give --out a name that is free")
    if not out.absolute().parent.is_dir():
        raise ReplayRefused(f"{out.absolute().parent}: is not a folder, so {out.name} cannot be made in it")
