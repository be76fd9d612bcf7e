"""BM25, the nearest vectors, and both fused, against cases that were worked out by hand or by another program."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gumshoe.documents.lexical import Analyzer, PostingsBuilder, check_language
from gumshoe.documents.queries import QueryVectors
from gumshoe.documents.ranking import Side, fuse, ranks_of
from gumshoe.documents.snippet import LONGEST, make_snippet
from gumshoe.documents.vectors import COMPARED, DenseSide, best, signs_of
from gumshoe.embeddings.embedder import EmbeddingError
from tests.documents.collection import WordVectors
from tests.errors import raises

QUICK = settings(derandomize=True, deadline=None, database=None)
ENGLISH = Analyzer("en")


# Words


def test_words_are_stems_without_case_accents_and_what_says_nothing() -> None:
    assert ENGLISH.words("The Diseases of the HEART, naïve & co-exist: 3.5% vitamin_C cafe\u0301") == [
        *["diseas", "heart", "naiv", "co", "exist", "3", "5", "vitamin", "c", "cafe"]
    ]
    assert Analyzer("de").words("Die Krankheiten") == ["die", "krankheit"]
    assert Analyzer("zz").words("the Running") == ["the", "running"]
    for wrong in ("", "English", "e1", "en-GB"):
        with raises("documents.invalid-language", repr(wrong)):
            check_language(wrong)


def test_the_score_of_a_word_is_bm25_as_lucene_has_it() -> None:
    numbers: dict[str, int] = {}
    builder = PostingsBuilder(numbers)
    for text in ("gout gout toe", "toe", "heart of gold"):
        builder.add(ENGLISH.words(text))
    postings = builder.finish()
    # Kamphuis et al. 2020, row "Lucene (accurate)" without its constant factor: "gout" is in one of three texts, twice.
    inverse = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    length, average = 3, (3 + 1 + 2) / 3
    expected = inverse * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * length / average))
    assert postings.score([numbers["gout"]], 3) == pytest.approx([expected, 0, 0])
    twice = postings.score([numbers["gout"], numbers["toe"], numbers["gout"]], 3)
    assert twice[0] == pytest.approx(2 * expected + postings.score([numbers["toe"]], 3)[0])
    assert PostingsBuilder({}).finish().score([], 2).tolist() == [0, 0]


def test_many_threads_find_the_same_stems() -> None:
    words = [
        f"{stem}{ending}" for stem in ("relat", "operat", "nation") for ending in ("ion", "ional", "ing", "ed", "s")
    ] * 40
    expected = [Analyzer("en").words(word) for word in words]
    analyzer = Analyzer("en")
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(analyzer.words, words)) == expected


# Vectors


def side(count: int, dimensions: int = 100, offset: float = 0) -> tuple[DenseSide, np.ndarray]:
    chance = np.random.default_rng(1)
    vectors = chance.normal(size=(count, dimensions)).astype(np.float32) + offset
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    center = vectors.mean(axis=0)
    return DenseSide(vectors.astype(np.float16), signs_of(vectors - center), center), vectors


@pytest.mark.parametrize("offset", [0, 3])
def test_the_nearest_vectors_are_found_where_all_are_compared_and_where_bits_come_first(offset: float) -> None:
    for count in (COMPARED // 2, COMPARED * 5):
        dense, vectors = side(count, offset=offset)
        query = vectors[17] + 0.5 * (vectors[3] - vectors.mean(axis=0))
        query /= np.linalg.norm(query)
        cosines = vectors @ query
        nearest = dense.nearest(query, 10, None)
        assert nearest.tolist() == np.argsort(-cosines)[:10].tolist()
        assert dense.scores(query, nearest) == pytest.approx(cosines[nearest], abs=2e-3)


def test_only_what_is_allowed_is_near() -> None:
    for count in (50, COMPARED * 3):
        dense, vectors = side(count)
        allowed = np.arange(count) % 3 == 1
        found = dense.nearest(vectors[0], 20, allowed)
        few = dense.nearest(vectors[0], 20, np.arange(count) < 2)
        expected = np.argsort(np.where(allowed, -(vectors @ vectors[0]), np.inf), kind="stable")
        assert set(found[:3].tolist()) <= set(expected[:6].tolist())
        assert (found % 3 == 1).all()
        assert len(found) == min(20, allowed.sum())
        assert sorted(few.tolist()) == [0, 1]
        assert dense.nearest(vectors[0], 20, np.zeros(count, np.bool_)).tolist() == []


@QUICK
@given(arrays.arrays(np.float32, st.integers(0, 30), elements=st.integers(-3, 3).map(float)), st.integers(1, 12))
def test_the_best_are_those_of_a_stable_sort(scores: np.ndarray, most: int) -> None:
    assert best(scores, most).tolist() == np.argsort(-scores, kind="stable")[:most].tolist()


# Fusion


def test_ranks_are_places_in_the_list() -> None:
    assert ranks_of(np.array([2, 5, 5, 9]), np.array([9, 4, 5])).tolist() == [0, 3, 3, 1]
    assert ranks_of(np.array([2]), np.array([], np.int64)).tolist() == [0]


def test_fusion_by_score_stretches_each_side_and_weighs_it() -> None:
    dense = Side(0.8, np.array([0.9, 0.5, 0.7], np.float32), np.array([1, 3, 2]))
    lexical = Side(0.2, np.array([0.0, 12.0, 3.0], np.float32), np.array([0, 1, 2]))
    # dense: 1, 0, 0.5; lexical: 0, 1, 0.25
    assert fuse([dense, lexical], "score") == pytest.approx([0.8, 0.2, 0.8 * 0.5 + 0.2 * 0.25])
    alone = Side(1.0, np.array([4.0], np.float32), np.array([1]))
    assert fuse([alone], "score").tolist() == [1.0]
    unknown = Side(0.2, np.zeros(2, np.float32), np.zeros(2, np.int64))
    assert fuse([unknown], "score").tolist() == [0.0, 0.0]


def test_fusion_by_rank_sums_weighted_reciprocals() -> None:
    dense = Side(0.8, np.zeros(3, np.float32), np.array([1, 0, 2]))
    lexical = Side(0.2, np.zeros(3, np.float32), np.array([0, 1, 5]))
    expected = [0.8 / 61, 0.2 / 61, 0.8 / 62 + 0.2 / 65]
    assert fuse([dense, lexical], "rank") == pytest.approx(expected)


# Vectors of queries


class Slow(WordVectors):
    """Waits in its first batch until it is let go on; fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on, self.fails = threading.Event(), threading.Event(), False

    def embed(self, texts, use):  # type: ignore[no-untyped-def]
        self.begun.set()
        assert self.go_on.wait(20)
        if self.fails:
            self.asked.append(list(texts))
            raise EmbeddingError("embeddings.unreachable", "of the test")
        return super().embed(texts, use)


