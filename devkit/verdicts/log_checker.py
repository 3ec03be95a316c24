"""The verdict on a chaos run of sequencers: from what clients wrote down, and from what the store holds in the end.

It imports nothing of remora: it reads records of JSON and a dump of the store, and knows what a shared log is.

A client writes a line before each request, with the time, and one after it, with the answer; a request that has no
second line may have been carried out or not. Where the request began before it was known what it is, as with what a
follower gets, the line says since when. Times are of one monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_FINDINGS = 20
"""Of each kind; one fault often shows in thousands of positions."""


@dataclass(frozen=True, slots=True)
class Op:
    """One request of a client. `ended` is None where no answer came; `outcome` is then empty."""

    log: str
    what: str
    """next, tail, append, fill, trim or read."""
    began: float
    ended: float | None = None
    outcome: str = ""
    """ok, or why it was refused; of a read what stands there."""
    epoch: int = 0
    position: int = 0
    count: int = 1
    data: str = ""
    server: str = ""


@dataclass(frozen=True, slots=True)
class Strike:
    """A log's lock was taken away, or its epoch ended by command, between these times."""

    log: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Stored:
    """A log as the store holds it: what stands at each position, None for a position that was filled."""

    epoch: int
    trimmed: int
    entries: Mapping[int, str | None]
    stripe_epochs: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """All there is to know of a run."""

    ops: Sequence[Op]
    stored: Mapping[str, Stored]
    counters: frozenset[str]
    strikes: Sequence[Strike] = ()
    lease_s: float = 1.0
    epochs: Sequence[tuple[str, int]] = ()
    """A log's epoch as the store had it, from time to time."""


class Finding(NamedTuple):
    """Something that must not be: its kind, and what was seen."""

    kind: str
    text: str


@dataclass
class _Findings:
    found: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= MOST_FINDINGS:
            self.found.append(Finding(kind, text))


KINDS = (
    "handed out twice", "out of order", "below an append", "two servers", "an epoch went back", "late write landed",
    "written twice", "lost", "overwritten", "nobody wrote", "trimmed too far", "a hole", "not sealed", "read wrong",
)  # fmt: skip


def ops_of(lines: Iterable[Mapping[str, Any]]) -> Iterator[Op]:
    """Requests from the lines of one client; the line that begins one has `began`, the other one the same number."""
    open_ops: dict[int, Mapping[str, Any]] = {}
    for line in lines:
        if "began" in line:
            open_ops[line["n"]] = line
        else:
            yield _op({**open_ops.pop(line["n"]), **line})
    for line in open_ops.values():
        yield _op(line)


def _op(line: Mapping[str, Any]) -> Op:
    began = line.get("since", line["began"])
    return Op(**{key: value for key, value in line.items() if key not in ("n", "since")} | {"began": began})


def judge(run: Run) -> list[Finding]:
    """Everything that must not be, by kind; empty when all is well."""
    findings = _Findings()
    by_log: dict[str, list[Op]] = defaultdict(list)
    for op in run.ops:
        by_log[op.log].append(op)
    for log, ops in sorted(by_log.items()):
        _judge_positions(log, ops, run, findings)
        _judge_order(log, ops, run, findings)
        if log not in run.counters:
            _judge_writes(log, ops, findings)
            _judge_store(log, ops, run.stored[log], findings)
            _judge_reads(log, ops, run.stored[log], findings)
    _judge_epochs(run, findings)
    return findings.found


# ------------------------------------------------------------------------------------------ positions


def _judge_positions(log: str, ops: Sequence[Op], run: Run, findings: _Findings) -> None:
    """Each position once in an epoch, of a counter once for ever; each epoch from one server."""
    seen: set[tuple[int, int]] = set()
    servers: dict[int, str] = {}
    for op in ops:
        if op.what != "next" or op.outcome != "ok":
            continue
        epoch = 0 if log in run.counters else op.epoch
        for position in range(op.position, op.position + op.count):
            if (epoch, position) in seen:
                findings.add("handed out twice", f"{log}: {position}, at last in epoch {op.epoch}")
            seen.add((epoch, position))
        if servers.setdefault(op.epoch, op.server) != op.server:
            findings.add("two servers", f"{log}: epoch {op.epoch} at {servers[op.epoch]} and {op.server}")


