"""The heuristic judge on wordings that look like something else: each table has answers to accept and to refuse."""

from datetime import date

import pytest

from gumshoe.rewards.heuristic.heuristic_judge import judge_answer
from gumshoe.rewards.heuristic.values import find_values

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


MANY, PAID, MAY_8 = "How many people attended?", "How much did they pay?", "When did they meet?"
DATE = "What is the completion date?"


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        (
            MANY,
            "25",
            [
                "25 people attended the meeting on May 8.",
                "On May 8, 25 people attended.",
                "25 people attended in 2001.",
                "25 people attended the 2nd meeting.",
                "25 people from 3 companies attended.",
                "25 people attended in room 12.",
                "25 people attended on floor 3.",
                "25 people attended at gate number 12.",
                "25 people attended for 3 hours.",
            ],
            [
                "25, May 8",
                "25 and 26 people attended.",
                "25 people and 26 guests attended.",
                "They paid for 25 and 26 guests.",
                "25 people attended, 26 people attended",
                "25 people attended. 26 guests attended.",
                "25 people, 3 hours",
                "25, 2001",
                "26 people attended on May 25.",
                "25 people attended, in fact 26.",
                "25 people attended in all 26.",
                "25 people attended, in fact 26 guests.",
                "25 people attended, or rather 26 guests.",
            ],
        ),
        (
            PAID,
            "$5 million",
            [
                "They paid $5 million on May 8.",
                "In 2001 they paid $5 million.",
                "They paid $5 million for 12 turbines.",
                "They paid $5 million for lot 12.",
                "They met on May 8 and paid $5 million.",
            ],
            [
                "$5 million, 6 million",
                "$5 million 12 turbines",
                "12 turbines, $5 million",
                "May 8 (aka $5 million)",
                "They paid $5 million and 6 million.",
                "They paid $5 million. They paid 6 million.",
                "$5 million, May 8",
                "They paid $5 million and $6 million.",
                "They paid $5 million, in total 6 million.",
                "They paid $5 million, by now 6 million.",
            ],
        ),
        (
            MAY_8,
            "May 8",
            ["They met on May 8 in room 12.", "They met on May 8 at 9.", "They met on May 8 for 3 hours."],
            ["May 8, 9", "They met on May 8 and 9.", "They met on May 8 and May 9.", "They met on May 8 rather 9."],
        ),
        (
            "In which year did they meet?",
            "2001",
            ["They met in 2001."],
            ["They met in 2001 and in 2002.", "2001, 2002"],
        ),
        (DATE, "2005", ["It is 2005.", "It is in 2005."], ["It is 2005, in 2006.", "It is in 2006."]),
        (DATE, "May 2005", ["It is May 2005."], ["It is May 2005, in 2006."]),
        (DATE, "May 8", ["In the plan for 2002, the date is May 8."], ["In the plan for 2002, the date is May 9."]),
        (MANY, "2005", ["In 2006, 2005 people attended."], ["2005 people attended, in fact 2006."]),
        ("How many hours did it take?", "15 hours", ["It took 15 hours."], ["It took 15 hours, in fact 16."]),
    ],
)
def test_a_date_a_year_or_a_count_beside_the_value(
    question: str, reference: str, correct: list[str], wrong: list[str]
) -> None:
    check(question, reference, correct, wrong)


def check_yes_or_no(question: str, yes: list[str], no: list[str], neither: list[str]) -> None:
    found = {
        each: tuple(judge_answer(question, reference, each).correct for reference in ("Yes", "No"))
        for each in yes + no + neither
    }
    expected = dict.fromkeys(yes, (True, False)) | dict.fromkeys(no, (False, True))
    assert found == expected | dict.fromkeys(neither, (False, False))


ISSUED, GIVEN, MOVE = "Was the permit issued?", "Has approval been given?", "Was the move approved?"
SIGN = "Did Bob sign the contract?"


