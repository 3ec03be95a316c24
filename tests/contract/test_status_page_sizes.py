"""The status page in windows of three sizes, light and dark, with no topic, one and 300: nothing is cut off.

Each test keeps a picture of what it saw, in the folder that REMORA_PICTURES names, else in pytest's own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from contract.test_status_page import figures, queue, showing, status

WIDTHS = (390, 1280, 1920)
FULL = pytest.mark.full("the gate looks at each width with one topic, by day")
REFUSED = "hooks-of-the-department.internal.example.com:24617: Connection refused"
ENDPOINT = "https://hooks-of-the-department.internal.example.com:24617"


def host(topics: int) -> dict[str, Any]:
    """A host with this many topics, all behind one receiver that is away, each with a queue that is being tried."""
    names = [f"orders-of-the-shop-{at:03}" for at in range(topics)]
    last = {"kind": "transient", "reason": REFUSED, "age_seconds": 3.0}
    shards = [
        queue(name, state="retrying", reason=REFUSED, endpoint=ENDPOINT, last_failure=last, trying=not at % 3)
        for at, name in enumerate(names)
    ]
    counted = {"committed": 1_234_567, "pending": 12_345, "unaccounted": 0, "delivered": 1_222_222}
    more = {"backlog_entries": 12_345, "oldest_age_seconds": 273.0, "delivered_entries": 1_222_222, "dead_letters": 7}
    topics_ = [figures(name, **more, ledger=counted, last_failure=last) for name in names]
    return status(*shards, topics=topics_, host="db7 (01234567)")


@pytest.mark.parametrize("topics", [pytest.param(0, marks=FULL), 1, pytest.param(300, marks=FULL)])
@pytest.mark.parametrize("dark", [pytest.param(False, id="light"), pytest.param(True, id="dark", marks=FULL)])
@pytest.mark.parametrize("width", WIDTHS)
async def test_nothing_is_cut_off(width: int, dark: bool, topics: int, tmp_path: Path) -> None:
    """The last column ends within the window, no host is broken inside its port, and a picture is kept."""
    folder = Path(os.environ.get("REMORA_PICTURES", "") or tmp_path)
    async with showing(host(topics), width=width, height=900, dark=dark) as (_, tab):
        theme = "dark" if dark else "light"
        await tab.page.screenshot(path=folder / f"page-{width}-{theme}-{topics}.png", full_page=topics < 300)

        assert await tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        cut = await tab.page.evaluate(
            """() => [...document.querySelectorAll(".scroll, td, li, dd")]
                .filter((each) => each.scrollWidth > each.clientWidth + 1 && each.clientWidth)
                .map((each) => each.textContent.slice(0, 60))"""
        )
        assert cut == []
        broken = await tab.page.evaluate(
            "[...document.querySelectorAll('.whole')].filter((each) => each.getClientRects().length > 1).length"
        )
        assert broken == 0
        assert topics == 0 or "com:24617" in await tab.texts("#topics .whole")
        if width == WIDTHS[0] and topics:
            height = await tab.page.evaluate("document.querySelector('#topics tbody tr').clientHeight")
            assert height < 220, "a topic takes a quarter of a telephone's window at most"
