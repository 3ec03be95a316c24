"""aiokafka's log lines on their way into the daemon's."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from remora.endpoints.kafka.client import RepeatFilter, install_log_filter


@pytest.fixture
def theirs() -> Iterator[logging.Logger]:
    """A logger of aiokafka's, taken over anew and given back afterwards."""
    root = logging.getLogger("aiokafka")
    before = root.handlers[:], root.level, root.propagate
    root.handlers.clear()
    install_log_filter()
    yield logging.getLogger("aiokafka.conn")
    root.handlers[:], root.level, root.propagate = before


def test_repeated_lines(theirs: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """A kind of line is passed on once, as a warning, whatever its arguments are."""
    for port in range(100):
        theirs.error("Unable connect to node with id %s", port)
    theirs.warning("something else")

    # pytest listens at aiokafka's own logger too.
    ours = [each for each in caplog.records if each.name == "remora.kafka"]
    assert [(each.levelname, each.message) for each in ours] == [
        ("WARNING", "Unable connect to node with id 0"),
        ("WARNING", "something else"),
    ]


def test_no_debug(theirs: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """Requests, which may hold passwords, are not logged at any level of the daemon's own log."""
    caplog.set_level(logging.DEBUG)

    theirs.debug("Request %s", "password")
    theirs.info("Authenticated as %s", "alice")

    assert caplog.records == []


def test_taken_over_once(theirs: logging.Logger) -> None:
    """Several endpoints in one process do not multiply lines."""
    install_log_filter()

    assert len([each for each in logging.getLogger("aiokafka").handlers if isinstance(each, RepeatFilter)]) == 1
