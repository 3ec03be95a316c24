"""The export of spans to receivers that answer as no receiver should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from devkit.readers.samples import sample_value
from devkit.waits import until
from remora.config import TracesSettings
from remora.metrics import Telemetry
from remora.ports.tracing import Work
from remora.tracing.otlp import open_otlp

ELSEWHERE = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
TAKEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\r\n"
NONSENSE = bytes(range(256)) * 20


@asynccontextmanager
async def receiver(answer: bytes, *, ends: bool) -> AsyncIterator[str]:
    """A receiver that gives this answer to each request, and then ends it or goes on with a body that has no end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            while not ends:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        except OSError:
            pass  # the exporter has let go
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces"


@pytest.mark.parametrize(
    ("answer", "ends", "state"),
    [
        pytest.param(TAKEN, True, "exported", id="taken"),
        pytest.param(TAKEN, False, "exported", id="a body without an end"),
        pytest.param(ELSEWHERE, True, "failed", id="elsewhere"),
        pytest.param(NONSENSE, True, "failed", id="nonsense"),
    ],
)
async def test_a_span_is_counted_by_the_status_of_its_answer(answer: bytes, ends: bool, state: str) -> None:
    """A success counts however its body comes; a redirect and what is no HTTP are losses."""
    telemetry = Telemetry()

    def count(state: str) -> float:
        return sample_value(telemetry.registry, "remora_spans_total", {"state": state}) or 0

    async with receiver(answer, ends=ends) as url:
        # What fails is tried again for as long as that.
        settings = TracesSettings(endpoint=url, sample=100, timeout_s=30.0 if state == "exported" else 1.0)
        async with open_otlp(settings, telemetry, "w") as tracer:
            tracer.begin(Work.REQUEST, "t", {}).end()
        await until(lambda: count("exported") + count("failed") > 0, "it is counted")

    counted = {each: count(each) for each in ("sampled", "exported", "failed")}
    assert counted == {"sampled": 1, "exported": 0, "failed": 0} | {state: 1}