@pytest.mark.parametrize(
    ("question", "yes", "no", "neither"),
    [
        (
            ISSUED,
            ["The permit has been issued.", "Yes, the permit was issued."],
            [
                "No, it is still awaiting approval.",
                "No, the permit has not been issued.",
                "No, acceptance is pending.",
                "The permit has not been issued.",
            ],
            ["The permit has been revoked.", "They wait for approval."],
        ),
        (
            GIVEN,
            ["Approval has been given.", "Yes, approval was given."],
            ["Approval has not been given.", "No, approval is pending."],
            [],
        ),
        (
            MOVE,
            [
                "Kim gave permission.",
                "Yes, she gave her consent.",
                "We have the green light.",
                "Permission was granted.",
            ],
            [
                "Permission was not given.",
                "No, not before Kim approves it.",
                "No, it has to be approved.",
                "No, we do not have permission.",
                "She refused her consent.",
            ],
            [
                "No, she gave her consent.",
                "No, Kim approved it.",
                "No, the transfer was approved.",
                "No, they permit it.",
                "Yes, Kim has refused.",
                "Yes, she refused to approve it.",
                "Yes, the request was declined.",
                "Yes, they turned the request down.",
                "Approval is pending.",
            ],
        ),
        (
            "Did Bob reject the offer?",
            ["Yes, the proposal was refused.", "Yes, after the first one was accepted."],
            ["No, the proposal was accepted."],
            ["Yes, the proposal was accepted.", "No, the proposal was refused."],
        ),
        (
            "Did they settle?",
            [
                "Yes, after the first offer was rejected they settled.",
                "Yes, they rejected the first offer but settled later.",
                "Yes, despite the rejection of the first offer.",
            ],
            ["No, after the first offer was accepted they did not settle."],
            ["Yes, they refused to settle.", "Yes, they refused."],
        ),
        ("Did sales recover?", ["Yes, after a decline in spring."], ["No, sales declined."], ["Yes, it was rejected."]),
    ],
)
def test_words_of_approval_may_decide_nothing(question: str, yes: list[str], no: list[str], neither: list[str]) -> None:
    check_yes_or_no(question, yes, no, neither)


@pytest.mark.parametrize(
    ("question", "yes", "no", "neither"),
    [
        (
            SIGN,
            [
                "Bob signed the contract but did not date it.",
                "Bob signed the contract, but not the annex.",
                "Bob signed the contract, but not on May 8.",
                "Bob signed the contract, but not in May.",
                "Bob signed the contract, but could not date it.",
                "Bob signed it. He did not date it.",
                "He signed it but did not date it.",
            ],
            [
                "Bob read the contract but did not sign it.",
                "Bob got the contract but never did.",
                "Bob has not signed the contract but dated it.",
                "Bob signed the contract. That is not true.",
                "You asked whether Bob signed the contract. He did not.",
                "Bob should sign the contract but has not answered.",
                "Bob was asked to sign the contract but has not answered.",
            ],
            [],
        ),
        (
            "Did they repair the pump?",
            ["They repaired the pump, but could not test it.", "They repaired the pump, but may not test it."],
            [
                "They tried repairing the pump, but could not.",
                "They went on repairing the pump, but never managed to.",
                "They got to the pump. They should not have.",
            ],
            [],
        ),
        (
            "Will Kay attend?",
            ["Kay will attend but not speak."],
            ["Kay will not attend but listen.", "Kay attends no more, not even on Monday; she will not attend."],
            [],
        ),
        (
            "Did the board sign the contract?",
            ["It signed the contract but did not date it."],
            ["It has not signed the contract."],
            [],
        ),
    ],
)
def test_a_denial_of_something_else_is_no_no(question: str, yes: list[str], no: list[str], neither: list[str]) -> None:
    check_yes_or_no(question, yes, no, neither)


HOURS, DAYS, RATE, COST = "2 pm to 3 pm", "May 8 to May 10", "5% to 10%", "$5 million to $10 million"
RANGES = {
    HOURS: (
        ["2-3 pm", "2pm-3pm", "from 2 to 3 pm", "2 pm - 3"],
        ["2-4 pm", "1-3 pm", "3 pm", "2 am to 3 pm", "11-3 pm"],
    ),
    DAYS: (
        ["May 8-10", "8-10 May", "May 8 to 10", "8th to 10th of May", "8 May-10", "May 8 through 10", "May 8-10, 2001"],
        ["May 8-11", "May 7-10", "May 10", "May 8", "June 8-10", "8-10 June", "May 8-10, 2005"],
    ),
    RATE: (["5-10%", "between 5 and 10 percent", "5 to 10%"], ["5-15%", "4-10%", "10%", "5%", "5 dollars to 10%"]),
    COST: (
        ["$5-10 million", "$5 to $10 million", "5 to 10 million dollars"],
        ["$5-10", "$4-10 million", "€5-10 million"],
    ),
    "11 am to 1 pm": (["11-1 pm", "11 to 1 pm"], ["11 pm to 1 am", "10-1 pm"]),
    "2 to 3 weeks": (["2-3 weeks", "2 weeks to 3 weeks"], ["2-4 weeks", "2-3 days", "2 days to 3 weeks"]),
    "December 11 and 12": (["11 and 12 December", "11 December and 12"], ["11 and 13 December", "December 11"]),
    "October 16th and 17th (Monday and Tuesday)": (
        ["October 16th and October 17th"],
        ["October 16th and 19th (Monday and Tuesday)"],
    ),
}


