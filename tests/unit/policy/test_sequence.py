"""The states of a log in a sequencer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora.policy.logs import sequence
from remora.policy.logs.sequence import FIRST_PAUSE_S, LONGEST_PAUSE_S, LOOK_AGAIN_S, UNKNOWN_S, LogPhase, LogState

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["asked", "ahead", "registered", "failed", "unknown", "lost"]),
        st.integers(0, 4),
        st.floats(0, 0.999),
        st.floats(0, 3),
    ),
    max_size=40,
)


@given(EVENTS)
def test_only_the_last_registration_is_served(events: list[tuple[str, int, float, float]]) -> None:
    """Whatever happens in whatever order, a log is served only with the result of its last registration."""
    state, now, begun = LogState(), 0.0, 0
    for event, number, chance, pause in events:
        now += pause
        before = state
        match event:
            case "asked":
                state, begins = sequence.asked(state, now)
                begun += begins
                assert begins == (before.phase is not LogPhase.REGISTERING and state.phase is LogPhase.REGISTERING)
            case "ahead":
                state, looks = sequence.ahead(state, now)
                assert not looks or before.phase is LogPhase.SERVING
            case "registered":
                state, serves = sequence.registered(state, begun - number, 10 + begun - number)
                assert serves == (before.phase is LogPhase.REGISTERING and number == 0)
                assert not serves or state.epoch == 10 + begun
            case "lost":
                state, stops = sequence.lost(state, 10 + begun - number, "gone")
                assert stops == (before.phase is LogPhase.SERVING and number == 0)
            case _:
                state = sequence.failed(state, begun - number, now, "no", chance=chance, unknown=event == "unknown")
                assert (state.phase is LogPhase.REFUSED) == (
                    before.phase is LogPhase.REFUSED or (before.phase is LogPhase.REGISTERING and number == 0)
                )
        assert state.attempt == begun
        assert state.phase is not LogPhase.SERVING or state.epoch == 10 + begun


@given(st.integers(0, 60), st.floats(0, 0.999))
def test_a_refused_log_is_tried_again_after_a_bounded_pause(failures: int, chance: float) -> None:
    """Not before its pause is over, which is between the shortest and the longest one, and then at the next request."""
    state = LogState(LogPhase.REGISTERING, 1, failures)

    state = sequence.failed(state, 1, 0.0, "no", chance=chance)

    assert FIRST_PAUSE_S <= state.until <= LONGEST_PAUSE_S
    assert sequence.asked(state, state.until - 0.001) == (state, False)
    assert sequence.asked(state, state.until)[1]


def test_a_log_that_does_not_exist_is_remembered_for_a_second() -> None:
    """However often its registration has failed."""
    state = LogState(LogPhase.REGISTERING, 1, 20)

    assert sequence.failed(state, 1, 5.0, "none", chance=0.9, unknown=True).until == 5.0 + UNKNOWN_S


def test_a_later_epoch_makes_the_server_look_once_a_second() -> None:
    """However many clients say that they know a later one, and it stops nothing by itself."""
    state = LogState(LogPhase.SERVING, 1, epoch=3)

    state, looks = sequence.ahead(state, 7.0)

    assert looks
    assert state.phase is LogPhase.SERVING
    assert sequence.ahead(state, 7.0 + LOOK_AGAIN_S - 0.01) == (state, False)
    assert sequence.ahead(state, 7.0 + LOOK_AGAIN_S)[1]


def test_the_loss_of_an_earlier_epoch_ends_no_later_one() -> None:
    """Nor does the success or the failure of an earlier registration."""
    serving, registering = LogState(LogPhase.SERVING, 2, epoch=5), LogState(LogPhase.REGISTERING, 2)

    assert sequence.lost(serving, 4, "gone") == (serving, False)
    assert sequence.lost(serving, 5, "gone")[1]
    assert sequence.registered(registering, 1, 4) == (registering, False)
    assert sequence.failed(registering, 1, 0.0, "no", chance=0.5) == registering
