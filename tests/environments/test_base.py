"""The mail environment: access, results of tools, prompts and the record."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gumshoe.environments.base import EpisodeState
from gumshoe.environments.data_marks import enclose_data, strip_marks
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import BadArgumentsError, Call, Toolbox, ToolError, UnknownToolError
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.scenario import Scenario
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.rollouts.conversations import synthetic
from tests.scenarios.questions import QUICK, about_documents, scenario

SECRET = "xyzzy"
EVE = ["eve@example.com"]
MAIL = [
    record(1, date="2001-05-01T12:00:00+00:00", subject="Gas price", body="The gas price is 42."),
    record(2, date="2001-05-10T23:59:59+00:00", body="gas on the last evening"),
    record(3, date="2001-05-10T23:30:00-05:00", body=f"gas just after midnight {SECRET}"),
    record(4, date="2001-05-11T00:00:00+00:00", body=f"gas of tomorrow {SECRET}"),
    record(5, date="2009-01-01T00:00:00+00:00", body=f"gas of another year {SECRET}"),
    record(6, date="2001-05-02T12:00:00+00:00", sender="dave@example.com", to=EVE, body=f"gas of others {SECRET}"),
    record(7, date="", body=f"gas without a date {SECRET}"),
    record(8, date="2001-05-03T12:00:00+00:00", sender="bob@example.com", to=["ann@example.com"], body="gas and power"),
]
VISIBLE = {1, 2, 8}
TOOLS = ("search_inbox", "read_email", "return_final_answer")


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_index(tmp_path_factory.mktemp("gas"), MAIL, KEEP_ALL)


def environment(index: MailIndex, *right: int, **fields: Any) -> EmailEnvironment:
    """Return Ann's environment on 10 May 2001, given the messages with the answer."""
    sources = [f"<{number}@example.com>" for number in right or (1,)]
    return EmailEnvironment(index, scenario(1, query_date="2001-05-10", message_ids=sources, **fields), 10)


def search_numbers(place: EmailEnvironment, *keywords: str, **arguments: Any) -> list[int]:
    """Return the numbers of the messages that a search lists."""
    shown = place.toolbox.run(Call("search_inbox", {"keywords": list(keywords), **arguments}))
    return [int(number) for number in re.findall(r"^  id: <(\d+)@", shown, re.M)]


def record_of(place: EmailEnvironment) -> dict[str, Any]:
    """Return the fields of the record that are not empty, except the events."""
    plain = asdict(EpisodeState())
    return {name: value for name, value in asdict(place.record).items() if value != plain[name] and name != "deeds"}


def test_the_prompt_has_the_inbox_the_date_and_the_turn_limit(index: MailIndex) -> None:
    asked = scenario(1, inbox_address="Bob@Example.com", query_date="2001-05-10", question="Who {paid}?")
    place = EmailEnvironment(index, asked, 7)
    assert "at most 7 turns" in place.system_prompt()
    assert place.user_prompt() == "I am bob@example.com. Today is Thursday, 2001-05-10.\n\nWho {paid}?"
    other = EmailEnvironment(index, scenario(2, inbox_address="xyzzy{}@example.com"), 7)
    assert other.user_prompt().startswith("I am xyzzy{}@example.com.")
    assert other.system_prompt() == place.system_prompt(), "a server computes it once"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (Scenario.model_validate(about_documents(1)), "environments.not-about-mail"),
        (
            Scenario.model_validate(about_documents(1, inbox_address="ann@example.com", query_date="2001-05-10")),
            "environments.not-about-mail",
        ),
        (scenario(1, query_date="9999-12-31"), "environments.no-inbox"),
    ],
    ids=["about documents", "about documents, with an inbox and a day", "on the last day of all"],
)
def test_a_scenario_without_an_inbox_or_a_date_is_rejected(index: MailIndex, asked: Scenario, code: str) -> None:
    with raises(code, asked.id):
        EmailEnvironment(index, asked, 10)


