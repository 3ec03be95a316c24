"""The proxy of chaos runs knows a request by its head, however the stream is cut."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.chaos.network import PRODUCE, Frames

FETCH = 1


def request(kind: int, client: str, body: bytes) -> bytes:
    """A request as Kafka's clients frame it."""
    name = client.encode()
    framed = struct.pack(">hhih", kind, 7, 1, len(name)) + name + body
    return struct.pack(">i", len(framed)) + framed


@pytest.mark.guarantee("chaos-runs")
@given(
    sent=st.lists(
        st.tuples(st.sampled_from([PRODUCE, FETCH]), st.sampled_from(["a", "chaos-1"]), st.binary(max_size=300))
    ),
    cuts=st.lists(st.integers(1, 60), min_size=1),
)
def test_every_request_is_seen_once(sent: list[tuple[int, str, bytes]], cuts: list[int]) -> None:
    """Kind and client of each request come out in order, whatever pieces the stream arrives in."""
    stream = b"".join(request(*each) for each in sent)
    frames, found, turn = Frames(), [], 0

    while stream:
        size = cuts[turn % len(cuts)]
        found += list(frames.feed(stream[:size]))
        stream, turn = stream[size:], turn + 1

    assert found == [(kind, client) for kind, client, _ in sent]
