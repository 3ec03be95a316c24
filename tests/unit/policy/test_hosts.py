"""Hosts and workers in words."""

from __future__ import annotations

import pytest

from remora.model.member import Member
from remora.policy.ownership.hosts import holder_text, host_text, names_of

ID = "0123456789abcdef"
NAMES = names_of([Member(f"remora/{ID}/b/w", ID, hostname="db7"), Member("remora/old/b/w", "old")])


@pytest.mark.parametrize(("host", "text"), [(ID, "db7 (01234567)"), ("old", "old"), ("unknown", "unknown")])
def test_a_host_is_shown_by_its_name(host: str, text: str) -> None:
    """The id stands behind the name, and alone where a worker of an earlier release announced none."""
    assert host_text(host, NAMES) == text


@pytest.mark.parametrize(
    ("cookie", "text"),
    [
        (f"remora/{ID}/boot/5f1c2d3e-1111", "worker 5f1c2d3e on db7 (01234567)"),
        ("remora/claim/h/0/1/u", "radosgw or other client.7 (remora/claim/h/0/1/u)"),
        ("gatewaycookie016", "radosgw or other client.7 (gatewaycookie016)"),
    ],
)
def test_a_holder_is_shown_by_its_host(cookie: str, text: str) -> None:
    """A worker has its host's name, anybody else what stands in the lock."""
    assert holder_text("client.7", cookie, NAMES) == text
