"""Which connections to a sequencer may skip TLS."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

from remora.config.sequencer import SequencerSettings


def may_speak_plainly(settings: SequencerSettings) -> Callable[[socket.socket], bool]:
    """Whether a connection may skip TLS: those over a Unix socket, those from an allowed network, and those over
    loopback unless client certificates are required."""
    networks = [ipaddress.ip_network(each) for each in settings.allow]

    def may_connect(connection: socket.socket) -> bool:
        if connection.family == socket.AF_UNIX:
            return True
        peer = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return (peer.is_loopback and not settings.tls_certificate) or any(peer in each for each in networks)

    return may_connect
