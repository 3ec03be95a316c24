"""The loops that cost most, as this installation has them: compiled, or plainly in Python.

What was compiled is missing where there was no C compiler at the installation. REMORA_PURE_PYTHON=1 leaves it out. The
plain way is what the compiled one has to agree with, and is written to be read, not to be quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from remora.codec import checksums as checksums_
from remora.codec import columns, event_copies, json_pieces, kafka_records, murmur2, sequencer, shard_hash
from remora.model.record import Record

if TYPE_CHECKING:
    from remora.codec._compiled import CompiledRendering as _CompiledRendering
    from remora.codec._event_copies import Finder
    from remora.codec._s3_records import Encoder
    from remora.codec._sequencer import Cells as _Cells

CompiledRendering: type[_CompiledRendering] | None = None
"""None where nothing was compiled: then `rendering_plain` makes all records."""

partitions: Callable[[Sequence[bytes], int], Sequence[int]] = murmur2.partitions
in_batches: Callable[[Sequence[Record], int, int, int], Sequence[tuple[int, Sequence[Record], int]]] = (
    kafka_records.in_batches
)
encode_events: Callable[[bytes, bytes, Sequence[Record], int], bytes] = kafka_records.encode_events
totals: Callable[[Sequence[Record]], columns.Totals] = columns.totals
extent: Callable[[Sequence[Record]], columns.Extent] = columns.extent
traced: Callable[[Sequence[Record]], Sequence[Record]] = columns.traced
joined: Callable[[Iterable[Sequence[Record]]], Sequence[Record]] = columns.joined
checksums: Callable[[Sequence[bytes], int], list[int]] = checksums_.checksums
mismatches: Callable[[Sequence[tuple[bytes, int | None]], int], list[int]] = checksums_.mismatches
shards: Callable[[Sequence[bytes], int], Sequence[int]] = shard_hash.shards
repeated_name: Callable[[bytes], str | None] = json_pieces.repeated_name
RecordEncoder: type[Encoder] | None = None
"""None where nothing was compiled: then `s3_records` reads all records."""

MatchFinder: type[Finder] | None = None
"""None where nothing was compiled: then `Matcher.matching` finds what each event matches."""

distribute = event_copies.distribute
copies = event_copies.copies

SequencerCore: type[sequencer.Core] = sequencer.Core
SequencerCells: type[_Cells] | None = None
"""None where nothing was compiled: then one process has all counters."""

IMPLEMENTATION = "python"
"""`compiled` or `python`."""

NOT_COMPILED = (
    "the codec runs in plain Python, several times slower: it was not compiled at the installation, or is left out by "
    "REMORA_PURE_PYTHON"
)
"""What a daemon logs once where it is not compiled."""

if not os.environ.get("REMORA_PURE_PYTHON"):
    try:
        from remora.codec import _compiled, _event_copies, _s3_records, _sequencer
    except ImportError:
        pass
    else:
        CompiledRendering, partitions = _compiled.CompiledRendering, _compiled.partitions
        in_batches, encode_events = _compiled.in_batches, _compiled.encode_events
        totals, extent = _compiled.totals, _compiled.extent
        traced, joined = _compiled.traced, _compiled.joined
        checksums, mismatches = _compiled.checksums, _compiled.mismatches
        shards, RecordEncoder = _s3_records.shards, _s3_records.Encoder
        repeated_name = _s3_records.repeated_name
        MatchFinder, distribute, copies = _event_copies.Finder, _event_copies.distribute, _event_copies.copies
        SequencerCore, SequencerCells = _sequencer.Core, _sequencer.Cells
        Sequence.register(_compiled.Records)
        IMPLEMENTATION = "compiled"
