"""The exit codes of the `remora` command: a promise to units, scripts and operators.

0 is success, a clean drain included; 1 and 2 stay click's (a failure, and wrong usage). The others follow
sysexits where it has a name for the case.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Why the process ended. A restart alone helps after every code but CONFIG and NO_PERMISSION."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    DRAIN_TIMEOUT = 3
    """What was in flight did not finish within `delivery.drain_timeout`; it will be delivered again.

    For `topic rm --drain`: entries still waited when the time was over.
    """
    UNAVAILABLE = 69
    """A command needed the store or the daemon, and it was not reachable. The daemon itself waits instead."""
    TEMPORARY = 75
    """Something failed that may succeed when it is tried again."""
    NO_PERMISSION = 77
    """The store cannot be used with what was given: a keyring, key, pool or permission is missing."""
    CONFIG = 78
    """The configuration is refused; the unit does not restart after this one."""
