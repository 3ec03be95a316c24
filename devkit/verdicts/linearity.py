"""Whether what programs saw of a shared log can have happened: each call at one moment between its begin and its end.

It imports nothing of remora. Two rules are tried. Each position is a register that takes one value, and is trimmed at
last: the calls on it must have an order that agrees with real time and explains every answer (Wing and Gong's search,
with Lowe's memory of what was tried). And positions grow in real time: an append that begins after another one ended
has a larger one, and a tail is at or above every append that had ended. Registers are judged one by one, since a
history is linearizable when that of each object is (Herlihy and Wing).

A call without an answer may have taken effect at any time after its begin, or never.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from devkit.verdicts.log_checker import MOST_FINDINGS, Finding, Op, Stored

UNWRITTEN, FILLED, TRIMMED = "unwritten", "filled", "trimmed"
DATA = "data "
"""Before the data, the state of a position that was written."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call on a register. `ended` is infinite, and `answer` empty, where none came."""

    what: str
    """append, fill, trim, read or pass: what a follower passed over."""
    began: float
    ended: float
    answer: str = ""
    """ok, or why it was refused; of a read the state that it saw."""
    data: str = ""


Step = Callable[[str, Call], str | None]
"""The state behind a call, None where the call cannot have had its answer in this state."""


def step(state: str, call: Call) -> str | None:
    """A position of a log: it is written or filled once, and trimmed at last."""
    match call.what:
        case "read":
            return state if state == call.answer else None
        case "pass":
            return state if state in (FILLED, TRIMMED) else None
        case "trim":
            return TRIMMED
        case "fill" if state == FILLED:
            return state if call.answer in ("", "ok") else None
        case "append" | "fill":
            if state == UNWRITTEN:
                written = FILLED if call.what == "fill" else DATA + call.data
                return written if call.answer in ("", "ok") else None
            refused = "trimmed" if state == TRIMMED else "taken"
            return state if call.answer == refused else None
    raise ValueError(call.what)


def is_linearizable(calls: Sequence[Call], begin: str = UNWRITTEN, moves: Step = step) -> bool:
    """Whether an order of these calls agrees with real time and explains every answer that came."""
    calls = sorted(calls, key=lambda each: each.began)
    owed = sum(1 << n for n, each in enumerate(calls) if each.ended < inf)
    tried: set[tuple[int, str]] = set()
    open_: list[tuple[int, str]] = [(0, begin)]
    while open_:
        done, state = open_.pop()
        if done & owed == owed:
            return True
        if (done, state) in tried:
            continue
        tried.add((done, state))
        reached = ((done | 1 << n, moves(state, calls[n])) for n in _next(calls, done))
        open_ += [(then, after) for then, after in reached if after is not None]
    return False


def _next(calls: Sequence[Call], done: int) -> Iterable[int]:
    """The calls that may come next: those that began before any other one that is left has ended."""
    left = [n for n in range(len(calls)) if not done >> n & 1]
    first_end = min(calls[n].ended for n in left)
    return [n for n in left if calls[n].began <= first_end]


# --------------------------------------------------------------------------------------------- a log


def judge(ops: Sequence[Op], stored: Stored, ended: float) -> list[Finding]:
    """All that cannot have happened to a log, by its clients' notes and by what the store holds at `ended`."""
    found = [*_order(ops), *_entries(ops, stored), *_registers(ops, stored, ended)]
    counts: Counter[str] = Counter()
    kept = []
    for each in found:
        counts[each.kind] += 1
        if counts[each.kind] <= MOST_FINDINGS:
            kept.append(each)
    return kept


def _order(ops: Sequence[Op]) -> Iterable[Finding]:
    appended = sorted((op.ended or inf, op.position) for op in ops if op.what == "append" and op.outcome == "ok")
    ends = [at for at, _ in appended]
    largest = [0, *accumulate((position for _, position in appended), max)]
    for op in ops:
        if op.outcome == "ok" and op.what in ("append", "tail"):
            known = largest[bisect_left(ends, op.began)]
            if op.position < known + (op.what == "append"):
                yield Finding("against real time", f"{op.log}: {op.what} gave {op.position} after {known}")


def _entries(ops: Sequence[Op], stored: Stored) -> Iterable[Finding]:
    """Every entry that was seen was sent, stands at one position, and is of no append that said it never would land."""
    sent = {op.data: op for op in ops if op.what == "append"}
    for data, at in _places(ops, stored).items():
        if len(at) > 1:
            yield Finding("landed twice", f"{data} at {sorted(at)}")
        if data not in sent:
            yield Finding("nobody wrote", f"{data} at {sorted(at)}")
        elif sent[data].outcome == "failed":
            yield Finding("landed though it failed", f"{data} at {sorted(at)}")
    for position in range(stored.trimmed + 1, max(stored.entries, default=0)):
        if position not in stored.entries:
            yield Finding("a hole", f"{position} is unwritten, and something stands behind it")


def _places(ops: Sequence[Op], stored: Stored) -> Mapping[str, set[int]]:
    """The positions where each entry was seen, or was said to be."""
    places: defaultdict[str, set[int]] = defaultdict(set)
    for op in ops:
        if (op.what, op.outcome) in (("read", "data"), ("append", "ok")):
            places[op.data].add(op.position)
    for position, data in stored.entries.items():
        if data is not None:
            places[data].add(position)
    return places


def _registers(ops: Sequence[Op], stored: Stored, ended: float) -> Iterable[Finding]:
    calls = _calls(ops, stored, ended)
    for position, of_one in sorted(calls.items()):
        if not is_linearizable(of_one):
            yield Finding("not linearizable", f"position {position}: {_shown(of_one)}")


def _calls(ops: Sequence[Op], stored: Stored, ended: float) -> Mapping[int, list[Call]]:
    """The calls on each position. An append without an answer is one on the position where its entry was seen.

    Any position may be filled besides: followers do that to holes, and appends to a position of unknown outcome.
    """
    calls: defaultdict[int, list[Call]] = defaultdict(list)
    seen = {data: position for position, data in stored.entries.items() if data is not None}
    seen |= {op.data: op.position for op in ops if op.what == "read" and op.outcome == "data"}
    trims = [op for op in ops if op.what == "trim"]
    for op in ops:
        call = Call(op.what, op.began, inf if op.ended is None else op.ended, op.outcome, op.data)
        if op.what == "read" and op.ended is not None:
            calls[op.position].append(replace(call, answer=DATA + op.data if op.outcome == "data" else op.outcome))
        elif op.what == "fill" or (op.what == "append" and op.outcome == "ok"):
            calls[op.position].append(call)
        elif op.what == "append" and op.ended is None and op.data in seen:
            calls[seen[op.data]].append(call)
        elif op.what == "pass":
            for position in range(op.position, op.position + op.count):
                calls[position].append(call)
    for position, of_one in calls.items():
        of_one += [
            Call("trim", op.began, inf if op.ended is None else op.ended, op.outcome)
            for op in trims
            if op.position >= position
        ]
        of_one.append(Call("fill", 0.0, inf))
        of_one.append(Call("read", ended, ended, _state(stored, position)))
    return calls


def _state(stored: Stored, position: int) -> str:
    if position <= stored.trimmed:
        return TRIMMED
    if position not in stored.entries:
        return UNWRITTEN
    data = stored.entries[position]
    return FILLED if data is None else DATA + data


def _shown(calls: Sequence[Call]) -> str:
    by_begin = sorted(calls, key=lambda each: each.began)
    return "; ".join(f"{each.began:.6f}..{each.ended:.6f} {each.what} {each.data} {each.answer}" for each in by_begin)
