"""What answers of HTTP receivers mean."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.endpoints.http.answers import (
    Verdict,
    batched_lanes,
    push_records,
    quick_pause_s,
    retry_after_s,
    verdict,
)

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("meaning", "statuses"),
    [
        (Verdict.ACK, [200, 201, 202, 204, 226, 299]),
        (Verdict.TRANSIENT, [408, 409, 421, 423, 425, 429, 500, 502, 503, 504, 507, 508, 509, 510, 512, 520, 599]),
        (Verdict.POISON, [400, 413, 414, 415, 422, 431]),
        (
            Verdict.CONFIGURATION,
            {101, 300, 301, 302, 304, 307, 308, 401, 402, 403, 404, 405, 406, 407, 410, 411, 412, 417, 418, 424, 426}
            | {428, 451, 499, 501, 505, 506, 511, 600, 999, 0, 99},
        ),
    ],
)
def test_statuses(meaning: Verdict, statuses: Collection[int]) -> None:
    """Each status has the meaning that the table gives it."""
    assert {status: verdict(status) for status in statuses} == dict.fromkeys(statuses, meaning)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5.0),
        (" 5 ", 5.0),
        ("0", None),
        ("-5", None),
        ("5.5", None),
        ("300", 300.0),
        ("301", 300.0),
        ("3155760000", 300.0),
        ("9" * 100, None),
        ("soon", None),
        ("", None),
        (formatdate(NOW + 60, usegmt=True), 60.0),
        (formatdate(NOW - 60, usegmt=True), None),
        (formatdate(NOW + 1e9, usegmt=True), 300.0),
        ("Fri, 99 Foo 2030 99:99:99 GMT", None),
    ],
)
def test_retry_after(text: str, seconds: float | None) -> None:
    """Seconds and dates are read, at most five minutes; what makes no sense says nothing."""
    assert retry_after_s(text, NOW) == seconds


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's zone is not UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
@pytest.mark.parametrize(
    "text",
    [
        "Thu, 26 Nov 2026 12:00:30 GMT",
        "Thursday, 26-Nov-26 12:00:30 GMT",
        "Thu Nov 26 12:00:30 2026",
        "Thu, 26 Nov 2026 12:00:30 -0000",
        "Thu, 26 Nov 2026 12:00:30 +0000",
        "Thu, 26 Nov 2026 12:00:30 UTC",
        "Thu, 26 Nov 2026 12:00:30",
        "26 Nov 2026 12:00:30 GMT",
        "Thu, 26 Nov 2026 07:00:30 -0500",
        "Thu, 26 Nov 2026 13:30:30 +0130",
    ],
)
def test_dates_are_utc(text: str) -> None:
    """A date in any form of HTTP, or with a zone of mail's, names the same moment whatever the process's zone is."""
    noon = datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp()

    assert retry_after_s(text, noon) == 30.0


@pytest.mark.usefixtures("in_new_york")
def test_leap_seconds() -> None:
    """A leap second is the one before it."""
    before = datetime(2026, 12, 31, 23, 59, 29, tzinfo=UTC).timestamp()

    assert retry_after_s("Thu, 31 Dec 2026 23:59:60 GMT", before) == 30.0


@given(st.text(max_size=40))
def test_any_retry_after(text: str) -> None:
    """Whatever a receiver asks for is nothing, or a time within the bounds."""
    found = retry_after_s(text, NOW)

    assert found is None or 0 < found <= 300


@pytest.mark.parametrize(
    ("tries", "most", "asked_s", "spent_s", "pause_s"),
    [
        (1, 3, None, 0.0, 0.1),
        (2, 3, None, 0.1, 0.2),
        (3, 3, None, 0.3, 0.4),
        (4, 3, None, 0.7, None),
        (1, 0, None, 0.0, None),
        (1, 3, 2.0, 0.0, 2.0),
        (1, 3, 10.0, 0.0, None),
        (2, 3, 8.0, 3.0, None),
        (2, 3, None, 9.9, None),
    ],
)
def test_quick_pauses(tries: int, most: int, asked_s: float | None, spent_s: float, pause_s: float | None) -> None:
    """A lane waits 100, 200 and 400 ms, or as long as is asked for, and all of it within ten seconds."""
    assert quick_pause_s(tries, most, asked_s, spent_s) == pause_s


@pytest.mark.parametrize(
    ("lanes", "mean_s", "has_backlog", "wanted"),
    [
        (8, 0.5, True, 16),
        (8, 0.5, False, 8),
        (8, 0.03, True, 8),
        (8, 0.031, True, 16),
        (1000, 0.5, True, 1024),
        (1024, 0.5, True, 1024),
    ],
)
def test_lanes_of_batches(lanes: int, mean_s: float, has_backlog: bool, wanted: int) -> None:
    """A backlog before a slow receiver doubles lanes of batches: with many more each would have a part of a batch."""
    assert batched_lanes(lanes, mean_s, has_backlog=has_backlog) == wanted


@given(st.floats(0, 20), st.booleans(), st.integers(8, 1024))
def test_lanes_of_batches_never_shrink(mean_s: float, has_backlog: bool, lanes: int) -> None:
    """The number of lanes only grows."""
    assert batched_lanes(lanes, mean_s, has_backlog=has_backlog) >= lanes


@pytest.mark.parametrize(
    ("mean_s", "together", "wanted"),
    [
        (0, 1, 4),
        (0, 100, 400),
        (0, 1000, 1024),
        (0.0002, 1, 1024),
        (0.1, 1, 2),
        (0.5, 1, 1),
        (0.5, 100, 100),
        (0.05, 100, 500),
        (0.01, 100, 1024),
    ],
)
def test_records_of_a_push(mean_s: float, together: int, wanted: int) -> None:
    """A push lasts for a quarter of a second, is never shorter than a request, and short while no answer is known."""
    assert push_records(mean_s, together) == wanted
