"""What `remora explain` says of a bucket, by what the store defines and the daemon says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from remora.cli.explain_event import BucketView, as_json_bucket, bucket_lines, view_bucket
from remora.config import SqliteSettings
from remora.model.notification import Definitions, Notification
from remora.storage.sqlite import SqliteStore
from support.ingest import own_topic

THUMBS = Notification("thumbs", ("small",), ("photos", "raw-*"))
ALL = Notification("all", ("audit",))


def view(news: dict[str, Any] | None, *defined: Notification, bucket: str = "photos") -> BucketView:
    return BucketView(bucket, Definitions(defined), news)


def test_a_bucket_of_which_something_is_sent() -> None:
    """Each notification that is for the bucket is shown, with its topics and when it last sent something."""
    now = time.time()
    filtered = {"at": now - 60, "key": "a.png", "event": "ObjectCreated:Put", "rules": {"thumbs": "suffix"}}
    found = view({"sent": {"thumbs": now - 5}, "filtered": filtered, "refused": None}, ALL, THUMBS)

    lines = bucket_lines(found)

    assert lines[0] == "bucket photos"
    assert lines[1] == "  notification all to audit: has sent nothing since the daemon's start"
    assert lines[2].startswith("  notification thumbs to small: last sent 5")
    assert "the last event that matched none: ObjectCreated:Put of key a.png" in lines[3]
    assert as_json_bucket(found)["why"] == ""


def test_a_bucket_of_which_the_last_event_matched_none() -> None:
    """Where notifications have sent events since the daemon's start nobody is told that nothing arrives: the reason is
    that of the last event."""
    now = time.time()
    filtered = {"at": now - 5, "key": "a.png", "event": "ObjectCreated:Put", "rules": {"thumbs": "suffix"}}

    text = "\n".join(bucket_lines(view({"sent": {"thumbs": now - 60}, "filtered": filtered, "refused": None}, THUMBS)))

    assert "why the last event went nowhere: the last event, ObjectCreated:Put of key a.png, matches none" in text
    assert "nothing arrives" not in text


@pytest.mark.parametrize(
    ("found", "why", "command"),
    [
        (view({}), "there are no notifications", "remora notification create ID --bucket photos --topic TOPIC"),
        (
            view({}, THUMBS, bucket="my films"),
            "no notification is for bucket my films",
            "remora notification create ID --bucket 'my films' --topic TOPIC",
        ),
        (view(None, THUMBS, bucket="films"), "no notification is for", "remora notification create"),
        (view({}, THUMBS), "no event of it has come to this host", "remora notification test photos KEY"),
        (
            view({"sent": {}, "filtered": None, "refused": {"at": 1.0, "token": "minio"}}, THUMBS),
            "token minio may not send",
            "remora token NAME --bucket photos",
        ),
    ],
)
def test_a_bucket_of_which_nothing_arrives(found: BucketView, why: str, command: str) -> None:
    """The reason is said with what to type next, to people and to programs."""
    text = "\n".join(bucket_lines(found))

    assert f"why nothing arrives: {why}" in text
    assert f"try: {command}" in text
    assert str(as_json_bucket(found)["why"]).startswith(why)


def test_the_daemon_is_away() -> None:
    """Without the daemon nobody can say what was sent, and no reason is guessed."""
    lines = bucket_lines(view(None, THUMBS))

    assert len(lines) == 2
    assert "is not known, since the daemon does not answer" in lines[1]


async def test_what_is_a_bucket(tmp_path: Path) -> None:
    """A name is a bucket's where a notification names it, where the daemon knows events of it, or where it is asked for
    as one; by a notification for all buckets no event's id becomes one."""
    async with SqliteStore(SqliteSettings(directory=str(tmp_path / "store"), files=1)) as store:
        for topic in ("small", "audit"):
            await store.own_topics.create(own_topic(topic))
        for each in (THUMBS, ALL):
            await store.notifications.change(None, each)
        away = None
        knows: dict[str, Any] = {"buckets": [{"bucket": "films", "sent": {}, "filtered": None, "refused": None}]}

        async def is_bucket(name: str, status: dict[str, Any] | None, *, is_asked: bool = False) -> bool:
            return await view_bucket(store, name, status, is_asked=is_asked) is not None

        assert await is_bucket("raw-2026", away)
        assert await is_bucket("films", knows)
        assert await is_bucket("films", away, is_asked=True)
        assert not await is_bucket("films", away)
        assert not await is_bucket("4f2a-1", knows)
