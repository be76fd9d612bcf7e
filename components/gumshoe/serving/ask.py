"""Answer one question, with an agent on this machine or by asking an agent server."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter

from gumshoe.artifacts.model_card import BASE_RECORD
from gumshoe.artifacts.store import Store
from gumshoe.client import AgentClient
from gumshoe.environments.registry import EnvironmentSettings, open_env
from gumshoe.errors import UsageError
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rewards import best_of_n
from gumshoe.rewards.best_of_n import ChoiceSettings
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.answer import Answer, Answerer
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings, resolve_chat_settings
from gumshoe.rollouts.episode_runners import open_policy
from gumshoe.rollouts.policy_limits import METADATA, PolicyLimits
from gumshoe.rollouts.sessions import env_for_policy
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario

_TIMEOUT = 300.0  # seconds for an agent server's answer
_ANSWER = TypeAdapter(Answer)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model to run on this machine."""

    adapter: str | None
    """Version in the store, `latest`, or a directory; None for the base model alone."""
    store: str | None
    model: str | None
    """Base model; None for the adapter's own, or `tiny` without an adapter."""
    chat: ChatSettings | None = None
    """None for the settings that the adapter was trained with, or else the defaults."""
    agent: AgentSettings | None = None
    """The agent that runs the episodes; None for Gumshoe's own loop."""
    max_turns: int | None = None
    """Maximum number of turns; None for that of the adapter's training, or else the default."""
    max_tokens: int | None = None
    """Maximum number of tokens per turn; None as above."""

    def resolve(self, stack: ExitStack) -> PolicyName:
        """Return the policy. A fetched adapter exists until the stack is closed.

        Raises:
            UsageError: if the adapter or its base model is not specified completely.
            NotFoundError: if the store has no such adapter.
        """
        if self.adapter is None:
            return PolicyName.parse(f"local:{self.model or 'tiny'}")
        place, version = Path(self.adapter), self.adapter
        if not place.is_dir():
            if self.store is None:
                raise UsageError(
                    "serving.store-missing",
                    f"{self.adapter} is not a directory; for a published adapter, set --store",
                )
            here = Path(stack.enter_context(TemporaryDirectory(prefix="gumshoe-adapter-"))) / "adapter"
            fetched = Store(self.store).fetch(f"adapters/{self.adapter}", here)
            place, version = fetched.directory, fetched.manifest.version
        model = self.model or _read_base_model(place)
        return replace(PolicyName.parse(f"local:{model}#{place}"), version_override=f"{model}#{version}")


@dataclass(frozen=True, slots=True)
class Question:
    """A question to answer on this machine."""

    index: Path
    inbox: str | None
    day: date | None
    """None for today (mail)."""
    text: str
    environment: EnvironmentSettings | None = None
    """None for the environment that fits the index."""
    collections: tuple[str, ...] | None = None
    """Collections of documents to read, or patterns. Needed if the index has collections."""


async def answer_locally(
    question: Question,
    model: LocalModel,
    temperature: float,
    choice: ChoiceSettings | None = None,
) -> Answer:
    """Run one episode, or several from which `choice` selects one, at the temperature of that choice.

    Raises:
        UsageError: if the question, the model, the agent or the environment is invalid.
        NotFoundError: if the store has no such adapter.
        UnavailableError: if the model does not answer, or the agent fails in a way that says nothing about the model.
    """
    with ExitStack() as stack:
        env_factory = open_env(question.index, question.environment)
        if env_factory.has_inboxes and question.inbox is None:
            raise UsageError("serving.no-inbox", "questions about mail need --inbox ADDRESS")
        if env_factory.has_collections and question.collections is None:
            raise UsageError(
                "documents.collections-required",
                "the documents of this index belong to collections; name those to read, e.g. --collections hr, or "
                "'*' for all",
            )
        day = env_factory.default_query_date(question.day)
        scenario = Scenario.from_question(question.text, question.inbox, day, question.collections)
        # Before a model is fetched or started, so that the turns of its training are not known yet.
        env_factory.check([scenario], model.max_turns or PolicyLimits().max_turns)
        policy = model.resolve(stack)
        chat = resolve_chat_settings(model.chat, *policy.directories)
        limits = PolicyLimits.of(policy.directories, max_turns=model.max_turns, max_tokens=model.max_tokens)
        sampling = Sampling(choice.temperature if choice else temperature, max_tokens=limits.max_tokens)
        env_factory = env_for_policy(env_factory, policy)
        await asyncio.to_thread(env_factory.get_ready)
        async with AsyncExitStack() as async_stack:
            selector = choice.open_selector() if choice else None
            if selector is not None:
                async_stack.push_async_callback(selector.aclose)
            runner = await async_stack.enter_async_context(
                open_policy(policy, None, sampling, limits.episode, chat_settings=chat, agent=model.agent)
            )
            threads = await async_stack.enter_async_context(ToolThreads())
            answerer = Answerer(env_factory, limits.episode, threads, shows_agent_errors=True)

            async def run(sample: int) -> tuple[Answer, Trajectory]:
                return await answerer.answer(scenario, runner, sample=sample)

            if choice is None or selector is None:
                answer, _ = await run(0)
                return answer
            sampled = await best_of_n.answer_with_samples(
                run, choice, selector, (scenario.question, scenario.query_date)
            )
    if sampled.judge_error:
        _log.warning("no sample was chosen; using the first one: %s", sampled.judge_error)
    return sampled.answer


def ask_server(url: str, key: str | None, question: str, inbox: str | None, day: date | None) -> Answer:
    """Ask an agent server and return its answer.

    Raises:
        UsageError: if the server rejects the question or the key.
        UnavailableError: if the server or its model does not answer.
    """
    with AgentClient(url, key, timeout=_TIMEOUT, retries=0) as client:
        return _ANSWER.validate_python(client.ask(question, inbox=inbox, date=day).model_dump())


def _read_base_model(adapter: Path) -> str:
    """Return the base model that an adapter's record of it names, or else the metadata of its run."""
    damaged = (OSError, ValueError, KeyError, TypeError)
    with suppress(*damaged):
        return str(json.loads((adapter / BASE_RECORD).read_bytes())["name"])
    with suppress(*damaged):
        return str(json.loads((adapter / METADATA).read_bytes())["settings"]["model"]["name"])
    raise UsageError("serving.base-model-unknown", f"{adapter} does not name its base model; set --model")
