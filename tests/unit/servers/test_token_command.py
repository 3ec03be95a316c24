"""`remora token`: what it prints lets its holder in, and nothing else is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from remora.cli import group
from remora.model.errors import ConfigError
from remora.servers import tokens


def run(*arguments: str) -> Result:
    """The command with these arguments."""
    return CliRunner().invoke(group, ["token", *arguments])


def test_a_token_is_printed_with_its_line() -> None:
    """The line admits exactly this token, to exactly these topics."""
    result = run("gateway-1", "--topics", "orders,audit-*")

    token, line = (each.split(maxsplit=1)[1] for each in result.stdout.splitlines())
    grant = tokens.parse(line.encode(), "tokens").grant(token)
    assert grant is not None
    assert (grant.name, grant.topics) == ("gateway-1", ("orders", "audit-*"))


def test_a_token_of_buckets() -> None:
    """With --bucket the line admits to these buckets, and to topics only where they are named, too."""
    buckets = ("--bucket", "photos", "--bucket", "raw-*")
    for more, topics in (((), ()), (("--topics", "orders"), ("orders",))):
        token, line = (each.split(maxsplit=1)[1] for each in run("minio", *buckets, *more).stdout.splitlines())
        grant = tokens.parse(line.encode(), "tokens").grant(token)
        assert grant is not None
        assert (grant.topics, grant.buckets) == (topics, ("photos", "raw-*"))
        assert [grant.allows_bucket(each) for each in ("photos", "photos2", "raw-1")] == [True, False, True]
    refused = run("minio", "--bucket", "a b")
    assert (refused.exit_code, "buckets are" in refused.stderr) == (2, True)


def test_a_control_token_has_no_buckets() -> None:
    """A line with buckets is refused in the file of control tokens."""
    line = tokens.line_of("x", tokens.new_token(), "*", "photos")

    with pytest.raises(ConfigError, match="a sender's"):
        tokens.parse(line.encode(), "tokens", tokens.CONTROL)


def test_a_token_is_printed_as_json() -> None:
    """For programs, and for all topics where none are named."""
    made = json.loads(run("x", "--json").stdout)

    assert made["line"] == tokens.line_of("x", made["token"], "*")


def test_a_line_is_added_to_a_file(tmp_path: Path) -> None:
    """The file is made for its owner alone, keeps what it has, and the daemon takes it; only the token is printed."""
    file = tmp_path / "tokens"
    first = run("a", "--append", str(file)).stdout.strip()
    file.write_text(file.read_text().rstrip("\n"))  # an editor left out the last end of line
    second = run("b", "--append", str(file)).stdout.strip()

    found = tokens.load(str(file))
    assert [grant.name for grant in map(found.grant, (first, second)) if grant] == ["a", "b"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_broken_file_is_left_alone(tmp_path: Path) -> None:
    """A line more would not help; what is wrong is said instead."""
    file = tmp_path / "tokens"
    file.write_text("nonsense\n")

    result = run("a", "--append", str(file))

    assert result.exit_code != 0
    assert "line 1" in str(result.exception)
    assert file.read_text() == "nonsense\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("a b",), "the name may have"),
        (("#a",), "the name may have"),
        (("a", "--topics", "x.y"), "topics are"),
        (("a", "--topics", ""), "topics are"),
        (("a", "--topics", "x y"), "topics are"),
    ],
)
def test_names_that_the_file_cannot_hold_are_refused(arguments: tuple[str, ...], why: str) -> None:
    """Wrong usage that says which of the two it is, and no token."""
    result = run(*arguments)

    assert result.exit_code == 2
    assert why in result.stderr
    assert "rmr_" not in result.stdout


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The token would be of no use."""
    result = run("a", "--append", str(tmp_path / "missing" / "tokens"))

    assert result.exit_code != 0
    assert "missing" in str(result.exception)
    assert "rmr_" not in result.stdout
