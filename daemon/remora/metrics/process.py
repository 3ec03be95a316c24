"""Events of the daemon's processes: start, workers, drain, reload, readiness, defects, commands; and spans."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterable, Mapping

from remora.codec import speedups
from remora.metrics.events import Crashes, EventGroup, Instruments, say
from remora.model.caller import Caller

_TAKES_PART = {True: "drained", False: "takes part"}


class ProcessEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        counter, gauge = instruments.counter, instruments.gauge
        self._build = gauge("remora_build_info", "1, with this build's versions.", "version", "python", "codec")
        self._spans = counter(
            "remora_spans", "Spans that were sampled; that a receiver took; that it did not take.", "state"
        )
        self._workers = gauge("remora_workers", "Worker processes that are ready.")
        self._worker_ends = counter("remora_worker_ends", "Worker processes that ended without being asked to.")
        self._start_failures = counter(
            "remora_worker_start_failures",
            "Times that the host could not start a worker process, which it tries again.",
        )
        self._worker_hangs = counter("remora_worker_hangs", "Worker processes killed because they made no progress.")
        self._ready = gauge("remora_ready", "1 when /-/ready says so.")
        self._delivery_ready = gauge("remora_delivery_ready", "1 when /-/ready/delivery says so.")
        self._reloads = counter("remora_config_reloads", "Reloads of the configuration.", "result")
        self._reload_ok = gauge("remora_config_last_reload_successful", "1 when the last reload was accepted.")
        self._reload_ok.set(1)
        self.crashed = Crashes(instruments.registry, instruments.repeats).crashed
        self._lag = instruments.histogram(
            "remora_event_loop_lag_seconds",
            "How late the event loop wakes up.",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
        )
        self._traces_failing = False

    def started(self, version: str, config: str, workers: int) -> None:
        """The daemon begins."""
        self._build.labels(version, platform.python_version(), speedups.IMPLEMENTATION).set(1)
        say(logging.INFO, "started", f"remora {version} started", config=config, workers=workers)
        if speedups.IMPLEMENTATION != "compiled":
            say(logging.WARNING, "not_compiled", speedups.NOT_COMPILED)

    def running(self, version: str) -> None:
        """A worker process begins."""
        self._build.labels(version, platform.python_version(), speedups.IMPLEMENTATION).set(1)

    def serving(self, address: str, control: str) -> None:
        """The admin server listens, and so does the control server on its socket, if it has one."""
        say(logging.INFO, "serving", "metrics and health are served", address=address, control=control or "none")

    def worker_started(self, number: int, pid: int) -> None:
        """A worker process was started."""
        say(logging.INFO, "worker_started", "a worker process was started", number=number, pid=pid)

    def worker_not_started(self, number: int, why: str, pause_s: float) -> None:
        """The host could not start a worker process; that is tried again after the pause."""
        self._start_failures.inc()
        self._say_seldom(
            logging.ERROR, "worker_not_started", ("worker not started", number), "a worker process cannot be started",
            number=number, reason=why, pause_s=round(pause_s, 3),
        )  # fmt: skip

    def worker_ready(self, number: int, pid: int, seconds: float) -> None:
        """A worker process works, `seconds` after it was started."""
        say(
            logging.INFO, "worker_ready", "a worker process is ready",
            number=number, pid=pid, seconds=round(seconds, 3),
        )  # fmt: skip

    def worker_hangs(self, number: int, pid: int, silent_s: float) -> None:
        """The supervisor kills a worker process that made no progress for `silent_s` seconds."""
        self._worker_hangs.inc()
        say(
            logging.ERROR, "worker_hangs", "a worker process makes no progress and is killed",
            number=number, pid=pid, seconds=round(silent_s, 3),
        )  # fmt: skip

    def worker_ended(self, number: int, pid: int, why: str, pause_s: float) -> None:
        """A worker process ended without being asked to; another one starts after the pause."""
        self._worker_ends.inc()
        self._say_seldom(
            logging.ERROR, "worker_ended", ("worker", number, why), "a worker process ended and is replaced",
            number=number, pid=pid, reason=why, pause_s=round(pause_s, 3),
        )  # fmt: skip

    def out_of_memory(self, number: int, pid: int, limit: str, used_mib: int) -> None:
        """A worker process cannot allocate memory, and ends itself."""
        say(
            logging.ERROR, "out_of_memory",
            f"worker {number} cannot allocate memory and ends: {limit}; give it more (operations.md: Workers)",
            number=number, pid=pid, used_mib=used_mib,
        )  # fmt: skip

    def worker_unfinished(self, number: int, pid: int, why: str) -> None:
        """A worker process that was asked to finish was killed, or failed."""
        say(
            logging.WARNING, "worker_unfinished", "a worker process did not finish",
            number=number, pid=pid, reason=why,
        )  # fmt: skip

    def presence_failed(self, folder: str, why: str) -> None:
        """This worker cannot show that it lives: where it is killed with its supervisor, its locks must run out."""
        say(
            logging.WARNING, "presence_failed", "the run directory cannot be used; locks of killed workers run out",
            folder=folder, reason=why,
        )  # fmt: skip

    def clearing_failed(self, why: str) -> None:
        """The locks of ended workers were not broken; that is repeated."""
        self._say_seldom(
            logging.WARNING, "clearing_failed", "clearing_failed", "locks of ended workers are not broken yet",
            reason=why,
        )  # fmt: skip

    def workers(self, serving: int) -> None:
        """This many worker processes are ready."""
        self._workers.set(serving)

    def draining(self, why: str) -> None:
        """The daemon stops taking work."""
        say(logging.INFO, "draining", "finishing what is in flight", reason=why)

    def drained(self, seconds: float, clean: bool) -> None:
        """The daemon has stopped, with everything in flight finished or not."""
        if clean:
            say(logging.INFO, "drained", "everything in flight is finished", seconds=round(seconds, 3))
        else:
            say(
                logging.WARNING, "drain_timeout", "stopped with entries in flight, which will be delivered again",
                seconds=round(seconds, 3),
            )  # fmt: skip

    def reloaded(self, config: str, live: Iterable[str], restart: Iterable[str]) -> None:
        """The configuration was read again, from this file: what changed at once, and what waits for a restart."""
        self._reloads.labels("accepted").inc()
        self._reload_ok.set(1)
        changed = ", ".join(live) or "nothing"
        say(logging.INFO, "config_reloaded", "configuration reloaded", config=config, changed=changed)
        if waiting := ", ".join(restart):
            say(logging.WARNING, "config_needs_restart", "changes that need a restart were ignored", options=waiting)

    def config_remarks(self, remarks: Iterable[str]) -> None:
        """The configuration allows this, and may not mean it."""
        for each in remarks:
            say(logging.WARNING, "config_remark", "the configuration may not be what is meant", remark=each)

    def reload_failed(self, why: str) -> None:
        """The configuration was read again and refused; the old one stays."""
        self._reloads.labels("refused").inc()
        self._reload_ok.set(0)
        say(logging.ERROR, "config_refused", "configuration not reloaded, the old one stays", reason=why)

    def loop_lag(self, seconds: float) -> None:
        """The event loop woke up this many seconds later than asked."""
        self._lag.observe(seconds)

    def ready(self, is_ready: bool, to_deliver: bool) -> None:
        """What /-/ready and /-/ready/delivery say now."""
        self._ready.set(is_ready)
        self._delivery_ready.set(to_deliver)

    def span_sampled(self) -> None:
        """A span was begun that is to be exported."""
        self._spans.labels("sampled").inc()

    def spans_exported(self, count: int, why: str) -> None:
        """The receiver took spans, or did not, for this reason; called by the exporter's thread."""
        self._spans.labels("failed" if why else "exported").inc(count)
        if bool(why) == self._traces_failing:
            return
        self._traces_failing = bool(why)
        if why:
            say(logging.WARNING, "traces_failing", "spans are lost; delivery goes on", reason=why)
        else:
            say(logging.INFO, "traces_recovered", "spans are exported again")


