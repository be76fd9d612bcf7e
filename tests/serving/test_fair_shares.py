"""Test over real sockets that one caller's work cannot keep others out."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inference.fake_vllm import FakeVLLM, after
from tests.serving.agent_server import ANN, BOB, DAY, ServerClient, ServerFiles, add_key
from tests.serving.in_process import (
    make_scenario,
    make_settings,
    model_settings,
    open_stub_service,
    serve_in_thread,
)
from tests.waiting import async_wait_until, wait_until

LIMITS = {"deadline": 3600, "concurrency": 4, "queue": 16}


@contextmanager
def serve_two(place: ServerFiles, address: str, keys: Path, **limits: Any) -> Iterator[tuple[ServerClient, ...]]:
    """Serve two callers with a key each."""
    given = [add_key(keys, name, [inbox]) for name, inbox in (("ann", ANN), ("bob", BOB))]
    access = {"keys": str(keys)}
    settings = make_settings(place, model=model_settings(place, address), access=access, limits={**LIMITS, **limits})
    with serve_in_thread(settings) as server, ExitStack() as stack:
        clients = [ServerClient(server.url, key) for key in given]
        for each in clients:
            stack.enter_context(each.client)
        yield tuple(clients)


@contextmanager
def flood(send: Callable[[], httpx.Response], number: int = 40) -> Iterator[Counter[int]]:
    """Send requests in 40 threads while the block runs, and yield their statuses."""
    ended, statuses = threading.Event(), Counter[int]()

    def run() -> None:
        while not ended.wait(0.05):  # a pause, or the threads of this test would have no time for others
            statuses[send().status_code] += 1

    threads = [threading.Thread(target=run) for _ in range(number)]
    for each in threads:
        each.start()
    try:
        yield statuses
    finally:
        ended.set()
        for each in threads:
            each.join()


def test_episodes_of_a_program_that_wait_for_a_process_are_shared_too(place: ServerFiles) -> None:
    """A caller with more questions than processes does not get all processes that become free."""
    from gumshoe.rollouts.episode import EpisodeStart
    from gumshoe.rollouts.trajectory import Trajectory

    settings = make_settings(place, model={"agent": {"command": ["agent"], "processes": 2}}, limits=LIMITS)
    assert settings.concurrency < LIMITS["concurrency"]
    running: dict[str, asyncio.Future[None]] = {}
    tasks: list[asyncio.Task[Any]] = []

    async def run(start: EpisodeStart) -> Trajectory:
        asked = start.environment.scenario.question
        running[asked] = asyncio.get_running_loop().create_future()
        try:
            await running[asked]
        finally:
            del running[asked]
        return Trajectory.begin(start.environment, start.sample)

    async def serve() -> None:
        async with open_stub_service(settings, run) as service, asyncio.TaskGroup() as group:

            def ask(number: int, caller: str) -> str:
                scenario = make_scenario(number)
                tasks.append(group.create_task(service.answer(scenario, None, lambda _: None, caller)))
                return scenario.question

            asked = [ask(number, "ann") for number in range(4)]
            await async_wait_until(lambda: len(running) == 2)
            of_bob = ask(7, "bob")
            await asyncio.sleep(0)
            running[asked[0]].set_result(None)
            await async_wait_until(lambda: asked[0] not in running and len(running) == 2)
            assert set(running) == {asked[1], of_bob}
            for each in tasks:
                each.cancel()

    asyncio.run(serve())


@pytest.mark.parametrize(
    ("agent", "workers", "concurrency"),
    [
        (None, 0, 64),
        ({"name": "package.agent:graph"}, 0, 64),
        ({"command": ["agent"]}, 0, 8),
        ({"command": ["agent"], "processes": 100}, 0, 64),
        ({"command": ["agent"], "processes": 8}, 3, 6),
        ({"command": ["agent"], "processes": 2}, 3, 3),
    ],
)
def test_no_more_episodes_of_a_program_run_than_it_may_have_processes(
    place: ServerFiles, agent: dict[str, Any] | None, workers: int, concurrency: int
) -> None:
    assert make_settings(place, model={"agent": agent}, workers=workers).concurrency == concurrency


def ask_as_bob(bob: ServerClient) -> httpx.Response:
    return bob.ask(inbox_address=BOB)


@pytest.mark.ci
def test_slow_questions_of_one_caller_do_not_refuse_another(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path
) -> None:
    model.inject(after(0.02), times=None)
    with serve_two(place, model.address, tmp_path / "keys") as (ann, bob), flood(ann.ask) as statuses:
        wait_until(lambda: statuses[429])
        one_by_one = [ask_as_bob(bob).status_code for _ in range(30)]
        with ThreadPoolExecutor(8) as pool:
            at_once = [each.status_code for each in pool.map(lambda _: ask_as_bob(bob), range(8))]
    assert one_by_one == [200] * 30
    assert at_once == [200] * 8
    assert set(statuses) == {200, 429}, "the caller that floods gets answers too"


@pytest.mark.parametrize("what", ["source", "tool", "feedback"])
def test_other_work_is_shared_in_the_same_way(
    what: str, place: ServerFiles, model: FakeVLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.serving.fair_limiter import FairLimiter

    entered: list[str] = []
    acquire = FairLimiter.acquire

    def record(limiter: Any, caller: str, count: int = 1) -> Any:
        entered.append(caller)
        return acquire(limiter, caller, count)

    monkeypatch.setattr(FairLimiter, "acquire", record)
    source = {"source_id": "<7@example.com>", "inbox_address": ANN, "query_date": DAY}
    right = {"question": "What is in 7?", "answer": "4711", "right": True, "source_ids": ["<7@example.com>"]}
    call = {"name": "read_email", "arguments": {"message_id": "<7@example.com>"}}
    body: dict[str, tuple[str, dict[str, Any]]] = {
        "source": ("/source", source),
        "feedback": ("/feedback", {**right, "inbox_address": ANN, "query_date": DAY}),
        "tool": ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}),
    }
    path, sent = body[what]
    keys = tmp_path / "keys"
    key = add_key(keys, "ann", [ANN])
    settings = make_settings(
        place,
        model=model_settings(place, model.address),
        access={"keys": str(keys)},
        store=str(tmp_path / "store"),
        keeping={"feedback": True},
    )
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    with serve_in_thread(settings, key=key) as server:
        response = server.client.post(path, json=sent, headers=headers)
        assert response.is_success, response.text
    assert entered == ["key ann"]


@pytest.mark.ci
def test_with_open_access_callers_are_client_addresses(place: ServerFiles, model: FakeVLLM) -> None:
    from gumshoe.serving.access import ANONYMOUS, Principal
    from gumshoe.serving.callers import name_caller

    assert name_caller(ANONYMOUS, "10.0.0.7") != name_caller(ANONYMOUS, "10.0.0.8")
    assert name_caller(Principal("ann", ()), "10.0.0.7") == name_caller(Principal("ann", ()), "10.0.0.8")
    model.inject(after(0.02), times=None)
    with serve_in_thread(make_settings(place, model=model_settings(place, model.address), limits=LIMITS)) as server:
        other = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=server.url, transport=other, timeout=None) as bob, flood(server.ask) as statuses:
            wait_until(lambda: statuses[429])
            body = {"question": "What is in 7?", "inbox_address": ANN, "query_date": DAY}
            answers = [bob.post("/invoke", json=body).status_code for _ in range(10)]
    assert answers == [200] * 10


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("", None, True),
        ("\ud800", "x" * 100, True),
    ],
)
def test_addresses_of_one_host_are_one_group(one: str, other: str | None, is_same: bool) -> None:
    from gumshoe.serving.callers import group_address

    assert (group_address(one) == group_address(other)) is is_same


@pytest.mark.parametrize(("proxies", "is_trusted"), [((), False), (("10.0.0.0/8",), False), (("127.0.0.0/8",), True)])
def test_only_a_trusted_proxy_names_the_client(
    proxies: tuple[str, ...], is_trusted: bool, place: ServerFiles, model: FakeVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.serving.access import Principal
    from gumshoe.serving.callers import name_caller

    seen: list[str | None] = []

    def record_address(principal: Principal, address: str | None) -> str:
        seen.append(address)
        return name_caller(principal, address)

    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn would trust everybody
    monkeypatch.setattr("gumshoe.serving.middleware.name_caller", record_address)
    settings = make_settings(
        place, model=model_settings(place, model.address), connections={"trusted_proxies": proxies}
    )
    with serve_in_thread(settings) as server:
        server.client.get("/principal", headers={"X-Forwarded-For": "127.0.0.9"})
    assert seen == ["127.0.0.9" if is_trusted else "127.0.0.1"]
