"""The page of a reconcile, in the form of a run's report."""

from __future__ import annotations

from collections.abc import Iterator

from remora_pipeline.replay.pipeline.reconciliation import MOST_EXAMPLES, Reconcile
from remora_pipeline.replay.report.counts import Tone
from remora_pipeline.replay.report.page import templates
from remora_pipeline.replay.report.tables import ReportTable, TableCell, TableRow
from remora_pipeline.replay.report.texts import count, moment, visible

_WORDS = {
    "missing": ("missing", "objects that no event names"),
    "extra": ("extra", "objects that are there by the events, and are gone"),
    "differing": ("differing", "objects whose size, ETag or version is another one than the events tell"),
    "changing": ("left out", "keys that changed from the grace before the listing on"),
}


def page_of(found: Reconcile) -> str:
    """The whole page, which needs no other file."""
    return (
        templates()
        .get_template("reconciled.html.jinja")
        .render(
            title=visible(found.bucket),
            verdict="PASS" if found.is_clean else "FAIL",
            sentence=sentence(found),
            counts=ReportTable("", ("keys",), list(_counts(found))),
            examples=list(_examples(found)),
            details=ReportTable("", (), list(_details(found))),
        )
    )


def sentence(found: Reconcile) -> str:
    """What was found, in one sentence."""
    if found.is_clean:
        return f"the events tell of the {count(found.listed)} objects that are in the bucket, and of no others"
    told = [f"{count(found.counts[kind])} {kind}" for kind in ("missing", "extra", "differing") if found.counts[kind]]
    return f"{', '.join(told)}, of {count(found.listed)} objects in the bucket"


def _counts(found: Reconcile) -> Iterator[TableRow]:
    for name, what, number in (("listed", "in the bucket", found.listed), ("told", "by the events", found.told)):
        yield TableRow(what, [TableCell(count(number), number)], key=name)
    for kind, (what, note) in _WORDS.items():
        number = found.counts[kind]
        tone: Tone = "wrong" if number and kind != "changing" else "plain"
        yield TableRow(what, [TableCell(count(number), number, tone)], note=note, key=kind)


def _examples(found: Reconcile) -> Iterator[ReportTable]:
    for kind in ("missing", "extra", "differing"):
        rows = [
            TableRow(
                "", [TableCell(visible(text)) for text in (each.key, ", ".join(each.differs), each.listed, each.event)]
            )
            for each in found.examples
            if each.kind == kind
        ]
        if rows:
            more = "" if found.counts[kind] <= MOST_EXAMPLES else f", {len(rows)} of {count(found.counts[kind])}"
            yield ReportTable(f"{kind}{more}", ("key", "differs", "in the bucket", "last event"), rows)


def _details(found: Reconcile) -> Iterator[TableRow]:
    told = {
        "bucket": f"{found.tenant}:{found.bucket}" if found.tenant else found.bucket,
        "listing": f"{found.source}, {moment(found.begun_us)} to {moment(found.ended_us)}",
        "events": f"{found.landed}, up to batch {found.batch}" if found.landing else "none: a backfill",
        "grace": f"{found.grace_us / 1e6:g} s",
        "id": found.id,
    }
    for name, text in told.items():
        yield TableRow(name, [TableCell(visible(text))])
