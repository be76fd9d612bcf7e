"""Page of the metrics: of a run's file, and those that Prometheus reads."""

from collections.abc import Iterator
from typing import Any

from docs.generate.json_schema import describe_type, list_properties
from docs.generate.markdown import anchor, code, page, prose, sentence, table
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from gumshoe.cluster.adapter_loader import Status
from gumshoe.cluster.adapter_loader_http import format_metrics
from gumshoe.serving.telemetry import Metrics
from gumshoe.training.metrics_exporter import PREFIXES, RUN_METRICS
from gumshoe.training.records import EvaluationRecord, StepRecord

_STEP, _EVALUATION = PREFIXES["step"], PREFIXES["evaluation"]


def render_metrics() -> str:
    """Return the page."""
    return page(
        "Metrics",
        "## Training: metrics.jsonl",
        "`gumshoe train` writes one JSON object per line to `metrics.jsonl` in the directory of the run: one for each "
        "optimizer step, and one for each evaluation. TensorBoard and other trackers (`output.report_to`) get each "
        "number as `step/COLUMN` or `evaluation/COLUMN`.",
        "### Columns of a step",
        _render_columns(StepRecord),
        "### Columns of an evaluation",
        _render_columns(EvaluationRecord),
        "## Training: Prometheus",
        f"With `output.metrics_port`, the run serves these at `/metrics`: `{_STEP}COLUMN` for each column of the last "
        f"step that is a number, `{_EVALUATION}COLUMN` for those of the last evaluation, `{_STEP}rewards` with the "
        "label `function`, and",
        table(
            ("metric", "type", "meaning"), ((code(name), "gauge", sentence(text)) for name, text in RUN_METRICS.items())
        ),
        "## Agent server: Prometheus",
        "`gumshoe serve` serves these at `/metrics`. Histograms have the suffixes `_bucket`, `_sum` and `_count`.",
        table(("metric", "type", "labels", "meaning"), _list_serving()),
        "## Adapter loader: Prometheus",
        "`gumshoe adapter-loader` serves these at `/metrics`.",
        table(("metric", "type", "labels", "meaning"), _list_loader()),
    )


def _render_columns(model: type[BaseModel]) -> Iterator[str]:
    schema = model.model_json_schema(mode="serialization")
    rows = (
        (
            f"{anchor(model.__name__.removesuffix('Record').lower() + '.' + each.name)}{code(each.name)}",
            describe_type(each.schema, each.definitions),
            each.description,
        )
        for each in list_properties(schema)
    )
    yield prose((model.__doc__ or "").strip())
    yield from table(("column", "type", "meaning"), rows)


def _list_serving() -> Iterator[tuple[str, str, str, str]]:
    collectors: Any = Metrics().registry._collector_to_names  # a metric with labels has no samples yet to collect
    families = [(next(iter(each.describe())), each._labelnames) for each in collectors]
    for family, labels in sorted(families, key=lambda found: found[0].name):
        suffix = "_total" if family.type == "counter" else ""
        yield code(family.name + suffix), family.type, ", ".join(map(code, labels)), sentence(family.documentation)


def _list_loader() -> Iterator[tuple[str, str, str, str]]:
    for family in text_string_to_metric_families(format_metrics(Status())):
        labels = dict.fromkeys(name for sample in family.samples for name in sample.labels)
        suffix = "_total" if family.type == "counter" else ""
        yield code(family.name + suffix), family.type, ", ".join(map(code, labels)), sentence(family.documentation)
