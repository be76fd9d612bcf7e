"""Trajectory of an episode: every token that the policy received and sampled, and a record of what happened."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from gumshoe.environments.base import Ending, Environment, EpisodeState, Unusable
from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.inference.policy import PolicyError
from gumshoe.json_text import load_json
from gumshoe.rollouts.call_forms import UnusableCallError, find_form

Origin = Literal["prompt", "sampled", "injected"]
"""Origin of tokens: the initial prompt, the policy, or the environment (injected tool results)."""

AGENT_FAILURES = ("agent failed", "agent too slow")
"""Endings of episodes that an agent did not bring to an end itself."""
SplitReason = Literal["reasoning dropped", "history edited", "other opening", "sampled again"]
"""Reason why a segment begins: earlier reasoning was left out; the agent changed earlier messages; it sent other
instructions, tools or a question of its own, e.g. for a sub-agent; or it asked for another turn after the same
messages."""


class TrajectoryFileError(UsageError):
    """Report that a file of trajectories cannot be read or continued."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one origin.

    Invariant: `logprobs` has one number per token if the policy sampled them, and is empty otherwise.
    """

    origin: Origin
    text: str
    ids: tuple[int, ...] = ()
    """[tokens]; empty if the policy is a chat model."""
    logprobs: tuple[float, ...] = ()
    """[tokens] or []"""
    calls: tuple[Call, ...] = ()
    """Usable calls in a sampled turn."""
    has_reasoning: bool = False
    """True if a sampled turn begins with reasoning that is not empty."""
    is_continued: bool = False
    """True if the sampled turn goes on after it: its reasoning was ended by the thinking budget."""
    segment: int = 0
    """Number of the segment that it belongs to."""
    version: str = ""
    """Policy that sampled it, if that is not the policy of the trajectory."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A sequence of tokens that begins like an earlier one, because the history was rewritten.

    The policy saw the first `shared` tokens of the segment `parent`, then `context`, then the spans of this segment.
    The first segment of an episode, number 0, begins with the prompt and has no record.
    """

    parent: int
    shared: int
    """Number of tokens shared with the parent."""
    context: tuple[int, ...] = ()
    """[tokens]: history after the shared tokens, e.g. earlier turns without their reasoning. It is not trained on."""
    reason: SplitReason = "reasoning dropped"


@dataclass(frozen=True, slots=True)
class Mistake:
    """A turn without a usable call that was answered with an error, so that the episode went on."""

    turn: int
    """Number of the turn, from 1."""
    kind: Unusable
    detail: str


@dataclass(frozen=True, slots=True)
class ForeignCall:
    """A call of a tool that is not one of the environment's but of an MCP server that the agent's settings name."""

    call: Call
    seconds: float
    is_error: bool
    """True if the tool reported an error, whose message the model received."""
    characters: int
    """Number of characters of the whole result, of which the model may have received only the beginning."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of an episode's requests, as an endpoint bills them: each request counts the whole conversation so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Everything that the policy saw and sampled in one segment."""

    ids: list[int]
    """[tokens]"""
    mask: list[int]
    """[tokens]: 1 for the tokens that were sampled in this segment, 0 for all others."""


