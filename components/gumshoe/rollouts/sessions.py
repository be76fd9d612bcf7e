"""Open token policies, with vLLM or a model in this process, and chat sessions with them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumshoe.environments.base import Environment
from gumshoe.environments.recorded import use_recorded
from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UsageError
from gumshoe.inference.policy import Policy, Sampling
from gumshoe.inference.policy_names import KEYWORDS, PolicyName, is_tiny, load_tokenizer, start_local_policy
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.installation import install_command
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings, resolve_chat_settings
from gumshoe.rollouts.episode import ChatSession, EpisodeRunner, EpisodeStart, run_episode
from gumshoe.rollouts.token_session import TokenChatSession
from gumshoe.rollouts.trajectory import Trajectory

if TYPE_CHECKING:
    from gumshoe.inference.transformers_policy import TransformersPolicy


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """A policy with token ids in and out, and its chat format."""

    policy: "VLLMPolicy | TransformersPolicy"
    chat: ChatFormat


OpenChatSession = Callable[[Environment, str], AbstractContextManager[ChatSession]]
"""Open a conversation in an environment with its own seed. It ends when the context is left."""


def chat_loop(open_session: OpenChatSession) -> EpisodeRunner:
    """Return a function that runs episodes in which the model calls the tools turn by turn."""

    async def run(start: EpisodeStart) -> Trajectory:
        with open_session(start.environment, start.seed) as session:
            return await run_episode(session, start)

    return run


def env_for_policy(env_factory: EnvFactory, policy: PolicyName, tokenizer: Path | str | None = None) -> EnvFactory:
    """Return the environment that a policy was trained in: the recorded one, or the tiny policy's.

    Otherwise it is the given one. The `tokenizer` of a policy on a server may be the directory of its adapter or model.

    Raises:
        UsageError: if the user has named another environment than the recorded one, or the record cannot be read.
    """
    served = tokenizer if policy.takes_tokenizer else None
    env_factory = use_recorded(env_factory, *policy.directories, served)
    is_tiny_served = served is not None and is_tiny(served)
    return env_factory.for_tiny() if policy.is_tiny or is_tiny_served else env_factory


def load_chat_format(name: PolicyName, tokenizer: Path | str | None, chat_settings: ChatSettings | None) -> ChatFormat:
    """Return the chat format with which `open_token_policy` opens a policy, without its model or server.

    Raises:
        UsageError: if the policy's tokenizer is wrong, or its chat template cannot be used.
    """
    settings = chat_settings or resolve_chat_settings(None, *name.directories, tokenizer)
    place = name.base if name.kind == "local" else tokenizer or name.model
    return ChatFormat(load_tokenizer(place), settings)


@asynccontextmanager
async def open_token_policy(
    name: PolicyName,
    tokenizer: Path | str | None,
    max_context: int,
    requests: RequestLimits | None = None,
    chat_settings: ChatSettings | None = None,
) -> AsyncIterator[TokenPolicy]:
    """Yield a policy with token ids in and out, and its chat format, while the block runs.

    Without `chat_settings`, conversations have the settings that the policy was trained with.

    Raises:
        UsageError: if the policy's name or its tokenizer is wrong, or its chat template cannot be used; or if it is a
            chat model or needs no model.
        PolicyError: if its server does not answer.
    """
    if name.kind in ("chat", KEYWORDS):
        raise UsageError(
            "inference.token-policy-required",
            f"{name.version} has no log-probabilities of given tokens: it is a {name.kind} policy; use a tiny, local:, "
            "vllm: or transformers: policy",
        )
    settings = chat_settings or resolve_chat_settings(None, *name.directories, tokenizer)
    if name.kind == "local":
        async with (
            start_local_policy(name, max_context) as running,
            open_token_policy(running, name.base, max_context, requests, settings) as opened,
        ):
            yield opened
        return
    if tokenizer is None and name.kind == "vllm":
        raise UsageError(
            "inference.tokenizer-required",
            "a vllm policy requires the model's tokenizer; set --tokenizer to its directory or hub name",
        )
    codec = await asyncio.to_thread(load_tokenizer, tokenizer or name.model)
    chat = await asyncio.to_thread(ChatFormat, codec, settings)
    if name.kind == "vllm":
        async with VLLMPolicy(name.urls, name.model, requests) as server_policy:
            await server_policy.check(max_context)
            probe = _build_probe(chat)
            await server_policy.check_vocabulary(codec, chat.decode(probe), chat.stop_ids)
            await server_policy.check_logprobs(probe[: len(probe) // 2], chat.stop_ids)
            yield TokenPolicy(server_policy, chat)
        return
    yield TokenPolicy(_load_local_model(name, codec), chat)


def _load_local_model(name: PolicyName, codec: Any) -> "TransformersPolicy":
    """Load a model into this process, and check that it has all ids of a tokenizer.

    Raises:
        UsageError: if it cannot be loaded, or has fewer ids.
    """
    try:
        from gumshoe.inference.transformers_policy import TransformersPolicy  # takes seconds to import

        local = TransformersPolicy(name.model, name.adapter, version=name.version)
    except ModuleNotFoundError as error:
        raise UsageError(
            "inference.transformers-not-installed",
            f"in-process inference requires {error.name}: {install_command('torch', extra='cpu')}",
        ) from None
    highest = max(codec.get_vocab().values())
    if highest >= local.vocabulary:
        raise UsageError(
            "inference.tokenizer-mismatch",
            f"the tokenizer has ids up to {highest}, but {name.model} has only {local.vocabulary} tokens; use the "
            "model's own tokenizer",
        )
    return local


def token_chat_sessions(
    policy: "Policy | TransformersPolicy", chat: ChatFormat, sampling: Sampling, max_context: int
) -> OpenChatSession:
    """Return a function that opens conversations in token ids with a policy."""

    @contextmanager
    def open_session(environment: Environment, seed: str) -> Iterator[ChatSession]:
        context = policy.open_conversation() if hasattr(policy, "open_conversation") else nullcontext(policy)
        with context as own:
            prompts = build_prompts(environment)
            yield TokenChatSession(own, chat, chat.encode_prompt(*prompts), prompts[-1], sampling, max_context, seed)

    return open_session


def _build_probe(chat: ChatFormat) -> tuple[int, ...]:
    """Return token ids that tell vocabularies apart: words, digits, punctuation and the control tokens of a prompt."""
    prompt = chat.encode_prompt("You answer questions.", "Who paid 1,095 dollars to the harbour, and when?", [])
    return (*prompt.ids, *chat.stop_ids)


def build_prompts(environment: Environment) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the system prompt, the user's message and the schemas of the tools of an episode."""
    return environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas()
