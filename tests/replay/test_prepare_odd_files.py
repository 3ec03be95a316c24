"""Files and folders as people really name them: links, pipes, archives, pieces that end amid a record."""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare import sources, tables, task
from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import clf_us, iso_us
from remora_pipeline.replay.prepare.formats import FORMATS
from remora_pipeline.replay.prepare.inspect import inspect
from remora_pipeline.replay.prepare.options import PrepareOptions

LINE = (
    '0aff photos [21/Nov/2026:02:14:07 +0000] 192.0.2.3 arn {0} REST.PUT.OBJECT {0} "PUT /{0} HTTP/1.1" 200 - - 12 12'
    ' 9 "-" "agent" - hostid= SigV4 ECDHE AuthHeader photos.s3.example.com TLSv1.2 - -\n'
)
CSV = "ts_us,op,bucket,key,size\n"


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(files: list[sources.SourceFile], form: str) -> list[tuple[int, int, str]]:
    """Piece, line, and the key of a write or the reason why there is none."""
    found = []
    for piece in sources.pieces(files, FORMATS[form]):
        columns = {name: getattr(piece, name) for name in ("path", "compression", "start", "end")}
        batch: Any = _Batch([columns | {"piece": piece.index}])
        for made in task.reader(form, None, Mapping())(iter([batch])):
            rows = (row for row in made.to_pylist() if row["kind"] != task.LINES)
            found += [(piece.index, row["line"], row["key"] or row["reason"]) for row in rows]
    return found


class _Batch:
    def __init__(self, rows: list[dict[str, object]]) -> None:
        self._rows = rows

    def to_pylist(self) -> list[dict[str, object]]:
        return self._rows


def troubles(files: list[sources.SourceFile]) -> dict[str, str | None]:
    return {file.path.name: file.trouble for file in files}


