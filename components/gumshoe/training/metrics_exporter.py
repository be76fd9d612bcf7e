"""A run's numbers for Prometheus: those of its last step and its last evaluation, as `metrics.jsonl` has them."""

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gumshoe.errors import UsageError
from gumshoe.training.records import EvaluationRecord, StepRecord

_PREFIXES = {"step": "gumshoe_training_", "evaluation": "gumshoe_evaluation_"}


class Exporter(Collector):
    """Answers `/metrics` at a port, in a thread of its own. Use as a context manager.

    What it tells of a step is `gumshoe_training_` and the field's name, of an evaluation `gumshoe_evaluation_` and the
    field's name; a field without a number is left out. `before` are the records that a run which goes on has already.

    Raises:
        UsageError: the port is taken.
    """

    def __init__(self, port: int, steps: int, before: Iterable[StepRecord | EvaluationRecord] = ()) -> None:
        self._steps = steps
        self._last = {each.event: each for each in before}
        self._progress = time.time()
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, registry=registry)
        except OSError as error:
            raise UsageError(
                "training.metrics-port-unavailable",
                f"output.metrics_port: cannot listen on port {port}: {error.strerror}; choose another",
            ) from None
        self.port = int(self._server.server_port)

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def record(self, record: StepRecord | EvaluationRecord) -> None:
        """Tell of this from now on."""
        self._last[record.event] = record
        self._progress = time.time()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As `Collector.collect`."""
        yield GaugeMetricFamily("gumshoe_training_steps", "Optimizer steps of the whole run.", self._steps)
        yield GaugeMetricFamily(
            "gumshoe_training_progress_timestamp_seconds",
            "When the last record was written, or this process began to train.",
            self._progress,
        )
        for record in list(self._last.values()):
            yield from _families(record)


def _families(record: StepRecord | EvaluationRecord) -> Iterator[GaugeMetricFamily]:
    """Each number of a record; of the reward functions' means, one with the function as a label."""
    prefix = _PREFIXES[record.event]
    values: dict[str, Any] = record.model_dump()
    for name, field in type(record).model_fields.items():
        told = field.description or name.replace("_", " ")
        if name == "rewards":
            family = GaugeMetricFamily(f"{prefix}{name}", told, labels=["function"])
            for function, value in values[name].items():
                family.add_metric([function], value)
            yield family
        elif isinstance(values[name], int | float):
            yield GaugeMetricFamily(f"{prefix}{name}", told, float(values[name]))
