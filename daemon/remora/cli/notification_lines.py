"""Notifications for a person."""

from __future__ import annotations

from remora.config import show_size
from remora.model.notification import EventFilter, Notification


def shown(notification: Notification) -> dict[str, str]:
    """Each part of a notification by its name in a file; empty where it is not given."""
    return {
        "id": notification.id,
        "topics": ", ".join(notification.topics),
        "buckets": ", ".join(notification.buckets),
        "events": ", ".join(notification.events),
        **{f"filter.{name}": text for name, text in shown_filter(notification.filter).items()},
    }


def shown_filter(of: EventFilter) -> dict[str, str]:
    """Each rule of a filter by its name in a file; empty where it is not given."""
    return {
        "prefix": of.prefix,
        "suffix": of.suffix,
        "regex": of.regex,
        "size_min": "" if of.size_min is None else show_size(of.size_min),
        "size_max": "" if of.size_max is None else show_size(of.size_max),
        "metadata": ", ".join(f"{name}={value}" for name, value in of.metadata),
        "tags": ", ".join(f"{name}={value}" for name, value in of.tags),
    }
