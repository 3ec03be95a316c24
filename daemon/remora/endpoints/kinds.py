"""Kinds of endpoints: how one is made, and those that other packages offer by their metadata.

A package offers a kind with an entry point of the group GROUP: its name is the URI scheme, its object an EndpointKind.
The built-in ones cannot be replaced. What cannot be loaded costs the topics of its scheme only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from remora.endpoints.arguments import Argument
from remora.ports.endpoint import Endpoint

if TYPE_CHECKING:
    from remora.config.settings import Settings
    from remora.metrics import Telemetry

GROUP = "remora.endpoints"


class Opening(Endpoint, Protocol):
    """An endpoint with the connections that it makes between entering and leaving it."""

    async def __aenter__(self) -> Self:
        """Make it ready to open routes."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Close every connection within a few seconds."""
        ...


class EndpointKind(NamedTuple):
    """How an endpoint is made, the arguments that its topics may have beside those of all kinds, and the module that
    tries the way to it step by step, if one does. `make` runs in any thread, with an event loop or without."""

    make: Callable[[Settings, Telemetry | None], Opening]
    arguments: Sequence[Argument[object]] = ()
    probe: str = ""


@dataclass(frozen=True, slots=True)
class OfferedKinds:
    """The kinds of other packages by their schemes, and why some cannot be used."""

    kinds: Mapping[str, EndpointKind] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


def offered_kinds(but: Collection[str]) -> OfferedKinds:
    """What the packages of this environment offer, but these schemes; of several for a scheme none is taken."""
    # Whether the metadata of any package on Python's path name the group.
    offers = (file for place in sys.path for file in Path(place or ".").glob("*.dist-info/entry_points.txt"))
    if not any(_names_group(each) for each in offers):
        return OfferedKinds()
    from importlib.metadata import entry_points  # a large module, which few hosts need

    kinds: dict[str, EndpointKind] = {}
    failures: dict[str, str] = {}
    for each in sorted(entry_points(group=GROUP), key=str):
        scheme = each.name.lower()
        if scheme in but or scheme in failures:
            continue
        if scheme in kinds:
            del kinds[scheme]
            failures[scheme] = f"several packages offer {scheme}:// endpoints"
            continue
        try:
            found = each.load()
            if not isinstance(found, EndpointKind):
                raise TypeError(f"{each.value} is no EndpointKind")
            kinds[scheme] = found
        except Exception as exc:  # of a package that is not ours
            whose = each.dist.name if each.dist is not None else each.value
            failures[scheme] = f"the package {whose} offers {scheme}:// endpoints and cannot be loaded: {exc!r}"
    return OfferedKinds(kinds, failures)


def _names_group(file: Path) -> bool:
    try:
        return f"[{GROUP}]".encode() in file.read_bytes()
    except OSError:  # of a package that is being removed
        return False
