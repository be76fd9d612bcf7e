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


BESIDE = [
    "a blocked filter, the paperwork was held up",
    "a blocked filter and the paperwork was held up",
    "a blocked filter\n- the paperwork was held up",
    "the paperwork was held up - a blocked filter",
    "the paperwork was held up (aka a blocked filter)",
    "a blocked filter (the paperwork was held up)",
]
"""Answers with a phrase that has nothing to do with question or reference."""

UNLIKE = ["bread, milk and butter", "bread and milk", "bread, milk, and cheese", "They bought milk and eggs."]
"""Lists with one wrong or missing item."""
RELATED = [
    "Anna Lee's deputy approved it.",
    "the husband of Anna Lee",
    "Anna Lee's team",
    "the deputy of Ms. Anna Lee",
]
"""Other people, named by the person of the reference."""


@pytest.mark.parametrize(
    ("question", "reference", "answer", "rule"),
    [
        ("Why did it stop?", "a blocked filter", "the filter was clogged", "words"),
        ("How many may come?", "more than 40", "40", "values"),
        ("What is owed?", "the landlord pays the tenant", "the tenant pays the landlord", "roles"),
        ("What was ordered?", "12 chairs", "They ordered 12 tables.", "words"),
        ("What was ordered?", "12 chairs and 3 tables", "12 tables and 3 chairs", "words"),
        ("What was damaged?", "two laptops", "2 monitors were damaged", "words"),
        ("What happened?", "3 employees resigned", "3 customers resigned", "words"),
        *(("What did they buy?", "bread, milk and eggs", each, "words") for each in UNLIKE),
        ("What is broken?", "the pump, the valve and the filter", "The pump, valve and motor.", "words"),
        *(("Who approved it?", "Anna Lee", each, "related") for each in RELATED),
        ("Which firm is it?", "Zellmark Electrical", "PO-83879 Zellmark Electrical", "second answer"),
        *(("Why did it stop?", "a blocked filter", each, "second answer") for each in BESIDE),
    ],
)
def test_what_the_rules_cannot_decide(question: str, reference: str, answer: str, rule: str) -> None:
    verdict = judge_answer(question, reference, answer)
    assert (verdict.correct, verdict.is_undecided, verdict.rule) == (False, True, rule)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("a blocked filter", "a blocked filter, reported by the technician on duty"),
        ("a blocked filter", "a blocked filter, which was cleaned in the morning"),
        ("a blocked filter", "a blocked filter (according to the technician)"),
        ("a blocked filter", "a blocked filter, so the pump was stopped"),
        ("7 weeks", "7 weeks; the landlord has agreed to that"),
    ],
)
def test_what_belongs_to_the_answer_may_follow_it(reference: str, answer: str) -> None:
    assert judge_answer("Why did the pump stop?", reference, answer).correct


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        ("What was delivered?", "500 units", "500"),
        ("What was delivered?", "500 units", "500 arrived"),
        ("What was ordered?", "12 chairs", "12 new chairs"),
        ("What was ordered?", "12 chairs and 3 tables", "3 tables and 12 chairs"),
        ("What was ordered?", "2 chairs and 2 tables", "2 tables and 2 chairs"),
        ("How many came?", "500 people", "500 guests"),
    ],
)
def test_what_a_number_counts_may_be_left_out(question: str, reference: str, answer: str) -> None:
    assert judge_answer(question, reference, answer).correct


def test_yes_and_no_in_one_answer_are_no_answer() -> None:
    yes, no = "Yes. Ann Lee has approved the move", "No. Ann Lee has turned down the hire car"
    for joint in (" ", " and ", ", ", " ("):
        assert not judge_answer("Was the move approved?", f"{yes}.", yes + joint + no).correct
    assert judge_answer("Was the move approved?", f"{yes}.", f"{yes} in room No. 5").correct


