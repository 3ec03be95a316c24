"""Limits of an entry: age and attempts, with radosgw's meaning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora.model.topic import Target, Topic
from remora.policy.delivery.lifetime import LifetimeLimits

seconds = st.integers(1, 10_000_000)
times_ns = st.integers(10**18, 2 * 10**18)


def topic(time_to_live_s: int | None, max_retries: int | None, retry_sleep_s: int | None) -> Topic:
    return Topic(
        "t", "", "t", Target("kafka://b", "", "t"),
        time_to_live_s=time_to_live_s, max_retries=max_retries, retry_sleep_s=retry_sleep_s,
    )  # fmt: skip


@given(st.builds(LifetimeLimits, seconds, seconds, seconds), *[st.none() | st.integers(0, 99)] * 3)
def test_what_a_topic_leaves_open(
    default: LifetimeLimits, ttl: int | None, retries: int | None, sleep: int | None
) -> None:
    """A topic's own limits count, an explicit 0 too; the default counts only where there is none."""
    limits = default.of(topic(ttl, retries, sleep))

    assert limits.time_to_live_s == (default.time_to_live_s if ttl is None else ttl)
    assert limits.max_retries == (default.max_retries if retries is None else retries)
    assert limits.retry_sleep_s == (default.retry_sleep_s if sleep is None else sleep)


@given(seconds, times_ns, times_ns)
def test_expiry_is_one_question(time_to_live_s: int, created_ns: int, now_ns: int) -> None:
    """An entry has outlived its time exactly when it is older than that, and then it expires in less than nothing."""
    limits = LifetimeLimits(time_to_live_s=time_to_live_s)

    expired = created_ns < limits.expires_before_ns(now_ns)

    assert expired == (now_ns - created_ns > time_to_live_s * 10**9)
    assert (limits.expires_in_s(created_ns, now_ns) < 0) == expired


@given(times_ns, times_ns)
def test_for_ever(created_ns: int, now_ns: int) -> None:
    """Without a time to live nothing expires, however old it is."""
    assert created_ns >= LifetimeLimits(max_retries=1).expires_before_ns(now_ns)
    assert LifetimeLimits(max_retries=1).expires_in_s(created_ns, now_ns) == float("inf")


@given(st.integers(1, 1000))
def test_retries_are_attempts_less_one(max_retries: int) -> None:
    """max_retries = n allows n + 1 attempts; 0 allows any number."""
    limits = LifetimeLimits(max_retries=max_retries)

    assert not limits.is_exhausted(max_retries)
    assert limits.is_exhausted(max_retries + 1)
    assert not LifetimeLimits().is_exhausted(max_retries * 1000)
