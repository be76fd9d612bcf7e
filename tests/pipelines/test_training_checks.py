"""Test that a training which could not start is refused before the expensive steps of a pipeline."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import question, write_questions

S3 = "s3://bucket/project"
TRANSFORMERS = {"rollouts.engine": "transformers"}
SIXES = {"rollouts.num_generations": 6}
SHARDED = {"optimizer.distribution": "fsdp2", "optimizer.processes": 8}
FAULTY: dict[str, tuple[dict[str, Any], str, str]] = {
    "groups are split": ({"settings": SIXES}, "settings.batch-splits-groups", "config: "),
    "groups of an entry are split": (
        {"sweep": [{"name": "a", "settings": {}}, {"name": "b", "settings": SIXES}]},
        "settings.batch-splits-groups",
        "sweep: ",
    ),
    "more trainers than GPUs": (
        {"settings": {"optimizer.processes": 4}, "gpus": 2},
        "planning.too-few-gpus",
        "found 2",
    ),
    "servers share too much of a GPU": (
        {"settings": {"rollouts.gpu_memory": 1.0}},
        "planning.gpu-overcommitted",
        "rollouts.gpu_memory 1",
    ),
    "adapters of 32 bits on a GPU": ({"config": "smollm2-cpu"}, "settings.float32-on-gpu", "model.dtype"),
    "sharded weights on nodes without GPUs": (
        {"settings": {"optimizer.distribution": "fsdp2"}, "nodes": 2, "gpus": 0},
        "settings.sharded-without-gpu",
        "fsdp2",
    ),
    "servers of a mode without episodes": (
        {"settings": {"mode": "simple"}, "nodes": 2},
        "pipelines.rollout-servers-without-vllm",
        "mode is simple",
    ),
    "servers of a preset that samples in the trainer": (
        {"config": "qlora-24gb", "nodes": 2},
        "pipelines.rollout-servers-without-vllm",
        "rollouts.engine is transformers",
    ),
    "a warm start of all weights": (
        {"settings": {"warm_start.weights": "full"}, "demonstrations": "gold"},
        "training.full-in-pipeline",
        "warm_start.weights",
    ),
    "a sharded warm start of one trainer, before a TrainJob": (
        {"settings": {"optimizer.distribution": "fsdp2"}, "nodes": 2, "gpus": 8, "demonstrations": "gold"},
        "settings.sharded-on-one-process",
        "one node",
    ),
    "a warm start with the trainers of two nodes": (
        {"settings": {"optimizer.processes": 16}, "nodes": 2, "gpus": 8, "demonstrations": "gold"},
        "planning.too-few-gpus",
        "at most 8",
    ),
    "a sharded warm start without GPUs": (
        {"settings": SHARDED, "nodes": 2, "gpus": 0, "demonstrations": "gold"},
        "settings.sharded-without-gpu",
        "one node",
    ),
    "a warm start with more trainers than episodes per step": (
        {"settings": {"optimizer.processes": 8, "warm_start.batch_size": 4}, "gpus": 8, "demonstrations": "gold"},
        "training.batch-too-small",
        "warm_start.batch_size",
    ),
    "an agent that does not fit": (
        {"settings": {"optimizer.router_loss": 0.1}, "agent": "my_package.agent:graph"},
        "settings.router-loss-with-agent",
        "my_package.agent:graph",
    ),
}


def check(arguments: dict[str, Any], *, is_local: bool = False) -> None:
    """Check the arguments of a pipeline before anything starts."""
    from gumshoe_pipelines.run_arguments import check_arguments

    check_arguments({"config": "", "base_model": "tiny", "store": S3, **arguments}, is_local=is_local)


@pytest.mark.parametrize("name", FAULTY)
def test_a_training_that_could_not_start_is_refused_when_it_is_submitted(name: str) -> None:
    arguments, code, value = FAULTY[name]
    with raises(code, value):
        check(arguments)


def test_a_training_that_fits_its_nodes_can_be_submitted() -> None:
    check({})
    check({"settings": {"optimizer.processes": 4}, "gpus": 8})
    check({"config": "smollm2-cpu", "gpus": 0})
    check({"settings": {"optimizer.distribution": "fsdp2"}, "nodes": 2, "gpus": 8})
    check({"settings": SHARDED, "nodes": 2, "gpus": 8, "demonstrations": "gold"})
    check({"settings": {"optimizer.processes": 16}, "nodes": 2, "gpus": 8})
    check({"settings": {"mode": "simple"}, "nodes": 2, "job": {"rollout_servers": 0}})
    check({"config": "smollm2-cpu", "nodes": 2, "gpus": 2, "settings": {"model.dtype": "bfloat16"}})


def test_packages_may_be_missing_where_a_run_is_submitted_but_not_where_it_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gumshoe.training import settings_checks
    from gumshoe.training.launch import machine_checks

    monkeypatch.setattr(settings_checks, "find_spec", lambda _: None)
    monkeypatch.setattr(machine_checks, "is_vllm_installed", lambda: False)
    reporting = {"output.report_to": ["wandb"]}
    check({"settings": reporting})
    with raises("settings.package-missing", "wandb"):
        check({"settings": reporting}, is_local=True)
    with raises("inference.vllm-not-installed", "rollouts.engine"):
        check({"config": "smollm2-cpu", "settings": {"output.report_to": []}}, is_local=True)


@pytest.mark.ci
def test_a_run_on_this_machine_must_fit_its_gpus_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.training.launch import machine_checks
    from gumshoe.training.planning.memory_plan import Machine

    found: dict[str, Any] = {"gpus": ("0",), "machine": None}
    monkeypatch.setattr(machine_checks, "visible_gpus", lambda: found["gpus"])
    monkeypatch.setattr(machine_checks, "inspect_machine", lambda *_: found["machine"])
    with raises("settings.float32-on-gpu", "model.dtype"):
        check({"config": "smollm2-cpu", "gpus": 0}, is_local=True)
    two = {**TRANSFORMERS, "optimizer.processes": 2}
    with raises("planning.too-few-gpus", "found 1"):
        check({"config": "tiny", "settings": two, "gpus": 8}, is_local=True)
    found["gpus"] = ()
    check({"config": "tiny", "settings": two}, is_local=True)
    found["machine"] = Machine(0, 200_000_000)
    with raises("planning.does-not-fit", "config: "):
        check({"config": "tiny", "settings": TRANSFORMERS}, is_local=True)


def test_variables_of_this_machine_are_settings_of_its_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUMSHOE_TRAIN__ROLLOUTS__NUM_GENERATIONS", "7")
    check({"config": "tiny"})
    with raises("settings.batch-splits-groups", "rollouts.num_generations 7"):
        check({"config": "tiny", "settings": TRANSFORMERS}, is_local=True)


@pytest.mark.ci
def test_settings_without_a_config_also_set_the_limits_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.artifacts import manifest
    from gumshoe_pipelines.commands import _prepare_run

    monkeypatch.setattr(manifest, "code_hash", lambda: "code")
    given = {"sources": "[maildir:s3://b/mail]", "scenarios": "s3://b/questions.jsonl", "store": S3}
    given |= {"worker_image": "worker", "trainer_image": "trainer", "settings": "{rollouts.max_turns: 6}"}
    own = [f"{name}={value}" for name, value in given.items()]
    _, arguments = _prepare_run("train-agent", own, None, {"run": "r1"}, is_local=False)
    assert arguments["limits"]["max_turns"] == 6


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the inputs of the step: an index, and twelve training scenarios."""
    place = tmp_path_factory.mktemp("inputs")
    make_index(place, [record(1)])
    splits = ["train"] * 12 + ["validation", "test"]
    made = [question(number, split=split) for number, split in enumerate(splits)]
    write_questions(place / "scenarios.jsonl", made)
    return {"index": SimpleNamespace(path=str(place / "index")), "scenarios": SimpleNamespace(path=str(place))}