def test_a_doubt_does_not_save_an_answer_that_another_rule_rejects() -> None:
    verdict = judge_answer("How many may come?", "more than 40 people", "40 people or 50 people")
    assert (verdict.correct, verdict.is_undecided) == (False, False)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("bread, milk and eggs", "They bought some eggs, a bottle of milk and bread."),
        ("a blocked filter and a broken valve", "The filter was clogged and the valve broken."),
        ("travel & hotel costs", "hotel costs and travel"),
    ],
)
def test_the_items_of_a_list_may_have_another_order(reference: str, answer: str) -> None:
    assert judge_answer("What was on the list?", reference, answer).correct


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        ("Who approved it?", "Anna Lee", "According to Anna Lee's mail, Anna Lee approved it."),
        ("Who approved it?", "Anna Lee", "It's Anna Lee's approval."),
        ("Who approved it?", "Anna Lee's deputy", "Anna Lee's deputy"),
        ("Who is on the panel?", "Anna Lee and Bob Ray", "The panel consists of Anna Lee and Bob Ray."),
        ("Whose lorry is it?", "Anna Lee", "It is Anna Lee's lorry."),
    ],
)
def test_a_possessive_may_name_the_right_person(question: str, reference: str, answer: str) -> None:
    assert judge_answer(question, reference, answer).correct


START, DEADLINE = "When does the course start?", "Which date is the deadline before which we must pay?"
MEETING, CFO, HOTEL, SITE = "When is it?", "Who is CFO?", "Which hotel did they choose?", "Where is the office?"


@pytest.mark.parametrize(
    ("question", "old", "new", "answer"),
    [
        (MEETING, "May 8", "May 9", "The meeting was moved from May 8 to May 9."),
        (MEETING, "Tuesday", "Wednesday", "It was moved from Tuesday to Wednesday."),
        ("What is the price?", "$5,000", "$6,000", "The price rose from $5,000 to $6,000."),
        ("How many?", "40", "50", "It was 40, then 50."),
        ("What is the rent?", "$5,000", "$6,000", "It was $5,000 but was raised to $6,000 in spring."),
        (CFO, "Anna Lee", "Bob Ray", "Anna Lee was replaced by Bob Ray."),
        (CFO, "Anna Lee", "Bob Ray", "Anna Lee was succeeded as chief financial officer by Bob Ray in spring."),
        (CFO, "Anna Lee", "Bob Ray", "Bob Ray took over from Anna Lee."),
        (CFO, "Anna Lee", "Bob Ray", "Bob Ray succeeded Anna Lee."),
        (HOTEL, "Hilton", "Ritz", "They chose the Ritz over the Hilton."),
        (HOTEL, "Hilton", "Ritz", "The Hilton was full, so the Ritz."),
        (HOTEL, "Hilton", "Ritz", "They switched from the Hilton to the Ritz."),
        (SITE, "Berlin", "Paris", "The office moved from Berlin to Paris."),
        (START, "May 8", "May 9", "It was moved from May 8 to May 9"),
        (START, "May 8", "May 9", "The start was postponed from May 8 to May 9."),
        (START, "May 8", "May 9", "The start is now May 9 instead of May 8."),
        (START, "May 8", "May 9", "It was previously May 8, now May 9."),
        ("Which firm starts?", "Acme", "Zell", "Acme was replaced by Zell."),
        ("When does the move start?", "May 8", "May 9", "The move was postponed from May 8 to May 9."),
        ("When does Ann leave?", "May 8", "May 9", "Her last day was moved from May 8 to May 9."),
        ("Where does the race start?", "Rome", "Paris", "The start was moved from Rome to Paris."),
        ("When is it open from?", "May 8", "May 9", "The opening was moved from May 8 to May 9."),
        ("What is the price from May?", "$5,000", "$6,000", "The price rose from $5,000 to $6,000."),
        (DEADLINE, "May 8", "May 9", "It was extended from May 8 to May 9"),
        ("Until when was it extended?", "May 8", "May 9", "It was extended from May 8 to May 9."),
    ],
)
def test_only_the_new_value_of_a_change_is_right(question: str, old: str, new: str, answer: str) -> None:
    assert judge_answer(question, new, answer, date(2001, 5, 4)).correct
    assert not judge_answer(question, old, answer, date(2001, 5, 4)).correct


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        ("Where did Anna fly from?", "Berlin", "Anna flew from Berlin to Paris."),
        ("What was the old price?", "$5,000", "The price rose from $5,000 to $6,000."),
        ("Who did Bob Ray replace?", "Anna Lee", "Bob Ray replaced Anna Lee."),
        ("Who wrote the letter?", "Anna Lee", "The letter was sent from Anna Lee to Bob Ray."),
        (SITE, "Berlin", "The office is in Berlin, not in Paris."),
        ("When does the leave start?", "May 8", "The leave is from May 8 to May 12"),
        ("When does the move start?", "May 8", "The move is from May 8 to May 12"),
        ("When does the fellowship begin?", "May 8", "The fellowship runs from May 8 to May 12"),
        ("Where does the trip start?", "Rome", "The trip goes from Rome to Paris."),
        ("Which room did they move from?", "B1", "The team moved from B1 to B2."),
        ("Where does the parcel come from?", "Rome", "It was moved from Rome to Paris."),
        ("What was the price before it was raised?", "$5,000", "The price was raised from $5,000 to $6,000."),
        ("Which firm did she leave?", "Acme", "She moved from Acme to Zell."),
        ("Which city did they move out of?", "Rome", "They moved from Rome to Paris."),
        ("What was replaced?", "The pump", "The pump was replaced by Bo Ek."),
    ],
)
def test_what_was_before_is_right_if_it_is_asked(question: str, reference: str, answer: str) -> None:
    assert judge_answer(question, reference, answer).correct


