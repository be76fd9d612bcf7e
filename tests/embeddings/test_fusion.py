"""Fusion of rankings, against cases computed by hand."""

import numpy as np
import pytest

from gumshoe.embeddings.fusion import RetrieverScores, find_ranks, fuse


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
