"""Removes guards one by one from a copy of the tree, and finds the tests that notice: what `scripts/mutate` does.

A guard is a few lines that keep a promise: a comparison of a lock, an epoch, a bound. `devkit/mutations/*.toml` lists
them, each with the lines that change. A guard that no test notices may go in the next change without anybody knowing.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from devkit.selection import SERVERLESS, select

ROOT = Path(__file__).parents[1]
LISTS = Path(__file__).parent / "mutations"

LEFT_BEHIND = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache")

PLUGINS = ("asyncio", "timeout", "hypothesispytest", "xdist")
"""All that these tests need; to find and load every plugin takes longer than many a test."""

PYTEST = (
    *(argument for name in PLUGINS for argument in ("-p", name)),
    *("-x", "-q", "-rfE", "--no-header", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-m", "not ceph and not kafka and not spark and not full"),
)
"""How tests are run: those of the gate that need no cluster and no broker, which take minutes to start."""

TOGETHER = (*(each if each != "-rfE" else "-rfEp" for each in PYTEST if each != "-x"),)
"""How many tests are run at once, to see which of them pass."""

WITH_SERVERS = (*PYTEST[:-1], "(ceph or kafka) and not spark and not full")
"""How those of the gate are run that need one."""

ONE_AT_A_TIME = threading.Lock()
"""Held while tests with servers run: they share one cluster and one broker, which some of them hurt."""

FULL = (*PYTEST[:-1], "not ceph and not kafka and not spark and full")
"""How those are run that wait for the full run."""

GATES_EXAMPLES = "0.25"
"""How many of their examples property tests try; see scripts/test."""

ENTRY = "[[guard]]\n"
"""How an entry begins in a list."""

NO_TESTS = 5
NOTICED = (1, 2)
"""pytest's exit codes: where no test ran, and where one failed or could not be loaded."""

PASSED = re.compile(r"(?m)^PASSED (\S+?\.py::[^\[\n]+)")
FIRST_FAILURE = re.compile(r"(?m)^(?:FAILED|ERROR) (\S+?\.py(?:::[^\[\n]+?(?:\[.*?\])?)?)(?: - .*)?$")
TIMED_OUT = re.compile(r"Failed: Timeout|Timeout \(>|\+ Timeout \+")


@dataclass(frozen=True, slots=True)
class Guard:
    """Lines of a file that guard something; `replace` stands in their place when the guard is gone."""

    name: str
    file: str
    guards: str
    """What it keeps from happening."""
    find: str
    replace: str
    tests: tuple[str, ...] = ()
    """Where given, the tests that must notice; else all near the file do."""
    noticed_by: str = ""
    """The test that noticed last time, without its parameters: it is tried before the others. `--record` writes it."""

    @property
    def is_of_codec(self) -> bool:
        """Whether the compiled codec would hide its removal."""
        return self.file.startswith("daemon/remora/codec/")


class Outcome(StrEnum):
    """What became of a guard's removal."""

    NOTICED = "noticed"
    HANGS = "hangs"
    LATE = "LATE"
    """Only a test that waits for the full run notices."""
    UNNOTICED = "UNNOTICED"
    BROKEN = "BROKEN"


NOTICING = (Outcome.NOTICED, Outcome.HANGS)


@dataclass(frozen=True, slots=True)
class Result:
    """A guard with the first test that failed without it, or what was wrong with the run."""

    guard: str
    outcome: Outcome
    by: str = ""
    seconds: float = 0.0
    files: int = 0
    before: str = ""
    """The test that the list names, and that does not notice."""
    of: str = ""
    """A digest of the code and the test that this was found with; see `digest`."""

    @property
    def noticed_by(self) -> str:
        """The test that noticed, as a list names it; empty where none of the gate did."""
        return self.by.partition("[")[0] if self.outcome in NOTICING and "::" in self.by else ""

    def __str__(self) -> str:
        text = f"{self.outcome:9} {self.guard:40} {self.seconds:6.1f} s  {self.by}"
        return text.rstrip() + (f"  STALE: not by {self.before}" if self.before else "")


class BadList(Exception):
    """The list of guards does not fit the code; the text names the guard."""


def load(folder: Path = LISTS) -> list[Guard]:
    """All guards, by the names of the lists. Raises BadList where an entry is none."""
    found: list[Guard] = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["guard"]:
            try:
                guard = Guard(**entry | {"tests": tuple(entry.get("tests", ()))})
            except TypeError as exc:
                raise BadList(f"{path.name}: {entry.get('name', 'an entry without a name')}: {exc}") from exc
            if any(each.name == guard.name for each in found):
                raise BadList(f"{path.name}: there are two guards {guard.name}")
            found.append(guard)
    return found


