"""One question, answered by an agent on this machine, or by an agent server."""

import asyncio
import json
import logging
import re
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from pydantic import TypeAdapter, ValidationError

from gumshoe.artifacts.store import Store
from gumshoe.environments.registry import EnvironmentSettings, open_env
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rewards import best_of_n
from gumshoe.rewards.best_of_n import ChoiceSettings
from gumshoe.rollouts.answer import Answer, Answerer
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.rollouts.sessions import env_for_policy, open_policy
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario

PROBLEM_TYPE = "urn:gumshoe:error:"
"""What the type of a problem begins with, before its code."""
_METADATA = "metadata.json"  # of an adapter: what made it
_PATIENCE = 300.0  # seconds for an agent server's answer
_BUSY = 429
_CODE = re.compile(re.escape(PROBLEM_TYPE) + r"([a-z][a-z-]*\.[a-z0-9][a-z0-9-]*)")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model to be run on this machine."""

    adapter: str | None
    """A version in the store, `latest`, or a directory; None for the base model alone."""
    store: str | None
    model: str | None
    """The base model; None for the adapter's own, and `tiny` without one."""

    def found(self, held: ExitStack) -> PolicyName:
        """The policy; an adapter of the store is here as long as the stack is held.

        Raises:
            UsageError: it cannot be had as it was put.
            NotFoundError: the store has no such adapter.
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
            here = Path(held.enter_context(TemporaryDirectory(prefix="gumshoe-adapter-"))) / "adapter"
            fetched = Store(self.store).fetch(f"adapters/{self.adapter}", here)
            place, version = fetched.directory, fetched.manifest.version
        model = self.model or _base_of(place)
        return replace(PolicyName.parse(f"local:{model}#{place}"), called=f"{model}#{version}")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and of whose mail, where it is about mail."""

    index: Path
    inbox: str | None
    day: date | None
    """Today, of mail, where none is given."""
    text: str
    environment: EnvironmentSettings | None = None
    """As the index tells, where none is named."""


async def answered(
    question: Question,
    model: LocalModel,
    sampling: Sampling,
    limits: EpisodeLimits,
    choice: ChoiceSettings | None = None,
) -> Answer:
    """Run one episode, or several of which one is chosen, at the temperature of that choice.

    Raises:
        UsageError: it cannot be asked as it was put.
        NotFoundError: the store has no such adapter.
        PolicyError: the model does not answer.
    """
    if choice is not None:
        sampling = replace(sampling, temperature=choice.temperature)
    with ExitStack() as held:
        world = open_env(question.index, question.environment)
        scenario = Scenario.asked(question.text, question.inbox, world.asked_on(question.day))
        world.check([scenario], limits.max_turns)  # before a model is fetched or started
        policy = model.found(held)
        world = env_for_policy(world, policy)
        await asyncio.to_thread(world.get_ready)
        async with AsyncExitStack() as opened:
            chooser = choice.opened() if choice else None
            if chooser is not None:
                opened.push_async_callback(chooser.aclose)
            speak = await opened.enter_async_context(open_policy(policy, None, sampling, limits))
            threads = await opened.enter_async_context(ToolThreads())
            answerer = Answerer(world, limits, threads)

            async def run(sample: int) -> tuple[Answer, Trajectory]:
                return await answerer.answer(scenario, speak, sample=sample)

            if choice is None or chooser is None:
                answer, _ = await run(0)
                return answer
            sampled = await best_of_n.answer_with_samples(
                run, choice, chooser, (scenario.question, scenario.query_date)
            )
    if sampled.trouble:
        _log.warning("no sample was chosen; using the first one: %s", sampled.trouble)
    return sampled.answer


def served(url: str, key: str | None, question: str, inbox: str | None, day: date | None) -> Answer:
    """The answer of an agent server.

    Raises:
        UsageError: it does not take the question, or the key.
        UnavailableError: it does not answer, or has no model that does.
    """
    whose = {} if inbox is None else {"inbox_address": inbox}
    when = {} if day is None else {"query_date": str(day)}
    asked = {"question": question, **whose, **when, "steps": True}
    try:
        response = httpx.post(
            f"{url.rstrip('/')}/invoke",
            json={"parameters": asked},
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=_PATIENCE,
        )
        if response.is_success:
            return TypeAdapter(Answer).validate_json(response.content)
        told = response.json()
        said = f"{url} answered {response.status_code}: {told['title']}: {told['detail']}"
        found = _CODE.fullmatch(str(told.get("type")))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UsageError("serving.invalid-url", f"--url {url} is not valid: {error}; write http://HOST:PORT") from None
    except httpx.HTTPError as error:
        raise UnavailableError(
            "serving.unreachable", f"{url} does not answer: {type(error).__name__}: {error}; check that it is running"
        ) from None
    except (ValidationError, ValueError, KeyError, TypeError):
        raise UsageError("serving.not-an-agent-server", f"{url} is not an agent server; check the address") from None
    code = found[1] if found else "serving.request-rejected"
    if response.is_server_error or response.status_code == _BUSY:
        raise UnavailableError(code, said)
    raise UsageError(code, said)


def _base_of(adapter: Path) -> str:
    """The base model that an adapter is for, as its own files say."""
    try:
        return str(json.loads((adapter / _METADATA).read_bytes())["settings"]["model"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError("serving.base-model-unknown", f"{adapter} does not name its base model; set --model") from None
