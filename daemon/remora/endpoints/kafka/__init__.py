"""Delivery to Kafka over aiokafka's client. Start reading at `endpoint`."""

from remora.endpoints.kafka.endpoint import KafkaEndpoint, KafkaRoute
from remora.endpoints.kafka.exact import ExactKafkaRoute
from remora.endpoints.observer import KafkaObserver

__all__ = ["ExactKafkaRoute", "KafkaEndpoint", "KafkaObserver", "KafkaRoute"]
