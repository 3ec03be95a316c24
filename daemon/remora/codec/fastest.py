"""The quickest way that this installation has of the two loops that cost most: compiled, or the same in Python.

The compiled one is missing where there was no C compiler at the installation. REMORA_PURE_PYTHON=1 leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from remora.codec import murmur2, shortcut

Shortcut: type[shortcut.Shortcut] = shortcut.Shortcut
partitions: Callable[[Sequence[bytes], int], Sequence[int]] = murmur2.partitions
IMPLEMENTATION = "python"
"""`compiled` or `python`."""

if not os.environ.get("REMORA_PURE_PYTHON"):
    try:
        from remora.codec import _compiled
    except ImportError:
        pass
    else:
        Shortcut, partitions, IMPLEMENTATION = _compiled.Shortcut, _compiled.partitions, "compiled"
