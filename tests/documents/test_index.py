"""Search and read: hits with ranks, filters, arbitrary queries, and concurrent use."""

import os
import random
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.artifacts.store import Store
from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.document import Document
from gumshoe.documents.index import MAX_RESULTS, DocumentIndex, DocumentNotFoundError, open_index
from gumshoe.documents.schema import is_document_index
from gumshoe.embeddings.embedder import OFFLINE_MODEL
from tests.benchmarks.scifact import SciFact
from tests.documents.collection import DISEASES, make_index, plain_records, write_jsonl
from tests.embeddings.word_vectors import WordVectors
from tests.errors import check_error, raises

DENSE = DocumentBuildOptions("word-vectors")
QUICK = settings(derandomize=True, deadline=None, database=None)


@pytest.fixture(scope="module")
def lexical(tmp_path_factory: pytest.TempPathFactory) -> DocumentIndex:
    """Return a lexical index."""
    return make_index(tmp_path_factory.mktemp("words"), DISEASES)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> DocumentIndex:
    return make_index(tmp_path_factory.mktemp("hybrid"), [*DISEASES, *plain_records(1500)], DENSE, WordVectors())


def ids(hits: list[Any]) -> list[str]:
    return [hit.document_id for hit in hits]


def test_a_hit_has_chunk_snippet_score_and_ranks(hybrid: DocumentIndex) -> None:
    hit, *_ = hybrid.search("what causes gout in the toe")
    assert (hit.document_id, hit.chunk_id, hit.title) == ("gout", "gout#0", "Gout")
    assert hit.snippet == "Gout is caused by crystals of uric acid. The big toe hurts at night."
    assert hit.score == pytest.approx(1)
    assert (hit.dense_rank, hit.lexical_rank) == (1, 1)


def test_ranks_equal_those_of_each_retriever_alone(hybrid: DocumentIndex) -> None:
    query = "a virus that begins with part 14"
    dense_ids = ids(hybrid.search(query, limit=100, dense_weight=1))
    lexical_ids = ids(hybrid.search(query, limit=100, dense_weight=0))
    for fusion in ("score", "rank"):
        for hit in hybrid.search(query, limit=40, fusion=fusion):
            for rank, alone in ((hit.dense_rank, dense_ids), (hit.lexical_rank, lexical_ids)):
                if rank is not None and rank <= 100:
                    assert alone[rank - 1] == hit.document_id
                else:
                    assert hit.document_id not in alone
    assert {hit.lexical_rank for hit in hybrid.search(query, dense_weight=1)} == {None}
    assert {hit.dense_rank for hit in hybrid.search(query, dense_weight=0)} == {None}


def test_the_weight_selects_the_retriever(hybrid: DocumentIndex) -> None:
    query = "Influenza virus fever part"
    scores = {weight: hybrid.search(query, limit=30, dense_weight=weight) for weight in (0.0, 0.5, 1.0)}
    assert [hit.lexical_rank for hit in scores[0.0]] == list(range(1, len(scores[0.0]) + 1))
    assert [hit.dense_rank for hit in scores[1.0]] == list(range(1, 31))
    for hits in scores.values():
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert len(set(ids(hits))) == len(hits)


def test_a_document_is_listed_once_with_its_best_chunk(tmp_path: Path) -> None:
    parts = [
        f"Part {number} is about the {name} and its many uses in the house."
        for number, name in enumerate(["lamp", "stove", "kettle", "broom"])
    ]
    filler = " ".join(f"This sentence is number {number} and it says nothing of note." for number in range(6))
    text = "\n\n".join(f"{part} {filler} {number}" for number, part in enumerate(parts))
    index = make_index(
        tmp_path, [{"id": "long", "title": "Things", "text": text}, *DISEASES], DocumentBuildOptions("none", 64)
    )
    (hit,) = index.search("kettle")
    assert "kettle" in hit.snippet
    assert hit.chunk_id.startswith("long#")
    assert hit.chunk_id != index.search("lamp")[0].chunk_id == "long#0"


