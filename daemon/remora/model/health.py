"""Whether something is well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """A yes or no, with the reasons in plain words; a yes may have reasons too, as remarks."""

    ok: bool
    reasons: tuple[str, ...] = ()
