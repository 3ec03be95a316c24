"""What the errnos of the cluster become."""

from __future__ import annotations

import errno

import pytest

from remora.model.errors import (
    OwnershipLost,
    QueueFull,
    ShardGone,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreUnavailable,
)
from remora.storage.rados.cluster.refusals import HELD, OWN, PLAIN, QUEUE, RESERVED, Refusals, refusal


@pytest.mark.parametrize(
    ("code", "table", "kind"),
    [
        (errno.ENOENT, HELD, ShardGone),
        (errno.ECANCELED, HELD, ShardGone),
        (errno.EBUSY, HELD, OwnershipLost),
        (errno.EINVAL, QUEUE, StoreError),
        (errno.ENOSPC, RESERVED, QueueFull),
        (errno.EDQUOT, RESERVED, StoreFull),
        (errno.ENOSPC, OWN, StoreFull),
        (errno.ENOSPC, HELD, StoreUnavailable),
        (errno.ETIMEDOUT, HELD, StoreUnavailable),
        (errno.ESHUTDOWN, HELD, StoreUnavailable),
        (errno.EPERM, HELD, StoreMisconfigured),
        (errno.EACCES, PLAIN, StoreMisconfigured),
        (errno.EOPNOTSUPP, PLAIN, StoreError),
        (9999, PLAIN, StoreError),
    ],
)
def test_kinds(code: int, table: Refusals, kind: type[StoreError]) -> None:
    """Each errno becomes the error that says what its caller may do."""
    assert type(refusal(code, "listing q", "client.x", "p:n", table)) is kind


def test_words() -> None:
    """The text names the operation, and where permission is missing also the user and the pool."""
    assert "listing q" in str(refusal(errno.EBUSY, "listing q", "client.x", "p:n", HELD))
    denied = str(refusal(errno.EPERM, "listing q", "client.x", "p:n", HELD))
    assert "listing q" in denied
    assert "client.x" in denied
    assert "p:n" in denied
