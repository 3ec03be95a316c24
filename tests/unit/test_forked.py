"""Commands that devkit forks: each is what the same command is in an interpreter of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.processes import forked
from devkit.processes.daemon import REMORA, write_config
from devkit.waits import PATIENT_S

ONE = {"sqlite": {"directory": "/none"}, "admin": {"listen": "unix:/a/b"}}


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["--version"], b""),
        (["topic", "nonsense"], b""),
        (["topic", "list", "--help"], b""),
        (["check-config", "-c", "remora.toml"], b""),
        (["config", "show"], b""),
        (["topic", "apply", "-", "-c", "remora.toml"], b"[topics"),
    ],
)
async def test_a_forked_command_answers_as_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], stdin: bytes
) -> None:
    """It reads its folder, environment and input as they are now, prints the same to both outputs, and ends alike."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMORA_CONFIG", str(write_config(tmp_path / "remora.toml", ONE)))
    monkeypatch.setenv("REMORA_SUPERVISOR_WORKERS", "7")

    alone = await asyncio.to_thread(subprocess.run, [*REMORA, *arguments], input=stdin, capture_output=True)

    assert await forked.run(arguments, stdin) == (alone.returncode, alone.stdout, alone.stderr)


async def test_forked_commands_run_side_by_side() -> None:
    """Each of several at once is given what is its own."""
    found = await asyncio.gather(*(forked.run(["topic", f"none-{each}"], b"") for each in range(4)))

    assert [(code, f"'none-{each}'" in err.decode()) for each, (code, _, err) in enumerate(found)] == [(2, True)] * 4


async def test_a_command_whose_interpreter_differs_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a variable of Python's or of a system library has changed, a command needs an interpreter of its own."""
    assert forked.is_possible()

    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{sys.path[0]}")

    assert not forked.is_possible()


async def test_a_command_that_is_given_up_is_killed(folder: Path) -> None:
    """A forked command that nobody waits for any longer does not go on waiting for its daemon."""
    asked = asyncio.get_running_loop().create_future()
    listener = await asyncio.start_unix_server(lambda *streams: asked.set_result(streams), folder / "admin")
    config = write_config(folder / "remora.toml", {"admin": {"listen": f"unix:{folder / 'admin'}"}})

    async with listener, asyncio.timeout(PATIENT_S):
        given_up = asyncio.create_task(forked.run(["status", "-c", str(config)], b""))
        question, answer = await asked
        given_up.cancel()

        await question.read()  # ends as the command does: nobody answers it
        answer.close()
        with pytest.raises(asyncio.CancelledError):
            await given_up
