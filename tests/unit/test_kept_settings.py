"""A configuration that is refused does not blind the commands that show what runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from devkit.processes.daemon import write_config
from remora.config import Settings, load
from remora.model.exits import Exit
from remora.process import kept_settings
from support.commands import Run, config, remora
from support.scripted_daemon import scripted_daemon

__all__ = ["config", "remora"]


@pytest.fixture
def of_running(config: Path, tmp_path: Path) -> Settings:
    """The settings of a daemon that was started with the file, before that was spoilt."""
    config.write_text(f'[supervisor]\nrun_directory = "{tmp_path}/run"\n')
    return load(config)


def test_settings_are_recalled_as_they_were(of_running: Settings, config: Path, tmp_path: Path) -> None:
    """All of them, for this file only, in a file that nobody else may read."""
    kept_settings.remember(of_running, config)

    assert kept_settings.recall(config) == of_running
    assert kept_settings.recall(tmp_path / "other.toml") is None
    [kept] = (tmp_path / "run").iterdir()
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("spoilt", ['[log]\nlevel = "loud"\n', "no toml ["])
def test_a_refused_file_does_not_blind_status(remora: Run, of_running: Settings, config: Path, spoilt: str) -> None:
    """The daemon that runs is asked where it listens, and standard error says what is wrong with the file."""
    with scripted_daemon() as address:
        kept_settings.remember(replace(of_running, admin=replace(of_running.admin, listen=address)), config)
        config.write_text(f"{config.read_text()}\n{spoilt}")

        done = remora("status", "-c", config)

    assert done.code == Exit.OK
    assert done.out.startswith(b"remora 1, ready\n")
    assert "log.level" in done.err or "is not TOML" in done.err
    assert "by the settings that it runs with" in done.err


ASKING = (
    "shaping show", "shaping stats", "quarantine list", "topic stats", "balance show", "slo rules",
    "drain", "drain --undo", "quarantine release --all", "shaping reset",
    "shaping set --scope ALL --disable", "topic hold orders", "topic resume orders",
)  # fmt: skip
READING = (
    "topic list", "topic show orders", "notification list", "dlq list", "dlq list --summary", "ledger", "shard list",
    "spill list", "store directory list", "explain orders",
)  # fmt: skip
CHANGING = ("topic rm orders", "notification rm photos", "dlq drop --yes --topic orders", "store directory add more")


@pytest.fixture
def topic(remora: Run, config: Path, folder: Path) -> None:
    """A store with a topic `orders`, by a file that is not spoilt yet."""
    store, run = {"directory": f"{folder}/queues", "files": 1}, {"run_directory": str(folder)}
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": store, "supervisor": run})
    assert remora("topic", "create", "orders", "--endpoint", "http://h", "-c", config).code == Exit.OK


@pytest.mark.parametrize("command", [*ASKING, *READING])
@pytest.mark.usefixtures("topic")
def test_a_refused_file_takes_no_command_away_that_looks(remora: Run, config: Path, folder: Path, command: str) -> None:
    """Each command that asks the running daemon, changes what it does or only reads its store goes by the settings that
    it runs with."""
    with scripted_daemon(folder / "control.sock") as address:
        settings = load(config)
        kept_settings.remember(replace(settings, admin=replace(settings.admin, listen=address)), config)
        config.write_text(f'{config.read_text()}\n[log]\nlevel = "loud"\n')

        done = remora(*command.split(), "-c", config)

    assert done.code == Exit.OK, done.err
    assert "by the settings that it runs with" in done.err


@pytest.mark.parametrize("command", CHANGING)
@pytest.mark.usefixtures("topic")
def test_a_refused_file_keeps_the_store_from_changes(remora: Run, config: Path, command: str) -> None:
    """A command that changes the store is refused: the file may be about to name another one."""
    kept_settings.remember(load(config), config)
    config.write_text(f'{config.read_text()}\n[log]\nlevel = "loud"\n')

    done = remora(*command.split(), "-c", config)

    assert done.code == Exit.CONFIG
    assert "log.level" in done.err


def test_a_refused_file_does_not_keep_events_out(remora: Run, config: Path, folder: Path) -> None:
    """`send` goes where the running daemon takes events in, not where the refused file says."""
    config.write_text(f'[supervisor]\nrun_directory = "{folder}"\n[ingest]\nlisten = "unix:{folder}/in"\n')
    kept_settings.remember(load(config), config)
    config.write_text(config.read_text().replace("/in", "/other") + '[log]\nlevel = "loud"\n')
    records = folder / "records"
    records.write_text("")

    done = remora("send", "orders", records, "--timeout", "0.1s", "-c", config)

    assert done.code == Exit.UNAVAILABLE
    assert f"unix:{folder}/in: cannot connect" in done.err


def test_without_a_daemon_the_refusal_stands(remora: Run, config: Path) -> None:
    """Where nothing tells what runs, the file's problem is the answer."""
    config.write_text('[log]\nlevel = "loud"')

    assert remora("status", "-c", config).code == Exit.CONFIG


def test_the_address_can_be_given(remora: Run, config: Path) -> None:
    """`--admin` says where the daemon listens, whatever the file says."""
    config.write_text('[admin]\nlisten = "127.0.0.1:1"')
    with scripted_daemon() as address:
        assert remora("status", "-c", config, "--admin", address).code == Exit.OK
    assert remora("status", "-c", config, "--admin", "nonsense").code == Exit.USAGE
