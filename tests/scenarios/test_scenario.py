"""The model of a scenario, and sets with their content hash."""

import json
import unicodedata
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from tests.errors import raises
from tests.scenarios.questions import ANN, QUICK, about_documents, ids, question, scenario, scenario_sets

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ODD_VALUES = JSON_VALUES | st.floats() | st.binary() | st.just("\ud800") | st.datetimes() | st.dates()


def parse_line(line: str) -> Scenario:
    return Scenario.model_validate(json.loads(line))


def test_fields_are_normalized() -> None:
    read = scenario(
        1,
        id=7,
        question="  When?\n",
        message_ids=["<1@example.com>", " <2@example.com> ", "<1@example.com>", "<2@example.com>"],
        inbox_address=" <Ann@Example.COM>",
        split="test",
    )
    assert (read.id, read.question, read.inbox_address) == ("7", "When?", ANN)
    assert read.message_ids == read.sources == ("<1@example.com>", "<2@example.com>")
    assert (read.split, read.needs_all, read.how_realistic, read.kind) == ("test", False, None, None)


def test_a_question_about_documents_needs_no_inbox_or_date() -> None:
    read = Scenario.model_validate(about_documents(1))
    assert read.sources == ("d1",)
    assert (read.inbox_address, read.visible_before) == (None, None)


@pytest.mark.parametrize(
    ("given", "day"),
    [
        ("2001-05-14", date(2001, 5, 14)),
        ("2001-05-14T23:30:00", date(2001, 5, 14)),
        ("2001-05-14 23:30:00-07:00", date(2001, 5, 14)),
        ("2001-05-14T00:00:00Z", date(2001, 5, 14)),
        (datetime(2001, 5, 14, 23, 30, tzinfo=UTC), date(2001, 5, 14)),
        (date(2001, 5, 14), date(2001, 5, 14)),
    ],
)
def test_a_query_date_is_parsed_in_every_form(given: Any, day: date) -> None:
    assert scenario(1, query_date=given).query_date == day


def test_mail_is_visible_until_the_end_of_the_query_date() -> None:
    end = scenario(1, query_date="2001-12-31").visible_before
    assert end == datetime(2002, 1, 1, tzinfo=UTC)
    assert scenario(1, query_date="9999-12-31").visible_before is None


@pytest.mark.parametrize(
    ("fields", "named_value"),
    [
        ({"id": ""}, "id"),
        ({"id": True}, "id"),
        ({"id": 7.5}, "id"),
        ({"question": " "}, "question"),
        ({"answer": ""}, "answer"),
        ({"answer": 5}, "answer"),
        ({"message_ids": []}, "message_ids or document_ids"),
        ({"message_ids": [""]}, "message_ids"),
        ({"message_ids": "<1@example.com>"}, "message_ids"),
        ({"message_ids": [["<1@example.com>"]]}, "message_ids"),
        ({"message_ids": [{}]}, "message_ids"),
        ({"document_ids": ["d1"]}, "message_ids or document_ids"),
        ({"inbox_address": None}, "needs inbox_address"),
        ({"inbox_address": None, "query_date": None}, "needs inbox_address and query_date"),
        ({"inbox_address": "ann"}, "Value error, 'ann'"),
        ({"inbox_address": "Ann Lee <ann@example.com>"}, "Value error, 'Ann Lee <ann@example.com>'"),
        ({"inbox_address": 5}, "inbox_address"),
        ({"query_date": "May"}, "query_date"),
        ({"query_date": "2001-02-30"}, "query_date"),
        ({"query_date": "2001-05-14 at noon"}, "query_date"),
        ({"query_date": True}, "query_date"),
        ({"how_realistic": 1.01}, "how_realistic"),
        ({"how_realistic": float("nan")}, "how_realistic"),
        ({"split": "dev"}, "split"),
        ({"needs_all": "perhaps"}, "needs_all"),
        ({"note": "\ud800"}, r"note: U\+D800"),
        ({"note": {"a\udfff": 1}}, r"note.a\ufffd: .*U\+DFFF"),
        ({"answer": "a\0b"}, r"answer: U\+0000 at character 2"),
        ({"note": [float("inf")]}, "written as JSON"),
        ({"note": b"\xff"}, "written as JSON"),
    ],
)
def test_invalid_fields_are_rejected(fields: dict[str, Any], named_value: str) -> None:
    with pytest.raises(ValidationError, match=named_value):
        scenario(1, **fields)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("message_id", "message_ids"),
        ("splits", "split"),
        ("Split", "split"),
        ("need_all", "needs_all"),
        ("needsAll", "needs_all"),
        ("inbox_adress", "inbox_address"),
        ("how_realistc", "how_realistic"),
        ("query-date", "query_date"),
    ],
)
def test_a_misspelled_field_is_rejected(name: str, meant: str) -> None:
    with pytest.raises(ValidationError, match=f"field '{name}'.*'{meant}'"):
        scenario(1, **{name: "x"})


