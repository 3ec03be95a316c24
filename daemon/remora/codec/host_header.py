"""What is wrong with the Host of a request: https://www.rfc-editor.org/rfc/rfc9112#section-3.2"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_VALUE = re.compile(
    rb"(?:\[[0-9A-Za-z:.%_~!$&'()*+,;=-]+\]"  # an address of IPv6, or of a version to come
    rb"|(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)"  # a name, which may be empty
    rb"(?::[0-9]*)?"
)


def host_fault(values: Sequence[bytes], version: tuple[int, int]) -> str:
    """Why a request with these Host headers is refused; empty where it is not. HTTP/1.0 needs none."""
    if not values:
        return "" if version < (1, 1) else "there is no Host"
    if len(values) > 1:
        return "there are several Host"
    return "" if _is_valid(values[0]) else "Host is no name or address with a port or none"


@lru_cache(maxsize=256)
def _is_valid(value: bytes) -> bool:
    return _VALUE.fullmatch(value) is not None