@pytest.mark.parametrize(
    ("given", "code", "value"),
    [
        ({"settings": {"optimizer.gradient_accumulation_steps": 64}}, "settings.too-few-scenarios", "has 12"),
        ({"settings": {"data.train_size": 2}}, "settings.too-few-scenarios", "has 2"),
        (
            {"sweep": [{"name": "a", "settings": {"data.train_size": 2}}]},
            "settings.too-few-scenarios",
            "has 2",
        ),
        ({"nodes": 8, "gpus": 2}, "settings.too-few-scenarios", "has 12"),
        ({"nodes": 2, "job": {"rollout_servers": 0}}, "pipelines.no-rollout-servers", "job.rollout_servers"),
        ({"nodes": 2, "job": {"rollout_gpus": 2}, "gpus": 1}, "pipelines.gpus-do-not-divide-heads", "job.rollout_gpus"),
        ({"settings": {"optimizer.processes": 3}, "gpus": 2}, "planning.too-few-gpus", "found 2"),
        ({"settings": {"rewards.functions": [{"name": "nowhere:brevity"}]}}, "rewards.import-failed", "nowhere"),
        ({"settings": {"lora.start": "nowhere"}}, "adapters.not-an-adapter", "nowhere"),
        (
            {"settings": {"warm_start.weights": "full"}, "demonstrations": "gold"},
            "training.full-in-pipeline",
            "warm_start.weights",
        ),
        (
            {"settings": {"optimizer.processes": 3}, "nodes": 2, "gpus": 2, "demonstrations": "gold"},
            "planning.too-few-gpus",
            "one node",
        ),
    ],
)
def test_a_step_refuses_what_could_not_be_known_when_the_run_was_submitted(
    inputs: dict[str, Any], given: dict[str, Any], code: str, value: str
) -> None:
    from gumshoe_pipelines.training_check_step import check_training

    usual = {"base_model": "tiny", "config": "", "limits": {}, "nodes": 1, "gpus": 1, "job": {}}
    with raises(code, value):
        check_training.python_func(**inputs, **{**usual, **given})


def test_a_step_on_this_machine_does_not_count_the_gpus_of_the_parameter(
    inputs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe_pipelines.training_check_step import check_training

    usual = {"base_model": "tiny", "config": "", "limits": {}, "nodes": 1, "gpus": 1, "job": {}}
    monkeypatch.setenv("GUMSHOE_TRAININGS", str(tmp_path))
    check_training.python_func(**inputs, **usual, settings={**TRANSFORMERS, "optimizer.processes": 2})
