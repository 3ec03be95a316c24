"""How many lanes a receiver's answers bring, and take back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.policy.delivery.lane_steps import AGAIN_S, CALM_S, GROUPS, STEPS, LaneSteps


class Posts:
    """A receiver with a shard's backlog before it: as many requests are under way as may, round by round."""

    def __init__(self, waiting: int = 1 << 62) -> None:
        self.steps = LaneSteps()
        self.now = 0.0
        self._waiting = waiting

    def round(self, seconds: float, refused: float = 0.0) -> tuple[int, int]:
        """All that may be under way begin, and are answered after so long, a part of them with a refusal."""
        count = min(self.steps.lanes, self._waiting)
        for under_way in range(1, count + 1):
            self.steps.begun(under_way)
        self.now += seconds + 1e-6
        for place in range(count):
            if int((place + 1) * refused) > int(place * refused):
                self.steps.refused(self.now)
            else:
                self.steps.acked(seconds, self.now)
        return self.steps.lanes, self.steps.groups

    def lanes(self, rounds: Sequence[float]) -> list[int]:
        """The lanes after each of these rounds, by how long their answers take."""
        return [self.round(seconds)[0] for seconds in rounds]


def at_the_top(seconds: float = 0.5) -> Posts:
    posts = Posts()
    posts.lanes([seconds] * 3)
    return posts


def test_a_new_receiver() -> None:
    """It gets 64 at a time, and few keys share a lane."""
    assert (LaneSteps().lanes, LaneSteps().groups) == (64, GROUPS)


@pytest.mark.parametrize(
    ("rounds", "lanes"),
    [
        ([0.5] * 4, [256, 1024, 1024, 1024]),
        ([0.031] * 3, [256, 1024, 1024]),
        ([5.0] * 3, [256, 1024, 1024]),
        ([0.5, 0.7, 0.7], [256, 1024, 1024]),  # a little slower
        ([0.5, 0.8, 0.8], [256, 256, 256]),  # slower with more: no further step
        ([0.5, 0.8, 0.5], [256, 256, 1024]),  # for a moment only
        ([0.5, 1.6, 0.5, 0.5], [256, 64, 64, 64]),  # in vain: taken back, and not tried again soon
        ([0.5, 0.5, 1.6, 0.6, 0.6], [256, 1024, 256, 256, 256]),
        ([0.5, 0.5, 1.6, 1.6, 1.6], [256, 1024, 256, 64, 64]),
        ([0.5, 0.5, 2.0, 8.0, 32.0], [256, 1024, 256, 64, 64]),  # it grows and grows
        ([0.5] * 5 + [1.0] * 3, [256, 1024, 1024, 1024, 1024, 1024, 1024, 1024]),  # slower of its own
        ([0.5] * 9 + [1.6, 5.0, 16.0, 50.0], [256, *[1024] * 8, 256, 64, 64, 64]),
        ([0.009] * 3, [64, 64, 64]),
        ([0.029] * 3, [64, 64, 64]),
    ],
)
def test_answers(rounds: Sequence[float], lanes: Sequence[int]) -> None:
    """Each round of answers that are as quick as before brings the next step; growing ones take it back."""
    assert Posts().lanes(rounds) == list(lanes)


@pytest.mark.parametrize(
    ("rounds", "groups"),
    [
        ([0.029, 0.029], [64, 64]),  # quick enough at first
        ([0.5, 0.02, 0.011], [GROUPS] * 3),  # it is known to be slow
        ([0.5, 0.009], [GROUPS, 64]),
        ([0.001, 0.031, 0.031, 0.031], [64, GROUPS, GROUPS, GROUPS]),
        ([0.001, 0.031, 0.05, 0.05], [64, GROUPS, 64, 64]),  # finer lanes cost this host's time
    ],
)
def test_groups(rounds: Sequence[float], groups: Sequence[int]) -> None:
    """Keys of a quick receiver are divided into as many lanes as are under way, those of a slow one finer."""
    posts = Posts()

    assert [posts.round(seconds)[1] for seconds in rounds] == list(groups)


def test_finer_lanes_are_a_step_of_their_own() -> None:
    """A receiver that was quick gets no more at a time before finer lanes were tried."""
    posts = Posts()

    assert posts.lanes([0.001, 0.5, 0.5, 0.5]) == [64, 64, 256, 1024]


@pytest.mark.parametrize("waiting", [1, 32, 55])
def test_without_a_backlog(waiting: int) -> None:
    """Where fewer are under way than may be, slow answers bring nothing."""
    posts = Posts(waiting)

    assert posts.lanes([0.5] * 20) == [64] * 20


