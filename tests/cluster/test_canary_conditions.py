"""Test the conditions of `gumshoe promote --when`: what is understood, and what they say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.cluster.canary_conditions import (
    DEFAULT_CONDITION,
    NOTHING,
    Condition,
    ConditionGroup,
    MeasureComparison,
    allow_tolerance,
    count_alternatives,
    default_rollback,
    list_comparisons,
    negate,
    parse_condition,
    without_measure,
)
from gumshoe.cluster.canary_measures import CanaryEvidence, PolicyCounts
from gumshoe.errors import UsageError
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("corrections <= baseline", MeasureComparison("corrections", "<=", 1, 0, is_bare=True)),
        ("success>=baseline-2%", MeasureComparison("success", ">=", 1, -0.02)),
        ("errors <= 1%", MeasureComparison("errors", "<=", 0, 0.01)),
        ("errors < .01", MeasureComparison("errors", "<", 0, 0.01)),
        ("latency_p95 <= 1.2 * baseline", MeasureComparison("latency", "<=", 1.2, 0, 0.95)),
        ("latency_p50 > baseline * 2 + 500ms", MeasureComparison("latency", ">", 2, 0.5, 0.5)),
        ("latency_p99 <= 1.5min", MeasureComparison("latency", "<=", 0, 90, 0.99)),
        ("never", NOTHING),
    ],
)
def test_a_comparison_is_understood(text: str, meant: Condition) -> None:
    assert parse_condition(text) == meant


def test_and_binds_stronger_than_or() -> None:
    a, b, c = (MeasureComparison(each, "<=", 0, 0.01) for each in ("success", "errors", "corrections"))
    texts = [f"{each.measure} <= 1%" for each in (a, b, c)]
    assert parse_condition("{} or {} and {}".format(*texts)) == ConditionGroup("or", (a, ConditionGroup("and", (b, c))))
    assert parse_condition("({} or {}) and {}".format(*texts)) == ConditionGroup(
        "and", (ConditionGroup("or", (a, b)), c)
    )


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ["character 1", "the end"]),
        ("succes >= 1", ["succes", "success"]),
        ("latency <= 2s", ["latency", "latency_p95"]),
        ("success = 1", ["'='"]),
        ("success >= 90", ["90%"]),
        ("errors <= 1s", ["errors", "1s"]),
        ("latency_p95 <= 20", ["latency_p95", "20s"]),
        ("latency_p95 <= baseline + 2", ["latency_p95", "2s"]),
        ("latency_p100 <= 2s", ["latency_p100"]),
        ("(errors <= 1%", ["character 14"]),
        ("errors <= 1% and", ["character 17"]),
        ("errors <= 1% errors", ["character 14", "errors"]),
        ("errors <= 0 * baseline", ["0"]),
        ("errors < 0", ["errors < 0%"]),
        ("errors <= 1%%", ["1%%"]),
        ("(" * 30 + "errors <= 1%" + ")" * 30, ["20"]),
        ("errors <= 1% or " * 200 + "never", ["2,000"]),
    ],
)
def test_what_is_not_a_condition_is_refused(text: str, values: list[str]) -> None:
    with raises("deploy.invalid-condition", *values):
        parse_condition(text)


def _comparisons() -> st.SearchStrategy[str]:
    rates = st.sampled_from(["success", "errors", "corrections"])
    rate_bounds = st.sampled_from(["baseline", "baseline + 2%", "1.5 * baseline - 1%", "3%", "baseline + 0%"])
    latencies, latency_bounds = (
        st.sampled_from(["latency_p50", "latency_p95"]),
        st.sampled_from(["2s", "1.2 * baseline"]),
    )
    operators = st.sampled_from(["<=", ">=", "<", ">"])
    return st.one_of(st.tuples(rates, operators, rate_bounds), st.tuples(latencies, operators, latency_bounds)).map(
        " ".join
    )


def _join(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(parts, min_size=2, max_size=3)
    return st.one_of(lists.map(" and ".join), lists.map(" or ".join)).map(lambda text: f"({text})")


CONDITIONS = st.recursive(_comparisons(), _join, max_leaves=6).map(parse_condition)


@given(CONDITIONS)
def test_a_condition_that_is_printed_is_the_same(condition: Condition) -> None:
    again = parse_condition(str(condition))
    assert list(list_comparisons(again)) == list(list_comparisons(condition))
    assert str(again) == str(condition)
    assert negate(negate(condition)) == condition
    assert 1 <= count_alternatives(condition) <= len([*list_comparisons(condition)])


COUNTS = st.integers(0, 400)


@given(CONDITIONS, st.tuples(*[COUNTS] * 8))
def test_a_condition_and_its_opposite_are_never_both_shown(condition: Condition, numbers: Any) -> None:
    canary, baseline = (
        PolicyCounts({"answered": a, "unanswered": b, "failed": c}, {"right": d, "wrong": min(a, d)})
        for a, b, c, d in (numbers[:4], numbers[4:])
    )
    measured = CanaryEvidence(canary, baseline)
    assert not (measured.is_met(condition, 0.2) and measured.is_met(negate(condition), 0.2))


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_is_refused_by_code(text: str) -> None:
    try:
        found = str(parse_condition(text))
    except UsageError as error:
        found = error.code
    assert found


def test_a_rollback_has_the_opposite_of_the_promotion_and_the_other_measures() -> None:
    rollback = default_rollback(parse_condition("corrections <= baseline + 1%"))
    assert [str(each) for each in list_comparisons(rollback)] == [
        "corrections > baseline + 1%",
        "success < baseline",
        "errors > baseline",
        "latency_p95 > 1.5 * baseline",
    ]
    assert count_alternatives(rollback) == 4, "each can roll back wrongly, so they share the error"
    assert "corrections > baseline" in str(default_rollback(NOTHING))


def test_only_comparisons_with_the_bare_baseline_get_a_tolerance() -> None:
    text = "success >= baseline and errors <= baseline + 0% and latency_p95 <= baseline and corrections <= 1%"
    assert str(allow_tolerance(parse_condition(text))) == (
        "success >= baseline - 5% and errors <= baseline + 0% and latency_p95 <= 1.2 * baseline and corrections <= 1%"
    )


def test_nothing_is_left_to_decide_without_the_only_measure() -> None:
    assert without_measure(parse_condition("errors <= 1% or errors <= baseline"), "errors") == NOTHING
    assert "errors" not in str(without_measure(parse_condition(DEFAULT_CONDITION), "errors"))
    measured = CanaryEvidence(PolicyCounts({"answered": 1000}), PolicyCounts({"answered": 1000}))
    assert not measured.is_met(NOTHING, 0.5)
    assert not measured.is_met(negate(NOTHING), 0.5), "what never promotes does not always roll back"
