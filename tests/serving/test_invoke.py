"""Test questions over HTTP: answers, errors, failing models, limits, logs and metrics."""

import asyncio
import json
import re
import shutil
import signal
import socket
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gumshoe.serving.ask import LocalModel
from tests.conftest import find_free_port
from tests.errors import raises
from tests.http_server import run_faulty_server
from tests.inference.fake_vllm import (
    Act,
    FakeVLLM,
    ServerProcess,
    after,
    altered,
    cut_json,
    decoded,
    fewer_logprobs,
    held,
    reset,
    stall,
    status,
    trickle,
)
from tests.serving.agent_server import ANN, DAY, SECRET, AgentProcess, ServerFiles, code_of, question_body, start_server
from tests.serving.in_process import make_scenario, make_settings, model_settings, open_test_service, serve_in_thread
from tests.waiting import Clock, async_wait_until, wait_until

INVALID = "serving.invalid-request"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_question_is_answered_with_its_sources(wrapped: bool, server: AgentProcess) -> None:
    body = {"parameters": question_body(7)} if wrapped else question_body(7)
    response = server.client.post("/invoke", json=body)
    assert response.status_code == 200
    answer = response.json()
    assert answer["seconds"] > 0
    cost = answer.pop("cost")
    assert cost["sampled_tokens"] > 0
    assert (cost["samples"], cost["failed"], cost["turns"], cost["judge_requests"]) == (1, 0, 3, 0)
    assert answer | {"seconds": 0} == {
        "question": "What is in 7?",
        "answer": "Body of message 7",
        "source_ids": ["<7@example.com>"],
        "sources": [
            {"message_id": "<7@example.com>", "sent": "2001-05-08T12:00:00Z", "sender": ANN, "subject": "Subject 7"}
        ],
        "success": True,
        "reason": "",
        "inbox_address": ANN,
        "query_date": DAY,
        "turns": 3,
        "seconds": 0,
        "policy": "adapter",
        "steps": [],
        "chosen": "",
        "handles": {},
    }


def test_steps_are_returned_on_request(server: AgentProcess) -> None:
    steps = server.ask(steps=True).json()["steps"]
    assert [each["tool"] for each in steps] == ["search_inbox", "read_email", "return_final_answer"]
    assert steps[0]["arguments"] == {"keywords": ["body", "7"]}
    assert "id: <7@example.com>" in steps[0]["result"]
    assert "Body of message 7" in steps[1]["result"]
    assert steps[2]["result"] is None


def test_prompts_have_the_same_tokens_as_in_training(server: AgentProcess, model: FakeVLLM) -> None:
    """Each turn's prompt begins with the previous prompt and the tokens sampled for it."""
    server.ask()
    first, second, third = model.requests
    assert second["prompt"][: len(first["prompt"])] == first["prompt"]
    assert third["prompt"][: len(second["prompt"])] == second["prompt"]
    assert {each["temperature"] for each in model.requests} == {0}
    assert {each["model"] for each in model.requests} == {"adapter"}


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (
            'Call:{"name": "return_final_answer", "arguments": {"answer": "I don\'t know", "message_ids": []}}',
            "found no answer",
        ),
        ("Say:I would rather not.", ": no call"),
        ('Call:{"name": "delete_email", "arguments": {}}', ": unknown tool"),
    ],
)
def test_a_failed_answer_has_a_reason(turn: str, reason: str, server: AgentProcess) -> None:
    answer = server.ask(question=turn).json()
    assert (answer["success"], answer["source_ids"]) == (False, [])
    assert reason in answer["reason"]


def test_invented_sources_are_removed(server: AgentProcess) -> None:
    call = {"name": "return_final_answer", "arguments": {"answer": "4711", "message_ids": ["<99@example.com>", "x"]}}
    answer = server.ask(question=f"Call:{json.dumps(call)}").json()
    assert (answer["success"], answer["source_ids"], answer["sources"]) == (True, [], [])


def read_events(response: httpx.Response) -> list[tuple[str, Any]]:
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", response.read().decode())
    return [(name, json.loads(data)) for name, data in found]


