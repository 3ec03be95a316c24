"""The status page in a real browser: what it shows of a status, what it loads, and what it lets a user do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from devkit.clusters.browser import Tab, browsing, opened
from remora.metrics.figures import TopicFigures
from remora.model.health import Health
from remora.process.sockets import listening_sockets
from remora.servers.admin import Sources, serve_admin
from remora.supervisor.merged import destination_shown, failing_destinations, topics_shown

MOST_BYTES = 1 << 20
ROW = "#topics > tbody > tr"


def queue(topic: str, name: str = "", state: str = "delivering", reason: str = "", **more: Any) -> dict[str, Any]:
    """A queue as the status has it."""
    return {
        "queue": name or topic, "topic": topic, "endpoint": "kafka://broker:9092", "delivery": "exactly-once",
        "state": state, "reason": reason, "since_seconds": 12.0, "failures": 0, "failing_seconds": None,
        "last_failure": None, "next_attempt_seconds": None, "in_flight_bytes": 0, "has_work": True,
        "progress_age_seconds": 1.0, "remarks": [], "worker": 1, "trying": False, **more,
    }  # fmt: skip


def figures(topic: str, **more: Any) -> dict[str, Any]:
    """A topic's figures as the status has them."""
    return {
        "topic": topic, "delivered_entries": 0, "parked_entries": 0, "ingested_events": 0, "backlog_entries": 0,
        "backlog_exact": True, "backlog_bytes": 0, "oldest_age_seconds": None, "ledger": None, "last_failure": None,
        "dead_letters": 0, **more,
    }  # fmt: skip


