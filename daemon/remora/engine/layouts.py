"""Finishes changes of layouts that were cut short, and removes former layouts when their last entries are delivered.

Every worker does so: it is one operation of the store, and a repeat changes nothing.
"""

from __future__ import annotations

from remora.engine.catalogue import Catalogue
from remora.metrics import Telemetry
from remora.model.errors import StoreError, TopicUnknown
from remora.ports.layouts import LayoutStorage


class LayoutKeeper:
    """See the module."""

    def __init__(self, layouts: LayoutStorage, catalogue: Catalogue, telemetry: Telemetry) -> None:
        self._layouts = layouts
        self._catalogue = catalogue
        self._telemetry = telemetry

    async def look(self) -> None:
        """Look once, after a reading of the catalogue. What the store cannot do now it does at another look."""
        for topic in [each for each in self._catalogue.topics.values() if each.former or each.coming]:
            try:
                if await self._layouts.forget_former(topic):
                    self._telemetry.layout_delivered(topic.label, [each.generation for each in topic.former])
            except TopicUnknown:
                continue
            except StoreError as exc:
                self._telemetry.catalogue_failed(str(exc))
                return
