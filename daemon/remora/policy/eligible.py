"""Which queues remora delivers, and why it leaves the others alone."""

from __future__ import annotations

from collections.abc import Collection

from remora.model.topic import Topic


def reason_to_leave(topic: Topic | None, schemes: Collection[str]) -> str | None:
    """Why a queue stays with its gateway; None when it is ours to deliver."""
    if topic is None:
        return "its topic is unknown: no readable metadata, and no entry that names an endpoint"
    if not topic.target.uri:
        return "its topic has no push-endpoint"
    scheme = topic.target.scheme
    if scheme not in schemes:
        return f"{scheme or 'schemeless'} endpoints stay with radosgw"
    return None
