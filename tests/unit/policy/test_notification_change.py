"""A notification is replaced where it is as the caller believes, and there are not more than there may be."""

from __future__ import annotations

import pytest

from remora.model.errors import NotificationRefused
from remora.model.notification import MOST_NOTIFICATIONS, Notification
from remora.policy.ingest.notification_rules import check_replacement

ONE, OTHER = Notification("n", ("a",)), Notification("n", ("b",))


@pytest.mark.parametrize(
    ("now", "before", "count"),
    [(None, None, MOST_NOTIFICATIONS - 1), (ONE, ONE, 1), (ONE, ONE, MOST_NOTIFICATIONS)],
)
def test_what_may_be_replaced(now: Notification | None, before: Notification | None, count: int) -> None:
    """A new one up to the bound, and one that is as believed, also at the bound."""
    check_replacement("n", now, before, count)


@pytest.mark.parametrize(
    ("now", "before", "count", "why"),
    [
        (None, ONE, 0, "there is no notification n"),
        (ONE, None, 1, "notification n is there already"),
        (OTHER, ONE, 1, "notification n was changed meanwhile"),
        (None, None, MOST_NOTIFICATIONS, "there are 1000 notifications, and no more are possible"),
    ],
)
def test_what_is_refused(now: Notification | None, before: Notification | None, count: int, why: str) -> None:
    """Each other case is refused, and named."""
    with pytest.raises(NotificationRefused, match=f"^{why}$"):
        check_replacement("n", now, before, count)
