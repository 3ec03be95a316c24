"""The quickest way that this installation has of the loops that cost most: compiled, or the same in Python.

The compiled one is missing where there was no C compiler at the installation. REMORA_PURE_PYTHON=1 leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from remora.codec import kafka_records, murmur2, shortcut
from remora.model.record import Record

Shortcut: type[shortcut.Shortcut] = shortcut.Shortcut
partitions: Callable[[Sequence[bytes], int], Sequence[int]] = murmur2.partitions
in_parcels: Callable[[list[Record], int, int, int], list[tuple[int, list[Record], int]]] = kafka_records.in_parcels
encode_events: Callable[[bytes, bytes, list[Record], int], bytes] = kafka_records.encode_events
IMPLEMENTATION = "python"
"""`compiled` or `python`."""

if not os.environ.get("REMORA_PURE_PYTHON"):
    try:
        from remora.codec import _compiled
    except ImportError:
        pass
    else:
        Shortcut, partitions = _compiled.Shortcut, _compiled.partitions
        in_parcels, encode_events = _compiled.in_parcels, _compiled.encode_events
        IMPLEMENTATION = "compiled"