@pytest.mark.parametrize("reference", RANGES)
def test_ranges_that_share_a_unit(reference: str) -> None:
    correct, wrong = RANGES[reference]
    for each in [reference, *correct]:
        check("What was agreed?", each, [reference, *correct], wrong)


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        ("What is the rate?", "10%", ["10%"], ["5-10%", "from 5 to 10%"]),
        ("When is it?", "3 pm", ["3 pm"], ["2-3 pm", "3-4 pm", "2 and 3 pm"]),
        ("How many came on May 8?", "3 people", ["On May 8 and 9, 3 people came."], ["On May 8 and 9, 4 people came."]),
    ],
)
def test_a_range_is_no_answer_to_a_single_value(
    question: str, reference: str, correct: list[str], wrong: list[str]
) -> None:
    check(question, reference, correct, wrong)


CHANGED = "How did it change?"


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        (
            CHANGED,
            "from 5 to 10%",
            ["It went from 5 to 10%.", "from 5% to 10%", "to 10% from 5%", "5 to 10%"],
            ["It went from 10 to 5%.", "10 to 5%", "to 5% from 10%", "10%"],
        ),
        (
            CHANGED,
            "from 5 to 10 million",
            [
                "It rose from 5 to 10 million users.",
                "It rose to 10 million from 5 million.",
                "from 5,000,000 to 10 million",
            ],
            ["It rose from 10 to 5 million users.", "from 5 to 10 users", "to 5 million from 10 million", "10 million"],
        ),
        (
            CHANGED,
            "from 10 to 5 million",
            ["It fell from 10 to 5 million.", "from 10 million to 5 million"],
            ["It rose from 5 million to 10 million.", "from 10 to 5"],
        ),
        (
            CHANGED,
            "from 800,000 to 1.2 million",
            ["from 0.8 million to 1.2 million", "from 800,000 to 1.2 million", "from 800,000 to 1,200,000"],
            ["from 0.9 million to 1.2 million", "from 1.2 million to 0.8 million", "from 800 to 1.2 million"],
        ),
        (CHANGED, "from 0.8 million to 1.2 million", ["from 800,000 to 1.2 million"], ["from 900,000 to 1.2 million"]),
        (CHANGED, "from $1.2 million to 800,000", ["from $1.2 million to $0.8 million"], ["from $0.8 to 1.2 million"]),
        (CHANGED, "from $800,000 to 1.2 million", ["from $0.8 million to $1.2 million"], ["from $800 to 1.2 million"]),
        (
            "What are the hours?",
            "from 2 to 3 pm",
            ["2-3 pm", "It is from 2 pm until 3 pm."],
            ["from 3 to 2 pm", "It is until 3 pm."],
        ),
        (
            "When was it moved?",
            "from May 8 to May 9",
            ["It was moved from May 8 to May 9.", "It was moved to May 9 from May 8."],
            ["It was moved from May 9 to May 8.", "It was moved to May 8 from May 9."],
        ),
        ("Where did it move?", "from Rome to Paris", ["to Paris from Rome"], ["to Rome from Paris"]),
    ],
)
def test_both_ends_of_a_change_are_needed_in_order(
    question: str, reference: str, correct: list[str], wrong: list[str]
) -> None:
    check(question, reference, correct, wrong)


def test_both_ends_of_a_range_in_another_order_may_describe_it() -> None:
    verdict = judge_answer("What are the hours?", "from 2 to 3 pm", "It ends at 3 pm and starts at 2 pm.", ASKED)
    assert (verdict.correct, verdict.is_undecided, verdict.rule) == (False, True, "change")