def without(guard: Guard, text: str) -> str:
    """The text of the guard's file without it. Raises BadList unless the lines stand there once."""
    found = guard.find.rstrip("\n")
    count = text.count(found) if found else 0
    if count != 1:
        raise BadList(f"{guard.name}: its lines stand {count} times in {guard.file}, not once")
    return text.replace(found, guard.replace.rstrip("\n"))


def problem(guard: Guard, root: Path = ROOT) -> str:
    """What is wrong with a guard, as the code is now; empty when it can be tried."""
    path = root / guard.file
    if not path.exists():
        return f"{guard.name}: there is no file {guard.file}"
    missing = [each for each in (*guard.tests, guard.noticed_by) if each and not is_there(each, root)]
    if missing:
        return f"{guard.name}: there is no {missing[0]}"
    text = path.read_text()
    try:
        changed = without(guard, text)
        compile(changed, guard.file, "exec")
    except BadList as exc:
        return str(exc)
    except SyntaxError as exc:
        return f"{guard.name}: without it {guard.file} does not compile: {exc}"
    return "" if changed != text else f"{guard.name}: nothing changes"


def is_there(test: str, root: Path = ROOT) -> bool:
    """Whether there is a file of tests, and in it the function that a test's name has."""
    file, _, inside = test.partition("::")
    path = root / file
    function = inside.partition("[")[0].rpartition("::")[2]
    return path.exists() and (not function or f"def {function}(" in path.read_text())


def who_ought_to_notice(guard: Guard, root: Path = ROOT) -> list[str]:
    """The tests that it names; else the near ones that need no server; else those of the suites that need none."""
    return list(guard.tests) or _near(guard.file, root)


@cache
def _near(file: str, root: Path) -> list[str]:
    selection = select(root, [file])
    near = [test for test in selection.near if test.startswith(SERVERLESS)]
    return near or [test for test in selection.files if test.startswith(SERVERLESS)]


