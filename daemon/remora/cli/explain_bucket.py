"""What `remora explain` says of a bucket: the notifications that are for it, when each sent something, and why not."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remora.model.notification import Definitions
from remora.model.words import duration
from remora.policy.bucket_news import next_for_silence, why_silent
from remora.policy.matcher import takes_bucket
from remora.ports.store import ShardStore


@dataclass(frozen=True, slots=True)
class BucketView:
    """A bucket with all that is known of it. `news` is what the daemon's status has of it, None where it is silent."""

    name: str
    definitions: Definitions
    news: Mapping[str, Any] | None

    @property
    def matching(self) -> dict[str, tuple[str, ...]]:
        """The topics of each notification that is for this bucket."""
        return {each.id: each.topics for each in self.definitions.notifications if takes_bucket(each, self.name)}

    @property
    def why(self) -> str:
        """Why nothing of it arrives; empty where something does, or where nobody can say."""
        matching, defined = list(self.matching), bool(self.definitions.notifications)
        if self.news is None and matching:
            return ""
        return why_silent(self.name, matching, self.news or {}, any_defined=defined)

    @property
    def next_command(self) -> str:
        """What to type next; empty where nothing has to be done."""
        if not self.why:
            return ""
        return next_for_silence(self.name, list(self.matching), self.news or {}, shlex.quote(self.name))


async def view_bucket(
    store: ShardStore, name: str, status: Mapping[str, Any] | None, *, is_asked: bool
) -> BucketView | None:
    """The bucket of this name; None where nothing speaks for there being one, and nobody `is_asked` for one.

    `status` is the daemon's; None where it does not answer.
    """
    definitions = await store.notifications.definitions()
    rows = status.get("buckets", []) if status is not None else []
    news = next((row for row in rows if row["bucket"] == name), None)
    is_named = any(each.buckets and takes_bucket(each, name) for each in definitions.notifications)
    if not (is_asked or news or is_named):
        return None
    return BucketView(name, definitions, None if status is None else news or {})


def bucket_lines(view: BucketView) -> list[str]:
    """The bucket for a person."""
    news, now = view.news or {}, time.time()
    sent = news.get("sent") or {}
    lines = [f"bucket {view.name}"]
    for name, topics in view.matching.items():
        when = f"last sent {duration(max(0.0, now - sent[name]))} ago" if name in sent else "has sent nothing"
        if name not in sent and view.news is None:
            when = "whether it has sent something is not known, since the daemon does not answer"
        elif name not in sent:
            when += " since the daemon's start"
        lines.append(f"  notification {name} to {', '.join(topics)}: {when}")
    if view.why:
        lines.append(f"  why nothing arrives: {view.why}")
        lines.append(f"  try: {view.next_command}")
    elif filtered := news.get("filtered"):
        ago = duration(max(0.0, now - filtered["at"]))
        lines.append(f"  the last event that matched none: {filtered['event']} of key {filtered['key']}, {ago} ago")
    return lines


def as_json_bucket(view: BucketView) -> dict[str, object]:
    """The bucket for programs."""
    news = view.news or {}
    return {
        "bucket": view.name,
        "notifications": [
            {"id": name, "topics": list(topics), "last_sent": (news.get("sent") or {}).get(name)}
            for name, topics in view.matching.items()
        ],
        "last_filtered": news.get("filtered"),
        "last_refused": news.get("refused"),
        "why": view.why,
        "next": view.next_command,
    }
