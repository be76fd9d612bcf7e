"""The kinds of corpus that agents search, such as mail and documents.

A built-in kind is a package with a `Corpus` and a line in `CORPORA`. Other packages ask the `Corpus` for everything
that depends on the kind and is not part of an episode; an episode is the environment's.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from gumshoe.errors import UsageError

CORPORA = {
    "email": "gumshoe.mail.corpus:MailCorpus",
    "documents": "gumshoe.documents.corpus:DocumentsCorpus",
}
"""`Corpus` of each kind as `module:Class`, by the name of its environment."""
SCENARIOS_FILE = "scenarios.jsonl"
"""Name of a scenario file beside the data that it is about."""
DEFAULT_ENVIRONMENT = "email"
"""Environment of pipelines and deployments that do not name one."""


SourceEntry = str | Mapping[str, Any]
"""Entry of a list of sources: a URI, or a mapping with the URI as `source`, e.g. of a mailbox with an owner, or of
documents in a collection."""


class QuestionScope(Protocol):
    """The parts of a scenario that limit which sources are visible to it."""

    @property
    def inbox_address(self) -> str | None: ...
    @property
    def collections(self) -> tuple[str, ...] | None: ...
    @property
    def query_date(self) -> date | None: ...
    @property
    def visible_before(self) -> datetime | None: ...


class LookupResult(NamedTuple):
    """A source of a scenario, as found in an index."""

    listed_id: str | None
    """Id under which searches list the source. None if the scenario cannot use it."""
    problem: str | None = None
    """Short name of the source's problem, for counting, e.g. `message missing`."""
    detail: str = ""
    """Description of the problem. It continues a sentence that begins with the id."""


class ScopeCheck(NamedTuple):
    """Result of looking for what a question is about, e.g. its inbox."""

    problem: str | None = None
    """Short name of the problem, for counting, e.g. `inbox missing`. None if it can be asked."""
    detail: str = ""


class SourceAudit(Protocol):
    """Look up the sources of scenarios in a whole index. It is created from the directory of the index."""

    def look_up(self, source_id: str, question: QuestionScope) -> LookupResult:
        """Find a source by its id, and check that searches for the question can list it."""
        ...

    def check_scope(self, question: QuestionScope) -> ScopeCheck:
        """Check that the index has the inbox or the collections of a question without sources."""
        ...


class FoundSource(NamedTuple):
    """A source that a search listed."""

    source_id: str
    title: str
    origin: str
    """Origin of the source, e.g. sender and time. Empty if unknown."""
    snippet: str


class OpenedSource(NamedTuple):
    """A source that was read."""

    text: str
    day: date | None
    """Day (UTC) since which it is visible, if that matters."""


