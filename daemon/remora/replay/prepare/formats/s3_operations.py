"""What S3's logs call operations; radosgw's bucket logging and IBM's traces use the same words."""

from __future__ import annotations

from remora.replay.prepare.entry import READ, Dropped, no_event
from remora.replay.shape import COPY, DELETE, MPU_COMPLETE, PUT

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
}


def event_of(operation: str) -> str | Dropped:
    """The kind of event that a successful operation makes, or why there is none."""
    if (op := _EVENTS.get(operation)) is not None:
        return op
    if operation.startswith(("REST.GET.", "REST.HEAD.", "WEBSITE.GET.", "WEBSITE.HEAD.")):
        return Dropped(READ)
    if operation in ("REST.COPY.OBJECT_GET", "REST.COPY.PART_GET", "REST.OPTIONS.PREFLIGHT"):
        return Dropped(READ)
    return no_event(operation)
