"""Why a target cannot work: all that is wrong with it, in one refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from remora.model.errors import EndpointMisconfigured

P = ParamSpec("P")
T = TypeVar("T")


class Reasons:
    """Gathers the reasons while the parts of a target are read."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def read(self, otherwise: T, reading: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a part of the target means; `otherwise` where it is wrong, with the reason kept."""
        try:
            return reading(*args, **kwargs)
        except EndpointMisconfigured as exc:
            self.add(str(exc))
            return otherwise

    def add(self, reason: str) -> None:
        """One more."""
        self._found[reason] = None

    def refuse(self) -> None:
        """Raise EndpointMisconfigured with all of them, each once; nothing where there are none."""
        if self._found:
            raise EndpointMisconfigured("; ".join(self._found))