def test_a_number_beside_a_date_or_a_time_may_count_something() -> None:
    for text in ("May 8 and 3 people", "3 pm and 2 guests", "12 and 3 weeks", "5-10"):
        assert any(each.kind == "number" and each.unit is None for each in find_values(text, ASKED))


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        ("What percentage of staff left?", "15", ["15%", "15 percent", "15"], ["15 dollars", "16%"]),
        ("What was the percentage?", "15", ["15%"], ["$15"]),
        ("How many hours did it take?", "15", ["15 hours", "15", "900 minutes"], ["15 minutes", "15 days", "16 hours"]),
        ("How many more weeks?", "2-3", ["2-3 weeks", "2 to 3", "14 to 21 days"], ["2-3 days"]),
        ("How many working days?", "5", ["5 business days", "5"], ["5 weeks", "5 hours"]),
        ("How many miles is it?", "10", ["10 miles", "10"], ["10 km"]),
        ("How many dollars?", "50", ["$50", "50"], ["50 cents", "€50"]),
        ("How many million dollars did they pay?", "5", ["$5 million", "5 million", "5"], ["$5", "5 dollars", "$5bn"]),
        ("How many million people live there?", "5", ["5 million people", "5 million", "5"], ["5 people", "5 billion"]),
        ("How many people came?", "25", ["25 people", "25"], ["26", "25%"]),
        (
            "How many of the 120 days were used?",
            "80",
            ["80 days", "80", "80 of the 120 days were used."],
            ["80 weeks", "120 days", "81 of the 120 days were used."],
        ),
        ("How many out of 120 days were used?", "80", ["80 days", "80"], ["80 weeks"]),
        ("How much of the 500 dollars?", "20", ["$20", "20"], ["€20", "20 cents", "$500"]),
        ("How much of the $500 was spent?", "20", ["$20", "20"], ["$21"]),
        ("How many of the 3 million people left?", "80", ["80 people", "80"], ["80 million"]),
        ("How many 12 hour shifts did he work?", "3", ["3", "3 twelve-hour shifts"], ["4"]),
        ("How many hours and how many people?", "15 and 3", ["15 hours and 3 people"], ["16 hours and 3 people"]),
    ],
)
def test_a_bare_number_has_the_unit_of_the_question(
    question: str, reference: str, correct: list[str], wrong: list[str]
) -> None:
    check(question, reference, correct, wrong)


TERM, REPLY, FEE = "How long is the term?", "When did they reply?", "What is the fee?"


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        (
            REPLY,
            "3 weeks",
            ["They replied after 3 weeks.", "after about 3 weeks"],
            ["at least 3 weeks"],
        ),
        (REPLY, "after 3 weeks", ["after 3 weeks"], ["before 3 weeks", "after 4 weeks"]),
        (TERM, "more than 12 months", ["over 12 months", "more than 12 months"], ["less than 12 months"]),
        ("When does it open?", "3 pm", ["at 3 pm"], ["after 3 pm"]),
        ("How far is it?", "10 miles", ["It comes after 10 miles."], ["over 10 miles"]),
        (FEE, "$50", ["$50 plus tax", "It is $50 plus VAT.", "$50 + VAT"], ["$50 plus", "$50+", "over $50", "$50 +"]),
        ("How many came?", "50 people", ["50 people plus 2 guides"], ["50+ people", "50 people plus."]),
        (
            "How many came?",
            "50",
            ["50 people plus 2 guides"],
            ["50 plus people came.", "50-plus people", "50 + men"],
        ),
        ("How many hours?", "15", ["15 hours plus breaks"], ["15 plus hours"]),
        (FEE, "$50", ["50 plus tax", "50 plus the tax"], ["50 plus"]),
        (
            "How many came?",
            "50 or more",
            ["50 plus", "50+", "50+ people", "50 plus people came.", "50-plus people"],
            ["50 or less", "at most 50"],
        ),
    ],
)
def test_words_that_only_look_like_bounds(question: str, reference: str, correct: list[str], wrong: list[str]) -> None:
    check(question, reference, correct, wrong)


def test_over_a_time_may_be_during_it_or_more_than_it() -> None:
    for answer in ("It will be repaid over 12 months.", "over the 12 months"):
        verdict = judge_answer(TERM, "12 months", answer, ASKED)
        assert (verdict.correct, verdict.is_undecided, verdict.rule) == (False, True, "values")


