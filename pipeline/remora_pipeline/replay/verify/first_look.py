"""What is wrong with the question of a verification, as far as it shows in a moment: before Spark starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from remora_pipeline.replay import layout
from remora_pipeline.replay.kafka_source import extent
from remora_pipeline.replay.layout import ReplayRun, RunDirectory
from remora_pipeline.replay.prepared import see_events
from remora_pipeline.replay.verify import kafka
from remora_pipeline.replay.verify.chain import see_letters
from remora_pipeline.replay.verify.question import Question
from remora_pipeline.replay.verify.record_frames import see_journals, see_trace
from remora_pipeline.replay.verify.seams import families_of_file


def see_files(question: Question, run: RunDirectory | None) -> None:
    """Raise ReplayRefused for a file that is not as it must be: of the run, of its trace, and of what explains gaps."""
    if run is not None:
        see_journals(run)
        see_events(see_trace(layout.read(run.run, ReplayRun)))
    if question.letters is not None and Path(question.letters).is_file():
        see_letters(Path(question.letters))
    if question.ended is not None:
        families_of_file(question.ended)


def see_topics(question: Question) -> int:
    """How many records there may be in the topic. Raises ReplayError where it, or that of the dead letters, is not
    there, or no longer has the records that an earlier verdict was on."""
    records = extent(question.source)
    if question.recalled is not None:
        kafka.recall(question.source, question.recalled)
    if question.letters is not None and not Path(question.letters).is_file():
        extent(replace(question.source, topic=question.letters))
    return records