@dataclass
class _Answered:
    """What had been answered at a time: the largest position of each epoch, and of each epoch's appends."""

    handed_out: dict[int, int] = field(default_factory=dict)
    appended: dict[int, int] = field(default_factory=dict)

    def note(self, op: Op) -> None:
        into = self.handed_out if op.what == "next" else self.appended
        into[op.epoch] = max(into.get(op.epoch, 0), op.position + op.count - 1)


def _judge_order(log: str, ops: Sequence[Op], run: Run, findings: _Findings) -> None:
    """What was answered before a request was sent bounds its answer from below."""
    asked = sorted((op for op in ops if op.what in ("next", "tail") and op.outcome == "ok"), key=lambda op: op.began)
    answers = sorted(
        (op for op in ops if op.outcome == "ok" and op.what in ("next", "append") and op.ended is not None),
        key=lambda op: op.ended or 0.0,
    )
    ends = [op.ended or 0.0 for op in answers]
    known, noted = _Answered(), 0
    for op in asked:
        until = bisect_left(ends, op.began)
        for each in answers[noted:until]:
            known.note(each)
        noted = max(noted, until)
        _judge_answer(log, op, known, run, findings)


def _judge_answer(log: str, op: Op, known: _Answered, run: Run, findings: _Findings) -> None:
    least = known.handed_out.get(op.epoch, 0) + (op.what == "next")
    if op.position < least:
        findings.add("out of order", f"{log}: {op.what} gave {op.position} of epoch {op.epoch} after {least - 1}")
    written = max((last for epoch, last in known.appended.items() if epoch <= op.epoch), default=0)
    if op.position < written + (op.what == "next"):
        findings.add("below an append", f"{log}: {op.what} gave {op.position} of epoch {op.epoch} after {written}")
    if _is_excused(log, op, run):
        return
    latest = max((*known.handed_out, *known.appended), default=0)
    if op.epoch < latest:
        findings.add("an epoch went back", f"{log}: {op.what} was answered of epoch {op.epoch} after {latest}")
    if log in run.counters:
        largest = max(known.handed_out.values(), default=0)
        if op.position < largest + (op.what == "next"):
            findings.add("out of order", f"{log}: {op.what} gave {op.position} after {largest}")


def _is_excused(log: str, op: Op, run: Run) -> bool:
    """Whether a server may not have noticed yet that its log was taken away; what storage takes is another matter."""
    return any(each.log == log and each.began <= op.began <= each.ended + run.lease_s for each in run.strikes)


# --------------------------------------------------------------------------------------------- writes


def _judge_writes(log: str, ops: Sequence[Op], findings: _Findings) -> None:
    """A position takes one entry, and an epoch is over once a write of a later one was acknowledged."""
    acknowledged = [op for op in ops if op.what in ("append", "fill") and op.outcome == "ok" and op.ended is not None]
    contents: dict[int, tuple[str, str]] = {}
    for op in acknowledged:
        content = (op.what, op.data)
        if contents.setdefault(op.position, content) != content:
            findings.add("written twice", f"{log}: {op.position} holds {contents[op.position]} and {content}")
    by_end = sorted(acknowledged, key=lambda op: op.ended or 0.0)
    ends = [op.ended or 0.0 for op in by_end]
    latest = [0]
    for op in by_end:
        latest.append(max(latest[-1], op.epoch))
    for op in acknowledged:
        over = latest[bisect_left(ends, op.began)]
        if op.epoch < over:
            findings.add("late write landed", f"{log}: {op.what} of {op.position} with epoch {op.epoch} after {over}")