REPLACED = "Ann Lee was replaced by Bo Ek."


@pytest.mark.parametrize(
    ("question", "old", "new", "answer"),
    [
        ("Who was replaced?", "Ann Lee", "Bo Ek", REPLACED),
        ("Who was replaced?", "Ann Lee", "Bo Ek", "Bo Ek took over from Ann Lee."),
        ("Who was succeeded?", "Ann Lee", "Bo Ek", REPLACED),
        ("Who was let go?", "Ann Lee", "Bo Ek", REPLACED),
        ("Who resigned?", "Ann Lee", "Bo Ek", "Ann Lee resigned and was replaced by Bo Ek."),
        ("Can you tell me who left?", "Ann Lee", "Bo Ek", "Ann Lee left. She was replaced by Bo Ek."),
        ("Which supplier was replaced?", "Acme", "Zell", "Acme was replaced by Zell."),
        ("Which supplier was replaced?", "Acme", "Zell", "Zell replaced Acme."),
        ("Which system is being replaced?", "Oracle", "Linux", "Oracle is being replaced by Linux."),
        ("Which supplier was given up?", "Acme", "Zell", "Acme was given up and replaced by Zell."),
    ],
)
def test_only_who_was_replaced_is_right_if_that_is_asked(question: str, old: str, new: str, answer: str) -> None:
    assert judge_answer(question, old, answer).correct
    assert not judge_answer(question, new, answer).correct


@pytest.mark.parametrize(
    "question",
    [
        "Who was she replaced by?",
        "By whom was the CFO replaced?",
        "Who took over when the CFO was replaced?",
        "Who did they choose to replace the CFO?",
        "Who took over from the previous CFO?",
        "Who succeeded the woman who resigned?",
        "Who is left?",
        "Who starts tomorrow?",
    ],
)
def test_questions_for_the_new_person_may_mention_the_old_one(question: str) -> None:
    assert judge_answer(question, "Bo Ek", REPLACED).correct


SIGNED, REJECTED, ON_TUESDAY = "Did Bob sign the contract?", "Was the offer rejected?", "Is the meeting on Tuesday?"


