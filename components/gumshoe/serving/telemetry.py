"""Report the server's work: metrics for Prometheus, one JSON log line per request, and spans for OpenTelemetry.

Invariant: nothing quotes mail, questions or answers, unless the settings allow it.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from asgi_correlation_id import correlation_id
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, StatusCode, Tracer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from gumshoe.json_text import escape_unprintable
from gumshoe.redaction import redact, redact_json
from gumshoe.rollouts.answer import Answer, Cost
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.serving.policy_metrics import PolicyMetrics

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300)
_TURNS = (1, 2, 3, 4, 6, 8, 10, 15, 20)
_TOKENS = (100, 300, 1000, 2000, 4000, 8000, 16000, 32000)
_log = logging.getLogger("gumshoe.serving")


class Metrics:
    """The metrics of one server. Label values are few, and callers cannot choose them."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # creation times are not useful
        self.registry = registry = CollectorRegistry()
        name = "gumshoe_"
        self.requests = Counter(
            f"{name}requests", "Requests, by route and status.", ["route", "status"], registry=registry
        )
        self.latency = Histogram(
            f"{name}request_seconds",
            "Duration of requests until the last byte.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.phases = Histogram(
            f"{name}phase_seconds",
            "Duration of an episode's phases: waiting, model, tools, rest.",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.outcomes = Counter(
            f"{name}episodes", "Finished episodes, by outcome and policy.", ["outcome", "policy"], registry=registry
        )
        self.turns = Histogram(f"{name}turns", "Turns per episode.", buckets=_TURNS, registry=registry)
        self.tokens = Counter(
            f"{name}tokens", "Prompt tokens (given) and sampled tokens of the model.", ["kind"], registry=registry
        )
        self.context = Histogram(f"{name}context_tokens", "Tokens per episode.", buckets=_TOKENS, registry=registry)
        self.tool_errors = Counter(f"{name}tool_errors", "Tool calls that were rejected.", registry=registry)
        self.model_errors = Counter(
            f"{name}model_errors", "Episodes that failed because of the model, by reason.", ["why"], registry=registry
        )
        self.refused = Counter(f"{name}refused", "Rejected requests, by reason.", ["why"], registry=registry)
        self.running = Gauge(f"{name}running", "Running episodes.", registry=registry)
        self.waiting = Gauge(
            f"{name}waiting", "Requests waiting for a slot, by kind of slot.", ["what"], registry=registry
        )
        self.connections = Gauge(f"{name}connections", "Open connections of clients.", registry=registry)
        self.closed_connections = Counter(
            f"{name}closed_connections",
            "Connections that were closed, by reason: slow headers, slow reading, replaced (by a new one, because "
            "there were too many), refused (for lack of one to replace).",
            ["why"],
            registry=registry,
        )
        self.choices = Counter(
            f"{name}choices",
            "Questions answered from several samples, by how the answer was chosen: by majority, as the best, as the "
            "only one that finished, or the first one because the judge failed.",
            ["how"],
            registry=registry,
        )
        self.judge_requests = Counter(
            f"{name}judge_requests", "Requests to the judge that chooses among samples.", registry=registry
        )
        self.judge_tokens = Counter(
            f"{name}judge_tokens",
            "Prompt tokens (given) and sampled tokens of that judge.",
            ["kind"],
            registry=registry,
        )
        self.policies = PolicyMetrics(registry)
        self.key_file_current = Gauge(
            f"{name}key_file_current",
            "1 if the content of the key file is in use, 0 if the file was deleted, is invalid or is not trusted.",
            registry=registry,
        )
        self.key_file_current.set(1)
        self.workers = Gauge(
            f"{name}workers", "Worker processes that run episodes; 0 if the server runs them itself.", registry=registry
        )
        self.worker_restarts = Counter(
            f"{name}worker_restarts", "Worker processes that ended and were started again.", registry=registry
        )
        self.ready = Gauge(f"{name}ready", "1 if the server can answer questions, else 0.", registry=registry)

    def count_choice(self, how: str, cost: Cost | None) -> None:
        """Count a question that was answered from several samples, and the cost of choosing one."""
        self.choices.labels(how).inc()
        if cost is not None:
            self.judge_requests.inc(cost.judge_requests)
            self.judge_tokens.labels("given").inc(cost.judge_prompt_tokens)
            self.judge_tokens.labels("sampled").inc(cost.judge_sampled_tokens)

    def count_episode(self, answer: Answer, trajectory: Trajectory) -> None:
        """Count an episode that ended normally."""
        known = "answered" if answer.success else "unknown" if trajectory.ending == "answer" else trajectory.ending
        self.outcomes.labels(known, answer.policy).inc()
        self.turns.observe(trajectory.turns)
        self.tokens.labels("given").inc(trajectory.prompt_tokens)
        self.tokens.labels("sampled").inc(trajectory.sampled_tokens)
        self.context.observe(trajectory.prompt_tokens + trajectory.sampled_tokens)
        self.tool_errors.inc(trajectory.record.tool_errors)
        self.phases.labels("model").observe(trajectory.policy_seconds)
        self.phases.labels("tools").observe(trajectory.tool_seconds)
        rest = answer.seconds - trajectory.policy_seconds - trajectory.tool_seconds
        self.phases.labels("rest").observe(max(0.0, rest))


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=redact)


class JsonFormatter(logging.Formatter):
    """Format a log record as one line of JSON, with its request ID and trace, and with credentials masked.

    Fields that the record names in `exact` are written as they are.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        entry: dict[str, Any] = {
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})
        if current := correlation_id.get():
            entry["request_id"] = current
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            entry |= {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        if record.exc_info:
            entry["exception"] = record.exc_text or self.formatException(record.exc_info)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        exact = {name: entry[name] for name in getattr(record, "exact", ()) if name in entry}
        return escape_unprintable(_ENCODER.encode({"time": time} | redact_json(entry) | exact))


def log_as_json() -> None:
    """Log to standard error, one line of JSON per record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("mcp", "uvicorn.access"):  # they log every request
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_event(message: str, **fields: object) -> None:
    """Log a message with additional fields."""
    _log.info(message, extra={"fields": fields})


def create_tracer() -> Tracer:
    """Return a tracer that exports to OTEL_EXPORTER_OTLP_ENDPOINT, or one that does nothing."""
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        name = os.environ.get("OTEL_SERVICE_NAME", "gumshoe-agent")
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return provider.get_tracer("gumshoe")
    return trace.get_tracer("gumshoe")


@contextmanager
def start_span(tracer: Tracer, name: str, headers: dict[str, str] | None = None) -> Iterator[Span]:
    """Start a span. With the headers of a request, it continues the caller's trace.

    Exception messages are not recorded, because they may quote mail: only that there was an exception.
    https://www.w3.org/TR/trace-context/
    """
    context = None if headers is None else propagate.extract(headers)
    kind = trace.SpanKind.INTERNAL if headers is None else trace.SpanKind.SERVER
    with tracer.start_as_current_span(
        name, context, kind, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException:
            span.set_status(StatusCode.ERROR)
            raise
