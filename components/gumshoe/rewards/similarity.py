"""Compare an answer with the reference by their embeddings."""

import asyncio
from typing import NamedTuple

from gumshoe.embeddings.embedder import Embedder


class AnswerSimilarity(NamedTuple):
    """Cosine similarities of an answer."""

    to_reference: float
    to_question: float

    @property
    def is_echo(self) -> bool:
        """True if the answer is at least as similar to the question as to the reference.

        Words of the question alone, which say nothing, are often similar to a long reference. A policy that is rewarded
        for similarity alone learns to repeat them.
        """
        return self.to_question >= self.to_reference


async def compare_answer(embedder: Embedder, answer: str, reference: str, question: str) -> AnswerSimilarity:
    """Return how similar an answer is to the reference and to the question.

    Raises:
        EmbeddingError: if there are no usable vectors.
    """
    one, right, asked = await asyncio.to_thread(embedder.embed, [answer, reference, question], "similarity")
    return AnswerSimilarity(float(one @ right), float(one @ asked))
