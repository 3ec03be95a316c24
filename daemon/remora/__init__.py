"""Delivers persistent bucket notifications from object-store gateways to Kafka."""
