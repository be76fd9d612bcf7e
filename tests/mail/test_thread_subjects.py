"""Which subjects belong to one thread."""

# ruff: noqa: RUF001 - letters that look alike are what is tested

import pytest

from gumshoe.mail.thread_subjects import is_reply, thread_subject
from tests.cpu_time import limit_cpu


@pytest.mark.parametrize(
    "subject",
    [
        "Budget  2024",
        "Re: budget 2024",
        "RE[2]: Budget 2024",
        "Re^3: Budget 2024",
        "Fwd: Re: Fw: Budget\t2024",
        "AW: WG: Antw: Budget 2024",
        "SV: VS: Odp: Budget 2024",
        "RE : Budget 2024",
        "回复：转发： Budget 2024",
        "Отв: Пер: Budget 2024",
        "[finance-list] Re: [finance-list] Budget 2024",
        "[EXTERNAL] Ｂudget 2024",
        "[Fwd: Budget 2024]",
        "Budget 2024 (fwd)",
        "Accepted: Budget 2024",
        "Canceled: Budget 2024",
        "Abgesagt: Budget 2024",
        "Out of Office: Re: Budget 2024",
        "Rép. : TR : Budget 2024",
        "Réf.: Budget 2024",
        "Antw.: Re.: Budget 2024",
        "Svar: Budget 2024",
        "Odpověď: Budget 2024",
        "回信：Budget 2024",
        "ตอบกลับ: ส่งต่อ: Budget 2024",
        "【重要】Re: Budget 2024",
        "RE: 【重要】 Budget 2024",
        "[EXTERNAL]: Re: Budget 2024",
        "EXTERNAL: RE: Budget 2024",
        "Re: [ruby-list:51123] Budget 2024",
        "[budget-ml:00042] Re: Budget 2024",
        "***SPAM*** Re: Budget 2024",
        "{Spam?} Budget 2024",
    ],
)
def test_subjects_of_a_thread_are_equal(subject: str) -> None:
    assert thread_subject(subject) == "budget 2024"


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("", ""),
        ("  ", ""),
        ("Re:", ""),
        ("Re: Fwd: ", ""),
        ("[Budget]", "[budget]"),
        ("Re: [Budget]", "[budget]"),
        ("[JIRA-12] Login fails", "[jira-12] login fails"),
        ("Re: [shop.example #4711] Login fails", "[shop.example #4711] login fails"),
        ("【会議】", "【会議】"),
        ("External audit: dates", "external audit: dates"),
        ("** 2024 **", "** 2024 **"),
        ("Regarding: lunch", "regarding: lunch"),
        ("Report: Q3", "report: q3"),
        ("Refund", "refund"),
        ("Straße", "strasse"),
    ],
)
def test_what_is_no_prefix_stays(subject: str, expected: str) -> None:
    assert thread_subject(subject) == expected


@pytest.mark.parametrize(
    ("subject", "reply"),
    [
        ("Re: lunch", True),
        ("[team] AW: lunch", True),
        ("EXTERNAL: Re: lunch", True),
        ("[lunch-ml:12] Re: lunch", True),
        ("Fwd: Re: lunch", False),
        ("[Fwd: lunch]", False),
        ("Re: lunch (fwd)", True),
        ("lunch", False),
        ("", False),
    ],
)
def test_replies_are_told_by_their_first_prefix(subject: str, reply: bool) -> None:
    assert is_reply(subject) is reply


@pytest.mark.parametrize(
    "part", ["Re: ", "[a] ", "(fwd)", "[Fwd: ", "re [", "***a***", "external: ", "[a:1] ", " ", "a\u0301\u0323", "]"]
)
def test_hostile_subjects_take_little_time(part: str) -> None:
    with limit_cpu(1):
        thread_subject(part * (1_000_000 // len(part)))
        is_reply(part * (1_000_000 // len(part)))
