"""Requests to store events in several topics, every copy or none: an intent for each topic in one object.

`Intent` is what remoras of one topic a request know, and they would store all parts in the first topic. So envelopes
have objects and a schedule of their own. Names begin with `~`, which no topic's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from remora.storage.rados.intent_log import Intent


class FanOutEnvelope(msgspec.Struct, frozen=True):
    """Intents that are committed together, and the answer to their request. Fields may be added as to an `Intent`.

    A reservation has its `announcement` until it is committed, and then the intents of the topics that get events.
    """

    OBJECTS: ClassVar[str] = "remora.fanout."
    SCHEDULE: ClassVar[str] = "remora.fanouts"
    VERSION: ClassVar[int] = 1
    OF_SEVERAL_TOPICS: ClassVar[bool] = True

    version: int
    made_ms: int
    intents: list[Intent]
    repeated: bool
    decided_ms: int = 0
    digest: bytes = b""
    accepted: int = 0
    unmatched: int = 0
    topics: dict[str, int] = {}
    announcement: bytes = b""

    @property
    def events(self) -> int:
        """The copies, over all topics."""
        return sum(self.topics.values())

    @property
    def members(self) -> Sequence[tuple[str, Intent]]:
        """See `Logged`."""
        return [(f".{number}", intent) for number, intent in enumerate(self.intents)]

    def slim(self, moved: frozenset[str] = frozenset()) -> FanOutEnvelope:
        """See `Logged`."""
        intents = [intent.slim(frozenset({""} if member in moved else ())) for member, intent in self.members]
        return msgspec.structs.replace(self, intents=intents, announcement=b"")
