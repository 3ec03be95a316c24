"""What became of a bucket's events, and why nothing of it arrives."""

from __future__ import annotations

from typing import Any

import pytest

from remora.policy.status.bucket_news import (
    MOST_BUCKETS,
    MOST_SENDING,
    NewsBook,
    merged_news,
    next_for_silence,
    why_silent,
)

SENT = {"sent": {"thumbs": 10.0}}
FILTERED = {"filtered": {"at": 20.0, "key": "a.png", "event": "ObjectCreated:Put", "rules": {"thumbs": "suffix"}}}
REFUSED = {"refused": {"at": 30.0, "token": "minio"}}


@pytest.mark.parametrize(
    ("matching", "news", "why"),
    [
        ([], {}, "no notification is for bucket photos"),
        ([], SENT, "no notification is for bucket photos"),
        (["thumbs"], {}, "no event of it has come to this host since the daemon's start"),
        (["thumbs"], SENT, ""),
        (["thumbs"], SENT | FILTERED, "ObjectCreated:Put of key a.png, matches none: kept out of thumbs by suffix"),
        (["thumbs"], {"sent": {"thumbs": 25.0}} | FILTERED, ""),
        (["thumbs"], SENT | FILTERED | REFUSED, "token minio may not send events of this bucket, and was refused"),
        (["thumbs"], {"sent": {"thumbs": 40.0}} | FILTERED | REFUSED, ""),
        (["new"], FILTERED, "matches none: the notifications were others then"),
    ],
)
def test_why_nothing_arrives(matching: list[str], news: dict[str, Any], why: str) -> None:
    """The last of what became of a bucket's events says why nothing of it arrives, or that something does."""
    said = why_silent("photos", matching, news, any_defined=True)

    assert said.endswith(why) if why else said == ""


def test_nothing_is_defined() -> None:
    """Where there are no notifications at all that is the reason."""
    assert "there are no notifications" in why_silent("photos", [], FILTERED, any_defined=False)


@pytest.mark.parametrize(
    ("matching", "news", "command"),
    [
        ([], {}, "remora notification create ID --bucket photos --topic TOPIC"),
        (["thumbs"], FILTERED, "remora notification test photos KEY"),
        (["thumbs"], FILTERED | REFUSED, "remora token NAME --bucket photos"),
        (["thumbs"], {}, "remora notification test photos KEY"),
    ],
)
def test_what_to_type_next(matching: list[str], news: dict[str, Any], command: str) -> None:
    """Each reason has its command."""
    assert next_for_silence("photos", matching, news, "photos") == command


def test_the_book_is_bounded() -> None:
    """Of very many buckets and notifications the last ones are kept; rules are looked at only when somebody asks."""
    book, asked = NewsBook(), 0

    def rules() -> dict[str, str]:
        nonlocal asked
        asked += 1
        return {"n": "suffix"}

    for number in range(MOST_BUCKETS + 10):
        book.filtered(f"b{number}", "k", "e", rules, 1.0)
    book.sent("b20", [f"n{number}" for number in range(MOST_SENDING + 5)], 2.0)
    book.filtered("new", "k", "e", rules, 3.0)

    assert asked == 0
    rows = {row["bucket"]: row for row in book.rows()}
    assert len(rows) == MOST_BUCKETS
    assert "b10" not in rows
    assert next(iter(rows["b20"]["sent"])) == "n5"
    assert rows["new"]["filtered"]["rules"] == {"n": "suffix"}


def test_workers_together() -> None:
    """Of what several workers say the last of each outcome counts."""
    one, other = NewsBook(), NewsBook()
    one.sent("photos", ["a", "b"], 1.0)
    other.sent("photos", ["b"], 2.0)
    one.filtered("photos", "late", "e", dict, 5.0)
    other.filtered("photos", "early", "e", dict, 4.0)
    other.refused("films", "minio", 3.0)

    films, photos = merged_news([*one.rows(), *other.rows()])

    assert photos["sent"] == {"a": 1.0, "b": 2.0}
    assert photos["filtered"]["key"] == "late"
    assert films["refused"] == {"at": 3.0, "token": "minio"}
