"""Environment for documents: search a collection, read documents, answer."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from gumshoe.documents.corpus import DocumentsCorpus
from gumshoe.documents.document import Document
from gumshoe.documents.document_snippets import SNIPPET_CHARACTERS
from gumshoe.documents.index import DocumentHit, DocumentIndex, DocumentNotFoundError, DocumentView
from gumshoe.embeddings.reranker import RerankSettings, open_reranker
from gumshoe.environments.base import DocumentSource, SourceText
from gumshoe.environments.budgets import PAGE_OF_CALL, HitCharacters, HitCount, PageCharacters, cut_hit
from gumshoe.environments.data_marks import NOTE
from gumshoe.environments.search import SearchEnvironment
from gumshoe.environments.tools import Toolbox, ToolError, vary_tool
from gumshoe.errors import UsageError
from gumshoe.scenarios.scenario import Scenario, ScenarioError

_SYSTEM = """\
You are an assistant that answers questions from a collection of documents.

Use the tools to find the answer: search the documents, read what looks right, and return the answer with the ids of \
the documents that hold it. Make exactly one call in each turn. You have at most {turns} turns. If the answer is not \
to be found, return "I don't know" and no ids."""
_REASONING = """\


Begin each turn with your reasoning, in <think> and </think>: what is known, what is missing, and what to do next. \
The call follows it."""
_USER = """\
Today is {today}.

