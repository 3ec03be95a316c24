"""How far the shards of a topic were read, as it is kept; and positions as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from remora.model.errors import RemoraError

Headers = Sequence[tuple[str, bytes]]
"""Headers of a record, as aiokafka and confluent-kafka have them."""

VERSION = 1
_TURN_BITS = 64
_PLACE = (1 << _TURN_BITS) - 1
_MOST_DIGITS = len(str(_PLACE))
_MOST_SHOWN = 200


class BadHeader(RemoraError):
    """A record's header is not what remora writes; the message names it."""


class CheckpointRefused(RemoraError):
    """Bytes that were given as a checkpoint are none, or of a version that is not known."""


class QueueProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one incarnation of a shard was read. Positions are texts, `turn/place`.

    `read` has by partition the position behind the last new record; `whole` the one up to which nothing is missing,
    empty before the first record; `ahead` has what was read behind that, each position with the next one.
    """

    shard: str
    incarnation: str
    read: Mapping[str, str] = {}
    whole: str = ""
    ahead: Mapping[str, str] = {}
    unjudged: int = 0


class KeptProgress(msgspec.Struct, frozen=True):
    """A checkpoint as it is kept."""

    version: int
    queues: tuple[QueueProgress, ...]


def as_json(queues: Iterable[QueueProgress]) -> bytes:
    """A checkpoint of these queues; of a shard the earlier incarnation first."""
    return msgspec.json.encode(KeptProgress(VERSION, tuple(queues)))


def of_json(kept: bytes) -> tuple[QueueProgress, ...]:
    """The queues of a checkpoint. Raises CheckpointRefused."""
    try:
        found = msgspec.json.decode(kept, type=KeptProgress)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise CheckpointRefused(f"not a checkpoint of a Deduplicator: {exc}") from exc
    if found.version != VERSION:
        raise CheckpointRefused(f"a checkpoint of version {found.version}; this remora knows {VERSION}")
    for partition in (number for queue in found.queues for number in queue.read):
        if not is_number(partition.encode()):
            raise CheckpointRefused(f"a checkpoint's partition is {partition[:_MOST_SHOWN]!r}, no number")
    return found.queues


# ---------------------------------------------------------------------------------------- positions as numbers


def text_of(position: int) -> str:
    """A position as remora writes it, without its incarnation."""
    return f"{position >> _TURN_BITS}/{position & _PLACE}"


def position_of(text: str) -> int:
    """A position of a checkpoint. Raises CheckpointRefused."""
    turn, slash, place = text.encode().partition(b"/")
    if not (slash and is_number(turn) and is_number(place)):
        raise CheckpointRefused(f"a checkpoint's position is {text[:_MOST_SHOWN]!r}, not turn/place")
    return _joined(turn, place)


def split(header: str, value: bytes | None) -> tuple[bytes, bytes, bytes]:
    """Incarnation, turn and place of a header's position. Raises BadHeader."""
    value = value or b""
    incarnation, colon, position = value.rpartition(b":")
    turn, slash, place = position.partition(b"/")
    if not (colon and slash and is_number(turn) and is_number(place)):
        raise BadHeader(f"{header} is {shown(value)!r}, not <incarnation>:<turn>/<place>")
    return incarnation, turn, place


def number_of(header: str, value: bytes | None, incarnation: bytes) -> int:
    """A header's position as a number, by which those of a queue are ordered. Raises BadHeader."""
    of, turn, place = split(header, value)
    if of != incarnation:
        told = f"{of.decode(errors='replace')}, and {incarnation.decode(errors='replace')} in another header"
        raise BadHeader(f"{header} is of incarnation {told}")
    return _joined(turn, place)


def shown(value: bytes) -> str:
    """What an error shows of a header's value: its beginning, as text."""
    return value[:_MOST_SHOWN].decode(errors="replace")


def see_behind(next_header: str, following: int, own: int) -> None:
    """Raise BadHeader where a record says of a place that is not behind its own that it is the next one."""
    if following <= own:
        raise BadHeader(f"{next_header} is {text_of(following)}, which is not behind the record's own {text_of(own)}")


def end_of_parents(header: bytes | None) -> Iterator[tuple[bytes, bytes, int]]:
    """Shard, incarnation and end of each parent that `remora-after` names: `t.3=<incarnation>:<turn>/<place>,...`.

    None where it only says which generation came before: their ends are told by the topic itself.
    """
    if header is None or header.startswith(b"generation="):
        return
    for each in header.split(b","):
        shard, _, end = each.rpartition(b"=")
        incarnation, turn, place = split("remora-after", end)
        yield shard, incarnation, _joined(turn, place)


def is_number(digits: bytes) -> bool:
    """Whether these are digits, as many as 64 bits may take: Python would not read thousands of them."""
    return digits.isdigit() and len(digits) <= _MOST_DIGITS and int(digits) <= _PLACE


def _joined(turn: bytes, place: bytes) -> int:
    return (int(turn) << _TURN_BITS) + int(place)
