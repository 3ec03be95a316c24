"""Whether a notification may be replaced, by what a store has of it by now."""

from __future__ import annotations

from remora.model.errors import NotificationRefused
from remora.model.notification import MOST_NOTIFICATIONS, Notification


def check_replacement(name: str, now: Notification | None, before: Notification | None, count: int) -> None:
    """Raise NotificationRefused where it is not as `before` says, or where a new one is one too many beside `count`."""
    if now != before:
        if now is None:
            raise NotificationRefused(f"there is no notification {name}")
        raise NotificationRefused(f"notification {name} {'was changed meanwhile' if before else 'is there already'}")
    if before is None and count >= MOST_NOTIFICATIONS:
        raise NotificationRefused(f"there are {MOST_NOTIFICATIONS} notifications, and no more are possible")
