"""What became of the events of a bucket that were sent without a topic, and why nothing of it arrives. Pure.

A worker keeps the last of each outcome, in memory and for a bounded number of buckets: enough to say why a bucket is
silent, and nothing to count with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_BUCKETS = 256
FILTERED = ("at", "key", "event", "rules")
MOST_SENDING = 64
"""The most notifications of one bucket whose last sending a worker keeps."""


@dataclass(slots=True)
class _News:
    sent: dict[str, float] = field(default_factory=dict)
    filtered: tuple[float, str, str, Callable[[], Mapping[str, str]]] | None = None
    refused: tuple[float, str] | None = None


class NewsBook:
    """The last outcomes by bucket; of too many the one goes that had no outcome for longest."""

    def __init__(self) -> None:
        self._news: dict[str, _News] = {}

    def sent(self, bucket: str, notifications: Iterable[str], at: float) -> None:
        """These notifications have sent events of it."""
        sent = self._of(bucket).sent
        for each in notifications:
            sent.pop(each, None)
            sent[each] = at
        while len(sent) > MOST_SENDING:
            del sent[next(iter(sent))]

    def filtered(self, bucket: str, key: str, event: str, rules: Callable[[], Mapping[str, str]], at: float) -> None:
        """An event of it matches none. `rules` gives for each notification the first rule that it does not keep, and is
        called only when somebody asks."""
        self._of(bucket).filtered = (at, key, event, rules)

    def refused(self, bucket: str, token: str, at: float) -> None:
        """A token that may not send its events tried to."""
        self._of(bucket).refused = (at, token)

    def rows(self) -> list[dict[str, Any]]:
        """All of it as values of JSON."""
        return [
            {
                "bucket": bucket,
                "sent": dict(news.sent),
                "filtered": news.filtered
                and dict(zip(FILTERED, (*news.filtered[:3], news.filtered[3]()), strict=True)),
                "refused": {"at": news.refused[0], "token": news.refused[1]} if news.refused else None,
            }
            for bucket, news in self._news.items()
        ]

    def _of(self, bucket: str) -> _News:
        news = self._news.pop(bucket, None) or _News()
        self._news[bucket] = news
        if len(self._news) > MOST_BUCKETS:
            del self._news[next(iter(self._news))]
        return news


def merged_news(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What several workers say, as of one: of each outcome the last."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault(
            row["bucket"], {"bucket": row["bucket"], "sent": {}, "filtered": None, "refused": None}
        )
        for each, at in row["sent"].items():
            known["sent"][each] = max(at, known["sent"].get(each, 0.0))
        for outcome in ("filtered", "refused"):
            known[outcome] = max((known[outcome], row[outcome]), key=lambda each: each["at"] if each else 0.0)
    return [found[bucket] for bucket in sorted(found)]


def why_silent(bucket: str, matching: Sequence[str], news: Mapping[str, Any], *, any_defined: bool) -> str:
    """Why nothing of a bucket arrives now, in words; empty where the last that is known of it was sent.

    `matching` are the notifications that are for this bucket, `news` what the daemon says of it, empty where that is
    nothing.
    """
    if not any_defined:
        return "there are no notifications: events that are sent without a topic match none"
    if not matching:
        return f"no notification is for bucket {bucket}"
    last_sent = max((news.get("sent") or {}).values(), default=0.0)
    refused, filtered = news.get("refused"), news.get("filtered")
    if refused and refused["at"] > max(last_sent, filtered["at"] if filtered else 0.0):
        return f"token {refused['token']} may not send events of this bucket, and was refused"
    if filtered and filtered["at"] > last_sent:
        rules = {name: rule for name, rule in filtered["rules"].items() if rule and name in matching}
        kept_out = ", ".join(f"{name} by {rule}" for name, rule in rules.items())
        return f"the last event, {filtered['event']} of key {filtered['key']}, matches none: " + (
            f"kept out of {kept_out}" if kept_out else "the notifications were others then"
        )
    if not last_sent:
        return "no event of it has come to this host since the daemon's start"
    return ""


def next_for_silence(bucket: str, matching: Sequence[str], news: Mapping[str, Any], quoted: str) -> str:
    """What to type next where a bucket is silent; `quoted` is its name for a shell."""
    if not matching:
        return f"remora notification create ID --bucket {quoted} --topic TOPIC"
    refused, filtered = news.get("refused"), news.get("filtered")
    if refused and (not filtered or refused["at"] > filtered["at"]):
        return f"remora token NAME --bucket {quoted}"
    return f"remora notification test {quoted} KEY"
