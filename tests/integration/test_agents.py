"""An agent of somebody else, trained and served by the commands: the example in LangGraph."""

import json
from pathlib import Path
from typing import Any

import pytest

from gumshoe.inference.policy_names import ENGINE_VARIABLE, TINY
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.training.proof_check import verify_proof
from tests.integration.trainings import command, is_changed, steps_of, train
from tests.serving.agent_server import ServerFiles, start_server

pytestmark = [pytest.mark.ci, pytest.mark.group("training")]

AGENT = "examples.langgraph_email.agent:graph"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(training_mail: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the tiny policy for a step on episodes of the agent, and return the run's directory."""
    place = tmp_path_factory.mktemp("agent")
    few = {"optimizer__max_steps": 1, "evaluation__baseline": "false"}
    words = command(training_mail, place / "run", "--engine", "transformers", "--agent", AGENT, **few)
    train(words, place / "log", PYTHONPATH=str(ROOT))
    return place / "run"


def test_an_agent_is_trained_on_the_tokens_that_were_sampled(trained: Path) -> None:
    (step,) = steps_of(trained)
    assert step.importance_ratio == pytest.approx(1, abs=1e-3)
    assert (step.split_episodes, step.groups_dropped) == (0, 0)
    assert 0 < step.trainable_tokens < step.tokens / 3
    assert is_changed(trained / "final")
    settings = json.loads((trained / "final" / "metadata.json").read_bytes())["settings"]
    assert settings["agent"]["name"] == AGENT
    checked = verify_proof(trained)
    assert checked.differences == ()
    assert checked.proof.policy_versions is not None
    assert checked.proof.policy_versions.share == 1


def test_a_server_answers_with_the_agent(trained: Path, training_mail: Path, tmp_path: Path) -> None:
    asked = next(iter(load_scenarios(str(training_mail / "scenarios.jsonl"))))
    place = ServerFiles(training_mail / "index", TINY)
    policy = f"transformers:{TINY}#{trained / 'final'}"
    environment: dict[str, Any] = {"PYTHONPATH": str(ROOT), ENGINE_VARIABLE: "transformers"}
    with start_server(place, policy, tmp_path / "log", "--open", "--agent", AGENT, **environment) as server:
        body = {
            "question": asked.question,
            "inbox_address": asked.inbox_address,
            "query_date": str(asked.query_date),
            "steps": True,
        }
        answer = server.client.post("/invoke", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["policy"].endswith("final")
    assert found["turns"] == len({each["turn"] for each in found["steps"]})
    assert all(each["result"] is not None for each in found["steps"] if each["tool"])
