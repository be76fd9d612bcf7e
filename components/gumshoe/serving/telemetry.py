"""What is told of a server's work: numbers for Prometheus, a line of JSON for each request, spans for OpenTelemetry.

What always holds: none of it quotes mail, a question or an answer, unless the settings say so.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from gumshoe.rollouts.answer import Answer, Cost
from gumshoe.rollouts.trajectory import Trajectory

request_id: ContextVar[str] = ContextVar("request_id", default="")
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300)
_TURNS = (1, 2, 3, 4, 6, 8, 10, 15, 20)
_TOKENS = (100, 300, 1000, 2000, 4000, 8000, 16000, 32000)
_PROPAGATOR = TraceContextTextMapPropagator()
_log = logging.getLogger("gumshoe.serving")


class Metrics:
    """The numbers of one server. Labels have few values, none of which a caller chooses."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # when each began tells nothing
        self.registry = registry = CollectorRegistry()
        name = "gumshoe_"
        self.requests = Counter(
            f"{name}requests", "Requests, by route and status.", ["route", "status"], registry=registry
        )
        self.latency = Histogram(
            f"{name}request_seconds", "From a request to its last byte.", ["route"], buckets=_SECONDS, registry=registry
        )
        self.phases = Histogram(
            f"{name}phase_seconds",
            "Of an episode: waiting for its turn, in the model, in the tools, and all else.",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.outcomes = Counter(
            f"{name}episodes", "Episodes that ended, by what they came to.", ["outcome", "policy"], registry=registry
        )
        self.turns = Histogram(f"{name}turns", "Turns of an episode.", buckets=_TURNS, registry=registry)
        self.tokens = Counter(
            f"{name}tokens", "Tokens that the model was given, and that it sampled.", ["kind"], registry=registry
        )
        self.context = Histogram(
            f"{name}context_tokens", "Tokens of a whole episode.", buckets=_TOKENS, registry=registry
        )
        self.tool_errors = Counter(f"{name}tool_errors", "Calls that a tool refused.", registry=registry)
        self.model_errors = Counter(
            f"{name}model_errors", "Episodes for which there was no model, by why.", ["why"], registry=registry
        )
        self.refused = Counter(f"{name}refused", "Requests that were not taken, by why.", ["why"], registry=registry)
        self.running = Gauge(f"{name}running", "Episodes under way.", registry=registry)
        self.waiting = Gauge(
            f"{name}waiting", "Requests that wait for others to end, by what for.", ["what"], registry=registry
        )
        self.choices = Counter(
            f"{name}choices",
            "Questions answered with one of several samples: by majority, as the best, as the only one that ended, or "
            "with the first because the judge failed.",
            ["how"],
            registry=registry,
        )
        self.judge_requests = Counter(
            f"{name}judge_requests", "Requests of the judge that chooses among samples.", registry=registry
        )
        self.judge_tokens = Counter(
            f"{name}judge_tokens", "Tokens that this judge was given, and that it sampled.", ["kind"], registry=registry
        )
        self.policy = Gauge(
            f"{name}policy_share", "Share of the episodes that a policy is given.", ["policy"], registry=registry
        )
        self.ready = Gauge(f"{name}ready", "1 where the server can answer.", registry=registry)

    def chosen(self, how: str, cost: Cost | None) -> None:
        """Count a question that several episodes were run for, and what choosing one took."""
        self.choices.labels(how).inc()
        if cost is not None:
            self.judge_requests.inc(cost.judge_requests)
            self.judge_tokens.labels("given").inc(cost.judge_prompt_tokens)
            self.judge_tokens.labels("sampled").inc(cost.judge_sampled_tokens)

    def episode(self, answer: Answer, trajectory: Trajectory) -> None:
        """Count an episode that ended by itself."""
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


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with the request that it belongs to, and its trace."""

    def format(self, record: logging.LogRecord) -> str:
        """As `logging.Formatter.format`."""
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= getattr(record, "fields", {})
        if asked := request_id.get():
            told["request_id"] = asked
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            told |= {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Have all that is logged go to standard error as JSON, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("httpx", "mcp", "uvicorn.access"):  # a line for each request of ours, or twice for one of theirs
        logging.getLogger(noisy).setLevel(logging.WARNING)


def told(message: str, **fields: object) -> None:
    """Log something with fields of its own."""
    _log.info(message, extra={"fields": fields})


def tracer() -> Tracer:
    """Where spans go: to the endpoint that OTEL_EXPORTER_OTLP_ENDPOINT names, or nowhere."""
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
def span_of(tracer: Tracer, name: str, headers: dict[str, str] | None = None) -> Iterator[Span]:
    """A span; with a request's headers its first here, in the trace of whoever asks
    (https://www.w3.org/TR/trace-context/). What an exception says may quote mail: it tells that there was one.
    """
    context = None if headers is None else _PROPAGATOR.extract(headers)
    kind = trace.SpanKind.INTERNAL if headers is None else trace.SpanKind.SERVER
    with tracer.start_as_current_span(
        name, context, kind, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException:
            span.set_status(StatusCode.ERROR)
            raise