@pytest.mark.parametrize("name", ["ids_are", "rationale", "to_json", "sources", "plain_question", "model_config", ""])
def test_other_fields_are_kept_unchanged(name: str) -> None:
    read = scenario(1, **{name: {"x": [1, None, "é"]}})
    assert json.loads(read.to_json())[name] == {"x": [1, None, "é"]}
    assert (read.sources, read.plain_question) == (("<1@example.com>",), "what does message 1 say")
    assert parse_line(read.to_json()) == read


def test_a_line_omits_default_values() -> None:
    line = scenario(1, kind=None).to_json()
    assert json.loads(line) == question(1)
    assert json.loads(scenario(1, needs_all=True, how_realistic=0, kind="").to_json()) == question(
        1, needs_all=True, how_realistic=0, kind=""
    )


@QUICK
@given(
    extra=st.dictionaries(TEXTS, JSON_VALUES.filter(lambda value: value is not None), max_size=3),
    texts=st.tuples(*[TEXTS.filter(str.strip)] * 3),
    sources=st.lists(TEXTS.filter(str.strip), min_size=1, max_size=3),
    day=st.dates(),
    realism=st.none() | st.floats(0, 1),
    needs_all=st.booleans(),
)
def test_any_scenario_survives_a_round_trip(
    extra: dict[str, Any],
    texts: tuple[str, ...],
    sources: list[str],
    day: date,
    realism: float | None,
    needs_all: bool,
) -> None:
    named = dict(zip(("id", "question", "answer"), texts, strict=True))
    fields = {"message_ids": sources, "query_date": day, "how_realistic": realism, "needs_all": needs_all}
    made = scenario(1, **{f"field of ours: {name}": value for name, value in extra.items()}, **named, **fields)
    line = made.to_json()
    assert "\n" not in line
    assert parse_line(line) == made
    assert ScenarioSet.of([parse_line(line)]).content == ScenarioSet.of([made]).content


@QUICK
@given(
    name=st.sampled_from([*question(1), "how_realistic", "needs_all", "split", "kind", "document_ids", "other"]),
    value=ODD_VALUES | st.lists(ODD_VALUES, max_size=2),
)
def test_any_accepted_value_can_be_written(name: str, value: Any) -> None:
    try:
        made = scenario(1, **{name: value})
    except ValidationError:
        return
    written = ScenarioSet.of([made]).to_jsonl()
    assert ScenarioSet.of([parse_line(written.decode())]).to_jsonl() == written


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("When is the audit?", "  when is THE audit"),
        ("What's Nelson's number?", "What s Nelson s number"),
        (unicodedata.normalize("NFC", "Où est le café ?"), unicodedata.normalize("NFD", "Où est le café ?")),
        ("Straße?", "STRASSE?"),
    ],
)
def test_case_and_punctuation_do_not_distinguish_questions(one: str, other: str) -> None:
    assert scenario(1, question=one).plain_question == scenario(2, question=other).plain_question


@pytest.mark.parametrize(("one", "other"), [("Who is 1?", "Who is 11?"), ("a b?", "ab?"), ("?", "!"), ("?", "who")])
def test_other_words_distinguish_questions(one: str, other: str) -> None:
    assert scenario(1, question=one).plain_question != scenario(2, question=other).plain_question


