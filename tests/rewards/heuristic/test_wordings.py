"""The heuristic judge on wordings that look like something else: each table has answers to accept and to refuse."""

from datetime import date

import pytest

from gumshoe.rewards.heuristic.heuristic_judge import judge_answer

ASKED = date(2001, 5, 4)


def check(question: str, reference: str, correct: list[str], wrong: list[str]) -> None:
    accepted = {each: judge_answer(question, reference, each, ASKED).correct for each in correct + wrong}
    assert accepted == dict.fromkeys(correct, True) | dict.fromkeys(wrong, False)


WHERE, GRADE = "Where does she work?", "Which grade did it get?"


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        ("Which country is it?", "US", ["US", "the US", "It is the US."], ["UK", "it is for us all", "it"]),
        (WHERE, "the IT department", ["She works in the IT department."], ["the HR department", "the department"]),
        ("Which department is it?", "the IT department", ["IT", "In IT."], ["HR", "the HR department", "department"]),
        (WHERE, "in the US office in Tulsa", ["US office, Tulsa"], ["the UK office in Tulsa", "the office in Tulsa"]),
        ("Who sent it?", "the WHO", ["WHO", "It was the WHO."], ["the UN", "the man who called"]),
        ("WHO CHAIRS IT?", "KIM NGUYEN IS", ["KIM NGUYEN", "Kim Nguyen"], ["BO EK", "IT IS BO EK"]),
        (WHERE, "in the US", ["IN THE US"], ["IN THE UK"]),
        ("Who may come?", "ALL staff", ["all staff"], ["no staff"]),
        (GRADE, "A", ["A", "grade A", "Grade A."], ["B", "grade B", "a grade"]),
        (GRADE, "grade A", ["A", "It got grade A."], ["B", "grade B", "a grade"]),
        ("Which plan did they choose?", "plan B.", ["They chose plan B."], ["They chose plan C.", "plan"]),
        ("Which illness is it?", "type I diabetes", ["type I diabetes"], ["type II diabetes", "diabetes"]),
        ("Who is invited?", "All", ["All", "all"], ["None", "Bo Ek", "it"]),
    ],
)
def test_acronyms_and_letters_that_spell_a_stop_word(
    question: str, reference: str, correct: list[str], wrong: list[str]
) -> None:
    check(question, reference, correct, wrong)


@pytest.mark.parametrize("answer", ["", " ", ".", "?"])
def test_an_empty_answer_is_wrong_even_for_an_empty_reference(answer: str) -> None:
    assert not any(judge_answer("Which team?", each, answer).correct for each in ("", ".", "..."))
