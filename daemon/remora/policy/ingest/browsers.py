"""Which requests were sent by a page in somebody's browser. Pure.

Such a page may ask whatever the browser's user can reach, the loopback of the user's host among it, and the user knows
nothing of it. No page has to ask remora to change anything, so there is none that may: not even one of the server's own
name, which may be a foreign name that was made to mean this host.
"""

from __future__ import annotations


def is_of_page(origin: str | None, site: str | None) -> bool:
    """Whether a page has sent a request with these values of `Origin` and `Sec-Fetch-Site`, None for what is missing.

    `none` is what a browser says of an address that its user has typed.
    """
    return origin is not None or (site is not None and site.strip().lower() != "none")