def _judge_store(log: str, ops: Sequence[Op], stored: Stored, findings: _Findings) -> None:
    """All that was acknowledged is there, unless a client had it trimmed."""
    trims = [op for op in ops if op.what == "trim"]
    if stored.trimmed > max((op.position for op in trims), default=0):
        findings.add("trimmed too far", f"{log}: up to {stored.trimmed}")
    for op in trims:
        if op.outcome == "ok" and stored.trimmed < op.position:
            findings.add("lost", f"{log}: the trim of {op.position}, as it is trimmed up to {stored.trimmed}")
    for op in ops:
        if op.outcome == "ok" and op.what in ("append", "fill") and op.position > stored.trimmed:
            wanted = op.data if op.what == "append" else None
            if op.position not in stored.entries:
                findings.add("lost", f"{log}: {op.what} of {op.position} with epoch {op.epoch}")
            elif stored.entries[op.position] != wanted:
                findings.add("overwritten", f"{log}: {op.position} holds {stored.entries[op.position]}, not {wanted}")
    _judge_entries(log, ops, stored, findings)


def _judge_entries(log: str, ops: Sequence[Op], stored: Stored, findings: _Findings) -> None:
    """Every entry is one that a client sent, and there is no hole."""
    sent = {(op.position, op.data) for op in ops if op.what == "append"}
    filled = {op.position for op in ops if op.what == "fill"}
    for position, data in stored.entries.items():
        if (position, data) not in sent if data is not None else position not in filled:
            findings.add("nobody wrote", f"{log}: {position} holds {data}")
    for position in range(stored.trimmed + 1, max(stored.entries, default=0)):
        if position not in stored.entries:
            findings.add("a hole", f"{log}: {position}")


def _judge_reads(log: str, ops: Sequence[Op], stored: Stored, findings: _Findings) -> None:
    """A reader sees what is there for good, and never misses what was acknowledged before it asked."""
    written: dict[int, float] = {}
    for op in ops:
        if op.what in ("append", "fill") and op.outcome == "ok" and op.ended is not None:
            written[op.position] = min(op.ended, written.get(op.position, op.ended))
    trims = [(op.position, op.began) for op in ops if op.what == "trim"]
    for op in ops:
        if op.what != "read" or op.ended is None:
            continue
        there = stored.entries.get(op.position)
        if op.outcome == "unwritten" and written.get(op.position, op.ended) < op.began:
            findings.add("read wrong", f"{log}: {op.position} was unwritten after it was acknowledged")
        if op.outcome == "trimmed" and not any(upto >= op.position and at <= op.ended for upto, at in trims):
            findings.add("read wrong", f"{log}: {op.position} was trimmed, and nobody asked for that")
        if op.position <= stored.trimmed:
            continue
        if op.outcome == "data" and there != op.data:
            findings.add("read wrong", f"{log}: {op.position} was {op.data}, and is {there}")
        if op.outcome == "filled" and (op.position not in stored.entries or there is not None):
            findings.add("read wrong", f"{log}: {op.position} was filled, and is {there}")


# --------------------------------------------------------------------------------------------- epochs


def _judge_epochs(run: Run, findings: _Findings) -> None:
    """The store's epoch only grows, is at or above all that were served, and every stripe has it."""
    last: dict[str, int] = {}
    for log, epoch in run.epochs:
        if epoch < last.get(log, 0):
            findings.add("an epoch went back", f"{log}: the store had {last[log]}, then {epoch}")
        last[log] = epoch
    for op in run.ops:
        stored = run.stored[op.log].epoch
        if op.outcome == "ok" and op.epoch > stored:
            findings.add("an epoch went back", f"{op.log}: {op.epoch} was served, the store has {stored}")
    for log, each in run.stored.items():
        if any(epoch != each.epoch for epoch in each.stripe_epochs):
            findings.add("not sealed", f"{log}: epoch {each.epoch}, its stripes {sorted(set(each.stripe_epochs))}")