def test_ids_in_a_set_are_unique() -> None:
    with raises("scenarios.duplicate-id", "'7'"):
        ScenarioSet.of([scenario(1, id=7), scenario(2, id="7")])


def test_a_set_can_be_filtered_by_split() -> None:
    made = ScenarioSet.of([scenario(1, split="test"), scenario(2), scenario(3, split="train"), scenario(4)])
    assert {split: ids(made.only(split)) for split in ("train", "validation", "test", None)} == {
        "train": ["q3"],
        "validation": [],
        "test": ["q1"],
        None: ["q2", "q4"],
    }


@QUICK
@given(made=scenario_sets())
def test_the_digest_depends_on_question_and_inbox_only(made: ScenarioSet) -> None:
    for each in made:
        renamed = each.model_copy(update={"id": "other", "answer": "other", "question": each.question.upper()})
        assert renamed.digest == each.digest
        assert each.model_copy(update={"inbox_address": "other@example.com"}).digest != each.digest


@QUICK
@given(made=scenario_sets(), data=st.data())
def test_the_content_hash_is_independent_of_order(made: ScenarioSet, data: st.DataObject) -> None:
    mixed = ScenarioSet.of(data.draw(st.permutations(list(made))))
    assert mixed.content == made.content
    questions = tuple(each.digest for each in made)
    assert made.to_record().model_dump() == {"content": made.content, "ids": tuple(ids(made)), "questions": questions}
    if made:
        assert ScenarioSet.of(list(made)[1:]).content != made.content


@pytest.mark.parametrize(
    "change",
    [
        {"id": "q2"},
        {"question": "What does message 1 say!"},
        {"answer": "Body"},
        {"message_ids": ["<1@example.com>", "<2@example.com>"]},
        {"needs_all": True},
        {"how_realistic": 0.5},
        {"inbox_address": "bob@example.com"},
        {"query_date": date(2001, 6, 1) + timedelta(days=1)},
        {"split": "test"},
        {"kind": "date"},
        {"other": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_counts_in_the_content_hash(change: dict[str, Any]) -> None:
    assert ScenarioSet.of([scenario(1, **change)]).content != ScenarioSet.of([scenario(1)]).content


def test_fields_that_say_nothing_and_the_order_of_fields_do_not_count_in_the_content_hash() -> None:
    plain = ScenarioSet.of([scenario(1, x={"a": 1, "b": 2})])
    turned = {**dict(reversed(question(1).items())), "x": {"b": 2, "a": 1}, "needs_all": False, "split": None}
    assert ScenarioSet.of([Scenario.model_validate(turned)]).content == plain.content


def test_the_content_hash_is_the_same_in_every_version() -> None:
    """Adapters and reports are kept with it: one that changes makes all of them unknown."""
    assert (
        ScenarioSet.of([scenario(1), scenario(2, split="test")]).content
        == "f56441ef1389e913e7102b2bafba9078af2ed216ef6da42a8cc02e03f07eaf64"
    )


@QUICK
@given(made=scenario_sets())
def test_a_file_of_a_set_is_the_set(made: ScenarioSet) -> None:
    *lines, end = made.to_jsonl().decode().split("\n")
    assert end == ""
    assert ScenarioSet.of(map(parse_line, lines)) == made


def test_an_unanswerable_question_has_no_sources_and_an_answer_that_may_be_left_out() -> None:
    about = {"id": "u", "question": "When?", "unanswerable": True}
    mail = Scenario.model_validate({**about, "inbox_address": ANN, "query_date": "2001-06-01"})
    assert (mail.answer, mail.sources, mail.is_about_mail) == ("I don't know", (), True)
    assert parse_line(mail.to_json()) == mail
    assert not Scenario.model_validate({**about, "answer": "I do not know."}).is_about_mail
    for wrong in ({"answer": "On Friday."}, {"document_ids": ["d1"]}, {"needs_all": True}, {"inbox_address": ANN}):
        with pytest.raises(ValidationError):
            Scenario.model_validate({**about, **wrong})
    with pytest.raises(ValidationError, match="unanswerable"):
        Scenario.model_validate({**about, "unanswerable": False, "answer": "I don't know"})
