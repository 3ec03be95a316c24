"""How a store keeps the attempts of a queue's entries: one value for all of them.

MessagePack of `[version, [position, count, first tried] ...]`, so that noting them is one small write, however many
entries an outage has tried.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from remora.model.record import Attempt

_VERSION = 1


class _StoredAttempts(msgspec.Struct, frozen=True, array_like=True):
    """A newer version may add fields, which are skipped, but never change these."""

    version: int
    attempts: list[tuple[bytes, int, float]]


_decoder = msgspec.msgpack.Decoder(_StoredAttempts)


def encode_attempts(attempts: Mapping[bytes, Attempt]) -> bytes:
    """The value that keeps these."""
    rows = [(position, each.count, each.first_tried) for position, each in attempts.items()]
    return msgspec.msgpack.encode(_StoredAttempts(_VERSION, rows))


def decode_attempts(value: bytes) -> dict[bytes, Attempt]:
    """What such a value keeps, by position; nothing when it cannot be read: then entries are tried anew."""
    try:
        stored = _decoder.decode(value)
    except msgspec.MsgspecError:
        return {}
    return {position: Attempt(count, first_tried) for position, count, first_tried in stored.attempts}
