"""Delivery to brokers of AMQP 0-9-1 such as RabbitMQ. Start reading at `endpoint`."""

from remora.endpoints.amqp.endpoint import AmqpEndpoint, AmqpRoute
from remora.endpoints.observer import AmqpObserver

__all__ = ["AmqpEndpoint", "AmqpObserver", "AmqpRoute"]
