"""Delivers persistent bucket notifications from object-store gateways to Kafka, HTTP, AMQP or NATS."""

# As pyproject.toml has it: to ask the installed package takes each process 20 ms, and the modules of e-mail.
__version__ = "0.2.0.dev0"
