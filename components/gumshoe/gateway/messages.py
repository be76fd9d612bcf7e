"""Conversations as agents send them, whatever API they use, and the answers of the policy."""

from dataclasses import dataclass
from typing import Any, Literal

from gumshoe.environments.tools import Call

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "tool_calls", "length"]
"""Reason why a turn ended: by itself, with calls of tools, or because it reached its maximum number of tokens."""


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """A message of a conversation. Reasoning that an agent sends back is not part of it."""

    role: Role
    text: str = ""
    calls: tuple[Call, ...] = ()
    """Calls of an assistant's message, each with its id."""
    call_id: str = ""
    """Id of the call whose result a tool's message is."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for one or more turns."""

    messages: tuple[AgentMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """Schemas of functions, as `{"type": "function", "function": {...}}`."""
    samples: int = 1
    """Number of turns to sample."""
    max_tokens: int | None = None
    """Maximum number of tokens of a turn; None for the maximum of the run."""
    stops: tuple[str, ...] = ()
    """Texts that end the text of a turn. They are not part of it."""
    json_schema: dict[str, Any] | None = None
    """Schema of the JSON that a turn must be, or None."""
    allows_calls: bool = True
    """False if calls of tools are returned as text. The model sees the tools anyway."""
    logprobs: bool = False
    """True if the response has the sampled tokens and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class SampledMessage:
    """A turn of the policy, as an agent receives it."""

    text: str
    calls: tuple[Call, ...]
    """Calls with ids that are unique in the episode."""
    reasoning: str
    finish: Finish
    tokens: tuple[str, ...] = ()
    """Text of each sampled token [tokens], if they were asked for."""
    logprobs: tuple[float, ...] = ()
    """[tokens]"""


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """The answer to a request."""

    policy: str
    """Version of the policy that sampled it."""
    messages: tuple[SampledMessage, ...]
    """[samples]"""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    id: str = ""
    """Unique in the episode."""
