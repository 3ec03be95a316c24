"""What becomes of endpoints' connections has one observer for all kinds."""

from __future__ import annotations

import logging

import pytest

from remora.endpoints.observer import EndpointObserver, LogObserver
from remora.metrics import Telemetry


@pytest.mark.parametrize("observer", [Telemetry(), LogObserver()], ids=["telemetry", "log"])
def test_all_kinds_have_one_observer(observer: EndpointObserver, caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry, and the log where there is none, take what each kind of endpoint tells of."""
    caplog.set_level(logging.DEBUG)

    observer.producer_opened("host:9092")
    observer.amqp_connected("host:5672")
    observer.nats_connected("host:4222")
    observer.nats_disconnected("host:4222", "it broke")
    observer.nats_known("host:4222", "window")
    observer.http_opened()

    if isinstance(observer, LogObserver):
        assert [each.getMessage() for each in caplog.records] == [
            "host:9092: producer opened",
            "host:5672: connected",
            "host:4222: connected",
            "host:4222: disconnected: it broke",
            "host:4222: the stream has the message (window)",
            "HTTP connection opened",
        ]