def test_a_stream_sends_each_step(server: AgentProcess) -> None:
    with server.client.stream("POST", "/invoke/stream", json=question_body(7)) as response:
        assert (response.status_code, response.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        found = read_events(response)
    assert [name for name, _ in found] == ["step"] * 5 + ["answer"]
    turns = [(data["turn"], data["result"] is not None) for name, data in found if name == "step"]
    assert turns == [(1, False), (1, True), (2, False), (2, True), (3, False)]
    whole = server.ask(steps=True).json()
    timed = {"seconds": 0, "cost": None}
    assert found[-1][1] | timed == whole | timed


@pytest.mark.parametrize("odd", ["1" * 400, "[" * 900 + "]" * 900, '{"a":' * 300 + "1" + "}" * 300])
def test_odd_arguments_are_returned_like_others(odd: str, server: AgentProcess) -> None:
    turn = f'Call:{{"name": "search_inbox", "arguments": {{"keywords": ["a"], "sender": {odd}}}}}'
    with server.client.stream("POST", "/invoke/stream", json=question_body(question=turn)) as response:
        found = read_events(response)
    assert found[-1][0] == "answer", found[-1]
    answer = server.ask(question=turn, steps=True)
    assert (answer.status_code, answer.json()["success"]) == (200, False)
    assert [each["arguments"] for each in answer.json()["steps"]] == [
        data["arguments"] for name, data in found if name == "step" and data["result"] is None
    ]


def test_a_stream_reports_early_errors_by_status_and_late_ones_by_event(server: AgentProcess, model: FakeVLLM) -> None:
    assert code_of(server.client.post("/invoke/stream", json=question_body(question=""))) == "scenarios.empty-question"
    model.inject(status(400))
    failed = server.client.post("/invoke/stream", json=question_body())
    assert (failed.status_code, code_of(failed)) == (502, "serving.model-failed")
    go_on = threading.Event()
    model.inject(held(go_on))
    model.inject(status(400), after=1)
    with server.client.stream("POST", "/invoke/stream", json=question_body()) as response:
        assert response.status_code == 200
        go_on.set()
        name, problem = read_events(response)[-1]
    assert (name, problem["status"]) == ("problem", 502)
    assert problem["type"] == "urn:gumshoe:error:serving.model-failed"


@pytest.mark.parametrize(
    ("body", "status_code", "code", "detail"),
    [
        (b"", 422, INVALID, "JSON object"),
        (b'["What?"]', 422, INVALID, "JSON object"),
        (b'{"question": }', 422, INVALID, "character 14"),
        (b"[" * 60_000, 400, INVALID, ""),
        (b'{"question": ' * 4_000, 400, INVALID, ""),
        (
            b'{"question": "' + b"a" * 3000 + b'", "inbox_address": "ann@example.com"}',
            422,
            "serving.question-too-long",
            "2,000 characters, got 3,000",
        ),
        (b'{"question": "\\ud800", "inbox_address": "ann@example.com"}', 422, INVALID, "question"),
        ('{"question": "Où?", "inbox_address": "ann@example.com"}'.encode("latin-1"), 400, INVALID, ""),
        (b'{"question": 7, "inbox_address": "ann@example.com"}', 422, INVALID, "question: input"),
        (b'{"question": "  ", "inbox_address": "ann@example.com"}', 422, "scenarios.empty-question", "question"),
        (b'{"question": "", "inbox_address": "ann@example.com"}', 422, "scenarios.empty-question", "question"),
        (b'{"parameters": {}}', 422, INVALID, "parameters.question: "),
        (b'{"parameters": {"question": "What?", "date": "1"}}', 422, INVALID, "parameters.date: "),
        (b'{"parameters": 7}', 422, INVALID, "parameters: "),
        (b'{"question": "What?", "asked_on": "2024-05-01"}', 422, INVALID, "query_date"),
        (b'{"question": "What?", "querry_date": "2024-05-01"}', 422, INVALID, "query_date"),
        (b'{"question": "What?", "query_date": "1 May"}', 422, INVALID, "YYYY-MM-DD"),
        (b'{"question": "What?", "steps": "perhaps"}', 422, INVALID, "true or false"),
        (b'{"question": "What?", "inbox_address": "ann"}', 422, "scenarios.invalid-inbox", "inbox_address: "),
        (b'{"question": "What?", "inbox_address": "ann"}', 422, "scenarios.invalid-inbox", "'ann'"),
        (b'{"question": "What?", "inbox_address": "ann@example.com", "query_date": "1"}', 422, INVALID, "query_date"),
        (
            b'{"question": "What?", "inbox_address": "ann@example.com", "inbox": "bob@example.com"}',
            422,
            INVALID,
            "inbox_address",
        ),
        (
            b'{"parameters": {"question": "What?"}, "inbox_address": "ann@example.com"}',
            422,
            INVALID,
            "parameters: ",
        ),
        (b'{"question": "What?"}', 422, "serving.inbox-missing", "inbox_address"),
        (
            b'{"question": "What?", "inbox_address": "ann@example.com", "query_date": "9999-12-31"}',
            422,
            "scenarios.invalid-query-date",
            "9999-12-31",
        ),
        (b"x" * 70_000, 413, "serving.request-too-large", "65,536 bytes"),
    ],
)
def test_an_invalid_question_is_refused_with_details(
    body: bytes, status_code: int, code: str, detail: str, server: AgentProcess
) -> None:
    response = server.client.post("/invoke", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, code_of(response)) == (status_code, code)
    problem = response.json()
    assert problem["status"] == status_code
    assert detail in problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]


