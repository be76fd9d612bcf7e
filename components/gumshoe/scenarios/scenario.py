"""A scenario, and a set of scenarios with a content hash."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from gumshoe.documents.collection_names import check_collection_patterns
from gumshoe.errors import UsageError
from gumshoe.mail.message import normalize_address
from gumshoe.scenarios.unknown_answer import UNKNOWN, is_unknown
from gumshoe.text_checks import check_text, find_bad_texts

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Consent = Literal["training", "none"]
"""What a caller of an agent server lets feedback be used for: training, or nothing but to be counted."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class ScenarioError(UsageError):
    """A scenario, or a set of scenarios, is invalid."""


def _validate_address(value: str) -> str:
    if not re.fullmatch(r"\S+@\S+", address := normalize_address(value)):
        raise ValueError(f"{value!r} is not a whole address, such as ann@example.com")
    return address


def _validate_collections(value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return check_collection_patterns(value)
    except UsageError as error:
        raise ValueError(error.message) from None


def _to_date(value: Any) -> Any:
    """Return the date of a datetime, as in datasets of the hub."""
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d[T ]", value):
        value = datetime.fromisoformat(value)
    return value.date() if isinstance(value, datetime) else value


def _to_text(value: Any) -> Any:
    """Convert a number to text, because the public set numbers its questions."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _deduplicate(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


Sources = Annotated[tuple[Text, ...], AfterValidator(_deduplicate)]


class Scenario(BaseModel):
    """A question with its reference answer, the sources of the answer, an inbox and a date.

    >>> Scenario(id="7", question="When is the audit?", answer="3 May", message_ids=["<1@example.com>"],
    ...          inbox_address="ann@example.com", query_date="2024-04-20", split="test")

    Other fields are kept unchanged.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    id: Annotated[Text, BeforeValidator(_to_text)]
    question: Text
    answer: Text
    """Reference answer; "I don't know" if it is unanswerable."""
    message_ids: Sources = ()
    """Ids of messages with the answer. Each one is sufficient, unless `needs_all`."""
    document_ids: Sources = ()
    """Ids of documents with the answer, if the question is about documents."""
    needs_all: bool = False
    """True if the answer requires all sources together."""
    unanswerable: bool = False
    """True if no source has the answer, so that "I don't know" is right and every other answer is wrong."""
    how_realistic: Annotated[float, Field(ge=0, le=1)] | None = None
    """Probability that the inbox's owner asks this, from 0 to 1."""
    inbox_address: Annotated[str, AfterValidator(_validate_address)] | None = None
    collections: Annotated[tuple[str, ...], AfterValidator(_validate_collections)] | None = None
    """Collections of documents that may be read, or patterns such as `eng-*`. Needed if the index has collections."""
    query_date: Annotated[date, BeforeValidator(_to_date)] | None = None
    """Day on which the question is asked. Mail sent later does not exist yet."""
    split: Split | None = None
    kind: str | None = None
    """Kind of question, if known, for grouping results."""
    given_by: str | None = None
    """Pseudonym of the caller of an agent server who gave this answer as feedback."""
    given_at: AwareDatetime | None = None
    """Time of the feedback."""
    consent: Consent | None = None
    """What the feedback may be used for; None if that was not recorded."""

    @model_validator(mode="before")
    @classmethod
    def _answer_unanswerable(cls, fields: Any) -> Any:
        """Add the answer of an unanswerable question, which may be left out."""
        is_empty = isinstance(fields, dict) and fields.get("answer") in (None, "")
        return {**fields, "answer": UNKNOWN} if is_empty and fields.get("unanswerable") is True else fields

    @model_validator(mode="after")
    def _check_complete(self) -> "Scenario":
        if self.unanswerable:
            self._check_unanswerable()
        elif bool(self.message_ids) == bool(self.document_ids):
            raise ValueError("give either message_ids or document_ids, at least one; or unanswerable: true")
        if self.is_about_mail:
            missing = [name for name in ("inbox_address", "query_date") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"a question about mail needs {' and '.join(missing)}")
            if self.collections is not None:
                raise ValueError("a question about mail has no collections; only documents belong to collections")
        for name in self.model_extra or {}:
            meant = get_close_matches(name.lower(), type(self).model_fields, n=1, cutoff=0.9)
            if meant:
                raise ValueError(f"unknown field {name!r}; did you mean {meant[0]!r}?")
        for place, fault in find_bad_texts(dict(self)):
            raise ValueError(f"{place}: {fault}")
        try:
            json.dumps(self.model_extra, allow_nan=False, skipkeys=True, default=str)  # the next would write null
            self.to_json()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"cannot be written as JSON ({error})") from None
        return self

    def _check_unanswerable(self) -> None:
        if self.sources or self.needs_all:
            raise ValueError("an unanswerable question has no message_ids, document_ids or needs_all; leave them out")
        if not is_unknown(self.answer):
            raise ValueError(f"the answer to an unanswerable question is {UNKNOWN!r}; leave out answer")

    @classmethod
    def from_question(
        cls,
        question: str,
        inbox_address: str | None,
        query_date: date | None,
        collections: tuple[str, ...] | None = None,
    ) -> "Scenario":
        """Create a scenario for a question without a known answer. It can be answered, but not used for training or
        evaluation.

        Questions about documents have no inbox, and a date only if it matters.

        Raises:
            InvalidTextError: if the question contains NUL or a lone surrogate.
            ScenarioError: if the question is empty, the address is malformed, or the date is the last possible one.
        """
        text = check_text(question, "the question").strip()
        try:
            inbox = None if inbox_address is None else _validate_address(inbox_address)
        except ValueError as error:
            raise ScenarioError("scenarios.invalid-inbox", str(error)) from None
        if not text:
            raise ScenarioError("scenarios.empty-question", "the question is empty; write one")
        if query_date == date.max:
            raise ScenarioError(
                "scenarios.invalid-query-date",
                f"query date {query_date} is out of range; use the day on which the question is asked",
            )
        return cls.model_construct(
            id="asked",
            question=text,
            answer="",
            inbox_address=inbox,
            query_date=query_date,
            message_ids=(),
            collections=collections,
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """Ids of the messages or documents that contain the answer."""
        return self.message_ids or self.document_ids

    @property
    def needed_sources(self) -> int:
        """Number of correct sources that are enough: one, or all if the answer requires all.

        An unanswerable question has no source that could be enough.
        """
        return len(self.sources) if self.needs_all else 1

    @property
    def is_about_mail(self) -> bool:
        """True if the question is about the mail of an inbox, false if it is about documents."""
        return bool(self.message_ids) or (self.inbox_address is not None and not self.document_ids)

    @property
    def visible_before(self) -> datetime | None:
        """End of `query_date` in UTC. Later mail is not visible. None if there is no date."""
        if self.query_date is None or self.query_date == date.max:
            return None
        return datetime.combine(self.query_date + timedelta(days=1), time(), UTC)

    @property
    def plain_question(self) -> str:
        """The question's words in lower case and normalized Unicode, without punctuation.

        Questions that differ only in case, punctuation or the encoding of letters are equal. A question without words
        is returned unchanged.
        """
        text = unicodedata.normalize("NFKC", self.question).casefold()
        words = "".join(
            each if unicodedata.category(each)[0] in "LMN" else " " for each in text
        )  # letters, marks, digits
        return " ".join(words.split()) or self.question

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of SHA-256, equal for the same question about the same inbox, whatever its id."""
        return hashlib.sha256(f"{self.inbox_address}\0{self.plain_question}".encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return one line of a scenario file, without fields that have no value."""
        fields = self.model_dump(mode="json")
        unset = {"message_ids": [], "document_ids": [], "needs_all": False, "unanswerable": False}
        non_default = {
            name: value for name, value in fields.items() if value is not None and value != unset.get(name, ...)
        }
        return json.dumps(non_default, ensure_ascii=False, allow_nan=False)


class ScenarioRecord(BaseModel):
    """Identity of the scenarios that an adapter was trained on, or that a report was measured on."""

    model_config = ConfigDict(frozen=True)

    content: str
    """See `ScenarioSet.content`."""
    ids: tuple[str, ...]
    questions: tuple[str, ...]
    """`Scenario.digest` of each, in the same order. It identifies a question even under another id."""


@dataclass(frozen=True)
class ScenarioSet:
    """An ordered set of scenarios with unique ids.

    Raises:
        ScenarioError: if an id is used twice.
    """

    scenarios: tuple[Scenario, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for scenario in self.scenarios:
            if scenario.id in seen:
                raise ScenarioError(
                    "scenarios.duplicate-id", f"two scenarios have the id {scenario.id!r}; give each its own"
                )
            seen.add(scenario.id)

    @classmethod
    def of(cls, scenarios: Iterable[Scenario]) -> "ScenarioSet":
        """Create a set from scenarios."""
        return cls(tuple(scenarios))

    def __iter__(self) -> Iterator[Scenario]:
        return iter(self.scenarios)

    def __len__(self) -> int:
        return len(self.scenarios)

    def only(self, split: Split | None) -> "ScenarioSet":
        """Return the scenarios of one split. None selects those without a split."""
        return ScenarioSet.of(scenario for scenario in self if scenario.split == split)

    @property
    def inboxes(self) -> frozenset[str]:
        """Inboxes that the questions are about."""
        return frozenset(each.inbox_address for each in self if each.inbox_address is not None)

    @cached_property
    def content(self) -> str:
        """SHA-256 over every field of every scenario. Equal scenarios give an equal hash in any order."""
        digest = hashlib.sha256()
        for scenario in sorted(self, key=lambda each: each.id):
            fields = json.dumps(json.loads(scenario.to_json()), sort_keys=True)
            digest.update(f"{len(fields)}\0{fields}".encode())
        return digest.hexdigest()

    @property
    def order(self) -> str:
        """SHA-256 over the ids in their order."""
        return hashlib.sha256("\0".join(each.id for each in self).encode()).hexdigest()

    def to_record(self) -> ScenarioRecord:
        """Return the identity of these scenarios, to store with an adapter or a report."""
        return ScenarioRecord(
            content=self.content,
            ids=tuple(scenario.id for scenario in self),
            questions=tuple(scenario.digest for scenario in self),
        )

    def to_jsonl(self) -> bytes:
        """Return the content of a scenario file."""
        return "".join(f"{scenario.to_json()}\n" for scenario in self).encode()


def parse_split(name: str) -> Split:
    """Return the split of that name.

    Raises:
        ScenarioError: if there is no such split.
    """
    for split in SPLITS:
        if name == split:
            return split
    raise ScenarioError("scenarios.unknown-split", f"split {name!r} does not exist; use one of {', '.join(SPLITS)}")


def seeded_sort_key(seed: int, text: str) -> str:
    """Return a sort key for shuffling: it depends only on the seed and the text."""
    return hashlib.sha256(f"{seed}\0{text}".encode()).hexdigest()
