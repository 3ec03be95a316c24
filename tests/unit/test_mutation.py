"""The list of guards, and the command that removes them one by one."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from devkit import mutation
from devkit.mutation import (
    PYTEST,
    ROOT,
    BadList,
    Copy,
    Guard,
    Outcome,
    Result,
    Runner,
    attempt_all,
    copies,
    digest,
    judged,
    keep,
    kept,
    load,
    problem,
    record,
    summary,
    without,
)

GUARDS = load()

NAMED = "tests/unit/policy/test_room.py::test_bound"
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
        (
            {"noticed_by": "tests/unit/policy/test_room.py::test_gone"},
            "there is no tests/unit/policy/test_room.py::test_g",
        ),
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
        "def test_bound():\n    assert not fits(4)\ndef test_fits():\n    assert fits(2) is not False\n"
        "def test_hangs():\n    while fits(3) is None: time.sleep(0.01)\n",
        "tests/unit/policy/test_flaky.py": "from remora.policy import room\ndef test_never():\n    assert False\n",
        "tests/unit/policy/test_served.py": "import pytest\nfrom remora.policy.room import fits\n"
        "@pytest.mark.ceph\ndef test_sign():\n    with pytest.raises(ValueError): fits(-1)\n",
        "tests/unit/policy/test_late.py": "import pytest\nfrom remora.policy.room import fits\n"
        "@pytest.mark.full\ndef test_sign():\n    with pytest.raises(ValueError): fits(-1)\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib --strict-markers'\n"
        "markers = ['ceph', 'kafka', 'spark', 'full']\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_who_notices(tree: Path) -> None:
    """A guard's removal is noticed, by a failure or by a test that hangs, or it is not; the tree stays as it was.

    A test that fails with all guards in place notices nothing. One that needs a server is asked where none that needs
    none did, and one of the full run where none of the gate did.
    The one that an entry names is asked first, and is stale where it does not notice.
    """
    room = ("tests/unit/policy/test_room.py",)
    sign = ("        raise ValueError", "        pass")
    guards = [
        Guard("bound", BOUND.file, "", BOUND.find, BOUND.replace, room),
        Guard("sign", BOUND.file, "", *sign, room),
        Guard("hang", BOUND.file, "", "    return True", "    return None", room),
        Guard("flaky", BOUND.file, "", *sign, ("tests/unit/policy/test_flaky.py",)),
        Guard("gone", BOUND.file, "", "no such line", "", room),
        Guard("served", BOUND.file, "", *sign, (*room, "tests/unit/policy/test_served.py")),
        Guard("late", BOUND.file, "", *sign, ("tests/unit/policy/test_late.py",)),
        Guard("first", BOUND.file, "", BOUND.find, BOUND.replace, ("tests/unit/policy/test_flaky.py",), NAMED),
        Guard("stale", BOUND.file, "", "    return True", "    return False", room, NAMED),
    ]
    before = (tree / BOUND.file).read_text()

    with copies(2, test_s=2, run_s=60, root=tree) as made:
        results = {each.guard: each for each in attempt_all(guards, Runner(made, tree), 2)}

    assert results["stale"].before == NAMED
    assert not results["first"].before
    assert {name: (each.outcome, each.by) for name, each in results.items()} == {
        "bound": (Outcome.NOTICED, "tests/unit/policy/test_room.py::test_bound"),
        "sign": (Outcome.UNNOTICED, ""),
        "hang": (Outcome.HANGS, "tests/unit/policy/test_room.py::test_hangs"),
        "flaky": (Outcome.BROKEN, "tests/unit/policy/test_flaky.py::test_never fails with the guard, too"),
        "served": (Outcome.NOTICED, "tests/unit/policy/test_served.py::test_sign"),
        "late": (Outcome.LATE, "tests/unit/policy/test_late.py::test_sign"),
        "first": (Outcome.NOTICED, NAMED),
        "stale": (Outcome.NOTICED, "tests/unit/policy/test_room.py::test_fits"),
        "gone": (Outcome.BROKEN, f"BadList: gone: its lines stand 0 times in {BOUND.file}, not once"),
    }
    assert (tree / BOUND.file).read_text() == before


def test_tests_are_looked_at_once(tree: Path) -> None:
    """Those that guards name and that pass with all guards in place are not run alone for that; one that fails, or that
    is not among them, is."""
    late, flaky = "tests/unit/policy/test_late.py::test_sign", "tests/unit/policy/test_flaky.py::test_never"
    guards = [replace(BOUND, name=each, noticed_by=each) for each in (NAMED, flaky, late)]
    with copies(1, test_s=10, run_s=60, root=tree) as made:
        runner = Runner(made, tree)
        runner.look_ahead(guards)

    assert runner._sound == {f"{NAMED} False": True}


def test_a_run_goes_on(tree: Path) -> None:
    """A kept result holds until the file of the guard, or of the test that noticed, changes; others are tried anew."""
    room = ("tests/unit/policy/test_room.py",)
    guards = [
        Guard("bound", BOUND.file, "", BOUND.find, BOUND.replace, room),
        Guard("sign", BOUND.file, "", "        raise ValueError", "        pass", room),
    ]
    file = tree / "results"
    with copies(1, test_s=10, run_s=60, root=tree) as made:
        keep(file, [*attempt_all(guards, Runner(made, tree), 1)])

    assert [each.guard for each in kept(file, guards, tree)] == ["bound"]
    assert kept(tree / "none", guards, tree) == []
    assert kept(file, guards[1:], tree) == []
    assert not kept(file, [replace(guards[0], noticed_by=NAMED)], tree)[0].before
    for changed in (BOUND.file, room[0]):
        text = (tree / changed).read_text()
        (tree / changed).write_text(f"{text}# changed\n")
        assert kept(file, guards, tree) == []
        (tree / changed).write_text(text)


def test_tests_of_every_folder_can_be_run() -> None:
    """Those of the contract, too, are collected by the command that tries a guard, whose plugins are few."""
    files = [
        f"tests/{name}" for name in ("unit/test_mutation.py", "engine/test_trust.py", "contract/test_store_locks.py")
    ]

    code, output = Copy(ROOT, 300, 300).run(files, pure=False, options=(*PYTEST, "--collect-only"))

    assert code == 0, output


def test_who_noticed_is_written_down(tmp_path: Path) -> None:
    """The list names the test without its parameters, in the place of the one before; all else in it stays."""
    entry = "[[guard]]\nname = 'NAME'\nfile = ''\nguards = ''\nfind = ''\nreplace = ''\n\n"
    names = ("new", "stale", "kept", "unnoticed")
    old = "guards = ''\nnoticed_by = \"old\"\n"
    texts = [
        entry.replace("NAME", name).replace("guards = ''\n", old if name != "new" else "guards = ''\n")
        for name in names
    ]
    (tmp_path / "a.toml").write_text("# What it is about.\n\n" + "".join(texts))

    record(
        [
            Result("new", Outcome.NOTICED, "tests/a.py::test_x[a - b]"),
            Result("stale", Outcome.HANGS, "tests/a.py::test_y", before="old"),
            Result("unnoticed", Outcome.UNNOTICED),
        ],
        tmp_path,
    )

    found = {each.name: each.noticed_by for each in load(tmp_path)}
    assert found == {"new": "tests/a.py::test_x", "stale": "tests/a.py::test_y", "kept": "old", "unnoticed": "old"}
    lines = (tmp_path / "a.toml").read_text().splitlines()
    assert [each for each in lines if "noticed_by" not in each] == [
        each for each in "".join(["# What it is about.\n\n", *texts]).splitlines() if "noticed_by" not in each
    ]


def test_what_a_run_says() -> None:
    """It names whose removal nobody noticed, or only the full run, what could not be tried, and what is stale."""
    said = summary(
        [
            Result("a", Outcome.NOTICED, "t::x"),
            Result("b", Outcome.UNNOTICED, before="t::y"),
            Result("c", Outcome.LATE, "t::z"),
            Result("d", Outcome.BROKEN),
        ]
    )

    assert said.splitlines() == [
        "4 guards: 1 noticed, 1 by the full run only, 1 unnoticed, 1 not tried",
        "  unnoticed: b",
        "  by the full run only: c",
        "  not tried: d",
        "  stale: b names t::y",
    ]


@pytest.mark.parametrize(
    ("outcome", "code"), [(Outcome.NOTICED, 0), (Outcome.HANGS, 0), (Outcome.LATE, 1), (Outcome.UNNOTICED, 1)]
)
def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, outcome: Outcome, code: int
) -> None:
    """It prints a row for each guard and a summary, writes the results, and fails when one was not noticed.

    Called again, it tries what was not noticed.
    """
    tried: list[str] = []

    def attempt(_: Runner, guard: Guard) -> Result:
        tried.append(guard.name)
        return Result(guard.name, outcome, "a test", 1.0, 2, of=digest(guard, "a test"))

    monkeypatch.setattr(Runner, "attempt", attempt)
    monkeypatch.setattr(mutation, "copies", lambda *_: copies(0, 1, 1, tmp_path))
    name = GUARDS[0].name

    assert mutation.main(["--only", name, "--json", str(tmp_path / "results")], "") == code

    said = capsys.readouterr().out
    assert said.startswith(f"{outcome:9} {name} ")
    assert ("unnoticed: " in said) is (outcome is Outcome.UNNOTICED)
    assert json.loads((tmp_path / "results").read_text())[0]["by"] == "a test"

    assert mutation.main(["--only", name, "--json", str(tmp_path / "results")], "") == code
    assert tried == [name] * (1 + code)


def test_the_list_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """--list prints each guard with its file and tries none; a pattern that fits none is a failure."""
    assert mutation.main(["--list"], "") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(GUARDS)
    assert mutation.main(["--only", "no such guard"], "") == 1
