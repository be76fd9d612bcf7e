"""BM25, dense retrieval and fusion, against cases computed by hand or by another program."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gumshoe.documents.index import MAX_SNIPPET, make_snippet
from gumshoe.documents.lexical import Analyzer, PostingsBuilder, check_language
from gumshoe.documents.ranking import RetrieverScores, find_ranks, fuse
from gumshoe.documents.vectors import MIN_COMPARED, DenseRetriever, sign_bits, top_k
from tests.errors import raises

QUICK = settings(derandomize=True, deadline=None, database=None)
ENGLISH = Analyzer("en")


# Words


def test_words_are_stemmed_without_case_accents_and_stop_words() -> None:
    assert ENGLISH.split_words("The Diseases of the HEART, naïve & co-exist: 3.5% vitamin_C cafe\u0301") == [
        *["diseas", "heart", "naiv", "co", "exist", "3", "5", "vitamin", "c", "cafe"]
    ]
    assert Analyzer("de").split_words("Die Krankheiten") == ["die", "krankheit"]
    assert Analyzer("zz").split_words("the Running") == ["the", "running"]
    for wrong in ("", "English", "e1", "en-GB"):
        with raises("documents.invalid-language", repr(wrong)):
            check_language(wrong)


def test_the_score_of_a_word_is_lucene_s_bm25() -> None:
    numbers: dict[str, int] = {}
    builder = PostingsBuilder(numbers)
    for text in ("gout gout toe", "toe", "heart of gold"):
        builder.add(ENGLISH.split_words(text))
    postings = builder.finish()
    # Kamphuis et al. 2020, row "Lucene (accurate)" without its constant factor: "gout" is in one of three texts, twice.
    inverse = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    length, average = 3, (3 + 1 + 2) / 3
    expected = inverse * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * length / average))
    assert postings.score([numbers["gout"]], 3) == pytest.approx([expected, 0, 0])
    twice = postings.score([numbers["gout"], numbers["toe"], numbers["gout"]], 3)
    assert twice[0] == pytest.approx(2 * expected + postings.score([numbers["toe"]], 3)[0])
    assert PostingsBuilder({}).finish().score([], 2).tolist() == [0, 0]


def test_stemming_is_thread_safe() -> None:
    words = [
        f"{stem}{ending}" for stem in ("relat", "operat", "nation") for ending in ("ion", "ional", "ing", "ed", "s")
    ] * 40
    expected = [Analyzer("en").split_words(word) for word in words]
    analyzer = Analyzer("en")
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(analyzer.split_words, words)) == expected


# Vectors


def make_retriever(count: int, dimensions: int = 100, offset: float = 0) -> tuple[DenseRetriever, np.ndarray]:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(count, dimensions)).astype(np.float32) + offset
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    center = vectors.mean(axis=0)
    return DenseRetriever(vectors.astype(np.float16), sign_bits(vectors - center), center), vectors


@pytest.mark.parametrize("offset", [0, 3])
def test_the_nearest_vectors_are_found(offset: float) -> None:
    for count in (MIN_COMPARED // 2, MIN_COMPARED * 5):
        dense, vectors = make_retriever(count, offset=offset)
        query = vectors[17] + 0.5 * (vectors[3] - vectors.mean(axis=0))
        query /= np.linalg.norm(query)
        cosines = vectors @ query
        nearest = dense.find_nearest(query, 10, None)
        assert nearest.tolist() == np.argsort(-cosines)[:10].tolist()
        assert dense.score(query, nearest) == pytest.approx(cosines[nearest], abs=2e-3)


def test_only_allowed_chunks_are_found() -> None:
    for count in (50, MIN_COMPARED * 3):
        dense, vectors = make_retriever(count)
        allowed = np.arange(count) % 3 == 1
        found = dense.find_nearest(vectors[0], 20, allowed)
        few = dense.find_nearest(vectors[0], 20, np.arange(count) < 2)
        expected = np.argsort(np.where(allowed, -(vectors @ vectors[0]), np.inf), kind="stable")
        assert set(found[:3].tolist()) <= set(expected[:6].tolist())
        assert (found % 3 == 1).all()
        assert len(found) == min(20, allowed.sum())
        assert sorted(few.tolist()) == [0, 1]
        assert dense.find_nearest(vectors[0], 20, np.zeros(count, np.bool_)).tolist() == []


@QUICK
@given(arrays.arrays(np.float32, st.integers(0, 30), elements=st.integers(-3, 3).map(float)), st.integers(1, 12))
def test_top_k_equals_a_stable_sort(scores: np.ndarray, k: int) -> None:
    assert top_k(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()


# Fusion


def test_ranks_are_positions_in_the_list() -> None:
    assert find_ranks(np.array([2, 5, 5, 9]), np.array([9, 4, 5])).tolist() == [0, 3, 3, 1]
    assert find_ranks(np.array([2]), np.array([], np.int64)).tolist() == [0]


def test_fusion_by_score_scales_and_weighs_each_retriever() -> None:
    dense = RetrieverScores(0.8, np.array([0.9, 0.5, 0.7], np.float32), np.array([1, 3, 2]))
    lexical = RetrieverScores(0.2, np.array([0.0, 12.0, 3.0], np.float32), np.array([0, 1, 2]))
    # dense: 1, 0, 0.5; lexical: 0, 1, 0.25
    assert fuse([dense, lexical], "score") == pytest.approx([0.8, 0.2, 0.8 * 0.5 + 0.2 * 0.25])
    alone = RetrieverScores(1.0, np.array([4.0], np.float32), np.array([1]))
    assert fuse([alone], "score").tolist() == [1.0]
    unknown = RetrieverScores(0.2, np.zeros(2, np.float32), np.zeros(2, np.int64))
    assert fuse([unknown], "score").tolist() == [0.0, 0.0]


def test_fusion_by_rank_sums_weighted_reciprocals() -> None:
    dense = RetrieverScores(0.8, np.zeros(3, np.float32), np.array([1, 0, 2]))
    lexical = RetrieverScores(0.2, np.zeros(3, np.float32), np.array([0, 1, 5]))
    expected = [0.8 / 61, 0.2 / 61, 0.8 / 62 + 0.2 / 65]
    assert fuse([dense, lexical], "rank") == pytest.approx(expected)


# Snippets


def test_a_snippet_contains_most_of_the_words() -> None:
    text = "filler " * 60 + "the uric acid\nof gout hurts " + "other " * 80
    shown = make_snippet(text, frozenset(ENGLISH.split_words("acids in gout")), ENGLISH)
    assert "the uric acid of gout hurts" in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")
    assert make_snippet("A short\n text", frozenset({"x"}), ENGLISH) == "A short text"
    assert make_snippet(text, frozenset(), ENGLISH).startswith("filler filler")
    assert make_snippet(text, frozenset({"absent"}), ENGLISH).startswith("filler filler")


@QUICK
@given(st.text(max_size=900), st.text(max_size=30))
def test_a_snippet_is_one_short_line(text: str, query: str) -> None:
    shown = make_snippet(text, frozenset(ENGLISH.split_words(query)), ENGLISH)
    assert len(shown) <= MAX_SNIPPET + 4
    assert "\n" not in shown
    assert shown.removeprefix("… ").removesuffix(" …").strip() in " ".join(text.split())
