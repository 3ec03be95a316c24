"""Who may send, and who may change a daemon: bearer tokens, kept as digests, each with its topics.

A token is `rmr_` and 32 random bytes. No client can guess or enumerate such a number, so a plain SHA-256 of it is as
good in a file as a slow password hash would be, and costs a request next to nothing. The prefix lets scanners for
leaked secrets recognise one.

The file has one token a line, `<name> <sha256 in hex> <topics>`. `<topics>` is `*`, or names and beginnings of names
(`logs-*`) with commas between. Behind it, or in its place, may stand `buckets=<patterns>`: the buckets whose events may
be sent without a topic, in patterns with commas between in which each `*` stands for anything. Lines of one name are
several tokens of one sender, as while a token is replaced by another. Empty lines and lines that begin with `#` are
skipped. In a file of control tokens `<topics>` is `*`, and nothing stands behind it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from remora.model.errors import ConfigError, ConfigUnreadable
from remora.policy.ingest.matcher import fits_bucket

PREFIX = "rmr_"
MOST_BYTES = 1 << 20

SENDERS = "ingest.tokens"
CONTROL = "admin.control_tokens"
"""The options that name a tokens file."""

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TOPICS = re.compile(r"[A-Za-z0-9_-]{1,200}\*?|\*")
_BUCKETS = re.compile(r"[A-Za-z0-9._:*-]{1,255}")
_OF_BUCKETS = "buckets="


def new_token() -> str:
    """A new token."""
    return PREFIX + secrets.token_urlsafe(32)


def line_of(name: str, token: str, topics: str, buckets: str = "") -> str:
    """The line of the tokens file that lets this token in, for topics, buckets or both. Raises ValueError."""
    _check_name(name)
    if topics or not buckets:
        _topics_of(topics)
    if buckets:
        _buckets_of(buckets)
    return " ".join(filter(None, (name, _digest_of(token).hex(), topics, buckets and f"{_OF_BUCKETS}{buckets}")))


@dataclass(frozen=True, slots=True)
class SenderGrant:
    """One line of the file: whose token it is, its digest, the topics that it may send to, and the buckets whose events
    it may send without one."""

    name: str
    digest: bytes
    topics: tuple[str, ...]
    buckets: tuple[str, ...] = ()

    def allows_bucket(self, bucket: str) -> bool:
        """Whether events of this bucket may be sent without a topic."""
        return any(fits_bucket(each, bucket) for each in self.buckets)

    def allows(self, topic: str) -> bool:
        """Whether events may be sent to this topic."""
        return any(topic.startswith(each[:-1]) if each.endswith("*") else topic == each for each in self.topics)


ANYBODY = SenderGrant("", b"", ("*",), ("*",))
"""Whose requests come where no tokens are configured."""


class Tokens:
    """The grants of a file."""

    def __init__(self, grants: tuple[SenderGrant, ...]) -> None:
        self._grants = grants

    def __len__(self) -> int:
        return len(self._grants)

    def names_for(self, topic: str) -> tuple[str, ...]:
        """The names of those that may send to a topic, each once. A right to buckets names no topic."""
        return tuple({each.name: None for each in self._grants if each.allows(topic)})

    def grant(self, token: str) -> SenderGrant | None:
        """What this token may do, None for one that is not known.

        All digests are compared, each in constant time: how long it takes tells nothing about them.
        """
        digest = _digest_of(token)
        found = None
        for each in self._grants:
            if hmac.compare_digest(each.digest, digest):
                found = each
        return found


def bearer_of(authorization: str) -> str:
    """The token of an Authorization header; empty where it has none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def load(path: str, key: str = SENDERS) -> Tokens:
    """Read the tokens file of this option. Raises ConfigError with the line, or for a file that others may use."""
    try:
        with Path(path).open("rb") as file:
            _check_owner(path, os.fstat(file.fileno()), key)
            raw = file.read(MOST_BYTES + 1)
    except OSError as exc:
        kind = ConfigUnreadable if isinstance(exc, PermissionError) else ConfigError
        raise kind(key, f"cannot read {path}: {exc.strerror}") from exc
    if len(raw) > MOST_BYTES:
        raise ConfigError(key, f"{path} is larger than {MOST_BYTES} bytes: not a tokens file")
    return parse(raw, path, key)


def parse(raw: bytes, path: str, key: str = SENDERS) -> Tokens:
    """The grants of a file's content. Raises ConfigError with the line that is wrong, and never shows its content."""
    grants: list[SenderGrant] = []
    for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            grant = _grant(line)
        except ValueError as exc:
            raise ConfigError(key, f"{path}, line {number}: {exc}") from exc
        if key == CONTROL and (grant.topics != ("*",) or grant.buckets):
            raise ConfigError(key, f"{path}, line {number}: a token for some topics is a sender's, and changes nothing")
        if any(grant.digest == each.digest for each in grants):
            raise ConfigError(key, f"{path}, line {number}: this token has a line already")
        grants.append(grant)
    return Tokens(tuple(grants))


def _grant(line: str) -> SenderGrant:
    name, digest, *rights = line.split() if len(line.split()) > 1 else ("", "")
    buckets = rights.pop() if rights and rights[-1].startswith(_OF_BUCKETS) else ""
    if len(rights) > 1 or not (rights or buckets):
        raise ValueError("expected a name, a SHA-256 in hex, and topics, with blanks between")
    _check_name(name)
    if not _DIGEST.fullmatch(digest):
        raise ValueError("the second word is not a SHA-256 in 64 small hex digits")
    topics = _topics_of(rights[0]) if rights else ()
    return SenderGrant(name, bytes.fromhex(digest), topics, _buckets_of(buckets) if buckets else ())


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("the name may have letters, digits, '.', '_', '@' and '-', at most 64 of them")


def _topics_of(text: str) -> tuple[str, ...]:
    each = tuple(text.split(","))
    if not all(map(_TOPICS.fullmatch, each)):
        raise ValueError("topics are `*`, or names and beginnings such as `logs-*` with commas between, without blanks")
    return each


def _buckets_of(text: str) -> tuple[str, ...]:
    each = tuple(text.removeprefix(_OF_BUCKETS).split(","))
    if not all(map(_BUCKETS.fullmatch, each)):
        raise ValueError("buckets are patterns such as `photos` and `raw-*` with commas between, without blanks")
    return each


def _check_owner(path: str, found: os.stat_result, key: str) -> None:
    """The group may read: Kubernetes mounts a Secret as root's with the pod's group, and only digests are in it."""
    if stat.S_IMODE(found.st_mode) & 0o037:
        raise ConfigError(
            key,
            f"{path} can be read by others or written by its group; mend it with: chmod 0640 {path}",
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(key, f"{path} belongs to user {found.st_uid}, neither to root nor to this daemon")


def _digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
