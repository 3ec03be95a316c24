"""A program that uses shared logs while everything around it is hurt, and writes down what it asked and was answered.

  python -m devkit.chaos.log_client CONFIG HISTORY SEED MODE [ADDRESS ...]

It appends, reads, fills and trims at positions that the sequencers at these addresses hand out, until SIGTERM. With
mode `finish` it fills every hole of each log instead, appends once more, and ends; with `create` it makes the logs. A
line of JSON goes to HISTORY before each request and after each answer, so that a kill loses at most the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from remora import app
from remora.client import OutcomeUnknown, SequencerClient, SequencerUnavailable
from remora.config import load
from remora.log import AppendUnclear, Log, LogTimes, NotAppended
from remora.model.errors import StoreError
from remora.model.log import LogKind, LogName, PositionTaken, PositionTrimmed, StaleEpoch, Token
from remora.ports.log import Logs

POOL = b"default.rgw.log"
LOGS, COUNTERS = ("orders", "audit"), ("ids",)
JOURNAL = "journal"
"""The log that is used through `remora.log.Log`, and judged by whether what was seen of it is linearizable."""
APPENDERS_PER_LOG, COUNTING = 3, 3
ANSWER_S, FINISH_S = 1.5, 300.0
READ_AT_ONCE = 64
"""Positions that are read side by side in the end."""
JOURNALING, FOLLOWED = 4, 40
"""Tasks that append to the journal, and entries for which a follower goes on before it begins anew."""
HURRIED = LogTimes(give_up_s=3.0, ask_s=0.4, hole_s=0.15)
"""Less patient than a program would be, so that what it does when something is away is tried, too."""
OUTCOMES: dict[type[StoreError], str] = {StaleEpoch: "stale", PositionTaken: "taken", PositionTrimmed: "trimmed"}


def log_name(name: str) -> LogName:
    return LogName(POOL, name.encode())


class History:
    """The file with what this process asked and was answered."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._number = 0

    def begin(self, log: str, what: str, **values: object) -> int:
        self._number += 1
        self._write({"n": self._number, "log": log, "what": what, "began": time.monotonic(), **values})
        return self._number

    def end(self, number: int, outcome: str, **values: object) -> None:
        self._write({"n": number, "ended": time.monotonic(), "outcome": outcome, **values})

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Writer:
    """Everything that is done with one log."""

    def __init__(self, logs: Logs, history: History, addresses: Sequence[str], seed: str) -> None:
        self._logs = logs
        self._history = history
        self._addresses = addresses
        self._rng = random.Random(seed)
        self._seed = seed
        self._late: defaultdict[str, list[Token]] = defaultdict(list)
        self._last: defaultdict[str, int] = defaultdict(int)

    async def append_for_ever(self, log: str) -> None:
        """Append with what sequencers give, at once or later, and now and then do something else."""
        address = self._rng.choice(self._addresses)
        while True:
            async with SequencerClient([address], timeout_s=ANSWER_S, repeats=False) as client:
                while (token := await self.next(client, address, log)) is not None:
                    await self._use(client, address, log, token)
            address = self._rng.choice(self._addresses)

    async def count_for_ever(self, log: str) -> None:
        """Ask for numbers, one or several at a time."""
        while True:
            address = self._rng.choice(self._addresses)
            async with SequencerClient([address], timeout_s=ANSWER_S, repeats=False) as client:
                while (await self.next(client, address, log, self._rng.choice([1, 1, 1, 7]))) is not None:
                    await self._pause()

    async def _use(self, client: SequencerClient, address: str, log: str, token: Token) -> None:
        last = self._last[log] = max(self._last[log], token.position)
        die = self._rng.random()
        if die < 0.08:
            self._late[log].append(token)  # written when others have gone on, or an epoch is over
        else:
            await self.append(log, token)
        if self._late[log] and die > 0.9:
            await self.append(log, self._late[log].pop(self._rng.randrange(len(self._late[log]))))
        if 0.2 < die < 0.3:
            await self.read(log, self._rng.randint(max(1, last - 40), last))
        if 0.3 < die < 0.36:
            await self.tail(client, address, log)
        if 0.36 < die < 0.4:
            await self.fill(log, Token(token.epoch, self._rng.randint(max(1, token.position - 10), token.position)))
        if 0.4 < die < 0.405 and last > 60:
            await self.trim(log, last - 50)
        await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.02))

    # ------------------------------------------------------------------------------------- requests

    async def next(self, client: SequencerClient, address: str, log: str, wanted: int = 1) -> Token | None:
        """A position; None where this server gives none."""
        number = self._history.begin(log, "next", server=address)
        try:
            token, granted = await client.next_range(log_name(log), wanted)
        except (OutcomeUnknown, SequencerUnavailable):
            return None
        self._history.end(number, "ok", epoch=token.epoch, position=token.position, count=granted)
        return token

    async def tail(self, client: SequencerClient, address: str, log: str) -> None:
        number = self._history.begin(log, "tail", server=address)
        try:
            token = await client.tail(log_name(log))
        except SequencerUnavailable:
            return
        self._history.end(number, "ok", epoch=token.epoch, position=token.position)

    async def append(self, log: str, token: Token) -> bool:
        """Write at a position; whether that was acknowledged."""
        data = f"{self._seed} {token.epoch} {token.position} {self._rng.getrandbits(64):x}"
        write = self._logs.append(log_name(log), token.epoch, token.position, data.encode())
        return await self._written(write, log, "append", token, data=data)

    async def fill(self, log: str, token: Token) -> bool:
        """Write a position off; whether that was acknowledged."""
        return await self._written(self._logs.fill(log_name(log), token.epoch, token.position), log, "fill", token)

    async def _written(self, write: Awaitable[None], log: str, what: str, token: Token, **values: str) -> bool:
        number = self._history.begin(log, what, epoch=token.epoch, position=token.position, **values)
        try:
            await write
        except StoreError as exc:
            if outcome := OUTCOMES.get(type(exc)):
                self._history.end(number, outcome)
            return False
        self._history.end(number, "ok")
        return True

    async def trim(self, log: str, upto: int) -> None:
        number = self._history.begin(log, "trim", position=upto)
        try:
            await self._logs.trim(log_name(log), upto)
        except StoreError:
            return
        self._history.end(number, "ok")

    async def read(self, log: str, position: int) -> str:
        """What stands at a position; empty where the store does not answer."""
        number = self._history.begin(log, "read", position=position)
        try:
            cell, data = await self._logs.read(log_name(log), position)
        except StoreError:
            return ""
        self._history.end(number, str(cell), data=data.decode())
        return str(cell)

    # --------------------------------------------------------------------------------------- the end

    async def finish(self, log: str) -> None:
        """Fill all holes up to the tail, and append behind it; tried again until the store and a server answer."""
        while not await self._is_finished(log):
            await self._pause()

    async def _is_finished(self, log: str) -> bool:
        for address in self._addresses:
            async with SequencerClient([address], timeout_s=ANSWER_S, repeats=False) as client:
                token = await self.next(client, address, log)
                if token is None:
                    continue
                if log in COUNTERS:
                    return True
                for first in range(1, token.position, READ_AT_ONCE):
                    positions = range(first, min(first + READ_AT_ONCE, token.position))
                    cells = await asyncio.gather(*(self.read(log, position) for position in positions))
                    for position, cell in zip(positions, cells, strict=True):
                        is_hole = cell in ("", "unwritten")
                        if is_hole and not await self.fill(log, Token(token.epoch, position)):
                            return False
                return await self.append(log, token)
        return False


