"""What patterns of scopes and principals fit: names with stars, domains, networks, and lists of brokers."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.traffic import Scope, ScopeKind
from remora.policy.classes import BehindFrom, fits_destination, groups_of, is_like


@given(st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_a_star_stands_for_any_text(pattern: str, key: str) -> None:
    """Any number of stars, anywhere, as in a shell's patterns of names."""
    assert is_like(pattern, key) == fnmatchcase(key, pattern)


@pytest.mark.parametrize(
    ("match", "destination", "expected"),
    [
        (["*"], "kafka-1:9092", True),
        (["kafka-1:9092"], "kafka-1:9092", True),
        (["kafka-1"], "kafka-1:9092", True),
        (["kafka-1"], "kafka-10:9092", False),
        (["*.eu.example.com"], "k1.eu.example.com:9092", True),
        (["*.eu.example.com"], "k1.us.example.com:9092", False),
        (["*.eu.example.com"], "k1.eu.example.com.evil.org:9092", False),
        (["*.eu.example.com:9093"], "k1.eu.example.com:9092", False),
        (["k*.eu.*.com"], "k1.eu.example.com", True),
        (["*.eu.example.com"], "k1.eu.example.com:9092,k2.eu.example.com:9092", True),
        (["*.eu.example.com"], "k1.eu.example.com:9092,k1.us.example.com:9092", False),
        (["eu-*"], "eu-1:9092,us-1:9092", False),
        (["eu-*", "us-1"], "eu-1:9092,us-1:9092", True),
        (["eu-1:9092,us-1:9092"], "eu-1:9092,us-1:9092", True),
        (["10.0.0.0/8"], "10.1.2.3:9092", True),
        (["10.0.0.0/8"], "11.1.2.3:9092", False),
        (["10.0.0.0/8"], "10.1.2.3:9092,10.1.2.4:9092", True),
        (["10.0.0.0/8"], "broker:9092", False),
        (["fd00::/8"], "[fd00::1]:9092", True),
        (["fd00::/8"], "[fe80::1]:9092", False),
        (["10.0.0.7/8"], "10.1.2.3", True),
    ],
)
def test_a_destination_fits_where_all_of_its_brokers_do(match: list[str], destination: str, expected: bool) -> None:
    """By name with or without the port, by domain, by an address in a network; a list also as a whole."""
    assert fits_destination(match, destination) is expected


def test_a_destination_that_fits_in_part_belongs_to_the_next_scope() -> None:
    """A list of brokers is in one group at most: that of the first scope in which all of them are."""
    scopes = [
        Scope("eu", ScopeKind.DESTINATION, ("*.eu.example.com",), False, None),
        Scope("others", ScopeKind.DESTINATION, ("*",), True, None),
    ]

    def group(destination: str) -> tuple[str, ...]:
        return groups_of(scopes, label="t", tenant="", destination=destination)

    assert group("a.eu.example.com:9092,b.eu.example.com:9092") == ("eu",)
    assert group("a.eu.example.com:9092,b.us.example.com:9092") == (
        "others/a.eu.example.com:9092,b.us.example.com:9092",
    )


@pytest.mark.parametrize(
    ("truncated", "newest_age_s", "waiting", "expected"),
    [
        (True, 5.1, 0, True),
        (True, 5.0, 20, False),
        (True, 0.0, 21, True),
        (True, None, 21, True),
        (True, None, 20, False),
        (False, 900.0, 1_000_000, False),
    ],
)
def test_behind_by_age_or_by_entries(truncated: bool, newest_age_s: float | None, waiting: int, expected: bool) -> None:
    """A shard with more behind its listing has a backlog from an age on and from a number on, whichever comes first."""
    behind = BehindFrom(5.0, 20)

    assert behind.has_backlog(truncated=truncated, newest_age_s=newest_age_s, waiting=waiting) == expected
