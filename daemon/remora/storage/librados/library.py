"""The C functions of librados.so.2 that remora calls, with their types; loaded when first needed."""

from __future__ import annotations

import errno
import functools
import os
from ctypes import (
    CDLL,
    POINTER,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

SONAME = "librados.so.2"

_OUT = POINTER(c_void_p)
_SIZE_OUT = POINTER(c_size_t)
_INT_OUT = POINTER(c_int)

# name -> (result, arguments). Buffers that librados hands out are c_void_p throughout: a c_char_p result would
# be turned into bytes up to the first NUL, and its address lost.
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # cluster handle
    "rados_create2": (c_int, (_OUT, c_char_p, c_char_p, c_uint64)),
    "rados_conf_read_file": (c_int, (c_void_p, c_char_p)),
    "rados_conf_set": (c_int, (c_void_p, c_char_p, c_char_p)),
    "rados_conf_get": (c_int, (c_void_p, c_char_p, c_void_p, c_size_t)),
    "rados_connect": (c_int, (c_void_p,)),
    "rados_shutdown": (None, (c_void_p,)),
    "rados_get_instance_id": (c_uint64, (c_void_p,)),
    "rados_pool_lookup": (c_uint64, (c_void_p, c_char_p)),
    "rados_mon_command": (
        c_int,
        (c_void_p, POINTER(c_char_p), c_size_t, c_char_p, c_size_t, _OUT, _SIZE_OUT, _OUT, _SIZE_OUT),
    ),
    "rados_buffer_free": (None, (c_void_p,)),
    # pool handle and object listing
    "rados_ioctx_create": (c_int, (c_void_p, c_char_p, _OUT)),
    "rados_ioctx_destroy": (None, (c_void_p,)),
    "rados_ioctx_set_namespace": (None, (c_void_p, c_char_p)),
    "rados_nobjects_list_open": (c_int, (c_void_p, _OUT)),
    "rados_nobjects_list_next2": (
        c_int,
        (c_void_p, _OUT, _OUT, _OUT, _SIZE_OUT, _SIZE_OUT, _SIZE_OUT),
    ),
    "rados_nobjects_list_close": (None, (c_void_p,)),
    # completions
    "rados_aio_create_completion2": (c_int, (c_void_p, c_void_p, _OUT)),
    "rados_aio_get_return_value": (c_int, (c_void_p,)),
    "rados_aio_get_version": (c_uint64, (c_void_p,)),
    "rados_aio_release": (None, (c_void_p,)),
    "rados_aio_cancel": (c_int, (c_void_p, c_void_p)),
    # watches
    "rados_aio_watch2": (
        c_int,
        (c_void_p, c_char_p, c_void_p, POINTER(c_uint64), c_void_p, c_void_p, c_uint32, c_void_p),
    ),
    "rados_aio_unwatch": (c_int, (c_void_p, c_uint64, c_void_p)),
    "rados_aio_notify": (
        c_int,
        (c_void_p, c_char_p, c_void_p, c_char_p, c_int, c_uint64, _OUT, _SIZE_OUT),
    ),
    "rados_notify_ack": (c_int, (c_void_p, c_char_p, c_uint64, c_uint64, c_char_p, c_int)),
    # compound reads
    "rados_create_read_op": (c_void_p, ()),
    "rados_release_read_op": (None, (c_void_p,)),
    "rados_aio_read_op_operate": (c_int, (c_void_p, c_void_p, c_void_p, c_char_p, c_int)),
    "rados_read_op_assert_exists": (None, (c_void_p,)),
    "rados_read_op_cmpxattr": (None, (c_void_p, c_char_p, c_uint8, c_char_p, c_size_t)),
    "rados_read_op_cmpext": (None, (c_void_p, c_char_p, c_size_t, c_uint64, _INT_OUT)),
    "rados_read_op_getxattrs": (None, (c_void_p, _OUT, _INT_OUT)),
    "rados_read_op_read": (None, (c_void_p, c_uint64, c_size_t, c_void_p, _SIZE_OUT, _INT_OUT)),
    "rados_read_op_exec": (
        None,
        (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t, _OUT, _SIZE_OUT, _INT_OUT),
    ),
    "rados_read_op_omap_get_keys2": (
        None,
        (c_void_p, c_char_p, c_uint64, _OUT, POINTER(c_ubyte), _INT_OUT),
    ),
    "rados_read_op_omap_get_vals_by_keys2": (
        None,
        (c_void_p, POINTER(c_char_p), c_size_t, _SIZE_OUT, _OUT, _INT_OUT),
    ),
    "rados_getxattrs_next": (c_int, (c_void_p, _OUT, _OUT, _SIZE_OUT)),
    "rados_getxattrs_end": (None, (c_void_p,)),
    "rados_read_op_omap_get_vals2": (
        None,
        (c_void_p, c_char_p, c_char_p, c_uint64, _OUT, POINTER(c_ubyte), _INT_OUT),
    ),
    "rados_omap_get_next2": (c_int, (c_void_p, _OUT, _OUT, _SIZE_OUT, _SIZE_OUT)),
    "rados_omap_get_end": (None, (c_void_p,)),
    # compound writes
    "rados_create_write_op": (c_void_p, ()),
    "rados_release_write_op": (None, (c_void_p,)),
    "rados_aio_write_op_operate": (
        c_int,
        (c_void_p, c_void_p, c_void_p, c_char_p, c_void_p, c_int),
    ),
    "rados_write_op_assert_exists": (None, (c_void_p,)),
    "rados_write_op_assert_version": (None, (c_void_p, c_uint64)),
    "rados_write_op_cmpxattr": (None, (c_void_p, c_char_p, c_uint8, c_char_p, c_size_t)),
    "rados_write_op_setxattr": (None, (c_void_p, c_char_p, c_char_p, c_size_t)),
    "rados_write_op_create": (None, (c_void_p, c_int, c_char_p)),
    "rados_write_op_cmpext": (None, (c_void_p, c_char_p, c_size_t, c_uint64, _INT_OUT)),
    "rados_write_op_write": (None, (c_void_p, c_char_p, c_size_t, c_uint64)),
    "rados_write_op_write_full": (None, (c_void_p, c_char_p, c_size_t)),
    "rados_write_op_remove": (None, (c_void_p,)),
    "rados_write_op_exec": (None, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t, _INT_OUT)),
    "rados_write_op_omap_cmp2": (
        None,
        (c_void_p, c_char_p, c_uint8, c_char_p, c_size_t, c_size_t, _INT_OUT),
    ),
    "rados_write_op_omap_rm_keys2": (None, (c_void_p, POINTER(c_char_p), _SIZE_OUT, c_size_t)),
    "rados_write_op_omap_set2": (
        None,
        (c_void_p, POINTER(c_char_p), POINTER(c_char_p), _SIZE_OUT, _SIZE_OUT, c_size_t),
    ),
}


@functools.cache
def load() -> CDLL:
    """The library with every prototype set. Raises OSError when it is not installed or lacks a function."""
    library = CDLL(SONAME)
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError as exc:
            raise OSError(errno.ENOSYS, f"{SONAME} is too old: it has no {name}") from exc
        function.restype = result
        function.argtypes = arguments
    return library


class LibradosError(Exception):
    """A call that librados or the OSD refused; `code` is the positive errno."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what}: {os.strerror(code)} [{errno.errorcode.get(code, code)}]")
        self.code = code
        self.what = what


def check(result: int, what: str) -> int:
    """The result of a C call. Raises LibradosError when it is negative."""
    if result < 0:
        raise LibradosError(-result, what)
    return result
