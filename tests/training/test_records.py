"""The records of a run: lines, reading, truncation, and early stopping."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gumshoe.errors import UnavailableError
from gumshoe.training.attempts import record_attempt
from gumshoe.training.records import (
    EvaluationRecord,
    StepRecord,
    end_message,
    read_records,
    truncate_records,
    write_record,
)
from tests.errors import raises


def step(number: int, **more: Any) -> StepRecord:
    values: dict[str, Any] = {
        "loss": 0.521,
        "policy_loss": 0.51,
        "kl": 0.0112,
        "entropy": 0.3,
        "grad_norm": 1.0,
        "learning_rate": 1e-5,
        "reward": 0.456,
        "reward_std": 0.31,
        "rewards": {"rubric": 0.456},
        "reward_quantiles": (-1.0, 0.0, 0.5, 1.0, 1.5),
        "accuracy": 0.25,
        "trainable_tokens": 1234,
        "tokens": 5678,
        "scenarios": ("a-1", "a-2"),
        "groups": 7,
        "groups_wanted": 8,
        "groups_flat": 1,
        "groups_dropped": 0,
        "groups_refused": 0,
        "drop_rate": 0.0,
        "draws": 1,
        "retried": 0,
        "skipped": False,
        "importance_ratio": 1.0,
        "logprob_difference": 0.001,
        "turns": 3.0,
        "sampled_tokens": 120.0,
        "endings": {"answer": 31, "max turns": 1},
        "rollout_seconds": 8.12,
        "train_seconds": 3.21,
        "policy": f"r1-1-policy-{number - 1}",
    }
    return StepRecord(step=number, **{**values, **more})


def evaluation(number: int, accuracy: float = 0.5, *, reward: float = 0.4, best: bool = True) -> EvaluationRecord:
    return EvaluationRecord(
        step=number, accuracy=accuracy, reward=reward, beat_rate=0.625, questions=40, missing=0, seconds=12.0, best=best
    )


def test_the_line_of_a_step() -> None:
    assert step(12).line(200, 1865.2).split(" | ") == [
        "Step 12/200",
        "Loss 0.5210",
        "Policy 0.5100",
        "KL 0.011",
        "Reward 0.456 ± 0.31",
        "Acc 25.0%",
        "Trainable 1,234/5,678 (21.7%)",
        "groups 7/8",
        "rollout 8.1s train 3.2s",
        "ETA 0:31:05",
    ]
    bare = step(1, kl=None, accuracy=None, groups=0, skipped=True, trainable_tokens=0, tokens=0).line(2, 0)
    assert "| KL - |" in bare
    assert "| Acc - |" in bare
    assert "Trainable 0/0 (0.0%)" in bare
    assert "| skipped: " in bare


def test_split_episodes_are_numbers_and_in_the_line_of_their_step() -> None:
    split = step(1, split_episodes=0.5, split_reasons={"history edited": 0.5, "sampled again": 0.25}, segments=1.75)
    assert split.line(2, 0).split(" | ")[-1] == "split 50.0% (history edited 50.0%, sampled again 25.0%)"
    numbers = split.numbers()
    assert (numbers["step/split_episodes"], numbers["step/segments"]) == (0.5, 1.75)
    assert (numbers["step/split_reasons/history edited"], numbers["step/rewards/rubric"]) == (0.5, 0.456)


def test_the_line_of_an_evaluation() -> None:
    assert evaluation(20).line().split(" | ") == [
        "Evaluation after step 20",
        "Acc 50.0% of 40",
        "Reward 0.400",
        "beats step 0 in 62.5%",
        "12.0s",
        "best so far",
    ]


def test_records_are_read_back_without_an_incomplete_last_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_records(path) == []
    written: list[StepRecord | EvaluationRecord] = [evaluation(0), step(1), step(2), evaluation(2)]
    for each in written:
        write_record(path, each)
    assert read_records(path) == written
    with path.open("ab") as file:
        file.write(step(3).model_dump_json().encode()[:100])
    assert read_records(path) == written


@pytest.mark.parametrize("line", ["{}", "no JSON", '{"event": "step", "step": 1}'])
def test_an_invalid_record_is_reported(line: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_record(path, step(1))
    with path.open("a") as file:
        file.write(f"{line}\n")
    with raises("training.invalid-record", f"{path}:2"):
        read_records(path)


def test_records_are_truncated_to_a_checkpoint(tmp_path: Path) -> None:
    """Later steps are run again, and would otherwise be recorded twice. The evaluation after the same step stays."""
    path = tmp_path / "metrics.jsonl"
    for each in (evaluation(0), step(1), step(2), evaluation(2), step(3)):
        write_record(path, each)
    with path.open("a") as file:
        file.write('{"event": "st')
    kept = truncate_records(path, 2)
    assert [(each.event, each.step) for each in kept] == [
        ("evaluation", 0),
        ("step", 1),
        ("step", 2),
        ("evaluation", 2),
    ]
    write_record(path, step(3))
    assert read_records(path) == [*kept, step(3)]
    assert truncate_records(tmp_path / "none.jsonl", 4) == []


def evaluations(*accuracies: float) -> list[EvaluationRecord]:
    """Make the evaluations of a run after steps 0, 10, 20 and so on, with the best marked as a run marks them."""
    return [
        evaluation(10 * place, each, best=each > max(accuracies[:place], default=-1.0))
        for place, each in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    ("accuracies", "target", "ends"),
    [
        ((0.4, 0.7), 0.7, True),
        ((0.4, 0.8), 0.7, True),
        ((0.4, 0.69), 0.7, False),
        ((0.8, 0.6), 0.7, False),  # the last evaluation counts
        ((0.4, 1.0), None, False),
    ],
)
def test_a_run_ends_at_the_target_accuracy(accuracies: tuple[float, ...], target: float | None, ends: bool) -> None:
    message = end_message(evaluations(*accuracies), target, None)
    assert (message is not None) is ends
    assert message is None or "70.0%" in message


@pytest.mark.parametrize(
    ("accuracies", "patience", "best_step"),
    [
        ((0.5, 0.4), 1, 0),
        ((0.5, 0.4), 2, None),
        ((0.5, 0.4, 0.3), 2, 0),
        ((0.5, 0.5, 0.5), 2, 0),  # equal is not better
        ((0.5, 0.4, 0.6), 2, None),
        ((0.5, 0.4, 0.6, 0.6, 0.55), 2, 20),
        ((0.5, 0.4, 0.3, 0.2), None, None),
        ((0.5,), 1, None),
    ],
)
def test_a_run_ends_without_patience(
    accuracies: tuple[float, ...], patience: int | None, best_step: int | None
) -> None:
    message = end_message(evaluations(*accuracies), None, patience)
    if best_step is None:
        assert message is None
    else:
        assert message is not None
        assert re.findall(r"\d+", message) == [str(patience), str(best_step)]


def test_the_target_is_checked_before_patience() -> None:
    assert end_message([], 0.5, 1) is None
    assert "80.0%" in (end_message(evaluations(0.9, 0.8), 0.8, 1) or "")


def test_an_end_that_cannot_be_recorded_does_not_hide_what_ended_the_attempt(tmp_path: Path) -> None:
    path = tmp_path / "run" / "attempts.jsonl"
    path.parent.mkdir()
    with raises("training.interrupted"), record_attempt(path, 1, 1, 1):
        shutil.rmtree(path.parent)
        raise UnavailableError("training.interrupted", "stopped")
