"""The documents environment: results of tools, prompts and the record."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.document import Document
from gumshoe.documents.index import DocumentIndex
from gumshoe.environments.base import EpisodeState
from gumshoe.environments.documents import DocumentsEnvironment, make_excerpt
from gumshoe.environments.ingest import ingest_sources
from gumshoe.environments.registry import open_env
from gumshoe.environments.tools import Call, ToolError
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.ask import LocalModel, Question, answer_locally
from tests.documents.collection import write_jsonl
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, letter_counts
from tests.mail.mailbox import record
from tests.mail.mailbox import write_jsonl as write_mail
from tests.scenarios.questions import QUICK, about_documents, scenario

LONG = " ".join(f"Sentence {number} of many says nothing." for number in range(2000))
PAGES = [
    page(1, title="Marsh fever", text="Marsh fever lasts nine days.\n\nIt begins with a cough."),
    page(2, title="Hill fever", text="Hill fever lasts a week."),
    page(3, title="Salt balsam", text="Salt balsam is taken at night."),
    page(4, title="Long page", text=f"It begins. {LONG} The quartz needle is kept in Leeds. {LONG} It ends."),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> DocumentIndex:
    return DocumentIndex(make_collection(tmp_path_factory.mktemp("fever"), PAGES))


def environment(index: DocumentIndex, *right: int, asked: Any = None, **settings: Any) -> DocumentsEnvironment:
    """Return an environment, given the documents with the answer."""
    sources = [f"d{number}" for number in right or (1,)]
    about = Scenario.model_validate(about_documents(1, document_ids=sources, **(asked or {})))
    return DocumentsEnvironment(index, about, 10, **{"marks": False, **settings})


def listed(text: str) -> list[str]:
    return [line.removeprefix("  id: ") for line in text.splitlines() if line.startswith("  id: ")]


def record_of(place: DocumentsEnvironment) -> dict[str, Any]:
    """Return the fields of the record that are not empty, except the events."""
    plain = asdict(EpisodeState())
    return {name: value for name, value in asdict(place.record).items() if value != plain[name] and name != "deeds"}


def test_the_prompt_asks_for_reasoning_unless_it_is_turned_off(index: DocumentIndex) -> None:
    thinking, plain = environment(index), environment(index, reasoning=False)
    assert "at most 10 turns" in plain.system_prompt()
    assert "<think>" not in plain.system_prompt()
    assert thinking.system_prompt().startswith(plain.system_prompt())
    assert "in <think> and </think>" in thinking.system_prompt()
    assert thinking.toolbox.schemas() == plain.toolbox.schemas()


def test_the_prompt_has_the_date_of_the_question_if_any(index: DocumentIndex) -> None:
    assert environment(index).user_prompt() == "What does document 1 say?"
    dated = environment(index, asked={"query_date": "2001-05-10"})
    assert dated.user_prompt() == "Today is Thursday, 2001-05-10.\n\nWhat does document 1 say?"


@pytest.mark.parametrize(
    "asked", [scenario(1), Scenario.from_question("What?", "ann@example.com", scenario(1).query_date)]
)
def test_a_question_about_mail_is_rejected(index: DocumentIndex, asked: Scenario) -> None:
    with raises("environments.not-about-documents", asked.id):
        DocumentsEnvironment(index, asked, 10)


def test_a_search_lists_title_passage_and_id_best_first(index: DocumentIndex) -> None:
    place = environment(index, 2)
    shown = place.toolbox.run(Call("search_documents", {"query": "How long does hill fever last?"}))
    assert shown.startswith("Hill fever\n  Hill fever lasts a week.\n  id: d2\nMarsh fever\n  ")
    assert listed(shown)[:2] == ["d2", "d1"]
    assert record_of(place) == {"searches": 1, "found": ["d2"], "best_rank": 1}
    assert place.record.deeds == [["searched", "found"]]


def test_a_search_lists_as_many_hits_as_configured(index: DocumentIndex) -> None:
    assert len(listed(environment(index).search_documents("fever lasts"))) == 2
    assert len(listed(environment(index, hits=1).search_documents("fever lasts"))) == 1


def test_searches_and_the_best_rank_are_recorded(index: DocumentIndex) -> None:
    """The correct source is second in the first search, missing in the next, and first in the last."""
    place = environment(index, 1)
    assert listed(place.search_documents("hill fever lasts")) == ["d2", "d1"]
    assert place.record.best_rank == 2
    assert place.search_documents("xyzzy") == place.search_documents("xyzzy") == "Nothing found."
    assert place.search_documents(" ") == "Nothing found."
    assert listed(place.search_documents("marsh"))[0] == "d1"
    assert place.record.best_rank == 1
    assert record_of(place) == {
        "searches": 5,
        "repeated_searches": 1,
        "empty_searches": 3,
        "found": ["d1"],
        "best_rank": 1,
    }
    assert place.record.deeds == [
        ["searched", "found"],
        ["searched", "in vain"],
        ["searched again", "in vain"],
        ["searched", "in vain"],
        ["searched"],
    ]


def test_reading_shows_the_document_and_records_it(index: DocumentIndex) -> None:
    place = environment(index, 1, 3)
    assert place.read_document("d1") == "Marsh fever\n\nMarsh fever lasts nine days.\n\nIt begins with a cough."
    assert place.read_document(" d3 ").startswith("Salt balsam\n\n")
    place.read_document("d1")
    place.read_document("d2")
    with pytest.raises(ToolError, match="there is no document 'd9'; use an id as a search lists it"):
        place.read_document("d9")
    assert record_of(place) == {"read": ["d1", "d3"], "read_others": 1, "invalid_ids": 1}
    assert place.record.deeds == [["read"], ["read"], ["read again"], ["read another"], ["invalid id"]]


def test_a_long_document_is_reduced_to_its_beginning_and_found_passages(index: DocumentIndex) -> None:
    place = environment(index, 4, longest=2000)
    assert "quartz needle" not in place.read_document("d4")
    assert "quartz needle" in place.search_documents("quartz needle")
    read = place.read_document("d4")
    assert read.startswith("Long page\n\nIt begins. Sentence 0 of many")
    assert "The quartz needle is kept in Leeds." in read
    assert read.count("[…]") == 2
    assert "It ends." not in read
    assert len(read) < 2100
    assert "[…]" not in environment(index, 4, longest=200_000).read_document("d4")


def test_the_answer_ends_the_episode_and_records_correct_sources(index: DocumentIndex) -> None:
    place = environment(index, 1, 2)
    assert (
        place.toolbox.run(Call("return_final_answer", {"answer": " Nine days ", "document_ids": ["d1", "d9", "d1"]}))
        == ""
    )
    assert place.finished
    assert record_of(place) == {
        "answer": "Nine days",
        "sources": ["d1", "d9"],
        "right_sources": ["d1"],
        "invalid_ids": 1,
    }
    unsure = environment(index)
    unsure.return_final_answer("I don't know.", [])
    assert unsure.record.does_not_know


def test_a_removed_duplicate_is_a_correct_source_under_the_listed_id(tmp_path: Path) -> None:
    same = {"title": "Marsh fever", "text": "Marsh fever lasts nine days.", "url": "https://example.com/same"}
    index = DocumentIndex(make_collection(tmp_path, [page(1, **same), page(2, **same)]))
    place = environment(index, 2)
    assert listed(place.search_documents("marsh fever")) == ["d1"]
    place.read_document("d1")
    place.return_final_answer("Nine days", ["d1"])
    assert (place.record.found, place.record.read, place.record.right_sources) == (["d2"], ["d2"], ["d2"])


class Counting(DocumentIndex):
    """Count the documents that are read."""

    reads = 0

    def read(self, document_id: str, around: int | None = None, neighbours: int = 1) -> Document:
        self.reads += 1
        return super().read(document_id, around, neighbours)


def test_ids_and_sources_are_found_without_reading_texts(index: DocumentIndex) -> None:
    counting = Counting(index.path.parents[1])
    place = environment(counting, 1, 2)
    place.return_final_answer("Nine days", ["d1", "d9"])
    assert (place.record.right_sources, place.record.invalid_ids) == (["d1"], 1)
    found = DocumentsEnvironment.find_source(counting, place.scenario, "d1")
    assert found is not None
    assert (found.title, counting.reads) == ("Marsh fever", 0)


@pytest.mark.parametrize("about", ["email", "documents"])
def test_an_ingested_index_is_reused(about: str, tmp_path: Path) -> None:
    source = write_mail(tmp_path / "in.jsonl", [record(1), record(2)])
    if about == "documents":
        source = write_jsonl(tmp_path / "in.jsonl", PAGES)
    made = ingest_sources([source], about, "none", tmp_path / "index")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").rglob("*")}
    assert ingest_sources([source], about, "none", tmp_path / "index") == made
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "index").rglob("*")} == before
    code = "mail.index-exists" if about == "email" else "documents.index-exists"
    with raises(code, tmp_path / "index"):
        ingest_sources([source, source], about, "none", tmp_path / "index")
    with raises(code, tmp_path / "index"):
        ingest_sources([source], about, "none", tmp_path / "index", {"drop_duplicates": False})


def test_an_ingested_index_has_the_given_owners_and_options(tmp_path: Path) -> None:
    source = write_mail(tmp_path / "in.jsonl", [record(1), record(2, body="long " * 2000)])
    owned = {"source": source, "owner": "Lee@example.com", "aliases": ["ann@example.com"]}
    options = {"max_body": 0.0, "skip": ["spam", "deleted"]}
    made = ingest_sources([owned], "email", "none", tmp_path / "index", options)
    assert (made.count, made.facts["inboxes"]) == (2, 1)
    assert made.facts["sources"] == [{**owned, "owner": "lee@example.com"}]
    assert (made.facts["options"]["max_body"], made.facts["options"]["skip"]) == (None, ["deleted", "spam"])
    assert ingest_sources([owned], "email", "none", tmp_path / "index", options) == made
    with raises("mail.index-exists", tmp_path / "index"):
        ingest_sources([source], "email", "none", tmp_path / "index", options)


@pytest.fixture(scope="module")
def walled(tmp_path_factory: pytest.TempPathFactory) -> DocumentIndex:
    """Return an index in which document 1 is in the collection hr, and the others are in eng."""
    pages = [{**each, "collection": "eng" if number else "hr"} for number, each in enumerate(PAGES)]
    return DocumentIndex(make_collection(tmp_path_factory.mktemp("walled"), pages))


def test_tools_reach_only_the_collections_of_the_scenario(walled: DocumentIndex) -> None:
    place = environment(walled, asked={"collections": ["eng"]}, handles=True)
    shown = place.search_documents("fever cough nine days hr:d1")
    assert "Marsh" not in shown
    assert "Hill fever" in shown
    for wanted in ("d1", "hr:d1", "d9"):  # d1 is a handle too: that of a document that was shown
        if wanted == "d1":
            assert "Hill fever" in place.read_document(wanted)
            continue
        with pytest.raises(ToolError) as error:
            place.read_document(wanted)
        assert str(error.value).replace(wanted, "ID") == "there is no document 'ID'; use an id as a search lists it"
    place.return_final_answer("nine days", ["hr:d1"])
    assert (place.record.right_sources, place.record.invalid_ids) == ([], 3)
    for find in (DocumentsEnvironment.find_source, DocumentsEnvironment.read_source):
        assert find(walled, place.scenario, "d1") is None
        assert find(walled, environment(walled, asked={"collections": ["h*"]}).scenario, "d1") is not None


def test_a_scenario_without_collections_is_refused_if_the_index_has_some(
    walled: DocumentIndex, index: DocumentIndex
) -> None:
    about = Scenario.model_validate(about_documents(1))
    with raises("environments.no-collections", "d1"):
        DocumentsEnvironment(walled, about, 10)
    for find in (DocumentsEnvironment.find_source, DocumentsEnvironment.read_source):
        with raises("environments.no-collections", "d1"):
            find(walled, about, "d1")
    assert listed(environment(index, asked={"collections": ["hr"]}).search_documents("Hill fever"))
    assert listed(environment(walled, asked={"collections": ["*"]}).search_documents("Hill fever"))


def test_tools_of_an_index_with_collections_can_be_described(walled: DocumentIndex) -> None:
    factory = open_env(walled.path.parents[1])
    assert factory.has_collections
    assert [tool.__name__ for tool in factory.list_tools()] == ["search_documents", "read_document"]


def test_documents_are_ingested_into_collections(tmp_path: Path) -> None:
    source = {"source": write_jsonl(tmp_path / "in.jsonl", PAGES), "collection": "hr"}
    made = ingest_sources([source], "documents", "none", tmp_path / "index")
    assert (made.facts["collections"], made.facts["sources"]) == ({"hr": len(PAGES)}, [source])
    assert ingest_sources([source], "documents", "none", tmp_path / "index") == made
    with raises("documents.index-exists"):
        ingest_sources([{**source, "collection": "eng"}], "documents", "none", tmp_path / "index")


def test_documents_are_ingested_with_options_and_without_owners(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", PAGES)
    made = ingest_sources([source], "documents", "none", tmp_path / "index", {"tokens": 64.0, "language": "de"})
    assert (made.facts["options"]["tokens"], made.facts["options"]["language"]) == (64, "de")
    with raises("sources.owner-not-allowed", "ann@example.com"):
        ingest_sources([{"source": source, "owner": "ann@example.com"}], "documents", "none", tmp_path / "other")


def test_ask_embeds_queries_with_an_endpoint(tmp_path: Path) -> None:
    """The command gets as far as the model, which does not exist."""
    embedded: list[str] = []

    def embed(request: dict[str, Any]) -> dict[str, Any]:
        embedded.extend(request["input"])
        return letter_counts(request)

    with FakeVLLM(embeddings=embed) as server:
        options = DocumentBuildOptions(f"openai:base@{server.address}/v1")
        build_document_index([write_jsonl(tmp_path / "in.jsonl", PAGES[:3])], tmp_path / "index", options)
        asked = Question(tmp_path / "index", None, None, "How long does marsh fever last?")
        model = LocalModel(None, None, str(tmp_path / "no-model"))
        with raises("sources.no-such-model-directory", tmp_path / "no-model"):
            asyncio.run(answer_locally(asked, model, 0.0))
    assert "What is there?" in embedded


@given(st.text(), st.text())
@QUICK
def test_any_query_returns_a_result_or_a_tool_error(index: DocumentIndex, query: str, name: str) -> None:
    place = environment(index)
    assert isinstance(place.search_documents(query), str)
    if name.strip() not in {f"d{number}" for number in range(1, 5)}:
        with pytest.raises(ToolError, match="there is no document"):
            place.read_document(name)
    place.return_final_answer(query, [name])
    assert place.finished


@given(st.text(alphabet="ab \n", max_size=400), st.lists(st.text(alphabet="ab ", max_size=20)), st.integers(20, 100))
@QUICK
def test_an_excerpt_has_parts_of_the_text_and_a_limited_length(text: str, passages: list[str], longest: int) -> None:
    shown = make_excerpt(text, passages, longest)
    if len(text) <= longest:
        assert shown == text
        return
    parts = [part for part in shown.split("[…]") if part.strip()]
    assert all(part.strip() in text for part in parts)
    assert sum(map(len, parts)) <= longest
    words = {*text.split()}
    if len(words) > 1 and max(map(len, words)) < longest // 8:
        assert {word for part in parts for word in part.split()} <= words, "no word is cut"
