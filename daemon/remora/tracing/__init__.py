"""Exports spans over OpenTelemetry's protocol; an optional extra."""

from remora.tracing.otlp import OtlpTracer, open_otlp

__all__ = ["OtlpTracer", "open_otlp"]
