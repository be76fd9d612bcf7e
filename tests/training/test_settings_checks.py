"""Check settings that cannot work."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_checks import check_devices, check_plugins, check_settings
from gumshoe.training.settings_sources import resolve
from tests.conftest import CommandResult
from tests.errors import raises
from tests.scenarios.questions import question, write_questions

SHARDED = {"optimizer__distribution": "fsdp2", "optimizer__processes": 2}


def of(**flags: Any) -> TrainSettings:
    return resolve(None, {name.replace("__", "."): value for name, value in flags.items()}, {}).settings


@pytest.mark.parametrize(
    ("flags", "code", "value"),
    [
        (
            {"optimizer__gradient_accumulation_steps": 3, "optimizer__per_device_train_batch_size": 3},
            "settings.batch-splits-groups",
            "rollouts.num_generations 4",
        ),
        (
            {"rollouts__groups_per_step": 3},
            "settings.other-groups-per-step",
            "optimizer.gradient_accumulation_steps to 3",
        ),
        ({"optimizer__gradient_accumulation_steps": 64}, "settings.too-few-scenarios", "64 scenarios"),
        ({"model__quantization": "nf4"}, "settings.quantized-with-vllm", "model.quantization nf4"),
        ({"optimizer__max_steps": 0}, "settings.no-steps", "optimizer.max_steps"),
        ({"lora__target_modules": ["q_proj", "lm_head"]}, "settings.lm-head-not-trained", "lora.target_modules"),
        (
            {"lora__target_parameters": "experts", "lora__dropout": 0.1},
            "settings.dropout-of-parameters",
            "lora.target_parameters",
        ),
        (
            {"lora__target_parameters": "experts", "lora__layers": 2},
            "settings.layers-of-parameters",
            "lora.layers is 2",
        ),
        (
            {"chat__reasoning_history": "drop", "optimizer__router_loss": 0.1},
            "settings.drop-not-supported",
            "chat.reasoning_history",
        ),
        (
            {"rollouts__engine": "transformers", "rollouts__servers": ["http://a"]},
            "settings.servers-without-vllm",
            "transformers",
        ),
        ({"rollouts__handover": "s3://bucket/p"}, "settings.handover-without-servers", "s3://bucket/p"),
        ({"rollouts__servers": ["http://a:8000"], "mode": "simple"}, "settings.servers-without-vllm", "simple"),
        ({"agent": "my_package:agent", "mode": "simple"}, "settings.agent-in-simple-mode", "my_package:agent"),
        ({"optimizer__num_iterations": 2, "mode": "simple"}, "settings.iterations-in-simple-mode", "num_iterations 2"),
        (
            {"agent": "my_package:agent", "optimizer__router_loss": 0.1},
            "settings.router-loss-with-agent",
            "my_package:agent",
        ),
        (
            {"rollouts__handover": "s3://bucket/p", "rollouts__servers": ["https://a:8000"]},
            "settings.handover-server-address",
            "https://a:8000",
        ),
        (
            {"rollouts__handover": "ftp://host/p", "rollouts__servers": ["http://a:8000"]},
            "store.unknown-scheme",
            "rollouts.handover: 'ftp://host/p'",
        ),
        ({"rewards__combine": "weights"}, "rewards.weights-missing", "weights"),
        (
            {
                "rewards__functions": [{"name": "turns"}, {"name": "turns"}],
                "rewards__combine": "weights",
                "rewards__weights": {"turns": 1},
            },
            "rewards.weights-mismatch",
            "turns, turns#2",
        ),
        ({"mode": "simple", "optimizer__algorithm": "rloo"}, "settings.algorithm-in-simple-mode", "rloo"),
        ({"optimizer__algorithm": "ppo"}, "settings.unknown-algorithm", "'ppo'"),
        ({"optimizer__algorithm": "nowhere:Ppo"}, "settings.algorithm-not-importable", "nowhere"),
        ({"optimizer__algorithm": "json:loads"}, "settings.not-an-algorithm", "json:loads"),
        ({"optimizer__algorithm": {"dapo": {"gamma": 1}}}, "settings.invalid-algorithm-setting", "gamma"),
        ({"optimizer__algorithm": "cispo"}, "settings.algorithm-without-effect", "dapo"),
        ({"optimizer__algorithm": "gspo"}, "settings.algorithm-without-effect", "grpo"),
        ({"optimizer__algorithm": {"grpo": {"epsilon": 0.1}}}, "settings.clip-without-effect", "epsilon"),
        (
            {"optimizer__num_iterations": 2, "output__save_steps": 5, "optimizer__max_steps": 6},
            "settings.steps-split-iterations",
            "output.save_steps 5",
        ),
        (
            {"rollouts__num_servers": 2, "rollouts__servers": ["http://a"]},
            "settings.servers-given-twice",
            "rollouts.num_servers 2",
        ),
        (
            {"rollouts__num_servers": 2, "rollouts__engine": "transformers"},
            "settings.num-servers-without-vllm",
            "rollouts.num_servers 2",
        ),
        ({"rollouts__lag": 1, "rollouts__engine": "transformers"}, "settings.lag-without-vllm", "rollouts.lag 1"),
        ({"rollouts__lag": 2, "mode": "simple"}, "settings.lag-without-vllm", "rollouts.lag 2"),
        ({"data__rest_steps": 4, "mode": "simple"}, "settings.rest-in-simple-mode", "data.rest_steps 4"),
        ({"rollouts__max_staleness": 1}, "settings.staleness-without-lag", "max_staleness 1"),
        ({"rollouts__adapter_switch": "turn"}, "settings.staleness-without-lag", "adapter_switch turn"),
        (
            {"rollouts__lag": 3, "rollouts__max_staleness": 2},
            "settings.staleness-below-lag",
            "rollouts.max_staleness 2",
        ),
        (
            {"rollouts__lag": 2, "rollouts__handover": "s3://bucket/p", "rollouts__servers": ["http://a:8000"]},
            "settings.staleness-with-handover",
            "rollouts.lag 2",
        ),
        ({"optimizer__distribution": "fsdp2"}, "settings.sharded-on-one-process", "fsdp2"),
        ({**SHARDED, "rollouts__engine": "transformers"}, "settings.sharded-without-vllm", "fsdp2"),
        ({**SHARDED, "mode": "simple"}, "settings.sharded-without-vllm", "fsdp2"),
        (
            {**SHARDED, "model__quantization": "nf4", "rollouts__engine": "transformers"},
            "settings.sharded-quantized",
            "nf4",
        ),
    ],
)
def test_settings_that_cannot_work_are_rejected(flags: dict[str, Any], code: str, value: str) -> None:
    with raises(code, value):
        check_settings(of(**flags), 20)


def test_all_errors_are_reported_with_the_code_of_the_first() -> None:
    with raises("settings.too-few-scenarios", "64 scenarios", "optimizer.max_steps"):
        check_settings(of(optimizer__gradient_accumulation_steps=64, optimizer__max_steps=0), 20)


@pytest.mark.parametrize(
    ("package", "flags"),
    [
        ("bitsandbytes", {"model__quantization": "nf4", "rollouts__engine": "transformers"}),
        ("[wandb]", {"output__report_to": ["wandb"]}),
        ("[trackio]", {"output__report_to": ["trackio"]}),
        ("mlflow", {"output__report_to": ["mlflow"]}),
    ],
)
def test_a_missing_package_is_reported(package: str, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumshoe.training.settings_checks.find_spec", lambda _: None)
    with raises("settings.package-missing", package, next(iter(flags)).replace("__", ".")):
        check_settings(of(**flags), 20)


def test_sharding_requires_gpus() -> None:
    check_settings(of(**SHARDED), 20)
    check_devices(of(**SHARDED), 2, 1)
    with raises("settings.sharded-without-gpu", "optimizer.distribution fsdp2"):
        check_devices(of(**SHARDED), 0, 1)
    check_devices(TrainSettings(), 0, 1)


def test_vllm_on_gpus_needs_16_bits() -> None:
    single = of(model__dtype="float32")
    with raises("settings.float32-on-gpu", "model.dtype", "bfloat16"):
        check_devices(single, 1, 1)
    check_devices(single, 0, 1)
    check_devices(single, 1, 0)
    check_devices(TrainSettings(), 1, 1)


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="deepspeed is installed")
def test_zero3_requires_deepspeed() -> None:
    with raises("settings.package-missing", "zero3", "deepspeed"):
        check_settings(of(**SHARDED | {"optimizer__distribution": "zero3"}), 20)


def test_context_parallelism_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "2")
    with raises("settings.context-parallelism", "PARALLELISM_CONFIG_CP_SIZE is 2"):
        check_settings(TrainSettings(), 20)


def test_groups_per_step_grow_with_processes() -> None:
    """Each process has complete groups."""
    settings = of(optimizer__processes=2, optimizer__gradient_accumulation_steps=2, rollouts__groups_per_step=4)
    assert settings.groups == 4
    check_settings(settings, 4)
    with raises("settings.too-few-scenarios", "4 scenarios", "has 3"):
        check_settings(settings, 3)


def test_clipping_is_accepted_if_episodes_are_used_more_than_once() -> None:
    for algorithm in ("cispo", "gspo", "sapo", {"dapo": {"epsilon": 0.1}}):
        check_settings(of(optimizer__algorithm=algorithm, optimizer__num_iterations=2), 20)


def test_the_defaults_work() -> None:
    check_settings(TrainSettings(), 20)


def test_a_run_is_not_continued_and_replaced(run: Callable[..., CommandResult]) -> None:
    ran = run("train", "--resume", "--replace")
    assert (ran.status, ran.code) == (2, "training.option-conflict")


def test_what_settings_name_is_checked_before_anything_is_opened(
    run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    questions = [question(number, split=split) for number, split in enumerate(["train"] * 8 + ["validation"])]
    scenarios = write_questions(tmp_path / "scenarios.jsonl", questions)
    data = ("--index", tmp_path / "none", "--scenarios", scenarios, "--out", tmp_path / "out")
    ran = run("train", "--model", "tiny", *data, "--set", "evaluation.judge=exat")
    assert (ran.status, ran.code) == (2, "judges.unknown-judge"), "not that there is no index"
    assert not (tmp_path / "out").exists()


def test_an_agent_is_loaded_before_anything_is_started_if_the_run_is_here() -> None:
    wanted = of(agent="no_such.module:agent")
    with raises("gateway.agent-import-failed", "no_such.module"):
        check_plugins(wanted)
    check_plugins(wanted, is_here=False)
