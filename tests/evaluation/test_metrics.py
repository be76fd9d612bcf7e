"""Metrics: worked examples, and results of scipy."""

import numpy as np
import pytest

from gumshoe.evaluation.metrics import METRICS, Price, accuracy_by_kind, compute_metrics, describe_metric, format_value
from gumshoe.evaluation.predictions import JudgeVerdict
from tests.evaluation.predictions import answers, prediction


def test_worked_examples_of_rates() -> None:
    episodes = [
        prediction(1),
        prediction(2, correct=False, right_source=False, hallucinated_sources=2),
        prediction(3, correct=False, answer="I don't know", does_not_know=True, right_source=False, read=False),
        prediction(4, correct=False, answer=None, ending="max turns", right_source=False, read=False, found=False),
        prediction(5, correct=False, answer=None, ending="no call", right_source=False),
        prediction(6, correct=False, answer=None, ending="unparseable call", right_source=False),
        prediction(7, correct=False, answer=None, ending="context full", right_source=False),
        prediction(8, correct=False, answer=None, ending="unknown tool", right_source=False),
        prediction(9, correct=False, answer=None, ending="bad arguments", right_source=False),
        prediction(10, mistakes=3),
        prediction(11, correct=False, answer=None, ending="truncated", right_source=False),
        prediction(12, correct=False, answer=None, ending="truncated", right_source=False),
    ]
    found = {name: each.value for name, each in compute_metrics(episodes).items()}
    expected = {
        "accuracy": 2,
        "source_accuracy": 2,
        "found": 11,
        "read": 10,
        "answered": 3,
        "does_not_know": 1,
        "hallucinated_sources": 1,
        "unusable": 6,
        "unparseable_call": 1,
        "no_call": 1,
        "unknown_tool": 1,
        "bad_arguments": 1,
        "out_of_turns": 1,
        "context_full": 1,
        "truncated": 2,
        "mistakes": 3,
    }
    assert {name: 12 * found[name] for name in expected} == pytest.approx(expected)


def test_unanswerable_questions_have_a_rate_of_their_own_and_no_sources() -> None:
    unknown = {"answer": "I don't know", "does_not_know": True}
    episodes = [
        prediction(1),
        prediction(2, unanswerable=True, right_source=False, found=False, read=False, **unknown),
        prediction(3, unanswerable=True, right_source=False, found=False, read=False, correct=False),
    ]
    found = compute_metrics(episodes)
    assert (found["unanswerable_accuracy"].value, found["unanswerable_accuracy"].questions) == (0.5, 2)
    assert [found[name].value for name in ("source_accuracy", "found", "read")] == [1, 1, 1]
    assert "unanswerable_accuracy" not in compute_metrics(episodes[:1])


def test_undecided_answers_are_counted_by_the_first_judge() -> None:
    unsure = JudgeVerdict(judge="heuristic", correct=False, why="in other words", is_undecided=True)
    other = JudgeVerdict(judge="exact", correct=False, why="other words")
    episodes = [
        prediction(1),
        prediction(2, correct=False, verdicts=(unsure, other)),
        prediction(3, correct=False, verdicts=(other, unsure)),
        prediction(4),
    ]
    found = compute_metrics(episodes)
    assert (found["undecided"].value, found["accuracy"].value) == (0.25, 0.5)


def test_worked_examples_of_numbers() -> None:
    episodes = [
        prediction(1, turns=2, searches=1, seconds=1.0, reward=1.4, prompt_tokens=100, sampled_tokens=10),
        prediction(2, turns=6, correct=False, searches=3, repeated_searches=1, seconds=3.0, reward=-0.8, sources=[]),
        prediction(3, turns=10, correct=False, answer=None, ending="max turns", empty_searches=2, seconds=8.0),
    ]
    found = {name: each.value for name, each in compute_metrics(episodes).items()}
    assert found["sources_given"] == 0.5
    assert found["turns"] == pytest.approx(6)
    assert found["turns_correct"] == 2
    assert found["turns_gave_up"] == 10
    assert found["searches"] == pytest.approx(5 / 3)
    assert found["repeated_searches"] == pytest.approx(1 / 3)
    assert found["empty_searches"] == pytest.approx(2 / 3)
    assert found["reward"] == pytest.approx((1.4 - 0.8 - 1) / 3)
    assert found["seconds"] == pytest.approx(4)
    assert found["seconds_p50"] == 3
    assert found["seconds_p95"] == pytest.approx(np.quantile([1, 3, 8], 0.95))
    assert found["prompt_tokens"] == pytest.approx(700)
    assert found["sampled_tokens"] == pytest.approx(70)


