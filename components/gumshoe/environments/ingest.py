"""What an environment searches, made of its sources."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gumshoe.errors import UsageError

INGESTED = ("email", "documents")
"""The environments whose index is made of sources."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """An index that was made."""

    count: int
    """Of messages, or of documents."""
    said: str
    """The same in words."""
    facts: dict[str, Any]
    """What is in it, and what made it."""


def ingest_sources(sources: Sequence[str], environment: str, embedding: str, directory: Path) -> IngestResult:
    """Index what an environment is to search; where that was done, with the same options, use what is there.

    Raises:
        UsageError: there is no such environment, a source is none of its own, or there is an index of something else.
        GumshoeError: a source cannot be read.
    """
    if environment == "email":
        from gumshoe.mail import build as mail
        from gumshoe.mail.index import MailIndex
        from gumshoe.mail.schema import index_file

        if not (
            index_file(directory).exists() and _is_of(MailIndex(directory).stats(), sources, mail.MailBuildOptions())
        ):
            mail.build_index(list(sources), directory)
        facts = MailIndex(directory).stats()
        return IngestResult(facts["messages"], f"{facts['messages']:,} messages indexed", facts)
    if environment == "documents":
        from gumshoe.documents import build as documents
        from gumshoe.documents.index import DocumentIndex
        from gumshoe.documents.schema import is_document_index

        options = documents.DocumentBuildOptions(embedding)
        if not (is_document_index(directory) and _is_of(DocumentIndex(directory).stats(), sources, options)):
            documents.build_index(list(sources), directory, options)
        facts = DocumentIndex(directory).stats()
        said = f"{facts['documents']:,} documents in {facts['chunks']:,} chunks indexed"
        return IngestResult(facts["documents"], said, facts)
    raise UsageError("environments.unknown", f"unknown environment: {environment!r}; use {' or '.join(INGESTED)}")


def _is_of(facts: dict[str, Any], sources: Sequence[str], options: Any) -> bool:
    return (facts["sources"], facts["options"]) == (list(sources), asdict(options))
