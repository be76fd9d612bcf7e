"""The parameter `agent`: one agent in training, evaluations and deployment, checked before anything starts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.errors import UnavailableError
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe_pipelines.graphs import compile_graph
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.pipelines.test_graphs import check_arguments
from tests.scenarios.questions import question, write_questions

NAME = "mine.agent:graph"
GIVEN: dict[str, Any] = {"config": "tiny", "settings": {}, "base_model": "tiny"}


def complete(arguments: dict[str, Any]) -> dict[str, Any]:
    from gumshoe_pipelines.run_arguments import complete_arguments

    return complete_arguments(arguments, is_local=False)


def check_in_step(agent: str, config: str = "", **inputs: Any) -> str:
    """Run the step that checks the agent, in this process."""
    from gumshoe_pipelines.agent_step import check_agent

    return str(check_agent.python_func(agent, config, **inputs))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", None),
        (NAME, {"name": NAME}),
        ({NAME: {"deadline": 60}}, {"name": NAME, "deadline": 60}),
        ({"command": ["node", "agent.js"]}, {"command": ["node", "agent.js"]}),
    ],
)
def test_an_agent_may_have_all_forms_and_becomes_text(value: Any, expected: dict[str, Any] | None) -> None:
    given = {"sources": ["a"], "scenarios": "b", "store": "c", "worker_image": "d", "trainer_image": "e"}
    text = compile_graph("evaluate-agent").check({**given, "agent": value})["agent"]
    assert isinstance(text, str)
    assert AgentSettings.parse_option(text or None) == (expected and AgentSettings.model_validate(expected))


def test_a_malformed_agent_is_refused() -> None:
    values: list[Any] = ["no-colon", {"command": []}, {NAME: {"dead_line": 1}}, "missing.yaml"]
    for value in values:
        with raises("rollouts.invalid-agent", "agent: "):
            compile_graph("evaluate-agent").check({"agent": value})


def test_the_agent_of_the_training_settings_is_that_of_the_run() -> None:
    settings: dict[str, Any] = {"agent": {NAME: {"deadline": 60}}}
    found = complete({**GIVEN, "settings": settings, "agent": ""})
    assert AgentSettings.parse(found["agent"]) == AgentSettings(name=NAME, deadline=60)
    assert complete({**GIVEN, "agent": NAME})["agent"] == NAME
    assert "agent" not in complete(GIVEN)["limits"]
    check_arguments({**GIVEN, "settings": settings, "agent": found["agent"]}, is_local=False)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"settings": {"agent": "other.agent:graph"}}, "pipelines.other-agent"),
        ({"settings": {"agent": {NAME: {"deadline": 60}}}}, "pipelines.other-agent"),
        ({"settings": {"mode": "simple"}}, "pipelines.agent-in-simple-mode"),
        ({"sweep": [{"name": "a", "settings": {"agent": "other.agent:graph"}}]}, "pipelines.other-agent"),
        (
            {"deployment": {"values": {"agent": {"settings": {"model": {"agent": "other.agent:graph"}}}}}},
            "pipelines.other-agent",
        ),
    ],
)
def test_an_agent_in_two_places_is_refused_if_they_differ(arguments: dict[str, Any], code: str) -> None:
    with raises(code, NAME):
        check_arguments({**GIVEN, "agent": NAME, **arguments}, is_local=False)
    same = json.loads(json.dumps(arguments).replace("other.agent:graph", NAME))
    if same != arguments:
        check_arguments({**GIVEN, "agent": NAME, **same}, is_local=False)


def test_an_agent_of_one_sweep_entry_alone_is_refused() -> None:
    sweep = [{"name": "a", "settings": {"agent": NAME}}, {"name": "b", "settings": {}}]
    with raises("pipelines.other-agent", NAME):
        check_arguments({**GIVEN, "agent": "", "sweep": sweep}, is_local=False)


def test_limits_have_no_agent() -> None:
    with raises("pipelines.agent-in-limits", NAME):
        check_arguments({"limits": {"agent": NAME}}, is_local=False)


def test_an_agent_is_loaded_only_where_its_code_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_arguments({**GIVEN, "agent": "agent_of_a_user:graph"}, is_local=False)
    with raises("gateway.agent-import-failed", "agent_of_a_user"):
        check_arguments({**GIVEN, "agent": "agent_of_a_user:graph"}, is_local=True)


@pytest.mark.ci
def test_the_step_digests_the_agent_s_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agent_in_a_step.py").write_text("def run(task):\n    return None\n")
    first = check_in_step("agent_in_a_step:run")
    assert first == check_in_step("agent_in_a_step:run")
    Path("agent_in_a_step.py").write_text("def run(task):\n    return 'Friday'\n")
    assert check_in_step("agent_in_a_step:run") not in ("", first)
    assert check_in_step('{"agent_in_a_step:run": {"deadline": 5}}') != check_in_step("agent_in_a_step:run")
    assert check_in_step("") == ""
    with raises("gateway.agent-not-found", "agent_in_a_step"):
        check_in_step("agent_in_a_step:walk")


def test_the_step_refuses_another_agent_in_settings_that_only_it_can_read(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"agent: {NAME}\n")
    for agent in ("", "other.agent:graph"):
        with raises("pipelines.other-agent", NAME):
            check_in_step(agent, str(config))
    config.write_text("mode: masked\n")
    with raises("pipelines.other-agent", NAME):
        check_in_step("", str(config), sweep=[{"name": "a", "settings": {"agent": NAME}}])


def test_a_run_without_a_base_model_has_that_of_the_pipeline(tmp_path: Path) -> None:
    from gumshoe_pipelines.commands import _prepare_run
    from gumshoe_pipelines.local_inputs import digest_named_inputs

    mail, asked = tmp_path / "mail.jsonl", tmp_path / "asked.jsonl"
    mail.touch()
    asked.write_text("{}\n")
    given = [f"sources=[jsonl:{mail}]", f"scenarios={asked}"]
    own = {"store": "store", "worker_image": "none", "trainer_image": "none"}
    _, arguments = _prepare_run("train-agent", given, None, own, is_local=True)
    assert arguments["base_model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert digest_named_inputs(arguments)


def test_the_inputs_of_a_run_change_with_what_its_arguments_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe_pipelines.local_inputs import digest_named_inputs

    monkeypatch.chdir(tmp_path)
    agent, config = write_agent(tmp_path, "None"), tmp_path / "config.yaml"
    config.write_text("mode: masked\n")
    given: dict[str, Any] = {"agent": agent, "base_model": "tiny", "config": str(config), "demonstrations": "gold"}
    found = {digest_named_inputs(given), digest_named_inputs(given)}
    write_agent(tmp_path, "'Friday'")
    found.add(digest_named_inputs(given))
    config.write_text("mode: rollout\n")
    found.add(digest_named_inputs(given))
    found.add(digest_named_inputs({**given, "sweep": [{"name": "a", "settings": {"optimizer.beta": 0.1}}]}))
    mail, asked = tmp_path / "mail.jsonl", tmp_path / "asked.jsonl"
    mail.write_text("one")
    asked.write_text("one")
    given |= {"sources": [f"jsonl:{mail}", "imap://ann@127.0.0.1:9"], "scenarios": str(asked)}
    found.add(digest_named_inputs(given))
    for path in (mail, asked):
        path.write_text("another")
        found |= {digest_named_inputs(given), digest_named_inputs(given)}
    assert len(found) == 7
    assert digest_named_inputs({"base_model": "tiny"}), "a pipeline that does not train"


def train_in_step(place: Path, agent: str, nodes: int = 1) -> None:
    """Run the training step of a run whose inputs and store are in a directory, in this process."""
    from gumshoe_pipelines.grpo_step import train_grpo

    artifacts = {name: SimpleNamespace(path=str(place / name), metadata={}) for name in ("index", "scenarios")}
    train_grpo.python_func(
        **artifacts,
        **dict.fromkeys(("adapter", "metrics", "plots")),
        base_model="tiny",
        config="tiny",
        settings={"rollouts.engine": "transformers"},
        checkpoints=(place / "store" / "runs" / "r1").as_uri(),
        nodes=nodes,
        job={},
        gpus=0,
        gpu_resource="nvidia.com/gpu",
        cpus_per_gpu=1,
        memory_per_gpu="1Gi",
        pods={},
        node_selector={},
        tolerations=[],
        image="trainer",
        agent=agent,
    )


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with the inputs of a training step, whose trainers save a checkpoint and are interrupted."""
    from gumshoe.training.launch import supervisor

    def start_trainers(_: str, spec: Path, *__: Any) -> None:
        done = len(list(spec.parent.glob("checkpoint-*")))
        checkpoint = spec.parent / f"checkpoint-{done + 1}"
        checkpoint.mkdir()
        (checkpoint / "metadata.json").write_text("{}")
        raise UnavailableError("test.interrupted", "stopped after a step")

    monkeypatch.setattr(supervisor, "start_trainers", start_trainers)
    monkeypatch.chdir(tmp_path)
    make_index(tmp_path, [record(number) for number in range(1, 14)])
    (tmp_path / "scenarios").mkdir()
    splits = ["train"] * 12 + ["validation"]
    asked = [question(number, split=split) for number, split in enumerate(splits, 1)]
    write_questions(tmp_path / "scenarios" / "scenarios.jsonl", asked)
    write_agent(tmp_path, "None")
    return tmp_path


