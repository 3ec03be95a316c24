"""Files of exported entries: all entries, or no file."""

from __future__ import annotations

import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remora.cli.spill import _write
from remora.model.errors import StoreDamaged
from remora.model.shard import Shard


async def entries(count: int, error: Exception | None = None) -> AsyncIterator[tuple[str, bytes]]:
    for number in range(count):
        yield f"0/{number}", bytes(range(256)) * 40
    if error is not None:
        raise error


@pytest.mark.parametrize("name", ["letters.ndjson", "letters.gz", "letters.zst"])
async def test_a_disk_without_room_leaves_no_file(tmp_path: Path, name: str) -> None:
    """An export that finds no room for all entries says which file it could not write, and leaves none behind."""
    file, limits = tmp_path / name, resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as failed:
            await _write(file, Shard("q"), entries(200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)

    assert failed.value.filename == str(file)
    assert not file.exists()


async def test_an_export_that_meets_damage_leaves_no_file(tmp_path: Path) -> None:
    """A file that lacks the entries behind a damaged run would look like one that has them all."""
    file = tmp_path / "letters.ndjson"

    with pytest.raises(StoreDamaged):
        await _write(file, Shard("q"), entries(3, StoreDamaged("a run is gone")))

    assert not file.exists()


async def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    """An export does not touch a file of its name."""
    file = tmp_path / "letters.ndjson"
    file.write_bytes(b"mine")

    with pytest.raises(FileExistsError):
        await _write(file, Shard("q"), entries(3))

    assert file.read_bytes() == b"mine"