@dataclass(slots=True)
class Trajectory:
    """One episode of one scenario.

    Invariants: the first span is the prompt, and spans are in the order of the conversation; one episode has one
    policy version, unless spans of later turns name another; each sampled token is in one span, whatever the number of
    segments; segments are numbered in the order of their first spans.
    """

    scenario: str
    """The scenario's id."""
    sample: int
    """Number of the episode in its group, from 0."""
    policy: str
    """Version of the policy that sampled every turn, or the first one if turns may have different policies."""
    ending: Ending
    detail: str
    """Error of an unusable call; empty otherwise."""
    spans: list[Span]
    """The prompt, and then sampled turns and injected results."""
    record: EpisodeState
    turns: int
    policy_seconds: float
    tool_seconds: float
    usage: TokenUsage | None = None
    """None if an endpoint does not report it."""
    tries: int = 1
    """Number of attempts; earlier ones failed because of infrastructure."""
    segments: list[Segment] = field(default_factory=list)
    """Segments after the first one: 1, 2 and so on."""
    deeds: list[int] = field(default_factory=list)
    """Number of `record.deeds` of each turn [turns]; empty if each turn has one."""
    mistakes: list[Mistake] = field(default_factory=list)
    """Turns without a usable call that were answered, in order."""
    foreign_calls: list[ForeignCall] = field(default_factory=list)
    """Calls of tools that are not the environment's, in the order in which they ended."""
    untrained: list[int] = field(default_factory=list)
    """Numbers of the turns, from 1, that are not to be imitated although they are correct calls, e.g. a search that is
    meant to fail."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rollout, by name: seed, sampling, episode limits, environment and index."""
    rewards: dict[str, float] = field(default_factory=dict)

    @classmethod
    def begin(cls, environment: Environment, sample: int) -> "Trajectory":
        """Return the trajectory of an episode before its first turn."""
        scenario, record = environment.scenario, environment.record
        return cls(scenario.id, sample, "", "max turns", "", [], record, 0, 0.0, 0.0, TokenUsage())

    def name_policy(self, version: str, spans: Sequence[Span], *, may_change: bool) -> Sequence[Span]:
        """Return the spans of a turn that a policy sampled, with its version if it is not that of the first turn.

        Raises:
            PolicyError: it is another policy than that of the first turn, and it may not change.
        """
        self.policy = self.policy or version
        if version == self.policy:
            return spans
        if not may_change:
            raise PolicyError(
                "rollouts.policy-changed", f"the policy changed during an episode: from {self.policy} to {version}"
            )
        return [replace(each, version=version) if each.origin == "sampled" else each for each in spans]

    @property
    def versions(self) -> set[str]:
        """Versions of all policies that sampled turns."""
        return {self.policy} | {span.version for span in self.spans if span.version}

    @property
    def ids(self) -> list[int]:
        """The token ids of all spans, in order [tokens]: what the policy saw, if the episode has one segment.

        Raises:
            UsageError: if a chat model wrote the trajectory.
        """
        self.check_token_ids()
        return [token for span in self.spans for token in span.ids]

    def check_token_ids(self) -> None:
        """Check that the trajectory has token ids.

        Raises:
            UsageError: if a chat model wrote it.
        """
        if self.spans and not any(span.ids for span in self.spans):
            raise UsageError(
                "rollouts.no-token-ids",
                f"a trajectory of the chat model {self.policy} has no token ids to train on; use a vllm, transformers "
                "or local policy",
            )

    @property
    def sequences(self) -> list[TokenSequence]:
        """The tokens of each segment, from the beginning of the prompt [segments].

        Raises:
            UsageError: if a chat model wrote the trajectory.
        """
        self.check_token_ids()
        found = [TokenSequence([], [])] if self.spans else []
        for span in self.spans:
            if span.segment == len(found):
                segment = self.segments[span.segment - 1]
                begin = [*found[segment.parent].ids[: segment.shared], *segment.context]
                found.append(TokenSequence(begin, [0] * len(begin)))
            found[span.segment].ids.extend(span.ids)
            found[span.segment].mask.extend([int(span.origin == "sampled")] * len(span.ids))
        return found

    @property
    def mask(self) -> list[int]:
        """1 for sampled tokens, 0 for all others [tokens]."""
        return [int(span.origin == "sampled") for span in self.spans for _ in span.ids]

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens from the environment: the prompt and injected results."""
        return sum(len(span.ids) for span in self.spans if span.origin != "sampled")

    @property
    def sampled_tokens(self) -> int:
        return sum(len(span.ids) for span in self.spans if span.origin == "sampled")

    def to_json(self) -> str:
        """Return the trajectory as one line of JSON."""
        line = json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))
        return line.encode(errors="replace").decode()  # chat models may write lone surrogates

    @classmethod
    def from_json(cls, line: str | bytes, where: str) -> "Trajectory":
        """Read a trajectory from a line of JSON.

        Raises:
            TrajectoryFileError: if it is not a trajectory. The message begins with `where`.
        """
        try:
            fields: dict[str, Any] = load_json(line, is_recorded=True)
            if "spans" not in fields and "mistakes" not in fields:
                fields["spans"] = fields.pop("segments")  # the name of spans in version 0.1
            spans = [_read_span(each) for each in fields.pop("spans")]
            mistakes = [Mistake(**each) for each in fields.pop("mistakes", [])]
            segments = [Segment(**{**each, "context": tuple(each["context"])}) for each in fields.pop("segments", [])]
            foreign = [
                ForeignCall(**{**each, "call": Call(**each["call"])}) for each in fields.pop("foreign_calls", [])
            ]
            record, usage = EpisodeState(**fields.pop("record")), fields.pop("usage", None)
            result = cls(
                **fields,
                spans=spans,
                segments=segments,
                mistakes=mistakes,
                foreign_calls=foreign,
                record=record,
                usage=TokenUsage(**usage) if usage else None,
            )
            if not isinstance(result.settings, dict):
                raise TypeError("settings must be an object")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TrajectoryFileError(
                "rollouts.invalid-trajectory", f"{where}: not a trajectory: {type(error).__name__}: {error}"
            ) from None
        if result.ending not in get_args(Ending):
            raise TrajectoryFileError("rollouts.invalid-trajectory", f"{where}: unknown ending: {result.ending!r}")
        return result


def _read_span(fields: dict[str, Any]) -> Span:
    calls = fields.pop("calls", None)
    span = Span(**{**fields, "ids": tuple(fields["ids"]), "logprobs": tuple(fields["logprobs"])})
    if calls is not None:
        return replace(span, calls=tuple(Call(**each) for each in calls))
    if span.origin != "sampled":
        return span
    try:
        found = tuple(find_form("hermes").parse(span.text, []))
    except UnusableCallError:
        found = ()
    return replace(span, calls=found, has_reasoning=span.text.lstrip().startswith("<think>"))


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one scenario, or none if the group was dropped."""

    scenario: str
    trajectories: tuple[Trajectory, ...] = ()
    dropped: str = ""
    """Error of its last attempt; empty if the group is complete."""
