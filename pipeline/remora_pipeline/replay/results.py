"""What a verification found: `verdict.json` for people and programs, `series.json` for pictures. Needs no Spark."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PASS: Final = "PASS"  # noqa: S105  # a verdict
FAIL: Final = "FAIL"
INVALID: Final = "INVALID"


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record or event that a count is about; whatever is known of it."""

    bucket: str | None = None
    key: str | None = None
    seq: int | None = None
    kseq: int | None = None
    partition: int | None = None
    offset: int | None = None
    shard: str | None = None
    position: str | None = None
    detail: str | None = None


class Percentiles(msgspec.Struct, frozen=True):
    """Exact percentiles of `samples` samples, in microseconds. `clock` says what was subtracted from what."""

    clock: str
    samples: int
    p50_us: int
    p90_us: int
    p99_us: int
    p999_us: int
    max_us: int


class TopicVerdict(msgspec.Struct, frozen=True):
    """What is true of a topic between fixed offsets; the same offsets give the same one.

    `counts` always has:

    * in_kafka: records that were judged, = distinct + duplicates + altered + foreign + malformed;
    * outside: records of another time, which were read only for what they tell of their neighbours;
    * distinct, duplicates (of these `resent`: stored twice since their request was sent twice), foreign, malformed;
    * undecided: of a run events that were acked, without one records, that lie behind a transaction that is open;
    * inversions, keys_inverted, max_depth, keys_in_several_partitions, keys_misplaced (in one that is not their own),
      keys_in_several_shards (of one topic);
    * chain_gaps, chain_gaps_explained (a part of them), unchained (records that tell no position), ends_untold (first
      records of shards that leave it open where the shards before theirs ended);
    * numbered (records that were read and tell a number of their topic), number_gaps, number_gaps_explained (a part of
      them), numbers_repeated (of several entries), numbers_torn and numbers_inverted (entries).

    Where there is a journal also: in_trace; offered (those that had their turn), sent, acked, rejected, unknown,
    dropped; limited and limited_us (how often requests waited for a rate limit, and for how long together); lost
    (acked, and not there), out_of_window (acked, and there with a time stamp outside the window), ghosts (rejected or
    never sent, and there: a part of distinct), altered (a record that names an event of this run and disagrees with
    it), positions_inverted (records of a queue that came behind one with a later position, into one partition),
    final_state_wrong (keys). Of a run through the ingest API, which knows what each record has: without_position,
    without_event_id, without_number, of_other_topics (records). Without a journal: sequencer_inversions, by the
    gateways' clocks.

    `examples` has up to 20 for each of them that is about something wrong. `offsets` is for each partition the first
    and the one behind the last that was read, and `undecided` the same of what lies behind open transactions.
    `latencies` are lateness (sent - due, without waits for limits), service (done - sent), response (done - due) and
    to_log (Kafka's time stamp - due); with speed 0 nothing is due at a time: what is sent counts as due then and there
    is no lateness; without a journal there is only age (Kafka's time stamp - the event's time). `caveats` name what was
    not compared, because its right value is unknown. `loop` is that of the run (loop.ReplayLoop), and `requests` how
    many it had under way at most; None where nobody knows.
    """

    verdict: Literal["PASS", "FAIL", "INVALID"]
    reasons: tuple[str, ...]
    topic: str
    run_id: str | None
    isolation: str
    timestamp_type: str
    offsets: dict[str, tuple[int, int]]
    options: dict[str, str | int | float | bool | None]
    counts: dict[str, int]
    examples: dict[str, tuple[Example, ...]]
    latencies: dict[str, Percentiles]
    caveats: tuple[str, ...] = ()
    undecided: dict[str, tuple[int, int]] = {}
    loop: Literal["open", "closed"] | None = None
    requests: int | None = None


class Interval(msgspec.Struct, frozen=True):
    """What fell into one interval, which begins `begins_us` after the origin.

    `due`, `acked` and `in_log` count events by the time that each of these happened (the first record in the log); the
    backlogs are as the interval ends. Latencies are of events that were due in it: p50 and p99 (within 0.3 %) and the
    largest, in microseconds; None without samples. Without a journal there is only `in_log`.
    """

    t_us: int
    due: int
    acked: int
    in_log: int
    backlog_acked: int
    backlog_in_log: int
    response: tuple[int, int, int] | None
    to_log: tuple[int, int, int] | None
    lateness: tuple[int, int, int] | None


class TimelineMark(msgspec.Struct, frozen=True):
    """An inversion (with its depth) or a duplicate (with depth 0), at the time of its record in the log."""

    t_us: int
    kind: Literal["inversion", "duplicate"]
    depth: int


class KeyLatency(msgspec.Struct, frozen=True):
    """A key with many events, and the p99 of their time to the log."""

    bucket: str
    key: str
    events: int
    p99_us: int


class Series(msgspec.Struct, frozen=True):
    """What the report draws; times are microseconds after `origin_us`, the beginning of the replay.

    `tail` is for each latency the complementary distribution: (microseconds, share of samples above), at most 400
    points. `marks` are the first 1,000 of each kind. `density` counts events by interval of due time and by class of
    time to the log: (interval, class, events); class c reaches from 10^(c/20) to 10^((c+1)/20) microseconds, and class
    0 has what is below too. Without a journal the times are those of the log, from the first record on, and the
    density is that of the age.
    """

    origin_us: int
    interval_us: int
    intervals: tuple[Interval, ...]
    tail: dict[str, tuple[tuple[int, float], ...]]
    density: tuple[tuple[int, int, int], ...]
    marks: tuple[TimelineMark, ...]
    partitions: dict[str, int]
    hottest: tuple[KeyLatency, ...]