@dataclass(slots=True)
class Copy:
    """A copy of the tree; what runs in it imports the daemon from there."""

    root: Path
    test_s: float
    run_s: float

    def run(self, tests: Sequence[str], *, pure: bool, options: Sequence[str] = PYTEST) -> tuple[int, str]:
        """pytest's exit code and output; the code of SIGKILL where all of it took too long and was ended."""
        paths = [str(self.root / each) for each in ("daemon", "pipeline", "tests", "scripts")]
        surroundings = os.environ | {
            "PYTHONPATH": os.pathsep.join([*paths, str(self.root)]),
            "PYTHONDONTWRITEBYTECODE": "",
            "DEVKIT_EXAMPLES": GATES_EXAMPLES,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        if pure:
            surroundings["REMORA_PURE_PYTHON"] = "1"
        command = [sys.executable, "-m", "pytest", *options, f"--timeout={self.test_s:g}", *tests]
        with tempfile.TemporaryFile("w+") as output:
            child = subprocess.Popen(
                command,
                cwd=self.root,
                env=surroundings,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = child.wait(self.run_s)
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
            finally:
                end_group(child)
            output.seek(0)
            return code, output.read()

    @contextmanager
    def without(self, guard: Guard) -> Iterator[None]:
        """The copy without a guard while the block runs."""
        path = self.root / guard.file
        text = path.read_text()
        self._write(path, without(guard, text))
        try:
            yield
        finally:
            self._write(path, text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Write a module anew; what was compiled of it goes, since its time may be the same to the second."""
        path.unlink()
        path.write_text(text)
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            cached.unlink()


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@dataclass(slots=True)
class Runner:
    """Tries guards, each in one of several copies."""

    copies: queue.Queue[Copy]
    root: Path = ROOT
    _sound: dict[str, bool] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look_ahead(self, guards: Iterable[Guard]) -> None:
        """See which of the tests that guards name pass with all guards in place: at once, as each start takes long."""
        copy = self.copies.get()
        try:
            for pure in (False, True):
                tests = sorted({each.noticed_by for each in guards if each.noticed_by and each.is_of_codec is pure})
                if len(tests) > 1:
                    output = copy.run(tests, pure=pure, options=TOGETHER)[1]
                    failed = {each.partition("[")[0] for each in FIRST_FAILURE.findall(output)}
                    passed = {each.rstrip() for each in PASSED.findall(output)} - failed
                    self._sound |= {f"{each} {pure}": True for each in passed}
        finally:
            self.copies.put(copy)

    def attempt(self, guard: Guard) -> Result:
        """Remove a guard, and find who notices."""
        tests = who_ought_to_notice(guard, self.root)
        if not tests:
            return Result(guard.name, Outcome.BROKEN, f"no test is near to {guard.file}: name some")
        copy = self.copies.get()
        began = time.monotonic()
        try:
            pure = guard.is_of_codec
            with copy.without(guard):
                outcome, by = first_to_notice(copy, guard, tests, pure=pure)
            if outcome in NOTICING and "::" in by and not self._passes(copy, by, pure=pure):
                outcome, by = Outcome.BROKEN, f"{by} fails with the guard, too"
            of = digest(guard, by, copy.root)
        finally:
            self.copies.put(copy)
        return beside(guard, Result(guard.name, outcome, by, time.monotonic() - began, len(tests), of=of))

    def _passes(self, copy: Copy, test: str, *, pure: bool) -> bool:
        """Whether a test passes with all guards in place; it is asked once."""
        key = f"{test} {pure}"
        with self._lock:
            known = self._sound.get(key) or self._sound.get(f"{test.partition('[')[0]} {pure}")
        if known is None:
            known = at_the_gate(copy, [test], pure=pure)[0] == 0
            with self._lock:
                self._sound[key] = known
        return known


def first_to_notice(copy: Copy, guard: Guard, tests: Sequence[str], *, pure: bool) -> tuple[Outcome, str]:
    """What became of a guard's removal, and by whom: the test that the guard names is asked before all others."""
    if guard.noticed_by:
        outcome, by = judged(*at_the_gate(copy, [guard.noticed_by], pure=pure))
        if outcome in NOTICING:
            return outcome, by
    outcome, by = judged(*at_the_gate(copy, tests, pure=pure))
    if outcome not in NOTICING:
        late, by_late = judged(*copy.run(tests, pure=pure, options=FULL))
        if late in NOTICING:
            return Outcome.LATE, by_late
    return outcome, by


def at_the_gate(copy: Copy, tests: Sequence[str], *, pure: bool) -> tuple[int, str]:
    """pytest's exit code and output: of those that need no server, and where none of these fails, of the others."""
    code, output = copy.run(tests, pure=pure)
    if judged(code, output)[0] in NOTICING:
        return code, output
    with ONE_AT_A_TIME:
        served = copy.run(tests, pure=pure, options=WITH_SERVERS)
    return (code, output) if served[0] == NO_TESTS else served


def judged(code: int, output: str) -> tuple[Outcome, str]:
    """What pytest's answer says of a guard, and by whom."""
    if code == -signal.SIGKILL:
        return Outcome.HANGS, "the whole run, which was ended"
    if code == 0:
        return Outcome.UNNOTICED, ""
    first = FIRST_FAILURE.search(output)
    if code in NOTICED and first is not None:
        return Outcome.HANGS if TIMED_OUT.search(output) else Outcome.NOTICED, first[1]
    last = output.strip().splitlines()[-1:] or ["no output"]
    return Outcome.BROKEN, "no test ran" if code == NO_TESTS else f"pytest ended with {code}: {last[0]}"


@contextmanager
def copies(count: int, test_s: float, run_s: float, root: Path = ROOT) -> Iterator[queue.Queue[Copy]]:
    """So many copies of the tree, which are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="remora-mutate-") as folder:
        made: queue.Queue[Copy] = queue.Queue()
        for number in range(count):
            copy = Path(folder) / str(number)
            shutil.copytree(root, copy, ignore=LEFT_BEHIND, symlinks=True)
            made.put(Copy(copy, test_s, run_s))
        yield made


def attempt_all(guards: Sequence[Guard], runner: Runner, jobs: int) -> Iterator[Result]:
    """The results, each as soon as it is there."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_attempted, guard, runner) for guard in guards]
        try:
            for each in as_completed(waiting):
                yield each.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _attempted(guard: Guard, runner: Runner) -> Result:
    try:
        return runner.attempt(guard)
    except Exception as exc:  # a defect here costs one row
        return Result(guard.name, Outcome.BROKEN, f"{type(exc).__name__}: {exc}")


def beside(guard: Guard, result: Result) -> Result:
    """The result with the test that the list names where that is another one."""
    return replace(result, before="" if result.noticed_by == guard.noticed_by else guard.noticed_by)


def digest(guard: Guard, by: str, root: Path = ROOT) -> str:
    """What a result rests on: the guard's lines, its file, and the file of the test that noticed."""
    files = [root / guard.file, root / by.partition("::")[0]]
    texts = [guard.find, guard.replace, *(each.read_text() for each in files if each.is_file())]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def kept(path: Path | None, guards: Sequence[Guard], root: Path = ROOT) -> list[Result]:
    """The results in a file that still hold: the guard was noticed, and what that rests on is as it was."""
    if path is None or not path.exists():
        return []
    rows = [Result(**each | {"outcome": Outcome(each["outcome"])}) for each in json.loads(path.read_text())]
    named = {guard.name: guard for guard in guards}
    known = [(named[each.guard], each) for each in rows if each.guard in named and each.outcome in NOTICING]
    return [beside(guard, each) for guard, each in known if each.of == digest(guard, each.by, root)]


def keep(path: Path | None, results: Sequence[Result]) -> None:
    """Write the results into a file, which is whole at any moment."""
    if path is not None:
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
        new.replace(path)


def summary(results: Sequence[Result]) -> str:
    """What was found, in a line or some."""
    silent = sorted(each.guard for each in results if each.outcome is Outcome.UNNOTICED)
    late = sorted(each.guard for each in results if each.outcome is Outcome.LATE)
    broken = sorted(each.guard for each in results if each.outcome is Outcome.BROKEN)
    noticed = len(results) - len(silent) - len(late) - len(broken)
    counts = f"{noticed} noticed, {len(late)} by the full run only, {len(silent)} unnoticed, {len(broken)} not tried"
    lines = [f"{len(results)} guards: {counts}"]
    lines += [f"  unnoticed: {name}" for name in silent] + [f"  by the full run only: {name}" for name in late]
    lines += [f"  not tried: {name}" for name in broken]
    lines += [f"  stale: {each.guard} names {each.before}" for each in results if each.before]
    return "\n".join(lines)


def record(results: Iterable[Result], folder: Path = LISTS) -> None:
    """Have the lists name the tests that noticed."""
    found = {each.guard: each.noticed_by for each in results if each.noticed_by}
    for path in folder.glob("*.toml"):
        head, *entries = path.read_text().split(ENTRY)
        path.write_text(ENTRY.join([head, *(_naming(entry, found) for entry in entries)]))


def _naming(entry: str, found: Mapping[str, str]) -> str:
    """The text of an entry with the test that noticed; as it was where that is not known."""
    test = found.get(tomllib.loads(entry)["name"])
    if test is None:
        return entry
    without_one = re.sub(r"(?m)^noticed_by = .*\n", "", entry)
    return re.sub(r"(?m)^guards = .*\n", lambda line: f"{line[0]}noticed_by = {json.dumps(test)}\n", without_one)


def main(arguments: Sequence[str], usage: str) -> int:
    """The command; see `scripts/mutate`."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutate", description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the guards, and try none")
    parser.add_argument("--record", action="store_true", help="name in the lists which test noticed")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="of these names or files")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results in this file, and go on from it")
    parser.add_argument("--test-seconds", type=float, default=300, metavar="S", help="when one test hangs (300)")
    parser.add_argument("--run-seconds", type=float, default=1800, metavar="S", help="when all of a guard hang (1800)")
    options = parser.parse_args(arguments)
    try:
        guards = [guard for guard in load() if is_wanted(guard, options.only)]
        if problems := [text for guard in guards if (text := problem(guard))]:
            raise BadList("\n".join(problems))
    except BadList as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    if options.list:
        for guard in guards:
            print(f"{guard.name:40} {guard.file}: {guard.guards}; {guard.noticed_by or 'no test is known to notice'}")
        return 0
    results = kept(options.json, guards)
    if results:
        print(f"{len(results)} guards as {options.json} says", flush=True)
    known = {each.guard for each in results}
    left = [guard for guard in guards if guard.name not in known]
    jobs = min(options.jobs, len(left))
    with copies(jobs, options.test_seconds, options.run_seconds) as made:
        runner = Runner(made)
        if len(left) > 1:
            runner.look_ahead(left)
        for result in attempt_all(left, runner, max(1, jobs)):
            results.append(result)
            print(result, flush=True)
            keep(options.json, results)
    print(summary(results))
    if options.record:
        record(results)
    return 0 if results and all(each.outcome in NOTICING for each in results) else 1


def is_wanted(guard: Guard, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns fits a guard, or there is none."""
    if not patterns:
        return True
    return any(fnmatch.fnmatch(text, f"*{each}*") for each in patterns for text in (guard.name, guard.file))
