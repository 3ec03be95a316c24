"""What `_compiled.pyx` holds when it was built."""

from collections.abc import Sequence

from remora.codec import shortcut
from remora.model.record import Record

class Shortcut(shortcut.Shortcut): ...

def partitions(keys: Sequence[bytes], count: int) -> Sequence[int]: ...
def in_parcels(
    records: list[Record], partitions: int, around: int, room: int
) -> list[tuple[int, list[Record], int]]: ...
def encode_events(shard: bytes, prefix: bytes, records: list[Record], first: int) -> bytes: ...
