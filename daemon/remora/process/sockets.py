"""Sockets that listen: a Unix socket with its mode and without a rival, or TCP on every address of a host's name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from remora.config.addresses import UnixAddress, parse_listen
from remora.config.ingest import IngestSettings
from remora.config.settings import Settings
from remora.model.caller import Caller
from remora.model.errors import ConfigError

BACKLOG = 1024

_CREDENTIALS = struct.Struct("=iII")
"""The kernel's `struct ucred`: the numbers of process, user and group."""


@contextmanager
def listening_sockets(key: str, listen: str, mode: int) -> Iterator[list[socket.socket]]:
    """Sockets that listen on the address while the block runs; a Unix socket gets the mode and goes at the end.

    Raises ConfigError, under the option's `key`, where that is impossible: the address is in use, a folder is missing.
    """
    with contextlib.ExitStack() as stack:
        try:
            address = parse_listen(listen)
            if isinstance(address, UnixAddress):
                found = [stack.enter_context(unix_socket(Path(address.path), mode))]
            else:
                found = [stack.enter_context(each) for each in _tcp_sockets(address.host, address.port)]
        except OSError as exc:
            raise ConfigError(key, f"cannot listen on {listen}: {exc.strerror or exc}") from exc
        yield found


@contextmanager
def ingest_sockets(settings: IngestSettings) -> Iterator[list[socket.socket]]:
    """Sockets that listen where events are taken in, while the block runs; none where that is turned off.

    Raises ConfigError where an address cannot be listened on.
    """
    if not settings.listen:
        yield []
        return
    with listening_sockets("ingest.listen", settings.listen, int(settings.socket_mode, 8)) as found:
        yield found


@contextmanager
def control_sockets(settings: Settings, unavailable: Callable[[str, str], None]) -> Iterator[list[socket.socket]]:
    """A socket that listens for commands while the block runs; none, with a report, where there is no place for it.

    That is where the run directory cannot be used: a daemon that delivers is of more use than one that ends for that.
    Raises ConfigError where another process has the socket, whose daemon the commands would reach instead, and where
    the path that the option names cannot be used.
    """
    path = Path(settings.control_socket)
    with contextlib.ExitStack() as stack:
        found = []
        try:
            if not settings.admin.control_socket:
                _make(path.parent)
            found.append(stack.enter_context(unix_socket(path, int(settings.admin.control_mode, 8))))
        except OSError as exc:
            why = exc.strerror or str(exc)
            if settings.admin.control_socket or isinstance(exc, FileExistsError):
                raise ConfigError("admin.control_socket", f"cannot listen on {path}: {why}") from exc
            unavailable(str(path), why)
        yield found


def _make(folder: Path) -> None:
    """Make the run directory, which the daemon's group may look into for its sockets."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return
    folder.chmod(0o750)


def peer_of(connected: socket.socket) -> Caller:
    """The process that connected to a Unix socket, as it was then and as the kernel has it."""
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(peer)
    return Caller(uid=uid, pid=pid)


def shown_address(sockets: Sequence[socket.socket]) -> str:
    """Where they listen, as clients write it: `unix:/path` or `host:port`, with the port that was free."""
    first = sockets[0]
    if first.family == socket.AF_UNIX:
        return f"unix:{first.getsockname()}"
    host, port = first.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tcp_sockets(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            made.append(socket.create_server(address, family=family, backlog=BACKLOG))
            made[-1].setblocking(False)
    except OSError:
        for each in made:
            each.close()
        raise
    return made


@contextmanager
def unix_socket(path: Path, mode: int) -> Iterator[socket.socket]:
    """A socket that is bound to the path with this mode; afterwards the path is taken away again.

    One that no process listens on is replaced. Raises OSError where one does, or where another kind of file is there.
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
        unbound.listen(BACKLOG)  # under the lock: the next process that looks finds a listener
        bound = unbound.dup()
    with bound:
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
            pass  # its queue of connections is full, so a process listens
    raise FileExistsError(None, "another process listens there")
