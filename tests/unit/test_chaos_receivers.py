"""What a chaos run's HTTP receiver notes of the requests that it gets."""

from __future__ import annotations

import random

import pytest

from devkit.chaos import receivers
from devkit.receivers.receiver import Arrival
from devkit.verdicts.verdict import Place

BODY = b'{"Records":[{"eventId":"ev.a.k0.00000001","s3":{"bucket":{"name":"b"},"object":{"key":"k0"}}}]}'


def arrival(number: int) -> Arrival:
    headers = {"remora-shard": "t%201.2", "remora-pos": f"inc:0/{number}", "remora-next": f"inc:0/{number + 1}"}
    return Arrival("POST /events HTTP/1.1", headers, BODY, 0, 0)


async def test_what_is_acknowledged_has_arrived() -> None:
    """Each request that is answered with a success is one record with its place, and no other one is."""
    receiver = receivers.OverHttp(random.Random(1))

    answers = [receiver.plan(arrival(number)) for number in range(2000)]

    taken = [number for number, answer in enumerate(answers) if answer.counts]
    seen = await receiver.read()
    assert [each.place for each in seen] == [Place("t 1.2", "inc", 0, number) for number in taken]
    assert [each.offset for each in seen] == list(range(len(taken)))
    assert {(each.event_id, each.key) for each in seen} == {("ev.a.k0.00000001", b"b/k0")}
    assert 1900 < len(taken) < 2000
    assert {answer.raw[9:12] for answer in answers if not answer.counts} == {b"503", b""}


@pytest.mark.parametrize("share", ["REFUSED_SHARE", "DROPPED_SHARE"])
def test_a_receiver_fails_now_and_then(share: str) -> None:
    """It refuses and cuts, but seldom, so that the run makes progress."""
    assert 0 < getattr(receivers, share) < 0.05
