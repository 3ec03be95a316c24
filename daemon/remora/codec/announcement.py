"""What is kept with a reservation that names no topic: a msgpack array, which a newer version may lengthen.

It has the notifications that count for the announced events, as they were then: what a commit stores does not depend on
what they say by now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remora.model.notification import Notification


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """The events to come, and where they may go.

    `events` has key (`bucket:object`) and most bytes of each. `rooms` has by topic, for each copy that there is room
    for, the number of its event and the place in `notifications` of the one that may send it. `ids` are the topics'.
    """

    notifications: tuple[Notification, ...]
    events: Sequence[tuple[bytes, int]]
    rooms: Mapping[str, Sequence[tuple[int, int]]]
    ids: Mapping[str, str]


encode_announcement = msgspec.msgpack.Encoder().encode
decode_announcement = msgspec.msgpack.Decoder(Announcement).decode
"""Raises msgspec.MsgspecError for what is none."""
