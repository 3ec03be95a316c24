"""A further kind of endpoint is a new folder and a line in `endpoint_kinds.py`, or a package with an entry point."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from devkit.entries.entries import raw_entry
from devkit.processes.daemon import REMORA, Sections, running_daemon
from remora.config import SqliteSettings
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore
from support.copies import checked_imports, copied
from support.offered import offer

SINK = '__import__("remora.endpoints.file_sink", fromlist=["_"])'
LINE = f'    "file": EndpointKind(lambda *given: {SINK}.FileEndpoint(*given), {SINK}.ARGUMENTS),\n'
EVENTS = 50


@pytest.fixture
def copy(folder: Path) -> Path:
    """The package with an endpoint more; the folder that holds it."""
    return copied(folder, part="file_sink", into="endpoints", module="endpoint_kinds", table="ENDPOINTS:", line=LINE)


def _offered(folder: Path) -> str:
    """Python's path with a package that offers the endpoint."""
    return f"{offer(folder, {'file': 'support.file_sink:KIND'})}:{Path(__file__).parents[1]}"


def test_its_imports_are_allowed(copy: Path) -> None:
    """Every contract of the layers holds with it."""
    assert checked_imports(copy) == ""


@pytest.mark.parametrize("way", ["copy", pytest.param("package", marks=pytest.mark.full("the other way of the same"))])
async def test_the_daemon_delivers_to_it(folder: Path, request: pytest.FixtureRequest, way: str) -> None:
    """A topic of its scheme is made by command, with its arguments, and each event is in the file, in order, once.

    It is in a copy of remora, or in a package that is found by its metadata.
    """
    path = str(request.getfixturevalue("copy")) if way == "copy" else _offered(folder)
    sections: Sections = {
        "supervisor": {"workers": 2},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "ingest": {"listen": ""},
    }
    command = ("env", f"PYTHONPATH={path}", sys.executable, *REMORA[1:])
    file = folder / "out"

    async with running_daemon(folder, sections, command=command, env={"PYTHONPATH": path}) as daemon:
        create = ("topic", "create", "files", "--shards", "1", "--endpoint", f"file://{file}", "--arg")
        refused = await daemon.command(*create, "file-sync=perhaps")
        assert "file-sync must be true or false" in refused.err
        made = await daemon.command(*create, "file-most-bytes=100000")
        assert made.code == 0, made.err
        async with SqliteStore(SqliteSettings(directory=str(folder / "queues"), files=1)) as store:
            topic = await store.own_topics.find("files")
            assert topic is not None
            entries = [raw_entry("k", number, topic="files") for number in range(EVENTS)]
            await store.ingest.publish(topic, [RoutedEvent(0, b"bkt:k", each) for each in entries])

            async def is_empty() -> bool:
                return (await store.inspection.stats(topic.first_shard)).entries == 0

            await daemon.until(is_empty, "the queue is drained")

    records = [json.loads(json.loads(line)["body"])["Records"][0] for line in file.read_text().splitlines()]
    assert [each["responseElements"]["x-amz-request-id"] for each in records] == [f"req.{i}" for i in range(EVENTS)]
