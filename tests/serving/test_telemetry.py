"""Test spans as an OpenTelemetry collector receives them."""

import asyncio
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import find_free_port
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, decoded
from tests.otlp_collector import run_collector
from tests.serving.agent_server import SECRET, ServerFiles, code_of, question_body, start_server
from tests.serving.in_process import (
    make_scenario,
    make_settings,
    model_settings,
    open_stub_service,
    serve_in_thread,
)

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.ci
def test_an_episode_is_a_span_in_the_caller_s_trace(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    policy = f"vllm:{model.address}#adapter"
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    with run_collector() as (collector, received):
        with start_server(place, policy, tmp_path / "log", "--open", OTEL_EXPORTER_OTLP_ENDPOINT=collector) as server:
            assert server.client.post("/invoke", json=question_body(7), headers=headers).is_success
            model.inject(lambda exchange: exchange.reply({"message": decoded(exchange.request["prompt"])}, 400))
            assert server.ask().status_code == 502
        assert server.process.returncode == 0, "the remaining spans are sent at shutdown"
    found = [ExportTraceServiceRequest.FromString(each) for each in received]
    spans = [
        span for each in found for group in each.resource_spans for scope in group.scope_spans for span in scope.spans
    ]
    mine = {span.name: span for span in spans if span.trace_id.hex() == TRACE}
    assert set(mine) == {"POST /invoke", "episode"}
    assert mine["POST /invoke"].parent_span_id.hex() == PARENT
    assert mine["episode"].parent_span_id == mine["POST /invoke"].span_id
    assert [each.name for each in mine["episode"].events] == ["called", "returned", "called", "returned", "called"]
    failed = {span.name for span in spans if span.status.code == Status.STATUS_CODE_ERROR}
    assert failed - {"GET /readyz"} == {"POST /invoke", "episode"}
    exported = b"".join(received)
    assert b"gumshoe-agent" in exported
    assert b"What is in" not in exported
    assert b"Body of message" not in exported


def test_a_span_names_no_tool_that_the_model_has_made_up(place: ServerFiles) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from gumshoe.environments.tools import Call
    from gumshoe.rollouts.chat_format.chat_format import ParsedTurn
    from gumshoe.rollouts.episode import EpisodeStart, Turn
    from gumshoe.rollouts.trajectory import Trajectory

    async def run(start: EpisodeStart) -> Trajectory:
        for name in ("search_inbox", SECRET, "return_final_answer", None):
            calls = (Call(name, {}),) if name else ()
            with start.observer.sampling() as observe:
                observe(Turn((), ParsedTurn(calls), "stub", is_truncated=False))
            start.observer.add_results(calls, [SECRET] * len(calls))
        return Trajectory.begin(start.environment, start.sample)

    async def ask(provider: TracerProvider) -> None:
        async with open_stub_service(make_settings(place), run, provider.get_tracer("test")) as service:
            await service.answer(make_scenario(), None, lambda _: None, "ann")

    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    asyncio.run(ask(provider))
    (span,) = exporter.get_finished_spans()
    tools = [each.attributes["tool"] for each in span.events if each.name == "called" and each.attributes]
    assert tools == ["search_inbox", "unknown", "return_final_answer", ""]
    assert SECRET not in span.to_json()


def test_metrics_may_have_a_port_of_their_own(place: ServerFiles, model: FakeVLLM) -> None:
    port = find_free_port()
    settings = make_settings(place, model=model_settings(place, model.address), metrics_port=port)
    with serve_in_thread(settings) as server:
        assert server.ask().is_success
        answer = server.client.get("/metrics")
        assert (answer.status_code, code_of(answer)) == (404, "serving.not-found")
        found = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
        assert "gumshoe_episodes_total" in found.text
        assert found.headers["content-type"].startswith("text/plain")
        other = httpx.get(f"http://127.0.0.1:{port}/invoke", trust_env=False)
        described = [line for line in found.text.splitlines() if line.startswith("#")]
        assert [line for line in other.text.splitlines() if line.startswith("#")] == described, "nothing else is there"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)


def test_slow_clients_do_not_keep_the_port_of_metrics_busy(place: ServerFiles) -> None:
    from gumshoe.metrics_port import MAX_CONNECTIONS
    from gumshoe.serving.server import serve_metrics
    from gumshoe.serving.telemetry import Metrics

    port = find_free_port()
    with serve_metrics(make_settings(place, metrics_port=port), Metrics()), ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MAX_CONNECTIONS + 2)]
        for each in slow:
            each.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert "gumshoe_ready" in httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        for each in slow[:3]:  # closed for the newest ones
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
        slow[-1].sendall(b"\r\n")
        assert slow[-1].recv(1)


def test_slow_requests_for_metrics_end(place: ServerFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.serving.server import serve_metrics
    from gumshoe.serving.telemetry import Metrics

    monkeypatch.setattr("gumshoe.metrics_port._MetricsHandler.timeout", 0.05)
    port = find_free_port()
    with (
        serve_metrics(make_settings(place, metrics_port=port), Metrics()),
        socket.create_connection(("127.0.0.1", port)) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert slow.recv(1) == b""


def test_a_client_that_does_not_read_metrics_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from prometheus_client import CollectorRegistry, Counter

    from gumshoe import metrics_port

    monkeypatch.setattr(metrics_port._MetricsHandler, "timeout", 0.05)
    ended = threading.Event()
    end = metrics_port._MetricsServer.shutdown_request

    def notice(server: metrics_port._MetricsServer, request: Any) -> None:
        end(server, request)
        ended.set()

    monkeypatch.setattr(metrics_port._MetricsServer, "shutdown_request", notice)
    registry = CollectorRegistry()
    many = Counter("many", "More than the buffers of sockets hold.", ["name"], registry=registry)
    for number in range(2_000):
        many.labels(f"{number}{'x' * 8_000}").inc()
    with (
        metrics_port.serve_registry(registry, "127.0.0.1", 0) as port,
        socket.create_connection(("127.0.0.1", port)) as idle,
    ):
        idle.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert ended.wait(60)
    assert capfd.readouterr().err == ""


def test_the_port_of_metrics_must_be_another_one_and_free(place: ServerFiles, model: FakeVLLM) -> None:
    with raises("serving.invalid-settings", "metrics_port", "8000"):
        make_settings(place, metrics_port=8000)
    from gumshoe.serving.server import serve_metrics
    from gumshoe.serving.telemetry import Metrics

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = make_settings(place, model=model_settings(place, model.address), metrics_port=port)
        with raises("serving.port-unavailable", str(port)), serve_metrics(settings, Metrics()):
            pass