def test_rates_have_wilson_intervals_and_means_bootstrap_intervals() -> None:
    from scipy import stats  # takes a second to import

    episodes = [prediction(number, correct=number % 3 == 0, turns=1 + number % 7) for number in range(60)]
    found = compute_metrics(episodes)
    wilson = stats.binomtest(20, 60).proportion_ci(method="wilson")
    assert (found["accuracy"].low, found["accuracy"].high) == pytest.approx((wilson.low, wilson.high))
    turns = [each.turns for each in episodes]
    bootstrap = stats.bootstrap((turns,), np.mean, n_resamples=9999, method="percentile", rng=1).confidence_interval
    assert (found["turns"].low, found["turns"].high) == pytest.approx(tuple(bootstrap), abs=0.05)
    assert found["turns"].low < found["turns"].value < found["turns"].high


def test_metrics_that_apply_to_no_episode_are_left_out() -> None:
    found = compute_metrics(answers("---"))
    assert "turns_correct" not in found
    assert "turns_gave_up" not in found
    assert "cost_per_1000" not in found
    assert "spread" not in found
    assert compute_metrics([]) == {}


def test_a_metric_counts_the_questions_it_applies_to() -> None:
    found = compute_metrics(answers("++-"))
    assert found["turns_correct"].questions == 2
    assert found["accuracy"].questions == 3


def test_the_cost_of_a_thousand_questions() -> None:
    price = Price(prompt=2.5, completion=10)
    found = compute_metrics([prediction(1, prompt_tokens=4000, sampled_tokens=200), prediction(2)], price)
    assert found["cost_per_1000"].value == pytest.approx((4000 * 2.5 + 200 * 10 + 1000 * 2.5 + 100 * 10) / 2 / 1000)
    assert "cost_per_1000" not in compute_metrics([prediction(1, prompt_tokens=None, sampled_tokens=None)], price)
    assert "prompt_tokens" not in compute_metrics([prediction(1, prompt_tokens=None, sampled_tokens=None)])


def test_several_episodes_count_once_and_give_pass_at_k_and_spread() -> None:
    episodes = [
        prediction(number, sample=sample, correct=sample < right)
        for number, right in enumerate([4, 2, 0])
        for sample in range(4)
    ]
    found = compute_metrics(episodes)
    assert found["accuracy"].value == pytest.approx(0.5)
    assert found["accuracy"].questions == 3
    assert found["pass@1"].value == pytest.approx(0.5)
    assert found["pass@2"].value == pytest.approx((1 + 5 / 6 + 0) / 3)  # 1 of the 6 pairs has no correct sample
    assert found["pass@4"].value == pytest.approx(2 / 3)
    assert found["spread"].value == pytest.approx(np.std([1, 1, 0, 0], ddof=1) / 3)
    assert "pass@3" not in found


def test_accuracy_by_kind_is_sorted_by_frequency() -> None:
    kinds = ["who", "when", "when", None, "when", "who"]
    episodes = [prediction(number, kind=kind, correct=number % 2 == 0) for number, kind in enumerate(kinds)]
    found = accuracy_by_kind(episodes)
    assert list(found) == ["when", "who"]
    assert [each.value for each in found.values()] == pytest.approx([2 / 3, 1 / 2])
    assert [each.questions for each in found.values()] == [3, 2]
    assert accuracy_by_kind(answers("+-")) == {}


def test_metric_names_are_unique_and_values_are_formatted() -> None:
    names = [each.name for each in METRICS]
    assert len(set(names)) == len(names)
    for name in [*names, "cost_per_1000", "spread", "pass@2"]:
        assert all(describe_metric(name))
        assert format_value(name, 0.5)
    assert format_value("accuracy", 0.1234) == "12.3%"
    assert format_value("pass@2", 0.5) == "50.0%"
    assert format_value("cost_per_1000", 1234.5) == "$1,234.50"
    assert format_value("prompt_tokens", 12345.6) == "12,346"
