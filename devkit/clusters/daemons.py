"""Starts daemons, finds them again, sends them signals: always and only the ones of one cluster.

There are no pid files, which go stale when a session is killed and may then name a stranger. Each daemon
carries the cluster's folder and its own name in its environment; a process is ours when that mark is there.
A signal goes through a pidfd opened before the mark is read, so it cannot hit a pid that was used again.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devkit.clusters.state import DevError, State

MARK = "REMORA_DEV_DAEMON"


def start(state: State, name: str, argv: list[str], env: dict[str, str] | None = None) -> None:
    """Start one daemon in a session of its own; its output goes to log/<name>.out."""
    if name in running(state):
        return
    (state / "log").mkdir(parents=True, exist_ok=True)
    with open(state / f"log/{name}.out", "ab") as out:
        subprocess.Popen(
            argv,
            env=(os.environ if env is None else env) | mark(state, name),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            start_new_session=True,
        )


def running(state: State) -> dict[str, int]:
    """The live daemons of this cluster: name to pid."""
    prefix = _mark(state, "")
    found = {}
    for pid in _pids():
        found_mark = _read_mark(pid)
        with suppress(OSError):
            if found_mark.startswith(prefix) and os.getsid(pid) == pid:  # not a child of the daemon
                found[found_mark.removeprefix(prefix)] = pid
    return dict(sorted(found.items()))


def send(state: State, name: str, signum: signal.Signals) -> None:
    """Send one signal to a daemon that must be running; after a SIGSTOP it stands still."""
    if not (pids := _marked(_mark(state, name))):
        raise DevError(f"{name} is not running")
    for pid in pids:
        with _pidfd(pid, _mark(state, name)) as fd:
            if fd is not None:
                signal.pidfd_send_signal(fd, signum)
                if signum == signal.SIGSTOP:
                    _wait_until_still(pid, name)


def thaw(state: State) -> None:
    """Let every daemon of a cluster go on that an ended program has frozen."""
    for name in running(state):
        with suppress(DevError):  # it has just ended
            send(state, name, signal.SIGCONT)


def stop(state: State, names: list[str], signum: signal.Signals, patience_s: float = 40.0) -> None:
    """Signal these daemons and wait until they are gone; what outlives the patience is killed."""
    for name in names:
        for pid in _marked(_mark(state, name)):
            _stop_one(pid, _mark(state, name), signum)
    until = time.monotonic() + patience_s
    while left := [(pid, name) for name in names for pid in _marked(_mark(state, name))]:
        for pid, name in left:
            with _pidfd(pid, _mark(state, name)) as fd:
                if fd is None:
                    continue
                if time.monotonic() > until:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], 0.1)


def hurt(state: State, name: str, signum: signal.Signals) -> None:
    """Send a signal to one daemon; the ones that end it are waited for, and the env file follows."""
    if signum in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        stop(state, [name], signum)
        refresh_env(state)
    else:
        send(state, name, signum)


def refresh_env(state: State) -> None:
    """Write the pids as they are now into the env files of a cluster that is up."""
    if state.is_complete():
        state.write_env(state.env() | {"pids": running(state)})


def wait_for(what: str, is_done: Callable[[], bool], patience_s: float, state: State, names: list[str]) -> None:
    """Poll until done. A daemon that ends meanwhile, or the end of patience, is an error with its last words."""
    until = time.monotonic() + patience_s
    while not is_done():
        gone = [name for name in names if name not in running(state)]
        if gone:
            raise DevError(f"{gone[0]} ended while waiting for {what}\n{_last_words(state, gone[0])}")
        if time.monotonic() > until:
            raise DevError(f"no {what} within {patience_s:.0f} s; see {state / 'log'}")
        time.sleep(0.1)


def _stop_one(pid: int, mark: str, signum: signal.Signals) -> None:
    with _pidfd(pid, mark) as fd:
        if fd is not None:
            signal.pidfd_send_signal(fd, signum)
            if signum != signal.SIGKILL:
                signal.pidfd_send_signal(fd, signal.SIGCONT)  # a frozen process does not hear a polite signal


def _wait_until_still(pid: int, name: str, patience_s: float = 60.0) -> None:
    """Return when no thread of a process runs; until the one that the kernel tells gets its turn, the others go on."""
    until = time.monotonic() + patience_s
    while set(_thread_states(pid)) - set("TtZX"):
        if time.monotonic() > until:
            raise DevError(f"{name} still runs {patience_s:.0f} s after SIGSTOP")
        time.sleep(0.001)


def _thread_states(pid: int) -> Iterator[str]:
    for each in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            yield each.read_text().rpartition(")")[2].split()[0]


@contextmanager
def _pidfd(pid: int, mark: str) -> Iterator[int | None]:
    """A handle on this very process, or None when it is gone or not ours."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        with suppress(ProcessLookupError):
            yield fd if _read_mark(pid) == mark else None
    finally:
        os.close(fd)


def mark(state: State, name: str) -> dict[str, str]:
    """What makes a process part of this cluster, for its environment."""
    return {MARK: _mark(state, name)}


def _mark(state: State, name: str) -> str:
    return f"{state.path}:{name}"


def _marked(mark: str) -> list[int]:
    return [pid for pid in _pids() if _read_mark(pid) == mark]


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _read_mark(pid: int) -> str:
    """The mark of a process; "" for one that has none, is gone (a zombie too), or belongs to somebody else.

    A process whose root folder is not ours means another file by the same path: it lives in a container.
    """
    try:
        environ = _read_environ(pid)
        if not os.path.samefile(f"/proc/{pid}/root", "/"):
            return ""
    except OSError:
        return ""
    start = f"{MARK}=".encode()
    marks = [line.removeprefix(start) for line in environ.split(b"\0") if line.startswith(start)]
    return marks[0].decode() if marks else ""


def _read_environ(pid: int) -> bytes:
    """A process's environment. In the midst of an exec the kernel shows none, and no arguments: wait for its end."""
    folder = Path(f"/proc/{pid}")
    for _ in range(3):  # between two of these looks an exec may have ended; arguments without environment are no exec
        while not (environ := (folder / "environ").read_bytes()):
            (folder / "exe").readlink()  # a kernel thread and a zombie have none, which is an OSError
            if (folder / "cmdline").read_bytes():
                break
            time.sleep(0.001)
        if environ:
            break
        time.sleep(0.001)
    return environ


def _last_words(state: State, name: str) -> str:
    words = ""
    for file in (state / f"log/{name}.log", state / f"log/{name}.out"):
        if file.exists():
            words += "".join(f"  {line}\n" for line in file.read_text(errors="replace").splitlines()[-8:])
    return words.rstrip()
