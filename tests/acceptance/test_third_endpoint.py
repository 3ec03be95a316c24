"""A third kind of endpoint is one new folder and one line in `app.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import remora
from remora.config import SqliteSettings
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore
from support.daemon import REMORA, Sections, running_daemon
from support.entries import raw_entry

ROOT = Path(__file__).parents[2]
LINE = '    "file": lambda *given: __import__("remora.endpoints.file_sink", fromlist=["_"]).FileEndpoint(*given),\n'
EVENTS = 50


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        yield Path(name)


@pytest.fixture
def copied(folder: Path) -> Path:
    """The package with an endpoint more; the folder that holds it."""
    copy = folder / "copy"
    shutil.copytree(Path(remora.__file__).parent, copy / "remora", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "support" / "file_sink", copy / "remora" / "endpoints" / "file_sink")
    app = copy / "remora" / "app.py"
    before, table, after = app.read_text().partition("MappingProxyType({\n")
    app.write_text(before + table + LINE + after)
    return copy


def test_its_imports_are_allowed(copied: Path) -> None:
    """Every contract of the layers holds with it."""
    shutil.copy(ROOT / "pyproject.toml", copied)

    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=copied, env=os.environ | {"PYTHONPATH": str(copied)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout


async def test_the_daemon_delivers_to_it(folder: Path, copied: Path) -> None:
    """A topic of its scheme is made by command, and each event is in the file, in order, once."""
    sections: Sections = {
        "supervisor": {"workers": 2},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
    }
    command = ("env", f"PYTHONPATH={copied}", sys.executable, *REMORA[1:])
    file = folder / "out"

    async with running_daemon(folder, sections, command=command, env={"PYTHONPATH": str(copied)}) as daemon:
        made = await daemon.command("topic", "create", "files", "--shards", "1", "--endpoint", f"file://{file}")
        assert made.code == 0, made.err
        async with SqliteStore(SqliteSettings(directory=str(folder / "queues"), files=1)) as store:
            topic = await store.own_topics.find("files")
            assert topic is not None
            entries = [raw_entry("k", number, topic="files") for number in range(EVENTS)]
            await store.ingest.publish(topic, [RoutedEvent(0, b"bkt:k", each) for each in entries])

            async def is_empty() -> bool:
                return (await store.inspection.stats(topic.first_shard)).entries == 0

            await daemon.until(is_empty, "the queue is drained", 90)

    records = [json.loads(line)["Records"][0] for line in file.read_text().splitlines()]
    assert [each["responseElements"]["x-amz-request-id"] for each in records] == [f"req.{i}" for i in range(EVENTS)]
