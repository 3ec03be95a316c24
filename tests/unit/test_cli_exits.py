"""Exit codes as the table of the README says, and words that never reach a user."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from devkit.processes.daemon import write_config
from remora.client.errors import IngestMisconfigured, NotPermitted
from remora.model.errors import ConfigUnreadable
from remora.model.exits import Exit, exit_code
from support.commands import Run, config, remora

__all__ = ["config", "remora"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root may read all files, and can become a user who may not")


@pytest.fixture
def nobody() -> Iterator[None]:
    """This process is a user without rights, for as long as the test runs."""
    os.setresuid(65534, 65534, 0)  # the real one, too: that is what access(2) goes by
    yield
    os.setresuid(0, 0, 0)


@as_root
def test_a_configuration_that_may_not_be_read_is_a_permission(
    remora: Run, config: Path, request: pytest.FixtureRequest
) -> None:
    """The exit code is 77, and the file is named."""
    config.write_text("")
    config.chmod(0o600)
    config.parent.chmod(0o755)
    request.getfixturevalue("nobody")

    for command in (["check-config", config], ["status", "-c", config]):
        done = remora(*command)
        assert done.code == Exit.NO_PERMISSION
        assert f"{config}: Permission denied" in done.err


@as_root
def test_a_store_that_may_not_be_read_is_a_permission(
    remora: Run, config: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its check ends with 77 and the reason; it does not take the store for one that has lost its files."""
    store = tmp_path / "queues"
    store.mkdir(mode=0o700)
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(store)}})
    for each in (config.parent, *config.parent.parents, *tmp_path.parents, tmp_path):
        if each != Path("/"):
            each.chmod(each.stat().st_mode | 0o011)
    request.getfixturevalue("nobody")

    done = remora("store", "check", "-c", config)

    assert done.code == Exit.NO_PERMISSION
    assert done.err.endswith(f"remora: {store} cannot be read by this user\n")


@pytest.mark.parametrize("words", [("store", "check"), ("topic", "list"), ("explain", "orders")], ids=" ".join)
def test_a_store_whose_directory_is_a_file_is_named_so(
    remora: Run, config: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Where `sqlite.directory` names a file, a command says that, and does not promise that a daemon makes a store."""
    place = tmp_path / "queues"
    place.write_text("something else")
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(place)}})

    done = remora(*words, "-c", config)

    assert done.code == Exit.NO_PERMISSION
    assert done.err.endswith(f"remora: {place} is not a directory\n")
    assert place.read_text() == "something else"


@as_root
def test_a_socket_that_does_not_let_in_is_a_permission(
    remora: Run, config: Path, folder: Path, request: pytest.FixtureRequest
) -> None:
    """`send` ends at once with 77 where the daemon's socket is not for this user."""
    path = folder / "ingest"
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(path))
        listening.listen()
        path.chmod(0o600)
        folder.chmod(0o755)
        records = folder / "records"
        for each in (config, records):
            each.write_text("")
            each.chmod(0o644)
        request.getfixturevalue("nobody")

        done = remora("send", "orders", records, "--to", f"unix:{path}")

    assert done.code == Exit.NO_PERMISSION
    assert "Permission denied" in done.err


@pytest.mark.parametrize(
    "command",
    ["log list", "log show x", "log append x", "log trim x 1", "store directory list", "store directory add {}/other",
     "store directory rm {}/other", "store backup {}/copies", "topic list", "dlq list"],
)  # fmt: skip
def test_a_store_that_is_not_there_is_a_line(remora: Run, config: Path, folder: Path, command: str) -> None:
    """Commands that do not make a store end with 77 and the directory's name, and leave nothing behind."""
    store = folder / "queues"
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(store)}})

    done = remora(*command.format(folder).split(), "-c", config)

    assert (done.code, str(store) in done.err.splitlines()[-1]) == (Exit.NO_PERMISSION, True), done.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "dlq list ODD", "topic hold orders --reason ODD", "topic rm ODD", "shaping set --scope ODD --enable",
        "send ODD /dev/null --to unix:/none --timeout 1s",
        "topic create t --endpoint kafka://h --arg ca-location=ODD",
    ],
)  # fmt: skip
def test_an_argument_that_is_no_text_is_wrong_usage(remora: Run, config: Path, tmp_path: Path, command: str) -> None:
    """Bytes that are no UTF-8 are named in one line with 2, where a command takes a text."""
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "q"), "files": 1}})
    assert remora("topic", "create", "orders", "--endpoint", "http://h", "-c", config).code == Exit.OK

    done = remora(*command.replace("ODD", "a\udcff").split(), "-c", config)

    assert done.code == Exit.USAGE
    assert done.err.splitlines()[-1].endswith(r"a\udcff is not UTF-8")


