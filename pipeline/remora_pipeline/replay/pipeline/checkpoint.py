"""What a batch reads, by the checkpoint that Spark writes before it runs the batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.kafka_source import Offsets

_MOST_NAMED = 3


def offsets_of(checkpoint: Path, topic: str, batch: int, beginnings: dict[int, int]) -> Offsets:
    """The offsets of a batch. A partition that no earlier batch knew begins where Kafka has it begin.

    Raises ReplayError for a checkpoint that is not as Spark writes it.
    """
    ends = _ends(checkpoint / "offsets" / str(batch), topic)
    before = checkpoint / "offsets" / str(batch - 1)
    begun = _ends(before if before.exists() else checkpoint / "sources" / "0" / "0", topic)
    return {number: (begun.get(number, beginnings.get(number, 0)), end) for number, end in sorted(ends.items())}


def reached(checkpoint: Path, topic: str, batch: int) -> dict[int, int]:
    """The offset behind the last one of each partition up to a batch. Raises ReplayError as `offsets_of` does."""
    return _ends(checkpoint / "offsets" / str(batch), topic)


def gone(landed: Mapping[int, int], first: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """The offsets of each partition that have not landed and that Kafka no longer has; of those that lack any."""
    return {number: (end, first[number]) for number, end in landed.items() if end < first.get(number, end)}


def refuse_gone(topic: str, landed: Mapping[int, int], first: Mapping[int, int]) -> None:
    """Raise ReplayRefused where records are gone that have not landed."""
    if lost := gone(landed, first):
        number, (end, begin) = min(lost.items())
        raise ReplayRefused(
            f"topic {topic}: records that have not landed are gone; what is left lands with --skip-lost:"
            f" partition {number} offsets {end} to {begin - 1}"
        )


def refuse_cut(topic: str, landed: Mapping[int, int], behind: Mapping[int, int]) -> None:
    """Raise ReplayRefused where a partition ends before what of it has landed: what comes next would not land.

    `behind` are the offsets behind the last record of any transaction, open ones included.
    """
    if short := {number: end for number, end in landed.items() if number in behind and behind[number] < end}:
        number, end = min(short.items())
        raise ReplayRefused(
            f"topic {topic}: partition {number} ends with offset {behind[number]}, and all before {end} has landed: its"
            f" brokers have lost records, or it is another topic; with --skip-lost what comes from {end} on lands"
        )


def named(offsets: Offsets) -> str:
    """The offsets in words, of the first partitions that have any: `partition 0 offsets 5 to 9`."""
    some = {number: span for number, span in offsets.items() if span[0] < span[1]}
    told = [f"partition {number} offsets {first} to {end - 1}" for number, (first, end) in some.items()]
    more = [f"{len(told) - _MOST_NAMED} partitions more"] if len(told) > _MOST_NAMED else []
    return ", ".join([*told[:_MOST_NAMED], *more]) or "no new offsets"


def _ends(path: Path, topic: str) -> dict[int, int]:
    """The last line of a file of offsets: `{"topic":{"0":12}}`."""
    try:
        told = msgspec.json.decode(path.read_bytes().splitlines()[-1], type=dict[str, dict[int, int]])
        return told[topic]
    except (OSError, LookupError, ValueError, RecursionError) as exc:
        raise ReplayError(f"{path}: is not as Spark writes it: {exc}") from exc
