"""The job of `remora replay report`: read what was found, draw it, write page, pictures and summary."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.report.page import render
from remora_pipeline.replay.report.panels import FILES, pictures
from remora_pipeline.replay.report.subject import ReportSubject, load
from remora_pipeline.replay.report.summary import Summary, summarise


def report(run: Path, against: Path | None = None, again: Path | None = None) -> Summary:
    """Make RUN/report anew, and say what is in its summary. `again` is a second replay of the same as `against`.

    Raises ReplayRefused for a run that was not verified, and for a folder that cannot be written; what was there
    before is then still there. The page is written last: when it is there, all of it is.
    """
    first, second, third = (None if each is None else load(each) for each in (run, against, again))
    assert first is not None
    subjects = [each for each in (first, second) if each is not None]
    summary = summarise(first, second, third)
    folder = _folder(subjects[0])
    panels = list(pictures(subjects))
    page = render(subjects, summary, panels)
    files = {each.file: each.image for panel in panels for each in panel}
    files["summary.json"] = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
    files["index.html"] = page.encode()
    _write(folder, files)
    return summary


def _folder(subject: ReportSubject) -> Path:
    """Where the report goes; made before anything is drawn, so that one that cannot be written is refused at once."""
    folder = subject.directory.report
    try:
        folder.mkdir(exist_ok=True)
    except OSError as exc:
        raise ReplayRefused(f"{folder}: {exc.strerror or exc}") from exc
    return folder


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Replace the files one by one, each whole; pictures that this report does not have are removed."""
    try:
        for name, content in files.items():
            partial = folder / f"{name}.partial"
            partial.write_bytes(content)
            partial.replace(folder / name)
        for name in FILES - files.keys():
            (folder / name).unlink(missing_ok=True)
    except OSError as exc:
        raise ReplayRefused(f"{exc.filename or folder}: {exc.strerror or exc}") from exc
