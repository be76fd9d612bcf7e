"""Episodes in worker processes: the same answers, limits and records as in one process, and lost workers."""

import asyncio
import json
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, Mock

import psutil
import pytest

from gumshoe.inference.policy import PolicyError
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, held, status
from tests.serving.agent_server import ANN, AgentProcess, ServerFiles, add_key, code_of, question_body, start_server
from tests.serving.in_process import make_scenario, make_settings, model_settings
from tests.waiting import wait_until

if TYPE_CHECKING:
    from gumshoe.serving.worker_messages import WorkerStart

WORKERS, CALLS = 2, 300
EPISODE_WORKERS = "gumshoe.serving.episode_workers"


@pytest.fixture(scope="module")
def working(
    place: ServerFiles, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """Start a server with two workers and a budget of tool calls. Its client sends Ann's key."""
    directory = tmp_path_factory.mktemp("workers")
    keys = directory / "keys"
    key = add_key(keys, "ann", [ANN])
    more = ["--keys", str(keys), "--workers", str(WORKERS), "--set", f"limits.calls_per_day={CALLS}"]
    policy = f"vllm:{shared_model.address}#adapter"
    with start_server(place, policy, directory / "log", *more, key=key) as running:
        yield running


@pytest.fixture
def server(working: AgentProcess, model: FakeVLLM) -> Iterator[AgentProcess]:  # noqa: ARG001 - healthy first
    yield working
    wait_until(lambda: working.metric("gumshoe_workers") == WORKERS, working.process, working.log.read_text)


def list_workers(server: AgentProcess) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(server.process.pid).children()
    return found


def read_lines(server: AgentProcess, logger: str) -> list[dict[str, Any]]:
    return [each for each in server.read_log() if each["logger"] == logger]


def kill_worker_of_question(server: AgentProcess, model: FakeVLLM) -> None:
    """Kill the worker that waits for the model, and wait until another one has its place."""
    restarts = server.metric("gumshoe_worker_restarts_total")
    next(
        each
        for each in list_workers(server)
        if any(connection.laddr.port == model.ports[-1] for connection in each.net_connections("tcp"))
    ).kill()
    wait_until(lambda: server.metric("gumshoe_worker_restarts_total") > restarts)
    wait_until(lambda: server.metric("gumshoe_workers") == WORKERS, server.process, server.log.read_text)


@pytest.mark.ci
def test_workers_answer_as_one_process_does(server: AgentProcess, shared_server: AgentProcess) -> None:
    ours, theirs = (each.ask().json() for each in (server, shared_server))
    for answer in (ours, theirs):
        answer.pop("seconds")
        answer.pop("cost")
    assert ours == theirs
    assert ours["success"] is True


@pytest.mark.ci
def test_workers_share_the_work(server: AgentProcess) -> None:
    before = server.metric("gumshoe_episodes_total", outcome="answered")
    used = [each.cpu_times().user for each in list_workers(server)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(server.ask, [1 + number % 20 for number in range(48)]))
    assert all(each.status_code == 200 for each in answers)
    assert server.metric("gumshoe_episodes_total", outcome="answered") == before + 48
    after = [each.cpu_times().user for each in list_workers(server)]
    assert len(after) == WORKERS
    assert all(now > earlier for now, earlier in zip(after, used, strict=True)), "both have worked"
    assert server.metric("gumshoe_running") == server.metric("gumshoe_waiting", what="episode") == 0


def test_the_server_writes_the_audit_lines_of_its_workers(server: AgentProcess) -> None:
    before = len(read_lines(server, "gumshoe.audit"))
    answer = server.ask(9)
    lines = read_lines(server, "gumshoe.audit")[before:]
    assert [each["event"] for each in lines] == ["search", "read", "question"]
    assert {each["principal"] for each in lines} == {"ann"}
    assert {each["policy"] for each in lines} == {"adapter"}
    assert {each["request_id"] for each in lines} == {answer.headers["x-request-id"]}
    assert lines[1]["source_ids"] == ["<9@example.com>"]


def test_steps_are_streamed_from_workers(server: AgentProcess) -> None:
    with server.client.stream("POST", "/invoke/stream", json=question_body()) as response:
        events = [line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: ")]
    assert events[-1] == "answer"
    assert events.count("step") == 5, "each of two calls before and after it ran, and the answer"


def test_an_error_of_the_model_has_the_same_code(server: AgentProcess, model: FakeVLLM) -> None:
    model.inject(status(400), times=None)
    refused = server.ask()
    assert (refused.status_code, code_of(refused)) == (502, "serving.model-failed")


def test_an_abandoned_question_ends_in_its_worker(server: AgentProcess, model: FakeVLLM) -> None:
    release = threading.Event()
    model.inject(held(release))
    body = json.dumps(question_body()).encode()
    with pytest.raises(Exception, match="timed out"):
        server.client.post("/invoke", content=body, headers={"Content-Type": "application/json"}, timeout=1.0)
    wait_until(lambda: server.metric("gumshoe_running") == 0)
    release.set()
    model.wait_until_idle()
    assert server.ask().status_code == 200


@pytest.mark.ci
def test_a_question_of_a_lost_worker_runs_again_if_it_had_no_step(server: AgentProcess, model: FakeVLLM) -> None:
    release = threading.Event()
    model.inject(held(release))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask)
        wait_until(lambda: model.under_way == 1)
        kill_worker_of_question(server, model)
        release.set()
        assert asked.result().status_code == 200
    assert any("ended with status -9" in each["message"] for each in read_lines(server, EPISODE_WORKERS))


@pytest.mark.ci
def test_a_question_of_a_lost_worker_fails_after_its_first_step(server: AgentProcess, model: FakeVLLM) -> None:
    release = threading.Event()
    model.inject(held(release), after=1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask)
        wait_until(lambda: model.under_way == 1 and len(model.requests) == 2)
        kill_worker_of_question(server, model)
        release.set()
        failed = asked.result()
    assert (failed.status_code, code_of(failed)) == (502, "serving.model-failed")


@pytest.mark.ci
def test_without_workers_the_server_is_not_ready_until_they_are_back(server: AgentProcess) -> None:
    for each in list_workers(server):
        each.kill()
    wait_until(lambda: server.client.get("/readyz").status_code == 503)
    refused = server.ask()
    assert (refused.status_code, code_of(refused)) == (503, "serving.model-unavailable")
    wait_until(lambda: server.client.get("/readyz").status_code == 200, server.process, server.log.read_text)
    assert server.ask().status_code == 200


@pytest.mark.ci
def test_a_budget_holds_for_all_workers(server: AgentProcess) -> None:
    """A question takes three calls: two of tools, and the answer."""
    key = add_key(server.log.parent / "keys", "busy", [ANN])
    headers = {"Authorization": f"Bearer {key}"}

    def ask(number: int) -> int:
        asked = server.client.post("/invoke", json=question_body(1 + number % 20), headers=headers)
        return asked.status_code

    wait_until(lambda: ask(0) != 401)  # the server reads the file again now and then
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(CALLS // 3 + 20)))
    assert set(found) == {200, 429}
    assert CALLS // 3 - 16 <= found.count(200) < CALLS // 3, "questions that are refused late have used some calls"


@pytest.mark.ci
def test_a_terminated_server_answers_what_it_has_accepted(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    release = threading.Event()
    model.inject(held(release))
    policy = f"vllm:{model.address}#adapter"
    with (
        start_server(place, policy, tmp_path / "log", "--open", "--workers", "1") as running,
        ThreadPoolExecutor(1) as pool,
    ):
        workers = list_workers(running)
        asked = pool.submit(running.ask)
        wait_until(lambda: model.under_way == 1)
        os.kill(running.process.pid, signal.SIGTERM)
        wait_until(lambda: "Shutting down" in running.log.read_text() or running.process.poll() is not None)
        release.set()
        assert asked.result().status_code == 200
        assert running.process.wait() == 0
    assert not any(each.is_running() for each in workers)


@pytest.mark.ci
def test_workers_end_with_a_killed_server(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    policy = f"vllm:{model.address}#adapter"
    with start_server(place, policy, tmp_path / "log", "--open", "--workers", "1") as running:
        workers = list_workers(running)
        running.process.kill()
        running.process.wait()
        psutil.wait_procs(workers)


@pytest.mark.ci
def test_a_worker_that_cannot_start_ends_the_start(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    from gumshoe.environments.registry import open_env
    from gumshoe.serving.service import open_service
    from gumshoe.serving.telemetry import Metrics, create_tracer

    limits = {"calls_per_day": 5, "usage_file": str(tmp_path / "usage.sqlite")}
    settings = make_settings(place, model=model_settings(place, model.address), limits=limits, workers=1)
    gone = settings.model_copy(update={"limits": settings.limits.model_copy(update={"usage_file": tmp_path})})

    async def open_it() -> None:
        env_factory = open_env(place.index)
        async with open_service(gone, env_factory, Metrics(), create_tracer(), lambda *_: None):
            pass

    with raises("serving.usage-file-unusable", str(tmp_path)):
        asyncio.run(open_it())


@pytest.mark.parametrize("policy", ["transformers:tiny", "tiny"])
def test_workers_do_not_load_a_model_each(place: ServerFiles, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.serving.served_policies import open_policies

    monkeypatch.setenv("GUMSHOE_ENGINE", "transformers")
    settings = make_settings(place, model={"policy": policy}, workers=2)

    async def open_them() -> None:
        async with open_policies(settings):
            pass

    with raises("serving.workers-need-model-server", "workers is 2"):
        asyncio.run(open_them())


@pytest.fixture
def start(place: ServerFiles, model: FakeVLLM) -> "WorkerStart":
    """Return what workers open, with quick signs of life."""
    from gumshoe.inference.policy_names import PolicyName
    from gumshoe.serving.served_policies import PolicySource
    from gumshoe.serving.worker_messages import WorkerStart

    settings = make_settings(place, model=model_settings(place, model.address))
    source = PolicySource(PolicyName("vllm", "adapter", (model.address,)), place.tokenizer, ())
    return WorkerStart(place.index, None, settings.model, settings.limits, (source,), False, pulse=0.5)


@pytest.mark.ci
def test_a_worker_that_is_stuck_is_killed_and_started_again(start: "WorkerStart") -> None:
    from gumshoe.serving.episode_workers import open_workers
    from gumshoe.serving.telemetry import Metrics

    metrics = Metrics()

    def read(name: str) -> float:
        return metrics.registry.get_sample_value(name) or 0.0

    async def run() -> None:
        async with open_workers(1, start, metrics) as workers:
            own = psutil.Process().children()
            (stuck,) = [each for each in own if "gumshoe.serving.episode_worker" in each.cmdline()]
            stuck.suspend()
            while not read("gumshoe_worker_restarts_total") or workers.problem:
                await asyncio.sleep(0.05)
            assert not stuck.is_running()
            assert read("gumshoe_workers") == 1

    asyncio.run(run())


def test_a_worker_that_the_system_does_not_start_ends_the_start(
    start: "WorkerStart", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.serving.episode_workers import open_workers
    from gumshoe.serving.telemetry import Metrics

    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))

    async def run() -> None:
        async with open_workers(1, start, Metrics()):
            pass

    with raises("serving.worker-not-ready", "missing"):
        asyncio.run(run())


def test_an_error_that_cannot_be_sent_is_replaced_by_its_name() -> None:
    from gumshoe.serving.worker_messages import to_portable

    known = PolicyError("inference.timeout", "no answer", "secret")
    assert to_portable(known) is known
    assert "TwoPartsError" in str(to_portable(TwoPartsError("a", "b")))


class TwoPartsError(Exception):
    """An error of custom code that pickle cannot make again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def test_audit_lines_of_tool_calls_that_end_after_their_question_was_cancelled_are_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.serving import episode_workers
    from gumshoe.serving.access import Principal
    from gumshoe.serving.audit_log import AuditLog
    from gumshoe.serving.worker_messages import JobAudit

    monkeypatch.setattr(episode_workers, "_MAX_CANCELLED", 2)
    events = [JobAudit(number, {"event": "read", "number": number}) for number in (1, 2, 3)]
    channel = Mock(receive=AsyncMock(side_effect=[*events, EOFError]))
    worker = episode_workers._WorkerProcess(Mock(), channel)

    async def cancel_all() -> None:
        AuditLog(logging.getLogger("audit")).start_trail(Principal("ann", (ANN,)))
        for number in (1, 2, 3):
            end = asyncio.get_running_loop().create_future()
            worker.pending[number] = episode_workers._Pending(end, print, copy_context())
            worker.cancel(number)
            del worker.pending[number]
        await worker.read()

    with caplog.at_level(logging.INFO):
        asyncio.run(cancel_all())
    assert [each.__dict__["fields"]["number"] for each in caplog.records if each.name == "audit"] == [2, 3]


@pytest.mark.parametrize("error", [PolicyError("inference.unreachable", "gone"), OSError("too many open files")])
def test_a_policy_that_could_not_be_opened_is_opened_by_the_next_question(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from gumshoe.inference.policy_names import PolicyName
    from gumshoe.serving import episode_worker
    from gumshoe.serving.served_policies import PolicySource
    from gumshoe.serving.settings import LimitSettings, ServedModelSettings
    from gumshoe.serving.usage_budgets import UsageBudgets
    from gumshoe.serving.worker_messages import EpisodeJob, JobEnd, WorkerStart

    name = PolicyName.parse("vllm:http://localhost#adapter")
    openings = iter([error, None])

    @asynccontextmanager
    async def open_or_fail(*_: object) -> AsyncIterator[Mock]:
        if (failure := next(openings)) is not None:
            raise failure
        yield Mock()

    monkeypatch.setattr(episode_worker, "open_served_policy", open_or_fail)
    sources = (PolicySource(name, None, ()),)
    start = WorkerStart(Path(), None, ServedModelSettings(), LimitSettings(), sources, logs_json=False)
    job = EpisodeJob(name.version, make_scenario(), "seed", 0, "ann", None, None)
    ends: asyncio.Queue[JobEnd] = asyncio.Queue()
    seen: list[JobEnd] = []

    async def ask_twice() -> AsyncIterator[EpisodeJob]:
        for number in range(2):
            yield replace(job, number=number)
            seen.append(await ends.get())
        raise EOFError

    async def work() -> None:
        channel = Mock(receive=ask_twice().__anext__, send=ends.put_nowait)
        answerer = Mock(answer=AsyncMock(return_value="answer"))
        async with AsyncExitStack() as stack:
            await episode_worker.EpisodeWorker(channel, start, answerer, UsageBudgets(), stack).work()

    asyncio.run(work())
    assert [each.error is None for each in seen] == [False, True]
