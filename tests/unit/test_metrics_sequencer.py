"""The metrics of a sequencer: they never go back, and their labels are bounded."""

from __future__ import annotations

from remora.metrics.sequencer import SequencerFigures, SequencerTelemetry


def value(telemetry: SequencerTelemetry, name: str, **labels: str) -> float | None:
    found: float | None = telemetry.registry.get_sample_value(name, labels)
    return found


def test_positions_of_epochs_that_are_over_stay_counted() -> None:
    """A log's positions are those of all its epochs, and its epoch is the one that is served."""
    telemetry = SequencerTelemetry()
    telemetry.ended("p/a", 5)
    telemetry.figures = lambda: SequencerFigures(positions={"p/a": 7}, epochs={"p/a": 3})

    assert value(telemetry, "remora_sequencer_positions_total", log="p/a") == 12
    assert value(telemetry, "remora_sequencer_epoch", log="p/a") == 3
    telemetry.figures = SequencerFigures
    assert value(telemetry, "remora_sequencer_positions_total", log="p/a") == 5
    assert value(telemetry, "remora_sequencer_epoch", log="p/a") is None


def test_logs_beyond_the_limit_share_a_label() -> None:
    """However many logs clients name, the first ones alone have series of their own."""
    telemetry = SequencerTelemetry(metric_logs=1)
    telemetry.figures = lambda: SequencerFigures(positions={"a": 1, "b": 2, "c": 3}, epochs={"a": 1, "b": 1, "c": 1})

    assert value(telemetry, "remora_sequencer_positions_total", log="a") == 1
    assert value(telemetry, "remora_sequencer_positions_total", log="other") == 5
    assert value(telemetry, "remora_sequencer_epoch", log="other") is None


def test_requests_of_rounds_are_a_histogram() -> None:
    """Index n of the counts is the bucket up to 2 ** n, the last one has no bound, and buckets add up."""
    telemetry = SequencerTelemetry()
    telemetry.figures = lambda: SequencerFigures(round_requests=(4, 2, 1), sampled_requests=11)
    name = "remora_sequencer_round_requests"

    assert [value(telemetry, f"{name}_bucket", le=each) for each in ("1.0", "2.0", "+Inf")] == [4, 6, 7]
    assert value(telemetry, f"{name}_count") == 7
    assert value(telemetry, f"{name}_sum") == 11
    telemetry.figures = SequencerFigures
    assert value(telemetry, f"{name}_count") == 0
