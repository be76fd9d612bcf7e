"""Read settings from flags, environment variables and files, and print them."""

import shlex
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.environments.registry import EnvironmentSettings
from gumshoe.rewards.judge_registry import parse_judge
from gumshoe.training.commands.train import _print_evaluation, _print_training
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sources import list_env_vars, resolve
from tests.conftest import CommandResult
from tests.errors import raises

NAMES = (
    "MODEL_NAME SEED TRAIN_DATASET_SIZE EVAL_DATASET_SIZE MAX_STEPS LEARNING_RATE PER_DEVICE_TRAIN_BATCH_SIZE "
    "NUM_TRAIN_EPOCHS GRADIENT_ACCUMULATION_STEPS MAX_GRAD_NORM NUM_GENERATIONS BETA EVAL_STEPS SAVE_STEPS "
    "WARMUP_STEPS SAVE_TOTAL_LIMIT TARGET_ACCURACY PATIENCE RUN_BASELINE_EVAL MAX_TURNS MAX_TOKENS TEMPERATURE "
    "MIN_GROUP_STD VERBOSE OUTPUT_DIR METRICS_PORT"
)


def test_the_suggested_evaluation_has_the_environment_and_limits_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "model.name": "tiny",
        "model.max_context": 4096,
        "environment": "{documents: {hits: 2}}",
        "rollouts.max_turns": 6,
    }
    _print_evaluation(resolve(None, given, {}).settings, tmp_path / "run", Path("index"), "q.jsonl")
    words = shlex.split(capsys.readouterr().err)
    options = dict(pairwise(words))
    assert words[:3] == ["Next:", "gumshoe", "evaluate"]
    assert "--judge" not in words
    assert (options["--max-turns"], options["--max-tokens"], options["--max-context"]) == ("6", "512", "4096")
    assert EnvironmentSettings.parse(options["--environment"]).arguments == {"hits": 2}


@pytest.mark.parametrize("judge", ["exact", {"openai": {"model": "m", "url": "http://localhost:8000/v1"}}])
def test_the_suggested_commands_have_the_judge_of_the_settings(
    judge: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = resolve(None, {"model.name": "tiny", "evaluation.judge": judge}, {}).settings
    _print_evaluation(settings, tmp_path / "run", Path("index"), "q.jsonl")
    evaluate = dict(pairwise(shlex.split(capsys.readouterr().err)))
    _print_training(settings, tmp_path, Path("index"), "q.jsonl", None, {})
    train = shlex.split(capsys.readouterr().err)
    name, _, word = next(each for each in train if each.startswith("evaluation.judge=")).partition("=")
    again = resolve(None, {name: word}, {}).settings.evaluation.judge
    assert parse_judge(evaluate["--judge"]) == parse_judge(again) == parse_judge(judge)


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_the_suggested_training_has_the_environment_and_settings_of_the_warm_start(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"lora.rank": "4", "chat.template_kwargs": "{enable_thinking: false}", "warm_start.epochs": "1"}
    warm = {"model.name": "tiny", "environment": "{documents: {hits: 2}}", "warm_start.weights": weights}
    _print_training(resolve(None, given | warm, {}).settings, tmp_path, Path("index"), "q.jsonl", None, given)
    words = shlex.split(capsys.readouterr().err)
    options = dict(pairwise(words))
    assert words[:3] == ["Next:", "gumshoe", "train"]
    assert EnvironmentSettings.parse(options["--environment"]).arguments == {"hits": 2}
    start = [] if weights == "full" else [f"lora.start={tmp_path}"]
    assert options["--model"] == (str(tmp_path) if weights == "full" else "tiny")
    sets = [value for name, value in pairwise(words) if name == "--set"]
    assert sets == ["lora.rank=4", "chat.template_kwargs={enable_thinking: false}", *start]


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


def test_variables_of_kubernetes_services_are_no_settings() -> None:
    """A Service named `metrics` sets METRICS_PORT in all pods of its namespace."""
    assert resolve(None, {}, {"METRICS_PORT": "tcp://10.96.0.7:9090"}).settings.output.metrics_port is None
    assert resolve(None, {}, {"METRICS_PORT": "9090"}).settings.output.metrics_port == 9090


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("GUMSHOE_TRAIN__MODE", "rollout", "mode", "rollout"),
        ("GUMSHOE_TRAIN__LORA__RANK", "8", "lora.rank", 8),
        ("gumshoe_train__lora__rank", "8", "lora.rank", 8),
        ("GUMSHOE_TRAIN__LORA", "{rank: 8}", "lora.rank", 8),
        ("GUMSHOE_TRAIN__LORA__TARGET_MODULES", "[q_proj]", "lora.target_modules", ("q_proj",)),
        ("GUMSHOE_TRAIN__LORA__TARGET_MODULES", "all-linear", "lora.target_modules", "all-linear"),
        ("GUMSHOE_TRAIN__LORA__START", "7", "lora.start", Path("7")),
        ("GUMSHOE_TRAIN__LORA__START", "", "lora.start", None),
        ("GUMSHOE_TRAIN__OPTIMIZER__LEARNING_RATE", "2e-4", "optimizer.learning_rate", 2e-4),
    ],
)
def test_every_setting_has_an_environment_variable(variable: str, text: str, name: str, value: Any) -> None:
    found = resolve(None, {}, {variable: text, "GUMSHOE_TRAINER": "other"})
    assert attrgetter(name)(found.settings) == value
    assert found.origins == {name: f"${variable}"}


