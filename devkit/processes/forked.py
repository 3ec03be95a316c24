"""Commands of `remora`, forked from a process that has imported them: each saves the imports, most of its time.

A command is a process of its own, with its own arguments, environment, folder, input and output, and runs the program
from its first line.

multiprocessing's fork server imports modules before it forks, too. It hands over neither standard input nor outputs nor
an environment, and its children end in its own code, with exit codes of its own for exceptions.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module

_MESSAGE_BYTES = 1 << 17
"""Room for a command's arguments and environment: a message between two sockets is not larger by itself."""

READ_AT_START = ("PYTHON", "GLIBC_", "MALLOC_", "LD_", "LC_", "LANG")
"""How the variables begin that an interpreter and its libraries read when they start, and never again."""


async def run(arguments: Sequence[str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """Runs a command to its end: its exit code, negative for a signal, and what it wrote to both outputs."""
    loop = asyncio.get_running_loop()
    with ExitStack() as theirs, ExitStack() as ours:
        pairs = [socket.socketpair(), socket.socketpair(type=socket.SOCK_SEQPACKET)]
        (source, their_stdin), (answers, their_answers) = pairs
        for own, their in pairs:
            ours.enter_context(own).setblocking(False)
            theirs.enter_context(their)
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        for their_pipe in (their_out, their_err):
            theirs.callback(os.close, their_pipe)
        begun = json.dumps([*arguments, os.getcwd(), dict(os.environ)]).encode()
        given = [their_stdin.fileno(), their_out, their_err, their_answers.fileno()]
        socket.send_fds(_server(), [begun], given)
        theirs.close()
        async with asyncio.TaskGroup() as group:
            written = [group.create_task(_all_of(each)) for each in (out, err)]
            pid, code = int(await loop.sock_recv(answers, 64)), None
            try:
                with suppress(BrokenPipeError, ConnectionResetError):  # it may end without reading
                    await loop.sock_sendall(source, stdin)
                source.close()
                code = int(await loop.sock_recv(answers, 64))
            finally:
                if code is None:
                    os.kill(pid, signal.SIGKILL)
        printed, complained = (each.result() for each in written)
        return code, printed, complained


async def _all_of(pipe: int) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", buffering=0)
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def is_possible() -> bool:
    """Whether a command may be forked: the variables that count when an interpreter starts are what they were."""
    return _at_start(os.environ) == _server_environment()


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


@cache
def _server_environment() -> dict[str, str]:
    _server()
    return _at_start(os.environ)


@cache
def _server() -> socket.socket:
    """The socket to the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# --------------------------------------------------------------------------------- in the process that forks


def _serve(requests: socket.socket) -> list[str]:
    """Fork for each request; returns in the forked processes only, with a command's arguments."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != requests.fileno():
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    pid, answers = running.pop(key.fd)
                    with answers, suppress(OSError):  # nobody may wait for it any longer
                        answers.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    continue
                request, given, *_ = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
                if not request:
                    sys.exit()
                answers = socket.socket(fileno=given.pop())
                if (pid := os.fork()) == 0:
                    requests.close()
                    for each in (answers, *(other for _, other in running.values())):
                        each.close()
                    for of_another in running:
                        os.close(of_another)
                    return _begun(request, given)
                for handed in given:
                    os.close(handed)
                running[watched := os.pidfd_open(pid)] = pid, answers
                selector.register(watched, selectors.EVENT_READ)
                with suppress(OSError):
                    answers.send(b"%d" % pid)


def _begun(request: bytes, standard: Sequence[int]) -> list[str]:
    """Make a forked process what the request asks for; returns the arguments."""
    *arguments, folder, environment = json.loads(request)
    for number, each in enumerate(standard):
        os.dup2(each, number)
        os.close(each)
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return [str(each) for each in arguments]


def _import_commands() -> None:
    for each in import_module("remora.cli").COMMANDS.values():
        import_module(f"remora.cli.{each.partition(':')[0]}")
    for name in ("concurrent.futures.thread", "remora.storage.sqlite.store", "remora.endpoints.kafka"):
        import_module(name)


if __name__ == "__main__":
    del sys.path[0]  # this file's folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_commands()
    gc.freeze()
    sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("remora", run_name="__main__", alter_sys=True)
