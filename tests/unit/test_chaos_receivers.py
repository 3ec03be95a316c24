"""What a chaos run's HTTP receiver notes of the requests that it gets."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from devkit.chaos import receivers
from devkit.receivers.receiver import OK, Arrival
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


def event(number: int) -> Arrival:
    """The arrival of an event that has an id of its own."""
    return replace(arrival(number), body=BODY.replace(b"k0.00000001", b"k0.%08d" % number))


def test_what_is_refused_for_good_is_never_taken() -> None:
    """It refuses as many records as it is told, none that it had taken before, and these each time with one answer."""
    receiver = receivers.OverHttp(random.Random(1))
    old = [number for number in range(300) if receiver.plan(event(number)).counts]
    before = receiver.has_refused

    receiver.refuse(7)
    for _ in range(3):
        assert all(receiver.plan(event(number)).raw[9:12] in (b"204", b"503", b"") for number in old)
    assert (before, receiver.has_refused) == (True, False)
    answers: dict[int, set[bytes]] = {number: set() for number in range(300, 900)}
    for _ in range(5):
        for number, seen in answers.items():
            seen.add(receiver.plan(event(number)).raw[9:12])

    assert receiver.has_refused
    refused = {f"ev.a.k0.{number:08}" for number, seen in answers.items() if seen & {b"400", b"413", b"422"}}
    assert refused == {*receiver.refused}
    assert len(refused) == 7
    assert {len(seen - {b"503", b""}) for seen in answers.values()} == {1}
    assert not refused & {each.event_id for each in receiver._seen}


async def test_a_late_answer_has_arrived() -> None:
    """While it answers late, some of what it takes is answered later than a daemon waits, and all has arrived."""
    receiver = receivers.OverHttp(random.Random(1))
    receiver.is_late = True

    answers = [receiver.plan(event(number)) for number in range(200)]

    late = [each for each in answers if each.until is not None]
    assert 10 < len(late) < 100
    assert all(each.counts and each.raw == OK.raw for each in late)
    assert len(await receiver.read()) == len([each for each in answers if each.counts])


@pytest.mark.parametrize("share", ["REFUSED_SHARE", "DROPPED_SHARE"])
def test_a_receiver_fails_now_and_then(share: str) -> None:
    """It refuses and cuts, but seldom, so that the run makes progress."""
    assert 0 < getattr(receivers, share) < 0.05
