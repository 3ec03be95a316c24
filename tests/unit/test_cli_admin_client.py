"""What commands make of the answers of a daemon, or of whatever answers in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.processes.daemon import write_config
from remora.model.exits import Exit
from support.commands import Run, config, remora
from support.scripted_daemon import STATUS, Answer, answer, scripted_daemon

__all__ = ["config", "remora"]

STRANGE = (
    b"[]",
    b"3",
    b'"x"',
    b"null",
    b"{}",
    b'{"reasons": 3}',
    b'{"problems": [3]}',
    b"[" * 100_000,
    b"\xff",
    b"<p>",
)


@pytest.fixture
def socket_of(config: Path, folder: Path) -> Path:
    """The control socket of the configuration, whose admin port is closed."""
    write_config(config, {"supervisor": {"run_directory": str(folder)}, "admin": {"listen": "127.0.0.1:1"}})
    return folder / "control.sock"


@pytest.mark.parametrize("status", [200, 403, 404, 422])
@pytest.mark.parametrize("body", STRANGE, ids=[repr(each[:20]) for each in STRANGE])
def test_an_answer_that_is_no_daemons_is_a_line(
    remora: Run, config: Path, socket_of: Path, status: int, body: bytes
) -> None:
    """Whatever the bytes are, a command ends with 69 and one line which says that this is no daemon."""
    with scripted_daemon(socket_of, {"/-/undrain": (status, body)}):
        done = remora("drain", "--undo", "-c", config)

    assert done.code == Exit.UNAVAILABLE
    assert done.err.startswith(f"remora: what answers on unix:{socket_of} (admin.control_socket) is no remora")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("command", [["status"], ["quarantine", "list"], ["shaping", "show"], ["shaping", "stats"]])
@pytest.mark.parametrize("said", [(200, b"[]"), (200, b"{}"), (404, b"not found"), (502, b"no way")])
def test_commands_that_read_tell_a_daemon_from_another_server(
    remora: Run, config: Path, command: list[str], said: Answer
) -> None:
    """Another server's answer, and that of a proxy without a daemon behind it, end a command with 69 and one line."""
    config.write_text("")
    with scripted_daemon(answers={"/-/status": said, "GET /-/shaping": said}) as address:
        done = remora(*command, "-c", config, "--admin", address)

    assert done.code == Exit.UNAVAILABLE
    assert "is no remora that delivers" in done.err or "answers with HTTP status 502; its log says why" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_refusal_of_a_daemon_is_told_from_the_rest(remora: Run, config: Path, socket_of: Path) -> None:
    """Its reasons are a missing permission, and its problems with a change are those of a configuration."""
    with scripted_daemon(socket_of, {"/-/undrain": answer({"ok": False, "reasons": ["a", "b"]}, 403)}):
        done = remora("drain", "--undo", "-c", config)
    assert (done.code, done.err) == (Exit.NO_PERMISSION, "remora: a; b\n")

    socket_of.unlink()
    problems = [("shaping.scope", "there is none"), ("shaping.rate", "too much")]
    with scripted_daemon(socket_of, {"/-/shaping": answer({"ok": False, "problems": problems}, 422)}):
        done = remora("shaping", "reset", "-c", config)
    assert done.code == Exit.CONFIG
    assert done.err == "remora: shaping.scope: there is none\nremora: shaping.rate: too much\n"


@pytest.mark.parametrize(
    ("command", "path", "shows"),
    [
        (["drain"], "/-/drain", "remora status"),
        (["drain", "--undo"], "/-/undrain", "remora status"),
        (["quarantine", "release", "--all"], "/-/release", "remora quarantine list"),
        (["shaping", "reset"], "/-/shaping", "remora shaping show"),
    ],
)
@pytest.mark.parametrize("said", [None, (500, b"")])
def test_a_change_that_is_not_answered_may_be_made(
    remora: Run, config: Path, folder: Path, command: list[str], path: str, shows: str, said: Answer
) -> None:
    """The message of 69 says so, and how to see it; where no daemon was reached nothing is said of it."""
    with scripted_daemon(folder / "control.sock", {f"POST {path}": said}) as address:
        write_config(config, {"supervisor": {"run_directory": str(folder)}, "admin": {"listen": address}})
        done = remora(*command, "-c", config)
    assert done.code == Exit.UNAVAILABLE
    assert f"the change may be made nevertheless: `{shows}`" in done.err

    (folder / "control.sock").unlink()
    done = remora("drain", "-c", config)
    assert done.code == Exit.UNAVAILABLE
    assert "nevertheless" not in done.err


def test_a_drain_whose_progress_is_not_known_goes_on(remora: Run, config: Path, socket_of: Path) -> None:
    """The daemon took it and its status cannot be had: the message says that the host drains, and how to end that."""
    with scripted_daemon(socket_of):
        done = remora("drain", "-c", config)

    assert done.code == Exit.UNAVAILABLE
    assert done.err.endswith("Connection refused; this host drains nevertheless, until `remora drain --undo`\n")


@pytest.mark.parametrize(("answers", "said"), [(True, "3 of 4"), (False, "no worker answers")])
def test_the_quarantine_of_a_silent_worker_is_not_known(
    remora: Run, config: Path, folder: Path, answers: bool, said: str
) -> None:
    """No list calls it empty, and a release is asked for nevertheless: both end with 1 and say whose is not known."""
    workers = [
        {"number": number, "cookie": f"remora/h/b/{number}", "answers": number == 0 and answers} for number in range(4)
    ]
    status = answer({**STATUS, "workers": workers})
    with scripted_daemon(folder / "control.sock", {"/-/status": status}) as address:
        write_config(config, {"supervisor": {"run_directory": str(folder)}, "admin": {"listen": address}})
        listed = remora("quarantine", "list", "-c", config)
        released = remora("quarantine", "release", "http://h", "-c", config)

    for done in (listed, released):
        assert (done.code, done.out) == (Exit.FAILURE, b"")
        assert said in done.err
        assert done.err.endswith("quarantines are not known\n")
