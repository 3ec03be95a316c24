"""Names of folders for buckets: safe on every file system, and never taken for a number or a date."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256

_PLAIN = re.compile(rb"[A-Za-z0-9._\-]")
_INFERRED = re.compile(
    r"[-+.0-9][-+.:_0-9A-Za-z]*|[Nn]a[Nn]|[Ii]nf(inity)?|[Tt]rue|[Ff]alse|[Nn]ull|__HIVE_DEFAULT_PARTITION__"
)
_OF_NUMBERS = set("abcdefxtzl")  # 0x1f, 1e5, 1d, 1f, 5L, 12:00T, Z
_LONGEST = 120


@lru_cache(maxsize=65536)
def label(bucket: str) -> str:
    """A bucket's folder: its name where that is letters, digits, `.`, `-` and `_`, as S3's rules ask for.

    Bytes of other names become `~XX`. Readers guess the type of a folder's value, and 007 would become 7: a name that
    begins like a number without being clearly a text, and words such as null, get a `~` behind. Names that are long
    then are cut, and end in `~` and 16 digits of their SHA-256. Different buckets have different labels, and no user
    needs to read a label back: the name is a column.
    """
    text = "".join(map(_written, bucket.encode()))
    if len(text) > _LONGEST:
        return f"{text[:_LONGEST]}~{sha256(bucket.encode()).hexdigest()[:16]}"
    return text + "~" if not text or _is_inferred(text) else text


def _written(byte: int) -> str:
    one = bytes([byte])
    return one.decode() if _PLAIN.fullmatch(one) else f"~{byte:02X}"


def _is_inferred(text: str) -> bool:
    """Whether a reader may take this for a number, a date or nothing."""
    if not _INFERRED.fullmatch(text):
        return False
    letters = {each for each in text.lower() if each.isalpha()}
    return text[0] not in "+-.0123456789" or letters <= _OF_NUMBERS