class SourceSearch(Protocol):
    """Search an index as an agent does, for people who write scenarios."""

    def search(self, words: Sequence[str]) -> list[FoundSource]:
        """Return at most ten sources, best first.

        Raises:
            UsageError: if the words cannot be searched for.
        """
        ...

    def read(self, source_id: str) -> OpenedSource:
        """Return a source that a search listed."""
        ...


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Outcome of building an index."""

    count: int
    """Number of messages, documents or other items."""
    summary: str
    """The same as text."""
    facts: dict[str, Any]
    """Statistics of the index: its content, sources and options."""


class Corpus(ABC):
    """One kind of corpus. Importing the module of a subclass must be quick: its methods import what they need."""

    environment: ClassVar[str]
    """Its environment, as `module:Class`."""
    audit: ClassVar[str]
    """Its `SourceAudit`, as `module:Class`. It reads what no tool may read: only `gumshoe.scenarios.check` loads it."""
    content: ClassVar[str]
    """Plural or mass noun for its items in messages, e.g. `documents`."""
    has_inboxes: ClassVar[bool] = False
    """True if a question is about one inbox, on one day. Scenarios then have `message_ids`, and else `document_ids`."""
    example_source: ClassVar[str]
    """A source that pods can read, for error messages, e.g. `maildir:s3://bucket/mail`."""
    index_command: ClassVar[str]
    """Command that builds an index, e.g. `gumshoe mail index`."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Name of its environment."""

    @abstractmethod
    def is_index(self, directory: Path) -> bool:
        """Return True if a directory contains an index of this kind, intact or damaged."""

    @abstractmethod
    def split_source(self, source: SourceEntry) -> tuple[str, str]:
        """Return the form of a source, e.g. `jsonl`, and its place.

        Raises:
            UsageError: if the URI has no known form, or the mapping is invalid.
        """

    @abstractmethod
    def check_source(self, source: SourceEntry) -> None:
        """Check that a source exists.

        Raises:
            UsageError: if the URI has no known form, nothing of that form exists there, or the mapping is invalid.
            StorageError, UnavailableError: if the source cannot be listed.
        """

    @abstractmethod
    def check_options(self, options: Mapping[str, Any]) -> None:
        """Check options for `ingest`.

        Raises:
            UsageError: if an option does not exist, or a value is invalid.
        """

    def choose_embedding(self, embedding: str, options: Mapping[str, Any]) -> str:  # noqa: ARG002 - runs none
        """Return the embedding model that `ingest` uses with these arguments, or `none`."""
        return "none"

    def runs_embedding(self, embedding: str, options: Mapping[str, Any]) -> bool:
        """Return True if `ingest` with these arguments runs an embedding model itself, which needs torch."""
        chosen = self.choose_embedding(embedding, options)
        return chosen != "none" and not chosen.startswith("openai:")

    @abstractmethod
    def open_search(self, directory: Path, inbox: str | None, collections: Sequence[str] | None = None) -> SourceSearch:
        """Open an index to search it; one inbox or some collections of it, if its items belong to such.

        Raises:
            GumshoeError: if the index cannot be opened.
        """

    @abstractmethod
    def ingest(
        self, sources: Sequence[SourceEntry], directory: Path, embedding: str, options: Mapping[str, Any]
    ) -> IngestResult:
        """Build an index. Reuse an existing index with the same sources and options (see `is_built_from`).

        `options` are those of its command, by name. Missing ones have their defaults.

        Raises:
            UsageError: if a source or an option is invalid, or the directory has another index.
            GumshoeError: if a source cannot be read.
        """

    def require_uri(self, source: SourceEntry) -> str:
        """Return a source of a kind whose sources have no owners.

        Raises:
            UsageError: if it is not a URI.
        """
        if isinstance(source, str):
            return source
        raise UsageError(
            "sources.owner-not-allowed",
            f"a source of {self.content} must be a URI, got {dict(source)!r}; only mail has owners and aliases: write "
            f"e.g. {self.example_source}",
        )


def find_corpus(name: str) -> Corpus | None:
    """Return the corpus of a built-in environment, or None if there is no built-in environment of that name."""
    if name not in CORPORA:
        return None
    corpus: Corpus = load_class(CORPORA[name])(name)
    return corpus


def suggest_after_indexing(sources: Sequence[str], index: Path) -> tuple[object, ...]:
    """Return the command to run after an index was built: check the scenarios beside its source, or write some."""
    beside = (Path(each.partition(":")[2]).with_name(SCENARIOS_FILE) for each in sources if each.startswith("jsonl:"))
    known = next((each for each in beside if each.is_file()), None)
    if known is None:
        return ("gumshoe", "scenarios", "add", "questions.jsonl", "--index", index)
    return ("gumshoe", "scenarios", "check", known, "--index", index)


def load_class(place: str) -> Any:
    """Import a class that is named as `module:Class`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def is_built_from(facts: dict[str, Any], sources: Sequence[object], options: Any) -> bool:
    """Return True if the statistics of an index name these sources, as it records them, and options (a dataclass)."""
    return (facts["sources"], facts["options"]) == (list(sources), json.loads(json.dumps(asdict(options))))
