"""Clients of the ingest API, for programs that send events, and of a sequencer; readers of events in commit order, and
what tells new records from copies and finds what is missing.

    async with IngestClient("unix:/run/remora/ingest.sock") as client:
        await client.publish("photos", [record, record])

It imports nothing of the daemon but its values, so that it can be used where no daemon runs.
"""

from __future__ import annotations

from remora.client.commit_order import Checkpoint, CommitOrder, CommitOrderReader, SequenceEnded
from remora.client.deduplicator import Deduplicator, DeduplicatorError, Gap, GapFound, TooManyShards
from remora.client.distribution import ComingEvent, RoomWhereNotified, WhereNotified
from remora.client.errors import (
    Ambiguous,
    EventsRefused,
    IngestError,
    IngestMisconfigured,
    IngestUnavailable,
    NotPermitted,
    NotSequenced,
    Problem,
    RequestRejected,
    ReservationGone,
    TopicNotFound,
)
from remora.client.ingest import Failure, IngestClient, Reservation, Taken, TopicSequence
from remora.client.progress import BadHeader, CheckpointRefused
from remora.client.sequencer import OutcomeUnknown, SequencerClient, SequencerUnavailable

__all__ = [
    "Ambiguous",
    "BadHeader",
    "Checkpoint",
    "CheckpointRefused",
    "ComingEvent",
    "CommitOrder",
    "CommitOrderReader",
    "Deduplicator",
    "DeduplicatorError",
    "EventsRefused",
    "Failure",
    "Gap",
    "GapFound",
    "IngestClient",
    "IngestError",
    "IngestMisconfigured",
    "IngestUnavailable",
    "NotPermitted",
    "NotSequenced",
    "OutcomeUnknown",
    "Problem",
    "RequestRejected",
    "Reservation",
    "ReservationGone",
    "RoomWhereNotified",
    "SequenceEnded",
    "SequencerClient",
    "SequencerUnavailable",
    "Taken",
    "TooManyShards",
    "TopicNotFound",
    "TopicSequence",
    "WhereNotified",
]