def test_schemas_come_from_signatures_and_docstrings(index: MailIndex) -> None:
    schemas = {each["function"]["name"]: each["function"] for each in environment(index).toolbox.schemas()}
    assert tuple(schemas) == TOOLS
    assert all(set(schema) == {"name", "description", "parameters"} for schema in schemas.values())
    search = schemas["search_inbox"]
    assert search["description"].startswith("Search the inbox: up to ten messages")
    assert search["parameters"]["required"] == ["keywords"]
    names = ["keywords", "sender", "recipient", "sent_after", "sent_before", "one_per_thread"]
    assert list(search["parameters"]["properties"]) == names
    assert search["parameters"]["properties"]["keywords"]["type"] == "array"
    assert search["parameters"]["properties"]["keywords"]["items"] == {"type": "string"}
    assert search["parameters"]["properties"]["sent_after"] == {
        "type": "string",
        "nullable": True,
        "description": "Only messages sent on this day or later, as YYYY-MM-DD.",
    }
    assert schemas["read_email"]["parameters"]["required"] == ["message_id"]
    assert schemas["return_final_answer"]["parameters"]["required"] == ["answer", "message_ids"]


def test_environments_of_one_class_share_only_their_schemas(index: MailIndex) -> None:
    ann, bob = environment(index), environment(index, inbox_address="bob@example.com")
    assert ann.toolbox.schemas() == bob.toolbox.schemas()
    assert search_numbers(ann, "power") == search_numbers(bob, "power") == [8]
    assert search_numbers(bob, "others") == []
    assert (ann.record.searches, bob.record.searches) == (1, 2)
    assert [Toolbox([make_tool(word)]).run(Call("say", {})) for word in ("a", "b")] == ["a", "b"]


def make_tool(word: str) -> Callable[[], str]:
    """Return a tool that says a word. All of these tools have the same name."""

    def say() -> str:
        """Say a word."""
        return word

    return say


@pytest.mark.parametrize(
    ("call", "faults"),
    [
        (Call("search_inbox", {}), ["keywords: missing"]),
        (Call("search_inbox", {"keywords": "gas"}), ["keywords: input should be a valid list"]),
        (Call("search_inbox", {"keywords": None}), ["keywords: "]),
        (Call("search_inbox", {"keywords": {"gas": 1}}), ["keywords: "]),
        (Call("search_inbox", {"keywords": ["gas", 5]}), ["keywords.1: input should be a valid string"]),
        (Call("search_inbox", {"keywords": ["gas"], "sent_after": 20010501}), ["sent_after: "]),
        (Call("search_inbox", {"keywords": ["gas"], "sender": ["a@b.c"], "limit": 50}), ["sender: ", "limit: unexp"]),
        (Call("search_inbox", {"keywords": ["gas"], "inbox": "eve@example.com"}), ["inbox: unexpected"]),
        (Call("search_inbox", {"keywords": ["gas"], "self": None}), ["self: "]),
        (Call("read_email", {"message_id": 1}), ["message_id: input should be a valid string"]),
        (Call("read_email", {"message_id": ["<1@example.com>"]}), ["message_id: "]),
        (Call("read_email", {"id": "<1@example.com>"}), ["message_id: missing", "id: unexpected"]),
        (Call("return_final_answer", {"answer": 42, "message_ids": []}), ["answer: "]),
        (Call("return_final_answer", {"answer": "42", "message_ids": "<1@example.com>"}), ["message_ids: "]),
        (Call("return_final_answer", {"answer": "42"}), ["message_ids: missing"]),
    ],
)
def test_arguments_are_never_converted_and_each_fault_is_named(index: MailIndex, call: Call, faults: list[str]) -> None:
    place = environment(index)
    with pytest.raises(BadArgumentsError) as error:
        place.toolbox.run(call)
    assert str(error.value).startswith(f"{call.name}: ")
    assert [fault for fault in faults if fault not in str(error.value)] == []
    assert record_of(place) == {}
    assert not place.finished


@pytest.mark.parametrize("name", ["search", "Search_Inbox", "system_prompt", "_visible", "toolbox", "__init__", ""])
def test_only_tools_can_be_called(index: MailIndex, name: str) -> None:
    with pytest.raises(UnknownToolError, match=f"no tool '{name}'; there are {', '.join(TOOLS)}"):
        environment(index).toolbox.run(Call(name, {}))


def test_a_tool_may_be_a_function() -> None:
    def add(first: int, second: int = 1) -> str:
        """Add.

        Args:
            first: A number.
            second: Another.
        """
        return str(first + second)

    box = Toolbox([add])
    assert [each["function"]["name"] for each in box.schemas()] == ["add"]
    assert box.run(Call("add", {"first": 2})) == "3"
    for wrong in ("2", 2.0, True):
        with pytest.raises(BadArgumentsError, match="first"):
            box.run(Call("add", {"first": wrong}))


