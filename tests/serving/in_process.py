"""Run the agent's service in this process, where tests can advance the clock."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.http_server import open_socket
from tests.serving.agent_server import ANN, DAY, ServerClient, ServerFiles
from tests.waiting import async_wait_until, wait_until

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from gumshoe.rollouts.episode import EpisodeRunner
    from gumshoe.scenarios.scenario import Scenario
    from gumshoe.serving.service import AnswerService
    from gumshoe.serving.settings import ServeSettings


def make_settings(place: ServerFiles, **changes: Any) -> "ServeSettings":
    """Return the settings of a server with open access."""
    from gumshoe.serving.settings import read_settings

    given = {"access": {"open": True}, "limits": {"deadline": 3600}, **changes}
    return read_settings(None, {"index": str(place.index), **given})


def model_settings(place: ServerFiles, address: str, **changes: Any) -> dict[str, Any]:
    """Return model settings for the adapter of a vLLM server."""
    settings = {"policy": f"vllm:{address}#adapter", "tokenizer": str(place.tokenizer), "max_context": 50_000}
    return {**settings, **changes}


def make_scenario(number: int = 7) -> "Scenario":
    """Return a question of Ann's about one message."""
    from gumshoe.scenarios.scenario import Scenario

    return Scenario.from_question(f"What is in {number}?", ANN, date.fromisoformat(DAY))


@asynccontextmanager
async def open_test_service(
    place: ServerFiles, address: str, limits: dict[str, Any], **model: Any
) -> "AsyncIterator[AnswerService]":
    """Yield a service with the adapter of a vLLM server, once it is available."""
    from gumshoe.environments.registry import open_env
    from gumshoe.serving.service import open_service
    from gumshoe.serving.telemetry import Metrics, create_tracer

    settings = make_settings(place, model=model_settings(place, address, **model), limits=limits)
    async with open_service(settings, open_env(place.index), Metrics(), create_tracer(), lambda *_: None) as service:
        await async_wait_until(lambda: not service.problem)
        yield service


@asynccontextmanager
async def open_stub_service(
    settings: "ServeSettings", run: "EpisodeRunner", tracer: "Tracer | None" = None
) -> "AsyncIterator[AnswerService]":
    """Yield a service with one policy, `stub`, whose episodes a function runs."""
    from gumshoe.environments.registry import open_env
    from gumshoe.inference.policy_names import PolicyName
    from gumshoe.rollouts.tool_threads import ToolThreads
    from gumshoe.serving.served_policies import ServedPolicy
    from gumshoe.serving.service import AnswerService
    from gumshoe.serving.telemetry import Metrics, create_tracer

    policy = ServedPolicy(PolicyName.parse("vllm:http://localhost#stub"), 1, run, problem="")
    metrics, env_factory = Metrics(), open_env(Path(settings.index))
    metrics.policies.open([("stub", 1, lambda: 1.0)], 0)
    async with ToolThreads() as threads:
        yield AnswerService(
            settings, env_factory, metrics, tracer or create_tracer(), threads, lambda *_: None, [policy]
        )


@contextmanager
def serve_in_thread(settings: "ServeSettings", *, key: str | None = None, ready: bool = True) -> Iterator[ServerClient]:
    """Run an agent server in a thread, which starts faster than a process.

    With `ready`, wait until its model is available.
    """
    from gumshoe.environments.registry import open_env
    from gumshoe.serving import served_policies
    from gumshoe.serving.http_protocol import GuardedServer
    from gumshoe.serving.server import open_server

    with open_socket() as listening, pytest.MonkeyPatch.context() as patched:
        patched.setattr(served_policies, "_CHECK_INTERVAL", 0.1)
        servers: list[GuardedServer] = []

        async def serve() -> None:
            async with open_server(settings, open_env(Path(settings.index), settings.environment)) as (config, _):
                servers.append(GuardedServer(config))
                await servers[0].serve(sockets=[listening])

        thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        thread.start()
        try:
            wait_until(lambda: servers or not thread.is_alive())
            assert servers, "it did not start"
            answering = ServerClient(f"http://127.0.0.1:{listening.getsockname()[1]}", key)
            with answering.client:
                if ready:
                    wait_until(lambda: answering.client.get("/readyz").status_code == 200)
                yield answering
        finally:
            for each in servers:
                each.should_exit = True
            thread.join()
