"""What a route takes of some records, and what it refuses now."""

from __future__ import annotations

from collections.abc import Sequence

from remora.model.record import Record
from remora.ports.endpoint import Batch, ExactRoute, Route


async def pack_surely(
    route: Route | ExactRoute, records: Sequence[Record]
) -> tuple[list[Batch], list[tuple[Record, str]]]:
    """As `pack` of the route; what it refuses it refuses by what was looked up after these records were read.

    A limit may have been raised while the route was open, and a refused record is given up for good. Where nothing is
    refused, which is nearly always, nothing is looked up. Raises EndpointError.
    """
    batches, refused = route.pack(records) if records else ([], [])
    if refused:
        await route.look_again()
        batches, refused = route.pack(records)
    return batches, refused