def test_a_variable_with_the_prefix_overrides_one_with_a_familiar_name() -> None:
    environ = {"GUMSHOE_TRAIN__DATA__SEED": "2", "SEED": "1"}
    assert resolve(None, {}, environ).settings.data.seed == 2
    assert resolve(None, {"data.seed": "3"}, environ).settings.data.seed == 3


def test_sections_are_merged_and_values_that_are_mappings_are_replaced(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "optimizer: {beta: 0.5, algorithm: {dapo: {scale: none}}}\nrewards: {weights: {exact: 1}}\n"
        "evaluation.judge: {exact: {}}\n"
    )
    flags = {
        "optimizer": {"max_steps": 3, "algorithm": {"grpo": {"scale": "batch"}}},
        "rewards.weights": "{rubric: 2}",
        "evaluation.judge": {"numbers": {}},
    }
    found = resolve(str(config), flags, {}).settings
    assert (found.optimizer.beta, found.optimizer.max_steps) == (0.5, 3)
    assert found.optimizer.algorithm.model_dump() == {"name": "grpo", "settings": {"scale": "batch"}}
    assert found.rewards.weights == {"rubric": 2}
    assert found.evaluation.judge == {"numbers": {}}
    added = resolve(str(config), {"rewards.weights.rubric": 2}, {}).settings
    assert added.rewards.weights == {"exact": 1, "rubric": 2}


