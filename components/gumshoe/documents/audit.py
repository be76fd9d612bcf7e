"""Look up document ids in an index, to check scenarios."""

from pathlib import Path

from gumshoe.corpus import LookupResult, QuestionScope, ScopeCheck
from gumshoe.documents.collection_names import ALL_COLLECTIONS, matches_collection
from gumshoe.documents.index import DocumentIndex, DocumentNotFoundError


class DocumentAudit:
    """Look up ids in a document index.

    Raises on opening:
        UsageError: if there is no index.
        GumshoeError: if it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, index: Path) -> None:
        self._index = DocumentIndex(index)

    def look_up(self, source_id: str, question: QuestionScope) -> LookupResult:
        """See `gumshoe.corpus.SourceAudit.look_up`."""
        if self._index.collections and question.collections is None:
            return LookupResult(None, "question without collections", "is in an index with collections")
        try:
            listed = self._index.view(question.collections or ()).head(source_id).document_id
        except DocumentNotFoundError:
            return self._explain_missing(source_id)
        if listed != source_id:
            return LookupResult(listed, "document known under another id", f"is listed as {listed}")
        return LookupResult(listed)

    def check_scope(self, question: QuestionScope) -> ScopeCheck:
        """See `gumshoe.corpus.SourceAudit.check_scope`."""
        known = self._index.collections
        if known and question.collections is None:
            return ScopeCheck("question without collections", "it names no collections; the index has some")
        if known and not any(matches_collection(question.collections or (), each) for each in known):
            return ScopeCheck("collections missing", f"the index has none of {', '.join(question.collections or ())}")
        return ScopeCheck()

    def _explain_missing(self, source_id: str) -> LookupResult:
        try:
            found = self._index.view(ALL_COLLECTIONS).head(source_id)
        except DocumentNotFoundError:
            return LookupResult(None, "document missing", "is not in the index")
        return LookupResult(None, "document in another collection", f"is in the collection {found.collection}")
