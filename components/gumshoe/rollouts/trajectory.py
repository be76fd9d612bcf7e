"""What an episode leaves: every token that the policy saw and sampled, and what happened."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from gumshoe.environments.base import Ending, EpisodeState
from gumshoe.errors import UsageError

Origin = Literal["prompt", "sampled", "injected"]
"""Where tokens come from: what an episode begins with, the policy, or the environment."""


class TrajectoryFileError(UsageError):
    """A file of trajectories cannot be read as one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of one origin.

    Invariant: `logprobs` has one number a token where the policy sampled them, and is empty elsewhere.
    """

    origin: Origin
    text: str
    ids: tuple[int, ...] = ()
    """[tokens]; empty where the policy is a chat model."""
    logprobs: tuple[float, ...] = ()
    """[tokens] or []"""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of an episode's requests, added up as an endpoint bills them: what was said before counts in each."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


@dataclass(slots=True)
class Trajectory:
    """One episode of one scenario.

    Invariants: the first segment is the prompt; sampled and injected segments alternate after it; one episode has
    one policy version.
    """

    scenario: str
    """The scenario's id."""
    sample: int
    """Which of the group's episodes this is, from 0."""
    policy: str
    """The version of the policy that sampled every turn."""
    ending: Ending
    detail: str
    """What was wrong with a call that could not be used; empty otherwise."""
    segments: list[Segment]
    record: EpisodeState
    turns: int
    policy_seconds: float
    tool_seconds: float
    usage: TokenUsage | None = None
    """None where an endpoint did not say."""
    tries: int = 1
    """Episodes that it took; those before this one failed for want of infrastructure."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What it was run with, by name: the rollout's seed, its sampling, and the bounds on an episode."""
    rewards: dict[str, float] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        """[tokens]: all that the policy saw and sampled, in order.

        Raises:
            UsageError: a chat model wrote it.
        """
        found = [token for segment in self.segments for token in segment.ids]
        if self.segments and not found:
            raise UsageError(
                "rollouts.no-token-ids",
                f"a trajectory of the chat model {self.policy} has no token ids to train on; use a vllm, transformers "
                "or local policy",
            )
        return found

    @property
    def mask(self) -> list[int]:
        """[tokens]: 1 where the policy sampled, 0 elsewhere."""
        return [int(segment.origin == "sampled") for segment in self.segments for _ in segment.ids]

    @property
    def prompt_tokens(self) -> int:
        """Tokens that the environment gave: the prompt and what was injected."""
        return sum(len(segment.ids) for segment in self.segments if segment.origin != "sampled")

    @property
    def sampled_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments if segment.origin == "sampled")

    def to_json(self) -> str:
        """One line of a file of trajectories."""
        line = json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))
        return line.encode(errors="replace").decode()  # chat models may write halves of code points

    @classmethod
    def from_json(cls, line: str | bytes, where: str) -> "Trajectory":
        """A trajectory from its line.

        Raises:
            TrajectoryFileError: it is not one; `where` names the place.
        """
        try:
            fields: dict[str, Any] = json.loads(line)
            segments = [
                Segment(each["origin"], each["text"], tuple(each["ids"]), tuple(each["logprobs"]))
                for each in fields.pop("segments")
            ]
            record, usage = EpisodeState(**fields.pop("record")), fields.pop("usage", None)
            made = cls(**fields, segments=segments, record=record, usage=TokenUsage(**usage) if usage else None)
            if not isinstance(made.settings, dict):
                raise TypeError("settings must be an object")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TrajectoryFileError(
                "rollouts.invalid-trajectory", f"{where}: not a trajectory: {type(error).__name__}: {error}"
            ) from None
        if made.ending not in get_args(Ending):
            raise TrajectoryFileError("rollouts.invalid-trajectory", f"{where}: unknown ending: {made.ending!r}")
        return made


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one scenario, whole; or none, and why it was dropped."""

    scenario: str
    trajectories: tuple[Trajectory, ...] = ()
    dropped: str = ""
    """The failure that ended its last try; empty where the group is whole."""