@pytest.mark.parametrize(
    ("question", "answer", "is_yes"),
    [
        (SIGNED, "Bob signed the contract without comment.", True),
        (SIGNED, "He signed the contract.", True),
        (SIGNED, "Bob failed to sign the contract.", False),
        (SIGNED, "Bob has yet to sign the contract.", False),
        (SIGNED, "Bob failed to.", False),
        ("Didn't Bob sign the contract?", "Bob did not sign the contract.", False),
        ("Did Bob fail to sign the contract?", "Bob failed to sign the contract.", True),
        ("Will Anna attend?", "Anna is unable to attend", False),
        ("Is the invoice paid?", "The invoice is unpaid.", False),
        ("Is the invoice unpaid?", "It has not been paid.", True),
        ("Is the door open?", "The door is closed.", False),
        (REJECTED, "Yes, the offer was rejected.", True),
        (REJECTED, "It was rejected", True),
        (REJECTED, "No, it was accepted.", False),
        (REJECTED, "The board accepted the offer.", False),
        (REJECTED, "No, the offer was not rejected.", False),
        ("Did Anna reject the budget?", "No, she approved it", False),
        ("Did Anna approve the budget?", "She refused to approve it.", False),
        ("Was the move for Mirela approved?", "Giulia Urbanek approved it.", True),
        ("Did we pay for the ticket of Acme?", "Molly, we paid for the ticket.", True),
        (ON_TUESDAY, "The meeting is on Tuesday.", True),
        ("Is VAT excluded?", "VAT is excluded", True),
        ("Is VAT excluded?", "They excluded VAT", True),
        ("Is VAT excluded?", "VAT is not excluded", False),
        ("Is VAT excluded?", "VAT is included", False),
        ("Did they exclude VAT?", "VAT was excluded", True),
        ("Did they exclude VAT?", "VAT was not excluded", False),
        ("Is VAT included?", "VAT is excluded", False),
        ("Has production stopped?", "Production has stopped", True),
        ("Did production stop?", "Production did not stop", False),
        ("Was the machine stopped?", "It was stopped", True),
        ("Is the machine running?", "The machine has stopped", False),
        ("Did they stop the project?", "They stopped the project in May", True),
        ("Did they stop the project?", "The project was stopped", True),
        ("Did they stop the project?", "They never stopped the project", False),
        ("Is something lacking?", "Something is lacking", True),
        ("Did he cease to be a member?", "He ceased to be a member", True),
        ("Did he cease to be a member?", "He is a member", False),
        ("Is she working?", "She will stop working", False),
        ("Has she stopped working?", "She has not stopped working", False),
        ("Did Bob fail to sign the contract?", "Bob failed to pay and signed the contract", False),
    ],
)
def test_a_statement_says_yes_or_no(question: str, answer: str, is_yes: bool) -> None:
    assert [judge_answer(question, each, answer).correct for each in ("Yes", "No")] == [is_yes, not is_yes]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (SIGNED, "Anna signed the contract."),
        (SIGNED, "Bob has read the contract."),
        (ON_TUESDAY, "The meeting is on Wednesday."),
        ("Is the invoice $500?", "The invoice is $600."),
        ("Was it moved to Tulsa?", "It was moved to Boston."),
        ("Did Anna approve the budget?", "Bob approved the budget."),
        (REJECTED, "Yes, the board accepted the offer."),
        (SIGNED, "none"),
        ("Has production stopped?", "Production continues"),
        ("Is VAT excluded?", "Delivery is excluded"),
    ],
)
def test_a_statement_about_something_else_says_neither(question: str, answer: str) -> None:
    assert [judge_answer(question, each, answer).correct for each in ("Yes", "No")] == [False, False]


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        ("Can we cancel for free?", "Yes", "Cancellation is free"),
        ("Can we cancel for free?", "No", "Cancellation is free"),
        (SIGNED, "Yes", "Bob signed the lease"),
        (SIGNED, "Yes, Bob signed the contract.", "Bob signed the lease"),
    ],
)
def test_a_statement_that_may_say_yes_in_other_words_is_undecided(question: str, reference: str, answer: str) -> None:
    verdict = judge_answer(question, reference, answer)
    assert (verdict.correct, verdict.is_undecided) == (False, True)


def test_a_reference_that_says_yes_to_a_refusal_is_repeated_by_a_statement() -> None:
    question, reference = "Did they answer?", "Yes, they declined."
    answers = ["They declined.", "Yes, they declined.", "No, they declined.", "They did not decline."]
    assert [judge_answer(question, reference, each).correct for each in answers] == [True, True, False, False]
