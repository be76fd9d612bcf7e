"""Environments for small contexts: fewer hits, pages and handles in place of ids."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gumshoe.documents.index import DocumentIndex
from gumshoe.environments.base import EpisodeState
from gumshoe.environments.documents import DocumentsEnvironment
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import BadArgumentsError, Call, ToolError
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.sft.scripted_expert import parse_hits
from tests.documents.pages import make_collection, page
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.scenarios.questions import about_documents, scenario

SMALL: dict[str, Any] = {"hits": 2, "hit_characters": 60, "message_characters": 400, "handles": True}
LINES = "".join(f"Line {number} about the harbour.\n" for number in range(60))
PEOPLE = [f"person{number}@example.com" for number in range(100)]


def message(number: int, *references: int, **fields: Any) -> dict[str, Any]:
    references_of = [f"<{each}@example.com>" for each in references]
    return record(number, **{"date": f"2001-05-0{number}T12:00:00+00:00", "references": references_of, **fields})


MAIL = [
    message(1, subject="Due", body="Is the gas invoice due on Monday? See m3, m1 and <7@example.com>."),
    message(2, 1, subject="Re: Due", body="No, the gas invoice is due on Friday."),
    message(3, subject="gas " + "long subject " * 20, body=LINES, to=["bob@example.com", *PEOPLE]),
    message(4, subject="gas", body="The gas of Eve", sender="ann@example.com", to=["eve@example.com"]),
    message(7, subject="gas", body="gas after the question", date="2001-05-20T12:00:00+00:00"),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_index(tmp_path_factory.mktemp("small"), MAIL, KEEP_ALL)


def environment(index: MailIndex, *right: int, **settings: Any) -> EmailEnvironment:
    sources = [f"<{number}@example.com>" for number in right or (1,)]
    asked = scenario(1, inbox_address="bob@example.com", query_date="2001-05-10", message_ids=sources)
    return EmailEnvironment(index, asked, 10, **{"marks": False, **settings})


def search(place: EmailEnvironment, *keywords: str) -> list[str]:
    """Return the ids that a search lists, as it lists them."""
    return [hit.source for hit in parse_hits(place.toolbox.run(Call("search_inbox", {"keywords": list(keywords)})))]


def read(place: EmailEnvironment, message_id: str, **arguments: Any) -> str:
    return place.toolbox.run(Call("read_email", {"message_id": message_id, **arguments}))


def answer(place: EmailEnvironment, *sources: str) -> None:
    place.toolbox.run(Call("return_final_answer", {"answer": "On Friday", "message_ids": list(sources)}))


def arguments_of(place: EmailEnvironment | DocumentsEnvironment, tool: str) -> list[str]:
    schemas = {each["function"]["name"]: each["function"] for each in place.toolbox.schemas()}
    return list(schemas[tool]["parameters"]["properties"])


# Handles


def test_handles_are_numbered_as_messages_are_first_shown(index: MailIndex) -> None:
    place = environment(index, handles=True)
    assert search(place, "invoice") == ["m1", "m2"]
    assert "id: m1 (thread m2, 2 messages)" in place.toolbox.run(Call("search_inbox", {"keywords": ["Friday"]}))
    assert search(place, "gas") == ["m3", "m1", "m2"]
    ids = {"m1": "<2@example.com>", "m2": "<1@example.com>", "m3": "<3@example.com>"}
    assert place.record.handles == ids
    thread = read(place, "m1", whole_thread=True)
    assert "\nId: m2\n" in thread
    assert "\nId: m1\n" in thread


def test_a_handle_or_a_real_id_can_be_read_and_given(index: MailIndex) -> None:
    place = environment(index, 1, 2, handles=True)
    search(place, "invoice")
    assert read(place, "m2") == read(place, " M2 ") == read(place, "<1@example.com>")
    assert "Friday" in read(place, "2@example.com")
    answer(place, "m2", "<1@example.com>", "m1", "m9", "<9@example.com>")
    record = place.record
    assert record.sources == ["<1@example.com>", "<2@example.com>", "m9", "<9@example.com>"]
    assert record.right_sources == ["<1@example.com>", "<2@example.com>"]
    assert (record.found, record.read) == (
        ["<2@example.com>", "<1@example.com>"],
        ["<1@example.com>", "<2@example.com>"],
    )
    assert record.invalid_ids == 2


@pytest.mark.parametrize("wanted", ["m1", "m3", "m0", "m", "<7@example.com>", "<4@example.com>"])
def test_what_an_episode_has_not_shown_cannot_be_read(index: MailIndex, wanted: str) -> None:
    """A handle of another episode, or in the text of a message, is an unknown id; so is the id of a hidden message."""
    other, place = environment(index, handles=True), environment(index, handles=True)
    search(other, "gas")
    read(place, "<1@example.com>")
    with pytest.raises(ToolError):
        read(place, wanted)
    answer(place, wanted)
    assert (place.record.invalid_ids, place.record.right_sources, place.record.sources) == (2, [], [wanted])


def test_messages_that_are_not_visible_get_no_handle(index: MailIndex) -> None:
    place = environment(index, handles=True)
    search(place, "gas")
    read(place, "m2", whole_thread=True)
    assert set(place.record.handles.values()) == {f"<{number}@example.com>" for number in (1, 2, 3)}


def test_a_handle_wins_over_a_message_with_such_an_id(tmp_path: Path) -> None:
    records = [
        message(1, body="gas now"),
        message(2, body="gas before", message_id="<m1>", date="2001-05-01T10:00:00Z"),
    ]
    place = environment(make_index(tmp_path, records), handles=True)
    assert search(place, "gas") == ["m1", "m2"]
    assert "gas now" in read(place, "m1")
    assert "gas before" in read(place, "m2")


def test_a_duplicate_has_the_handle_of_the_message_that_searches_list(tmp_path: Path) -> None:
    same = {"date": "2001-05-01T12:00:00+00:00", "subject": "Due", "body": "gas on Friday"}
    index = make_index(tmp_path, [record(1, **same), record(2, **same)])
    place = environment(index, 2, handles=True)
    assert search(place, "gas") == ["m1"]
    read(place, "m1")
    read(place, "<2@example.com>")
    answer(place, "m1")
    assert (place.record.found, place.record.read, place.record.right_sources) == (["<2@example.com>"],) * 3
    assert place.record.deeds[2] == ["read again"]
    assert len(place.record.handles) == 1


def play(place: EmailEnvironment) -> EpisodeState:
    """Search, read and answer in one way, with the ids as the tools list them."""
    search(place, "zebra", "gas")
    hits = search(place, "gas")
    for each in hits:
        read(place, each)
    read(place, hits[1], whole_thread=True)
    with pytest.raises(ToolError):
        read(place, "<unknown@example.com>")
    answer(place, *hits[:2])
    return place.record


def test_handles_that_only_a_withdrawn_result_shows_mean_nothing(index: MailIndex) -> None:
    place = environment(index, 1, handles=True)
    first, both = search(place, "Monday"), search(place, "invoice")
    assert set(first) < set(both)
    place.withdraw_results([0])
    assert set(both) == set(place.record.handles)
    place.withdraw_results([1])
    assert place.record.handles == {}
    with pytest.raises(ToolError, match="m1"):
        read(place, "m1")
    answer(place, "m1")
    assert place.record.right_sources == []
    assert not set(search(place, "invoice")) & set(both)


def test_the_record_is_the_same_with_and_without_handles(index: MailIndex) -> None:
    with_ids, with_handles = (play(environment(index, 2, handles=each)) for each in (False, True))
    assert with_handles.handles
    assert replace(with_handles, handles={}) == with_ids
    assert with_ids.sources == ["<3@example.com>", "<2@example.com>"]
    assert asdict(with_ids)["handles"] == {}


# Budgets


def test_tools_have_a_page_only_if_messages_have_pages(index: MailIndex) -> None:
    plain, small = environment(index), environment(index, **SMALL)
    assert arguments_of(plain, "read_email") == ["message_id", "whole_thread"]
    assert arguments_of(small, "read_email") == ["message_id", "whole_thread", "page"]
    short = environment(index, threads=False, **SMALL)
    assert arguments_of(short, "read_email") == ["message_id", "page"]
    assert "up to 2 messages" in short.toolbox.schemas()[0]["function"]["description"]
    with pytest.raises(BadArgumentsError):
        read(plain, "<3@example.com>", page=2)
    assert "Line 20 " in read(short, "<3@example.com>", page=2)


def test_a_search_lists_few_and_short_hits(index: MailIndex) -> None:
    place = environment(index, **SMALL)
    result = place.toolbox.run(Call("search_inbox", {"keywords": ["gas"]}))
    hits = parse_hits(result)
    assert [hit.source for hit in hits] == ["m1", "m2"]
    for hit in hits:
        assert len(hit.head.partition(": ")[2]) + len(hit.snippet) <= SMALL["hit_characters"]
    assert len(search(place, "gas", "zebra")) == 2
    assert len(search(environment(index), "gas")) == 3


@pytest.mark.parametrize("words", [["harbour"], ["harbour", "zebra"]], ids=["all keywords", "some keywords"])
def test_a_larger_hit_shows_more_of_a_message(index: MailIndex, words: list[str]) -> None:
    def show(**settings: Any) -> str:
        (hit,) = parse_hits(environment(index, **settings).toolbox.run(Call("search_inbox", {"keywords": words})))
        return hit.snippet

    usual = show()
    assert show(hit_characters=160).removesuffix(" …") in usual
    assert len(show(hit_characters=2000)) > 1000 > 2 * len(usual)
    assert LINES[:900].replace("\n", " ") in show(hit_characters=2000)


def test_a_long_message_is_read_in_pages(index: MailIndex) -> None:
    place = environment(index, 3, **SMALL)
    pages = [read(place, "<3@example.com>", page=number) for number in range(1, 6)]
    assert "".join(shown.partition("\n\n")[2] for shown in pages) == LINES.rstrip("\n")
    assert all(len(shown) < 400 + 500 for shown in pages)
    assert "and 98 more" in pages[0]
    with pytest.raises(ToolError, match="5"):
        read(place, "<3@example.com>", page=6)
    assert place.record.deeds == [["read"], *[[]] * 5]
    assert (place.record.read, place.record.read_others, place.record.invalid_ids) == (["<3@example.com>"], 0, 0)
    read(place, "<3@example.com>", page=2)
    assert place.record.deeds[-1] == ["read again"]


def test_pages_of_another_message_are_other_readings(index: MailIndex) -> None:
    place = environment(index, 1, **SMALL)
    for number in (1, 2, 2):
        read(place, "<3@example.com>", page=number)
    assert place.record.deeds == [["read another"], ["read another"], ["read again"]]


def test_a_thread_is_cut_to_about_a_page(tmp_path: Path) -> None:
    records = [message(1, body="word " * 500)]
    records += [message(each, each - 1, subject="Re: Subject", body=f"{each} word " * 500) for each in range(2, 8)]
    place = environment(make_index(tmp_path, records), **{**SMALL, "message_characters": 1200})
    shown = read(place, "<4@example.com>", whole_thread=True)
    assert len(shown) < 1200 + 300
    assert shown.startswith("Thread of 7 messages, oldest first. Left out: ")
    assert set(place.record.handles.values()) >= {"<4@example.com>"}
    neighbor = next(handle for handle, source in place.record.handles.items() if source != "<4@example.com>")
    assert "Thread of 7 messages" in read(place, neighbor, whole_thread=True)


# Documents


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> DocumentIndex:
    pages = [page(1, title="Marsh fever", text=LINES), page(2, title="Hill fever", text="Hill fever lasts a week.")]
    return DocumentIndex(make_collection(tmp_path_factory.mktemp("fever"), pages))


def test_documents_have_handles_and_pages(collection: DocumentIndex) -> None:
    """The ids of these documents look like handles: a handle that was shown wins."""
    about = Scenario.model_validate(about_documents(1, document_ids=["d1"]))
    place = DocumentsEnvironment(
        collection, about, 10, handles=True, hit_characters=40, document_characters=400, marks=False
    )
    assert arguments_of(place, "read_document") == ["document_id", "page"]
    result = place.toolbox.run(Call("search_documents", {"query": "hill fever week"}))
    assert [hit.source for hit in parse_hits(result)] == ["d1", "d2"]
    assert place.record.handles == {"d1": "d2", "d2": "d1"}
    parts = [place.toolbox.run(Call("read_document", {"document_id": "d2", "page": each})) for each in range(1, 6)]
    assert "".join(each.partition("\n\n")[2] for each in parts).strip() == LINES.strip()
    assert parts[0].startswith("Marsh fever\nPage 1 of 5\n\n")
    place.toolbox.run(Call("return_final_answer", {"answer": "A week", "document_ids": ["d1", "d2"]}))
    assert (place.record.sources, place.record.right_sources) == (["d2", "d1"], ["d1"])


def test_a_larger_hit_shows_more_of_a_document(collection: DocumentIndex) -> None:
    about = Scenario.model_validate(about_documents(1, document_ids=["d1"]))

    def show(limit: int | None) -> str:
        place = DocumentsEnvironment(collection, about, 10, hit_characters=limit, marks=False)
        hit, *_ = parse_hits(place.toolbox.run(Call("search_documents", {"query": "harbour"})))
        return hit.snippet

    usual = show(None)
    assert show(240).removesuffix(" …") in usual
    assert len(show(800)) > 700 > 2 * len(usual)


def test_documents_have_no_pages_by_default(collection: DocumentIndex) -> None:
    about = Scenario.model_validate(about_documents(1, document_ids=["d1"]))
    place = DocumentsEnvironment(collection, about, 10, marks=False)
    assert arguments_of(place, "read_document") == ["document_id"]
    assert place.toolbox.run(Call("read_document", {"document_id": "d1"})).startswith("Marsh fever\n\nLine 0 ")
