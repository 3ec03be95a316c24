"""What `_event_copies.pyx` holds when it was built."""

from collections.abc import Callable, Sequence

from remora.codec.event_copies import Sends, TopicMatches

class Finder:
    def __init__(self, candidates: Callable[[bytes, bytes], Sequence[object]], notifications: int) -> None: ...
    def places(
        self,
        events: Sequence[tuple[bytes, bytes]],
        sent: dict[bytes, set[int]],
        filtered: dict[bytes, bytes],
    ) -> list[Sequence[int]]: ...

def distribute(
    events: Sequence[tuple[bytes, bytes]],
    places: Sequence[Sequence[int]],
    sends: Sends,
    by_topic: dict[str, TopicMatches],
) -> int: ...
def copies(
    entries: Sequence[bytes], notifications: Sequence[bytes], opaque: bytes, tail: bytes, context: bytes
) -> list[bytes]: ...
