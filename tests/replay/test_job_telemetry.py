"""What a landing exports, and what jobs say they would read."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from devkit.processes.programs import program
from remora.cli import group
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.job_telemetry import JobTelemetry, LandingState
from remora_pipeline.replay.layout import write
from remora_pipeline.replay.pipeline.checkpoint import reached
from remora_pipeline.replay.pipeline.directory import Commit, Landing
from remora_pipeline.replay.pipeline.landing_state import newest_us
from replay.prepared import Wanted, prepare

STATE = LandingState("photos", {0: 5, 1: 9}, {0: 7, 1: 9, 2: 3}, 1_790_000_000_500_000, events=13, bad=1)


def telemetry() -> JobTelemetry:
    """That of a landing."""
    found = JobTelemetry()
    found.landing(STATE, began=0.0)
    return found


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and the values of labels, in the order of their names."""
    return {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_lag_counts_what_has_not_landed() -> None:
    """A partition that nothing has landed of lags by all of it; one that was cut short in Kafka does not lag."""
    assert STATE.lag == 2 + 0 + 3
    assert LandingState("t", {0: 9}, {0: 7}, 0, 0, 0).lag == 0


def test_a_file_of_metrics_has_what_landed(tmp_path: Path) -> None:
    """The file that a job writes has offsets by partition, lag, time, and totals, and promtool has nothing to say."""
    file = tmp_path / "textfile" / "remora.prom"

    telemetry().export(str(file), "photos")

    found = samples(file.read_text())
    assert found["remora_landing_offset", "0", "photos"] == 5
    assert found["remora_landing_offset", "1", "photos"] == 9
    assert found["remora_landing_lag_records", "photos"] == 5
    assert found["remora_landing_event_time_seconds", "photos"] == 1_790_000_000.5
    assert found["remora_landing_events", "photos"] == 13
    assert found["remora_landing_bad_values", "photos"] == 1
    assert found["remora_job_duration_seconds", "land"] > 0
    assert abs(found["remora_landing_timestamp_seconds", "photos"] - datetime.now(UTC).timestamp()) < 3600
    promtool = [program("promtool", "prometheus"), "check", "metrics"]
    done = subprocess.run(promtool, input=file.read_bytes(), capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_nothing_landed_has_no_event_time(tmp_path: Path) -> None:
    """Before the first event its time is not there, instead of being 1970."""
    found = JobTelemetry()
    found.landing(LandingState("photos", {0: 0}, {0: 4}, 0, 0, 0), began=0.0)
    found.export(str(tmp_path / "m.prom"), "photos")

    names = {name for name, *_ in samples((tmp_path / "m.prom").read_text())}
    assert "remora_landing_event_time_seconds" not in names
    assert "remora_landing_lag_records" in names


@contextmanager
def gateway(status: int) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A Pushgateway that answers so; what was pushed, as method, path and body."""
    pushed: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            pushed.append((self.command, self.path, body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", pushed
        finally:
            server.shutdown()
            thread.join()


def test_a_gateway_gets_metrics_of_the_topic() -> None:
    """A push adds to the group of the job and the topic, so that landings of several topics keep theirs."""
    with gateway(200) as (url, pushed):
        telemetry().export(url, "photos")

    ((method, path, body),) = pushed
    assert (method, path) == ("POST", "/metrics/job/remora-land/topic/photos")
    assert samples(body)["remora_landing_lag_records", "photos"] == 5


def test_a_receiver_that_cannot_take_them_is_named(tmp_path: Path) -> None:
    """A gateway that refuses or is away, and a file that cannot be made, are an error of remora's with their name."""
    (tmp_path / "file").touch()
    with gateway(500) as (url, _), pytest.raises(ReplayError, match=url):
        telemetry().export(url, "photos")
    with pytest.raises(ReplayError, match=r"127\.0\.0\.1:1"):
        telemetry().export("http://127.0.0.1:1", "photos")
    with pytest.raises(ReplayError, match=r"file/m\.prom"):
        telemetry().export(str(tmp_path / "file" / "m.prom"), "photos")


def test_the_newest_event_is_found_by_footers(tmp_path: Path) -> None:
    """The newest day's files tell the newest event; a table without files tells none."""
    for day, hour in (("2026-11-20", 23), ("2026-11-21", 3), ("2026-11-21", 5)):
        folder = tmp_path / f"day={day}" / "bucket_dir=b"
        folder.mkdir(parents=True, exist_ok=True)
        at = datetime.fromisoformat(f"{day}T{hour:02}:00:00+00:00")
        column = pa.array([at], pa.timestamp("us", tz="UTC"))
        pq.write_table(pa.table({"event_time": column}), folder / f"batch-{hour}.parquet")

    assert newest_us(tmp_path) == 1_795_237_200_000_000
    assert newest_us(tmp_path / "none") == 0


def test_a_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    """What is no Parquet among the newest day's files is an error of remora's with its name."""
    file = tmp_path / "day=2026-11-21" / "bucket_dir=photos" / "batch-00000000-0000.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1 cut")

    with pytest.raises(ReplayError, match=r"batch-00000000-0000\.parquet: .*Parquet"):
        newest_us(tmp_path)


def test_a_checkpoint_tells_what_was_reached(tmp_path: Path) -> None:
    """The offsets of a batch are those behind its last records."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{}\n{"photos":{"0":12,"1":4}}')

    assert reached(tmp_path, "photos", 3) == {0: 12, 1: 4}


def test_jobs_say_what_they_would_read(tmp_path: Path) -> None:
    """With --dry-run prepare, run, inventory and reconcile name what they would read, and make nothing."""
    (tmp_path / "logs.csv").write_text("when,cmd,lbn\n1,PUT,a\n2,PUT,b\n")
    prepared = prepare(tmp_path / "trace", [Wanted(0, "PUT", "k")])
    landed = tmp_path / "landed"
    write(landed / "_landing.json", Landing("l1", "photos", None, None))
    write(landed / "_commit.json", Commit(4, 1_234, 2))
    out = tmp_path / "out"

    def said(*argv: object) -> str:
        done = CliRunner().invoke(group, [*map(str, argv), "--out", str(out), "--dry-run"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    columns = ["--ts-col", "when", "--ts-unit", "s", "--op-col", "cmd", "--key-col", "lbn", "--bucket", "v"]
    assert "would read 1 file," in said("replay", "prepare", tmp_path / "logs.csv", *columns)
    assert "would send 1 event of 1 key to null" in said("replay", "run", prepared.path, "--null")
    assert "up to batch 4; 1,234 in all" in said("pipeline", "inventory", landed)
    assert "events of b up to batch 4" in said("pipeline", "inventory", landed, "--bucket", "b")
    listing = tmp_path / "logs.csv"
    told = said("pipeline", "reconcile", "photos", "--backfill", "--listing", listing)
    assert f"no events (--backfill) with the listing of {listing}" in told
    assert not out.exists()


def test_a_state_can_be_written_down() -> None:
    """What a landing tells is plain data."""
    assert msgspec.json.decode(msgspec.json.encode(STATE), type=LandingState) == STATE