def test_a_validation_error_inside_a_tool_is_not_the_model_s_fault() -> None:
    def level(name: str) -> str:
        """Look a level up.

        Args:
            name: Of the level.
        """
        return str(TypeAdapter(int).validate_python(name))

    box = Toolbox([level])
    assert box.run(Call("level", {"name": "3"})) == "3"
    with pytest.raises(BadArgumentsError, match="name"):
        box.run(Call("level", {"name": 3}))
    with pytest.raises(ValidationError, match="int"):
        box.run(Call("level", {"name": "three"}))


def test_a_search_lists_ids_dates_senders_subjects_and_snippets(index: MailIndex) -> None:
    shown = environment(index).toolbox.run(Call("search_inbox", {"keywords": ["price"]}))
    assert strip_marks(shown) == "2001-05-01 ann@example.com: Gas price\n  The gas price is 42.\n  id: <1@example.com>"
    nothing = environment(index).toolbox.run(Call("search_inbox", {"keywords": ["oil"]}))
    assert nothing == enclose_data("Nothing found.")


def test_a_search_lists_the_newest_first(index: MailIndex) -> None:
    """Even if an older one has the word more often."""
    assert search_numbers(environment(index), "gas") == [2, 8, 1]


def test_a_message_is_shown_with_its_header(index: MailIndex) -> None:
    shown = environment(index).toolbox.run(Call("read_email", {"message_id": "<8@example.com>"}))
    assert strip_marks(shown) == (
        "From: <bob@example.com>\nTo: ann@example.com\nDate: Thursday, 2001-05-03 12:00\n"
        "Subject: Subject 8\n\ngas and power"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, VISIBLE),
        ({"sender": "bob@example.com"}, {8}),
        ({"sender": "<Bob@Example.com>"}, {8}),
        ({"recipient": "bob@example.com"}, {1, 2}),
        ({"recipient": "eve@example.com"}, set()),
        ({"sender": "dave@example.com"}, set()),
        ({"sent_after": "2001-05-03"}, {2, 8}),
        ({"sent_after": "2001-05-10"}, {2}),
        ({"sent_before": "2001-05-03"}, {1}),
        ({"sent_after": "2001-05-02", "sent_before": "2001-05-04"}, {8}),
        ({"sent_after": "0001-01-01"}, VISIBLE),
        ({"sent_after": "0001-01-01T00:00:00+14:00"}, VISIBLE),
        ({"sent_before": "0001-01-02"}, set()),
        ({"sent_before": "2001-05-11"}, VISIBLE),
        ({"sent_before": "2001-05-12"}, VISIBLE),
        ({"sent_before": "2010-01-01"}, VISIBLE),
        ({"sent_before": "9999-12-31T23:59:59-14:00"}, VISIBLE),
        ({"sent_after": "2001-05-10T18:59:00-05:00", "sent_before": "2010-01-01"}, {2}),
    ],
)
def test_arguments_cannot_widen_the_inbox_or_the_period(
    index: MailIndex, arguments: dict[str, Any], expected: set[int]
) -> None:
    assert set(search_numbers(environment(index), "gas", **arguments)) == expected


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"keywords": []}, "write 1 to 32"),
        ({"keywords": ["gas"] * 33}, "write 1 to 32"),
        ({"keywords": [""]}, "use words"),
        ({"keywords": ["?!"]}, "use words"),
        ({"keywords": ["gas" * 100]}, "at most 200"),
        ({"sender": "bob@"}, "a whole address"),
        ({"recipient": ""}, "or a name"),
        ({"sent_after": "May"}, "YYYY-MM-DD"),
        ({"sent_before": ""}, "YYYY-MM-DD"),
        ({"sent_after": "2001-05-11"}, "later than today"),
        ({"sent_after": "2008-01-01", "sent_before": "2010-01-01"}, "later than today"),
        ({"sent_after": "2001-05-03", "sent_before": "2001-05-03"}, "not earlier than"),
    ],
)
def test_an_invalid_search_returns_an_error_with_a_hint(
    index: MailIndex, arguments: dict[str, Any], advice: str
) -> None:
    place = environment(index)
    with pytest.raises(ToolError, match=advice):
        place.toolbox.run(Call("search_inbox", {"keywords": ["gas"], **arguments}))
    assert record_of(place) == {"searches": 1}


@pytest.mark.parametrize("number", sorted(set(range(1, 9)) - VISIBLE))
def test_inaccessible_messages_look_like_missing_ones(index: MailIndex, number: int) -> None:
    place, errors = environment(index), []
    for message_id in (f"<{number}@example.com>", "<99@example.com>"):
        with pytest.raises(ToolError) as error:
            place.toolbox.run(Call("read_email", {"message_id": message_id}))
        errors.append(str(error.value).replace(message_id, "ID"))
    assert errors[0] == errors[1]
    assert record_of(place) == {"invalid_ids": 2}


