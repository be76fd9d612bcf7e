"""Exact comparison of an answer with the reference."""

import pytest

from gumshoe.rewards.exact_match import is_exact


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("£9,200", "£9,200"),
        (" the  Mangrove\nSuite. ", "the Mangrove suite"),
        ('"Monday 20 May at 17:15"', "Monday 20 May at 17:15"),
        ("Straße 5", "STRASSE 5"),
        ("\uff11\uff12 weeks", "12 weeks"),
        ("Yes", "Yes. Ann Lee has agreed to a free bar."),
        ("no, Bob refused it", "No. Bob Ray has said no to it."),
        ("No, but Ann may", "No we cannot"),
        ("No - Bob refused", "No"),
        ("no later than 15 may", "No later than 15 May"),
    ],
)
def test_case_spaces_and_outer_punctuation_are_ignored(answer: str, reference: str) -> None:
    assert is_exact(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        (None, "£9,200"),
        ("", "£9,200"),
        ("9,200", "£9,200"),
        ("£9200", "£9,200"),
        ("£9,200 a year", "£9,200"),
        ("I don't know", "£9,200"),
        ("No", "Yes. Ann Lee has agreed to a free bar."),
        ("Ann Lee has agreed to a free bar.", "Yes. Ann Lee has agreed to a free bar."),
        ("Nobody", "No. Bob Ray has said no to it."),
        ("yesterday", "Yes."),
        ("5", "-5"),
        ("No later than 16 May", "No later than 15 May"),
        ("No", "No one"),
        ("No information about that was found", "No"),
        ("No later than 15 May", "No. Bob Ray has said no to it."),
        ("No-one knows", "No"),
        ("No. 14 Mill Lane", "No. 12 Mill Lane"),
    ],
)
def test_all_other_differences_count(answer: str | None, reference: str) -> None:
    assert not is_exact(answer, reference)