def test_names_that_may_be_any_bytes_are_taken_as_they_are(remora: Run, config: Path, tmp_path: Path) -> None:
    """Keys and buckets that are no UTF-8 match notifications, and a log of such a name is refused in words."""
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "q"), "files": 1}})
    assert remora("topic", "create", "orders", "--endpoint", "http://h", "-c", config).code == Exit.OK
    assert remora("notification", "create", "n", "--topic", "orders", "-c", config).code == Exit.OK

    tested = remora("notification", "test", "b", "k\udcff", "-c", config)
    made = remora("log", "create", "l\udcff", "-c", config)

    assert (tested.code, b"yes" in tested.out) == (Exit.OK, True)
    assert (made.code, made.err) == (Exit.FAILURE, "remora: the name of a log is UTF-8\n")


@as_root
@pytest.mark.parametrize(
    "command", ["store directory list", "store directory add {}/other", "store backup {}/copies", "topic list"]
)
def test_a_directory_that_may_not_be_entered_is_a_permission(
    remora: Run, folder: Path, request: pytest.FixtureRequest, command: str
) -> None:
    """A line names what this user may not look into; there is no traceback."""
    config, store = folder / "remora.toml", folder / "queues"
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(store), "files": 1}})
    assert remora("topic", "create", "t", "--endpoint", "http://h", "-c", config).code == Exit.OK
    folder.chmod(0o755)
    config.chmod(0o644)
    request.getfixturevalue("nobody")

    done = remora(*command.format(folder).split(), "-c", config)

    assert done.code == Exit.NO_PERMISSION
    assert str(store) in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


@pytest.mark.parametrize("error", [NotPermitted("no"), IngestMisconfigured("no"), ConfigUnreadable("", "no")])
def test_a_missing_permission_is_77(error: Exception) -> None:
    """A token without the right, a certificate that is not trusted, and a file that may not be read are one kind."""
    assert exit_code(error) == Exit.NO_PERMISSION  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["create", "set"])
def test_an_endpoint_that_can_never_work_is_wrong_usage(
    remora: Run, config: Path, tmp_path: Path, command: str
) -> None:
    """A scheme that remora does not deliver to, and a port that is none, are refused with 2, and nothing is made."""
    write_config(
        config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "queues"), "queue_bytes": "64KiB"}}
    )
    if command == "set":
        assert remora("topic", "create", "orders", "--endpoint", "kafka://b", "-c", config).code == Exit.OK

    for endpoint, why in (("ftp://b", "remora delivers to"), ("kafka://b:99999", "1 to 65535")):
        done = remora("topic", command, "orders", "--endpoint", endpoint, "-c", config)
        assert (done.code, why in done.err) == (Exit.USAGE, True), done.err


@pytest.mark.parametrize(
    ("words", "meant"), [(["topics"], "topic"), (["topic", "lst"], "list"), (["statsu"], "status"), (["xyz"], "")]
)
def test_a_command_that_is_nearly_right_is_named(remora: Run, words: list[str], meant: str) -> None:
    """A word that is no command is refused with the one that is most like it, if any is."""
    done = remora(*words)

    assert done.code == Exit.USAGE
    assert (f"did you mean '{meant}'?" in done.err) == bool(meant)


@pytest.mark.parametrize("library", ["asyncio", "aiokafka.conn"])
def test_lines_of_libraries_reach_no_user(remora: Run, capfdbinary: pytest.CaptureFixture[bytes], library: str) -> None:
    """In a command they go nowhere; a daemon's log gets them."""
    loggers = [logging.getLogger(), logging.getLogger(library.partition(".")[0])]
    before = [(each.handlers, each.propagate) for each in loggers]
    for each in loggers:
        each.handlers, each.propagate = [], True  # as in a process of its own
    try:
        remora("completion", "bash")
        loggers[0].handlers = []
        logging.getLogger(library).warning("Unknown child process pid %d", 1)
    finally:
        for each, (handlers, propagate) in zip(loggers, before, strict=True):
            each.handlers, each.propagate = handlers, propagate

    assert capfdbinary.readouterr().err == b""


@pytest.mark.parametrize("command", [["config", "default", "--all"], ["--help"], ["check-config"]])
def test_output_to_a_full_disk_is_a_failure_in_one_line(
    remora: Run, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """The exit code is 1 and a line says why; there is no traceback."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        done = remora(*command)
        monkeypatch.undo()
        with suppress(OSError):
            full.close()

    assert (done.code, done.err) == (Exit.FAILURE, "remora: cannot write what is printed: No space left on device\n")
