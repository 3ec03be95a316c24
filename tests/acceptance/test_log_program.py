"""The program of docs/log.md, as it stands there, beside a sequencer that is killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.paths import ROOT
from devkit.waits import PATIENT_S
from support.sequencer_process import a_server, command


@pytest.mark.guarantee("positions-of-a-log")
async def test_the_program_of_the_page_survives_a_kill(folder: Path) -> None:
    """The program that docs/log.md shows appends and follows on when the sequencer is killed and another one starts."""
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/log.md").read_text(), re.DOTALL)
    (folder / "program.py").write_text(shown)
    (folder / "remora.toml").write_text(
        f'[store]\nkind = "sqlite"\n[sqlite]\ndirectory = "{folder}/queues"\nfiles = 1\n'
        f'[sequencer]\nlisten = "unix:{folder}/one.sock"\nadmin_listen = "unix:{folder}/admin.sock"\n'
    )
    assert (await asyncio.to_thread(command, folder, "log", "create", "orders")).code == 0
    environment = os.environ | {"REMORA_CONFIG": str(folder / "remora.toml")}
    async with a_server(folder) as server:
        program = await asyncio.create_subprocess_exec(
            sys.executable, str(folder / "program.py"), stdout=subprocess.PIPE, env=environment
        )
        assert program.stdout is not None
        async with asyncio.timeout(PATIENT_S):
            begun = [(await program.stdout.readline()).decode() for _ in range(3)]
        await server.ended(signal.SIGKILL)
        (folder / "one.sock").unlink()

    async with a_server(folder):
        rest, _ = await asyncio.wait_for(program.communicate(), PATIENT_S)

    lines = [each.split(maxsplit=1) for each in (*begun, *rest.decode().splitlines())]
    assert program.returncode == 0
    assert [each[1].strip() for each in lines] == [f"event {number}" for number in range(100)]
    positions = [int(each[0]) for each in lines]
    assert positions == sorted(set(positions))
