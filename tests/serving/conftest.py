"""A server that tests share, with a model that speaks vLLM's protocol over a real socket."""

from collections.abc import Iterator

import pytest

from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import Place, Running, make_place, started


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="session")
def shared_model() -> Iterator[FakeVLLM]:
    with FakeVLLM(models=("base", "adapter", "next")) as model:
        yield model


@pytest.fixture
def model(shared_model: FakeVLLM) -> Iterator[FakeVLLM]:
    """The shared model, healthy when a test begins."""
    shared_model.heal()
    shared_model.requests.clear()
    yield shared_model
    shared_model.heal()
    assert shared_model.errors == []


@pytest.fixture(scope="session")
def shared_server(place: Place, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Open to all, with few places."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    bounds = ["--set", "limits.concurrency=8", "--set", "limits.queue=8"]
    with started(place, f"vllm:{shared_model.address}#adapter", log, "--open", *bounds) as running:
        yield running


@pytest.fixture
def server(shared_server: Running, model: FakeVLLM) -> Running:  # noqa: ARG001 - healthy first
    return shared_server