def status(*shards: dict[str, Any], topics: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """A host that is well, with these queues."""
    fine = {"ok": True, "reasons": []}
    worker = {
        "number": 1, "pid": 4711, "cookie": "remora/h/b/w", "answers": True, "ready": True, "reasons": [],
        "shards": len(shards), "in_flight_bytes": 2048,
    }  # fmt: skip
    figured = [msgspec.convert(each, TopicFigures) for each in topics or []]
    outages = [destination_shown(each) for each in failing_destinations(shards, figured)]
    return {
        "version": "1.2.3", "ready": True, "reasons": [], "ready_to_ingest": fine, "ready_to_deliver": fine,
        "draining": False, "ingest": "", "in_flight_bytes": 0, "workers": [worker], "members": [], "left": [],
        "store": {"description": "2 files in /q", "connected": True, "state": "", "damaged": []},
        "shards": list(shards), "topics": topics_shown(figured, shards), "destinations": outages,
        "dead_letters": sum(each.dead_letters for each in figured), **more,
    }  # fmt: skip


@dataclass
class Admin:
    """The admin server of a host whose status is as scripted, but that each topic delivers so much from answer to
    answer."""

    status: dict[str, Any]
    address: str = ""
    delivers_entries: int = 0

    async def said(self) -> Mapping[str, object]:
        for each in self.status.get("topics", []):
            each["delivered_entries"] += self.delivers_entries
        return self.status


async def _well(_: object) -> Health:
    return Health(ok=True)


async def _uncounted() -> list[Any]:
    return []


@asynccontextmanager
async def showing(shown: dict[str, Any], **window: Any) -> AsyncIterator[tuple[Admin, Tab]]:
    """An admin server and a browser that shows its page; nothing may have gone wrong in it in the end."""
    admin = Admin(shown)
    sources = Sources(lambda: Health(ok=True), _well, admin.said, _uncounted, has_page=True)
    with listening_sockets("admin.listen", "127.0.0.1:0", 0o600) as sockets:
        async with serve_admin(sockets, sources) as admin.address, browsing(**window) as browser:
            tab = await opened(browser, f"http://{admin.address}/")
            await tab.shows("#refreshed", "As of")
            yield admin, tab
            assert tab.wrong == []
            assert {each.split("/", 3)[2] for each in tab.asked if not each.startswith("data:")} == {admin.address}


async def names(tab: Tab) -> list[str]:
    """The topics in the order in which they are shown."""
    return await tab.texts(f"{ROW}:not(.queue) > td:first-child")


async def test_a_topic_is_shown_with_its_queues_and_figures() -> None:
    """A row adds up the queues of a topic; opened, it shows each of them with its worker."""
    shown = status(
        queue("orders"),
        queue(
            "orders",
            "orders.1",
            "retrying",
            "the broker is away",
            worker=2,
            failures=3,
            last_failure={"kind": "transient", "reason": "away", "age_seconds": 2.0},
            next_attempt_seconds=6.0,
        ),
        topics=[
            figures(
                "orders",
                backlog_entries=12_345,
                backlog_exact=False,
                oldest_age_seconds=300.0,
                delivered_entries=9_000,
                dead_letters=3,
                ledger={"committed": 10_000, "pending": 1_000, "unaccounted": 0, "delivered": 9_000},
                last_failure={"kind": "transient", "reason": "refused", "age_seconds": 4.0},
                slo={"objective": "99% < 5s over 28d", "good": 8_999, "total": 9_000, "budget_left": 0.98889},
            )
        ],
    )
    async with showing(shown) as (_, tab):
        cells = await tab.texts(f"{ROW} > td")
        assert cells == [
            "orders", "retrying, 1 of 2 queues", "12 s", "2", "~12,345", "5 min", "–", "9,000", "3",
            "9,000 of 10,000", "98.9 % of 99% < 5s over 28d", "kafka://broker:9092", "the broker is away",
            "4.0 s ago, transient: refused; next attempt in 6.0 s",
        ]  # fmt: skip
        assert await tab.texts("#problem-list li") == [
            "broker:9092: away: 1 topic, 12,345 events, retrying for 12 s, next attempt in 6.0 s: orders",
            "orders: 3 dead letters: remora dlq list --topic orders",
        ]

        await tab.page.click(f"{ROW} button")

        assert [each.split("\t")[0] for each in await tab.texts(f"{ROW}.queue")] == ["orders", "orders.1"]
        assert await tab.texts(f"{ROW}.queue > td:nth-child(4)") == ["worker 1", "worker 2"]
        assert await tab.texts(f"{ROW}.queue > td:last-child") == [
            "", "3 failures; 2.0 s ago, transient: away; next attempt in 6.0 s"
        ]  # fmt: skip


async def test_queues_with_little_room_are_problems() -> None:
    """A topic whose worst queue is full by a leak, with the command for it, or full within a day is named on top."""
    left = {"room_bytes": 1, "capacity_bytes": 128_000_000, "leaked_bytes": 1, "seconds_until_full": None}
    rooms = {
        "a": {**left, "advice": "full by a leak of 127 MB of Ceph < 19.2.4", "leaks": True},
        "b": {**left, "advice": "full in 3 h at its present growth", "leaks": False},
        "c": {**left, "advice": "", "leaks": False},
        "d": None,
    }
    shown = status(queue("a"), topics=[figures(name, room=room) for name, room in rooms.items()])
    async with showing(shown) as (_, tab):
        assert await tab.texts("#problem-list li") == [
            "a: full by a leak of 127 MB of Ceph < 19.2.4: remora shard heal --topic a",
            "b: full in 3 h at its present growth",
        ]


async def test_a_slow_stage_is_a_problem() -> None:
    """Each sentence of the status about a stage that is slow is shown on top."""
    async with showing(status(queue("a"), slow=["push (kafka) takes 60 ms"])) as (_, tab):
        assert await tab.texts("#problem-list li") == ["slow: push (kafka) takes 60 ms"]


async def test_a_topic_that_is_being_tried_stays_among_those_that_fail() -> None:
    """While an attempt is under way it is shown as stopped, since its first failure, and the filter keeps it."""
    tried = queue("t", state="stopped", reason="no such topic", trying=True, since_seconds=273.0)
    async with showing(status(tried, queue("u"), topics=[figures("t"), figures("u")])) as (_, tab):
        await tab.page.check("#failing")

        assert await names(tab) == ["t"]
        assert (await tab.texts(f"{ROW} > td"))[1:3] == ["stopped, trying now", "5 min"]


async def test_three_hundred_topics_behind_one_broker_are_one_line() -> None:
    """The page has a block for the destination, with how many topics and events wait for it."""
    many = [f"t{at:03}" for at in range(300)]
    shards = [queue(each, state="retrying", reason="broker:9092: Connection refused") for each in many]
    async with showing(status(*shards, topics=[figures(each, backlog_entries=2) for each in many])) as (_, tab):
        [line] = await tab.texts("#problem-list li")

    assert line.startswith("broker:9092: Connection refused: 300 topics, 600 events, retrying for 12 s: t000, t001, ")
    assert line.endswith(" and 290 more")


async def test_what_is_known_in_part_is_a_lower_bound() -> None:
    """Where the number of a topic's events is not known, at least those of the others wait, there and in all."""
    shards = [queue(each, state="retrying", reason="broker:9092: Connection refused") for each in ("t", "u")]
    topics = [figures("t", backlog_entries=2), figures("u", backlog_entries=None)]
    async with showing(status(*shards, topics=topics)) as (_, tab):
        [line] = await tab.texts("#problem-list li")

        assert "2 topics, at least 2 events, " in line
        assert "at least 2" in await tab.texts("#summary dd")


async def test_what_only_workers_know_is_not_known_while_none_answers() -> None:
    """The page calls no ingest off and no queue absent then, and names the workers."""
    silent = {
        "number": 1, "pid": 4711, "cookie": "remora/h/b/w", "answers": False, "ready": False,
        "reasons": ["it does not answer"], "shards": 7, "in_flight_bytes": 0,
    }  # fmt: skip
    async with showing(status(workers=[silent], ingest=None, dead_letters=None)) as (_, tab):
        terms, texts = await tab.texts("#summary dt"), await tab.texts("#summary dd")
        said = dict(zip(terms, texts, strict=True))

        assert [said[each] for each in ("Queues", "Ingest")] == ["not known"] * 2
        assert [said[each] for each in ("Waiting", "Dead letters")] == ["\u2013"] * 2
        assert await tab.texts("#problem-list li") == ["worker 1 does not answer"]


async def test_a_worker_that_is_missing_is_counted() -> None:
    """Of the workers that there are to be, the page says how many are ready, also while one is not there at all."""
    async with showing(status(workers_wanted=2)) as (_, tab):
        assert "1 of 2 ready" in await tab.texts("#summary dd")


async def test_dead_letters_are_shown_as_long_as_they_are_stored() -> None:
    """Those that lie in the store from before a restart are counted, and are none of the events that arrived."""
    ledger = {"committed": 1, "pending": 0, "unaccounted": 0, "delivered": 0, "dead_lettered": 1}
    async with showing(status(queue("t"), topics=[figures("t", dead_letters=1, ledger=ledger)])) as (_, tab):
        assert await tab.texts("#problem-list li") == ["t: 1 dead letter: remora dlq list --topic t"]
        assert (await tab.texts(f"{ROW} > td"))[8:10] == ["1", "0 of 1"]


async def test_it_follows_the_status_by_itself() -> None:
    """The rate is that between two answers, a failure comes and goes, and an opened topic stays open."""
    shown = status(queue("t"), topics=[figures("t")])
    async with showing(shown) as (admin, tab):
        await tab.hides("#problems")
        await tab.page.click(f"{ROW} button")

        admin.status = status(queue("t", state="stopped", reason="wrong login"), topics=[figures("t")])
        await tab.shows("#problem-list li", "broker:9092: wrong login: 1 topic, ? events, stopped for 12 s: t")
        admin.status, admin.delivers_entries = status(queue("t"), topics=[figures("t")]), 1_000_000
        await tab.hides("#problems")

        await tab.page.locator(f"{ROW} > td:nth-child(7)", has_text=re.compile(r"[1-9][0-9,]{3,}")).wait_for()
        assert len(await tab.texts(f"{ROW}.queue")) == 1


async def test_topics_are_sorted_and_filtered_and_the_address_keeps_that() -> None:
    """A click on a head sorts, a second one turns the order, words and the box filter; reloaded, all of it stays."""
    shown = status(
        queue("b", state="retrying", reason="refused"),
        queue("a"),
        queue("c"),
        topics=[figures("a", backlog_entries=1), figures("b", backlog_entries=2), figures("c", backlog_entries=3)],
    )
    async with showing(shown) as (_, tab):
        assert await names(tab) == ["b", "a", "c"]  # what fails comes first
        await tab.page.click("#topics th button[data-sort=waiting]")
        assert await names(tab) == ["c", "b", "a"]
        await tab.page.click("#topics th button[data-sort=waiting]")
        assert await names(tab) == ["a", "b", "c"]
        assert await tab.page.get_attribute("#topics th[aria-sort]", "aria-sort") == "descending"

        await tab.page.fill("#filter", "REFUSED")
        assert await names(tab) == ["b"]
        await tab.page.fill("#filter", "")
        await tab.page.check("#failing")
        assert (await names(tab), await tab.text("#shown")) == (["b"], "1 of 3 topics")

        await tab.page.uncheck("#failing")
        await tab.page.reload()
        await tab.shows(ROW, "b")
        assert await names(tab) == ["a", "b", "c"]


async def test_names_and_reasons_are_never_markup() -> None:
    """What users name and servers answer is shown as the text that it is."""
    wild = "<img src=/x onerror=alert(1)>"
    shown = status(
        queue(wild, state="stopped", reason=f"<b>{wild}</b>", remarks=[wild]),
        left=[{"queue": wild, "reason": wild, "owner": wild, "waiting": False}],
    )
    async with showing(shown) as (_, tab):
        assert await names(tab) == [wild]
        assert await tab.texts("#left-table td") == [wild] * 3
        assert await tab.page.locator("main img, main b").count() == 0


async def test_a_daemon_that_does_not_answer_is_named_and_the_last_answer_stays() -> None:
    """The page says so, keeps what it heard last, and goes on when the daemon does."""
    async with showing(status(queue("t"))) as (admin, tab):
        good, admin.status = admin.status, {"no": "status"}
        await tab.shows("#health", "The daemon does not answer")
        assert await names(tab) == ["t"]

        admin.status = good
        await tab.shows("#health", "Ready")


async def test_a_thousand_topics_take_less_than_a_mebibyte() -> None:
    """With eleven queues each, all of them are in the table, and the answers have fewer bytes than that together."""
    many = [f"topic-{number:04}" for number in range(1000)]
    shards = [queue(topic, f"{topic}.{number}", worker=number % 4) for topic in many for number in range(11)]
    async with showing(status(*shards, topics=[figures(each) for each in many])) as (admin, tab):
        assert await names(tab) == many
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            sizes = []
            for path in ("", "-/page.css", "-/page.js", "-/status"):
                async with session.get(f"http://{admin.address}/{path}") as answer:
                    sizes.append(len(await answer.read()))
        assert sum(sizes) < MOST_BYTES


async def test_it_fits_a_telephone() -> None:
    """Nothing is wider than the window of one, with names and reasons of any length."""
    long = "a-topic-of-the-department-for-long-names-and-of-nothing-else"
    shown = status(queue(long, state="stopped", reason=f"{long} " * 5), topics=[figures(long)])
    async with showing(shown, width=360, height=740) as (_, tab):
        assert await tab.page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
        assert "Waiting" in await tab.page.evaluate(
            "getComputedStyle(document.querySelector('#topics td:nth-child(5)'), '::before').content"
        )


@pytest.mark.parametrize("dark", [False, True])
async def test_it_is_light_or_dark_as_the_browser_is(dark: bool) -> None:
    """The text stands out from the ground in both."""
    async with showing(status(queue("t")), dark=dark) as (_, tab):
        ground, text = await tab.page.evaluate(
            "['background-color', 'color'].map((each) => getComputedStyle(document.body).getPropertyValue(each))"
        )
        light = [sum(map(int, re.findall(r"\d+", each))) for each in (ground, text)]
        assert (light[0] < 150 and light[1] > 600) if dark else (light[0] > 600 and light[1] < 150)


async def test_nothing_can_be_loaded_from_elsewhere_and_no_page_may_frame_it() -> None:
    """The policy lets a browser use the daemon's own files only, and it runs no text as a program."""
    alone = aiohttp.TCPConnector(force_close=True)
    async with showing(status()) as (admin, tab), aiohttp.ClientSession(connector=alone) as session:
        for path in ("", "-/page.css", "-/page.js"):
            async with session.get(f"http://{admin.address}/{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert policy.startswith("default-src 'none'; script-src 'self'; ")
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
            async with session.post(f"http://{admin.address}/{path}") as answer:
                assert answer.status == 405
        async with session.get(f"http://{admin.address}/-/page/__init__.py") as answer:
            assert answer.status == 404
        ran = await tab.page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.ran = true";
                document.body.append(script);
                return window.ran ?? false;
            }"""
        )
        assert not ran
        assert any("Content Security Policy" in each for each in tab.wrong)
        tab.wrong.clear()
