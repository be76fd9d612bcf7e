"""Open what runs episodes with a policy: Gumshoe's own loop, or an agent that calls the policy through the gateway.

The gateway is a higher layer. It is imported by name, and only if an agent is set.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gumshoe.endpoint import openai_client
from gumshoe.errors import UsageError
from gumshoe.inference.policy import Policy, Sampling
from gumshoe.inference.policy_names import KEYWORDS, PolicyName
from gumshoe.inference.vllm_policy import RequestLimits
from gumshoe.installation import install_command
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings, resolve_chat_settings
from gumshoe.rollouts.chat_model import ApiChatModel
from gumshoe.rollouts.chat_policy import ApiChatSession
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeRunner
from gumshoe.rollouts.keyword_searcher import KeywordSearcher
from gumshoe.rollouts.sessions import build_prompts, chat_loop, open_token_policy, token_chat_sessions
from gumshoe.rollouts.trained_agent import warn_if_other_agent

if TYPE_CHECKING:
    from gumshoe.inference.transformers_policy import TransformersPolicy

_RUNNER, _AGENTS = "gumshoe.gateway.agent_runner", "gumshoe.gateway.agents"


def check_agent(agent: AgentSettings) -> None:
    """Check that an agent can be loaded, before a policy is started for it.

    Raises:
        UsageError: if it cannot, or its program does not exist.
    """
    _import_gateway(_AGENTS).load_agent(agent)


def check_policy(name: PolicyName, tokenizer: Path | str | None, agent: AgentSettings | None) -> None:
    """Check that a policy takes the tokenizer and the agent that are given for it, before anything is started.

    Raises:
        UsageError: if it does not, or the agent cannot be loaded.
    """
    if tokenizer is not None and not name.takes_tokenizer:
        raise UsageError(
            "inference.tokenizer-not-accepted", f"a {name.kind} policy does not accept a tokenizer; remove --tokenizer"
        )
    if agent is not None and name.kind in ("chat", KEYWORDS):
        raise UsageError(
            "inference.token-policy-required",
            f"an agent needs a policy with token ids, and {name.version} is a {name.kind} policy; use a tiny, local:, "
            "vllm: or transformers: policy",
        )
    if agent is not None:
        check_agent(agent)


def _import_gateway(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(
            "rollouts.gateway-not-installed",
            f"agents require {error.name}, which is not installed: {install_command(extra='gateway')}",
        ) from None


@asynccontextmanager
async def open_token_runner(
    policy: "Policy | TransformersPolicy",
    chat: ChatFormat,
    sampling: Sampling,
    max_context: int,
    agent: AgentSettings | None = None,
) -> AsyncIterator[EpisodeRunner]:
    """Yield a function that runs episodes with a token policy, while the block runs.

    Raises:
        UsageError: if the agent cannot be loaded.
        UnavailableError: if a server of the agent's tools does not answer.
    """
    if agent is None:
        yield chat_loop(token_chat_sessions(policy, chat, sampling, max_context))
        return
    open_agent_runner = _import_gateway(_RUNNER).open_agent_runner
    async with open_agent_runner(policy, chat, sampling, max_context, agent) as run:
        yield run


@asynccontextmanager
async def open_policy(
    name: PolicyName,
    tokenizer: Path | str | None,
    sampling: Sampling,
    limits: EpisodeLimits,
    requests: RequestLimits | None = None,
    chat_settings: ChatSettings | None = None,
    agent: AgentSettings | None = None,
) -> AsyncIterator[EpisodeRunner]:
    """Yield a function that runs episodes with a policy, while the block runs.

    `requests` limits the requests to vLLM servers. Without `chat_settings`, conversations have the settings that the
    policy was trained with. Without an `agent`, Gumshoe's own loop runs the episodes.

    Raises:
        UsageError: if the policy's name or its tokenizer is wrong, or its chat template cannot be used.
        PolicyError: if its server does not answer.
    """
    check_policy(name, tokenizer, agent)
    if name.kind == KEYWORDS:
        yield chat_loop(lambda environment, _: nullcontext(KeywordSearcher(environment)))
        return
    settings = chat_settings or resolve_chat_settings(None, *name.directories, tokenizer)
    warn_if_other_agent(name.directories, agent)
    if name.kind == "chat":
        async with openai_client(name.urls[0] if name.urls else None) as client:
            model = ApiChatModel(client, name.model, sampling, settings)
            yield chat_loop(lambda environment, _: nullcontext(ApiChatSession(model, *build_prompts(environment))))
        return
    async with open_token_policy(name, tokenizer, limits.max_context, requests, settings) as opened:
        loop = open_token_runner(opened.policy, opened.chat, sampling, limits.max_context, agent)
        async with loop as run:
            yield run