def test_a_folder_with_links_reads_each_file_once(tmp_path: Path) -> None:
    """A file that is there under two names is read once; a link to a folder, one that leads nowhere, and one that leads
    to itself are named with the reason, and nothing is looked for behind them."""
    folder = tmp_path / "logs"
    first = written(folder / "a.log", LINE.format("a"))
    (folder / "b.log").symlink_to("a.log")
    os.link(first, folder / "c.log")
    (folder / "again").symlink_to(".")
    (folder / "dead").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / ".hidden").symlink_to("a.log")

    found = sources.found([folder])

    same = f"is the same file as {first}"
    assert troubles(found) == {
        "a.log": None,
        "again": "is a link to a folder: name that folder",
        "b.log": same,
        "c.log": same,
        "dead": "No such file or directory",
        "loop": "Too many levels of symbolic links",
    }


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """The same file under two names would have each event twice; beside its folder a named file is read once."""
    first = written(tmp_path / "logs/a.log", LINE.format("a"))
    other = written(tmp_path / "logs/b.log", LINE.format("b"))
    link = tmp_path / "link"
    link.symlink_to(first)

    for twice in ([first, first], [first, link]):
        with pytest.raises(ReplayRefused, match="is the same file as"):
            sources.found(twice)
    beside = sources.found([tmp_path / "logs", other])

    assert [(file.path.name, file.trouble) for file in beside] == [("a.log", None), ("b.log", None)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not look into a folder")
def test_a_folder_that_cannot_be_opened_is_named() -> None:
    """What lies in a folder that nobody lets us open is not passed over in silence."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        written(folder / "a.log", LINE.format("a"))
        written(folder / "secret/b.log", LINE.format("b"))
        (folder / "secret").chmod(0o700)
        os.seteuid(65534)
        try:
            found = sources.found([folder])
        finally:
            os.seteuid(0)

    assert troubles(found) == {"a.log": None, "secret": "is a folder that cannot be opened"}


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """A pipe is read once only, and its beginning would be lost: it is refused, and nobody waits for its writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(ReplayRefused, match=f"{pipe}: is no file: keep what comes from a pipe in one"):
        sources.found([pipe])


def _tar(text: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        of = tarfile.TarInfo("a.log")
        of.size = len(text)
        archive.addfile(of, io.BytesIO(text.encode()))
    return packed.getvalue()


def _zip(text: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.log", text)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("packed", "name"), [(_tar, "tar"), (_zip, "zip"), (lambda text: lzma.compress(text.encode()), "xz")]
)
def test_an_archive_is_refused_by_name(tmp_path: Path, packed: Callable[[str], bytes], name: str) -> None:
    """An archive is none of its files, though their lines can be found in it: the message says what packed it."""
    path = written(tmp_path / "logs", packed(LINE.format("a") * 30))

    for form in (None, "s3-access", "csv"):
        with pytest.raises(ReplayRefused, match=f"{path}: is packed with {name}: unpack it"):
            inspect([path], tmp_path / "out", PrepareOptions(format=form))


def entry(key: str, indent: int | None) -> str:
    return json.dumps(
        {
            "bucket": "photos", "time": "2026-11-21T02:14:07.482913Z", "operation": "put_obj", "http_status": "200",
            "uri": f"PUT /photos/{key} HTTP/1.1", "object_size": 7, "trans_id": key, "op_data": {"objects": []},
        },
        indent=indent,
    )  # fmt: skip


JOURNALLED = "o photos [21/Nov/2026:02:14:07 +0000] REST.PUT.OBJECT {} 1200 - 5b0d\n"


@pytest.mark.parametrize(
    ("form", "text", "several"),
    [
        ("rgw-ops", "".join(f"{entry(f'k{n}', None)}\n" for n in range(99)), True),
        ("rgw-ops", "".join(f"{entry(f'k{n}', 4)}\n" for n in range(99)), True),
        ("rgw-ops", "[\n" + ",\n".join(entry(f"k{n}", None) for n in range(99)) + "\n]", True),
        ("rgw-ops", json.dumps([json.loads(entry(f"k{n}", None)) for n in range(99)], indent=2), False),
        ("rgw-journal", "".join(JOURNALLED.format(f"k{n}\n\nof three lines") for n in range(99)), True),
        ("s3-access", "".join(LINE.format(f"k{n}") for n in range(99)), True),
    ],
    ids=["an entry a line", "pretty", "an array of lines", "a pretty array", "keys with line breaks", "plain"],
)
@pytest.mark.parametrize("size", [700, 1_033])
def test_a_record_is_never_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, text: str, several: bool, size: int
) -> None:
    """A file is cut into pieces where a record begins, so that one that takes several lines is in one piece; where no
    such place is found it is not cut."""
    monkeypatch.setattr(sources, "PIECE_BYTES", size)
    files = sources.found([written(tmp_path / "a.log", text)])

    found = read(files, form)

    keys = [what.partition("\n")[0] for _, _, what in found if what != "the frame of the socket's stream"]
    assert keys == [f"k{n}" for n in range(99)]
    assert (found[-1][0] > 5) is several


def test_a_table_whose_lines_end_with_cr(tmp_path: Path) -> None:
    """Lines may end with CR alone, the header's too, and rows have the numbers of their lines."""
    files = sources.found(
        [written(tmp_path / "a.csv", f'\ufeff{CSV}1,PUT,b,k1,1\n2,PUT,b,"k\n2",1\n'.replace("\n", "\r"))]
    )

    assert inspect([files[0].path], tmp_path / "out", PrepareOptions()).format.name == "csv"
    assert read(files, "csv") == [(0, 2, "k1"), (0, 3, "k\r2")]


def test_a_line_of_a_table_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a line is, a part of it is in memory and it is counted as malformed; those around it are read."""
    monkeypatch.setattr(tables, "MOST_LINE_BYTES", 100)
    text = f"{CSV}1,PUT,b,k1,1\n2,PUT,b,{'x' * 350},1\n3,PUT,b,k3,1\n"
    files = sources.found([written(tmp_path / "a.csv", text), written(tmp_path / "b.csv", "x" * 500)])

    assert read(files[:1], "csv") == [(0, 2, "k1"), (0, 4, "k3"), (0, 3, "malformed: not the 5 columns of the header")]
    with pytest.raises(ReplayRefused, match=r"b\.csv"):
        inspect([files[1].path], tmp_path / "out", PrepareOptions(format="csv"))


@pytest.mark.parametrize(
    ("leap", "behind"),
    [
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2016-12-31 23:59:60.25+00:00", "2017-01-01T00:00:00.25Z"),
        ("2017-01-01T05:29:60+05:30", "2017-01-01T00:00:00Z"),
    ],
)
def test_a_leap_second_is_the_one_behind_it(leap: str, behind: str) -> None:
    """A time of a leap second is a time, as in the clocks of computers; there is no second 61."""
    assert iso_us(leap) == iso_us(behind)
    assert clf_us("31/Dec/2016:23:59:60 +0000") == iso_us("2017-01-01T00:00:00Z")
    for none in ("31/Dec/2016:23:59:61 +0000", "31/Feb/2016:23:59:60 +0000"):
        with pytest.raises(ValueError, match=r"Dec/2016|day is out"):
            clf_us(none)
    for none in ("2016-12-31T23:59:61Z", "2016-12-31T23:59:600Z", "2016-02-31T23:59:60Z"):
        with pytest.raises(ValueError, match=r"isoformat|second|day"):
            iso_us(none)
