"""Scenarios sorted from easy to hard."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gumshoe.scenarios.reward_order import mean_rewards, sort_by_reward
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from tests.conftest import CommandResult
from tests.errors import raises

FIELDS: dict[str, Any] = {"answer": "A", "message_ids": ["<1@x>"], "inbox_address": "a@x.example", "split": "train"}


@pytest.fixture
def scenarios() -> ScenarioSet:
    day = date(2024, 1, 1)
    return ScenarioSet(tuple(Scenario(id=each, question=f"Q {each}?", query_date=day, **FIELDS) for each in "abcd"))


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    rewards = [("a", -1.0), ("b", 1.5), ("a", 0.0), ("d", 0.2)]
    lines = [json.dumps({"policy": "warm", "scenario": name, "reward": reward}) for name, reward in rewards]
    (tmp_path / "predictions.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_easy_scenarios_come_first_and_unknown_ones_last(scenarios: ScenarioSet, evaluation: Path) -> None:
    rewards = mean_rewards(str(evaluation))
    assert rewards == {"a": -0.5, "b": 1.5, "d": 0.2}
    result = sort_by_reward(scenarios, rewards)
    assert [each.id for each in result] == ["b", "d", "a", "c"]
    assert (result.content, result.order != scenarios.order) == (scenarios.content, True)


def test_the_command_writes_the_sorted_scenarios(
    run: Callable[..., CommandResult], scenarios: ScenarioSet, evaluation: Path
) -> None:
    source, out = evaluation / "in.jsonl", evaluation / "out.jsonl"
    source.write_bytes(scenarios.to_jsonl())
    result = run("scenarios", "sort", source, "--by", evaluation, "--out", out)
    assert result.status == 0, result.err
    assert [each.id for each in load_scenarios(str(out))] == ["b", "d", "a", "c"]
    assert run("scenarios", "sort", source, "--by", evaluation, "--out", out).code == "scenarios.output-exists"
    assert "warning" not in result.err
    lines = [json.dumps({"policy": "warm", "scenario": each.id, "reward": 1.0}) for each in scenarios]
    (evaluation / "predictions.jsonl").write_text("\n".join(lines))
    flat = run("scenarios", "sort", source, "--by", evaluation, "--out", evaluation / "flat.jsonl")
    assert (flat.status, "warning" in flat.err, f"all {len(lines)}" in flat.err) == (0, True, True)


def test_an_evaluation_without_rewards_of_these_scenarios_is_rejected(scenarios: ScenarioSet, tmp_path: Path) -> None:
    with raises("scenarios.no-predictions", tmp_path):
        mean_rewards(str(tmp_path))
    (tmp_path / "predictions.jsonl").write_text('{"scenario": "a"}')
    with raises("scenarios.no-predictions", tmp_path):
        mean_rewards(str(tmp_path))
    with raises("scenarios.other-predictions"):
        sort_by_reward(scenarios, {"z": 1.0})


def test_the_order_is_that_of_one_policy(evaluation: Path) -> None:
    with (evaluation / "predictions.jsonl").open("a") as file:
        file.write('\n{"policy": "base", "scenario": "a", "reward": -2.0}')
    assert mean_rewards(f"{evaluation}#warm") == {"a": -0.5, "b": 1.5, "d": 0.2}
    assert mean_rewards(f"{evaluation}#base") == {"a": -2.0}
    with raises("scenarios.policy-not-named", "has 2 policies", f"{evaluation}#NAME", "warm, base"):
        mean_rewards(str(evaluation))
    with raises("scenarios.policy-not-named", "has no policy 'cold'"):
        mean_rewards(f"{evaluation}#cold")