{question}"""
_MAX_PARTS = 4  # maximum number of parts shown of a long document
_MATCH_WORDS = 8  # words of a passage used to find it in its document
_GAP = "\n\n[…]\n\n"  # replaces the omitted parts of a long document


class SearchableDocuments(Protocol):
    """An index with the methods that the environment needs, such as `DocumentView`."""

    def search(self, query: str, *, limit: int = 10) -> Iterable[DocumentHit]: ...
    def read(self, document_id: str) -> Document: ...
    def head(self, document_id: str) -> Document: ...


class DocumentsEnvironment(SearchEnvironment):
    """Answer one scenario from the documents that it may read.

    If the index has collections, the scenario names those that it may read, and they are part of every query. Neither
    the model nor the text of a document can change them. Without collections, every scenario may read all documents.
    The index is shared and read-only. With `reasoning`, the system prompt asks the model to think in `<think>` before
    each call; turn it off for policies that were trained without it. A search lists at most `hits` passages. Of a
    document with more than `longest` characters, the tool shows the beginning and the passages that searches listed.

    A hit has at most `hit_characters` characters of title and snippet: more than usual, or fewer for models with a
    small context. With `document_characters`, longer documents are read in pages of that many characters, whatever
    `longest` is. With `handles`, tools show handles such as d1 in place of ids; both can be read and given as sources.

    With `neighbours`, a search lists the number of each passage's chunk, and `read_document` can read around it: the
    chunk with that many chunks before and after it. `rerank` names a model that orders the results of searches anew.

    With `marks`, results of tools are enclosed in marks that no document can contain, and the system prompt says that
    the text between them is data (see `gumshoe.environments.data_marks`).

    Raises:
        ScenarioError: if the scenario is not about documents, or names no collections of an index that has some.
    """

    has_inboxes = DocumentsCorpus.has_inboxes
    for_tiny: ClassVar[Mapping[str, Any]] = {"reasoning": False, "hits": 2, "marks": False}
    """Settings that the tiny policy was trained with: few hits, no reasoning and no marks."""
    for_calls: ClassVar[Mapping[str, Any]] = {"document_characters": PAGE_OF_CALL}
    """Settings for single tool calls: they do not know earlier searches, so a long document is read in pages."""
    needed_for_calls: ClassVar[Mapping[str, Any]] = {"handles": False}
    """Settings that single tool calls must have: only the episode that shows a handle knows it."""
    overrides: ClassVar[Mapping[str, str]] = {"document_characters": "longest"}
    """Setting that has no effect with another one. A default of the latter does not override the user's."""
    if_unrecorded: ClassVar[Mapping[str, Any]] = {"marks": False}
    """Settings of policies whose record of the training does not have them, because they did not exist."""

    def __init__(
        self,
        index: SearchableDocuments | DocumentIndex,
        scenario: Scenario,
        max_turns: int,
        *,
        reasoning: bool = True,
        hits: HitCount = 10,
        longest: Annotated[int, Field(ge=200)] = 12_000,
        hit_characters: HitCharacters = None,
        document_characters: PageCharacters = None,
        handles: bool = False,
        marks: bool = True,
        neighbours: Annotated[int, Field(ge=0, le=20)] = 0,
        rerank: RerankSettings | None = None,
    ) -> None:
        if scenario.message_ids or scenario.inbox_address is not None:
            raise ScenarioError(
                "environments.not-about-documents", f"scenario {scenario.id} is not about documents: it has an inbox"
            )
        without = (*(() if document_characters else ("page",)), *(() if neighbours else ("around",)))
        read = vary_tool(self.read_document, without)
        self._neighbours = neighbours
        self._reranker = open_reranker(RerankSettings.model_validate(rerank)) if rerank else None
        self.toolbox = Toolbox([self.search_documents, read, self.return_final_answer], marks=marks)
        self._marks = marks
        self._index, self._max_turns = _open_view(index, scenario), max_turns
        self._reasoning, self._hits, self._longest = reasoning, hits, longest
        self._hit_characters, self._page_characters = hit_characters, document_characters
        self._listed: dict[str, list[str]] = {}
        super().__init__(scenario, handle_prefix="d" if handles else "")

    @staticmethod
    def open_index(directory: Path) -> DocumentIndex:
        """Open the index in a directory.

        Raises:
            GumshoeError: if the index does not exist, or is damaged.
        """
        return DocumentIndex(directory)

    @staticmethod
    def get_ready(index: DocumentIndex) -> None:
        """Load the model that embeds queries."""
        index.get_ready()

    @staticmethod
    def find_source(
        index: SearchableDocuments | DocumentIndex, scenario: Scenario, source_id: str
    ) -> DocumentSource | None:
        """Return the document with an id, or None if the scenario may read no such document."""
        found = _read_or_none(_open_view(index, scenario).head, source_id)
        return _to_source(found) if found else None

    @staticmethod
    def read_source(
        index: SearchableDocuments | DocumentIndex, scenario: Scenario, source_id: str
    ) -> SourceText | None:
        """Return the document with an id, with its text, or None if the scenario may read no such document."""
        found = _read_or_none(_open_view(index, scenario).read, source_id)
        return SourceText(_to_source(found), {}, found.text) if found else None

    def system_prompt(self) -> str:
        """Return the task and the turn limit. They are the same for every scenario, so a server computes them once."""
        marks = f"\n\n{NOTE}" if self._marks else ""
        return _SYSTEM.format(turns=self._max_turns) + marks + (_REASONING if self._reasoning else "")

    def user_prompt(self) -> str:
        """Return the date, if the scenario has one, and the question."""
        today = self.scenario.query_date
        if today is None:
            return self.scenario.question
        return _USER.format(today=f"{today:%A}, {today}", question=self.scenario.question)

    def search_documents(self, query: str) -> str:
        """Search the documents: up to ten passages, the best first.

        Args:
            query: What to look for, in a few words.
        """
        events = self.begin_search(query)
        hits = list(self._search(query)) if query.strip() else []
        for hit in hits:
            self._listed.setdefault(hit.document_id, []).append(hit.snippet)
        listed = [self._format_hit(hit, query) for hit in hits]
        return self.end_search(events, [hit.document_id for hit in hits], listed)

    def _format_hit(self, hit: DocumentHit, query: str) -> str:
        """Format a hit for the model. The id comes last, so that a causal model knows what it identifies."""
        title, snippet = cut_hit(_to_one_line(hit.title), _to_one_line(hit.snippet), query, self._hit_characters)
        chunk = f"  chunk: {hit.chunk_id.rpartition('#')[2]}\n" if self._neighbours else ""
        return f"{title}\n  {snippet}\n{chunk}  id: {self.show_id(hit.document_id)}"

    def read_document(self, document_id: str, page: int = 1, around: int | None = None) -> str:
        """Read one document.

        Args:
            document_id: The id of a document, as a search lists it.
            page: The page to read of a long document.
            around: The chunk of a passage, as a search lists it, to read only what stands around it.
        """
        document = _read_or_none(lambda each: self._read(each, around), self.resolve_id(document_id))
        if document is None:
            raise self.unknown_id_error(f"document {document_id!r}")
        text = document.text
        if self._page_characters is None:
            text = make_excerpt(text, self._listed.get(document.document_id, []), self._longest)
        return self.show_page(document.document_id, document.title, text, page, self._page_characters, around)

    def _search(self, query: str) -> Iterable[DocumentHit]:
        if not isinstance(self._index, DocumentView | DocumentIndex):
            return self._index.search(query, limit=self._hits)
        characters = max(SNIPPET_CHARACTERS, self._hit_characters or 0)
        return self._index.search(query, limit=self._hits, snippet_characters=characters, reranker=self._reranker)

    def _read(self, document_id: str, around: int | None) -> Document:
        """Read a document, or the chunks around one of it if the index has chunks.

        Raises:
            ToolError: if it has no such chunk.
        """
        if around is None or not isinstance(self._index, DocumentView | DocumentIndex):
            return self._index.read(document_id)
        try:
            return self._index.read(document_id, around, max(self._neighbours, 1))
        except UsageError as error:
            self._record_call()
            raise ToolError(error.message) from None

    def return_final_answer(self, answer: str, document_ids: list[str]) -> str:
        """Give the answer to the question. This ends the conversation.

        Args:
            answer: The answer, as short as it can be; "I don't know" if it is not to be found.
            document_ids: The ids of the documents that hold the answer.
        """
        return self.finish(answer, document_ids)

    def listed_id(self, source_id: str) -> str | None:
        """Return the id of a document as searches list it. See `SearchEnvironment.listed_id`."""
        document = _read_or_none(self._index.head, source_id)
        return document.document_id if document else None


