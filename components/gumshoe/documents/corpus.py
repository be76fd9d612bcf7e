"""Documents as a kind of corpus."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumshoe.corpus import Corpus, FoundSource, IngestResult, OpenedSource, SourceEntry, is_built_from

if TYPE_CHECKING:
    from gumshoe.documents.build import DocumentBuildOptions
    from gumshoe.documents.document_view import DocumentView
    from gumshoe.documents.source_entries import CollectionSource


class DocumentSearch:
    """Search documents and read them (a `SourceSearch`)."""

    def __init__(self, view: "DocumentView") -> None:
        self._view = view

    def search(self, words: Sequence[str]) -> list[FoundSource]:
        """See `SourceSearch.search`."""
        hits = self._view.search(" ".join(words), limit=10)
        return [FoundSource(hit.document_id, hit.title or "(no title)", "", hit.snippet) for hit in hits]

    def read(self, source_id: str) -> OpenedSource:
        """See `SourceSearch.read`."""
        document = self._view.read(source_id)
        return OpenedSource(f"{document.title}\n\n{document.text}".strip(), None)


class DocumentsCorpus(Corpus):
    """Documents, searched by meaning and by words."""

    environment = "gumshoe.environments.documents:DocumentsEnvironment"
    audit = "gumshoe.documents.audit:DocumentAudit"
    content = "documents"
    example_source = "dir:s3://bucket/documents"
    index_command = "gumshoe documents index"

    def is_index(self, directory: Path) -> bool:
        """See `Corpus.is_index`."""
        from gumshoe.documents.schema import is_document_index

        return is_document_index(directory)

    def split_source(self, source: SourceEntry) -> tuple[str, str]:
        """See `Corpus.split_source`."""
        from gumshoe.documents.sources import split_source

        return split_source(self._parse_source(source).uri)

    def check_source(self, source: SourceEntry) -> None:
        """See `Corpus.check_source`."""
        from gumshoe.documents.sources import open_source

        open_source(self._parse_source(source).uri)

    def _parse_source(self, source: SourceEntry) -> "CollectionSource":
        """Return a URI, or a mapping with `source` and `collection`.

        Raises:
            UsageError: if it is invalid.
        """
        from gumshoe.documents.source_entries import parse_source_entry

        if not isinstance(source, str) and {"owner", "aliases"} & source.keys():
            self.require_uri(source)
        return parse_source_entry(source, "invalid source")

    def check_options(self, options: Mapping[str, Any]) -> None:
        """See `Corpus.check_options`."""
        from gumshoe.documents.build import check_options

        check_options(_parse_options(options))

    def choose_embedding(self, embedding: str, options: Mapping[str, Any]) -> str:  # noqa: ARG002 - not an option
        """See `Corpus.choose_embedding`."""
        return embedding

    def open_search(
        self,
        directory: Path,
        inbox: str | None,  # noqa: ARG002 - of mail
        collections: Sequence[str] | None = None,
    ) -> DocumentSearch:
        """See `Corpus.open_search`."""
        from gumshoe.documents.index import DocumentIndex

        return DocumentSearch(DocumentIndex(directory).open_view(collections))

    def ingest(
        self, sources: Sequence[SourceEntry], directory: Path, embedding: str, options: Mapping[str, Any]
    ) -> IngestResult:
        """See `Corpus.ingest`."""
        from gumshoe.documents.build import build_document_index
        from gumshoe.documents.index import DocumentIndex

        listed = list(map(self._parse_source, sources))
        recorded, chosen = [each.to_fact() for each in listed], replace(_parse_options(options), embedding=embedding)
        if not (self.is_index(directory) and is_built_from(DocumentIndex(directory).stats(), recorded, chosen)):
            build_document_index(listed, directory, chosen)
        facts = DocumentIndex(directory).stats()
        summary = f"{facts['documents']:,} documents in {facts['chunks']:,} chunks indexed"
        return IngestResult(facts["documents"], summary, facts)


def _parse_options(options: Mapping[str, Any]) -> "DocumentBuildOptions":
    """Return the options of an index with the default embedding model, which is a parameter of its own.

    Raises:
        UsageError: if an option does not exist, or a value has the wrong type.
    """
    from gumshoe.documents.build import DocumentBuildOptions
    from gumshoe.model_validation import validate_options

    code, what = "documents.invalid-index-options", "invalid options of the index"
    return validate_options(DocumentBuildOptions, options, code, what, without=("embedding",))