CEO = "Who is CEO?"


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        (
            CEO,
            "Ann Lee",
            [
                "Ann Lee assumed the role of CEO in May.",
                "Ann Lee will assume the post of CEO.",
                "They have assumed the debt, and Ann Lee is CEO.",
                "Ann Lee, one of the partners, is CEO.",
            ],
            [
                "I assume Ann Lee.",
                "Assuming it is right, Ann Lee.",
                "We have assumed Ann Lee.",
                "Ann Lee, I assumed.",
                "Ann Lee (assumed)",
                "Ann Lee, assumed.",
                "Assumed: Ann Lee",
                "The assumption is Ann Lee.",
                "Ann Lee is assumed to be CEO.",
                "It is assumed that Ann Lee is CEO.",
                "One of Ann Lee, Bo Ek",
                "one of them: Ann Lee",
                "Ann Lee is one of the candidates.",
                "one of the two: Ann Lee",
                "one of Ann Lee and Bo Ek",
            ],
        ),
        (
            "What is the budget?",
            "$500",
            ["With regards to the budget, it is $500.", "Thanks to Ann's help, it is $500."],
            ["$500. Regards, Ann", "$500\nKind regards\nAnn Lee", "it is $500, regards, ann", "$500. Thanks, bo ek"],
        ),
        (
            "What is done?",
            "phase 1",
            ["Phase one of the project.", "phase 1 of the project"],
            ["phase 2 of the project"],
        ),
    ],
)
def test_sentences_that_only_look_like_hedges_or_closings(
    question: str, reference: str, correct: list[str], wrong: list[str]
) -> None:
    check(question, reference, correct, wrong)


SIGNED = "Who signed?"


@pytest.mark.parametrize(
    ("question", "reference", "correct", "wrong"),
    [
        (
            SIGNED,
            "President George Bush",
            ["George Bush", "Senator George Bush", "President George Bush"],
            ["Laura Bush", "President Laura Bush", "the president", "George", "President Clinton"],
        ),
        (SIGNED, "Jeff Skilling, CEO", ["Jeff Skilling", "Jeff Skilling, the CEO"], ["the CEO", "Ken Lay, CEO"]),
        (SIGNED, "Jeff Skilling, Chief Executive Officer", ["Jeff Skilling"], ["the Chief Executive Officer"]),
        (SIGNED, "Ann Lee and Bob Ray, Vice Presidents", ["Bob Ray and Ann Lee"], ["Ann Lee", "the vice presidents"]),
        (
            SIGNED,
            "Professor Jones",
            ["Prof. Jones", "Jones", "Professor Ann Jones", "Ann Jones"],
            ["Prof. Smith", "the professor", "Professor Ann Smith", "Professor Jones or Ann Jones"],
        ),
        (
            SIGNED,
            "Governor Davis",
            ["Governor Gray Davis signed the bill.", "Gray Davis"],
            ["Governor Gray Smith", "Gray Davis and Ann Davis", "Governor Gray Davis and Senator Boxer"],
        ),
        (
            SIGNED,
            "Vice President Bush",
            ["Vice President Bush", "Bush", "Vice President George Bush"],
            ["the president"],
        ),
        (SIGNED, "Clinton", ["President Clinton", "President Bill Clinton"], ["President Bush"]),
        (SIGNED, "Doctor Ann Lee", ["Dr. Ann Lee", "Ann Lee"], ["Dr. Bob Ray", "the doctor"]),
        (SIGNED, "General Counsel Jim Derrick", ["Jim Derrick"], ["Bob Derrick", "the General Counsel"]),
        (
            SIGNED,
            "Jeff Skilling",
            ["Jeff Skilling, Chief Executive Officer", "President Jeff Skilling"],
            ["Jeff Skilling and President Bush", "CEO Ken Lay", "Jeff Skilling and Information Technology"],
        ),
        (SIGNED, "Edith Head", ["Edith Head"], ["Edith Smith", "Edith"]),
        (SIGNED, "General Electric", ["General Electric"], ["Siemens Electric", "Electric"]),
        (SIGNED, "the Vice President", ["the Vice President"], ["the manager", "Vice"]),
        ("Who signed, and in which capacity?", "Ann Lee, CEO", ["Ann Lee, CEO"], ["Ann Lee", "Bob Ray, CEO"]),
        ("What is her title?", "Vice President", ["Vice President"], ["Director", "President"]),
    ],
)
def test_titles_and_posts_beside_a_name(question: str, reference: str, correct: list[str], wrong: list[str]) -> None:
    check(question, reference, correct, wrong)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("Senator Clinton", "President Clinton"),
        ("Senator Clinton", "President Bill Clinton signed it."),
        ("Professor Jones", "Judge Jones"),
        ("President Bush", "Vice President Bush"),
    ],
)
def test_another_title_before_a_family_name_may_be_another_person(reference: str, answer: str) -> None:
    verdict = judge_answer(SIGNED, reference, answer)
    assert (verdict.correct, verdict.is_undecided, verdict.rule) == (False, True, "second answer")
