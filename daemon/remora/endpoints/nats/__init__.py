"""Delivery to streams of NATS JetStream. Start reading at `endpoint`."""

from remora.endpoints.nats.endpoint import NatsEndpoint, NatsRoute

__all__ = ["NatsEndpoint", "NatsRoute"]
