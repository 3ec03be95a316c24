"""Delivery to Kafka through aiokafka's batch API. Start reading at `endpoint`."""

from remora.endpoints.kafka.endpoint import KafkaEndpoint, KafkaRoute
from remora.endpoints.kafka.exact import ExactKafkaRoute
from remora.endpoints.kafka.slots import KafkaObserver

__all__ = ["ExactKafkaRoute", "KafkaEndpoint", "KafkaObserver", "KafkaRoute"]
