"""Compare settings, and load stored ones."""

import pytest

from gumshoe.training.algorithms.lookup import AlgorithmChoice
from gumshoe.training.settings import TrainSettings, find_differences
from gumshoe.training.settings_sections import DataSettings, LoraSettings, OptimizerSettings


def test_differences_are_dotted_names() -> None:
    assert find_differences(TrainSettings(), TrainSettings()) == []
    optimizer = OptimizerSettings(algorithm=AlgorithmChoice(name="grpo"))
    changed = TrainSettings(mode="rollout", lora=LoraSettings(rank=8), optimizer=optimizer)
    assert find_differences(TrainSettings(), changed) == ["mode", "lora.rank", "optimizer.algorithm"]


def test_stored_settings_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainSettings(data=DataSettings(seed=7))
    for variable in ("SEED", "GUMSHOE_TRAIN__DATA__SEED", "MAX_STEPS", "GUMSHOE_TRAIN__OPTIMIZER__MAX_STEPS"):
        monkeypatch.setenv(variable, "3")
    found = TrainSettings.model_validate_json(settings.model_dump_json())
    assert (found.data.seed, found.optimizer.max_steps) == (7, -1)
    assert TrainSettings.model_validate({"data": {"seed": 7}}) == found == settings
