"""Documents as a kind of corpus."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gumshoe.corpus import Corpus, FoundSource, IngestResult, OpenedSource, is_built_from

if TYPE_CHECKING:
    from gumshoe.documents.index import DocumentIndex


class DocumentSearch:
    """Search documents and read them (a `SourceSearch`)."""

    def __init__(self, index: "DocumentIndex") -> None:
        self._index = index

    def search(self, words: Sequence[str]) -> list[FoundSource]:
        """See `SourceSearch.search`."""
        hits = self._index.search(" ".join(words), limit=10)
        return [FoundSource(hit.document_id, hit.title or "(no title)", "", hit.snippet) for hit in hits]

    def read(self, source_id: str) -> OpenedSource:
        """See `SourceSearch.read`."""
        document = self._index.read(source_id)
        return OpenedSource(f"{document.title}\n\n{document.text}".strip(), None)


class DocumentsCorpus(Corpus):
    """Documents, searched by meaning and by words."""

    environment = "gumshoe.environments.documents:DocumentsEnvironment"
    audit = "gumshoe.documents.audit:DocumentAudit"
    content = "documents"
    uses_embedding = True
    example_source = "dir:s3://bucket/documents"
    index_command = "gumshoe documents index"

    def is_index(self, directory: Path) -> bool:
        """See `Corpus.is_index`."""
        from gumshoe.documents.schema import is_document_index

        return is_document_index(directory)

    def split_source(self, uri: str) -> tuple[str, str]:
        """See `Corpus.split_source`."""
        from gumshoe.documents.sources import split_source

        return split_source(uri)

    def check_source(self, uri: str) -> None:
        """See `Corpus.check_source`."""
        from gumshoe.documents.sources import open_source

        open_source(uri)

    def open_search(self, directory: Path, inbox: str | None) -> DocumentSearch:  # noqa: ARG002 - all are visible
        """See `Corpus.open_search`."""
        from gumshoe.documents.index import DocumentIndex

        return DocumentSearch(DocumentIndex(directory))

    def ingest(self, sources: Sequence[str], directory: Path, embedding: str) -> IngestResult:
        """See `Corpus.ingest`."""
        from gumshoe.documents.build import DocumentBuildOptions, build_document_index
        from gumshoe.documents.index import DocumentIndex

        options = DocumentBuildOptions(embedding)
        if not (self.is_index(directory) and is_built_from(DocumentIndex(directory).stats(), sources, options)):
            build_document_index(list(sources), directory, options)
        facts = DocumentIndex(directory).stats()
        summary = f"{facts['documents']:,} documents in {facts['chunks']:,} chunks indexed"
        return IngestResult(facts["documents"], summary, facts)
