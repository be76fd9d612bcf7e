"""Look up document ids in an index, to check scenarios."""

from pathlib import Path

from gumshoe.corpus import LookupResult, QuestionScope
from gumshoe.documents.index import DocumentIndex, DocumentNotFoundError


class DocumentAudit:
    """Look up ids in a document index.

    Raises on opening:
        UsageError: if there is no index.
        GumshoeError: if it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, index: Path) -> None:
        self._index = DocumentIndex(index)

    def look_up(self, source_id: str, question: QuestionScope) -> LookupResult:  # noqa: ARG002 - all documents are visible
        """See `gumshoe.corpus.SourceAudit.look_up`."""
        try:
            listed = self._index.head(source_id).document_id
        except DocumentNotFoundError:
            return LookupResult(None, "document missing", "is not in the index")
        if listed != source_id:
            return LookupResult(listed, "document known under another id", f"is listed as {listed}")
        return LookupResult(listed)
