"""Build the index that an environment searches."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gumshoe.errors import UsageError

INGESTED = ("email", "documents")
"""Environments whose index can be built from sources."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Outcome of building an index."""

    count: int
    """Number of messages or documents."""
    summary: str
    """The same as text."""
    facts: dict[str, Any]
    """Statistics of the index: its content, sources and options."""


def ingest_sources(sources: Sequence[str], environment: str, embedding: str, directory: Path) -> IngestResult:
    """Build the index of an environment. Reuse an existing index with the same sources and options.

    Raises:
        UsageError: if the environment is unknown, a source is not valid for it, or the directory has another index.
        GumshoeError: if a source cannot be read.
    """
    if environment == "email":
        from gumshoe.mail.build import MailBuildOptions, build_mail_index
        from gumshoe.mail.index import MailIndex
        from gumshoe.mail.schema import index_path

        if not (
            index_path(directory).exists() and _is_built_from(MailIndex(directory).stats(), sources, MailBuildOptions())
        ):
            build_mail_index(list(sources), directory)
        facts = MailIndex(directory).stats()
        return IngestResult(facts["messages"], f"{facts['messages']:,} messages indexed", facts)
    if environment == "documents":
        from gumshoe.documents.build import DocumentBuildOptions, build_document_index
        from gumshoe.documents.index import DocumentIndex
        from gumshoe.documents.schema import is_document_index

        options = DocumentBuildOptions(embedding)
        if not (is_document_index(directory) and _is_built_from(DocumentIndex(directory).stats(), sources, options)):
            build_document_index(list(sources), directory, options)
        facts = DocumentIndex(directory).stats()
        summary = f"{facts['documents']:,} documents in {facts['chunks']:,} chunks indexed"
        return IngestResult(facts["documents"], summary, facts)
    raise UsageError("environments.unknown", f"unknown environment: {environment!r}; use {' or '.join(INGESTED)}")


def _is_built_from(facts: dict[str, Any], sources: Sequence[str], options: Any) -> bool:
    return (facts["sources"], facts["options"]) == (list(sources), asdict(options))
