"""Who produces the tokens: token ids in, sampled token ids with log-probabilities out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gumshoe.errors import UnavailableError

HIGHEST_TEMPERATURE = 2.0
"""vLLM, as the API that it speaks, takes no higher one."""


class PolicyError(UnavailableError):
    """A policy gave no answer, or none that can be used: a failure of infrastructure, never of the model.

    `plain` is the message without what a server said, which may quote what it was asked.
    """

    def __init__(self, code: str, plain: str, said: str = "") -> None:
        super().__init__(code, f"{plain} ({said})" if said else plain)
        self.args = (code, plain, said)  # what pickle passes to this method
        self.plain = plain


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled. All of it is sent with each request, whatever a model's own defaults are."""

    temperature: float = 1.0
    """0 is greedy; at most `HIGHEST_TEMPERATURE`."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is no limit."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512
    """Most tokens in one turn."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled turn.

    Invariants: as many log-probabilities as ids; `stop` means that the last id is one of the stop ids.
    """

    ids: tuple[int, ...]
    """[tokens]"""
    logprobs: tuple[float, ...]
    """[tokens], natural, of the distribution that was sampled from."""
    finish: Literal["stop", "length"]
    version: str
    """Which policy this was: the adapter's or the model's name."""


class Policy(Protocol):
    """Samples one turn."""

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Continue `prompt_ids` [tokens] up to a stop id, or to `sampling.max_tokens`.

        Raises:
            PolicyError: there is no answer that can be used.
        """
        ...


class ScriptedPolicy:
    """Says what it is told to, for tests.

    `script` is given the text of all that came before and the seed of the turn, and returns the text of the turn.
    """

    def __init__(self, tokenizer: "_Codec", script: "Script", version: str = "scripted") -> None:
        self._tokenizer, self._script, self._version = tokenizer, script, version

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """The script's next turn, cut at `max_tokens`."""
        text = self._script(str(self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)), seed)
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), stop_ids[0]]
        finish: Literal["stop", "length"] = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        return Completion(tuple(ids), (0.0,) * len(ids), finish, self._version)


class Script(Protocol):
    """A policy's text: what to say after a prompt."""

    def __call__(self, prompt: str, seed: int) -> str: ...


class _Codec(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...
