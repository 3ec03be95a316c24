"""Workers that are forked: what they have of the process that forked them, and how that sees their ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from devkit.waits import PATIENT_S

BEGIN = """
import json, os, random, select, signal, socket, ssl, sys, threading, time, uuid
from pathlib import Path
from remora.process import program
from remora.supervisor import process
from remora.supervisor.process import FirstWorkers

shared = os.memfd_create("shared")
private = os.open("/dev/null", os.O_RDONLY)

def said(worker):
    text = b""
    while part := worker.channel.recv(65536):
        text += part
    return json.loads(text)

def ended(worker):
    assert select.select([worker.end], [], [])
    return worker.process.wait()

def told(work):
    def tell(channel):
        with socket.socket(fileno=channel) as pipe:
            pipe.sendall(json.dumps(work(channel)).encode())
        return 7
    return tell
"""


def run(story: str, **env: str) -> Any:
    """What a process prints as JSON that does this; it has one thread, which the tests' own need not have."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + story],
        input="what the supervisor may read",
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=PATIENT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def test_a_forked_worker_is_as_one_that_was_started() -> None:
    """It has its pipe, what it inherits and nothing else open, an empty standard input, no word of the service manager,
    no signal blocked, the signals of a terminal ignored, and its own name."""
    seen = run(
        """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})

def work(channel):
    opened, mine = {int(each) for each in os.listdir("/proc/self/fd")}, {0, 1, 2, channel, shared}
    shown = Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0")
    return {
        "strange": [each for each in opened - mine if os.path.exists(f"/proc/self/fd/{each}")],
        "lacks": sorted(mine - opened),
        "input": os.readlink("/proc/self/fd/0"),
        "environment": [each for each in os.environ if each in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "KEPT")],
        "blocked": [each.name for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "ignored": [each.name for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_IGN],
        "shown": shown == ["remora", "worker", str(channel)],
        "parent": os.getppid(),
    }

workers = FirstWorkers(told(work))
with workers.forked(2, (shared,)):
    both = [workers.spawn((shared,)) for _ in range(2)]
    found = [said(each) for each in both]
    print(json.dumps({"said": found, "codes": [ended(each) for each in both], "me": os.getpid()}))
""",
        NOTIFY_SOCKET="@nobody",
        WATCHDOG_USEC="1",
        KEPT="1",
    )

    assert seen["codes"] == [7, 7]
    for each in seen["said"]:
        assert each == {
            "strange": [],
            "lacks": [],
            "input": "/dev/null",
            "environment": ["KEPT"],
            "blocked": [],
            "ignored": ["SIGINT", "SIGHUP"],
            "shown": True,
            "parent": seen["me"],
        }


def test_no_two_forked_workers_draw_the_same_numbers() -> None:
    """The random numbers, uuids and keys of one are not those of the other, nor of the process that forked them."""
    drawn = run(
        """
random.random(), uuid.uuid4(), ssl.RAND_bytes(8)

def draw(_=0):
    return [random.random(), random.Random().random(), str(uuid.uuid4()), os.urandom(8).hex(), ssl.RAND_bytes(8).hex()]

workers = FirstWorkers(told(draw))
with workers.forked(2, ()):
    print(json.dumps([draw(), *(said(workers.spawn(())) for _ in range(2))]))
"""
    )

    assert len({each for numbers in drawn for each in numbers}) == 3 * 5


def test_the_end_of_a_forked_worker_is_seen_as_it_was() -> None:
    """A signal that killed it is a negative code, what it raises is on standard error and a failure, and the end of the
    process that forked it is the end of its pipe."""
    seen = run(
        """
sys.stderr.close()
os.dup2(shared, 2)
sys.stderr = open(2, "w")

def work(channel):
    with socket.socket(fileno=channel) as pipe:
        match pipe.recv(10):
            case b"raise":
                raise ArithmeticError("a defect")
            case b"memory":
                raise MemoryError
            case b"":
                os._exit(9)

workers = FirstWorkers(work)
with workers.forked(5, (2,)):
    killed, raises, starved, gone, untaken = *(workers.spawn(()) for _ in range(4)), workers._forked[0]
    killed.process.kill()
    raises.channel.send(b"raise")
    starved.channel.send(b"memory")
    gone.channel.close()
    codes = [ended(each) for each in (killed, raises, starved, gone)]
    killed.process.kill()  # whose number may be another process's by now
    polled = untaken.process.poll()
text = os.pread(shared, 65536, 0).decode()
print(json.dumps({"codes": codes, "polled": polled, "untaken": untaken.process.poll(), "text": text}))
"""
    )

    assert seen["codes"] == [-9, 1, 71, 9]
    assert "ArithmeticError: a defect" in seen["text"]
    assert "cannot allocate memory to start with" in seen["text"]
    assert (seen["polled"], seen["untaken"]) == (None, -9)


@pytest.mark.parametrize(
    "hinders",
    [
        "thread = threading.Thread(target=time.sleep, args=(60,), daemon=True); thread.start()",
        "def refuse(): raise BlockingIOError(11, 'no process')\nos.fork = refuse",
    ],
)
def test_a_process_that_cannot_be_forked_starts_its_workers(hinders: str) -> None:
    """Beside another thread, or where the host refuses, nothing is forked: each worker is a program of its own."""
    shown = run(
        f"""
{hinders}
workers = FirstWorkers(told(lambda _: None))
with workers.forked(1, ()):
    forked = len(workers._forked)
    worker = workers.spawn(())
    shown = ""
    while "worker" not in shown:  # before that it is still this program
        shown = Path(f"/proc/{{worker.process.pid}}/cmdline").read_text()
    worker.channel.close()
    print(json.dumps([forked, shown.split("\\0")[1:5], ended(worker)]))
"""
    )

    assert shown == [0, ["-P", "-m", "remora", "worker"], 1]
