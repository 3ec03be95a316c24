"""The exit codes of the `remora` command: a promise to units, scripts and operators.

0 is success, a clean drain included; 1 and 2 stay click's (a failure, and wrong usage). The others follow
sysexits where it has a name for the case.
"""

from __future__ import annotations

from enum import IntEnum

from remora.model.errors import (
    ChangeNotAllowed,
    ConfigError,
    ConfigUnreadable,
    DaemonNotReachable,
    DirectoryLost,
    EndpointMisconfigured,
    IngestRefused,
    NotificationRefused,
    PermissionMissing,
    RemoraError,
    StoreDamaged,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
    TopicRefused,
    WorkerFailed,
)
from remora.model.log import LogError


class Exit(IntEnum):
    """Why the process ended. After CONFIG and NO_PERMISSION the units do not restart: somebody has to act first."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    DRAIN_TIMEOUT = 3
    """What was in flight did not finish within `delivery.drain_timeout`; it will be delivered again.

    For `drain`: this host still had shards when the time was over. For `topic rm --drain`: entries were still pending.
    """
    DIFFERS = 3
    """`topic apply --dry-run` found topics that differ from the file."""
    UNAVAILABLE = 69
    """A command needed the store or the daemon, and could not reach it. The daemon itself waits instead."""
    OUT_OF_MEMORY = 71
    """Memory could not be allocated. A worker that exits so is replaced; at the start it ends the daemon."""
    TEMPORARY = 75
    """Something failed that may succeed when tried again."""
    NO_PERMISSION = 77
    """The store cannot be used with what it was given: a keyring, key, pool or permission is missing.

    For commands that change a running daemon: it lets this user change nothing. For `send`: neither the socket nor the
    token lets it send. For all: this user may not read the configuration.
    """
    CONFIG = 78
    """The configuration is refused; the unit does not restart after this code."""


def exit_code(exc: RemoraError) -> Exit:
    """The documented exit code of an error. A worker that failed at the start passes its own code on."""
    match exc:
        case WorkerFailed(code=code):
            return Exit(code) if code in set(Exit) else Exit.FAILURE
        case EndpointMisconfigured():
            return Exit.USAGE  # a command was given an endpoint that can never work
        case ConfigUnreadable():
            return Exit.NO_PERMISSION
        case ConfigError():
            return Exit.CONFIG
        case StoreMisconfigured() | ChangeNotAllowed() | PermissionMissing():
            return Exit.NO_PERMISSION
        case StoreUnavailable() | DirectoryLost() | DaemonNotReachable():
            return Exit.UNAVAILABLE
        case IngestRefused() | TopicRefused() | NotificationRefused() | StoreDamaged() | LogError():
            return Exit.FAILURE
        case StoreError():
            return Exit.TEMPORARY
        case _:
            return Exit.FAILURE
