"""A sampler whose policy is a script, for episodes without a model."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from gumshoe.inference.policy import Completion, Sampling, Script, ScriptedPolicy
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeRunner
from gumshoe.rollouts.sessions import chat_loop, token_chat_sessions


class WaitingPolicy(ScriptedPolicy):
    """Wait before each turn, which is then sampled by the script."""

    def __init__(self, tokenizer: Any, script: Script, version: str, wait: Any) -> None:
        super().__init__(tokenizer, script, version)
        self._wait, self._codec = wait, tokenizer

    @contextmanager
    def open_conversation(self) -> Iterator["WaitingPolicy"]:
        yield self

    async def sample(self, prompt_ids: Sequence[int], *arguments: Any, **named: Any) -> Completion:
        if self._wait is not None:
            await self._wait(self._codec.decode(list(prompt_ids), skip_special_tokens=False))
        return await super().sample(prompt_ids, *arguments, **named)


@dataclass(slots=True)
class ScriptedSampler:
    """Sample with `script`, under the name `version`, or `answers_as` if the policy answers under another one."""

    tokenizer: Any
    script: Script
    version: str = "scripted"
    servers: int = 1
    answers_as: str | None = None
    opened: list[str] = field(default_factory=list)
    """Versions of the policies that are open."""
    retired: list[set[str]] = field(default_factory=list)
    wait: Callable[[str], Awaitable[None]] | None = None
    """Waits before the turn after a prompt."""

    def publish(self, model: object, version: str, is_stopping: object) -> None:  # noqa: ARG002
        self.version = version

    def retire(self, in_use: Collection[str]) -> None:
        self.retired.append(set(in_use))

    @asynccontextmanager
    async def open_policy(self) -> AsyncIterator[ScriptedPolicy]:
        version = self.version
        self.opened.append(version)
        yield WaitingPolicy(self.tokenizer, self.script, self.answers_as or version, self.wait)
        self.opened.remove(version)

    @asynccontextmanager
    async def open_runner(self, policy: Any, sampling: Sampling) -> AsyncIterator[EpisodeRunner]:
        yield chat_loop(token_chat_sessions(policy, ChatFormat(self.tokenizer), sampling, 4096))
