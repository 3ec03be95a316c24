"""Which logs a sequencer remembers though it does not serve them: bounded for all, and for each client.

A client may ask for any number of logs that do not exist, each of which costs a look into the store. With a share for
each, the logs of others find room, and their looks wait behind a few of its own only.
"""

from __future__ import annotations

from remora.model.log import LogName


class LogShares:
    """Logs, each counted for the client that asked for it first."""

    def __init__(self, most: int, most_of_one: int) -> None:
        """`most` logs at a time, and `most_of_one` of a client."""
        self._most = most
        self._most_of_one = most_of_one
        self._clients: dict[LogName, int] = {}
        self._counts: dict[int, int] = {}

    def admit(self, log: LogName, client: int) -> bool:
        """Count a log for a client, unless its share or the room of all is used up. One that is counted stays so."""
        if log in self._clients:
            return True
        count = self._counts.get(client, 0)
        if count >= self._most_of_one or len(self._clients) >= self._most:
            return False
        self._clients[log], self._counts[client] = client, count + 1
        return True

    def drop(self, log: LogName) -> None:
        """Count a log no more; means nothing for one that is not counted."""
        client = self._clients.pop(log, None)
        if client is None:
            return
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]
