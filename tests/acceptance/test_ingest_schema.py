"""The ingest API against its own OpenAPI document: schemathesis makes good and bad requests of it.

It is imported where it is used: every process of a run imports this module, and one of them needs schemathesis.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import uvloop
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as bounds

from devkit.readers.samples import sample_value
from remora.config import IngestSettings, SqliteSettings
from remora.metrics import Telemetry
from remora.servers.ingest.api import ROUTES
from remora.storage.sqlite import SqliteStore
from support.ingest import listening_ingest, own_topic

if TYPE_CHECKING:
    from schemathesis import Case

GOOD, BAD = "positive", "negative"
OPERATIONS = [f"{method} {path}" for path, methods in ROUTES.items() for method in methods if "openapi" not in path]
CASES = [(label, GOOD) for label in OPERATIONS] + [(label, BAD) for label in OPERATIONS if "{" in label]
"""Every operation with good requests, and with bad ones where there is something that can be wrong in one."""

EXAMPLES = 12

BEYOND_SCHEMA = re.compile(
    r"bytes, more than"  # a schema counts characters
    r"|longer than [0-9]+ bytes"
    r"|got `float`|not [0-9.e+]+$"  # for a schema 3.0 is a whole number, and so it is for no codec
    r"|not valid JSON|there are no records"  # lines are any text for a schema
    r"|key was used for another request"
    r"|is not valid UTF-8|surrogate"
)
"""Why a request may be refused that fits the document: these are rules that no JSON Schema can say."""


class Site:
    """A server with an embedded store, on a loop in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listens = threading.Event()
        self._thread = threading.Thread(target=uvloop.run, args=(self._serve(),), name="ingest")
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self.telemetry = Telemetry()
        self.address = ""

    def __enter__(self) -> Site:
        self._thread.start()
        assert self._listens.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        files = SqliteSettings(directory=str(self._folder / "store"), files=1, queue_bytes=10**9)
        async with SqliteStore(files) as store:
            await store.own_topics.create(own_topic("t"))
            async with listening_ingest(IngestSettings(listen="127.0.0.1:0"), store, self.telemetry) as server:
                self.address = server.address
                self._listens.set()
                await self._end.wait()

    def reserve(self) -> str:
        """A reservation for one event."""
        body = {"events": [{"bucket": "b", "object": "o"}]}
        answer = requests.post(f"{self.address}/v1/topics/t/reservations", json=body, timeout=30)
        return str(answer.json()["reservation"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One server for all operations."""
    with Site(tmp_path_factory.mktemp("ingest")) as running:
        yield running


@pytest.fixture(scope="module")
def schema(site: Site) -> Any:
    """The document, as the server gives it."""
    from schemathesis import openapi

    return openapi.from_url(f"{site.address}/v1/openapi.json")


def made_real(case: Case[Any], site: Site) -> None:
    """Send a request to what is there, save for one whose path is to be wrong."""
    path = case.path_parameters or {}
    if re.fullmatch("[A-Za-z0-9_-]{1,200}", str(path.get("topic", ""))):
        path["topic"] = "t"
    if re.fullmatch(r"[A-Za-z0-9_-]{1,200}\.[A-Za-z0-9_-]{1,64}", str(path.get("reservation", ""))):
        path["reservation"] = site.reserve()


def is_beyond_schema(answer: requests.Response) -> bool:
    """Whether a request is refused for what the document cannot say."""
    return answer.status_code == 422 and bool(BEYOND_SCHEMA.search(str(answer.json()["detail"])))


def is_too_large(answer: requests.Response) -> bool:
    """Whether a request is refused since it has more events than the document allows, or so many bytes with them."""
    return answer.status_code == 413 and answer.json()["code"] in ("TooManyEvents", "EntityTooLarge")


def checks(*without: str) -> list[Any]:
    """All of schemathesis's checks but these."""
    from schemathesis.checks import CHECKS

    return [check for check in CHECKS.get_all() if check.__name__ not in without]


@pytest.mark.parametrize(("label", "mode"), CASES, ids=[f"{mode} {label}" for label, mode in CASES])
def test_answers_are_as_the_document_says(label: str, mode: str, site: Site, schema: Any) -> None:
    """Good requests are taken, bad ones refused, status, headers and body are the document's, and nothing crashes."""
    from schemathesis import GenerationMode

    operation = next(each.ok() for each in schema.get_all_operations() if each.ok().label == label)

    @bounds(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
    def answered(case: Any) -> None:
        made_real(case, site)
        answer = case.call()
        excused = ["positive_data_acceptance"] if is_beyond_schema(answer) else []
        if mode == BAD and is_too_large(answer):
            excused.append("negative_data_rejection")  # which takes 413 for no refusal
        case.validate_response(answer, checks=checks(*excused))

    answered()
    assert sample_value(site.telemetry.registry, "remora_crashes_total") == 0
