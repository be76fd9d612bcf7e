"""Values in texts: different spellings of a value are equal, different values are not."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.rewards.heuristic import units
from gumshoe.rewards.heuristic.heuristic_judge import judge_answer
from gumshoe.rewards.heuristic.values import Kind, Value, find_values, normalize
from tests.scenarios.questions import QUICK

ASKED = date(2001, 5, 4)  # a Friday


def values(text: str, asked: date | None = ASKED) -> list[Value]:
    return list(find_values(normalize(text), asked))


def only(text: str, asked: date | None = ASKED) -> Value:
    (found,) = values(text, asked)
    return found


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("number", "$298,000", "298 thousand dollars"),
        ("number", "£45,700.00", "45.7k pounds"),
        ("number", "forty-five thousand seven hundred", "45,700"),
        ("number", "$1.5m", "1.5 million dollars"),
        ("number", "£411,000", "411k"),
        ("number", "250 pence", "£2.50"),
        ("number", "1.500 €", "€1,500"),
        ("number", "EUR 1.250", "1250 Euro"),
        ("number", "1.500 million euros", "€1.5m"),
        ("number", "1.250 dollars", "$1.25"),
        ("number", "30%", "thirty per cent"),
        ("number", "a dozen", "12"),
        ("number", "half a dozen", "six"),
        ("number", "20 weeks", "20-week"),
        ("date", "Tuesday, May 8th", "5/8/2001"),
        ("date", "Tuesday, May 8th", "8/5/2001"),
        ("date", "8 May", "2001-05-08"),
        ("date", "the 8th of May 2001", "May 8"),
        ("date", "Tuesday 8 May", "next Tuesday"),
        ("date", "Saturday 5 May", "tomorrow"),
        ("date", "12 May", "a week tomorrow"),
        ("date", "15 May", "the 15th."),
        ("date", "Dec.19th", "19 December 2000"),
        ("date", "Jan 3, '99", "3 January 1999"),
        ("date", "8.5.2001", "8 May"),
        ("time", "3.30 pm", "15:30"),
        ("time", "half past three in the afternoon", "15:30h"),
        ("time", "quarter to nine", "8:45am"),
        ("time", "noon", "12:00"),
        ("time", "4 o'clock", "4:00 p.m."),
        ("phone", "07700 900714", "+44 7700 900714"),
        ("phone", "713-853-6388", "713 853 6388"),
        ("phone", "(512) 232-7386", "232-7386"),
        ("phone", "444 123 342", "444123342"),
        ("ordinal", "second", "2nd"),
        ("code", "C-3155/42", "c-3155/42"),
        ("code", "PO-83879", "PO 83879"),
        ("code", "YU 3611", "yu3611"),
        ("code", "3-5290", "x35290"),
        ("code", "TKT_4711", "tkt-4711"),
        ("code", "budget_2001.xls", "/mail/Budget_2001.xls."),
        ("address", "Ann.Lee@Example.com", "ann.lee@example.com"),
        ("address", "Ann Lee <ann.lee@example.com>", "<mailto:ann.lee@example.com>"),
        ("address", "www.example.com", "<http://example.com/>"),
        ("address", "<https://example.com/a>", '<a href="/b">https://example.com/a</a><br/>'),
    ],
)
def test_different_spellings_of_a_value_are_equal(kind: Kind, one: str, other: str) -> None:
    assert only(one).kind == kind
    assert only(one).agrees(only(other))
    assert only(other).agrees(only(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("$298,000", "£298,000"),
        ("£45,700", "£45,070"),
        ("1.500 €", "1.50 €"),
        ("$1.250", "$1,250"),
        ("14 weeks", "14 days"),
        ("30%", "30 pounds"),
        ("Tuesday, May 8th", "Wednesday, May 8th"),
        ("8 May", "9 May"),
        ("8 May 2001", "8 May 2000"),
        ("Tuesday 8 May", "8 May 2002"),
        ("15:30", "15:45"),
        ("3 pm", "3 am"),
        ("07700 900714", "07700 900741"),
        ("C-3155/42", "C-3155/24"),
        ("TKT_4711", "TKT_4712"),
        ("PRJ_2024_17", "PRJ_2023_99"),
        ("budget_2001.xls", "budget_1999.xls"),
        ("2001_budget.xls", "2001_budget.doc"),
        ("jsmith_01", "jsmith_02"),
        ("ann@example.com", "anne@example.com"),
    ],
)
def test_different_values_are_not_equal(one: str, other: str) -> None:
    assert not only(one).agrees(only(other))
    assert not only(other).agrees(only(one))


def test_a_weekday_alone_is_a_date_in_an_answer_and_any_such_day_in_a_reference() -> None:
    friday, full = only("on Friday"), only("Friday 20 April 2001")
    assert full.agrees(friday)
    assert not friday.agrees(full), "whoever says Friday means the next"
    assert only("Friday").agrees(only("Friday 11 May"))


def test_a_wrong_weekday_stays_wrong() -> None:
    """Mail has such dates, and an answer may omit the weekday."""
    wrong = only("Monday, April 25, 2000")
    assert only("April 25, 2000").agrees(wrong)
    assert not only("Tuesday, April 25, 2000").agrees(wrong)


def test_a_missing_year_is_near_the_question_s_date() -> None:
    assert only("8 May").agrees(only("8 May 2002"))
    assert not only("8 May").agrees(only("8 May 2010"))
    assert only("8 May", None).agrees(only("8 May 2010", None))


@pytest.mark.parametrize("text", ["Sat nav", "the sun", "I may go", "Mark said so", "anyone", "31 February", "25:61"])
def test_text_that_only_looks_like_a_date_or_time(text: str) -> None:
    assert not [each for each in values(text) if each.kind in ("date", "time")]


def test_values_have_their_positions_in_order() -> None:
    text = normalize("From £27 to £36 on Monday 6 June at 15:30, see C-3155/42 or 07700 900714.")
    found = list(find_values(text, ASKED))
    assert [each.kind for each in found] == ["number", "number", "date", "time", "code", "phone"]
    assert [text[each.start : each.end] for each in found][1:4] == ["£36", "Monday 6 June", "15:30"]


@QUICK
@given(st.text(max_size=60) | st.from_regex(r"[0-9 ./:,apm$£%-]{0,30}"))
def test_any_text_agrees_with_itself(text: str) -> None:
    for each in values(text):
        assert each.agrees(each)


def test_every_unit_is_known_by_each_of_its_names() -> None:
    assert [name for name in units._table() if units.find_unit(name) is None] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2 hectares", "20,000 square metres"),
        ("1.5 sq km", "1,500,000 m2"),
        ("3 cubic meters", "3,000 litres"),
        ("40 m²", "40 sqm"),
        ("1 m³", "1 cbm"),
    ],
)
def test_areas_and_volumes_are_converted(one: str, other: str) -> None:
    assert judge_answer("How large is it?", one, other).correct
    assert not judge_answer("How large is it?", one, f"1{other}").correct
