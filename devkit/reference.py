"""Write what stands in more than one place, from the place where it is said first.

  scripts/reference            write docs/options.md, docs/metrics.md and config/remora.toml
  scripts/reference --check    change nothing; exit with 1 when one of them is stale

Options are explained in config/options.toml, which has every one at its default. docs/options.md shows them with what
the code knows of them: limits, and whether a reload changes them. config/remora.toml, which is what an installation
begins with, has those of COMMON. Metrics are those of the registries of daemon and sequencer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from prometheus_client import CollectorRegistry

from devkit.paths import ROOT
from remora import config
from remora.config.known import class_of, options_of, part_of, unit_of
from remora.metrics import Telemetry
from remora.metrics.sequencer import SequencerTelemetry
from remora_pipeline.replay.job_telemetry import JobTelemetry

COMMON = frozenset({
    "admin.listen", "admin.control_tokens", "credentials.directory", "delivery.drain_timeout", "delivery.mode",
    "delivery.time_to_live", "destinations.allow", "ingest.listen", "ingest.tls_certificate", "ingest.tokens",
    "kafka.ca_directories", "kafka.client_files", "kafka.compression", "log.format", "log.level",
    "ownership.claim_from_radosgw", "ownership.schemes", "rados.conf", "rados.zone", "sqlite.directory",
    "sqlite.if_missing", "sqlite.queue_bytes", "store.kind", "supervisor.workers", "traces.endpoint",
})  # fmt: skip
"""Options that people set. Those which the file explains together with one of them come along."""

PARTS = MappingProxyType({
    "delivery.list_entries": "What is read ahead, and held in memory",
    "delivery.retry_base": "Pauses after a failure, and the drain",
    "delivery.mode": "How often an entry arrives",
    "delivery.time_to_live": "When an entry becomes a dead letter",
    "kafka.delivery_timeout": "Batches and connections",
    "kafka.transaction_timeout": "Exactly-once topics",
    "kafka.ca_directories": "Certificates and log-ins",
})  # fmt: skip
"""Sub-headings of a long section of docs/options.md, each with the option that it stands before."""

HEAD_OF_FILE = """\
# Remora's configuration: the options that people set, commented out, at their defaults.
#
# `remora config default --all` prints every option, and docs/options.md shows them with their limits.
#
"""

HEAD_OF_METRICS = """\
# Every metric

<!-- Made by scripts/reference from the registry. Do not edit. -->

`/metrics` on `admin.listen` has those of the daemon, summed over its workers; on `sequencer.admin_listen` are
those of `remora sequencer`, and `remora pipeline land --metrics` writes or pushes its own.
[operations.md](operations.md#health-metrics-and-alerts) says which to look at first, [runbooks.md](runbooks.md) what to
do for each alert. A histogram has the series `_bucket`, `_sum` and `_count`.
"""

SUBJECTS = MappingProxyType({
    "What comes in": ("remora_ingest",),
    "What waits, and what became of it": ("remora_backlog", "remora_ledger", "remora_parked", "remora_queue_",
                                          "remora_dead_letters", "remora_spill"),
    "Delivery": ("remora_delivered", "remora_listed", "remora_removed", "remora_failures", "remora_retr",
                 "remora_event_age", "remora_topic_failing", "remora_in_flight", "remora_unacknowledged",
                 "remora_turned_back", "remora_progress", "remora_arrivals", "remora_read_ahead",
                 "remora_stage", "remora_topic_held"),
    "Destinations": ("remora_kafka", "remora_http", "remora_amqp", "remora_nats", "remora_quarantine",
                     "remora_quarantined", "remora_quarantining", "remora_denied"),
    "Ownership of queues": ("remora_lock", "remora_owned", "remora_eligible", "remora_members", "remora_target",
                            "remora_shard_moves", "remora_usage", "remora_balance", "remora_removals_refused"),
    "The store": ("remora_store", "remora_discovery"),
    "Traffic shaping": ("remora_shaping",),
    "Shared logs": ("remora_sequencer", "remora_log"),
    "The jobs behind Kafka": ("remora_landing", "remora_job"),
    "The process": ("",),
})  # fmt: skip
"""Headings, with the beginnings of the names of their metrics; the first that fits counts."""


@dataclass(frozen=True)
class Block:
    """Options that one comment explains: the section, the comment's lines, and each option with its default."""

    section: str
    text: list[str]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """The dotted names of the options."""
        return [f"{self.section}.{key}" for key in self.options]


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a file that has every option commented out; its head is none."""
    section, block = "", Block("", [])
    for line in text.splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = found[1]
        elif option := re.fullmatch(r"#([a-z_]+) = (.*)", line):
            block.options[option[1]] = option[2]
            continue
        elif line.startswith("#") and section and not block.options and block.section == section:
            block.text.append(line)
            continue
        if block.options:
            yield block
        block = Block(section, [line] if line.startswith("#") and section else [])
    if block.options:
        yield block


def head(text: str) -> str:
    """What the file says of all options, before its first section and after what it says of itself."""
    return text[: text.index("\n[")].partition("\n#\n")[2].strip("\n") + "\n"


# ------------------------------------------------------------------------------------------- configuration


def common_file(text: str) -> str:
    """The configuration file that an installation begins with."""
    pieces, section = [HEAD_OF_FILE + head(text)], ""
    for block in blocks(text):
        if COMMON.isdisjoint(block.paths):
            continue
        if block.section != section:
            section = block.section
            pieces.append(f"\n[{section}]\n")
        pieces += [f"{line}\n" for line in block.text]
        pieces += [f"#{key} = {default}\n" for key, default in block.options.items()]
    return "".join(pieces)


def options_page(text: str) -> str:
    """docs/options.md."""
    pieces = [
        "# Every option\n\n<!-- Made by scripts/reference from config/options.toml and the code. Do not edit. -->\n\n",
        _prose(head(text).splitlines())[0] + "\n\n",
        "`remora config default --all` prints all of them as a file, `remora config default` those that people set.\n",
    ]
    section = ""
    for block in blocks(text):
        if block.section != section:
            section = block.section
            pieces.append(f"\n## {section}\n")
        pieces += [f"\n### {PARTS[path]}\n" for path in block.paths if path in PARTS]
        prose, example = _prose(block.text)
        rows = [f"| `{path}` | `{default}` | {_limits(path)} | {_when(path)} |\n"
                for path, default in zip(block.paths, block.options.values(), strict=True)]  # fmt: skip
        pieces += ["\n", "| option | default | values | a change takes effect |\n|---|---|---|---|\n", *rows]
        pieces.append(f"\n{prose}\n" if prose else "")
        pieces.append(f"\n```toml\n{example}```\n" if example else "")
    return "".join(pieces)


def _prose(lines: list[str]) -> tuple[str, str]:
    """A comment's sentences, without what a column says, and the example in it."""
    words = [line[2:] for line in lines if not line.startswith("#   ")]
    example = [line[4:] for line in lines if line.startswith("#   ")]
    text = re.sub(r" \(live\)", "", "\n".join(words))
    return text.replace("<", "&lt;"), "".join(f"{line}\n" for line in example)


def _limits(path: str) -> str:
    section, _, key = path.partition(".")
    hint = options_of(class_of(section))[key][1]
    if unit := unit_of(hint):
        return f"{unit.show(unit.least)} to {unit.show(unit.most)}"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(hint))
    if part_of(hint):
        return "tables"
    kinds: Mapping[Any, str] = {bool: "`true`, `false`", str: "text", tuple: "a list of texts", dict: "a table"}
    return kinds[get_origin(hint) or hint]


