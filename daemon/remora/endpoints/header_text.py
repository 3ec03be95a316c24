"""Any bytes as the value of a text protocol's header. Pure."""

from __future__ import annotations

import re

_PLAIN = re.compile(rb"[!#$&-~]*")  # 0x21 to 0x7E without the quote and the percent sign
_TO_ENCODE = re.compile(rb'[^!-~]|["%]')


def header_value(raw: bytes) -> bytes:
    """Any bytes as a header's value: what is not printable ASCII, and space, quote and percent sign, become `%XX`.

    So does CloudEvents' HTTP binding (1.0.2, 3.1.3.2). radosgw encodes nothing: a line's end in an object's key makes
    headers there.
    """
    if _PLAIN.fullmatch(raw):
        return raw
    return _TO_ENCODE.sub(lambda match: b"%%%02X" % match[0][0], raw)
