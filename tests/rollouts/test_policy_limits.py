"""The limits of a policy's episodes are those of its training, unless the user sets others."""

import json
from pathlib import Path
from typing import Any

import pytest

from gumshoe.rollouts.policy_limits import PolicyLimits, read_trained_limits

TRAINED = {"rollouts": {"max_turns": 6, "max_tokens": 120, "draws": 1}, "model": {"max_context": 4096}}


def write_trained(directory: Path, settings: Any = TRAINED) -> Path:
    """Write the metadata of an adapter."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metadata.json").write_text(json.dumps({"settings": settings}))
    return directory


def test_given_limits_come_before_those_of_the_training_and_the_defaults(tmp_path: Path) -> None:
    adapter, model = write_trained(tmp_path / "adapter"), tmp_path / "model"
    assert PolicyLimits.of([]) == PolicyLimits(10, 512, 8192)
    assert PolicyLimits.of([model, adapter]) == PolicyLimits(6, 120, 4096)
    assert PolicyLimits.of([adapter], max_turns=8) == PolicyLimits(8, 120, 4096)


def test_the_record_of_a_warm_start_counts_too(tmp_path: Path) -> None:
    (tmp_path / "warm_start.json").write_text(json.dumps({"spec": {"settings": TRAINED}, "report": {}}))
    assert PolicyLimits.of([tmp_path]) == PolicyLimits(6, 120, 4096)
    write_trained(tmp_path, {**TRAINED, "model": {"max_context": 2048}})
    assert PolicyLimits.of([tmp_path]) == PolicyLimits(6, 120, 2048), "a later training"


@pytest.mark.parametrize("settings", [None, {}, {"rollouts": {"max_turns": 6}}, {**TRAINED, "rollouts": "none"}])
def test_metadata_of_other_programs_is_ignored(tmp_path: Path, settings: Any) -> None:
    assert PolicyLimits.of([write_trained(tmp_path, settings)]) == PolicyLimits()


def test_a_merged_model_has_the_limits_of_its_adapter(tmp_path: Path) -> None:
    limits = {"max_turns": 6, "max_tokens": 120, "max_context": 4096}
    for recorded, expected in ((limits, PolicyLimits(6, 120, 4096)), (None, None)):
        (tmp_path / "merged.json").write_text(json.dumps({"origin": "tiny", "limits": recorded}))
        assert read_trained_limits(tmp_path) == expected
