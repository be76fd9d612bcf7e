"""Trajectory of an episode: every token that the policy received and sampled, and a record of what happened."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from gumshoe.environments.base import Ending, EpisodeState
from gumshoe.errors import UsageError

Origin = Literal["prompt", "sampled", "injected"]
"""Origin of tokens: the initial prompt, the policy, or the environment (injected tool results)."""


class TrajectoryFileError(UsageError):
    """Report that a file of trajectories cannot be read or continued."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one origin.

    Invariant: `logprobs` has one number per token if the policy sampled them, and is empty otherwise.
    """

    origin: Origin
    text: str
    ids: tuple[int, ...] = ()
    """[tokens]; empty if the policy is a chat model."""
    logprobs: tuple[float, ...] = ()
    """[tokens] or []"""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of an episode's requests, as an endpoint bills them: each request counts the whole conversation so far."""

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
    """Number of the episode in its group, from 0."""
    policy: str
    """Version of the policy that sampled every turn."""
    ending: Ending
    detail: str
    """Error of an unusable call; empty otherwise."""
    segments: list[Segment]
    record: EpisodeState
    turns: int
    policy_seconds: float
    tool_seconds: float
    usage: TokenUsage | None = None
    """None if an endpoint does not report it."""
    tries: int = 1
    """Number of attempts; earlier ones failed because of infrastructure."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rollout, by name: seed, sampling, episode limits, environment and index."""
    rewards: dict[str, float] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        """All token ids that the policy received and sampled, in order [tokens].

        Raises:
            UsageError: if a chat model wrote the trajectory.
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
        """1 for sampled tokens, 0 for all others [tokens]."""
        return [int(segment.origin == "sampled") for segment in self.segments for _ in segment.ids]

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens from the environment: the prompt and injected results."""
        return sum(len(segment.ids) for segment in self.segments if segment.origin != "sampled")

    @property
    def sampled_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments if segment.origin == "sampled")

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
            fields: dict[str, Any] = json.loads(line)
            segments = [
                Segment(each["origin"], each["text"], tuple(each["ids"]), tuple(each["logprobs"]))
                for each in fields.pop("segments")
            ]
            record, usage = EpisodeState(**fields.pop("record")), fields.pop("usage", None)
            result = cls(**fields, segments=segments, record=record, usage=TokenUsage(**usage) if usage else None)
            if not isinstance(result.settings, dict):
                raise TypeError("settings must be an object")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TrajectoryFileError(
                "rollouts.invalid-trajectory", f"{where}: not a trajectory: {type(error).__name__}: {error}"
            ) from None
        if result.ending not in get_args(Ending):
            raise TrajectoryFileError("rollouts.invalid-trajectory", f"{where}: unknown ending: {result.ending!r}")
        return result


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one scenario, or none if the group was dropped."""

    scenario: str
    trajectories: tuple[Trajectory, ...] = ()
    dropped: str = ""
    """Error of its last attempt; empty if the group is complete."""
