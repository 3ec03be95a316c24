"""Which records of a topic are the next batch."""

from __future__ import annotations

from collections.abc import Mapping

from remora_pipeline.replay.kafka_source import Offsets


def next_offsets(landed: Mapping[int, int], first: Mapping[int, int], ends: Mapping[int, int], most: int) -> Offsets:
    """What has not landed, `most` offsets at most: divided as the partitions have them. Partitions without any are left
    out; one that has any gets at least one."""
    begun = {number: max(landed.get(number, 0), first.get(number, 0)) for number in ends}
    waiting = {number: ends[number] - begin for number, begin in begun.items() if ends[number] > begin}
    whole = sum(waiting.values())
    share = {number: each if whole <= most else max(1, each * most // whole) for number, each in waiting.items()}
    return {number: (begun[number], begun[number] + count) for number, count in sorted(share.items())}
