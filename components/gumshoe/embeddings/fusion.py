"""Fuse the rankings of dense and lexical retrieval."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumshoe.embeddings.search_options import Fusion

RANK_OFFSET = 60
"""Constant of reciprocal rank fusion: Cormack, Clarke and Büttcher, SIGIR 2009."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RetrieverScores:
    """Scores and ranks of one retriever for all candidates."""

    weight: float
    scores: NDArray[Any]
    """[candidates]: including those that only the other retriever listed."""
    ranks: Numbers
    """[candidates]: from 1; 0 if this retriever did not list it."""


def find_ranks(candidates: NDArray[Any], listed: NDArray[Any]) -> Numbers:
    """Return each candidate's position in a list without repetitions, from 1, or 0 if not listed: [candidates]."""
    if not len(listed):
        return np.zeros(len(candidates), np.int64)
    order = np.argsort(listed)
    places = np.searchsorted(listed, candidates, sorter=order).clip(max=len(listed) - 1)
    return np.where(listed[order[places]] == candidates, order[places] + 1, 0)


def fuse(retrievers: list[RetrieverScores], fusion: Fusion) -> NDArray[np.float64]:
    """Return the weighted sum of the retrievers' scores: [candidates].

    With "score", each retriever's scores are min-max scaled over the candidates (Bruch et al., "An Analysis of Fusion
    Functions for Hybrid Retrieval", TOIS 2023). With "rank", each contributes 1 / (60 + rank).
    """
    if fusion == "rank":
        parts = [np.where(side.ranks > 0, 1.0 / (RANK_OFFSET + side.ranks), 0.0) for side in retrievers]
    else:
        parts = [_min_max_scale(side.scores.astype(np.float64)) for side in retrievers]
    fused: NDArray[np.float64] = np.einsum("s,sc->c", np.array([side.weight for side in retrievers]), np.stack(parts))
    return fused


def _min_max_scale(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    lowest, highest = scores.min(initial=np.inf), scores.max(initial=-np.inf)
    # All scores are equal for a single candidate, or for a query without a known word.
    even = np.full(len(scores), float(highest > 0))
    return np.asarray((scores - lowest) / (highest - lowest)) if highest > lowest else even
