"""The heuristic judge: the rule that decides, and its accuracy on labelled answers."""

import asyncio
from collections import Counter
from dataclasses import asdict
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.rewards.heuristic.heuristic_judge import HeuristicJudge, judge_answer
from gumshoe.rewards.scoring import Calibration, LabelledAnswer, calibrate, read_labelled
from tests.doc_pages import DOCS
from tests.rewards.fresh_answers import Half, fresh_answers
from tests.rewards.real_answers import labelled_answers
from tests.scenarios.questions import QUICK, scenario

LABELLED = Path(__file__).parents[1] / "labelled_answers.jsonl"
WHO, KIM = "Who chairs the audit?", "Kim Nguyen"
WHEN, DAY = "When is the audit?", "Tuesday, May 8th"
HOW_MUCH, SUM = "How much is the lease?", "$298,000"
CHANGED, CHANGE = "How did the chair change?", "From Kim Nguyen to Bo Ek."
MAY, YES = "May we use video?", "Yes. Kim Nguyen has approved video."
NO = "No. Kim Nguyen has turned down video."
WHERE, PLACE = "Where is the site office?", "38 Saddler Quay, Colchester"
STREET = "Weißstraße, Gießen"  # longer in folded case
WHY, CAUSE = "Why did the date change?", "there is a rail strike on the first date"


