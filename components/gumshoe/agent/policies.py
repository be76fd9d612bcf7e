"""A policy in one word: `vllm:URL[#adapter]`, `chat:MODEL[@URL]`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gumshoe.agent.chat_format import ChatFormat
from gumshoe.agent.chat_policy import ChatSpeaker, chat_client
from gumshoe.agent.environment import Environment
from gumshoe.agent.episode import EpisodeLimits, Speaker, TokenSpeaker
from gumshoe.agent.policy import Sampling
from gumshoe.agent.vllm_policy import VLLMPolicy
from gumshoe.errors import UsageError

FORMS = "vllm:URL[,URL...][#ADAPTER] (with --tokenizer) or chat:MODEL[@URL]"

OpenSpeaker = Callable[[Environment, str], Speaker]
"""Begins a conversation in an environment, with a seed of its own."""


@dataclass(frozen=True, slots=True)
class PolicyName:
    """A policy as it is named on the command line."""

    kind: str
    model: str
    urls: tuple[str, ...]

    @classmethod
    def parse(cls, word: str) -> "PolicyName":
        """
        Raises:
            UsageError: it is of no known form.
        """
        kind, _, rest = word.partition(":")
        if kind == "vllm" and rest:
            places, _, adapter = rest.partition("#")
            urls = tuple(place.strip() for place in places.split(","))
            if all(map(_is_address, urls)):
                return cls(kind, adapter or "base", urls)
        if kind == "chat" and rest:
            model, _, url = rest.partition("@")
            if model and (not url or _is_address(url)):
                return cls(kind, model, (url,) if url else ())
        raise UsageError(f"{word!r} names no policy; write {FORMS}")


@asynccontextmanager
async def open_policy(
    name: PolicyName, tokenizer: Path | str | None, sampling: Sampling, limits: EpisodeLimits
) -> AsyncIterator[OpenSpeaker]:
    """What begins conversations with a policy, as long as the block runs.

    Raises:
        UsageError: it cannot be had as it was named.
        ChatTemplateError: the tokenizer's template is not fit for it.
        PolicyError: its server does not answer.
    """
    if name.kind == "chat":
        async with chat_client(name.urls[0] if name.urls else None) as client:
            yield lambda environment, _: ChatSpeaker(client, name.model, *_told(environment), sampling)
        return
    if tokenizer is None:
        raise UsageError("token ids need the model's tokenizer; say where it is with --tokenizer")
    chat = ChatFormat(load_tokenizer(tokenizer))
    async with VLLMPolicy(name.urls, name.model) as policy:
        await policy.check()

        def speak(environment: Environment, seed: str) -> Speaker:
            prompt = chat.prompt_ids(*_told(environment))
            return TokenSpeaker(policy, chat, prompt, sampling, limits.max_context, seed)

        yield speak


def load_tokenizer(place: Path | str) -> Any:
    """A model's tokenizer, from its directory or the hub.

    Raises:
        UsageError: there is none.
    """
    from transformers import AutoTokenizer  # takes seconds to import

    try:
        return AutoTokenizer.from_pretrained(str(place))
    except Exception as error:  # noqa: BLE001 - what is wrong with its files comes as KeyError and others
        raise UsageError(f"there is no tokenizer at {place} ({error}); name a model's directory or its name") from None


def _is_address(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in {"http", "https"} and bool(url.host) and not any(map(str.isspace, text))


def _told(environment: Environment) -> tuple[str, str, list[dict[str, Any]]]:
    return environment.system_prompt(), environment.scenario.question, environment.toolbox.schemas()
