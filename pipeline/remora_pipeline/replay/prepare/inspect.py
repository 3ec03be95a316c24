"""Checks the input before anything starts: reports most mistakes."""

from __future__ import annotations

import re
from collections.abc import Mapping as Mapping_
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import MALFORMED, FormatContext, Write, is_malformed
from remora_pipeline.replay.prepare.formats import FORMATS, Format, detect
from remora_pipeline.replay.prepare.options import PrepareOptions
from remora_pipeline.replay.prepare.sources import (
    FilePiece,
    SourceFile,
    bare,
    found,
    head,
    lines_in,
    opened,
    pieces,
    shown,
)

_TABLES = ("csv", "parquet")
_TRIED = 100


@dataclass(frozen=True, slots=True)
class Unread:
    """A file of a folder that is left out, and why; `lines` are those that it has."""

    path: Path
    reason: str
    lines: int


@dataclass(frozen=True, slots=True)
class Sorted:
    """The one format of all files that are not empty, those files, and those of folders that are left out."""

    format: Format
    full: tuple[SourceFile, ...]
    unread: tuple[Unread, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """Files that were looked at: they are there, and all of one format as far as their beginnings tell.

    `unread` are those of folders that are not.
    """

    name: str
    files: tuple[SourceFile, ...]
    format: Format
    pieces: tuple[FilePiece, ...]
    unread: tuple[Unread, ...] = ()


def inspect(paths: Sequence[Path], out: Path, options: PrepareOptions) -> Input:
    """Look at the beginning of every file. Raises ReplayRefused for what cannot be used.

    A folder is not refused for a file in it, as long as another one can be read.
    """
    _refuse_used(out)
    files = found(paths)
    sorted_ = sort_out(files, options)
    form = sorted_.format
    # An option that would change nothing is a misunderstanding.
    if options.mapping != Mapping() and form.name not in _TABLES:
        raise ReplayRefused(f"--ts-col and the other options for columns are for tables; this is {form.title}")
    if options.bucket is not None and form.name not in (*_TABLES, "ibm-cos", "op-log"):
        raise ReplayRefused(f"--bucket: {form.title} tells the bucket by itself")
    return Input(trace_name(paths), tuple(files), form, tuple(pieces(sorted_.full, form)), sorted_.unread)


def sort_out(files: Sequence[SourceFile], options: PrepareOptions) -> Sorted:
    """Which format the files have, and which of them do not.

    Of folders it is the format of most files. Raises ReplayRefused with the name of a file that was named and has
    another format, or none; and where no file is left.
    """
    formats: dict[SourceFile, Format] = {}
    wrong: dict[SourceFile, str] = {}
    for file in files:
        try:
            form = _format(file, options)
        except ReplayRefused as exc:
            if not file.is_of_folder:
                raise
            wrong[file] = bare(str(exc), file.path)
        else:
            if form is not None:
                formats[file] = form
    if not formats:
        raise ReplayRefused(_nothing(files, wrong))
    chosen, example = _chosen(formats)
    for file, form in formats.items():
        if form is not chosen:
            reason = f"is {form.name}, but {shown(example.path)} is {chosen.name}: prepare them apart"
            if not file.is_of_folder:
                raise ReplayRefused(f"{shown(file.path)}: {reason}")
            wrong[file] = reason
    full = tuple(file for file, form in formats.items() if form is chosen)
    unread = tuple(Unread(file.path, wrong[file], lines_in(file)) for file in files if file in wrong)
    return Sorted(chosen, full, unread)


def _chosen(formats: Mapping_[SourceFile, Format]) -> tuple[Format, SourceFile]:
    """The format of the first file that was named, else that of most files of folders; and a file that has it."""
    for file, form in formats.items():
        if not file.is_of_folder:
            return form, file
    counts: dict[str, tuple[int, int]] = {}
    for file, form in formats.items():
        count, nbytes = counts.get(form.name, (0, 0))
        counts[form.name] = count + 1, nbytes + file.nbytes
    most = max(counts, key=lambda name: counts[name])
    return FORMATS[most], next(file for file, form in formats.items() if form.name == most)


def _nothing(files: Sequence[SourceFile], wrong: Mapping_[SourceFile, str]) -> str:
    if not wrong:
        return f"{', '.join(shown(file.path) for file in files[:3])}: there is nothing in it"
    told = "; ".join(f"{shown(file.path)}: {reason}" for file, reason in list(wrong.items())[:3])
    return f"none of the files can be read: {told}" if len(wrong) > 1 else told


def _format(file: SourceFile, options: PrepareOptions) -> Format | None:
    """The format of a file; None where nothing is in it. Raises ReplayRefused with its name if it has none."""
    begin = head(file)
    if not begin.strip():
        return None
    name = shown(file.path)
    form = FORMATS[options.format] if options.format else detect(begin, name, options.mapping)
    if form.name == "parquet" and file.compression is not None:
        raise ReplayRefused(f"{name}: Parquet inside a compressed file cannot be read: uncompress it")
    _try(file, form, options)
    return form


def _try(file: SourceFile, form: Format, options: PrepareOptions) -> None:
    """Read the first lines here and now: a wrong format or mapping is refused before anything is started."""
    first = None
    try:
        with opened(file.path, file.compression) as stream:
            source = FormatContext(shown(file.path), options.bucket, options.mapping)
            for tried, line in enumerate(form.records(stream, source), start=1):
                for outcome in line.outcomes:
                    if isinstance(outcome, Write) or not is_malformed(outcome):
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
