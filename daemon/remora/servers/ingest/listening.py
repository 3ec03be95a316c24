"""The address that is listened on: a Unix socket with its mode and without a rival, or TCP, with TLS where wanted."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from remora.config import IngestSettings, TcpAddress, UnixAddress
from remora.model.errors import ConfigError
from remora.servers.ingest.connections import HANDSHAKE_S

BACKLOG = 1024


@asynccontextmanager
async def listening(
    settings: IngestSettings, tls: ssl.SSLContext | None, accept: Callable[[], asyncio.Protocol]
) -> AsyncIterator[tuple[asyncio.Server, str]]:
    """Listen while the block runs; gives the listener and the address as clients write it.

    Raises ConfigError where that is impossible: the address is in use, or its folder is missing.
    """
    loop = asyncio.get_running_loop()
    address = settings.address
    handshake_s = HANDSHAKE_S if tls else None
    with contextlib.ExitStack() as stack:
        try:
            if isinstance(address, UnixAddress):
                sock = stack.enter_context(unix_socket(Path(address.path), int(settings.socket_mode, 8)))
                shown = f"unix:{address.path}"
                listener = await loop.create_unix_server(
                    accept, sock=sock, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=handshake_s
                )
            else:
                assert isinstance(address, TcpAddress)
                listener = await loop.create_server(
                    accept, address.host, address.port, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=handshake_s
                )
                shown = _shown(listener, tls)
        except OSError as exc:
            raise ConfigError("ingest.listen", f"cannot listen on {settings.listen}: {exc.strerror or exc}") from exc
        try:
            yield listener, shown
        finally:
            listener.close()


def tls_context(settings: IngestSettings) -> ssl.SSLContext | None:
    """How connections are encrypted; None where they are not. Raises ConfigError for files that do not fit."""
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: IngestSettings) -> None:
    """Read certificate and key, for connections from now on. Raises ConfigError, and then the old ones stay."""
    try:
        # First into a context that is thrown away: a certificate without its key must not get into the one in use.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except ssl.SSLError as exc:
        why = exc.reason or "not a certificate and its key in PEM"
        raise ConfigError("ingest.tls_certificate", f"{settings.tls_certificate} and ingest.tls_key: {why}") from exc
    except OSError as exc:
        raise ConfigError("ingest.tls_certificate", f"cannot read certificate or key: {exc.strerror}") from exc


@contextmanager
def unix_socket(path: Path, mode: int) -> Iterator[socket.socket]:
    """A socket that is bound to the path with this mode; afterwards the path is taken away again.

    One that nobody listens on is replaced. Raises OSError where somebody does, or where something else is there.
    """
    with _only_one(path.parent), socket.socket(socket.AF_UNIX) as unbound:
        _clear(path)
        # Never open to more than `mode`, not even for a moment; and chmod comes before anybody can connect.
        before = os.umask(0o177)
        try:
            unbound.bind(str(path))
        finally:
            os.umask(before)
        path.chmod(mode)
        unbound.listen(BACKLOG)  # under the lock: whoever looks next finds somebody listening
        bound = unbound.dup()
    bound.setblocking(False)
    made = path.stat()
    try:
        yield bound
    finally:
        bound.close()
        with contextlib.suppress(FileNotFoundError):
            now = path.stat()
            if (now.st_dev, now.st_ino) == (made.st_dev, made.st_ino):  # not a successor's
                path.unlink()


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Of several daemons that start, only one looks at the folder's sockets at a time."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _clear(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(None, "there is something that is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its queue of connections is full, so somebody has one
    raise FileExistsError(None, "another process listens there")


def _shown(listener: asyncio.Server, tls: ssl.SSLContext | None) -> str:
    host, port = listener.sockets[0].getsockname()[:2]
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{'https' if tls else 'http'}://{authority}"
