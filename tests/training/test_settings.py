"""The settings of a run: sources, printing, and rejected values."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.training.settings import (
    TrainSettings,
    check_devices,
    check_settings,
    find_differences,
    list_env_vars,
    resolve,
)
from tests.conftest import CommandResult
from tests.errors import raises

NAMES = (
    "MODEL_NAME SEED TRAIN_DATASET_SIZE EVAL_DATASET_SIZE MAX_STEPS LEARNING_RATE PER_DEVICE_TRAIN_BATCH_SIZE "
    "NUM_TRAIN_EPOCHS GRADIENT_ACCUMULATION_STEPS MAX_GRAD_NORM NUM_GENERATIONS BETA EVAL_STEPS SAVE_STEPS "
    "WARMUP_STEPS SAVE_TOTAL_LIMIT TARGET_ACCURACY PATIENCE RUN_BASELINE_EVAL MAX_TURNS MAX_TOKENS TEMPERATURE "
    "MIN_GROUP_STD VERBOSE OUTPUT_DIR METRICS_PORT"
)


SHARDED = {"optimizer__distribution": "fsdp2", "optimizer__processes": 2}


def of(**flags: Any) -> TrainSettings:
    return resolve(None, {name.replace("__", "."): value for name, value in flags.items()}, {}).settings


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("optimizer: {learning_rate: 1e-4, beta: 0.1, max_steps: 7}\nmode: rollout\n")
    environ = {"LEARNING_RATE": "2e-4", "MAX_STEPS": "8"}
    found = resolve(str(config), {"optimizer.max_steps": "9"}, environ)
    optimizer = found.settings.optimizer
    assert (optimizer.beta, optimizer.learning_rate, optimizer.max_steps) == (0.1, 2e-4, 9)
    assert found.settings.mode == "rollout"
    assert found.origins == {
        "optimizer.learning_rate": "$LEARNING_RATE",
        "optimizer.beta": str(config),
        "optimizer.max_steps": "flag",
        "mode": str(config),
    }


def test_environment_variables_are_read() -> None:
    assert sorted(env for _, env in list_env_vars()) == sorted(NAMES.split())
    environ = {"RUN_BASELINE_EVAL": "false", "VERBOSE": "1", "PATIENCE": "", "MODEL_NAME": "7", "OUTPUT_DIR": "9"}
    found = resolve(None, {}, environ).settings
    assert not found.evaluation.baseline
    assert found.output.verbose
    assert found.evaluation.patience is None
    assert (found.model.name, found.directory) == ("7", Path("9")), "digits stay text"
    assert resolve(None, {"lora.start": "null"}, {}).settings.lora.start is None


def test_printed_settings_can_be_read_back(tmp_path: Path) -> None:
    found = resolve(None, {"rewards.functions": "[{name: exact, arguments: {wrong: -1}}]", "data.seed": "5"}, {})
    config = tmp_path / "printed.yaml"
    config.write_text(found.as_yaml())
    assert resolve(str(config), {}, {}).settings == found.settings
    assert "  seed: 5  # flag; SEED; " in found.as_yaml()


def test_the_command_prints_settings_with_their_sources(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEARNING_RATE", "3e-4")
    ran = run("train", "--print-config", "--mode", "rollout", "--set", "optimizer.beta=0")
    assert ran.status == 0
    read = yaml.safe_load(ran.out)
    assert (read["mode"], read["optimizer"]["beta"], read["optimizer"]["learning_rate"]) == ("rollout", 0.0, 3e-4)
    assert "# $LEARNING_RATE; LEARNING_RATE; " in ran.out


@pytest.mark.parametrize(
    ("flags", "code", "values"),
    [
        ({"optimizer.learning_rate": "fast"}, "settings.invalid-value", ("optimizer.learning_rate", "number")),
        ({"optimizer.learningrate": "1"}, "settings.unknown-name", ("optimizer.learningrate",)),
        ({"optimizer.beta": "[1"}, "settings.value-not-yaml", ("optimizer.beta", "'[1'")),
        ({"rollouts.num_generations": "1"}, "settings.invalid-value", ("rollouts.num_generations", "equal to 2")),
        ({"rollouts.temperature": "2.1"}, "settings.invalid-value", ("rollouts.temperature", "equal to 2")),
        ({"mode": "fast"}, "settings.invalid-value", ("mode", "'masked', 'rollout' or 'simple'")),
    ],
)
def test_an_invalid_value_is_reported_with_its_source(
    flags: dict[str, str], code: str, values: tuple[str, ...]
) -> None:
    with raises(code, *values, "(from flag)"):
        resolve(None, flags, {})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("- a\n", "settings.config-not-a-mapping"),
        ("a: [\n", "settings.config-not-yaml"),
        (None, "settings.config-unreadable"),
    ],
)
def test_an_invalid_file_is_rejected(tmp_path: Path, text: str | None, code: str) -> None:
    config = tmp_path / "run.yaml"
    if text is not None:
        config.write_text(text)
    with raises(code, config):
        resolve(str(config), {}, {})


def test_a_flag_without_a_value_is_rejected(run: Callable[..., CommandResult]) -> None:
    ran = run("train", "--print-config", "--set", "optimizer.beta")
    assert (ran.status, ran.code) == (2, "settings.not-name-value")
    assert "'optimizer.beta'" in ran.err


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
            {"rollouts__engine": "transformers", "rollouts__servers": ["http://a"]},
            "settings.servers-without-vllm",
            "transformers",
        ),
        ({"rollouts__handover": "s3://bucket/p"}, "settings.handover-without-servers", "s3://bucket/p"),
        (
            {"rollouts__handover": "s3://bucket/p", "rollouts__servers": ["http://a:8000"], "mode": "simple"},
            "settings.handover-in-simple-mode",
            "s3://bucket/p",
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
        ("wandb", {"output__report_to": ["wandb"]}),
    ],
)
def test_a_missing_package_is_reported(package: str, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumshoe.training.settings.find_spec", lambda _: None)
    with raises("settings.package-missing", package, next(iter(flags)).replace("__", ".")):
        check_settings(of(**flags), 20)


def test_sharding_requires_gpus() -> None:
    check_settings(of(**SHARDED), 20)
    check_devices(of(**SHARDED), 2)
    with raises("settings.sharded-without-gpu", "optimizer.distribution fsdp2"):
        check_devices(of(**SHARDED), 0)
    check_devices(TrainSettings(), 0)


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


def test_differences_are_dotted_names() -> None:
    assert find_differences(TrainSettings(), TrainSettings()) == []
    changed = of(mode="rollout", optimizer__algorithm="grpo", lora__rank=8)
    assert find_differences(TrainSettings(), changed) == ["mode", "lora.rank", "optimizer.algorithm"]


def test_clipping_is_accepted_if_episodes_are_used_more_than_once() -> None:
    for algorithm in ("cispo", "gspo", "sapo", {"dapo": {"epsilon": 0.1}}):
        check_settings(of(optimizer__algorithm=algorithm, optimizer__num_iterations=2), 20)


@pytest.mark.parametrize(
    ("old", "algorithm"),
    [
        ({"optimizer.loss_type": "grpo"}, {"name": "grpo", "settings": {}}),
        ({"optimizer.loss_type": "dr_grpo"}, {"name": "dr_grpo", "settings": {"scale": "group"}}),
        ({"optimizer.importance": "sequence"}, {"name": "gspo", "settings": {}}),
        (
            {"optimizer.scale_advantages": "none", "optimizer.epsilon": "0.1", "optimizer.epsilon_high": "0.28"},
            {"name": "dapo", "settings": {"scale": "none", "epsilon": 0.1}},
        ),
        ({"rewards.by_turn": "true"}, {"name": "turn_level", "settings": {"loss": "dapo"}}),
        (
            {"rewards.by_turn": "true", "optimizer.loss_type": "grpo"},
            {"name": "turn_level", "settings": {"loss": "grpo"}},
        ),
        ({"rewards.by_turn": "false"}, {"name": "dapo", "settings": {}}),
    ],
)
def test_settings_of_earlier_versions_are_read_with_a_warning(
    old: dict[str, str], algorithm: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = resolve(None, {**old, "optimizer.beta": "0.5"}, {}).settings
    assert found.optimizer.algorithm.model_dump() == algorithm
    assert found.optimizer.beta == 0.5
    assert "optimizer.algorithm" in (printed := capsys.readouterr().err)
    assert all(name in printed for name in old)
    assert TrainSettings.model_validate_json(found.model_dump_json()) == found


def test_an_old_name_replaces_the_algorithm_of_a_configuration() -> None:
    found = resolve("tiny", {"optimizer.loss_type": "grpo"}, {}).settings
    assert found.optimizer.algorithm.model_dump() == {"name": "grpo", "settings": {}}


def test_the_defaults_work() -> None:
    check_settings(TrainSettings(), 20)