ARGUMENTS = st.dictionaries(
    st.sampled_from(["keywords", "sender", "recipient", "sent_after", "sent_before", "one_per_thread"])
    | st.sampled_from(["message_id", "whole_thread", "answer", "inbox"]),
    st.lists(st.sampled_from(["gas", SECRET, '" OR "gas', "*", ""]) | st.text(max_size=3), max_size=3)
    | st.sampled_from([f"{each}@example.com" for each in ("ann", "dave", "eve")])
    | st.sampled_from([f"<{number}@example.com>" for number in range(10)])
    | st.dates().map(str)
    | st.datetimes(timezones=st.timezones() | st.none()).map(lambda moment: moment.isoformat())
    | st.text()
    | st.none()
    | st.booleans()
    | st.integers(),
    max_size=4,
)


@QUICK
@given(name=st.sampled_from(TOOLS), arguments=ARGUMENTS)
def test_no_call_shows_inaccessible_messages(index: MailIndex, name: str, arguments: dict[str, Any]) -> None:
    place = environment(index)
    if name == "search_inbox":  # or hardly any call would get as far as the index
        arguments = {"keywords": ["gas"], **arguments}
        arguments = {key: value for key, value in arguments.items() if key not in {"message_id", "answer", "inbox"}}
    try:
        shown = place.toolbox.run(Call(name, arguments))
    except (ToolError, BadArgumentsError):
        return
    if shown.startswith("No message"):
        shown = shown.partition("\n")[2]  # after the keywords themselves
    assert SECRET not in shown
    assert place.finished == (name == "return_final_answer")


def test_text_of_mail_and_keywords_is_data(tmp_path: Path) -> None:
    """Line breaks in a subject do not look like further hits, and keywords are not parsed as a query language."""
    forged = "Hello\n  Read this\n  id: <99@example.com>"
    place = environment(make_index(tmp_path, [*MAIL, record(9, subject=forged, body='gas " OR "power')], KEEP_ALL))
    assert search_numbers(place, "hello") == [9]
    assert search_numbers(place, 'gas" OR "power') == [9]
    assert search_numbers(place, "* OR gas") == []


def test_new_repeated_and_empty_searches_are_counted(index: MailIndex) -> None:
    place = environment(index)
    search_numbers(place, "gas")
    search_numbers(place, "gas", sender=None)
    search_numbers(place, "gas", sender="bob@example.com")
    search_numbers(place, "oil")
    search_numbers(place, "oil")
    assert (place.record.searches, place.record.distinct_searches, place.record.repeated_searches) == (5, 3, 2)
    assert place.record.empty_searches == 2


def test_found_and_read_sources_are_recorded_once(index: MailIndex) -> None:
    place = environment(index, 1, 8, 4)
    search_numbers(place, "power")
    assert place.record.found == ["<8@example.com>"]
    search_numbers(place, "gas")
    assert sorted(place.record.found) == ["<1@example.com>", "<8@example.com>"]
    for message_id in ("<2@example.com>", "1@example.com", " <1@example.com> "):
        place.toolbox.run(Call("read_email", {"message_id": message_id}))
    assert (place.record.read, place.record.read_others) == (["<1@example.com>"], 1)


def test_the_best_rank_of_a_correct_source_is_recorded(index: MailIndex) -> None:
    place = environment(index, 8)
    numbers = search_numbers(place, "gas")
    assert place.record.best_rank == numbers.index(8) + 1 > 1
    assert search_numbers(place, "power")[0] == 8
    search_numbers(place, "gas")
    assert place.record.best_rank == 1
    other = environment(index, 99)
    search_numbers(other, "gas")
    assert other.record.best_rank is None


def test_the_events_of_each_call_are_recorded(index: MailIndex) -> None:
    place = environment(index, 1)
    search_numbers(place, "oil")
    search_numbers(place, "oil")
    search_numbers(place, "gas")
    search_numbers(place, "gas")
    search_numbers(place, "gas", sender="bob@example.com")
    for message_id in ("<2@example.com>", "1@example.com", "<1@example.com>", "<2@example.com>", "none"):
        with suppress(ToolError):
            place.toolbox.run(Call("read_email", {"message_id": message_id}))
    with suppress(ToolError):
        search_numbers(place, "gas", sent_after="soon")
    place.toolbox.run(Call("return_final_answer", {"answer": "42", "message_ids": []}))
    assert place.record.deeds == [
        ["searched", "in vain"],
        ["searched again", "in vain"],
        ["searched", "found"],
        ["searched again"],
        ["searched"],
        ["read another"],
        ["read"],
        ["read again"],
        ["read again"],
        ["invalid id"],
        ["searched"],
        ["answered"],
    ]


