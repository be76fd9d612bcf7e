"""Export the last step and the last evaluation of a run to Prometheus, with the numbers of `metrics.jsonl`."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gumshoe.errors import UsageError
from gumshoe.metrics_port import serve_registry
from gumshoe.training.records import EvaluationRecord, StepRecord

PREFIXES = {"step": "gumshoe_training_", "evaluation": "gumshoe_evaluation_"}
"""Prefix of the metrics of each kind of record."""
_STEPS, _PROGRESS = f"{PREFIXES['step']}steps", f"{PREFIXES['step']}progress_timestamp_seconds"
_LABELS = {"rewards": "function", "split_reasons": "reason"}
RUN_METRICS = {
    _STEPS: "Total number of optimizer steps of the run.",
    _PROGRESS: "Time of the last record, or of the start of this process.",
}
"""Description of each metric that is not a field of a record."""


class MetricsExporter(Collector):
    """Serve `/metrics` at a port, in a thread of its own. Use as a context manager.

    The fields of a step are named `gumshoe_training_FIELD`, those of an evaluation `gumshoe_evaluation_FIELD`. Fields
    without a number are left out. `before` are the records that a resumed run already has.

    Raises:
        UsageError: the port is in use.
    """

    def __init__(self, port: int, steps: int, before: Iterable[StepRecord | EvaluationRecord] = ()) -> None:
        self._steps = steps
        self._last = {each.event: each for each in before}
        self._progress = time.time()
        registry = CollectorRegistry()
        registry.register(self)
        self._stack = ExitStack()
        try:
            self.port = self._stack.enter_context(serve_registry(registry, "0.0.0.0", port))  # noqa: S104 - to be scraped
        except OSError as error:
            raise UsageError(
                "training.metrics-port-unavailable",
                f"output.metrics_port: cannot listen on port {port}: {error.strerror}; choose another",
            ) from None

    def __enter__(self) -> "MetricsExporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def record(self, record: StepRecord | EvaluationRecord) -> None:
        """Export this record from now on."""
        self._last[record.event] = record
        self._progress = time.time()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield all metrics, as `Collector.collect`."""
        yield GaugeMetricFamily(_STEPS, RUN_METRICS[_STEPS], self._steps)
        yield GaugeMetricFamily(_PROGRESS, RUN_METRICS[_PROGRESS], self._progress)
        for record in list(self._last.values()):
            yield from _to_families(record)


def _to_families(record: StepRecord | EvaluationRecord) -> Iterator[GaugeMetricFamily]:
    """Yield a metric for each number of a record. Reward functions and reasons of segments are labels."""
    prefix = PREFIXES[record.event]
    values: dict[str, Any] = record.model_dump()
    for name, field in type(record).model_fields.items():
        help_text = field.description or ""
        if name in _LABELS:
            family = GaugeMetricFamily(f"{prefix}{name}", help_text, labels=[_LABELS[name]])
            for label, value in values[name].items():
                family.add_metric([label], value)
            yield family
        elif isinstance(values[name], int | float):
            yield GaugeMetricFamily(f"{prefix}{name}", help_text, float(values[name]))
