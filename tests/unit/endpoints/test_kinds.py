"""Kinds of endpoints that other packages offer."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import app
from remora.config import Settings
from remora.endpoints.kinds import OfferedKinds, offered_kinds
from remora.model.errors import EndpointMisconfigured
from remora.model.topic import Target
from support.file_sink import ARGUMENTS, FileEndpoint
from support.offered import offer


def test_a_kind_is_found_by_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed offers a kind by an entry point, with its arguments; remora's own stay."""
    sink = "support.file_sink:KIND"
    monkeypatch.syspath_prepend(offer(tmp_path, {"File": sink, "kafka": sink}))

    found = offered_kinds(app.ENDPOINTS)

    assert found.failures == {}
    assert list(found.kinds) == ["file"]
    assert found.kinds["file"].arguments == ARGUMENTS
    assert isinstance(found.kinds["file"].make(Settings(), None), FileEndpoint)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("no.such.module:KIND", "cannot be loaded: ModuleNotFoundError"),
        ("support.file_sink:NOTHING", "cannot be loaded: AttributeError"),
        ("support.file_sink:ARGUMENTS", "is no EndpointKind"),
    ],
)
def test_a_package_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, why: str) -> None:
    """It costs the topics of its scheme only, whose reason names the package."""
    monkeypatch.syspath_prepend(offer(tmp_path, {"file": what, "good": "support.file_sink:KIND"}))
    found = offered_kinds(app.ENDPOINTS)
    monkeypatch.setattr(app, "OFFERED", found)

    assert list(found.kinds) == ["good"]
    with pytest.raises(EndpointMisconfigured) as caught:
        app.check_target(Target("file:///x", "", "t"), Settings())
    assert "the package remora-sink offers file:// endpoints" in str(caught.value)
    assert why in str(caught.value)


def test_two_packages_for_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is taken: which it would be depends on nothing that an operator sees."""
    for name in ("one", "two"):
        monkeypatch.syspath_prepend(offer(tmp_path / name, {"file": "support.file_sink:KIND"}, name))

    assert offered_kinds(app.ENDPOINTS) == OfferedKinds({}, {"file": "several packages offer file:// endpoints"})
