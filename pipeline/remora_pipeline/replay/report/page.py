"""The page: words and numbers of a summary around pictures, in one file that needs no other."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from remora.model.words import agreeing
from remora_pipeline.replay.report.panels import Picture
from remora_pipeline.replay.report.subject import ReportSubject
from remora_pipeline.replay.report.summary import Summary
from remora_pipeline.replay.report.tables import (
    count_tables,
    detail_tables,
    example_tables,
    fault_table,
    key_table,
    latency_table,
    rate_table,
    suffix,
    unused_table,
)
from remora_pipeline.replay.report.texts import count, visible


@dataclass(frozen=True)
class Headline:
    """What the verdict on a run is, in one line, and what it does not say."""

    name: str
    verdict: str
    sentence: str
    caveats: Sequence[str]


def render(subjects: Sequence[ReportSubject], summary: Summary, pictures: Sequence[Sequence[Picture]]) -> str:
    """The whole page, for one run or two. `pictures` has for each panel one picture, or one of each run."""
    template = templates().get_template("page.html.jinja")
    return template.render(
        title=" against ".join(visible(each.name) for each in subjects),
        heads=[
            Headline(visible(each.name), each.verdict.verdict, sentence(each), each.verdict.caveats)
            for each in subjects
        ],
        counts=list(count_tables(subjects, summary)),
        latencies=latency_table(summary),
        rates=rate_table(summary),
        examples=list(example_tables(subjects)),
        pictures=pictures,
        faults=[fault_table(each, suffix(each, subjects)) for each in subjects if each.faults],
        keys=[key_table(each, suffix(each, subjects)) for each in subjects if each.series.hottest],
        unused=unused_table(subjects, summary),
        details=list(detail_tables(subjects)),
    )


def templates() -> Environment:
    """The pages of this package."""
    environment = Environment(
        loader=PackageLoader("remora_pipeline.replay.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = lambda image: base64.b64encode(image).decode()
    return environment


def sentence(subject: ReportSubject) -> str:
    """Why the verdict is what it is."""
    verdict = subject.verdict
    if verdict.reasons:
        return "; ".join(verdict.reasons)
    found = verdict.counts
    copies = found.get("duplicates", 0)
    more = agreeing(copies, "; {n} [record is a copy|records are copies], which this topic may have") if copies else ""
    if subject.run is not None:
        all_ = "all {n} [event that was acked is|events that were acked are] in Kafka, each key in its order"
        return agreeing(found.get("acked", 0), all_) + more
    explained = found.get("chain_gaps_explained", 0)
    gaps = f"dead letters explain {count(explained)} gaps" if explained else "nothing is missing between them"
    return f"{count(found.get('in_kafka', 0))} records, each key in its order, and {gaps}{more}"