def test_queries_that_wait_are_embedded_together_and_each_once() -> None:
    model = Slow()
    vectors = QueryVectors(model)
    with ThreadPoolExecutor(40) as pool:
        first = pool.submit(vectors.vector, "first")
        assert model.begun.wait(20)
        others = [pool.submit(vectors.vector, f"query {number % 10}") for number in range(30)]
        while vectors.waiting < 10:
            threading.Event().wait(0.01)
        model.go_on.set()
        assert np.array_equal(first.result(20), WordVectors().embed(["first"], "query")[0])
        for number, other in enumerate(others):
            assert np.array_equal(other.result(20), WordVectors().embed([f"query {number % 10}"], "query")[0])
    assert [len(batch) for batch in model.asked] == [1, 10]
    vectors.vector("query 3")
    assert len(model.asked) == 2


def test_a_failure_is_told_to_all_who_wait_and_not_remembered() -> None:
    model = Slow()
    model.fails = True
    vectors = QueryVectors(model)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(vectors.vector, f"query {number % 2}") for number in range(8)]
        model.go_on.set()
        for each in waiting:
            with raises("embeddings.unreachable"):
                each.result(20)
    model.fails = False
    assert vectors.vector("query 0").shape == (model.dimensions,)


# Snippets


def test_a_snippet_is_where_most_of_the_words_are() -> None:
    text = "filler " * 60 + "the uric acid\nof gout hurts " + "other " * 80
    shown = make_snippet(text, frozenset(ENGLISH.words("acids in gout")), ENGLISH)
    assert "the uric acid of gout hurts" in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")
    assert make_snippet("A short\n text", frozenset({"x"}), ENGLISH) == "A short text"
    assert make_snippet(text, frozenset(), ENGLISH).startswith("filler filler")
    assert make_snippet(text, frozenset({"absent"}), ENGLISH).startswith("filler filler")


@QUICK
@given(st.text(max_size=900), st.text(max_size=30))
def test_a_snippet_is_one_short_line_of_the_text(text: str, query: str) -> None:
    shown = make_snippet(text, frozenset(ENGLISH.words(query)), ENGLISH)
    assert len(shown) <= LONGEST + 4
    assert "\n" not in shown
    assert shown.removeprefix("… ").removesuffix(" …").strip() in " ".join(text.split())
