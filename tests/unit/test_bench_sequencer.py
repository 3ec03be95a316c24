"""What the sequencer's benchmark refuses to count, and what it makes of its windows."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from devkit.bench import seqnetwork
from devkit.bench import sequencer as bench
from devkit.bench.clusters import BenchError
from remora.codec.sequencer import reply

# The load generator sends as many requests at once, whatever time they take: each fault below is among the first eight.
LOAD = bench.Load(connections=1, depth=8)


@contextmanager
def server(hands_out: Callable[[int], int]) -> Iterator[bench.Server]:
    """A server whose n-th position is `hands_out(n)`; its tail is how many it was asked for."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = [0]

        def serve(connection: socket.socket) -> None:
            # The load generator ends at the first fault, and leaves replies unread.
            with suppress(ConnectionError), connection, connection.makefile("rb") as stream:
                while header := stream.read(4):
                    body = stream.read(struct.unpack(">I", header)[0])
                    asked[0] += body[-1]
                    connection.sendall(reply(hands_out(asked[0]) if body[-1] else asked[0]))

        def accept() -> None:
            with suppress(OSError):  # the listener is closed while it waits for one more
                for _ in range(3):  # one of them reads tails
                    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield bench.Server("scripted", f"127.0.0.1:{listener.getsockname()[1]}", 1, ["pool/log:1"])


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> bench.Programs:
    return bench.Programs(tmp_path_factory.mktemp("programs"))


def test_a_right_server_has_a_figure(programs: bench.Programs) -> None:
    """Every request is counted, and as many positions."""
    with server(lambda n: n) as right:
        found = programs.load(right, LOAD, 0.0, 0)

    assert found["requests"] == found["positions"] > 0


@pytest.mark.parametrize(
    ("hands_out", "problem"),
    [
        (lambda n: n if n < 5 else n - 1, "came behind 4"),
        (lambda n: n if n < 5 else n + 1, "the tail is"),
        (lambda n: max(0, n - 1), "position 0 came behind 0"),
        (lambda n: n if n % 2 else max(1, n - 2), "came behind"),
    ],
    ids=["twice", "hole", "zero", "backwards"],
)
def test_a_wrong_server_has_none(programs: bench.Programs, hands_out: Callable[[int], int], problem: str) -> None:
    """A position that comes twice, a hole, position 0 and one that goes back end the run, and it says why."""
    with server(hands_out) as wrong, pytest.raises(BenchError, match=problem):
        programs.load(wrong, LOAD, 0.0, 0)


def test_a_server_that_deals_out_blocks_has_none(programs: bench.Programs) -> None:
    """Positions that grow on each connection, but not in real time over both, end the run."""
    blocks: dict[int, int] = {}

    def in_blocks(number: int) -> int:
        return number + 1_000_000 * blocks.setdefault(threading.get_ident(), len(blocks))

    two = bench.Load(connections=2, depth=1)
    with server(in_blocks) as wrong, pytest.raises(BenchError, match="had come"):
        programs.load(wrong, two, 5.0, 0)


def window(requests: int, others: float = 0.0, **more: Any) -> dict[str, Any]:
    base = {"requests": requests, "positions": requests, "took_s": 2.0, "server_cpu_s": 0.25, "client_cpu_s": 0.25}
    return base | {"others": others} | more


def test_windows_beside_other_processes_are_left_out() -> None:
    """They count only where there is no quieter one, and the figure then says so."""
    mixed = bench.summary([window(100), window(300), window(9000, others=0.2)], "one")
    busy = bench.summary([window(9000, others=0.2)], "one")

    assert (mixed["rate"], mixed["left_out"], mixed["busy"]) == (400.0, 1, False)
    assert (busy["rate"], busy["left_out"], busy["busy"]) == (18_000.0, 0, True)


def test_rates_are_for_processor_time_on_one_cpu_and_for_time_on_two() -> None:
    """And those of ranges are positions."""
    assert bench.summary([window(100)], "one")["rate"] == 200
    assert bench.summary([window(100)], "near")["rate"] == 50
    ranges = bench.summary([window(100, positions=6400)], "near")
    assert (ranges["rate"], ranges["of"]) == (3200, "positions")


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [(110, 130, "near"), (400, 500, "far"), (110, 500, "unclear"), (250, 250, "unclear")],
)
def test_processors_are_near_or_far_when_both_looks_say_so(before: float, after: float, place: str) -> None:
    """Where the hypervisor moved one of them in between, a window counts for neither."""
    assert bench.placement(before, after) == place


def test_gates_compare_the_compiled_core_with_the_servers_beside_it() -> None:
    """A ratio against its bound; without both sides there is no verdict."""
    load = "32 synchronous"
    found = bench.gates({"one": {"naive": {load: {"rate": 100.0}}, "compiled": {load: {"rate": 130.0}}}})

    verdicts = {gate["gate"]: (gate["value"], gate["reached"]) for gate in found}
    assert verdicts["32 synchronous / naive"] == (1.3, True)
    assert verdicts["32 synchronous / ceiling"] == (None, None)
    assert verdicts["32 synchronous, requests/s"] == (130.0, False)


def test_a_network_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root there are no namespaces, and the benchmark says so before it begins."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(BenchError, match="root"):
        seqnetwork.run(0.1, 1)
