"""Share a server and a fake vLLM model between tests."""

from collections.abc import Iterator

import pytest

from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import AgentProcess, ServerFiles, make_files, start_server


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> ServerFiles:
    return make_files(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="session")
def shared_model() -> Iterator[FakeVLLM]:
    with FakeVLLM(models=("base", "adapter", "next")) as model:
        yield model


@pytest.fixture
def model(shared_model: FakeVLLM) -> Iterator[FakeVLLM]:
    """Return the shared model, reset before and after each test."""
    shared_model.heal()
    shared_model.requests.clear()
    yield shared_model
    shared_model.heal()
    assert shared_model.errors == []


@pytest.fixture(scope="session")
def shared_server(
    place: ServerFiles, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """Start a server with open access and few slots."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    bounds = ["--set", "limits.concurrency=8", "--set", "limits.queue=8"]
    with start_server(place, f"vllm:{shared_model.address}#adapter", log, "--open", *bounds) as running:
        yield running


@pytest.fixture
def server(shared_server: AgentProcess, model: FakeVLLM) -> AgentProcess:  # noqa: ARG001 - healthy first
    return shared_server
