"""One client of a Ceph cluster, and its view of single pools. Every method here may block: call it in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import byref, c_char_p, c_size_t, c_void_p, create_string_buffer, string_at

from remora.storage.librados.library import check, load

_ENOENT, _ENAMETOOLONG = 2, 36


class Cluster:
    """A librados client instance. Locks belong to the instance: another one of the same user is another holder."""

    def __init__(self, cluster_name: str, user: str) -> None:
        self._library = load()
        self._handle = c_void_p()
        result = self._library.rados_create2(byref(self._handle), cluster_name.encode(), user.encode(), 0)
        check(result, f"creating a client for {user}")

    def read_conf(self, path: str | None) -> None:
        """Read a configuration file; None for the one that Ceph's own tools would read."""
        result = self._library.rados_conf_read_file(self._handle, path.encode() if path else None)
        check(result, f"reading {path or 'ceph.conf'}")

    def set_options(self, options: Mapping[str, str]) -> None:
        for name, value in options.items():
            check(self._library.rados_conf_set(self._handle, name.encode(), value.encode()), f"{name} = {value}")

    def option(self, name: str) -> str:
        """The value of an option; empty when this release has no such option."""
        size = 256
        while True:
            buffer = create_string_buffer(size)
            result = self._library.rados_conf_get(self._handle, name.encode(), buffer, size)
            if result == -_ENOENT:
                return ""
            if result != -_ENAMETOOLONG:
                check(result, f"option {name}")
                return buffer.value.decode(errors="surrogateescape")
            size *= 4

    def connect(self) -> None:
        check(self._library.rados_connect(self._handle), "connecting to the cluster")

    @property
    def instance_id(self) -> int:
        """The number in `client.<number>`, the holder's name in locks."""
        number: int = self._library.rados_get_instance_id(self._handle)
        return number

    def has_pool(self, pool: str) -> bool:
        number: int = self._library.rados_pool_lookup(self._handle, pool.encode())
        return number < 1 << 63  # an int64_t; negative is an errno

    def mon_command(self, command: bytes) -> bytes:
        """What the monitors answer to a command in JSON."""
        out, out_length, said, said_length = c_void_p(), c_size_t(), c_void_p(), c_size_t()
        result = self._library.rados_mon_command(
            self._handle, (c_char_p * 1)(command), 1, None, 0,
            byref(out), byref(out_length), byref(said), byref(said_length),
        )  # fmt: skip
        try:
            check(result, "asking the monitors")
            return string_at(out.value, out_length.value) if out.value else b""
        finally:
            for buffer in (out, said):
                if buffer.value:
                    self._library.rados_buffer_free(buffer)

    def open_pool(self, pool: str, namespace: str) -> IoCtx:
        handle = c_void_p()
        result = self._library.rados_ioctx_create(self._handle, pool.encode(), byref(handle))
        check(result, f"opening pool {pool}")
        self._library.rados_ioctx_set_namespace(handle, namespace.encode())
        return IoCtx(handle, pool, namespace)

    def shutdown(self) -> None:
        """End the client. No call of another method and no operation may be under way."""
        self._library.rados_shutdown(self._handle)


class IoCtx:
    """One namespace of one pool."""

    def __init__(self, handle: c_void_p, pool: str, namespace: str) -> None:
        self.handle = handle
        self.pool = pool
        self.namespace = namespace

    def __str__(self) -> str:
        return f"{self.pool}:{self.namespace}" if self.namespace else self.pool

    def list_objects(self) -> Iterator[str]:
        """The names of all objects, in no order."""
        library, cursor = load(), c_void_p()
        check(library.rados_nobjects_list_open(self.handle, byref(cursor)), f"listing objects of {self}")
        entry, skip, length, skip_length = c_void_p(), c_void_p(), c_size_t(), c_size_t()
        sizes = byref(length), byref(skip_length), byref(skip_length)
        try:
            while True:
                result = library.rados_nobjects_list_next2(cursor, byref(entry), byref(skip), byref(skip), *sizes)
                if result == -_ENOENT:
                    return
                check(result, f"listing objects of {self}")
                yield string_at(entry.value or 0, length.value).decode(errors="surrogateescape")
        finally:
            library.rados_nobjects_list_close(cursor)

    def destroy(self) -> None:
        load().rados_ioctx_destroy(self.handle)
