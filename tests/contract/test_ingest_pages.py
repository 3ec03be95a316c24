"""What a page in a real browser can do to an ingest server on a loopback address without tokens: nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from devkit.clusters.browser import browsing, opened
from devkit.receivers.streams import serving_streams
from support.ingest import PromptStore, ingest_site, own_topic, records

EVENTS = "/v1/topics/t/events"
PAGE = b"<!doctype html><title>elsewhere</title>"
SENDS = """async ([address, body]) => {
    const unasked = {method: "POST", mode: "no-cors", body};
    const settled = await Promise.allSettled([
        fetch(address, {...unasked, headers: {"Content-Type": "text/plain"}}),
        fetch(address, {...unasked, body: new Blob([body])}),
        fetch(address, {...unasked, headers: {"Content-Type": "application/x-www-form-urlencoded"}}),
        fetch(address, {method: "POST", headers: {"Content-Type": "application/json"}, body}),
    ]);
    return settled.map(each => each.status === "fulfilled" ? each.value.type : "failed");
}"""
"""Posts a body as a page of another origin can: the first three need nobody's leave, the fourth asks by OPTIONS."""

FORM = """([address, body]) => {
    const form = document.body.appendChild(document.createElement("form"));
    const field = form.appendChild(document.createElement("input"));
    [form.action, form.method, form.enctype] = [address, "post", "text/plain"];
    [field.name, field.value] = [body.slice(0, -1) + ', "x": "', '"}'];
    form.submit();
}"""
"""Posts the same as a form: its equals sign stands in a member that nobody reads."""


async def show(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve the page."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + PAGE)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["cross-site", "same-site"])
async def test_a_page_stores_nothing(host: str, tmp_path: Path) -> None:
    """What a page of another origin sends is 403 and stored nowhere, and what its user types is answered."""
    store = PromptStore(own_topic("t"))
    body = json.dumps(records("a"))
    async with (
        ingest_site(store, tmp_path, listen="127.0.0.1:0") as site,
        serving_streams(show) as port,
        browsing() as browser,
    ):
        given = [f"{site.base}{EVENTS}", body]
        tab = await opened(browser, f"http://{host}:{port}/")

        assert await tab.page.evaluate(SENDS, given) == ["opaque", "opaque", "opaque", "failed"]
        assert site.metric("remora_ingest_refusals_total", code="CrossOrigin") == 4
        async with tab.page.expect_response(given[0]) as posted:
            await tab.page.evaluate(FORM, given)
        assert (await posted.value).status == 403
        typed = await (await browser.new_page()).goto(f"{site.base}/v1/health")
        assert typed is not None
        assert typed.status == 200

        assert store.is_untouched
        assert (await site.ask("POST", EVENTS, records("a"))).status == 200