def test_a_body_without_the_json_header_is_refused_with_the_header(server: AgentProcess) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain"):
        response = server.client.post("/invoke", content=b'{"question": "What?"}', headers={"Content-Type": kind})
        assert (response.status_code, code_of(response)) == (422, INVALID)
        assert "Content-Type: application/json" in response.json()["detail"]


def test_a_wrong_path_or_method_is_refused_with_a_hint(server: AgentProcess) -> None:
    response = server.client.post("/ask", json={})
    assert (response.status_code, code_of(response)) == (404, "serving.not-found")
    assert "/ask" in response.json()["detail"]
    response = server.client.get("/invoke")
    assert (response.status_code, code_of(response)) == (405, "serving.method-not-allowed")
    assert "POST" in response.json()["detail"]


def test_other_encodings_and_chunked_bodies_are_accepted(server: AgentProcess) -> None:
    text = json.dumps(question_body(7))
    for encoding in ("utf-8", "utf-16", "utf-32"):
        kind = {"Content-Type": f"application/json; charset={encoding}"}
        response = server.client.post("/invoke", content=text.encode(encoding), headers=kind)
        assert (response.status_code, response.json()["answer"]) == (200, "Body of message 7"), encoding
    parts = (text[at : at + 5].encode() for at in range(0, len(text), 5))
    assert server.client.post("/invoke", content=parts, headers={"Content-Type": "application/json"}).is_success


def test_a_chunked_body_has_the_limit_of_others(server: AgentProcess) -> None:
    parts = (b"x" * size for size in (65_536, 1))
    response = server.client.post("/invoke", content=parts, headers={"Content-Type": "application/json"})
    assert (response.status_code, code_of(response)) == (413, "serving.request-too-large")


def test_an_endless_body_is_refused(server: AgentProcess) -> None:
    endless = (b"x" * 4096 for _ in range(1 << 20))
    try:
        response = server.client.post("/invoke", content=endless, headers={"Content-Type": "application/json"})
        assert (response.status_code, code_of(response)) == (413, "serving.request-too-large")
    except httpx.TransportError:  # it was still sending when the server had closed
        pass
    assert server.ask().is_success


@pytest.mark.parametrize(
    "act",
    [
        reset,
        status(500),
        status(404),
        cut_json,
        altered(fewer_logprobs),
        altered(lambda answer: answer.update(model="another")),
    ],
    ids=["reset", "500", "404", "cut", "fewer log-probabilities", "another's"],
)
def test_a_failing_model_is_reported_without_details(act: Act, server: AgentProcess, model: FakeVLLM) -> None:
    model.inject(act, times=None)
    response = server.ask()
    assert (response.status_code, code_of(response)) == (502, "serving.model-failed")
    assert "Traceback" not in response.text
    assert "127.0.0.1" not in response.text
    model.heal()
    assert server.ask().status_code == 200


@pytest.mark.parametrize("act", [stall, trickle], ids=["stall", "trickle"])
def test_a_hanging_model_is_aborted_at_the_deadline(
    act: Act, place: ServerFiles, model: FakeVLLM, clock: Clock
) -> None:
    from gumshoe.serving.errors import DeadlineExceededError

    async def answer() -> None:
        async with open_test_service(place, model.address, {"deadline": 3600}) as service:
            model.inject(act, times=None)
            late = asyncio.create_task(service.answer(make_scenario(), None, lambda _: None, "ann"))
            await async_wait_until(lambda: model.under_way == 1)
            clock.advance(3500)
            await asyncio.sleep(0.05)
            assert not late.done()
            clock.advance(101)
            with pytest.raises(DeadlineExceededError, match="3600 seconds"):
                await late
            model.heal()
            assert (await service.answer(make_scenario(), None, lambda _: None, "ann")).success

    asyncio.run(answer())


def test_a_hanging_model_is_a_504(place: ServerFiles, model: FakeVLLM) -> None:
    """The model hangs until the end of the test."""
    model.inject(stall, times=None)
    with serve_in_thread(
        make_settings(place, model=model_settings(place, model.address), limits={"deadline": 0.5})
    ) as server:
        response = server.ask()
    assert (response.status_code, code_of(response)) == (504, "serving.deadline-exceeded")
    assert "0.5 seconds" in response.json()["detail"]


