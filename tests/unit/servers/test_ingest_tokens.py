"""Tokens of the ingest API: how they are made and kept, and what the file may look like."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from remora.model.errors import ConfigError
from remora.servers import tokens
from remora.servers.tokens import Tokens, line_of, new_token


def of(*lines: str) -> Tokens:
    """The grants of these lines."""
    return tokens.parse("\n".join(lines).encode(), "tokens")


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    """A tokens file."""
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_token_is_recognisable_and_never_the_same() -> None:
    """It has the prefix and 32 bytes in base64url, and two differ."""
    first, second = new_token(), new_token()

    assert first != second
    assert re.fullmatch(r"rmr_[A-Za-z0-9_-]{43}", first)


def test_the_line_of_a_token_holds_its_digest_and_not_the_token() -> None:
    """A reader of the file cannot send with what it says."""
    token = new_token()
    line = line_of("gateway-1", token, "logs,audit-*")

    assert line == f"gateway-1 {hashlib.sha256(token.encode()).hexdigest()} logs,audit-*"
    assert token not in line


@pytest.mark.parametrize(
    ("topics", "topic", "allowed"),
    [
        ("*", "anything", True),
        ("logs", "logs", True),
        ("logs", "logs2", False),
        ("logs", "log", False),
        ("logs-*", "logs-", True),
        ("logs-*", "logs-eu", True),
        ("logs-*", "logs", False),
        ("a,b,c-*", "b", True),
        ("a,b,c-*", "c-1", True),
        ("a,b,c-*", "d", False),
    ],
)
def test_a_token_may_send_to_the_topics_of_its_line(topics: str, topic: str, allowed: bool) -> None:
    """A star stands for every name, or at the end of one for every name that begins like it."""
    token = new_token()
    grant = of(line_of("x", token, topics)).grant(token)

    assert grant is not None
    assert grant.allows(topic) is allowed


def test_several_tokens_of_one_name_count_side_by_side() -> None:
    """While a token is replaced, the old and the new one work, each with the rights of its own line."""
    old, new = new_token(), new_token()
    found = of("# replaced in May", line_of("x", old, "a"), "", line_of("x", new, "b"))

    assert len(found) == 2
    assert [(grant.name, grant.topics) for grant in map(found.grant, (old, new)) if grant] == [
        ("x", ("a",)),
        ("x", ("b",)),
    ]
    assert found.grant(new_token()) is None
    assert found.grant("") is None
    assert found.grant(old + " ") is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x", "expected a name"),
        ("x " + "0" * 64, "expected a name"),
        ("x " + "0" * 64 + " a b", "expected a name"),
        ("x " + "0" * 63 + " a", "not a SHA-256"),
        ("x " + "G" * 64 + " a", "not a SHA-256"),
        ("x " + "A" * 64 + " a", "not a SHA-256"),
        ("x/y " + "0" * 64 + " a", "the name"),
        ("x " + "0" * 64 + " a,", "topics are"),
        ("x " + "0" * 64 + " a*b", "topics are"),
        ("x " + "0" * 64 + " a.b", "topics are"),
        ("x rmr_this-is-the-token-itself a", "not a SHA-256"),
        ("x " + "0" * 64 + " buckets=", "buckets are"),
        ("x " + "0" * 64 + " a buckets=b,", "buckets are"),
        ("x " + "0" * 64 + " buckets=b a", "expected a name"),
        ("x " + "0" * 64 + " a buckets=b c", "expected a name"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number_and_never_shown(line: str, reason: str) -> None:
    """The message says where and why; the line, which may hold a token by mistake, is not in it."""
    with pytest.raises(ConfigError, match=f"^ingest.tokens: tokens, line 3: .*{reason}") as caught:
        of("# first", line_of("good", new_token(), "*"), line)

    assert line.split()[-1] not in str(caught.value) or len(line.split()[-1]) < 5


def test_a_token_may_have_one_line_only() -> None:
    """Two lines for one token would leave open which rights count."""
    token = new_token()

    with pytest.raises(ConfigError, match="line 2: this token has a line already"):
        of(line_of("x", token, "a"), line_of("y", token, "b"))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o620, 0o602, 0o610, 0o601])
def test_a_file_that_others_can_use_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    """Others may not even read names and rights, and its group may only read."""
    path = written(tmp_path, "", mode)

    with pytest.raises(ConfigError, match=f"chmod 0640 {re.escape(path)}"):
        tokens.load(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_file_that_its_group_can_read_is_used(tmp_path: Path, mode: int) -> None:
    """A Secret of Kubernetes is root's and readable by the pod's group."""
    token = new_token()

    assert tokens.load(written(tmp_path, line_of("x", token, "*"), mode)).grant(token) is not None


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns the file lets in whom he likes: it is to be root's, or the daemon's."""
    path = written(tmp_path, line_of("x", new_token(), "*"))
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    else:
        os.chown(path, 12345, -1)

    with pytest.raises(ConfigError, match="neither to root nor to this daemon"):
        tokens.load(path)


def test_a_file_is_read_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    """A good file gives its tokens; none at all is an error and not an open door."""
    token = new_token()
    path = written(tmp_path, line_of("x", token, "*") + "\n", 0o400)

    assert tokens.load(path).grant(token) is not None
    with pytest.raises(ConfigError, match=r"cannot read .*missing: No such file"):
        tokens.load(str(tmp_path / "missing"))


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    """What is that large is something else, and is not read to its end."""
    path = written(tmp_path, "#" * (tokens.MOST_BYTES + 1))

    with pytest.raises(ConfigError, match="not a tokens file"):
        tokens.load(path)
