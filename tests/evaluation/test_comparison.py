"""Paired comparison and the gate: worked examples, and results of scipy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.gate import Decision, GateSettings, compare_evaluations, decide_gate
from gumshoe.evaluation.results import JudgeResult
from tests.errors import raises
from tests.evaluation.predictions import answers, evaluation, prediction, result
from tests.scenarios.questions import QUICK

FORTY = "+" * 40 + "-" * 60


def test_a_worked_example_of_a_comparison() -> None:
    from scipy import stats  # takes a second to import

    candidate, baseline = answers("++++-", "new"), answers("+---+", "old")
    found = compare_policies(result(candidate), result(baseline))
    assert (found.candidate, found.baseline, found.questions) == ("new", "old", 5)
    assert (found.wins, found.losses, found.ties) == (3, 1, 1)
    assert (found.gained, found.lost) == (("q1", "q2", "q3"), ("q4",))
    assert found.accuracy.candidate == pytest.approx(0.8)
    assert found.accuracy.baseline == pytest.approx(0.4)
    assert found.accuracy.difference == pytest.approx(0.4)
    assert found.p_value == pytest.approx(stats.binomtest(3, 4).pvalue)
    assert found.reward.difference == pytest.approx(0.8)
    assert found.beat_rate.value == pytest.approx((3 + 0.5) / 5)


def test_questions_are_paired_by_their_ids_in_any_order() -> None:
    candidate, baseline = result(answers("++++-", "new")), answers("++---", "old")
    assert compare_policies(candidate, result(baseline[::-1])) == compare_policies(candidate, result(baseline))


@QUICK
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_swapping_the_policies_negates_the_comparison(pairs: list[tuple[bool, bool]]) -> None:
    one, other = (
        result(answers("".join("+-"[not each[side]] for each in pairs), name)) for side, name in enumerate("ab")
    )
    there, back = compare_policies(one, other), compare_policies(other, one)
    assert there.accuracy.difference == pytest.approx(-back.accuracy.difference)
    assert (there.wins, there.losses, there.ties) == (back.losses, back.wins, back.ties)
    assert there.wins + there.losses + there.ties == len(pairs)
    assert there.p_value == back.p_value
    assert there.beat_rate.value == pytest.approx(1 - back.beat_rate.value)
    assert there.accuracy.low <= there.accuracy.difference + 1e-9
    assert there.accuracy.high >= there.accuracy.difference - 1e-9


def test_paired_intervals_are_more_sensitive() -> None:
    """90 and 100 of 200 correct, with 10 questions won and none lost: significant in pairs only."""
    found = compare_policies(
        result(answers("+" * 100 + "-" * 100, "new")), result(answers("+" * 90 + "-" * 110, "old"))
    )
    assert found.accuracy.low > 0
    assert found.p_value < 0.01


@pytest.mark.parametrize(("right", "before", "of"), [(206, 110, 240), (94, 90, 200), (53, 50, 150)])
def test_a_gain_is_exact(right: int, before: int, of: int) -> None:
    candidate, baseline = ("+" * each + "-" * (of - each) for each in (right, before))
    found = compare_policies(result(answers(candidate, "new")), result(answers(baseline, "old")))
    assert found.accuracy.difference == (right - before) / of


def test_means_are_compared_with_several_episodes_per_question() -> None:
    candidate = [prediction(1, policy="new", sample=n, correct=n < 2, reward=float(n)) for n in range(3)]
    baseline = [prediction(1, policy="old", sample=n, correct=n < 1, reward=1.0) for n in range(2)]
    found = compare_policies(result(candidate), result(baseline))
    assert (found.wins, found.losses) == (1, 0)
    assert found.accuracy.difference == pytest.approx(2 / 3 - 1 / 2)
    assert found.beat_rate.value == pytest.approx((0 + 0.5 + 1) / 3)


def test_different_questions_are_rejected() -> None:
    with raises("gate.other-questions", "p and p", "2 and 3"):
        compare_policies(result(answers("++")), result(answers("+++")))
    one, other = result(answers("++")), result(answers("+-"))
    with raises("gate.other-scenarios", "2 and 2"):
        compare_evaluations((evaluation(one, content="a"), one), (evaluation(other, content="b"), other))


def test_evaluations_by_different_code_are_compared_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = result(answers("++", "new")), result(answers("+-", "old"))
    mine, theirs = evaluation(one), evaluation(other).model_copy(update={"code": "1"})
    for code, warns in ((None, False), ("1", False), ("2", True)):
        compare_evaluations((mine.model_copy(update={"code": code}), one), (theirs, other))
        printed = " ".join(capsys.readouterr().err.split())
        assert ("new and old were evaluated by different versions" in printed) == warns


def gate(candidate: str, baseline: str, unusable: int = 0, **settings: float) -> Decision:
    ours = answers(candidate, "new")
    for number in range(unusable):
        ours[-1 - number] = ours[-1 - number].model_copy(update={"ending": "no call", "answer": None})
    policies = result(ours), result(answers(baseline, "old"))
    places = [(evaluation(each), each) for each in policies]
    found = decide_gate(places[0], places[1], GateSettings(**settings))
    assert found.passed == (found.code is None)
    return found


def test_the_gate_passes_a_significantly_better_candidate() -> None:
    found = gate("+" * 60 + "-" * 40, "+" * 40 + "-" * 60)
    assert found.passed
    for value in ("new passes", "100 questions", "60.0%", "old 40.0%", "+20.0%", "won 20 questions", "lost 0"):
        assert value in found.why
    assert "\n" not in found.why
    assert found.why_with_code == found.why


@pytest.mark.parametrize(
    ("candidate", "baseline", "unusable", "settings", "code", "values"),
    [
        (FORTY, FORTY, 0, {}, "gate.gain-too-small", ["gain 0.0% is below 2.0%", "is not above 0.0%"]),
        ("+" * 42 + "-" * 58, "+" * 41 + "-" * 59, 0, {"min_gain": 0}, "gate.lower-bound-too-low", ["above 0.0%"]),
        ("+" * 1000 + "-" * 0, "+" * 990 + "-" * 10, 0, {}, "gate.gain-too-small", ["gain 1.0% is below 2.0%"]),
        ("+" * 60 + "-" * 40, FORTY, 3, {}, "gate.too-many-unusable", ["3.0%", "above 2.0%"]),
        ("+" * 20 + "-" * 80, FORTY, 0, {}, "gate.gain-too-small", ["gain -20.0% is below"]),
        ("+" * 60 + "-" * 89, "-" * 149, 3, {}, "gate.too-many-unusable", ["share 2.01% of", "is above 2.00%"]),
        ("+" * 1020, "+" * 1000 + "-" * 20, 0, {}, "gate.gain-too-small", ["gain 1.96% is below 2.00%"]),
    ],
)
def test_the_gate_rejects_other_candidates_with_reasons(
    candidate: str, baseline: str, unusable: int, settings: dict[str, float], code: str, values: list[str]
) -> None:
    found = gate(candidate, baseline, unusable, **settings)
    assert found.code == code
    for value in ("new does not pass: ", *values):
        assert value in found.why
    assert found.why_with_code.endswith(f" [{code}]")


@pytest.mark.parametrize(("won", "lost"), [(4, 0), (9, 2)])
def test_the_gate_rejects_a_gain_that_may_be_chance(won: int, lost: int) -> None:
    """The interval is above zero, but it is too narrow if few questions changed sides."""
    same = "+" * 40 + "-" * (60 - won - lost)
    found = gate("+" * won + "-" * lost + same, "-" * won + "+" * lost + same, min_gain=0)
    assert found.code == "gate.not-significant"
    assert f"p = {found.comparison.p_value:.2g} " in found.why
    assert found.comparison.p_value > 0.05
    assert found.comparison.accuracy.low > 0


def test_a_p_value_next_to_its_maximum_is_told_apart() -> None:
    better = "+" * 60 + "-" * 40, "+" * 40 + "-" * 60
    p = gate(*better).comparison.p_value
    assert f"p = {p:.3g} (McNemar's exact test) is above 1.9e-06" in gate(*better, max_p=1.9e-6).why


def test_policies_with_different_settings_are_not_compared() -> None:
    one, other = result(answers("++", "new")), result(answers("+-", "old"))
    plain = evaluation(other)
    for changes, code, values in (
        ({"settings": {"temperature": 1.0}}, "gate.other-settings", "settings: temperature 0.0 and temperature 1.0;"),
        ({"samples": 2}, "gate.other-sample-count", "1 and 2"),
        ({"judges": (JudgeResult(name="exact", usage={}),)}, "gate.other-judge", "heuristic and exact"),
        ({"index": "another"}, "gate.other-index", "i and another"),
    ):
        with raises(code, "new and old", values):
            compare_evaluations((evaluation(one), one), (plain.model_copy(update=changes), other))
    elsewhere = other.model_copy(update={"environment": {"name": "email", "limit": 5}})
    with raises("gate.other-environment", "environments: limit unset and limit 5;"):
        compare_evaluations((evaluation(one), one), (evaluation(elsewhere), elsewhere))
    before, since, marked = (
        other.model_copy(update={"environment": {"name": "email", **settings}})
        for settings in ({}, {"marks": False, "attachments": False}, {"marks": True, "attachments": False})
    )
    assert compare_evaluations((evaluation(since), since), (evaluation(before), before)).wins == 0
    with raises("gate.other-environment", "environments: marks True and marks False;"):
        compare_evaluations((evaluation(marked), marked), (evaluation(before), before))
    seeds = [evaluation(each).model_copy(update={"settings": {"seed": seed}}) for seed, each in enumerate((one, other))]
    assert compare_evaluations((seeds[0], one), (seeds[1], other)).wins == 1


def test_the_gate_requires_the_test_split_and_reports_unknown_training_data() -> None:
    one, other = result(answers("+" * 30, "new")), result(answers("-" * 30, "old"))
    for split, said in (("train", "train"), ("validation", "validation"), (None, "all")):
        seen = evaluation(one).model_copy(update={"split": split})
        with raises("gate.not-test-split", "new", f"split {said},"):
            decide_gate((seen, one), (evaluation(other), other), GateSettings())
    unknown = one.model_copy(update={"is_unseen": False})
    found = decide_gate((evaluation(unknown), unknown), (evaluation(other), other), GateSettings())
    assert found.passed
    known = decide_gate((evaluation(one), one), (evaluation(other), other), GateSettings())
    assert known.passed
    assert found.why.startswith(known.why)
    assert "not known" in found.why.removeprefix(known.why)


def test_every_threshold_of_the_gate_is_a_setting() -> None:
    better = ("+" * 60 + "-" * 40, "+" * 40 + "-" * 60)
    assert gate(*better, min_gain=0.21).code == "gate.gain-too-small"
    assert gate(*better, min_gain=0.2).passed
    assert gate(*better, min_lower=0.19).code == "gate.lower-bound-too-low"
    assert gate(*better, 3, max_unusable=0.03).passed
    assert gate(*better, max_p=1e-9).code == "gate.not-significant"
    little = ("+" * 56 + "-" * 44, "+" * 50 + "-" * 50)
    assert gate(*little, level=0.999).code == "gate.lower-bound-too-low"
    assert gate(*little, level=0.8).passed
    same = ("+-", "+-")
    assert gate(*same, min_gain=0, min_lower=-0.01, max_p=1).passed


def test_thresholds_have_known_names_and_numbers() -> None:
    assert GateSettings.from_mapping({}) == GateSettings()
    assert GateSettings.from_mapping({"min_gain": 0.1}) == GateSettings(min_gain=0.1)
    assert GateSettings.from_mapping({"min_gain": 0, "max_p": 1.0}) == GateSettings(min_gain=0, max_p=1)
    for name, value in (
        ("min_gain", True),
        ("min_gain", "0.1"),
        ("min_gain", math.nan),
        ("max_p", 1.5),
        ("max_unusable", -0.1),
        ("level", 95),
    ):
        with raises("gate.invalid-threshold", f"{name}: ", f"got {value!r}"):
            GateSettings.from_mapping({name: value})
    with raises("gate.invalid-threshold", "min_gains: ", "min_gain (float, 0.02 by default), min_lower"):
        GateSettings.from_mapping({"min_gains": 0.1})


def test_a_decision_without_a_code_is_read() -> None:
    old = gate(FORTY, FORTY).model_dump(mode="json", exclude={"code"})
    found = Decision.model_validate(old)
    assert (found.passed, found.code, found.why_with_code) == (False, None, found.why)


def test_the_gate_requires_the_whole_split() -> None:
    one, other = result(answers("++", "new")), result(answers("--", "old"))
    with raises("gate.partial-split", "new", "--limit"):
        decide_gate((evaluation(one, is_whole=False), one), (evaluation(other), other), GateSettings())
    with raises("gate.partial-split", "old", "--limit"):
        decide_gate((evaluation(one), one), (evaluation(other, is_whole=False), other), GateSettings())


@pytest.mark.nightly
def test_the_paired_interval_has_its_nominal_coverage() -> None:
    """200 simulated evaluations of two correlated policies with an accuracy of 50 % and 60 %."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        old = rng.random(150) < 0.5
        new = np.where(rng.random(150) < 0.3, rng.random(150) < 0.5 + 0.1 / 0.3, old)
        signs = ["".join("-+"[int(each)] for each in side) for side in (new, old)]
        found = compare_policies(result(answers(signs[0], "new")), result(answers(signs[1], "old"))).accuracy
        covered += found.low <= 0.1 <= found.high
    assert 0.9 <= covered / 200 <= 0.99
