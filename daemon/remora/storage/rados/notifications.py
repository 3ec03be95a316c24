"""A store on RADOS has no notifications of remora's own: each bucket of a radosgw has some there."""

from __future__ import annotations

from remora.model.errors import NotificationRefused
from remora.model.notification import Definitions, Notification


class NoNotifications:
    """Refuses to have any."""

    async def definitions(self) -> Definitions:
        """None."""
        return Definitions()

    async def change(self, before: Notification | None, after: Notification | None) -> None:
        """Refused."""
        name = (after or before or Notification("", ())).id
        raise NotificationRefused(
            f'notification {name} needs the embedded store (store.kind = "sqlite"); with RADOS, make notifications of'
            " buckets through radosgw's API"
        )
