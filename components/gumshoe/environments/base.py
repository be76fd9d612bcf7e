"""What an episode takes place in: the tools a model may use, what it is told, and a record of what it did."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from gumshoe.environments.tools import Toolbox
from gumshoe.scenarios.scenario import Scenario

Unusable = Literal["unparseable call", "no call", "unknown tool", "bad arguments"]
"""Why a call cannot be used."""
Ending = Literal["answer", "max turns", "context full", Unusable]
"""Why an episode is over."""
Event = Literal[
    "searched",
    "searched again",
    "in vain",
    "found",
    "read",
    "read again",
    "read another",
    "invalid id",
    "answered",
]
"""What a call of a tool did. A search is new or was made before, finds nothing at all ("in vain"), or lists a right
source that no search had listed. Reading is of a right source, of what was read before, or of something else."""


@dataclass(slots=True)
class EpisodeState:
    """What happened in an episode, for rewards and metrics."""

    deeds: list[list[Event]] = field(default_factory=list)
    """What each call did, in the order of the turns."""
    searches: int = 0
    repeated_searches: int = 0
    """Searches with the very arguments of an earlier one."""
    empty_searches: int = 0
    """Searches that found nothing."""
    tool_errors: int = 0
    """Calls that a tool refused, and told the model why."""
    found: list[str] = field(default_factory=list)
    """Right sources that a search listed, in the order found."""
    best_rank: int | None = None
    """The best place, from 1, at which a search listed a right source."""
    read: list[str] = field(default_factory=list)
    """Right sources that were read."""
    read_others: int = 0
    """Other sources that were read."""
    invalid_ids: int = 0
    """Ids that were read, or given as sources, and that are not there."""
    answer: str | None = None
    sources: list[str] = field(default_factory=list)
    """Sources given with the answer, as given."""
    right_sources: list[str] = field(default_factory=list)
    """Those of them that are right."""
    does_not_know: bool = False
    """The answer is that the model does not know."""

    @property
    def distinct_searches(self) -> int:
        return self.searches - self.repeated_searches


class Environment(Protocol):
    """One episode's tools and state. Someone else's environment is a class with these, and a line of configuration.

    Invariants: what the tools reach is fixed by the scenario, never by the model; `record` only grows; once
    `finished`, no tool is called.
    """

    scenario: Scenario
    toolbox: Toolbox
    record: EpisodeState
    finished: bool
    """The model has given its final answer."""

    def system_prompt(self) -> str:
        """What the model is told first. Where it is the same in many episodes, it is encoded and computed once."""
        ...

    def user_prompt(self) -> str:
        """What the user says: the question, and what else belongs to this episode alone."""
        ...


@dataclass(frozen=True, slots=True)
class MessageSource:
    """A message that an answer stands in."""

    message_id: str
    sent: datetime | None
    sender: str
    subject: str

    @property
    def id(self) -> str:
        return self.message_id

    @property
    def shown(self) -> str:
        """In a line."""
        sent = f"{self.sent:%Y-%m-%d} " if self.sent else ""
        return f"{sent}{self.sender}: {self.subject} {self.message_id}"


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A document that an answer stands in."""

    document_id: str
    title: str
    url: str = ""
    """Empty where it has none."""

    @property
    def id(self) -> str:
        return self.document_id

    @property
    def shown(self) -> str:
        """In a line."""
        return " ".join(filter(None, [self.title, self.document_id, self.url]))


Source = MessageSource | DocumentSource
