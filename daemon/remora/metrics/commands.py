"""Events of commands that change a running daemon: each leaves a line with what was, what is, and who asked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from remora.metrics.events import EventGroup, Instruments, say
from remora.model.caller import Caller

_TAKES_PART = {True: "drained", False: "takes part"}


class CommandEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        self._overridden = instruments.gauge(
            "remora_shaping_overridden",
            "1 while a command's change of a shaping scope or the default class (default_class) lasts.",
            "scope",
        )

    def control_unavailable(self, path: str, why: str) -> None:
        """There is no control socket: commands cannot change this daemon."""
        say(
            logging.WARNING, "control_unavailable", "commands cannot change this daemon: no place for its socket",
            path=path, reason=why, option="supervisor.run_directory",
        )  # fmt: skip

    def control_refused(self, route: str, caller: Caller, why: str) -> None:
        """Somebody who may not asked for a change; nothing changes."""
        self._say_seldom(
            logging.WARNING, "control_refused", ("control refused", route), "a change was asked for and refused",
            route=route, **caller.known, reason=why,
        )  # fmt: skip

    def host_drain(self, was: bool, on: bool, caller: Caller) -> None:
        """This host gives its queues to others before maintenance, or takes part again."""
        text = "this host gives its queues to other hosts" if on else "this host takes part again"
        say(logging.INFO, "host_drain", text, old=_TAKES_PART[was], new=_TAKES_PART[on], **caller.known)

    def quarantine_release(self, destination: str | None, caller: Caller) -> None:
        """The workers use a destination again, or all (None); each says which, and what was left of its quarantine."""
        say(
            logging.INFO, "quarantine_release", "destinations in quarantine are used again",
            destination=destination or "all", **caller.known,
        )  # fmt: skip

    def shaping_changed(self, changes: Iterable[tuple[str, str, str]], by: str, caller: Caller) -> None:
        """What a command changed of shaping, or a reload of what commands had changed: name, old and new value."""
        for name, old, new in changes:
            say(
                logging.INFO, "shaping_changed", "traffic is shaped otherwise",
                value=name, old=old, new=new, by=by, **caller.known,
            )  # fmt: skip

    def shaping_overridden(self, scopes: Mapping[str, bool]) -> None:
        """Shows which scopes differ from the configuration file; a scope that is left out is shown no longer."""
        self._overridden.clear()
        for scope, is_overridden in scopes.items():
            self._overridden.labels(scope).set(is_overridden)
