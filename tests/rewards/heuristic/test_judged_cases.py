"""The heuristic judge on cases of one kind each: signs, units, codes, roles, negation, and other wordings."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gumshoe.rewards.heuristic.heuristic_judge import judge_answer

OWN = Path(__file__).parents[1] / "judged_cases.jsonl"
SHARED = Path(__file__).parents[4] / "shared" / "cases" / "judge.jsonl"


def read_cases(path: Path) -> list[Any]:
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else []):
        case = json.loads(line)
        found.append(pytest.param(case, id=f"{number}-{case['kind']}"))
    return found


def check(case: dict[str, Any]) -> None:
    verdict = judge_answer(case["question"], case["reference"], case["answer"], date.fromisoformat(case["query_date"]))
    assert verdict.correct == case["correct"], verdict
    assert not (case["correct"] and verdict.is_undecided)


@pytest.mark.parametrize("case", read_cases(OWN))
def test_own_cases(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.skipif(not SHARED.exists(), reason=f"needs {SHARED}")
@pytest.mark.parametrize("case", read_cases(SHARED))
def test_shared_cases(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.parametrize(
    ("question", "reference", "answer", "rule"),
    [
        ("Why did it stop?", "a blocked filter", "the filter was clogged", "words"),
        ("How many may come?", "more than 40", "40", "values"),
        ("What is owed?", "the landlord pays the tenant", "the tenant pays the landlord", "roles"),
        ("Which firm is it?", "Zellmark Electrical", "PO-83879 Zellmark Electrical", "second answer"),
    ],
)
def test_what_the_rules_cannot_decide(question: str, reference: str, answer: str, rule: str) -> None:
    verdict = judge_answer(question, reference, answer)
    assert (verdict.correct, verdict.is_undecided, verdict.rule) == (False, True, rule)


def test_a_doubt_does_not_save_an_answer_that_another_rule_rejects() -> None:
    verdict = judge_answer("How many may come?", "more than 40 people", "40 people or 50 people")
    assert (verdict.correct, verdict.is_undecided) == (False, False)
