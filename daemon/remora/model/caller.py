"""Who has a daemon change something by command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A process, by its user's number and its own, or the holder of a control token by its name.

    `address` is where a holder came from, `host` the host id of a process that may run elsewhere. What is not known is
    None.
    """

    uid: int | None = None
    pid: int | None = None
    token: str | None = None
    address: str | None = None
    host: str | None = None

    @property
    def known(self) -> Mapping[str, object]:
        """What is known, as fields of a log line."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


NOBODY = Caller()
"""Of whom nothing is known, or no command at all."""
