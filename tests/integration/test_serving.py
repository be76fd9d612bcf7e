"""The agent server with the tiny policy and an adapter, and a vLLM server that it starts itself."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from gumshoe.artifacts.store import Store
from gumshoe.inference.policy_names import TINY
from gumshoe.inference.vllm_server import is_vllm_installed
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios
from tests.conftest import CommandResult, skip_missing
from tests.integration.inputs import make_mail, write_adapter
from tests.serving.agent_server import AgentProcess, ServerFiles, start_server
from tests.shared_server import SharedServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.ci, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mail(tmp_path_factory.mktemp("mail"), 9, 6, 900, "easy")


@pytest.fixture(scope="module")
def asked(mail: Path) -> list[Scenario]:
    return list(load_scenarios(str(mail / "scenarios.jsonl")))[:24]


@pytest.fixture(scope="module")
def store(mail: Path) -> Store:
    """Publish an adapter that changes nothing, with the files of a training run, to a store."""
    adapter = write_adapter(mail / "adapter", seed=1)
    (adapter / "metadata.json").write_text(json.dumps({"settings": {"model": {"name": "tiny"}}}))
    store = Store(str(mail / "store"))
    store.publish(adapter, "adapters", "r1")
    return store


@pytest.fixture(scope="module")
def server(mail: Path, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """Start an agent server with its own vLLM server, which a test kills."""
    if not is_vllm_installed():
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    log = tmp_path_factory.mktemp("serve") / "log"
    place = ServerFiles(mail / "index", TINY)
    words = ["--adapter", "latest", "--store", store.uri, "--open", "--set", "model.max_tokens=160"]
    keeping = ["--set", "keeping.trajectories=1", "--set", "model.max_context=8192"]
    with start_server(place, None, log, *words, *keeping) as running:
        yield running


def body(scenario: Scenario) -> dict[str, Any]:
    fields = {"question": scenario.question, "inbox_address": scenario.inbox_address}
    return fields | {"query_date": str(scenario.query_date), "steps": True}


def test_answers_equal_those_of_rollouts(
    server: AgentProcess,
    vllm: SharedServer,
    mail: Path,
    asked: list[Scenario],
    run: Callable[..., CommandResult],
    tmp_path: Path,
) -> None:
    """The same questions are answered by the server, and in greedy rollouts with the same weights."""
    assert server.client.get("/readyz").json() == {"status": "ready", "policies": ["tiny#r1"]}
    assert not any("ready" in each["message"] for each in server.read_log()), (
        "the model was ready before the server started"
    )
    with ThreadPoolExecutor(8) as pool:
        answers = [each.json() for each in pool.map(lambda one: server.client.post("/invoke", json=body(one)), asked)]
    assert {each["policy"] for each in answers} == {"tiny#r1"}
    assert all(each["source_ids"] and each["answer"] for each in answers if each["success"])
    assert sum(each["success"] for each in answers) > len(answers) / 3

    out = tmp_path / "t.jsonl"
    with vllm.adapter(mail / "adapter") as name:
        rolled = run(
            "rollout", "--index", mail / "index", "--scenarios", mail / "scenarios.jsonl", "--limit", len(asked),
            "--policy", f"vllm:{vllm.url}#{name}", "--tokenizer", TINY, "--out", out, "--temperature", 0,
            "--max-tokens", 160,
        )  # fmt: skip
    assert rolled.status == 0, rolled.err
    measured = {each.scenario: each for each in read_trajectories(out)}
    same = [
        each["answer"] == (measured[one.id].record.answer or "") and each["turns"] == measured[one.id].turns
        for one, each in zip(asked, answers, strict=True)
    ]
    assert sum(same) >= 0.9 * len(same), "other batch sizes may change the choice between equally likely tokens"


def test_streams_mcp_and_the_command_line_are_answered(
    server: AgentProcess, asked: list[Scenario], run: Callable[..., CommandResult]
) -> None:
    question = asked[0]
    with server.client.stream("POST", "/invoke/stream", json=body(question)) as response:
        text = response.read().decode()
    assert text.count("event: step") >= 3
    streamed = json.loads(text.rpartition("event: answer\ndata: ")[2])

    from mcp import Client

    async def ask() -> Any:
        async with Client(f"{server.url}/mcp") as client:
            given = {name: value for name, value in body(question).items() if name != "steps"}
            return (await client.call_tool("ask", given)).content[0]

    assert json.loads(asyncio.run(ask()).text)["answer"] == streamed["answer"]
    words = [question.question, "--url", server.url, "--inbox", question.inbox_address, "--date", question.query_date]
    ran = run("ask", *words, "--json")
    assert ran.status in (0, 3), ran.err
    assert json.loads(ran.out)["answer"] == streamed["answer"]
    assert "search_inbox(" in run("ask", *words).err


def test_a_lost_model_is_reported_and_the_end_keeps_feedback(
    server: AgentProcess, asked: list[Scenario], store: Store, tmp_path: Path
) -> None:
    children = psutil.Process(server.process.pid).children(recursive=True)
    vllm = [each for each in children if "vllm" in (line := " ".join(each.cmdline())) and "reaper" not in line]
    for each in vllm:
        each.kill()
    wait_until(lambda: server.client.get("/readyz").status_code == 503)
    assert server.client.post("/invoke", json=body(asked[0])).status_code == 502
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait() == 0
    assert not [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    feedback = store.fetch("feedback/latest", tmp_path / "feedback").directory
    trajectories = list(read_trajectories(feedback / "trajectories.jsonl"))
    assert len(trajectories) >= 24
    assert all(sum(each.mask) == each.sampled_tokens > 0 for each in trajectories)