@pytest.mark.parametrize(
    ("question", "reference", "answer", "correct", "rule"),
    [
        (WHO, KIM, "kim nguyen.", True, "same text"),
        (WHO, KIM, "The audit is chaired by Kim Nguyen.", True, "words"),
        (WHO, KIM, "Nguyen, Kim", True, "words"),
        (WHO, KIM, "Ms Nguyen (Kim)", True, "words"),
        (WHO, KIM, "Kim Nguyen. Bo Ek has stepped aside, as there is leave coming up.", True, "words"),
        (WHO, KIM, "Kim", False, "words"),
        (WHO, KIM, "Kim Nguyens", False, "words"),
        (WHO, KIM, "Bo Ek", False, "words"),
        (WHO, KIM, "Kim Nguyen or Bo Ek", False, "alternatives"),
        (WHO, KIM, "Kim Nguyen / Bo Ek", False, "second answer"),
        (WHO, KIM, "Bo Ek, Kim Nguyen", False, "candidates"),
        (WHO, KIM, "Kim Nguyen chairs the audit. Bo Ek chairs the audit.", False, "candidates"),
        (WHO, KIM, "Possibly Kim Nguyen.", False, "hedge"),
        (WHO, KIM, "I am not sure; Kim Nguyen?", False, "hedge"),
        (WHO, KIM, "It is not Kim Nguyen", False, "flatly denied"),
        (WHO, KIM, "Kim Nguyen is no longer the chair", False, "denied"),
        (WHO, KIM, "I don't know", False, "no answer"),
        (WHO, KIM, "", False, "no answer"),
        (WHO, KIM, f"Kim Nguyen{'.' * 801}", False, "dump"),
        (WHO, KIM, f"Kim Nguyen{'.' * 800}", True, "same text"),
        (WHO, KIM, "From: Bo Ek\nSubject: Audit\n\nThe chair is Kim Nguyen.", False, "dump"),
        (WHO, KIM, "The chair is Kim Nguyen. Best wishes, Bo", False, "dump"),
        (WHO, KIM, f"Kim Nguyen. {'He likes apples and pears. ' * 12}", False, "dump"),
        (WHO, KIM, "Subject: Kim Nguyen", True, "words"),
        (WHO, KIM, f"The audit? {'Who chairs the audit? ' * 120} Kim Nguyen", False, "dump"),
        (WHO, "Kim Nguyen, who joined in May, chairs it with verve.", "Kim Nguyen", True, "words"),
        (WHO, "Kim Nguyen, 713 853 6388", "Kim Nguyen, 713 853 6389", False, "values"),
        (WHEN, DAY, "5/8/2001", True, "words"),
        (WHEN, DAY, "On 8 May.", True, "words"),
        (WHEN, DAY, "9 May", False, "values"),
        (WHEN, DAY, "Wednesday, May 8th", False, "values"),
        (WHEN, DAY, "in May", False, "values"),
        (WHEN, DAY, "8 May or 9 May", False, "alternatives"),
        (WHEN, DAY, "8 May, 9 May", False, "candidates"),
        (WHEN, DAY, "8 May; it was on 1 May before", True, "words"),
        (HOW_MUCH, SUM, "298 thousand dollars", True, "words"),
        (HOW_MUCH, SUM, "$289,000", False, "values"),
        (CHANGED, CHANGE, "Bo Ek replaced Kim Nguyen", True, "change"),
        (CHANGED, CHANGE, "Kim Nguyen before, Bo Ek now", True, "change"),
        (CHANGED, CHANGE, "Kim Nguyen took over from Bo Ek", False, "change"),
        (CHANGED, CHANGE, "From Bo Ek to Kim Nguyen", False, "change"),
        (CHANGED, CHANGE, "Bo Ek", False, "change"),
        (MAY, YES, "Yes", True, "yes or no"),
        (MAY, YES, "We did. It has been signed off.", True, "yes or no"),
        (MAY, YES, "Kim Nguyen has not approved video", False, "yes or no"),
        (MAY, YES, "No, she turned it down", False, "yes or no"),
        (MAY, YES, "Yes. No.", False, "yes or no"),
        (MAY, YES, "Yes, Kim turned it down", False, "yes or no"),
        (MAY, NO, "It was rejected, I'm afraid.", True, "yes or no"),
        (MAY, NO, "She agreed to it", False, "yes or no"),
        (MAY, NO, "Video", False, "yes or no"),
        (WHERE, PLACE, "at 38 Saddler Quay in Colchester", True, "words"),
        (WHERE, PLACE, "83 Saddler Quay, Colchester", False, "values"),
        (WHERE, PLACE, "Saddler Quay, Colchester", False, "values"),
        (WHERE, PLACE, "38 Saddler Quay, Derby", False, "words"),
        (WHERE, STREET, "WEISSSTRASSE, Gießen", True, "same text"),
        (WHERE, STREET, f"{STREET}: no", False, "flatly denied"),
        (WHERE, STREET, "WEISSSTRASSE, GIESSEN: NO", False, "flatly denied"),
        (WHERE, STREET, f"At Schloß Groß-Maß, not {STREET}", False, "flatly denied"),
        (WHERE, STREET, f"{STREET}; the old dairy barn", False, "second answer"),
        (WHERE, "Weißstraße. Gießen", "Weißstraße. Gießen OR so", False, "alternatives"),
        (WHERE, "14 Elm Rd", "14 Elm Road", True, "words"),
        ("What is it?", "Option A", "Option B", False, "words"),
        ("What is it?", "A", "banana", False, "words"),
        (WHO, "John J. Lavorato", "John Lavorato", True, "words"),
        (WHO, "Jos\u00e9 Garc\u00eda", "Dr. Jose Garcia", True, "words"),
        (WHO, KIM, "Kim Nguyen, Senior Counsel", True, "words"),
        (WHO, "Kay", "Kay Mark Sara Tom Ann Bob Lee Dan", False, "candidates"),
        (WHO, KIM, "bo ek, ann lee, kim nguyen, cy ay, di fo", False, "candidates"),
        (WHO, KIM, "- Bo Ek\n- Kim Nguyen\n- Ann Lee\n- Cy Ay", False, "second answer"),
        (WHO, KIM, "Kim Nguyen versus Bo Ek", False, "alternatives"),
        (WHO, KIM, "Kim Nguyen is wrong", False, "flatly denied"),
        (WHO, KIM, "It used to be Kim Nguyen", False, "denied"),
        (WHO, KIM, "Bo Ek replaced Kim Nguyen", False, "denied"),
        (WHO, KIM, "Most likely Kim Nguyen", False, "hedge"),
        ("Is it Acme or Apex?", "Acme", "Apex. Acme.", False, "alternatives"),
        ("Is it Acme or Apex?", "Acme", "Acme, not Apex", True, "words"),
        (HOW_MUCH, "$5", "$5/MMBtu", True, "words"),
        (HOW_MUCH, SUM, "previously $298,000, now $310,000", False, "denied"),
        ("How many?", "7 people", "1, 2, 3, 4, 5, 6, 7, 8", False, "candidates"),
        ("How many?", "7 people", "5%, 6%, 7%", False, "values"),
        ("How many?", "10", "at least 10", False, "values"),
        ("When?", "May 8", "May 8-31", False, "values"),
        (MAY, YES, "Yes and no", False, "yes or no"),
        (MAY, NO, "no evidence", False, "no answer"),
        ("Will Kay attend?", "Yes, on May 8", "Kay will attend.", True, "yes or no"),
        ("Will Kay attend?", "Yes, on May 8", "Yes, on May 9", False, "yes or no"),
        (WHY, CAUSE, "A rail strike falls on the first date.", True, "words"),
        (WHY, CAUSE, "the venue was flooded", False, "words"),
    ],
)
def test_the_rule_that_decides(question: str, reference: str, answer: str, correct: bool, rule: str) -> None:
    verdict = judge_answer(question, reference, answer, date(2001, 5, 4))
    assert (verdict.correct, verdict.rule) == (correct, rule)
    assert verdict.why