class Journal:
    """A log as programs use it, each call written down."""

    def __init__(self, log: Log, history: History, seed: str) -> None:
        self._log = log
        self._history = history
        self._rng = random.Random(f"{seed} journal")
        self._seed = seed
        self._last = 0

    async def append_for_ever(self) -> None:
        """Append, and now and then do something else."""
        while True:
            await self.append()
            die = self._rng.random()
            if die < 0.2 and self._last:
                await self.read(self._rng.randint(max(1, self._last - 20), self._last + 1))
            if 0.2 < die < 0.3:
                await self.tail()
            if 0.3 < die < 0.303 and self._last > 60:
                await self.trim(self._last - 50)
            await asyncio.sleep(self._rng.uniform(0, 0.02))

    async def follow_for_ever(self) -> None:
        """Follow the log from some place on, for a while, and again."""
        while True:
            try:
                await self._follow(max(1, self._last - self._rng.randint(0, 30)))
            except StoreError:
                await asyncio.sleep(self._rng.uniform(0, 0.02))

    async def _follow(self, start: int) -> None:
        began, expected, left = time.monotonic(), start, FOLLOWED
        async with aclosing(self._log.follow(start)) as entries:
            async for entry in entries:
                if passed := entry.position - expected:
                    number = self._history.begin(JOURNAL, "pass", position=expected, count=passed, since=began)
                    self._history.end(number, "ok")
                number = self._history.begin(JOURNAL, "read", position=entry.position, since=began)
                self._history.end(number, "data", data=entry.data.decode())
                expected, left = entry.position + 1, left - 1
                if not left:
                    return

    async def append(self) -> int:
        """Append an entry that no other one is like, also of this program killed and started again with the same seed;
        its position, 0 where that is not known."""
        data = f"{self._seed} {secrets.token_hex(8)}"
        number = self._history.begin(JOURNAL, "append", data=data)
        try:
            position = await self._log.append(data.encode())
        except NotAppended:
            self._history.end(number, "failed")
            return 0
        except (AppendUnclear, StoreError):
            return 0
        self._history.end(number, "ok", position=position)
        self._last = max(self._last, position)
        return position

    async def read(self, position: int) -> None:
        number = self._history.begin(JOURNAL, "read", position=position)
        try:
            entry = await self._log.read(position)
        except StoreError:
            return
        self._history.end(number, str(entry.cell), data=entry.data.decode())

    async def tail(self) -> None:
        number = self._history.begin(JOURNAL, "tail")
        try:
            position = await self._log.tail()
        except (SequencerUnavailable, StoreError):
            return
        self._history.end(number, "ok", position=position)

    async def trim(self, upto: int) -> None:
        number = self._history.begin(JOURNAL, "trim", position=upto)
        try:
            await self._log.trim(upto)
        except StoreError:
            return
        self._history.end(number, "ok")

    async def finish(self) -> None:
        """Append once more, and follow the log up to there, which fills all holes."""
        while not (last := await self.append()):
            continue
        async with aclosing(self._log.follow()) as entries:
            async for entry in entries:
                if entry.position >= last:
                    return