def test_words_far_apart_in_a_document_count_together(tmp_path: Path) -> None:
    filler = " ".join(f"Nothing of note in sentence {number}." for number in range(60))
    records = [
        {"id": "both", "title": "One", "text": f"It tells of gout. {filler} It tells of scurvy."},
        {"id": "gout", "title": "Two", "text": f"It tells of gout. {filler} It tells of rain."},
        {"id": "scurvy", "title": "Three", "text": f"It tells of rain. {filler} It tells of scurvy."},
    ]
    index = make_index(tmp_path, records, DocumentBuildOptions("none", 64, drop_duplicates=False))
    assert ids(index.search("gout scurvy"))[0] == "both"


def test_words_of_the_context_line_are_searchable(lexical: DocumentIndex) -> None:
    for query in ("podagra", "joints", "GOUT"):
        (hit,) = lexical.search(query)
        assert hit.document_id == "gout"
        assert hit.snippet.startswith("Gout is caused")


# Filters


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"category": "Infection"}, {"flu", "cold"}),
        ({"category": " INFECTION "}, {"flu", "cold"}),
        ({"synonyms": "grippe"}, {"flu"}),
        ({"year": "2019"}, {"flu"}),
        ({"category": "infection", "year": "2019"}, {"flu"}),
        ({"category": "joints", "year": "2019"}, set()),
        ({"category": "Infect"}, set()),
        ({"category": "x' OR '1'='1"}, set()),
        ({}, {"flu", "cold", "gout"}),
    ],
)
def test_filters_select_by_metadata(
    lexical: DocumentIndex, hybrid: DocumentIndex, filters: dict[str, str], found: set[str]
) -> None:
    assert set(ids(lexical.search("is caused by a virus", filters=filters))) == found
    if filters:
        for weight in (0.5, 1.0):
            assert set(ids(hybrid.search("anything else", filters=filters, dense_weight=weight, limit=50))) == found


def test_an_unknown_filter_lists_the_known_ones(lexical: DocumentIndex) -> None:
    with raises("documents.unknown-filter", "colour", "category, synonyms, year"):
        lexical.search("gout", filters={"colour": "red"})


# Queries


@QUICK
@given(
    query=st.text(max_size=80)
    | st.sampled_from(['"', "NOT (", "a* OR", "\x00", "\ud800", "#", "' --", "gout " * 900, "é" * 3000]),
    limit=st.integers(1, MAX_RESULTS),
    weight=st.floats(0, 1),
    fusion=st.sampled_from(["score", "rank"]),
)
def test_any_text_is_a_valid_query(
    lexical: DocumentIndex, hybrid: DocumentIndex, query: str, limit: int, weight: float, fusion: Any
) -> None:
    for index in (lexical, hybrid):
        hits = index.search(query, limit=limit, dense_weight=weight, fusion=fusion)
        assert len(hits) <= limit
        assert len(set(ids(hits))) == len(hits)
        if not query.strip():
            assert hits == []
        for hit in hits:
            assert 0 <= hit.score <= 1 + 1e-9


def test_a_query_without_known_words_finds_nothing(lexical: DocumentIndex) -> None:
    for query in ("", "  ", "zyzzyva", "the of", "?!"):
        assert lexical.search(query) == []


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"query": 3}, ["query", 3]),
        ({"query": "x", "limit": 0}, ["limit", 1, MAX_RESULTS, 0]),
        ({"query": "x", "snippet_characters": 79}, ["snippet_characters", 80, 79]),
        ({"query": "x", "limit": 101}, ["limit", 101]),
        ({"query": "x", "limit": "3"}, ["limit", "'3'"]),
        ({"query": "x", "dense_weight": 1.1}, ["dense_weight", 1.1]),
        ({"query": "x", "dense_weight": float("nan")}, ["dense_weight", "nan"]),
        ({"query": "x", "fusion": "both"}, ["fusion", "score", "rank", "both"]),
    ],
)
def test_invalid_arguments_are_reported(
    lexical: DocumentIndex, arguments: dict[str, Any], values: list[object]
) -> None:
    with raises("documents.invalid-argument", *values):
        lexical.search(**arguments)


# Reading


