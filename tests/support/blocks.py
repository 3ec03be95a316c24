"""The blocks of the documents, as a reader copies them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "SECURITY", "CONTRIBUTING")),
]


def blocks(*kinds: str) -> Iterator[tuple[str, str]]:
    """The blocks of some kinds, each with where it begins."""
    for document in DOCUMENTS:
        text = document.read_text()
        for found in re.finditer(r"(?ms)^( *)```(\w*)\n(.*?)^ *```", text):
            if found[2] in kinds:
                line = text.count("\n", 0, found.start()) + 1
                yield f"{document.name}:{line}", textwrap.dedent(found[3])