def test_idle() -> None:
    """Hours without a request change nothing, and what answers then is compared with what was."""
    posts = at_the_top()
    posts.now += 36_000

    assert posts.lanes([0.5, 1.6]) == [1024, 256]


@pytest.mark.parametrize(
    ("refused", "lanes"),
    [(0.01, [1024] * 10), (0.02, [1024] * 10), (0.06, [64] * 6 + [256] * 4), (0.5, [64] * 6 + [256] * 4)],
)
def test_refusals_at_the_top(refused: float, lanes: Sequence[int]) -> None:
    """A receiver that refuses more than one of twenty gets 64 at a time at once, and after a while the step below at
    most."""
    posts = at_the_top()

    assert [posts.round(0.5, refused)[0], *posts.lanes([0.5] * 9)] == list(lanes)


@pytest.mark.parametrize("refused", [0.1, 0.5, 1.0])
def test_refusals_at_the_bottom(refused: float) -> None:
    """Nor does it get a first step."""
    posts = Posts()

    assert [posts.round(0.5, refused)[0] for _ in range(5)] == [64] * 5


def before_a_limit(most: int) -> Callable[[Posts], int]:
    """A receiver that refuses what is more than so many at once."""
    return lambda posts: posts.round(0.5, max(0.0, 1 - most / posts.steps.lanes))[0]


@pytest.mark.parametrize(
    ("most", "usual"),
    [(40, {64}), (100, {64}), (200, {64}), (600, {256}), (2000, {1024})],
)
def test_a_limit_of_requests_at_once(most: int, usual: set[int]) -> None:
    """Before one that refuses more than a number, the step that it takes is found, and seldom the next."""
    posts, post = Posts(), before_a_limit(most)
    for _ in range(6):
        post(posts)

    lanes = [post(posts) for _ in range(120)]

    assert {each for each in lanes if lanes.count(each) > 20} == usual
    assert sum(each not in usual for each in lanes) <= 4 * (120 * 0.5 / AGAIN_S + 1)


@pytest.mark.parametrize(("steps", "then"), [(0, [256, 1024]), (1, [64, 64]), (2, [256, 256])])
def test_a_failure(steps: int, then: Sequence[int]) -> None:
    """After requests were given up it begins with 64, and not all steps are taken again soon; many tell it at once."""
    posts = Posts()
    posts.lanes([0.5] * steps)
    for _ in range(64):
        posts.steps.failed(posts.now)
    assert posts.steps.lanes == 64

    posts.now += CALM_S
    assert posts.lanes([0.5, 0.5]) == list(then)


@pytest.mark.parametrize(("later_s", "lanes"), [(AGAIN_S - 2, 64), (AGAIN_S, 256)])
def test_a_step_is_tried_again(later_s: float, lanes: int) -> None:
    """What was taken back is tried again after half a minute."""
    posts = Posts()
    posts.lanes([0.5])
    posts.steps.failed(posts.now)
    posts.now += later_s

    assert posts.lanes([0.5]) == [lanes]


def test_requests_that_began_before_a_step_show_nothing_of_it() -> None:
    """However many are acknowledged late, the next step waits for those that began behind the last one."""
    posts = Posts()
    posts.lanes([0.5])
    for under_way in range(1, 257):
        posts.steps.begun(under_way)
    for _ in range(1000):
        posts.steps.acked(0.5, posts.now + 0.4)

    assert posts.steps.lanes == 256


def test_a_receiver_that_became_slower_gets_all_lanes_in_the_end() -> None:
    """One that takes twice as long for good is no overloaded one after a minute."""
    posts = Posts()
    posts.lanes([0.5])

    lanes = posts.lanes([1.0] * 60)

    assert lanes[:20] == [256] * 20
    assert lanes[-1] == 1024


def former(lanes: int, mean_s: float) -> int:
    """How many lanes had one under way once this rule was asked: one step each time, and never back."""
    return next((each for each, _ in STEPS if each > lanes), lanes) if mean_s > 0.03 else lanes


ROUND = st.tuples(st.sampled_from([0.001, 0.02, 0.5, 0.7, 1.6, 9.0]), st.sampled_from([0, 0.01, 0.1, 1]), st.booleans())


@settings(max_examples=40)
@given(st.lists(ROUND, max_size=12))
def test_never_more_than_one_step_a_round(rounds: list[tuple[float, float, bool]]) -> None:
    """Whatever happens, lanes stay within the steps, and a backlog's round brings no more than it formerly did."""
    posts, before = Posts(), 64
    for seconds, refused, fails in rounds:
        lanes, groups = posts.round(seconds, refused)
        if fails:
            posts.steps.failed(posts.now)
            lanes = posts.steps.lanes

        assert (posts.steps.lanes, groups) in STEPS
        assert lanes <= former(before, seconds)
        before = lanes
