"""Share servers, a fake vLLM model and an identity provider between tests."""

from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http_server import run_server
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import (
    ANN,
    BOB,
    AgentProcess,
    ServerFiles,
    add_key,
    make_files,
    question_body,
    start_server,
)
from tests.serving.identity_provider import AUDIENCE, ISSUER, JwksHandler, Provider


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


@pytest.fixture(scope="session")
def provider() -> Iterator[tuple[Provider, str]]:
    made = Provider()
    with run_server(ThreadingHTTPServer(("127.0.0.1", 0), JwksHandler)) as address:
        yield made, address


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a key file, and its keys by name."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    made = {"ann": [ANN], "both": [ANN, BOB], "company": ["*@example.com"]}
    return file, {name: add_key(file, name, inboxes) for name, inboxes in made.items()}


@pytest.fixture(scope="session")
def protected_server(
    place: ServerFiles,
    shared_model: FakeVLLM,
    keys: tuple[Path, dict[str, str]],
    provider: tuple[Provider, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AgentProcess]:
    """Start a server that accepts keys and tokens."""
    log = tmp_path_factory.mktemp("protected_server") / "log"
    access = {"jwks_url": f"{provider[1]}/keys", "issuer": ISSUER, "audience": AUDIENCE}
    sets = [each for name, value in access.items() for each in ("--set", f"access.{name}={value}")]
    policy = f"vllm:{shared_model.address}#adapter"
    with start_server(place, policy, log, "--keys", str(keys[0]), *sets) as running:
        yield running


@pytest.fixture(scope="session")
def server_with_key(
    place: ServerFiles, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """Start a server with one key, for Ann's mail. Its client sends the key."""
    directory = tmp_path_factory.mktemp("server_with_key")
    key = add_key(directory / "keys", "ann", [ANN])
    policy = f"vllm:{shared_model.address}#adapter"
    with start_server(place, policy, directory / "log", "--keys", str(directory / "keys"), key=key) as running:
        yield running


@pytest.fixture
def ask(protected_server: AgentProcess, model: FakeVLLM) -> Callable[..., httpx.Response]:  # noqa: ARG001 - healthy first
    def send(credentials: str | None, path: str = "/invoke", **changes: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {credentials}"} if credentials else {}
        return protected_server.client.post(path, json=question_body(**changes), headers=headers)

    return send