def _when(path: str) -> str:
    return "at a reload" if path in config.LIVE else "at the next start"


# ------------------------------------------------------------------------------------------------- metrics


@dataclass(frozen=True)
class Family:
    """A metric as it is exported, with the names of its labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


def families(registry: CollectorRegistry) -> Iterator[Family]:
    """The metrics of a registry, whether or not anything was counted."""
    for collector in dict.fromkeys(registry._collector_to_names):  # noqa: SLF001 - nothing public has the labels
        for each in collector.collect():
            labels: Sequence[str] = getattr(collector, "_labelnames", ()) or getattr(each, "_labelnames", ())
            name = f"{each.name}_total" if each.type == "counter" else each.name
            yield Family(name, each.type, each.documentation, tuple(labels))


def metrics_page(alerts: str) -> str:
    """docs/metrics.md."""
    daemons = {each.name: each for each in families(Telemetry().registry)}
    sequencers = {each.name: each for each in families(SequencerTelemetry().registry)}
    jobs = {each.name: each for each in families(JobTelemetry().registry)}
    found = {subject: list[Family]() for subject in SUBJECTS}
    for each in {**sequencers, **daemons, **jobs}.values():
        fitting = (name for name, starts in SUBJECTS.items() if each.name.startswith(starts))
        found["Shared logs" if each.name not in {**daemons, **jobs} else next(fitting)].append(each)
    pieces = [HEAD_OF_METRICS]
    for subject, members in found.items():
        pieces += [f"\n## {subject}\n\n| metric | kind, labels | what it says | alerts |\n|---|---|---|---|\n"]
        for each in members:
            labels = f" by {', '.join(each.labels)}" if each.labels else ""
            where = ", ".join(f"[{name}](runbooks.md#{name.lower()})" for name in _alerts_with(each.name, alerts))
            pieces.append(f"| `{each.name}` | {each.kind}{labels} | {_cell(each.help)} | {where} |\n")
    return "".join(pieces)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _alerts_with(name: str, rules: str) -> list[str]:
    return [
        found[1]
        for rule in rules.split("\n      - ")
        if (found := re.match(r"alert: (\w+)", rule)) and re.search(rf"\b{name}(_bucket|_sum|_count)?\b", rule)
    ]


# -------------------------------------------------------------------------------------------------- command


def pages() -> Iterator[tuple[str, Callable[[], str]]]:
    """Each file that is written, with what it is to be."""
    options = (ROOT / "config/options.toml").read_text()
    yield "config/remora.toml", lambda: common_file(options)
    yield "docs/options.md", lambda: options_page(options)
    yield "docs/metrics.md", lambda: metrics_page((ROOT / "config/alerts.yml").read_text())


def main(*arguments: str) -> int:
    """Write them, or say which are stale; the exit code."""
    stale = 0
    for name, made in pages():
        path, text = ROOT / name, made()
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in arguments:
            print(f"reference: {name} is stale: run scripts/reference", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
