"""Delivers to HTTP and HTTPS endpoints: radosgw's requests, byte for byte, with headers of remora's own."""

from remora.endpoints.http.endpoint import HttpEndpoint

__all__ = ["HttpEndpoint"]
