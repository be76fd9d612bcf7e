"""Embedders that need no model."""

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import numpy as np

from gumshoe.embeddings.embedder import EmbeddingError, Use, Vectors


@lru_cache(10_000)
def _word_vector(word: str, dimensions: int) -> Vectors:
    seed = int.from_bytes(sha256(word.encode()).digest()[:8])
    return np.random.default_rng(seed).normal(size=dimensions).astype(np.float32)


class WordVectors:
    """Embed a text as the sum of fixed random vectors of its words: real cosines without a model."""

    dimensions = 96

    def __init__(self, name: str = "word-vectors") -> None:
        self.name = name
        self.asked: list[list[str]] = []

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:  # noqa: ARG002 - the same for every use
        self.asked.append(list(texts))
        return np.stack([self._vector(text) for text in texts]) if texts else np.empty((0, 0), np.float32)

    def _vector(self, text: str) -> Vectors:
        found = np.full(self.dimensions, 1e-3, np.float32)
        for word in re.findall(r"\w+", text.lower()):
            found += _word_vector(f"{self.name} {word}", self.dimensions)
        return found / np.linalg.norm(found)

    def close(self) -> None:
        """Do nothing."""


class FailingVectors(WordVectors):
    """Fail after some calls."""

    def __init__(self, name: str = "word-vectors", calls: int = 1) -> None:
        super().__init__(name)
        self.calls = calls

    def embed(self, texts: Sequence[str], use: Use) -> Vectors:
        if len(self.asked) == self.calls:
            raise EmbeddingError("embeddings.unreachable", "of the test")
        return super().embed(texts, use)


class ShortVectors(WordVectors):
    """A model with a known tokenizer: each word is a token, and it reads `max_tokens`."""

    max_tokens = 12

    def count_tokens(self, texts: Sequence[str], use: Use) -> list[int]:  # noqa: ARG002 - the same for every use
        return [len(text.split()) for text in texts]
