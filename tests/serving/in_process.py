"""The agent's service in this process, whose clock a test can move forward."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.serving.agent_server import ANN, DAY, Answering, Place
from tests.waiting import async_wait_until, wait_until

if TYPE_CHECKING:
    from gumshoe.scenarios.scenario import Scenario
    from gumshoe.serving.service import AnswerService
    from gumshoe.serving.settings import ServeSettings


def settings_for(place: Place, **changes: Any) -> "ServeSettings":
    """Return the settings of a server that is open to all."""
    from gumshoe.serving.settings import read_settings

    given = {"access": {"open": True}, "limits": {"deadline": 3600}, **changes}
    return read_settings(None, {"index": str(place.index), **given})


def model_at(place: Place, address: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of a model: the adapter of a vLLM server."""
    told = {"policy": f"vllm:{address}#adapter", "tokenizer": str(place.tokenizer), "max_context": 50_000}
    return {**told, **changes}


def question(number: int = 7) -> "Scenario":
    """Return a question of Ann's about one message."""
    from gumshoe.scenarios.scenario import Scenario

    return Scenario.asked(f"What is in {number}?", ANN, date.fromisoformat(DAY))


@asynccontextmanager
async def service_with(
    place: Place, address: str, limits: dict[str, Any], **model: Any
) -> "AsyncIterator[AnswerService]":
    """Yield a service whose model is there: the adapter of a vLLM server."""
    from gumshoe.environments.registry import open_env
    from gumshoe.serving.service import serving
    from gumshoe.serving.telemetry import Metrics, tracer

    settings = settings_for(place, model=model_at(place, address, **model), limits=limits)
    async with serving(settings, open_env(place.index), Metrics(), tracer(), lambda *_: None) as service:
        await async_wait_until(lambda: not service.trouble)
        yield service


@contextmanager
def served(settings: "ServeSettings", *, key: str | None = None, ready: bool = True) -> Iterator[Answering]:
    """Run an agent server in a thread of this process, which takes no second to start.

    `ready`: wait until its model is there.
    """
    import uvicorn

    from gumshoe.environments.registry import open_env
    from gumshoe.serving import service
    from gumshoe.serving.server import application

    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.MonkeyPatch.context() as patched:
        patched.setattr(service, "_LOOK", 0.1)
        servers: list[uvicorn.Server] = []

        async def serve() -> None:
            async with application(settings, open_env(Path(settings.index))) as app:
                config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
                servers.append(uvicorn.Server(config))
                await servers[0].serve(sockets=[listening])

        thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        thread.start()
        try:
            wait_until(lambda: servers or not thread.is_alive())
            assert servers, "it did not start"
            answering = Answering(f"http://127.0.0.1:{listening.getsockname()[1]}", key)
            with answering.client:
                if ready:
                    wait_until(lambda: answering.client.get("/readyz").status_code == 200)
                yield answering
        finally:
            for each in servers:
                each.should_exit = True
            thread.join()
