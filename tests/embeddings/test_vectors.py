"""Dense retrieval, against cases computed by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gumshoe.embeddings.vectors import MIN_COMPARED, DenseRetriever, sign_bits, top_k

QUICK = settings(derandomize=True, deadline=None, database=None)


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
        found = dense.find_nearest(vectors[0], 20, np.flatnonzero(allowed))
        few = dense.find_nearest(vectors[0], 20, np.arange(2))
        expected = np.argsort(np.where(allowed, -(vectors @ vectors[0]), np.inf), kind="stable")
        assert set(found[:3].tolist()) <= set(expected[:6].tolist())
        assert (found % 3 == 1).all()
        assert len(found) == min(20, allowed.sum())
        assert sorted(few.tolist()) == [0, 1]
        assert dense.find_nearest(vectors[0], 20, np.zeros(0, np.int64)).tolist() == []


@QUICK
@given(arrays.arrays(np.float32, st.integers(0, 30), elements=st.integers(-3, 3).map(float)), st.integers(1, 12))
def test_top_k_equals_a_stable_sort(scores: np.ndarray, k: int) -> None:
    assert top_k(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()
