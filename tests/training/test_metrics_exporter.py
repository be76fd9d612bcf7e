"""What a run tells Prometheus, over a real socket."""

import socket

import httpx

from gumshoe.training.metrics_exporter import MetricsExporter
from tests.conftest import free_port
from tests.errors import raises
from tests.training.test_records import evaluation, step


def scraped(port: int) -> dict[str, float]:
    """The values by name; with a label, by name and its value."""
    from prometheus_client.parser import text_string_to_metric_families

    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
    families = text_string_to_metric_families(answer.raise_for_status().text)
    return {":".join([each.name, *each.labels.values()]): each.value for family in families for each in family.samples}


def test_the_last_step_and_the_last_evaluation_are_told() -> None:
    with MetricsExporter(free_port(), 200) as exporter:
        before = scraped(exporter.port)
        assert before.keys() == {"gumshoe_training_steps", "gumshoe_training_progress_timestamp_seconds"}
        exporter.record(evaluation(0))
        exporter.record(step(1))
        exporter.record(step(2, accuracy=None, rewards={"rubric": 0.5, "process": 0.25}, skipped=True))
        after = scraped(exporter.port)
    told = {name.removeprefix("gumshoe_training_"): value for name, value in after.items()}
    assert (told["step"], told["steps"], told["kl"], told["groups_flat"], told["skipped"]) == (2, 200, 0.0112, 1, 1)
    assert (told["rewards:rubric"], told["rewards:process"]) == (0.5, 0.25)
    assert "accuracy" not in told, "no episode was run"
    assert (after["gumshoe_evaluation_step"], after["gumshoe_evaluation_accuracy"]) == (0, 0.5)
    progress = "gumshoe_training_progress_timestamp_seconds"
    assert after[progress] > before[progress]


def test_a_run_that_goes_on_tells_what_it_knows() -> None:
    with MetricsExporter(free_port(), 200, [step(1), evaluation(1), step(2)]) as exporter:
        assert scraped(exporter.port)["gumshoe_training_step"] == 2


def test_a_port_that_is_taken_is_said_to_be() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        with raises("training.metrics-port-unavailable", "output.metrics_port", port):
            MetricsExporter(port, 1)