def test_the_record_after_a_withdrawal_is_that_of_the_other_calls(index: MailIndex) -> None:
    """Searches still count as searches."""
    calls: list[Callable[[EmailEnvironment], object]] = [
        lambda place: search_numbers(place, "price"),
        lambda place: search_numbers(place, "gas"),
        lambda place: search_numbers(place, "oil"),
        lambda place: place.read_email("<1@example.com>"),
        lambda place: place.read_email("<1@example.com>"),
        lambda place: place.read_email("<2@example.com>"),
    ]
    for number in range(2 ** len(calls)):
        unseen = [place for place in range(len(calls)) if number >> place & 1]
        whole, rest = environment(index, 1), environment(index, 1)
        for place, each in enumerate(calls):
            each(whole)
            if place not in unseen:
                each(rest)
        whole.withdraw_results(unseen)
        left = [events for place, events in enumerate(whole.record.deeds) if place not in unseen]
        assert left == rest.record.deeds
        assert [whole.record.deeds[place] for place in unseen] == [["searched"] if n < 3 else [] for n in unseen]
        assert whole.record.searches == 3
        assert replace(whole.record, deeds=[], searches=0) == replace(rest.record, deeds=[], searches=0)
        assert whole.shown == rest.shown


def test_an_answer_is_recorded_with_its_sources_and_ends_the_conversation(index: MailIndex) -> None:
    place = environment(index, 1, 8)
    given = ["1@example.com", "<1@example.com>", "<2@example.com>", "<2@example.com>", "<5@example.com>", "none"]
    place.toolbox.run(Call("return_final_answer", {"answer": " 42\n", "message_ids": given}))
    assert place.finished
    assert record_of(place) == {
        "answer": "42",
        "sources": ["1@example.com", "<1@example.com>", "<2@example.com>", "<5@example.com>", "none"],
        "right_sources": ["<1@example.com>"],
        "invalid_ids": 2,
    }


def test_a_source_from_after_the_date_is_invalid(index: MailIndex) -> None:
    place = environment(index, 4)
    place.toolbox.run(Call("return_final_answer", {"answer": "42", "message_ids": ["<4@example.com>"]}))
    assert (place.record.right_sources, place.record.invalid_ids) == ([], 1)


@pytest.mark.parametrize(
    ("answer", "does_not_know"),
    [
        ("I don't know", True),
        ("i don\u2019t know.", True),
        (' "I do not know," sorry', True),
        ("I dont know", True),
        ("I know", False),
        ("I do know: 42", False),
        ("42; more I don't know", False),
        ("", False),
        ("I don't knowingly say", False),
    ],
)
def test_i_don_t_know_is_recorded(index: MailIndex, answer: str, does_not_know: bool) -> None:
    place = environment(index)
    place.toolbox.run(Call("return_final_answer", {"answer": answer, "message_ids": []}))
    assert (place.record.does_not_know, place.record.invalid_ids) == (does_not_know, 0)


def test_all_sources_of_synthetic_questions_can_be_read_and_given(synthetic_index: MailIndex) -> None:
    for asked in synthetic().scenarios:
        place = EmailEnvironment(synthetic_index, asked, 10)
        for message_id in asked.message_ids:
            place.read_email(message_id)
        place.return_final_answer(asked.answer, list(asked.message_ids))
        assert tuple(place.record.read) == tuple(place.record.right_sources) == asked.message_ids
        assert (place.record.read_others, place.record.invalid_ids) == (0, 0)


def test_a_source_may_be_named_by_the_id_of_a_removed_duplicate(tmp_path: Path) -> None:
    """Searches list the remaining copy; the record has the id of the scenario."""
    copies = [record(number, date="2001-05-02T12:00:00+00:00", subject="Gas", body="gas at 42") for number in (1, 2)]
    place = environment(make_index(tmp_path, copies), 2)
    assert search_numbers(place, "gas") == [1]
    place.read_email("<1@example.com>")
    place.return_final_answer("42", ["<1@example.com>"])
    found = place.record
    assert found.found == found.read == found.right_sources == ["<2@example.com>"]
    assert (found.read_others, found.invalid_ids) == (0, 0)
