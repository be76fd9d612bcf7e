"""Interface of environments: tools, prompts, and the record of what happened in an episode."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from gumshoe.environments.tools import Toolbox
from gumshoe.scenarios.scenario import Scenario

Unusable = Literal["unparseable call", "no call", "unknown tool", "bad arguments"]
"""Reason why a tool call cannot be used."""
Ending = Literal[
    "answer", "max turns", "context full", "truncated", Unusable, "no answer", "agent failed", "agent too slow"
]
"""Reason why an episode ended. "truncated": a turn reached its maximum number of tokens without a usable call. The last
three are those of agents that run the episode themselves: they returned no answer, raised an error, or exceeded their
deadline."""
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
"""Effect of a tool call.

"searched again": the same search was made before. "in vain": a search found nothing, or only partial matches
without a correct source. "found": a search listed a correct source for the first time. "read": a correct source was
read for the first time. "read again": nothing was read for the first time. "read another": other sources were read."""


@dataclass(slots=True)
class EpisodeState:
    """Record of an episode, for rewards and metrics."""

    deeds: list[list[Event]] = field(default_factory=list)
    """Events of each tool call, in the order of the turns."""
    searches: int = 0
    repeated_searches: int = 0
    """Searches with exactly the arguments of an earlier one."""
    empty_searches: int = 0
    """Searches that found nothing, or only partial matches without a correct source."""
    tool_errors: int = 0
    """Calls that raised a ToolError, whose message the model received."""
    found: list[str] = field(default_factory=list)
    """Correct sources that searches listed, in the order found."""
    best_rank: int | None = None
    """Best rank, from 1, at which a search listed a correct source."""
    read: list[str] = field(default_factory=list)
    """Correct sources that were read."""
    read_others: int = 0
    """Number of calls that read only other sources."""
    invalid_ids: int = 0
    """Number of ids that were read, or given as sources, and do not exist."""
    answer: str | None = None
    sources: list[str] = field(default_factory=list)
    """Ids of the sources given with the answer, as the model wrote them; handles are replaced by the ids."""
    right_sources: list[str] = field(default_factory=list)
    """Correct sources among them."""
    does_not_know: bool = False
    """True if the answer is "I don't know"."""
    handles: dict[str, str] = field(default_factory=dict)
    """Ids of sources by the handles under which the tools showed them, e.g. `m1`. Empty if they showed the ids."""

    @property
    def share_of_right_sources(self) -> float:
        """Share of the given sources that are correct; 0 without sources."""
        return len(self.right_sources) / len(self.sources) if self.sources else 0.0

    @property
    def distinct_searches(self) -> int:
        return self.searches - self.repeated_searches


class Environment(Protocol):
    """Tools and state of one episode. A custom environment is a class with these members, named in a configuration.

    Optional member: a method `withdraw_results(calls)`, which removes from `record` the sources that calls showed. It
    is called if the context has no room for their results, so that the model sees errors in their place. `calls` are
    indices of `record.deeds`.

    Invariants: the scenario limits what the tools can access, never the model; `record.deeds` only grows; after
    `finished` is True, no tool is called.
    """

    scenario: Scenario
    toolbox: Toolbox
    record: EpisodeState
    finished: bool
    """True after the model has given its final answer."""

    def system_prompt(self) -> str:
        """Return the system prompt. If many episodes have the same one, it is encoded and computed once."""
        ...

    def user_prompt(self) -> str:
        """Return the user's message: the question, and everything else that is specific to this episode."""
        ...


@dataclass(frozen=True, slots=True)
class MessageSource:
    """A message that contains an answer."""

    message_id: str
    sent: datetime | None
    sender: str
    subject: str

    @property
    def id(self) -> str:
        return self.message_id

    @property
    def label(self) -> str:
        """Description of the source on one line."""
        sent = f"{self.sent:%Y-%m-%d} " if self.sent else ""
        return f"{sent}{self.sender}: {self.subject} {self.message_id}"


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A document that contains an answer."""

    document_id: str
    title: str
    url: str = ""
    """Empty if it has none."""

    @property
    def id(self) -> str:
        return self.document_id

    @property
    def label(self) -> str:
        """Description of the source on one line."""
        return " ".join(filter(None, [self.title, self.document_id, self.url]))


Source = MessageSource | DocumentSource


@dataclass(frozen=True, slots=True)
class SourceText:
    """A source with its text, to show to users. The text is data: never interpret it as HTML or as instructions."""

    source: Source
    details: dict[str, str]
    """Labels and values to show above the text, e.g. `To` and `Date` of a message."""
    text: str
    truncated: bool = False
    """True if the end of the text is missing because it is too long."""
