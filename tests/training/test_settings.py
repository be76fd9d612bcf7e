"""The settings of a run: where they come from, what they are shown as, and what is refused."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.errors import UsageError
from gumshoe.training.settings import TrainSettings, check, check_devices, differences, env_names, resolve
from tests.conftest import Ran

NAMES = (
    "MODEL_NAME SEED TRAIN_DATASET_SIZE EVAL_DATASET_SIZE MAX_STEPS LEARNING_RATE PER_DEVICE_TRAIN_BATCH_SIZE "
    "NUM_TRAIN_EPOCHS GRADIENT_ACCUMULATION_STEPS MAX_GRAD_NORM NUM_GENERATIONS BETA EVAL_STEPS SAVE_STEPS "
    "WARMUP_STEPS SAVE_TOTAL_LIMIT TARGET_ACCURACY PATIENCE RUN_BASELINE_EVAL MAX_TURNS MAX_TOKENS TEMPERATURE "
    "MIN_GROUP_STD VERBOSE OUTPUT_DIR METRICS_PORT"
)


SHARDED = {"optimizer__distribution": "fsdp2", "optimizer__processes": 2}


def of(**flags: Any) -> TrainSettings:
    return resolve(None, {name.replace("__", "."): value for name, value in flags.items()}, {}).settings


def test_a_file_gives_way_to_the_environment_and_that_to_flags(tmp_path: Path) -> None:
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


def test_every_name_that_users_of_such_scripts_know_is_read() -> None:
    assert sorted(env for _, env in env_names()) == sorted(NAMES.split())
    environ = {"RUN_BASELINE_EVAL": "false", "VERBOSE": "1", "PATIENCE": "", "MODEL_NAME": "7", "OUTPUT_DIR": "9"}
    found = resolve(None, {}, environ).settings
    assert not found.evaluation.baseline
    assert found.output.verbose
    assert found.evaluation.patience is None
    assert (found.model.name, found.directory) == ("7", Path("9")), "a name of digits is a name"
    assert resolve(None, {"lora.start": "null"}, {}).settings.lora.start is None


def test_what_is_printed_is_a_configuration_of_the_same_settings(tmp_path: Path) -> None:
    found = resolve(None, {"rewards.functions": "[{name: exact, arguments: {wrong: -1}}]", "data.seed": "5"}, {})
    config = tmp_path / "printed.yaml"
    config.write_text(found.as_yaml())
    assert resolve(str(config), {}, {}).settings == found.settings
    assert "  seed: 5  # flag; SEED; decides the adapter's first weights" in found.as_yaml()


def test_the_command_prints_settings_and_where_they_come_from(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEARNING_RATE", "3e-4")
    ran = run("train", "--print-config", "--mode", "rollout", "--set", "optimizer.beta=0")
    assert ran.status == 0
    read = yaml.safe_load(ran.out)
    assert (read["mode"], read["optimizer"]["beta"], read["optimizer"]["learning_rate"]) == ("rollout", 0.0, 3e-4)
    assert "# $LEARNING_RATE; LEARNING_RATE; AdamW's" in ran.out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"optimizer.learning_rate": "fast"}, "optimizer.learning_rate: input should be a valid number"),
        ({"optimizer.learningrate": "1"}, "optimizer.learningrate: extra inputs are not permitted"),
        ({"optimizer.beta": "[1"}, "optimizer.beta cannot be '[1' (from flag)"),
        ({"rollouts.num_generations": "1"}, "rollouts.num_generations: input should be greater than or equal to 2"),
        ({"rollouts.temperature": "2.1"}, "rollouts.temperature: input should be less than or equal to 2 (from flag)"),
        ({"mode": "fast"}, "mode: input should be 'masked', 'rollout' or 'simple' (from flag)"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_origin(flags: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve(None, flags, {})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"), [("- a\n", "holds no settings by name"), ("a: [\n", "is not YAML"), (None, "cannot be read")]
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    config = tmp_path / "run.yaml"
    if text is not None:
        config.write_text(text)
    with pytest.raises(UsageError, match=said):
        resolve(str(config), {}, {})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"optimizer__gradient_accumulation_steps": 3, "optimizer__per_device_train_batch_size": 3}, "splits a group"),
        ({"rollouts__groups_per_step": 3}, "set optimizer.gradient_accumulation_steps to 3"),
        ({"optimizer__gradient_accumulation_steps": 64}, "there are 20 scenarios to learn from, and a step takes 64"),
        ({"model__quantization": "nf4"}, "set rollouts.engine to transformers"),
        ({"optimizer__max_steps": 0}, "optimizer.max_steps 0 would train nothing"),
        ({"lora__target_modules": ["q_proj", "lm_head"]}, "take it out of lora.target_modules"),
        ({"rollouts__engine": "transformers", "rollouts__servers": ["http://a"]}, "rollouts.servers are vLLM servers"),
        ({"rollouts__handover": "s3://bucket/p"}, "rollouts.handover is for servers elsewhere; name them"),
        (
            {"rollouts__handover": "s3://bucket/p", "rollouts__servers": ["http://a:8000"], "mode": "simple"},
            "rollouts.handover hands over nothing in mode simple",
        ),
        (
            {"rollouts__handover": "s3://bucket/p", "rollouts__servers": ["https://a:8000"]},
            "https://a:8000 cannot be had with rollouts.handover",
        ),
        (
            {"rollouts__handover": "ftp://host/p", "rollouts__servers": ["http://a:8000"]},
            "rollouts.handover: 'ftp://host/p' has the scheme 'ftp'",
        ),
        ({"rewards__combine": "weights"}, "to combine rewards by weights needs weights"),
        ({"mode": "simple", "rewards__by_turn": True}, "rewards.by_turn needs episodes"),
        ({"rollouts__num_servers": 2, "rollouts__servers": ["http://a"]}, "leave one of the two out"),
        ({"rollouts__num_servers": 2, "rollouts__engine": "transformers"}, "are vLLM servers, and this run has none"),
        ({"optimizer__distribution": "fsdp2"}, "shares the weights among several trainers"),
        ({**SHARDED, "rollouts__engine": "transformers"}, "no trainer has the whole model to sample from"),
        ({**SHARDED, "mode": "simple"}, "no trainer has the whole model to sample from"),
        ({**SHARDED, "model__quantization": "nf4"}, "cannot share the weights of model.quantization nf4"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_change(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        check(of(**flags), 20)
    assert said in str(error.value)


def test_weights_are_shared_out_among_gpus_alone() -> None:
    check(of(**SHARDED), 20)
    check_devices(of(**SHARDED), 2)
    with pytest.raises(UsageError, match=r"optimizer\.distribution fsdp2 needs GPUs: .*; set it to ddp"):
        check_devices(of(**SHARDED), 0)
    check_devices(TrainSettings(), 0)


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="deepspeed is installed")
def test_zero3_without_deepspeed_is_refused() -> None:
    with pytest.raises(UsageError, match="zero3 needs deepspeed, which is not installed; install it, or set fsdp2"):
        check(of(**SHARDED | {"optimizer__distribution": "zero3"}), 20)


def test_context_parallelism_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "2")
    with pytest.raises(UsageError, match=r"context parallelism .*; unset PARALLELISM_CONFIG_CP_SIZE"):
        check(TrainSettings(), 20)


def test_several_processes_make_a_larger_step() -> None:
    """Each has whole groups."""
    settings = of(optimizer__processes=2, optimizer__gradient_accumulation_steps=2, rollouts__groups_per_step=4)
    assert settings.groups == 4
    check(settings, 4)
    with pytest.raises(UsageError, match="there are 3 scenarios to learn from, and a step takes 4"):
        check(settings, 3)


def test_the_fields_in_which_settings_differ_are_named() -> None:
    assert differences(TrainSettings(), TrainSettings()) == []
    changed = of(mode="rollout", rewards__by_turn=True, lora__rank=8)
    assert differences(TrainSettings(), changed) == ["mode", "lora.rank", "rewards.by_turn"]


def test_the_defaults_work() -> None:
    check(TrainSettings(), 20)