def test_a_document_is_read(lexical: DocumentIndex) -> None:
    assert lexical.read("flu") == Document(
        "flu",
        "Influenza",
        "Influenza is caused by a virus. It begins suddenly with fever. Vaccination prevents it.",
        "https://health.example/flu",
        {"category": "Infection", "synonyms": ["flu", "grippe"], "year": "2019"},
    )
    assert lexical.read(" gout ").document_id == "gout"
    assert lexical.head("flu") == replace(lexical.read("flu"), text="")


@pytest.mark.parametrize("wrong", ["", "Flu", "flu#0", "' OR 1=1 --", "\x00", "\ud800"])
def test_a_missing_document_is_reported(lexical: DocumentIndex, wrong: str) -> None:
    for look in (lexical.read, lexical.head):
        with pytest.raises(DocumentNotFoundError) as raised:
            look(wrong)
        check_error(raised.value, "documents.document-not-found")


def test_documents_are_not_kept_in_memory(tmp_path: Path) -> None:
    records = [{"id": str(number), "text": f"{number} {'long' * 25_000}"} for number in range(20)]
    index = make_index(tmp_path, records, DocumentBuildOptions("none", 100_000))
    index.read("0")
    tracemalloc.start()
    try:
        assert all(len(index.read(str(number)).text) > 100_000 for number in range(20))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000


# Concurrency


@pytest.mark.ci
def test_search_is_thread_safe(hybrid: DocumentIndex) -> None:
    rng = random.Random(1)
    queries = [
        " ".join(rng.sample(["gout", "virus", "part", "item", "fever", "7", "14", "vitamin"], 3)) for _ in range(300)
    ]
    alone = DocumentIndex(hybrid.path.parents[1], WordVectors())
    expected = [alone.search(query) for query in queries]
    fresh = DocumentIndex(hybrid.path.parents[1], WordVectors())
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(fresh.search, queries)) == expected
        assert {each.title for each in pool.map(fresh.read, ["gout"] * 100)} == {"Gout"}


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_an_index_survives_a_fork(lexical: DocumentIndex) -> None:
    expected = lexical.search("gout toe")
    child = os.fork()
    if not child:
        os._exit(0 if lexical.search("toe gout") and lexical.search("gout toe") == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lexical.search("gout toe") == expected


# Models


def test_another_embedding_model_is_rejected(hybrid: DocumentIndex) -> None:
    index = DocumentIndex(hybrid.path.parents[1], WordVectors("another"))
    with raises("documents.other-embedding-model", "another", "word-vectors"):
        index.search("gout")
    assert ids(index.search("gout", dense_weight=0)) == ["gout"]


@pytest.mark.ci
def test_a_real_model_finds_paraphrases(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", DISEASES)
    build_document_index([source], tmp_path / "index", DocumentBuildOptions(OFFLINE_MODEL))
    index = DocumentIndex(tmp_path / "index")
    assert ids(index.search("painful foot joint"))[0] == "gout"
    assert ids(index.search("lack of oranges and lemons"))[0] == "scurvy"
    assert index.search("lack of oranges and lemons", dense_weight=0) == []


# Stores


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_an_index_in_a_store_can_be_opened(
    kind: str, lexical: DocumentIndex, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri = str(tmp_path / "store") if kind == "file" else f"s3://{request.getfixturevalue('s3_bucket')}/store"
    Store(uri).publish(lexical.path.parents[1], "document-indexes", "v1")
    with open_index("document-indexes/latest", uri) as index:
        assert index.search("gout") == lexical.search("gout")
        place = index.path.parents[1]
    assert not place.exists()
    fetched = Store(uri).fetch("document-indexes/v1", tmp_path / "fetched").directory
    assert is_document_index(fetched)
    with open_index(str(fetched), None) as index:
        assert index.read("gout") == lexical.read("gout")
    with raises("artifacts.no-such-directory", "--store"), open_index("document-indexes/v1", None):
        pass


# Real questions


@pytest.mark.nightly
def test_lexical_search_on_scifact_is_as_good_as_public_bm25(shared_data: Path, tmp_path: Path) -> None:
    data = SciFact.read(shared_data / "scifact")
    build_document_index([data.source], tmp_path / "index", DocumentBuildOptions("none"))
    quality = data.measure(DocumentIndex(tmp_path / "index"), dense_weight=0)
    assert quality.ndcg >= 0.67
    assert quality.recall >= 0.92
