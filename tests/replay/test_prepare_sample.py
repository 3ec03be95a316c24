"""The sample trace that tests and the demo replay."""

from __future__ import annotations

import gzip

from replay.sample import EVENTS, SAMPLE, rows, text


def test_the_sample_is_what_its_script_writes() -> None:
    """The committed sample has exactly the bytes that its script makes, so that nobody edits one of them alone."""
    assert gzip.decompress(SAMPLE.read_bytes()).decode() == text()


def test_the_sample_has_all_that_makes_a_trace_hard() -> None:
    """The sample has overwrites, deletes, ties in time, several buckets, and keys that must be quoted."""
    found = rows()
    keys = {(bucket, key) for _, _, bucket, key, _ in found}

    assert len(found) == EVENTS
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    assert len({row[0] for row in found}) < EVENTS / 2
    assert len(keys) < EVENTS / 2
    assert {row[1] for row in found} == {"PUT", "COPY", "MPU_COMPLETE", "DELETE"}
    assert len({bucket for bucket, _ in keys}) == 3
    assert all(any(mark in key for _, key in keys) for mark in (" ", "+", "%2B", "\n", '"', ",", "潮", "🌊", "//"))
