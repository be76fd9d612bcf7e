"""The documents environment: search a collection, read from it, answer."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from gumshoe.documents.document import Document
from gumshoe.documents.index import DocumentHit, DocumentIndex, DocumentNotFoundError
from gumshoe.environments.base import DocumentSource
from gumshoe.environments.search import SearchEnvironment
from gumshoe.environments.tools import Toolbox
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
_PARTS = 4  # of a long document that are shown, at most
_TELLING = 8  # words of a passage by which it is found in its document
_GAP = "\n\n[…]\n\n"  # where a long document is left out


class SearchableDocuments(Protocol):
    """What the environment needs of an index, as `DocumentIndex` is one."""

    def search(self, query: str, *, limit: int = 10) -> Iterable[DocumentHit]: ...
    def read(self, document_id: str) -> Document: ...
    def head(self, document_id: str) -> Document: ...


class DocumentsEnvironment(SearchEnvironment):
    """Answers one scenario from a collection of documents, all of which whoever asks may read.

    The index is shared and read-only. With `reasoning`, the model is asked to think in `<think>` before each call; a
    policy that was taught without that is not to be asked. A search lists at most `hits` passages. Of a document that
    is longer than `longest` characters, as much is shown: how it begins, and the passages that searches listed of it.

    Raises:
        ScenarioError: the scenario is not about documents.
    """

    has_inboxes = False
    for_tiny: ClassVar[Mapping[str, Any]] = {"reasoning": False, "hits": 2}
    """What the tiny policy was taught with: its searches found few messages, and it thinks aloud of nothing."""
    for_calls: ClassVar[Mapping[str, Any]] = {"longest": 200_000}
    """Of single calls none knows what a search listed before, so that reading shows more of a document."""

    def __init__(
        self,
        index: SearchableDocuments,
        scenario: Scenario,
        max_turns: int,
        *,
        reasoning: bool = True,
        hits: Annotated[int, Field(ge=1, le=10)] = 10,
        longest: Annotated[int, Field(ge=200)] = 12_000,
    ) -> None:
        if scenario.message_ids or scenario.inbox_address is not None:
            raise ScenarioError(
                "environments.not-about-documents", f"scenario {scenario.id} is not about documents: it has an inbox"
            )
        self.toolbox = Toolbox([self.search_documents, self.read_document, self.return_final_answer])
        self._index, self._max_turns = index, max_turns
        self._reasoning, self._hits, self._longest = reasoning, hits, longest
        self._listed: dict[str, list[str]] = {}
        super().__init__(scenario)

    @staticmethod
    def open_index(directory: Path) -> DocumentIndex:
        """The index of a directory.

        Raises:
            GumshoeError: there is none, or it is damaged.
        """
        return DocumentIndex(directory)

    @staticmethod
    def get_ready(index: SearchableDocuments) -> None:
        """Have the index load the model that queries are embedded with."""
        index.search("What is there?", limit=1)

    @staticmethod
    def find_source(index: SearchableDocuments, scenario: Scenario, source_id: str) -> DocumentSource | None:  # noqa: ARG004
        """The document of that id; None where there is none."""
        found = _found(index.head, source_id)
        return DocumentSource(found.document_id, found.title, found.url) if found else None

    def system_prompt(self) -> str:
        """What to do, and in how many turns: the same for every scenario, so that a server computes it once."""
        return _SYSTEM.format(turns=self._max_turns) + (_REASONING if self._reasoning else "")

    def user_prompt(self) -> str:
        """What day it is, where that matters, and the question."""
        today = self.scenario.query_date
        if today is None:
            return self.scenario.question
        return _USER.format(today=f"{today:%A}, {today}", question=self.scenario.question)

    def search_documents(self, query: str) -> str:
        """Search the documents: up to ten passages, the best first.

        Args:
            query: What to look for, in a few words.
        """
        deeds = self.begin_search(query)
        hits = list(self._index.search(query, limit=self._hits)) if query.strip() else []
        for hit in hits:
            self._listed.setdefault(hit.document_id, []).append(hit.snippet)
        return self.end_search(deeds, [hit.document_id for hit in hits], map(_shown_hit, hits))

    def read_document(self, document_id: str) -> str:
        """Read one document.

        Args:
            document_id: The id of a document, as a search lists it.
        """
        document = _found(self._index.read, document_id)
        if document is None:
            raise self.unknown_id_error(f"document {document_id!r}")
        self.record_reading(document.document_id)
        text = excerpt(document.text, self._listed.get(document.document_id, []), self._longest)
        return f"{document.title}\n\n{text}"

    def return_final_answer(self, answer: str, document_ids: list[str]) -> str:
        """Give the answer to the question. This ends the conversation.

        Args:
            answer: The answer, as short as it can be; "I don't know" if it is not to be found.
            document_ids: The ids of the documents that hold the answer.
        """
        return self.finish(answer, document_ids)

    def listed_id(self, source_id: str) -> str | None:
        """As `SearchEnvironment.listed_id`."""
        document = _found(self._index.head, source_id)
        return document.document_id if document else None


def _found(read: Callable[[str], Document], document_id: str) -> Document | None:
    try:
        return read(document_id.strip())
    except DocumentNotFoundError:
        return None


def _shown_hit(hit: DocumentHit) -> str:
    """A hit as a search shows it; its id stands last, where a causal model has seen what it is the id of."""
    return f"{_in_a_line(hit.title)}\n  {_in_a_line(hit.snippet)}\n  id: {hit.document_id}"


def _in_a_line(text: str) -> str:
    return " ".join(text.split())


def excerpt(text: str, passages: Iterable[str], longest: int) -> str:
    """A text of at most so many characters, and marks of what is left out: all of it, or how it begins and the parts
    round passages of it, the last ones first as far as there is room.
    """
    if len(text) <= longest:
        return text
    places = list(_places(text, reversed(list(passages))))
    part = longest // min(_PARTS, 1 + len(places))
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
    """A part of a text without the words that it would begin or end within."""
    if start and not text[start - 1].isspace():
        start = next((at for at in range(start, end) if text[at].isspace()), start)
    if end < len(text) and not text[end].isspace():
        end = next((at for at in range(end, start, -1) if text[at - 1].isspace()), end)
    return text[start:end].strip()


def _places(text: str, passages: Iterable[str]) -> Iterator[int]:
    """Where passages of a text begin in it, each place once, however their spaces and their ends were changed."""
    found: set[int] = set()
    for passage in passages:
        words = re.findall(r"\w+", passage)
        for start in range(0, max(1, len(words) - _TELLING), _TELLING):
            telling = r"\W+".join(map(re.escape, words[start : start + _TELLING]))
            place = re.search(telling, text) if telling else None
            if place and place.start() not in found:
                found.add(place.start())
                yield place.start()
            if place:
                break
