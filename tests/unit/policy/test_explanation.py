"""What is said of a queue, and what an operator is told to type."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.shard import Origin
from remora.policy.status.condition import Condition, State
from remora.policy.status.explanation import Daemon, LockOwner, QueueFacts, advice
from remora.policy.status.next_command import TopicSubject

SUBJECT = TopicSubject(topic="orders", endpoint="kafka://b:9092")
OWN = QueueFacts(name="orders.3", topic="orders", origin=Origin.REMORA, waiting=7, subject=SUBJECT)
RADOSGW = replace(OWN, origin=Origin.RADOSGW)
HELD = replace(OWN, owner=LockOwner.HERE, owner_name="worker 1", lease_left_s=71)


def says(
    state: str, reason: str = "", since_s: float = 0.0, next_attempt_s: float | None = None, **more: object
) -> QueueFacts:
    """A queue that a worker of this host holds and says this of."""
    condition = Condition(State(state), reason, since_s, next_attempt_s, is_trying=bool(more.pop("is_trying", False)))
    return replace(HELD, daemon=Daemon(condition=condition, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queue", "why", "command"),
    [
        (
            replace(RADOSGW, foreign="amqp endpoints stay with radosgw: ownership.schemes"),
            "radosgw delivers it: amqp",
            "remora check-config",
        ),
        (
            replace(OWN, foreign="its topic has no push-endpoint"),
            "nothing delivers it: its",
            "remora topic show orders",
        ),
        (replace(RADOSGW, is_released=True), "released to radosgw", "remora shard claim orders.3"),
        (
            replace(RADOSGW, held="held: no room"),
            "its topic is held: no room",
            "remora topic resume orders",
        ),
        (replace(RADOSGW, held="held", waiting=0), "its topic is held", "remora topic resume orders"),
        (
            replace(RADOSGW, owner=LockOwner.GATEWAY, owner_name="client.7", lease_left_s=12),
            "a radosgw delivers it: the lock of client.7 ends in 12.0s",
            "remora shard claim orders.3",
        ),
        (replace(OWN, waiting=0), "no entry waits", ""),
        (
            replace(RADOSGW, is_released=True, waiting=0, full="full by a leak of 127 MB"),
            "full by a leak of 127 MB; 0 wait in it",
            "remora shard heal orders.3",
        ),
        (replace(OWN, waiting=0, reservations=2), "of 2 reservations no commit has come", ""),
        (replace(HELD, waiting=0, daemon=Daemon(condition=Condition(State.STOPPED))), "no entry waits", ""),
        (replace(OWN, daemon=None), "no worker holds it, and no daemon answers", "systemctl status remora"),
        (
            replace(OWN, owner=LockOwner.LAPSED, owner_name="worker 9", daemon=None),
            "no daemon answers on this host; the lock of worker 9 has run out",
            "systemctl status remora",
        ),
        (replace(OWN, daemon=Daemon(is_draining=True)), "this host is drained", "remora drain --undo"),
        (replace(OWN, daemon=Daemon(not_held="its file is damaged")), "holds it: its file is damaged", "remora status"),
        (
            replace(OWN, owner=LockOwner.SILENT, owner_name="w of h", lease_left_s=80, daemon=None),
            "a worker of this host holds it, and its daemon does not answer; its lock ends in 1m20s",
            "systemctl status remora",
        ),
        (
            replace(OWN, owner=LockOwner.SILENT, owner_name="w of h", lease_left_s=80),
            "a worker of this host holds it and does not answer: w of h; its lock ends in 1m20s",
            "remora status",
        ),
        (
            replace(OWN, owner=LockOwner.ELSEWHERE, owner_name="w of h", lease_left_s=80, daemon=None),
            "w of h holds it, and no daemon answers on this host; its lock ends in 1m20s",
            "remora status",
        ),
        (
            replace(OWN, owner=LockOwner.ELSEWHERE, owner_name="w of h"),
            "a worker of another host holds it: w of h",
            "remora balance show",
        ),
        (replace(OWN, owner=LockOwner.COMMAND, owner_name="remora/claim/1"), "a command holds it for a moment", ""),
        (says("retrying", "refused", since_s=61.7), "retrying for 1m01s: refused", "remora topic test orders"),
        (
            says("retrying", "refused", since_s=61.7, next_attempt_s=4.2),
            "retrying for 1m01s, the next attempt in 4.2s or sooner: refused",
            "remora topic test orders",
        ),
        (
            says("retrying", "refused", since_s=61.7, next_attempt_s=0.0),
            "retrying for 1m01s, the next attempt now: refused",
            "remora topic test orders",
        ),
        (
            says("retrying", "refused", since_s=61.7, is_trying=True),
            "retrying for 1m01s, trying now: refused",
            "remora topic test orders",
        ),
        (
            says("quarantined", "another tries it", destination="kafka://b:9092", last_failure="no answer"),
            "a trickle only: another tries it; the last attempt failed with: no answer",
            "remora quarantine release kafka://b:9092",
        ),
        (
            says("stopped", "b: the broker refused user and password", since_s=273.0, next_attempt_s=4.2),
            "stopped for 4m33s, the next attempt in 4.2s or sooner; an operator must mend the cause: b: the broker",
            "remora topic set orders --password-file FILE",
        ),
        (
            says("stopped", "wrong login", since_s=273.0, is_trying=True),
            "stopped for 4m33s, trying now; an operator must mend the cause: wrong login",
            "remora topic test orders",
        ),
        (
            says("quarantined", "it refuses", destination="kafka://b:9092"),
            "in quarantine and gets a trickle only: it refuses",
            "remora quarantine release kafka://b:9092",
        ),
        (says("held", "held by an operator"), "its topic is held by an operator", "remora topic resume orders"),
        (says("shaped", "scope tenant"), "waits for credit to send: scope tenant", "remora shaping show"),
        (
            says("waiting", "waits for t.3 of generation 0: 812 entries"),
            "it waits for t.3 of generation 0: 812 entries; those may be earlier ones of its keys",
            "remora status",
        ),
        (says("starting"), "a worker has just taken it", ""),
        (says("finishing"), "finishes what is in flight", ""),
        (says("idle"), "7 entries wait since a moment ago", ""),
        (says("delivering"), "it is being delivered; 7 entries wait", ""),
        (says("delivering", progress_age_s=40.0), "nothing was acknowledged for 40.0s", "remora status"),
    ],
)
def test_each_situation_has_its_sentence_and_command(queue: QueueFacts, why: str, command: str) -> None:
    """The sentence names the cause, and the command is the one that mends it or shows more."""
    found = advice(queue)

    assert why in found.why
    assert found.command == command


def test_a_hold_is_said_of_the_topic_without_the_entries_of_one_queue() -> None:
    """Queues of a held topic share a line, in which the number of one of them would be taken for that of all."""
    assert advice(replace(OWN, held="held by an operator", waiting=3)).why == "its topic is held by an operator"


@pytest.mark.parametrize("state", ["retrying", "stopped", "delivering", "idle"])
def test_queues_that_differ_in_numbers_only_have_one_cause(state: str) -> None:
    """How long, how many and when is left out of what says whether two queues stand in one line."""
    first, second = (
        advice(replace(says(state, reason, **times), waiting=waiting))
        for reason, waiting, times in (
            ("refused", 3, {"since_s": 3.0, "next_attempt_s": 1.0, "progress_age_s": 20.0}),
            ("refused", 9, {"since_s": 9.0, "next_attempt_s": 7.0, "progress_age_s": 90.0}),
        )
    )

    assert first.why != second.why
    assert first.cause == second.cause != ""


def test_a_name_is_quoted_for_the_shell() -> None:
    """A command can be typed as it stands, whatever the topic is called."""
    assert advice(replace(OWN, foreign="why", topic="a b;$(c)")).command == "remora topic show 'a b;$(c)'"


@given(
    st.builds(
        QueueFacts,
        name=st.just("q"),
        topic=st.just("t"),
        origin=st.sampled_from(Origin),
        waiting=st.integers(0, 3),
        subject=st.just(SUBJECT),
        reservations=st.integers(0, 3),
        foreign=st.none() | st.just("foreign"),
        is_released=st.booleans(),
        owner=st.sampled_from(LockOwner),
        owner_name=st.just("o"),
        daemon=st.none() | st.builds(Daemon, st.booleans(), st.none() | st.builds(Condition, st.sampled_from(State))),
    )
)
def test_there_is_always_one_sentence(queue: QueueFacts) -> None:
    """It has no full stop and no line break, so that it stands in a line; and what waits is never said to be done."""
    found = advice(queue)

    assert found.why
    assert "\n" not in found.why
    assert not found.why.endswith(".")
    assert queue.waiting == 0 or "no entry waits" not in found.why
