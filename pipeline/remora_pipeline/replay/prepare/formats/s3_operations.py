"""What S3's logs call operations; radosgw's bucket logging and IBM's traces use the same words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from remora_pipeline.replay.prepare.entry import READ, Dropped, no_event
from remora_pipeline.replay.shape import COPY, DELETE, MPU_COMPLETE, PUT

# A part of a multipart upload is no event, its completion is. A request that deletes several objects has a line of its
# own for each of them (BATCH.DELETE.OBJECT): only those count, not the request's. S3.* is what lifecycle rules did.
_EVENTS = {
    "REST.PUT.OBJECT": PUT,
    "REST.POST.OBJECT": PUT,
    "REST.COPY.OBJECT": COPY,
    "REST.POST.UPLOAD": MPU_COMPLETE,
    "REST.DELETE.OBJECT": DELETE,
    "BATCH.DELETE.OBJECT": DELETE,
    "S3.EXPIRE.OBJECT": DELETE,
    "S3.CREATE.DELETEMARKER": DELETE,
    "SOAP.PutObject": PUT,
    "SOAP.PutObjectInline": PUT,
    "SOAP.CopyObject": COPY,
    "SOAP.DeleteObject": DELETE,
}


def event_of(operation: str) -> str | Dropped:
    """The kind of event that a successful operation makes, or why there is none."""
    if (op := _EVENTS.get(operation)) is not None:
        return op
    if operation.startswith(("REST.GET.", "REST.HEAD.", "WEBSITE.GET.", "WEBSITE.HEAD.", "SOAP.Get", "SOAP.List")):
        return Dropped(READ)
    if operation in ("REST.COPY.OBJECT_GET", "REST.COPY.PART_GET", "REST.OPTIONS.PREFLIGHT"):
        return Dropped(READ)
    return no_event(operation)


class Beginning(NamedTuple):
    """A line up to its operation, and the `rest` behind that. Owner and requester may have blanks in their names."""

    owner: str
    bucket: str
    time: str
    address: str
    requester: str
    request: str
    operation: str
    rest: str


_TIME = re.compile(r" \[([^\]]*)\](?= )")
_OPERATION = re.compile(r" ((?:REST|BATCH|S3|WEBSITE)\.[A-Z0-9_.]+|SOAP\.[A-Za-z]+) ", re.ASCII)
_MOST_TRIED = 8


def beginnings(line: str) -> Iterator[Beginning]:
    """The ways to read a line's beginning, the likeliest first: a requester's name may look like an operation.

    A journal has none of address, requester and request: they are empty.
    """
    time = _TIME.search(line)
    if time is None:
        return
    owner, _, bucket = line[: time.start()].rpartition(" ")
    if not owner or not bucket:
        return
    for operation in islice(_OPERATION.finditer(line, time.end()), _MOST_TRIED):
        address, _, named = line[time.end() + 1 : operation.start()].partition(" ")
        requester, _, request = named.rpartition(" ")
        if bool(address) == bool(request):
            yield Beginning(owner, bucket, time[1], address, requester, request, operation[1], line[operation.end() :])


def begins(line: str) -> bool:
    """Whether a line begins as those of S3's logs do."""
    return next(beginnings(line), None) is not None
