"""What `remora explain` prints of an event that is in many places."""

from __future__ import annotations

import pytest

from remora.cli.explain import MOST_PLACES, print_findings
from remora.cli.explain_event import Asked, EventFindings
from remora.cli.explained import EventPlace


@pytest.mark.parametrize("more", [0, 280])
def test_an_event_in_hundreds_of_topics_is_a_page(capsys: pytest.CaptureFixture[str], more: int) -> None:
    """The first places are shown, the others counted in one line, which says how to see them."""
    asked = Asked("b/k", None, None, None, None, 60.0, 1000)
    found = EventFindings("event")
    found.places = [
        EventPlace(f"t{at}", "0/0", "b/k", "id", "ObjectCreated:Put", 0.0) for at in range(MOST_PLACES + more)
    ]

    print_findings(asked, found)

    lines = capsys.readouterr().out.splitlines()
    assert sum("waits in queue" in line for line in lines) == MOST_PLACES
    said = [line for line in lines if "further" in line]
    assert said == ([f"  and in {more} further places: --topic looks into one topic, --json shows all"] if more else [])


@pytest.mark.parametrize(("what", "key", "title"), [("b", "b/k", "bucket b:"), ("id", "b/k", "event id:")])
def test_what_was_found_is_called_by_its_kind(
    capsys: pytest.CaptureFixture[str], what: str, key: str, title: str
) -> None:
    """Where all that was found are events of a bucket of this name, that is said to be a bucket and no event."""
    found = EventFindings("event")
    found.places = [EventPlace("t", "0/0", key, "id", "ObjectCreated:Put", 0.0)]

    print_findings(Asked(what, None, None, None, None, 60.0, 1000), found)

    assert capsys.readouterr().out.startswith(title)
