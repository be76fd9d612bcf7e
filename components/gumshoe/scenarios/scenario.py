"""One scenario, and a set of them that knows its own content."""

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

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from gumshoe.errors import UsageError
from gumshoe.mail.message import normal_address

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
SCENARIOS = "scenarios.jsonl"
"""What a file of them is called, beside what they are about."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class ScenarioError(UsageError):
    """A scenario, or a set of them, cannot be used as it is."""


def _address(value: str) -> str:
    if not re.fullmatch(r"\S+@\S+", address := normal_address(value)):
        raise ValueError(f"{value!r} is not a whole address, such as ann@example.com")
    return address


def _day(value: Any) -> Any:
    """The day of a moment, as sets of the hub hold it."""
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d[T ]", value):
        value = datetime.fromisoformat(value)
    return value.date() if isinstance(value, datetime) else value


def _text(value: Any) -> Any:
    """A number as text: the public set counts its questions."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


Sources = Annotated[tuple[Text, ...], AfterValidator(_distinct)]


class Scenario(BaseModel):
    """A question, its reference answer, where the answer is, whose mailbox it is, and the date it is asked on.

    >>> Scenario(id="7", question="When is the audit?", answer="3 May", message_ids=["<1@example.com>"],
    ...          inbox_address="ann@example.com", query_date="2024-04-20", split="test")

    Fields that are not listed here are kept as they came.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    id: Annotated[Text, BeforeValidator(_text)]
    question: Text
    answer: Text
    message_ids: Sources = ()
    """Each alone is a right source, unless `needs_all`."""
    document_ids: Sources = ()
    """In place of `message_ids` where the question is about documents."""
    needs_all: bool = False
    """The answer takes every source together."""
    how_realistic: Annotated[float, Field(ge=0, le=1)] | None = None
    """How likely the mailbox's owner would ask this, 0 to 1."""
    inbox_address: Annotated[str, AfterValidator(_address)] | None = None
    query_date: Annotated[date, BeforeValidator(_day)] | None = None
    """The day it is asked on: what was sent later does not exist yet."""
    split: Split | None = None
    kind: str | None = None
    """The sort of question, where the set says, to tell results apart by."""

    @model_validator(mode="after")
    def _is_whole(self) -> "Scenario":
        if bool(self.message_ids) == bool(self.document_ids):
            raise ValueError("give either message_ids or document_ids, at least one")
        if self.message_ids:
            missing = [name for name in ("inbox_address", "query_date") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"a question about mail needs {' and '.join(missing)}")
        for name in self.model_extra or {}:
            meant = get_close_matches(name.lower(), type(self).model_fields, n=1, cutoff=0.9)
            if meant:
                raise ValueError(f"unknown field {name!r}; did you mean {meant[0]!r}?")
        try:
            self.to_json().encode()
        except ValueError as error:
            raise ValueError(f"cannot be written as JSON ({error})") from None
        return self

    @classmethod
    def asked(cls, question: str, inbox_address: str | None, query_date: date | None) -> "Scenario":
        """A question of which nobody knows the answer: one to answer, and not to learn from or to measure with.

        About documents there is no inbox, and a date only where it matters.

        Raises:
            ScenarioError: the question is empty, the address is malformed, or no day comes after the date.
        """
        text = question.strip()
        try:
            inbox = None if inbox_address is None else _address(inbox_address)
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
            id="asked", question=text, answer="", inbox_address=inbox, query_date=query_date, message_ids=()
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of the messages or documents that hold the answer."""
        return self.message_ids or self.document_ids

    @property
    def visible_before(self) -> datetime | None:
        """The first moment, UTC, of which nothing exists yet when this is asked: the end of `query_date`."""
        if self.query_date is None or self.query_date == date.max:
            return None
        return datetime.combine(self.query_date + timedelta(days=1), time(), UTC)

    @property
    def plain_question(self) -> str:
        """The words of the question alone, or all of it where it has none: equal for questions that differ only in
        case, signs, or the code points that one letter is written with."""
        text = unicodedata.normalize("NFKC", self.question).casefold()
        words = "".join(
            each if unicodedata.category(each)[0] in "LMN" else " " for each in text
        )  # letters, marks, digits
        return " ".join(words.split()) or self.question

    @property
    def digest(self) -> str:
        """Equal for the same question about the same inbox, whatever its id: 16 hexadecimal digits of SHA-256."""
        return hashlib.sha256(f"{self.inbox_address}\0{self.plain_question}".encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """One line of a scenario file, without the fields that say nothing."""
        fields = self.model_dump(mode="json")
        unset = {"message_ids": [], "document_ids": [], "needs_all": False}
        said = {name: value for name, value in fields.items() if value is not None and value != unset.get(name, ...)}
        return json.dumps(said, ensure_ascii=False)


class ScenarioRecord(BaseModel):
    """Which scenarios something was made from or measured on, to be kept with adapters and reports."""

    model_config = ConfigDict(frozen=True)

    content: str
    """`ScenarioSet.content`."""
    ids: tuple[str, ...]
    questions: tuple[str, ...]
    """`Scenario.digest` of each, in the same order: what tells a question again that has another id."""


@dataclass(frozen=True)
class ScenarioSet:
    """Scenarios in their order, no two with one id.

    Raises:
        ScenarioError: an id is used twice.
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
        """The set of some scenarios."""
        return cls(tuple(scenarios))

    def __iter__(self) -> Iterator[Scenario]:
        return iter(self.scenarios)

    def __len__(self) -> int:
        return len(self.scenarios)

    def only(self, split: Split | None) -> "ScenarioSet":
        """The scenarios of one split, or with None those that are in none."""
        return ScenarioSet.of(scenario for scenario in self if scenario.split == split)

    @property
    def inboxes(self) -> frozenset[str]:
        """Whose mail they ask about."""
        return frozenset(each.inbox_address for each in self if each.inbox_address is not None)

    @cached_property
    def content(self) -> str:
        """SHA-256 over every field of every scenario: equal for equal scenarios, whatever their order."""
        digest = hashlib.sha256()
        for scenario in sorted(self, key=lambda each: each.id):
            fields = json.dumps(json.loads(scenario.to_json()), sort_keys=True)
            digest.update(f"{len(fields)}\0{fields}".encode())
        return digest.hexdigest()

    def record(self) -> ScenarioRecord:
        """What to keep with whatever is made from these scenarios, or measured on them."""
        return ScenarioRecord(
            content=self.content,
            ids=tuple(scenario.id for scenario in self),
            questions=tuple(scenario.digest for scenario in self),
        )

    def to_jsonl(self) -> bytes:
        """A scenario file."""
        return "".join(f"{scenario.to_json()}\n" for scenario in self).encode()


def as_split(name: str) -> Split:
    """The split of that name.

    Raises:
        ScenarioError: there is no such split.
    """
    for split in SPLITS:
        if name == split:
            return split
    raise ScenarioError("scenarios.unknown-split", f"split {name!r} does not exist; use one of {', '.join(SPLITS)}")


def seeded(seed: int, text: str) -> str:
    """A key to sort by: an order that the seed decides, the same on every machine and for any order before."""
    return hashlib.sha256(f"{seed}\0{text}".encode()).hexdigest()
