"""What `_compiled.pyx` holds when it was built."""

from collections.abc import Sequence

from remora.codec import shortcut

class Shortcut(shortcut.Shortcut): ...

def partitions(keys: Sequence[bytes], count: int) -> Sequence[int]: ...
