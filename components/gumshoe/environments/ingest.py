"""Build the index that an environment searches."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gumshoe.corpus import CORPORA, IngestResult, SourceEntry, find_corpus
from gumshoe.errors import UsageError


def ingest_sources(
    sources: Sequence[SourceEntry],
    environment: str,
    embedding: str,
    directory: Path,
    options: Mapping[str, Any] | None = None,
) -> IngestResult:
    """Build the index of a built-in environment. Reuse an existing index with the same sources and options.

    Raises:
        UsageError: if the environment is unknown, a source or an option is not valid for it, or the directory has
            another index.
        GumshoeError: if a source cannot be read.
    """
    corpus = find_corpus(environment)
    if corpus is None:
        raise UsageError("environments.unknown", f"unknown environment: {environment!r}; use {' or '.join(CORPORA)}")
    return corpus.ingest(sources, directory, embedding, options or {})