DUE, BY = "When must the form be in?", "No later than 15 May"
GUESTS, MOST = "How many people may come?", "No more than 20 people"
WHO_AGREED, COST = "Who approved it?", "What does the visit cost?"
MILL, LANE = "Where is the mill?", "No. 12 Mill Lane"
MEET, LUNCH = "When do we meet?", "Right after lunch"


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        (DUE, BY, ["By 15 May", "15 May at the latest", BY], ["No.", "By 16 May", "after 15 May", "from 15 May"]),
        ("When didn't he attend?", "No earlier than 15 May", ["no earlier than 15 May"], ["No.", "By 15 May"]),
        (DUE, "It is no later than 15 May", ["By 15 May"], ["No.", "By 16 May"]),
        ("Do you know when it is due?", BY, ["By 15 May"], ["No.", "By 16 May"]),
        (GUESTS, MOST, ["at most 20", "up to 20 people", MOST], ["No", "more than 20", "no more than 30"]),
        (WHO_AGREED, "No one", ["Nobody", "No one approved it."], ["No", KIM, "Nobody but Kim Nguyen", "Nobody knows"]),
        (COST, "No charge", ["There is no charge."], ["No", "There is a charge", "$5"]),
        (COST, "There is no charge", ["No charge"], ["There is a charge"]),
        (MILL, LANE, ["12 Mill Lane", "No 12 Mill Lane"], ["No", "No. 14 Mill Lane"]),
        (MILL, "No 12 Mill Lane", ["12 Mill Lane"], ["No", "No 14 Mill Lane"]),
        (MEET, LUNCH, ["We meet right after lunch."], ["Yes", "Right before lunch"]),
        ("Where was the job posted?", "Indeed", ["On Indeed."], ["Yes", "LinkedIn"]),
    ],
)
def test_no_and_right_are_not_always_verdicts(
    question: str, reference: str, correct: list[str], wrong: list[str]
) -> None:
    accepted = {each: judge_answer(question, reference, each, date(2001, 5, 4)).correct for each in correct + wrong}
    assert accepted == dict.fromkeys(correct, True) | dict.fromkeys(wrong, False)


@pytest.mark.parametrize(
    ("question", "reference", "is_yes"),
    [
        ("Is there a charge?", "No charge", False),
        ("Was it approved?", "Indeed", True),
        ("Kim approved it, didn't she?", "Right", True),
        ("What did Kim say about video?", "No, she turned it down", False),
        ("What did Kim say about video?", "No because it costs too much", False),
        ("Has anyone approved it?", "Yes", True),
    ],
)
def test_a_verdict_is_compared_only_with_a_verdict(question: str, reference: str, is_yes: bool) -> None:
    verdicts = {each: judge_answer(question, reference, each) for each in ("Yes", "No")}
    assert {each: verdict.correct for each, verdict in verdicts.items()} == {"Yes": is_yes, "No": not is_yes}


def test_nobody_says_no() -> None:
    for said in ("No one has.", "Nobody has."):
        assert [judge_answer("Has anyone approved it?", each, said).correct for each in ("Yes", "No")] == [False, True]


def calibrate_heuristic(answers: list[LabelledAnswer]) -> Calibration:
    return asyncio.run(calibrate(answers, HeuristicJudge(), lambda *_, **__: None))


def test_it_agrees_with_the_labels_of_synthetic_answers() -> None:
    """Written by hand. The second half was not used to develop the rules; 145 of its 150 verdicts were correct."""
    answers = read_labelled(str(LABELLED))
    assert len(answers) == 300
    assert 0.45 < sum(each.correct for each in answers) / 300 < 0.55
    found = calibrate_heuristic(answers)
    assert found.accuracy > 0.97
    assert found.table[False, True] <= 2, "what is wrong is hardly ever taken for right"
    assert not found.failures
    page = (DOCS / "results" / "judges.md").read_text()
    cells = " | ".join(str(found.table[label, said]) for label in (True, False) for said in (True, False))
    assert f"| synthetic | {found.accuracy:.1%} | {cells} |" in page


@pytest.mark.ci
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.usefixtures("shared_data")
def test_it_agrees_with_the_labels_of_real_answers(seed: int) -> None:
    made = [LabelledAnswer.model_validate(vars(each)) for each in labelled_answers(seed)]
    assert Counter(each.correct for each in made) == {True: 150, False: 150}
    found = calibrate_heuristic(made)
    assert found.accuracy > 0.97
    assert all(count[True] / count.total() > 0.85 for count in found.kinds.values()), found.kinds


@pytest.mark.parametrize("half", ["first", "second"])
def test_it_agrees_with_fresh_labels(half: Half) -> None:
    """Made by templates. The second half, with other forms and words, was not used to develop the rules."""
    made = [LabelledAnswer.model_validate(asdict(each)) for each in fresh_answers(half)]
    assert len(made) == 250
    rates = calibrate_heuristic(made).rates
    assert rates["false acceptances"].share <= 0.01
    assert rates["false refusals"].share <= 0.05
    assert rates["undecided"].share <= 0.10


TEXTS = st.text(max_size=40) | st.sampled_from([KIM, DAY, SUM, CHANGE, YES, NO, PLACE, CAUSE, WHO, "yes", "no or 3"])


@QUICK
@given(TEXTS, TEXTS, TEXTS, st.none() | st.dates(date(1900, 1, 1), date(2100, 1, 1)))
def test_any_texts_get_a_verdict(question: str, reference: str, answer: str, asked: date | None) -> None:
    assert judge_answer(question, reference, answer, asked).why


def test_it_judges_a_scenario() -> None:
    verdict = asyncio.run(HeuristicJudge().verdict(scenario(1), "It says: Body of message 1"))
    assert verdict.correct