def _open_view(index: SearchableDocuments | DocumentIndex, scenario: Scenario) -> SearchableDocuments:
    """Return the part of an index that a scenario may read.

    Raises:
        ScenarioError: if the index has collections, and the scenario names none.
    """
    if not isinstance(index, DocumentIndex) or not index.collections:
        return index
    if scenario.collections is None:
        raise ScenarioError(
            "environments.no-collections",
            f"scenario {scenario.id} names no collections, and the index has some; set its field `collections` to "
            'those that it may read, e.g. ["hr"], or ["*"] for all',
        )
    return index.view(scenario.collections)


def _read_or_none(read: Callable[[str], Document], document_id: str) -> Document | None:
    try:
        return read(document_id.strip())
    except DocumentNotFoundError:
        return None


def _to_source(document: Document) -> DocumentSource:
    return DocumentSource(document.document_id, document.title, document.url)


def _to_one_line(text: str) -> str:
    return " ".join(text.split())


def make_excerpt(text: str, passages: Iterable[str], longest: int) -> str:
    """Shorten a text to at most `longest` characters, plus marks where parts are omitted.

    A longer text is reduced to its beginning and the parts around `passages`, preferring the last ones.
    """
    if len(text) <= longest:
        return text
    places = list(_find_passages(text, reversed(list(passages))))
    part = longest // min(_MAX_PARTS, 1 + len(places))
    spans, room = [(0, part)], longest - part
    for start in places:
        if room < part:
            break
        if not any(first <= start < last - part // 2 for first, last in spans):
            spans.append((max(0, start - part // 4), start + part - part // 4))
            room -= part
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    shown = _GAP.join(_whole_words(text, first, last) for first, last in merged)
    return shown if merged[-1][1] >= len(text) else shown + _GAP.rstrip()


def _whole_words(text: str, start: int, end: int) -> str:
    """Return a part of a text without words that are cut off at its start or end."""
    if start and not text[start - 1].isspace():
        start = next((at for at in range(start, end) if text[at].isspace()), start)
    if end < len(text) and not text[end].isspace():
        end = next((at for at in range(end, start, -1) if text[at - 1].isspace()), end)
    return text[start:end].strip()


def _find_passages(text: str, passages: Iterable[str]) -> Iterator[int]:
    """Yield the offsets of passages in a text, each once. Spaces, punctuation and the ends of passages may differ."""
    found: set[int] = set()
    for passage in passages:
        words = re.findall(r"\w+", passage)
        for start in range(0, max(1, len(words) - _MATCH_WORDS), _MATCH_WORDS):
            pattern = r"\W+".join(map(re.escape, words[start : start + _MATCH_WORDS]))
            place = re.search(pattern, text) if pattern else None
            if place and place.start() not in found:
                found.add(place.start())
                yield place.start()
            if place:
                break
