"""The status page for a browser: a document, a style sheet and a script that shows what /-/status says.

Nothing is loaded from elsewhere, and nothing on it changes the daemon; the script writes text only. A framework was
weighed (htmx, Vue): each would be a file of others in this repository, and the page is one table that is filled again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

FILES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "/": ("index.html", "text/html; charset=utf-8"),
        "/-/page.css": ("page.css", "text/css; charset=utf-8"),
        "/-/page.js": ("page.js", "text/javascript; charset=utf-8"),
    }
)
"""Each path with its file and content type."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a browser may load for the page, and that no other page may frame it."""


@cache
def content(path: str) -> bytes:
    """The file of a path. Raises KeyError for others than those of `FILES`."""
    return Path(__file__).with_name(FILES[path][0]).read_bytes()


def headers(path: str) -> dict[str, str]:
    """The headers of a path's answer."""
    return {
        "Content-Type": FILES[path][1],
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
