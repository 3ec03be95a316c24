"""Subjects of messages: a template of a topic's name, a bucket and an object's key, each as one token. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from remora.model.errors import EndpointMisconfigured

PLACES = ("{topic}", "{bucket}", "{key}")

MOST_TEMPLATE_BYTES = 255

MOST_TOKEN_BYTES = 1024
"""S3's longest keys fit where they are plain; a server takes lines of 4,096 bytes by default, with three tokens."""

_KEPT_BYTES = 900
_TO_ENCODE = re.compile(rb"[^!-~]|[.*>%$]")
_LITERAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_=:-]*")


def token(text: bytes) -> bytes:
    """Any bytes as one token of a subject: other bytes give another token.

    What is not printable ASCII, and what means something in a subject, becomes `%XX`; no bytes at all are `%`. Of one
    that is too long the beginning stays, with a digest of the whole.
    """
    made = _TO_ENCODE.sub(lambda match: b"%%%02X" % match[0][0], text) or b"%"
    if len(made) > MOST_TOKEN_BYTES:
        made = made[:_KEPT_BYTES] + b"%~" + hashlib.sha256(text).hexdigest().encode()
    return made


@dataclass(frozen=True, slots=True)
class SubjectTemplate:
    """The tokens of a template in which the topic's name is filled in."""

    tokens: tuple[bytes, ...]

    @property
    def is_one_a_key(self) -> bool:
        """Whether no two keys have the same subject."""
        return b"{bucket}" in self.tokens and b"{key}" in self.tokens

    @property
    def pattern(self) -> bytes:
        """The subjects that it makes, as NATS writes such: `*` stands for a token."""
        return b".".join(b"*" if each.startswith(b"{") else each for each in self.tokens)

    def subject(self, key: bytes) -> bytes:
        """The subject of an event; `key` is `bucket/object`."""
        bucket, _, name = key.partition(b"/")
        filled = {b"{bucket}": bucket, b"{key}": name}
        return b".".join(token(filled[each]) if each in filled else each for each in self.tokens)


def read_template(text: str, topic: str) -> SubjectTemplate:
    """Read a template. Raises EndpointMisconfigured."""
    tokens: list[bytes] = []
    for each in text.split("."):
        if each == "{topic}":
            tokens.append(token(topic.encode("utf-8", "surrogateescape")))
        elif each in PLACES or _LITERAL.fullmatch(each):
            tokens.append(each.encode())
        else:
            raise EndpointMisconfigured(
                "nats-subject: tokens with a '.' between them, each {topic}, {bucket}, {key}, or letters, digits, '_', "
                "'-', '=' and ':'"
            )
    if len(text) > MOST_TEMPLATE_BYTES:
        raise EndpointMisconfigured(f"nats-subject is longer than {MOST_TEMPLATE_BYTES} bytes")
    return SubjectTemplate(tuple(tokens))


def covers(taken: Sequence[str], pattern: bytes) -> bool:
    """Whether one of the subjects that a stream takes has all that the pattern stands for."""
    return any(_has_all(each.split("."), pattern.decode().split(".")) for each in taken)


def _has_all(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    for at, each in enumerate(wide):
        if each == ">":
            return len(narrow) > at
        if at >= len(narrow) or (each != "*" and each != narrow[at]):
            return False
    return len(wide) == len(narrow)
