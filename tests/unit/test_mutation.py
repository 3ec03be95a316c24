"""The list of guards, and the command that removes them one by one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from devkit import mutation
from devkit.mutation import BadList, Guard, Outcome, Result, Runner, attempt_all, copies, judged, load, problem, without

GUARDS = load()

BOUND = Guard("bound", "daemon/remora/policy/room.py", "more than fits", "    if size > 3:", "    if False:")


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_each_guard_is_there(guard: Guard) -> None:
    """The lines of a guard stand in its file once, what is left without them compiles, and its tests exist."""
    assert problem(guard) == ""


def test_the_list_is_long() -> None:
    """There are at least a hundred guards, and each says what it keeps from happening."""
    assert len(GUARDS) >= 100
    assert all(each.guards for each in GUARDS)


@pytest.mark.parametrize(
    ("text", "times"),
    [("", 0), ("    if size > 3:\n        pass\n    if size > 3:\n", 2), ("    if size  > 3:\n", 0)],
)
def test_lines_that_do_not_stand_there_once(text: str, times: int) -> None:
    """A guard whose lines are gone, or are there more than once, is an error that names it."""
    with pytest.raises(BadList, match=rf"^bound: its lines stand {times} times"):
        without(BOUND, text)


def test_only_these_lines_change() -> None:
    """All other lines are as they were; backslashes in what stands there instead are none of a pattern's."""
    guard = Guard("x", "x.py", "", "b\nc\n", r"\1\n")

    assert without(guard, "a\nb\nc\nd\n") == "a\n\\1\\n\nd\n"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"file": "daemon/remora/none.py"}, "there is no file"),
        ({"replace": "    if"}, "does not compile"),
        ({"replace": "    if size > 3:"}, "nothing changes"),
        ({"tests": ("tests/none.py::test_it",)}, "there is no tests/none.py"),
    ],
)
def test_what_is_wrong_with_a_guard(tree: Path, change: dict[str, str], why: str) -> None:
    """What cannot be tried is said with the name of the guard."""
    fields = {name: getattr(BOUND, name) for name in BOUND.__slots__} | change

    assert problem(BOUND, tree) == ""
    assert problem(Guard(**fields), tree).startswith("bound: ")
    assert why in problem(Guard(**fields), tree)


def test_lists_that_cannot_be_read(tmp_path: Path) -> None:
    """An entry without a field, one with an unknown field and a name that is there twice are errors that name it."""
    entry = "[[guard]]\nname = 'a'\nfile = ''\nguards = ''\nfind = ''\nreplace = ''\n"
    for text in ("[[guard]]\nname = 'a'\n", f"{entry}other = ''\n", entry + entry):
        (tmp_path / "a.toml").write_text(text)

        with pytest.raises(BadList, match=r"^a.toml: .*a"):
            load(tmp_path)


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, "3 passed", (Outcome.UNNOTICED, "")),
        (1, "FAILED tests/a.py::test_x[a - b] - assert 1\n", (Outcome.NOTICED, "tests/a.py::test_x[a - b]")),
        (1, "FAILED tests/a.py::test_x - Failed: Timeout (>9.0s)\n", (Outcome.HANGS, "tests/a.py::test_x")),
        (2, "ERROR tests/a.py - ImportError\n", (Outcome.NOTICED, "tests/a.py")),
        (5, "no tests ran", (Outcome.BROKEN, "no test ran")),
        (4, "ERROR: not found\n", (Outcome.BROKEN, "pytest ended with 4: ERROR: not found")),
        (-signal.SIGKILL, "", (Outcome.HANGS, "the whole run, which was ended")),
    ],
)
def test_what_pytest_says(code: int, output: str, expected: tuple[Outcome, str]) -> None:
    """The first test that fails noticed; one that hangs did, too; where nothing ran nobody can have noticed."""
    assert judged(code, output) == expected


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with two guards: a test notices when the bound is gone, and none notices the other."""
    files = {
        "daemon/remora/__init__.py": "",
        "daemon/remora/policy/__init__.py": "",
        "daemon/remora/policy/room.py": "def fits(size):\n    if size > 3:\n        return False\n    if size < 0:\n"
        "        raise ValueError\n    return True\n",
        "tests/unit/policy/test_room.py": "import time\nfrom remora.policy.room import fits\n"
        "def test_bound():\n    assert not fits(4)\ndef test_hangs():\n    while fits(3) is None: time.sleep(0.01)\n",
        "tests/unit/policy/test_flaky.py": "from remora.policy import room\ndef test_never():\n    assert False\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib --strict-markers'\n"
        "markers = ['ceph', 'kafka', 'spark']\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_who_notices(tree: Path) -> None:
    """A guard's removal is noticed, by a failure or by a test that hangs, or it is not; the tree stays as it was.

    A test that fails with all guards in place notices nothing.
    """
    room = ("tests/unit/policy/test_room.py",)
    sign = ("        raise ValueError", "        pass")
    guards = [
        Guard("bound", BOUND.file, "", BOUND.find, BOUND.replace, room),
        Guard("sign", BOUND.file, "", *sign, room),
        Guard("hang", BOUND.file, "", "    return True", "    return None", room),
        Guard("flaky", BOUND.file, "", *sign, ("tests/unit/policy/test_flaky.py",)),
        Guard("gone", BOUND.file, "", "no such line", "", room),
    ]
    before = (tree / BOUND.file).read_text()

    with copies(2, test_s=2, run_s=60, root=tree) as made:
        results = {each.guard: each for each in attempt_all(guards, Runner(made, tree), 2)}

    assert {name: (each.outcome, each.by) for name, each in results.items()} == {
        "bound": (Outcome.NOTICED, "tests/unit/policy/test_room.py::test_bound"),
        "sign": (Outcome.UNNOTICED, ""),
        "hang": (Outcome.HANGS, "tests/unit/policy/test_room.py::test_hangs"),
        "flaky": (Outcome.BROKEN, "tests/unit/policy/test_flaky.py::test_never fails with the guard, too"),
        "gone": (Outcome.BROKEN, f"BadList: gone: its lines stand 0 times in {BOUND.file}, not once"),
    }
    assert (tree / BOUND.file).read_text() == before


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.NOTICED, 0), (Outcome.HANGS, 0), (Outcome.UNNOTICED, 1)])
def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, outcome: Outcome, code: int
) -> None:
    """It prints a row for each guard and a summary, writes the results, and fails when one was not noticed."""
    monkeypatch.setattr(Runner, "attempt", lambda _, guard: Result(guard.name, outcome, "a test", 1.0, 2))
    monkeypatch.setattr(mutation, "copies", lambda *_: copies(0, 1, 1, tmp_path))
    name = GUARDS[0].name

    assert mutation.main(["--only", name, "--json", str(tmp_path / "results")], "") == code

    said = capsys.readouterr().out
    assert said.startswith(f"{outcome:9} {name} ")
    assert ("unnoticed: " in said) is bool(code)
    assert json.loads((tmp_path / "results").read_text())[0]["by"] == "a test"


def test_the_list_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """--list prints each guard with its file and tries none; a pattern that fits none is a failure."""
    assert mutation.main(["--list"], "") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(GUARDS)
    assert mutation.main(["--only", "no such guard"], "") == 1
