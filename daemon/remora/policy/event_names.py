"""The names of events: those that S3, radosgw and MinIO send, and the wildcards that stand for several."""

from __future__ import annotations

import difflib
from types import MappingProxyType

PREFIX = "s3:"

_KINDS = MappingProxyType({
    "ObjectCreated:": (
        "Put", "Post", "Copy",
        "CompleteMultipartUpload", "PutRetention", "PutLegalHold",
        "PutTagging", "DeleteTagging",
    ),
    "ObjectRemoved:": ("Delete", "DeleteMarkerCreated", "NoOP", "DeleteAllVersions"),
    "ObjectAccessed:": ("Get", "Head", "GetRetention", "GetLegalHold", "Attributes"),
    "ObjectRestore:": ("Post", "Completed", "Delete"),
    "ObjectTransition:": ("Failed", "Complete"),
    "ObjectTagging:": ("Put", "Delete"),
    "ObjectAcl:": ("Put",),
    "ObjectLifecycle:Expiration:": ("Current", "NonCurrent", "DeleteMarker", "AbortMultipartUpload"),
    "ObjectLifecycle:Transition:": ("Current", "NonCurrent"),
    "ObjectSynced:": ("Create", "Delete", "DeletionMarkerCreated"),
    "LifecycleExpiration:": ("Delete", "DeleteMarkerCreated"),
    "LifecycleDelMarkerExpiration:": ("Delete",),
    "Replication:": (
        "OperationFailedReplication", "OperationNotTracked", "OperationMissedThreshold",
        "OperationReplicatedAfterThreshold", "OperationCompletedReplication", "OperationPendingReplication",
    ),
    "Scanner:": ("ManyVersions", "LargeVersions", "BigPrefix"),
})  # fmt: skip
"""What stands behind the colon, by what stands before it."""

_ALONE = ("LifecycleTransition", "IntelligentTiering", "ReducedRedundancyLostObject")
_NEVER_ALONE = ("BucketCreated:", "BucketRemoved:")  # which MinIO knows with a wildcard only

NAMES = (*(kind + each for kind, names in _KINDS.items() for each in names), *_ALONE)


def _wildcards() -> tuple[str, ...]:
    """Each beginning of a name up to a colon, with the `*` behind it, and the one that stands for all."""
    found = {"*": None}
    for kind in (*_KINDS, *_NEVER_ALONE):
        parts = kind.split(":")[:-1]
        found |= {":".join([*parts[: end + 1], "*"]): None for end in range(len(parts))}
    return tuple(found)


WILDCARDS = _wildcards()


def plain(name: str) -> str:
    """A name, or a wildcard, without the `s3:` that some senders and users write."""
    return name.removeprefix(PREFIX)


def is_known(name: str) -> bool:
    """Whether an event can have this name, or a wildcard stands for such names."""
    return plain(name) in NAMES or plain(name) in WILDCARDS


def nearest(name: str) -> str:
    """The known name, or wildcard, that is most like this one."""
    known = (*NAMES, *WILDCARDS)
    by_small = {each.lower(): each for each in known}
    near = difflib.get_close_matches(plain(name).lower(), by_small, n=1, cutoff=0.0)
    return PREFIX + by_small[near[0]]


def stands_for(pattern: str, name: str) -> bool:
    """Whether a name is the one that a notification asks for, or one of those that its wildcard stands for."""
    asked = plain(pattern)
    return plain(name).startswith(asked[:-1]) if asked.endswith("*") else asked == plain(name)
