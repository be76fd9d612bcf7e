"""The metrics that a run exports to Prometheus, over a real socket."""

import socket

import httpx

from gumshoe.training.metrics_exporter import MetricsExporter
from tests.conftest import find_free_port
from tests.errors import raises
from tests.training.test_records import evaluation, step


def scrape(port: int) -> dict[str, float]:
    """Return the exported values by name, or by `name:label` if there is a label."""
    from prometheus_client.parser import text_string_to_metric_families

    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
    families = text_string_to_metric_families(answer.raise_for_status().text)
    return {":".join([each.name, *each.labels.values()]): each.value for family in families for each in family.samples}


def test_the_last_step_and_evaluation_are_exported() -> None:
    with MetricsExporter(find_free_port(), 200) as exporter:
        before = scrape(exporter.port)
        assert before.keys() == {"gumshoe_training_steps", "gumshoe_training_progress_timestamp_seconds"}
        exporter.record(evaluation(0))
        exporter.record(step(1))
        split = {"split_episodes": 0.5, "split_reasons": {"history edited": 0.5, "sampled again": 0.25}}
        exporter.record(step(2, accuracy=None, rewards={"rubric": 0.5, "process": 0.25}, skipped=True, **split))
        after = scrape(exporter.port)
    exported = {name.removeprefix("gumshoe_training_"): value for name, value in after.items()}
    assert (exported["step"], exported["steps"], exported["kl"], exported["groups_flat"], exported["skipped"]) == (
        2,
        200,
        0.0112,
        1,
        1,
    )
    assert (exported["rewards:rubric"], exported["rewards:process"]) == (0.5, 0.25)
    assert (exported["split_reasons:history edited"], exported["split_reasons:sampled again"]) == (0.5, 0.25)
    assert "accuracy" not in exported, "no episode was run"
    assert (after["gumshoe_evaluation_step"], after["gumshoe_evaluation_accuracy"]) == (0, 0.5)
    progress = "gumshoe_training_progress_timestamp_seconds"
    assert after[progress] > before[progress]


def test_a_resumed_run_exports_its_records() -> None:
    with MetricsExporter(find_free_port(), 200, [step(1), evaluation(1), step(2)]) as exporter:
        assert scrape(exporter.port)["gumshoe_training_step"] == 2


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        with raises("training.metrics-port-unavailable", "output.metrics_port", port):
            MetricsExporter(port, 1)