class CommandEvents(EventGroup):
    """Changes of a running daemon: each leaves a line with what was, what is, and who asked."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        self._overridden = instruments.gauge(
            "remora_shaping_overridden",
            "1 while a command's change of a shaping scope or the default class (default_class) lasts.",
            "scope",
        )

    def control_unavailable(self, path: str, why: str) -> None:
        """There is no control socket: commands cannot change this daemon."""
        say(
            logging.WARNING, "control_unavailable", "commands cannot change this daemon: no place for its socket",
            path=path, reason=why, option="supervisor.run_directory",
        )  # fmt: skip

    def control_refused(self, route: str, caller: Caller, why: str) -> None:
        """Somebody who may not asked for a change; nothing changes."""
        self._say_seldom(
            logging.WARNING, "control_refused", ("control refused", route), "a change was asked for and refused",
            route=route, **caller.known, reason=why,
        )  # fmt: skip

    def host_drain(self, was: bool, on: bool, caller: Caller) -> None:
        """This host gives its queues to others before maintenance, or takes part again."""
        text = "this host gives its queues to other hosts" if on else "this host takes part again"
        say(logging.INFO, "host_drain", text, old=_TAKES_PART[was], new=_TAKES_PART[on], **caller.known)

    def quarantine_release(self, destination: str | None, caller: Caller) -> None:
        """The workers use a destination again, or all (None); each says which, and what was left of its quarantine."""
        say(
            logging.INFO, "quarantine_release", "destinations in quarantine are used again",
            destination=destination or "all", **caller.known,
        )  # fmt: skip

    def shaping_changed(self, changes: Iterable[tuple[str, str, str]], by: str, caller: Caller) -> None:
        """What a command changed of shaping, or a reload of what commands had changed: name, old and new value."""
        for name, old, new in changes:
            say(
                logging.INFO, "shaping_changed", "traffic is shaped otherwise",
                value=name, old=old, new=new, by=by, **caller.known,
            )  # fmt: skip

    def shaping_overridden(self, scopes: Mapping[str, bool]) -> None:
        """Shows which scopes differ from the configuration file; a scope that is left out is shown no longer."""
        self._overridden.clear()
        for scope, is_overridden in scopes.items():
            self._overridden.labels(scope).set(is_overridden)