def test_resolved_settings_are_a_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied and stored, and must not read the environment again."""
    found = resolve("tiny", {"data.seed": 7}, {}).settings
    assert type(found) is TrainSettings
    assert found.model_fields_set == {"model", "lora", "data", "rollouts", "optimizer", "evaluation"}
    monkeypatch.setenv("GUMSHOE_TRAIN__DATA__SEED", "3")
    assert type(found).model_validate(found.model_dump()) == found


def test_printed_settings_can_be_read_back(tmp_path: Path) -> None:
    template = "{%- for each in messages %}\n{{ each['content'] }}: #\n{% endfor %}"
    flags = {
        "rewards.functions": "[{name: exact, arguments: {wrong: -1}}]",
        "data.seed": "5",
        "chat.template": template,
    }
    found = resolve(None, flags, {})
    assert found.settings.chat.template == template
    config = tmp_path / "printed.yaml"
    config.write_text(found.as_yaml())
    assert resolve(str(config), {}, {}).settings == found.settings
    assert "  seed: 5  # flag; SEED; " in found.as_yaml()
    assert "  on_bad_call: end  # default; " in found.as_yaml()


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
        ({"optimizer.learning_rate": ".inf"}, "settings.invalid-value", ("optimizer.learning_rate", "finite")),
        ({"rewards.weights": "{exact: .nan}"}, "settings.invalid-value", ("rewards.weights.exact", "finite")),
    ],
)
def test_an_invalid_value_is_reported_with_its_source(
    flags: dict[str, str], code: str, values: tuple[str, ...]
) -> None:
    with raises(code, *values, "(from flag)"):
        resolve(None, flags, {})


def test_an_unknown_name_is_reported_with_its_source(tmp_path: Path) -> None:
    with raises("settings.unknown-name", "optimizer.speed", "(from $GUMSHOE_TRAIN__OPTIMIZER__SPEED)"):
        resolve(None, {}, {"GUMSHOE_TRAIN__OPTIMIZER__SPEED": "1"})
    with raises("settings.unknown-name", "optimiser", "(from $GUMSHOE_TRAIN__OPTIMISER__BETA)"):
        resolve(None, {"optimizer.beta": 1}, {"GUMSHOE_TRAIN__OPTIMISER__BETA": "1"})
    config = tmp_path / "run.yaml"
    config.write_text("optimiser: {beta: 0.1}\n")
    with raises("settings.unknown-name", "optimiser", f"(from {config})"):
        resolve(str(config), {}, {})


def test_a_section_that_is_not_a_mapping_is_rejected() -> None:
    with raises("settings.invalid-value", "optimizer", "(from $GUMSHOE_TRAIN__OPTIMIZER)"):
        resolve("tiny", {}, {"GUMSHOE_TRAIN__OPTIMIZER": "5"})


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


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        ({"rewards.functions": "[{name: rubric, arguments: {wrong: -.inf}}]"}, "rewards.functions.0.arguments.wrong"),
        (
            {"optimizer.algorithm": "{turn_level: {values: {correct: .nan}}}"},
            "optimizer.algorithm.settings.values.correct",
        ),
        ({"environment": "{email: {hits: .inf}}"}, "environment.arguments.hits"),
        ({"evaluation.judge": "{embedding: {model: m, threshold: .nan}}"}, "evaluation.judge.embedding.threshold"),
        ({"chat.template_kwargs": "{steps: [1, .inf]}"}, "chat.template_kwargs.steps.1"),
    ],
)
def test_numbers_in_arguments_are_finite_since_they_are_stored_as_json(flags: dict[str, str], place: str) -> None:
    with raises("settings.invalid-value", f"not finite: {place};"):
        resolve(None, flags, {})


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("rewards.functions=[{name: exakt}]", "rewards.unknown-reward"),
        ("rewards.functions=[{name: rubric, arguments: {wrng: 1}}]", "rewards.invalid-settings"),
        ("optimizer.algorithm=grppo", "settings.unknown-algorithm"),
        ("optimizer.algorithm={turn_level: {values: {sorce: 1}}}", "settings.invalid-algorithm-setting"),
        ("evaluation.judge=exat", "judges.unknown-judge"),
        ("environment=emails", "environments.unknown"),
        ("environment={email: {hits: 0}}", "environments.invalid-settings"),
    ],
)
def test_printing_the_settings_checks_what_they_name(
    run: Callable[..., CommandResult], setting: str, code: str
) -> None:
    ran = run("train", "--print-config", "--set", setting)
    assert (ran.status, ran.code, ran.out) == (2, code, "")


def test_a_flag_without_a_value_is_rejected(run: Callable[..., CommandResult]) -> None:
    ran = run("train", "--print-config", "--set", "optimizer.beta")
    assert (ran.status, ran.code) == (2, "settings.not-name-value")
    assert "'optimizer.beta'" in ran.err


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


@pytest.mark.parametrize("name", ["model.name", "optimizer.learning_rate"])
@pytest.mark.parametrize("bad", ["a\udcff", "a\0b"])
def test_text_that_cannot_be_stored_is_rejected_with_its_source(name: str, bad: str) -> None:
    """A variable with bytes that are not UTF-8 has lone surrogates."""
    variable = f"GUMSHOE_TRAIN__{name.upper().replace('.', '__')}"
    with raises("settings.value-not-yaml", name, f"${variable}"):
        resolve(None, {}, {variable: bad})
