"""Parts of documents around a chunk, and results in the order of a reranker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.index import DocumentIndex
from gumshoe.embeddings.reranker import RerankSettings, open_reranker
from gumshoe.environments.documents import DocumentsEnvironment
from gumshoe.environments.tools import Call, ToolError
from gumshoe.scenarios.scenario import Scenario
from tests.documents.collection import write_jsonl
from tests.embeddings.rerank_server import RerankServer, running_rerank_server
from tests.errors import raises
from tests.scenarios.questions import about_documents

SENTENCES = [f"Sentence {number} is about the pump of the site with number {number * 37}." for number in range(30)]
DOCUMENTS = [
    {"id": "d1", "title": "Pumps", "text": " ".join(SENTENCES)},
    {"id": "d2", "title": "Valves", "text": "A valve and a pump are in the cellar."},
    {"id": "d3", "title": "Pipes", "text": "The pump has a pipe."},
]


@pytest.fixture
def index(tmp_path: Path) -> DocumentIndex:
    options = DocumentBuildOptions("none", tokens=40, drop_duplicates=False)
    build_document_index([write_jsonl(tmp_path / "d.jsonl", DOCUMENTS)], tmp_path / "index", options)
    return DocumentIndex(tmp_path / "index")


@pytest.fixture
def server() -> Iterator[RerankServer]:
    with running_rerank_server() as running:
        yield running


def numbers_in(text: str) -> list[int]:
    """Return the numbers of the sentences that a text has."""
    return [number for number, sentence in enumerate(SENTENCES) if sentence in text]


def test_a_chunk_is_read_with_its_neighbours(index: DocumentIndex) -> None:
    (hit,) = [each for each in index.search("sentence 12", limit=3) if each.document_id == "d1"]
    number = int(hit.chunk_id.rpartition("#")[2])
    alone = numbers_in(index.read("d1", number, 0).text)
    assert 12 in alone
    part = index.read("d1", around=number)
    assert (part.document_id, part.title) == ("d1", "Pumps")
    assert part.text.startswith("[…] Sentence")
    assert part.text.endswith(". […]")
    both = [
        *numbers_in(index.read("d1", number - 1, 0).text),
        *alone,
        *numbers_in(index.read("d1", number + 1, 0).text),
    ]
    assert numbers_in(part.text) == both == list(range(both[0], both[-1] + 1))
    assert index.read("d1", number, 99).text == index.read("d1").text


def test_the_first_and_the_last_chunk_have_one_neighbour(index: DocumentIndex) -> None:
    assert index.read("d1", 0).text.startswith(SENTENCES[0])
    with raises("documents.chunk-not-found", "'d1'", 99) as raised:
        index.read("d1", 99)
    last = int(raised.value.message.split("chunks 0 to ")[1].split(",")[0])
    assert index.read("d1", last).text.endswith(SENTENCES[-1])
    assert index.read("d2", 0).text == DOCUMENTS[1]["text"]
    for around, neighbours in ((-1, 1), (True, 1), (0, -1), ("0", 1)):
        with raises("documents.invalid-argument"):
            index.read("d1", around, neighbours)  # type: ignore[arg-type]


def test_chunks_that_were_dropped_as_duplicates_are_read(tmp_path: Path) -> None:
    repeated = "The very same sentence about a pump stands here again and again and again."
    text = " ".join([SENTENCES[0], repeated, repeated, SENTENCES[1]])
    options = DocumentBuildOptions("none", tokens=32)
    build_document_index([write_jsonl(tmp_path / "d.jsonl", [{"id": "a", "text": text}])], tmp_path / "i", options)
    index = DocumentIndex(tmp_path / "i")
    assert index.stats()["duplicates"]
    whole = " ".join(index.read("a", number, 0).text.replace("[…]", "").strip() for number in range(4))
    assert whole == text


def test_a_reranker_orders_the_results(index: DocumentIndex, server: RerankServer) -> None:
    query = "pump cellar"
    reranker = open_reranker(RerankSettings(model="m", url=server.url))
    server.answer = lambda request: (
        200,
        {"results": [{"index": n, "relevance_score": "pipe" in each} for n, each in enumerate(request["documents"])]},
    )
    plain, ordered = index.search(query), index.search(query, reranker=reranker)
    assert plain[0].document_id == "d2"
    assert ordered[0].document_id == "d3"
    assert {hit.document_id for hit in ordered} == {hit.document_id for hit in plain}
    assert [hit.rerank_score for hit in ordered] == [1, 0, 0]
    assert "Valves\nA valve and a pump are in the cellar." in server.requests[0]["documents"]
    assert [hit.document_id for hit in index.search(query, limit=1, reranker=reranker)] == ["d3"]
    assert index.search("xyzzy", reranker=reranker) == []
    shorter = index.search(query, snippet_characters=80, reranker=reranker)
    assert max(len(hit.snippet) for hit in shorter) <= 84 < max(len(hit.snippet) for hit in ordered)


def test_results_beyond_the_candidates_stay_below(index: DocumentIndex, server: RerankServer) -> None:
    server.answer = lambda _: (200, {"results": [{"index": 0, "relevance_score": -5}]})
    plain = index.search("pump cellar")
    ordered = index.search(
        "pump cellar", reranker=open_reranker(RerankSettings(model="m", url=server.url, candidates=1))
    )
    assert [hit.document_id for hit in ordered] == [hit.document_id for hit in plain]
    assert [hit.rerank_score for hit in ordered] == [-5, None, None]


def test_a_reranker_sees_only_what_may_be_read(tmp_path: Path, server: RerankServer) -> None:
    records = [{**each, "collection": name} for each, name in zip(DOCUMENTS, ("ops", "hr", "ops"), strict=True)]
    source = write_jsonl(tmp_path / "d.jsonl", records)
    build_document_index([source], tmp_path / "index", DocumentBuildOptions("none"))
    reranker = open_reranker(RerankSettings(model="m", url=server.url))
    hits = DocumentIndex(tmp_path / "index").view(["hr"]).search("pump", reranker=reranker)
    assert [hit.document_id for hit in hits] == ["d2"]
    assert [len(each["documents"]) for each in server.requests] == [1]
    assert "cellar" in server.requests[0]["documents"][0]


def test_a_failing_reranker_fails_the_search(index: DocumentIndex, server: RerankServer) -> None:
    server.answer = lambda _: (500, b"")
    with raises("embeddings.rerank-failed"):
        index.search("pump", reranker=open_reranker(RerankSettings(model="m", url=server.url, attempts=1)))


def environment(index: DocumentIndex, **settings: object) -> DocumentsEnvironment:
    scenario = Scenario.model_validate(about_documents(1, document_ids=["d1"]))
    return DocumentsEnvironment(index, scenario, 10, marks=False, **settings)  # type: ignore[arg-type]


def test_an_agent_reads_around_a_passage(index: DocumentIndex) -> None:
    place = environment(index, neighbours=1)
    shown = place.toolbox.run(Call("search_documents", {"query": "sentence 12"}))
    lines = shown.splitlines()
    chunk = int(lines[lines.index("  id: d1") - 1].removeprefix("  chunk: "))
    read = place.toolbox.run(Call("read_document", {"document_id": "d1", "around": chunk}))
    assert 12 in numbers_in(read)
    assert 0 < len(numbers_in(read)) < len(SENTENCES)
    assert place.record.read == ["d1"]
    with pytest.raises(ToolError, match="chunks 0 to"):
        place.read_document("d1", around=99)


def test_another_section_of_a_document_is_not_read_again(index: DocumentIndex) -> None:
    place = environment(index, neighbours=1)
    for around in (3, 9, 9, None, None):
        place.read_document("d1", around=around)
    for around in (0, 0):
        place.read_document("d2", around=around)
    correct = [["read"], [], ["read again"], [], ["read again"]]
    assert place.record.deeds == [*correct, ["read another"], ["read again"]]


def test_without_neighbours_the_tools_are_as_before(index: DocumentIndex) -> None:
    place = environment(index)
    assert "chunk:" not in place.search_documents("sentence 12")
    schema = next(each for each in place.toolbox.schemas() if each["function"]["name"] == "read_document")
    assert list(schema["function"]["parameters"]["properties"]) == ["document_id"]


def test_an_agent_searches_with_a_reranker(index: DocumentIndex, server: RerankServer) -> None:
    place = environment(index, rerank=RerankSettings(model="m", url=server.url), hits=1)
    assert place.search_documents("the pump has a pipe").endswith("id: d3")
    assert len(server.requests) == 1
