"""The shared logs of a Ceph cluster by themselves: for a sequencer, and for commands about logs.

It is no part of `RadosStore`: that one also recovers what ingest left behind, which is the daemon's work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remora.config.stores import RadosSettings
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.logs import RadosLogs


class RadosLogStore:
    """Logs on one client instance. Entering it does not wait for the cluster.

    `on_state` is called with whether the cluster is reached, and a sentence, whenever that changes.
    """

    def __init__(
        self,
        settings: RadosSettings,
        on_state: Callable[[bool, str], None] = lambda _connected, _text: None,
        *,
        pools: Sequence[str] = (),
        is_dead: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`pools` and `is_dead`: see `Logs`."""
        self._connection = ClusterConnection(settings, on_state, topics=False)
        self.logs = RadosLogs(self._connection, pools, is_dead)

    @property
    def connected(self) -> bool:
        """Whether there is a session with the cluster."""
        return self._connection.connected

    @property
    def default_pool(self) -> str:
        """The queues' pool. Raises StoreUnavailable or StoreMisconfigured while there is no session."""
        return self._connection.session.placement.own.pool

    async def __aenter__(self) -> RadosLogStore:
        """Open without waiting for the cluster. Raises StoreMisconfigured for what can never work."""
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._connection.__aexit__(*exc_info)
