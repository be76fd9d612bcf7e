"""Threads and partial matches in the mail environment, all as they were before the date of the question."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.search import NOTHING_FOUND
from gumshoe.environments.tools import Call, ToolError
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex
from gumshoe.training.sft.scripted_expert import parse_hits
from tests.embeddings.word_vectors import WordVectors
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.scenarios.questions import scenario

# Bob's inbox. The question is asked on 10 May: later messages, and those without a date, do not exist.
LATE = "2001-05-11T00:00:00+00:00"


def message(number: int, *references: int, **fields: Any) -> dict[str, Any]:
    return record(
        number,
        **{
            "references": [f"<{each}@example.com>" for each in references],
            "date": f"2001-05-0{number}T12:00:00+00:00",
            "subject": f"Subject {number}",
            **fields,
        },
    )


MAIL = [
    message(1, subject="Due", body="Is the gas invoice due on Monday?"),
    message(2, 1, subject="Re: Due", body="No, on Friday.\n\nOn 1 May 2001, Ann wrote:\n> Is the gas invoice due?\n"),
    message(3, body="Power for the harbour"),
    message(4, body="Power for the airport"),
    message(11, 1, 3, subject="Re: Due", body="gas power harbour later", date=LATE),
    message(12, 2, body="gas without a date", date=""),
    message(13, 4, body="power later", date=LATE),
]


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_index(tmp_path_factory.mktemp("threads"), MAIL)


def environment(index: MailIndex, *right: int, **settings: Any) -> EmailEnvironment:
    sources = [f"<{number}@example.com>" for number in right or (1,)]
    asked = scenario(1, inbox_address="bob@example.com", query_date="2001-05-10", message_ids=sources)
    return EmailEnvironment(index, asked, 10, **{"marks": False, **settings})


def search(place: EmailEnvironment, *keywords: str, **arguments: Any) -> str:
    return place.toolbox.run(Call("search_inbox", {"keywords": list(keywords), **arguments}))


def read(place: EmailEnvironment, number: int, **arguments: Any) -> str:
    return place.toolbox.run(Call("read_email", {"message_id": f"<{number}@example.com>", **arguments}))


def listed(result: str) -> list[int]:
    return [int(hit.source[1:].partition("@")[0]) for hit in parse_hits(result)]


def test_hits_name_a_thread_of_several_messages(index: MailIndex) -> None:
    assert search(environment(index), "invoice", "due") == (
        "2001-05-02 ann@example.com: Re: Due\n  No, on Friday. On 1 May 2001, Ann wrote: > Is the gas invoice due?"
        "\n  id: <2@example.com> (thread <1@example.com>, 2 messages)\n"
        "2001-05-01 ann@example.com: Due\n  Is the gas invoice due on Monday?"
        "\n  id: <1@example.com> (thread <1@example.com>, 2 messages)"
    )
    assert search(environment(index), "harbour").endswith("\n  id: <3@example.com>")


def test_a_search_may_list_each_thread_once(index: MailIndex) -> None:
    place = environment(index)
    assert listed(search(place, "gas")) == [2, 1]
    assert listed(search(place, "gas", one_per_thread=True)) == [2]
    assert place.record.repeated_searches == 0


def test_a_search_without_a_match_tells_which_keyword_is_to_blame(index: MailIndex) -> None:
    place = environment(index)
    first, _, hits = search(place, "power", "harbour", "zebra", "gas").partition("\n")
    assert first.startswith("No message has all keywords.")
    assert '"power" 2, "harbour" 1, "zebra" 0, "gas" 2.' in first
    assert listed(hits)[0] == 3
    assert sorted(listed(hits)) == [1, 2, 3, 4]
    limited = search(place, "power", "gas", sent_after="2001-05-03")
    assert limited.startswith("No message within these limits has all keywords.")
    assert sorted(listed(limited)) == [3, 4]
    assert sorted(listed(search(place, "invoice", "zebra", one_per_thread=True))) in ([1], [2])


@pytest.mark.parametrize("keywords", [["zebra"], ["zebra", "quagga"]])
def test_a_search_for_words_of_no_message_finds_nothing(index: MailIndex, keywords: list[str]) -> None:
    place = environment(index)
    assert search(place, *keywords).startswith(NOTHING_FOUND)
    assert (place.record.empty_searches, place.record.deeds) == (1, [["searched", "in vain"]])


@pytest.mark.parametrize(
    ("right", "events", "fields"),
    [
        (3, ["searched", "found"], {"found": ["<3@example.com>"], "best_rank": 1, "empty_searches": 0}),
        (1, ["searched", "in vain"], {"found": [], "best_rank": None, "empty_searches": 1}),
    ],
)
def test_partial_matches_are_in_vain_without_a_correct_one(
    index: MailIndex, right: int, events: list[str], fields: Mapping[str, Any]
) -> None:
    place = environment(index, right)
    search(place, "power", "harbour", "zebra")
    assert place.record.deeds == [events]
    assert {name: getattr(place.record, name) for name in fields} == fields


def test_a_whole_thread_is_read_in_order_without_quotes(index: MailIndex) -> None:
    assert read(environment(index), 2, whole_thread=True) == (
        "Thread of 2 messages, oldest first.\n\n"
        "[1 of 2]\nFrom: <ann@example.com>\nTo: bob@example.com\nDate: Tuesday, 2001-05-01 12:00\nSubject: Due\n"
        "Id: <1@example.com>\n\nIs the gas invoice due on Monday?\n\n"
        "[2 of 2]\nFrom: <ann@example.com>\nTo: bob@example.com\nDate: Wednesday, 2001-05-02 12:00\nSubject: Re: Due\n"
        "Id: <2@example.com>\n\nNo, on Friday."
    )
    assert "> Is the gas invoice due?" in read(environment(index), 2)
    assert read(environment(index), 3, whole_thread=True) == read(environment(index), 3)


def test_reading_a_thread_records_its_messages_as_one_reading(index: MailIndex) -> None:
    place = environment(index, 1)
    read(place, 2, whole_thread=True)
    assert (place.record.read, place.record.read_others) == (["<1@example.com>"], 0)
    read(place, 1)
    read(place, 2, whole_thread=True)
    assert place.record.deeds == [["read"], ["read again"], ["read again"]]
    other = environment(index, 3)
    read(other, 1, whole_thread=True)
    assert (other.record.read, other.record.read_others, other.record.deeds) == ([], 1, [["read another"]])
    both = environment(index, 1, 2)
    read(both, 1)
    read(both, 1, whole_thread=True)
    assert both.record.deeds == [["read"], ["read"]]
    at_once = environment(index, 1, 2)
    read(at_once, 1, whole_thread=True)
    assert at_once.record.deeds == [["read", "read"]]


def test_without_threads_the_tools_are_those_of_the_tiny_policy(index: MailIndex) -> None:
    plain = environment(index, **EmailEnvironment.for_tiny)
    assert search(plain, "invoice", "monday") == (
        "2001-05-01 ann@example.com: Due\n  Is the gas invoice due on Monday?\n  id: <1@example.com>"
    )
    assert search(plain, "power", "zebra") == NOTHING_FOUND
    plain_tools, tools = (
        {each["function"]["name"]: each["function"] for each in place.toolbox.schemas()}
        for place in (plain, environment(index))
    )
    for name, added in (("search_inbox", "one_per_thread"), ("read_email", "whole_thread")):
        fewer, more = (list(each[name]["parameters"]["properties"]) for each in (plain_tools, tools))
        assert more == [*fewer, added]
    assert plain_tools["search_inbox"]["description"] == tools["search_inbox"]["description"].partition("\n")[0]
    assert plain_tools["return_final_answer"] == tools["return_final_answer"]


def test_a_long_thread_is_shown_around_the_wanted_message(tmp_path: Path) -> None:
    records = [message(1, date="2001-05-01T12:00:00+00:00", body="start")]
    records += [
        message(number, number - 1, date=f"2001-05-02T{number // 60:02}:{number % 60:02}:00+00:00", body="word " * 100)
        for number in range(2, 151)
    ]
    records[74]["body"] = "word " * 1_000
    place = environment(make_index(tmp_path, records), 70)
    shown = read(place, 75, whole_thread=True)
    assert len(shown) < 14_000
    assert "\nId: <75@example.com>\n" in shown
    assert shown.count("\nId: <") == 11
    assert shown.startswith(
        "Thread of 150 messages, oldest first. Left out: 69 earlier and 70 later ones. "
        "To see them, read the whole thread of <69@example.com> or <81@example.com>.\n"
    )
    assert place.record.read == ["<70@example.com>"]
    assert "[2,999 more characters" in read(place, 74, whole_thread=True)


def test_only_what_is_shown_of_a_thread_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[str] = []

    def fold(body: str) -> str:
        folded.append(body)
        return body

    monkeypatch.setattr("gumshoe.mail.quotes.fold_quotes", fold)
    records = [
        message(
            number,
            1,
            subject="Re: Due",
            date=f"2001-05-02T12:{number % 60:02}:00+00:00",
            body=f"{number} {'word ' * 600}",
        )
        for number in range(2, 42)
    ]
    place = environment(make_index(tmp_path, [MAIL[0], *records]))
    shown = read(place, 20, whole_thread=True).count("\nId: <")
    assert 1 < shown < 10
    assert len(folded) == len(set(folded)) <= shown + 2  # the next one on each side does not fit


def test_every_message_of_a_long_thread_can_be_reached(tmp_path: Path) -> None:
    """Follow the ids that a part of a thread names, through messages that leave no room for others."""
    records = [
        message(1, date="2001-05-01T12:00:00+00:00"),
        *(message(number, 1, date=f"2001-05-0{number}T12:00:00+00:00", body="word " * 3_000) for number in range(2, 5)),
    ]
    place = environment(make_index(tmp_path, records, KEEP_ALL))
    heads = {}
    number = 4
    while number not in heads:
        heads[number], _, _ = read(place, number, whole_thread=True).partition("\n")
        number = min(map(int, re.findall(r"<(\d+)@", heads[number])), default=number)
    assert list(heads) == [4, 3, 2, 1]
    assert heads[4].endswith(" Left out: 3 earlier ones. To see them, read the whole thread of <3@example.com>.")
    assert heads[1] == "Thread of 4 messages, oldest first."


def test_a_long_subject_is_cut_unless_its_message_is_read_alone(tmp_path: Path) -> None:
    subject = "word " * 1_000
    place = environment(make_index(tmp_path, [message(1), message(2, 1, subject=subject)]))
    assert len(search(place, "message", "2")) < 700
    assert len(read(place, 1, whole_thread=True)) < 1_000
    assert subject.strip() in read(place, 2)


# By meaning


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    options = MailBuildOptions(embedding="word-vectors")
    return make_index(tmp_path_factory.mktemp("meaning"), MAIL, options, WordVectors())


def search_by_meaning(place: EmailEnvironment, query: str, **arguments: Any) -> str:
    return place.toolbox.run(Call("search_by_meaning", {"query": query, **arguments}))


def test_an_index_with_vectors_is_searched_by_meaning(vectors: MailIndex) -> None:
    place = environment(vectors, 3)
    shown = search_by_meaning(place, "who has power in the harbour")
    assert shown.startswith("2001-05-03 ann@example.com: Subject 3\n  Power for the harbour\n  id: <3@example.com>\n")
    assert sorted(listed(shown)) == [1, 2, 3, 4]
    assert "(thread <1@example.com>, 2 messages)" in shown
    assert (place.record.searches, place.record.best_rank, place.record.deeds) == (1, 1, [["searched", "found"]])
    assert listed(search_by_meaning(place, "power", sent_after="2001-05-04")) == [4]
    assert search_by_meaning(place, "power", sender="dave@example.com") == NOTHING_FOUND
    with pytest.raises(ToolError, match="sent_after"):
        search_by_meaning(place, "power", sent_after="2001-06-01")
    assert search_by_meaning(place, "who has power in the harbour")
    assert place.record.repeated_searches == 1


def test_the_tool_exists_only_with_vectors_and_unless_it_is_turned_off(index: MailIndex, vectors: MailIndex) -> None:
    def names(opened: MailIndex, **settings: Any) -> list[str]:
        return [tool.__name__ for tool in environment(opened, **settings).toolbox.tools]

    without = ["search_inbox", "read_email", "return_final_answer"]
    assert names(index) == names(vectors, meaning=False) == without
    assert names(vectors) == ["search_inbox", "search_by_meaning", "read_email", "return_final_answer"]
    assert names(vectors, **EmailEnvironment.for_tiny) == without


def test_the_model_of_queries_is_loaded_only_with_vectors(index: MailIndex, vectors: MailIndex) -> None:
    model = WordVectors()
    EmailEnvironment.get_ready(MailIndex(vectors.directory, model))
    assert model.asked[-1] == ["What is there?"]
    EmailEnvironment.get_ready(MailIndex(index.directory, failing := WordVectors()))
    assert failing.asked == []