async def main(config: str, history: str, seed: str, mode: str, *addresses: str) -> None:
    """See the module."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with (
        app.open_logs(load(config), waits=False) as logs,
        Log(logs, log_name(JOURNAL), addresses, HURRIED) as log,
    ):
        noted = History(Path(history))
        writer, journal = Writer(logs, noted, addresses, seed), Journal(log, noted, seed)
        if mode == "create":
            await _create(logs)
        elif mode == "finish":
            async with asyncio.timeout(FINISH_S):
                await asyncio.gather(*map(writer.finish, (*LOGS, *COUNTERS)), journal.finish())
        else:
            await _until(stop, writer, journal)


async def _create(logs: Logs) -> None:
    for kind, names in ((LogKind.LOG, (*LOGS, JOURNAL)), (LogKind.COUNTER, COUNTERS)):
        for name in names:
            await logs.create(log_name(name), kind, 4)


async def _until(stop: asyncio.Event, writer: Writer, journal: Journal) -> None:
    work: list[Callable[[], Any]] = [
        *(lambda log=log: writer.append_for_ever(log) for log in LOGS for _ in range(APPENDERS_PER_LOG)),
        *(lambda log=log: writer.count_for_ever(log) for log in COUNTERS for _ in range(COUNTING)),
        *[journal.append_for_ever] * JOURNALING,
        journal.follow_for_ever,
    ]
    tasks = [asyncio.ensure_future(each()) for each in work]
    stopped = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in done - {stopped}:
        each.result()  # none ends by itself but with an error


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
