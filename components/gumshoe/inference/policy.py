"""The interface of token policies: token ids in, sampled token ids with log-probabilities out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gumshoe.errors import UnavailableError, UsageError
from gumshoe.redaction import redact

MAX_TEMPERATURE = 2.0
"""Highest temperature that vLLM and the OpenAI API accept."""


class PolicyError(UnavailableError):
    """Report that a policy gave no usable answer. It is a failure of infrastructure, not of the model.

    `public_message` is the message without the server's own text, which may quote the request.
    """

    def __init__(self, code: str, public_message: str, server_message: str = "") -> None:
        public_message, server_message = redact(public_message), redact(server_message)
        message = f"{public_message} ({server_message})" if server_message else public_message
        super().__init__(code, message)
        self.args = (code, public_message, server_message)  # what pickle passes to this method
        self.public_message = public_message


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. All of them are sent with each request, so that defaults of the model have no effect."""

    temperature: float = 1.0
    """0 is greedy; at most `MAX_TEMPERATURE`."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512
    """Maximum number of tokens per turn."""
    json_schema: str | None = None
    """Schema, as JSON, of the JSON that a turn must be. Only vLLM servers can do it. The log-probabilities are those
    with this constraint."""
    json_alternatives: tuple[str, ...] = ()
    """Texts with which a turn may begin instead of that JSON, e.g. the tag of a tool call. Then it is free."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled turn.

    Invariants: there are as many log-probabilities as ids; if `finish` is `stop`, the last id is a stop id.
    """

    ids: tuple[int, ...]
    """[tokens]"""
    logprobs: tuple[float, ...]
    """[tokens], natural logarithms, of the distribution that was sampled from."""
    finish: Literal["stop", "length"]
    version: str
    """Policy that sampled it: the name of the adapter or the model."""


class Policy(Protocol):
    """Sample turns, given token ids."""

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Continue `prompt_ids` [tokens] up to a stop id or `sampling.max_tokens`.

        Raises:
            PolicyError: if there is no usable answer.
        """
        ...


class ContinuationScorer(Protocol):
    """Return the log-probabilities of given tokens. Chat models cannot do it."""

    async def score(self, prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """Return the log-probability of each continuation [tokens] after a prompt [tokens], in nats.

        Raises:
            PolicyError: if there is no usable answer.
            ValueError: if the prompt or a continuation is empty.
        """
        ...


def refuse_schema(sampling: Sampling) -> None:
    """Refuse a JSON schema, for policies that cannot follow one.

    Raises:
        UsageError: if there is one.
    """
    if sampling.json_schema is not None:
        raise UsageError(
            "inference.schema-unsupported", "this policy cannot follow a JSON schema; use one on a vLLM server"
        )


def check_not_empty(prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> None:
    """Check that a prompt and its continuations have tokens.

    Raises:
        ValueError: if one is empty.
    """
    if not prompt_ids or not continuations or not all(continuations):
        raise ValueError("a prompt and its continuations must have at least one token each")


class ScriptedPolicy:
    """Return scripted turns, for tests.

    `script` is called with the text of the whole prompt and the turn's seed, and returns the text of the turn.
    """

    def __init__(self, tokenizer: "_Codec", script: "Script", version: str = "scripted") -> None:
        self._tokenizer, self._script, self._version = tokenizer, script, version

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Return the script's next turn, truncated to `max_tokens`."""
        refuse_schema(sampling)
        text = self._script(str(self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)), seed)
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), stop_ids[0]]
        finish: Literal["stop", "length"] = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        return Completion(tuple(ids), (0.0,) * len(ids), finish, self._version)


class Script(Protocol):
    """Return the text that follows a prompt."""

    def __call__(self, prompt: str, seed: int) -> str: ...


class _Codec(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...
