"""Options of indexes and searches that have vectors. Commands import this, so it imports little."""

from typing import Literal

NO_EMBEDDING = "none"
"""In place of the name of an embedding model: no vectors."""
DENSE_WEIGHT = 0.8
"""Weight of dense retrieval. Lexical retrieval gets the rest."""
Fusion = Literal["score", "rank"]
"""Fuse the scores of both retrievers, or only their ranks."""


def format_ranks(dense: int | None, lexical: int | None) -> str:
    """Return the ranks of a search result in both retrievers.

    >>> format_ranks(3, None)
    'dense 3, lexical -'
    """
    return f"dense {dense or '-'}, lexical {lexical or '-'}"