def write_agent(place: Path, answer: str) -> str:
    """Write an agent, and return its name, which no other directory has: Python finds a module only once."""
    (place / f"{place.name}.py").write_text(f"def run(task):\n    return {answer}\n")
    return f"{place.name}:run"


def test_the_training_step_is_not_continued_with_another_agent(interrupted: Path) -> None:
    agent = write_agent(interrupted, "None")
    for _ in range(2):
        with raises("test.interrupted"):
            train_in_step(interrupted, agent)
    kept = Store((interrupted / "store" / "runs" / "r1").as_uri()).list("checkpoints")
    assert [each.version for each in kept] == ["001-000001", "002-000002"]
    with raises("training.other-settings", "agent", "runs/r1"):
        train_in_step(interrupted, json.dumps({agent: {"deadline": 5}}))
    write_agent(interrupted, "'Friday'")
    with raises("training.other-agent-code", agent, "runs/r1"):
        train_in_step(interrupted, agent)


def test_a_result_of_several_nodes_is_not_taken_from_other_code_of_the_agent(interrupted: Path) -> None:
    from gumshoe.training.train_request import TrainRequest

    store = (interrupted / "store" / "runs" / "r1").as_uri()
    settings = {"agent": write_agent(interrupted, "None")}
    request = TrainRequest.of_step(
        interrupted / "index", interrupted / "scenarios", "tiny", "tiny", settings, store, None
    )
    first = request.publish()
    assert first.result == request.publish().result
    write_agent(interrupted, "'Friday'")
    assert request.publish().result != first.result