@pytest.mark.parametrize("path", ["/invoke", "/invoke/stream"])
def test_an_internal_error_is_only_detailed_in_the_log(
    path: str, place: ServerFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gumshoe.environments.registry import open_env
    from gumshoe.rollouts.tool_threads import ToolThreads
    from gumshoe.serving.access_control import open_access
    from gumshoe.serving.feedback_recorder import FeedbackRecorder
    from gumshoe.serving.server import open_routes
    from gumshoe.serving.service import AnswerService
    from gumshoe.serving.telemetry import Metrics, create_tracer

    settings = make_settings(place)

    async def fail(*_: Any) -> None:
        raise ValueError("its own words")

    monkeypatch.setattr(AnswerService, "answer", fail)

    async def ask() -> httpx.Response:
        recorder, env_factory = FeedbackRecorder(settings.keeping, None), open_env(place.index)
        async with ToolThreads() as threads:
            service = AnswerService(
                settings, env_factory, Metrics(), create_tracer(), threads, recorder.record_episode, []
            )
            async with open_routes(service, open_access(settings.access), recorder) as app:
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                    return await client.post(path, json=question_body())

    response = asyncio.run(ask())
    assert (response.status_code, code_of(response)) == (500, "serving.internal-error")
    assert "its own words" not in response.text
    assert caplog.text.count("ValueError: its own words") == 1


def test_a_temporary_failure_is_retried(server: AgentProcess, model: FakeVLLM) -> None:
    model.inject(status(503))
    assert server.ask().status_code == 200


def test_requests_beyond_the_queue_get_429_and_none_is_lost(server: AgentProcess, model: FakeVLLM) -> None:
    """Eight run and eight wait."""
    go_on, refused = threading.Event(), server.metric("gumshoe_refused_total", why="busy")
    model.inject(held(go_on), times=None)
    with ThreadPoolExecutor(64) as pool:
        coming = [pool.submit(server.ask, 1 + number % 20) for number in range(64)]
        try:
            wait_until(lambda: sum(each.done() for each in coming) >= 48)
        finally:
            go_on.set()
        answers = [each.result() for each in coming]
    assert Counter(each.status_code for each in answers) == {200: 16, 429: 48}
    busy = [each for each in answers if each.status_code == 429]
    assert all((each.headers["retry-after"], code_of(each)) == ("1", "serving.busy") for each in busy)
    assert server.metric("gumshoe_refused_total", why="busy") == refused + 48
    right = [
        each.json()["source_ids"] == [f"<{1 + number % 20}@example.com>"]
        for number, each in enumerate(answers)
        if each.is_success
    ]
    assert all(right), "each question gets its own answer"
    wait_until(lambda: server.metric("gumshoe_running") == 0 and server.metric("gumshoe_waiting", what="episode") == 0)


@pytest.mark.ci
def test_a_disconnected_client_frees_its_slot(server: AgentProcess, model: FakeVLLM) -> None:
    def count_cancelled() -> float:
        return server.metric("gumshoe_questions_total", policy="adapter", result="cancelled")

    model.inject(stall, times=None)
    before = count_cancelled()
    for path, seconds in (("/invoke", 0.7), ("/invoke/stream", 0.2), ("/invoke/stream", 0.7)):
        with pytest.raises(httpx.ReadTimeout):
            server.client.post(path, json=question_body(), timeout=seconds)
        wait_until(lambda: server.metric("gumshoe_running") == 0)
    wait_until(lambda: count_cancelled() == before + 3)


def test_a_slow_client_does_not_block_others(server: AgentProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps(question_body()).encode()
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        slow.sendall(b"Content-Length: %d\r\n\r\n" % len(body))
        for byte in body[:-1]:
            slow.sendall(bytes([byte]))
        assert server.ask().is_success
        slow.sendall(body[-1:])
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")


def test_unknown_routes_and_hosts_are_refused(server: AgentProcess) -> None:
    for method, path, status_code, code in (
        ("GET", "/invoke", 405, "serving.method-not-allowed"),
        ("POST", "/elsewhere", 404, "serving.not-found"),
        ("GET", "/..%2f..%2fetc", 404, "serving.not-found"),
    ):
        response = server.client.request(method, path)
        assert (response.status_code, code_of(response)) == (status_code, code)
    response = server.client.get("/principal", headers={"Host": "evil.example"})
    assert (response.status_code, code_of(response)) == (421, "serving.host-not-allowed")
    assert "'evil.example'" in response.json()["detail"]
    for path in ("/healthz", "/readyz", "/metrics"):  # Kubernetes probes a pod by its IP address
        assert server.client.get(path, headers={"Host": "10.0.0.7:8000"}).status_code == 200


def test_requests_are_logged_without_questions_and_answers(server: AgentProcess, model: FakeVLLM) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"X-Request-ID": "mine-1", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    response = server.client.post("/invoke", json=question_body(7), headers=headers)
    assert response.headers["x-request-id"] == "mine-1"
    wait_until(lambda: any(each.get("request_id") == "mine-1" and "route" in each for each in server.read_log()))
    lines = [each for each in server.read_log() if each.get("request_id") == "mine-1"]
    assert {each["trace_id"] for each in lines} == {trace}
    fields = {name: value for each in lines for name, value in each.items()}
    assert (fields["route"], fields["status"], fields["principal"], fields["policy"]) == (
        "/invoke",
        200,
        "anybody",
        "adapter",
    )
    model.inject(lambda exchange: exchange.reply({"message": decoded(exchange.request["prompt"])}, 400))
    assert server.ask().status_code == 502
    wait_until(lambda: re.search(r"model failed: http\S+ answered 400 \[inference\.[a-z-]+\]", server.log.read_text()))
    odd = server.client.get("/principal", headers={"X-Request-ID": 'x" , "y": "z'})
    assert re.fullmatch(r"[0-9a-f]{16}", odd.headers["x-request-id"])
    assert "What is in" not in server.log.read_text()
    assert "Body of message" not in server.log.read_text()


def test_metrics_are_served_for_prometheus(server: AgentProcess) -> None:
    before = server.metric("gumshoe_episodes_total", outcome="answered", policy="adapter")
    server.ask()
    assert server.metric("gumshoe_episodes_total", outcome="answered", policy="adapter") == before + 1
    for name in ("requests_total", "request_seconds_count", "turns_count", "tokens_total", "phase_seconds_count"):
        assert server.metric(f"gumshoe_{name}") > 0, name
    assert server.metric("gumshoe_policy_share", policy="adapter") == 1
    assert server.metric("gumshoe_ready") == 1
    text = server.client.get("/metrics").text
    assert SECRET not in text
    assert ANN not in text


def test_a_server_is_ready_only_while_its_adapter_is_loaded(place: ServerFiles) -> None:
    with (
        FakeVLLM(models=("base",)) as model,
        serve_in_thread(make_settings(place, model=model_settings(place, model.address)), ready=False) as server,
    ):
        assert server.client.get("/healthz").status_code == 200
        wait_until(lambda: "[inference.model-not-served]" in server.client.get("/readyz").text)
        unready = server.client.get("/readyz")
        assert (unready.status_code, code_of(unready)) == (503, "serving.not-ready")
        assert "'adapter'" in unready.json()["detail"]
        refused = server.ask()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert code_of(refused) == "serving.model-unavailable"
        model.models = ("base", "adapter")
        wait_until(lambda: server.client.get("/readyz").status_code == 200)
        assert server.ask().is_success
        model.models = ("base",)
        wait_until(lambda: server.client.get("/readyz").status_code == 503)


def test_the_environment_that_a_model_was_trained_in_is_used(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path
) -> None:
    from gumshoe.environments.recorded import write_environment
    from gumshoe.environments.registry import EnvironmentSettings, open_env

    trained = shutil.copytree(place.tokenizer, tmp_path / "trained")
    small = EnvironmentSettings(name="email", arguments={"hits": 1, "handles": True})
    write_environment(open_env(place.index, small), trained)
    settings = model_settings(place, model.address, tokenizer=str(trained))
    with serve_in_thread(make_settings(place, model=settings)) as server:
        answer, brief = server.ask(steps=True).json(), server.ask().json()
    assert (brief["steps"], brief["handles"]) == ([], {})
    assert answer["steps"][0]["result"].endswith("\n  id: m1")
    assert answer["handles"] == {"m1": "<7@example.com>"}
    assert answer["steps"][1]["arguments"] == {"message_id": "m1"}
    assert answer["source_ids"] == ["<7@example.com>"]


def test_callers_do_not_see_the_output_of_an_agent_that_failed(
    place: ServerFiles, model: FakeVLLM, caplog: pytest.LogCaptureFixture
) -> None:
    """It may quote keys and mail. It is logged only if questions are, and shown to users of the command line."""
    from prometheus_client import generate_latest

    from gumshoe.errors import UnavailableError
    from gumshoe.rollouts.answer import Answerer
    from gumshoe.rollouts.episode import EpisodeRunner, EpisodeStart
    from gumshoe.rollouts.trajectory import Trajectory
    from gumshoe.serving.usage_budgets import BudgetExhaustedError

    def fail(run: EpisodeRunner) -> EpisodeRunner:
        async def run_and_fail(start: EpisodeStart) -> Trajectory:
            done = await run(start)
            done.ending, done.detail = "agent failed", "it exited with status 1: secret words"
            return done

        return run_and_fail

    async def fail_early(start: EpisodeStart) -> Trajectory:  # noqa: ARG001 - as the protocol has it
        raise UnavailableError("gateway.agent-failed", "the agent failed: secret words")

    async def run_out(start: EpisodeStart) -> Trajectory:  # noqa: ARG001
        raise BudgetExhaustedError("serving.budget-exhausted", "no more today", 60)

    async def ask_all() -> None:
        async with open_test_service(place, model.address, {}) as service:
            policy = service.candidates[0]
            reasons: set[str] = set()
            assert policy.run is not None
            failing = fail(policy.run)
            for logs_questions in (False, True):
                service.settings = service.settings.model_copy(update={"log_questions": logs_questions})
                policy.run = failing
                reasons.add((await service.answer(make_scenario(), None, lambda _: None, "ann")).reason)
                policy.run = fail_early
                with raises("gateway.agent-failed"):
                    await service.answer(make_scenario(), None, lambda _: None, "ann")
                assert caplog.text.count("secret words") == (2 if logs_questions else 0)
                assert len([each for each in caplog.messages if "failed: " in each]) == (4 if logs_questions else 2)
            assert reasons == {"the agent came to no answer: agent failed"}
            measured = generate_latest(service.metrics.registry).decode()
            policy.run = run_out
            with raises("serving.budget-exhausted"):
                await service.answer(make_scenario(), None, lambda _: None, "ann")
            questions = [line for line in measured.splitlines() if line.startswith("gumshoe_questions_total")]
            now = generate_latest(service.metrics.registry).decode().splitlines()
            assert questions == [line for line in now if line.startswith("gumshoe_questions_total")] != []
            assert len([each for each in caplog.messages if "failed: " in each]) == 4
            limits = service.settings.model.limits.episode
            shown = Answerer(service.env_factory, limits, service.threads, shows_agent_errors=True)
            answer, _ = await shown.answer(make_scenario(), failing)
            assert "secret words" in answer.reason

    asyncio.run(ask_all())


def test_a_canary_gets_its_share_and_sessions_keep_their_policy(
    place: ServerFiles, model: FakeVLLM, caplog: pytest.LogCaptureFixture
) -> None:
    settings = model_settings(place, model.address, canary="next", canary_percent=30)
    with serve_in_thread(make_settings(place, model=settings)) as server:
        names = [f"s{number}" for number in range(30)]
        wait_until(lambda: "next" in {server.ask(session_id=name).json()["policy"] for name in names[:10]})
        sessions = {name: server.ask(session_id=name).json()["policy"] for name in names}
        assert 6 <= list(sessions.values()).count("next") <= 12, "30 % of 30; sessions are assigned by a hash"
        for name in names[:5]:
            assert server.ask(session_id=name).json()["policy"] == sessions[name]
        assert server.ask().json()["policy"] in ("adapter", "next")
        assert server.metric("gumshoe_policy_share", policy="next") == pytest.approx(0.3)
        assert server.metric("gumshoe_episodes_total", policy="next") > 0
        requests = Counter(each["model"] for each in model.requests)
        assert set(requests) == {"adapter", "next"}
        assert requests["next"] % 3 == 0, "each episode uses one policy for all turns"
        model.models = ("base", "adapter")
        wait_until(lambda: "next: " in caplog.text.rpartition("[inference.model-not-served]")[0])
        assert server.client.get("/readyz").status_code == 200
        assert {server.ask(session_id=name).json()["policy"] for name in names[:10]} == {"adapter"}
    model.models = ("base", "adapter", "next")


def test_without_a_session_the_policy_is_drawn_by_its_share(
    place: ServerFiles, model: FakeVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = iter([0.0, 0.299, 0.3, 0.999])
    monkeypatch.setattr("gumshoe.serving.served_policies.random", SimpleNamespace(random=lambda: next(draws)))

    async def answer() -> list[str]:
        canary = {"canary": "next", "canary_percent": 30}
        async with open_test_service(place, model.address, {}, **canary) as service:
            await async_wait_until(lambda: not any(each.problem for each in service.candidates))
            return [(await service.answer(make_scenario(), None, lambda _: None, "ann")).policy for _ in range(4)]

    assert asyncio.run(answer()) == ["next", "next", "adapter", "adapter"]


@pytest.mark.ci
def test_no_accepted_request_is_lost_at_shutdown(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    """Clients keep sending requests meanwhile, each on a new connection."""
    model.inject(after(0.05), times=None)
    taken: list[int] = []
    refused: list[str] = []

    def go_on() -> None:
        while not refused:
            try:
                with httpx.Client(base_url=server.url, timeout=None, trust_env=False) as client:
                    taken.append(client.post("/invoke", json=question_body()).status_code)
            except httpx.TransportError as error:
                refused.append(type(error).__name__)

    with start_server(place, f"vllm:{model.address}#adapter", tmp_path / "log", "--open") as server:
        threads = [threading.Thread(target=go_on) for _ in range(8)]
        for each in threads:
            each.start()
        wait_until(lambda: len(taken) >= 16)
        server.process.send_signal(signal.SIGTERM)
        for each in threads:
            each.join()
        assert server.process.wait() == 0
        answered = [each["status"] for each in server.read_log() if each.get("route") == "/invoke"]
    assert set(taken) == set(answered) == {200}
    assert len(taken) == len(answered), "every accepted request was answered"


@pytest.mark.ci
def test_waiting_requests_are_answered_before_shutdown(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    go_on = threading.Event()
    model.inject(held(go_on), times=None)
    bounds = ["--set", "limits.concurrency=4"]
    with start_server(place, f"vllm:{model.address}#adapter", tmp_path / "log", "--open", *bounds) as server:
        answers: list[httpx.Response] = []
        threads = [threading.Thread(target=lambda: answers.append(server.ask())) for _ in range(24)]
        for each in threads:
            each.start()
        wait_until(lambda: server.metric("gumshoe_waiting", what="episode") == 20)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.TransportError):
            wait_until(lambda: httpx.get(server.url, trust_env=False).is_error)
        go_on.set()
        for each in threads:
            each.join()
        assert [each.status_code for each in answers] == [200] * 24
        assert server.process.wait() == 0


def test_a_chat_model_can_replace_vllm(place: ServerFiles, model: FakeVLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with serve_in_thread(make_settings(place, model={"policy": f"chat:base@{model.address}/v1"})) as server:
        answer = server.ask().json()
        assert (answer["answer"], answer["policy"]) == ("Body of message 7", "base")


def test_a_rejected_api_key_of_a_chat_model_is_a_502(
    place: ServerFiles, model: FakeVLLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with serve_in_thread(make_settings(place, model={"policy": f"chat:base@{model.address}/v1"})) as server:
        model.inject(status(401, {"error": {"message": "you asked: What is in 7?"}}), times=None)
        response = server.ask()
        assert (response.status_code, code_of(response)) == (502, "serving.model-failed")
        assert "[models.access-denied]" in caplog.text
        assert "What is in 7?" not in caplog.text


def test_an_unreachable_chat_model_makes_the_server_unready(
    place: ServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model = ServerProcess(find_free_port())
    model.start()
    try:
        with serve_in_thread(make_settings(place, model={"policy": f"chat:base@{model.address}/v1"})) as server:
            model.kill()
            wait_until(lambda: server.client.get("/readyz").status_code == 503)
            assert "[models.unreachable]" in server.client.get("/readyz").json()["detail"]
    finally:
        model.kill()


def test_gumshoe_ask_asks_a_server(
    server: AgentProcess, model: FakeVLLM, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUMSHOE_INDEX", "elsewhere")
    monkeypatch.setenv("GUMSHOE_STORE", "elsewhere")
    words = ["ask", "What is in 7?", "--url", server.url, "--inbox", ANN, "--date", DAY]
    ran = run(*words)
    assert (ran.status, "Body of message 7" in ran.out) == (0, True), ran.err
    for flag, value in (("--index", "x"), ("--adapter", "latest"), ("--store", "x"), ("--max-turns", 3)):
        ran = run(*words, flag, value)
        assert (ran.status, ran.code) == (2, "serving.option-conflict"), ran.err
        assert flag in ran.err
    for url, inbox, status_of, code, value in (
        ("http://127.0.0.1:9", ANN, 75, "serving.unreachable", "http://127.0.0.1:9"),
        ("nowhere", ANN, 2, "serving.invalid-url", "nowhere"),
        (server.url, "ann", 2, "scenarios.invalid-inbox", "422"),
        (f"{server.url}/healthz", ANN, 2, "serving.not-found", "404"),
        (model.address, ANN, 2, "serving.not-an-agent-server", model.address),
    ):
        ran = run("ask", "What?", "--url", url, "--inbox", inbox)
        assert (ran.status, ran.code) == (status_of, code), ran.err
        assert value in ran.err


@pytest.mark.parametrize(
    ("kind", "answered", "status_of", "code"),
    [
        ("urn:gumshoe:error:serving.busy", 429, 75, "serving.busy"),
        ("urn:gumshoe:error:serving.of-a-newer-server", 422, 2, "serving.of-a-newer-server"),
        ("urn:gumshoe:error:serving.x] [y", 422, 2, "serving.request-rejected"),
        ("about:blank", 422, 2, "serving.request-rejected"),
        (None, 503, 75, "serving.request-rejected"),
    ],
)
def test_gumshoe_ask_reports_the_server_s_error_code(
    kind: str | None, answered: int, status_of: int, code: str, run: Any
) -> None:
    problem = {"title": "Title 1", "detail": "Detail 2"} | ({"type": kind} if kind else {})
    response = (answered, "application/problem+json", json.dumps(problem).encode())
    with run_faulty_server(deque(), lambda *_: response) as url:
        ran = run("ask", "What?", "--url", url)
    assert (ran.status, ran.code) == (status_of, code), ran.err
    for value in (url, str(answered), "Title 1", "Detail 2"):
        assert value in ran.err


def test_the_base_model_of_an_adapter_is_that_of_its_record_or_else_of_its_run(tmp_path: Path) -> None:
    def find() -> str:
        with ExitStack() as stack:
            return LocalModel(str(tmp_path), None, None).resolve(stack).model

    with raises("serving.base-model-unknown", tmp_path):
        find()
    (tmp_path / "metadata.json").write_text('{"settings": {"model": {"name": "acme/run"}}}')
    assert find() == "acme/run"
    (tmp_path / "base_model.json").write_text('{"name": "acme/record"}')
    assert find() == "acme/record"


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        (["ask", "What?"], "serving.no-index-or-url", "--index"),
        (["ask", "What?", "--index", "mailbox", "--key", "k"], "serving.option-conflict", "--key"),
        (["ask", "--index", "{index}"], "serving.no-question", "--scenarios"),
        (
            ["ask", "What?", "--inbox", ANN, "--index", "{index}", "--adapter", "latest"],
            "serving.store-missing",
            "latest",
        ),
        (
            ["ask", "What?", "--inbox", ANN, "--index", "{index}", "--adapter", "{tmp}"],
            "serving.base-model-unknown",
            "{tmp}",
        ),
        (["serve", "--set", "limits.queue"], "serving.invalid-set-option", "'limits.queue'"),
        (["serve", "--set", "limits.queue=["], "serving.invalid-set-option", "'limits.queue=['"),
        (["serve", "--set", "limits=1", "--set", "limits.queue=1"], "serving.invalid-set-option", "limits is a value"),
        (["serve", "--config", "{tmp}/none.yaml"], "serving.settings-file-not-found", "{tmp}/none.yaml"),
        (["serve", "--config", "{tmp}/bad.yaml"], "serving.settings-unreadable", "{tmp}/bad.yaml"),
        (["serve", "--index", "x", "--open", "--set", "port=many"], "serving.invalid-settings", "port: "),
    ],
)
def test_invalid_commands_are_refused(
    words: list[str],
    code: str,
    value: str,
    place: ServerFiles,
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("GUMSHOE_INDEX", "GUMSHOE_STORE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bad.yaml").write_text("limits: [")
    given = {"index": place.index, "tmp": tmp_path}
    ran = run(*(each.format(**given) for each in words))
    assert (ran.status, ran.code) == (2, code), ran.err
    assert value.format(**given) in ran.err


def test_an_unavailable_port_index_or_tokenizer_is_reported(
    place: ServerFiles, server: AgentProcess, run: Any, tmp_path: Path
) -> None:
    port = server.url.rpartition(":")[2]
    policy = ["--policy", "chat:x@http://127.0.0.1:9"]
    taken = run("serve", "--index", place.index, *policy, "--open", "--port", port)
    assert (taken.status, taken.code) == (2, "serving.port-unavailable")
    assert port in taken.err
    none = run("serve", "--index", tmp_path / "none", *policy, "--open", "--port", 0)
    assert (none.status, none.code) == (2, "artifacts.no-such-directory")
    assert str(tmp_path / "none") in none.err
    for tokenizer, code, value in (
        (None, "inference.tokenizer-required", "vllm:http://127.0.0.1:9"),
        (tmp_path / "none", "sources.no-such-model-directory", str(tmp_path / "none")),
    ):
        words = ["--tokenizer", tokenizer] if tokenizer else []
        ran = run("serve", "--index", place.index, "--policy", "vllm:http://127.0.0.1:9", *words, "--open", "--port", 0)
        assert (ran.status, ran.code) == (2, code), ran.err
        assert value in ran.err
    nobody = run("serve", "--index", place.index, *policy)
    assert (nobody.status, nobody.code) == (2, "serving.invalid-settings")
    for value in ("--keys", "access.jwks_url", "--open"):
        assert value in nobody.err
