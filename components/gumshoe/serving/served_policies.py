"""Open the policies in service, check regularly that they are available, and choose one for each question."""

import asyncio
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from gumshoe.endpoint import openai_client
from gumshoe.environments.recorded import has_environment, use_recorded
from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import PolicyName, is_tiny, load_tokenizer, start_local_policy
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.inference.vllm_server import BASE
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings, resolve_chat_settings
from gumshoe.rollouts.chat_model import check_chat_server
from gumshoe.rollouts.episode import EpisodeRunner, EpisodeStart
from gumshoe.rollouts.episode_runners import open_policy
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.adapter_binding import AdapterBoundError, admits, bind_policies, check_fallback
from gumshoe.serving.ask import LocalModel
from gumshoe.serving.audit_log import audit_environments
from gumshoe.serving.settings import ServedModelSettings, ServeSettings

_CHECK_INTERVAL = 5.0  # seconds between two checks of a model
_CHECK_TIMEOUT = 5.0  # seconds

_log = logging.getLogger(__name__)


class PolicySource(NamedTuple):
    """A policy in service as any process can open it."""

    name: PolicyName
    tokenizer: Path | str | None
    """Path or name of its tokenizer; None for chat models."""
    directories: tuple[Path, ...]
    """Directories on this machine with the records of its training, first that of its adapter."""


@dataclass(slots=True)
class ServedPolicy:
    """A policy in service."""

    name: PolicyName
    share: float
    run: EpisodeRunner | None = None
    """None until it is opened."""
    problem: str = "not opened yet"
    """Why it cannot answer; empty if it can."""
    tokenizer: Path | str | None = None
    directories: tuple[Path, ...] = ()
    bound_to: tuple[Lineage, ...] = ()
    """Records of its training data, if it only answers questions about that; empty if it answers all."""
    without_adapter: PolicyName | None = None
    """Its base model on the same server or in the same process; None if it has no adapter."""

    @property
    def source(self) -> PolicySource:
        """The policy as any process can open it."""
        return PolicySource(self.name, self.tokenizer, self.directories)


def fit_environment(env_factory: EnvFactory, main: PolicySource) -> EnvFactory:
    """Return the environment that the main policy was trained in, or else the given one.

    Raises:
        UsageError: if the user has named another environment than the recorded one.
    """
    env_factory = use_recorded(env_factory, *main.directories)
    return env_factory.for_tiny() if main.tokenizer is not None and is_tiny(main.tokenizer) else env_factory


async def prepare_environment(env_factory: EnvFactory, main: PolicySource) -> EnvFactory:
    """Return the environment of `fit_environment`, ready for questions, whose tool calls write audit lines.

    Raises:
        UsageError: if the user has named another environment than the recorded one.
        GumshoeError: if it does not get ready.
    """
    fitted = fit_environment(env_factory, main)
    await asyncio.to_thread(fitted.get_ready)  # it may embed a text, which runs its own event loop
    return audit_environments(fitted)


def check_canary(env_factory: EnvFactory, main: PolicySource, canary: PolicySource, chat: ChatSettings | None) -> None:
    """Check that the canary was trained in the environment and with the chat settings of the main policy.

    Both have the same ones. `env_factory` and `chat` are those that the user has set. A canary without a record of its
    environment has that of the main policy.

    Raises:
        UsageError: if it was trained differently.
    """
    chats = [resolve_chat_settings(chat, *each.directories) for each in (main, canary)]
    what = ["the chat settings"] * (chats[0] != chats[1])
    if any(map(has_environment, canary.directories)):
        fitted = [fit_environment(env_factory, each) for each in (main, canary)]
        if (fitted[0].name, fitted[0].arguments) != (fitted[1].name, fitted[1].arguments):
            what.append("the environment")
    if what:
        raise UsageError(
            "serving.canary-trained-differently",
            f"the canary {canary.name.version} was not trained with {' and '.join(what)} of {main.name.version}, but "
            "both are served with the same; leave the canary out, and serve its adapter alone",
        )


def choose_policy(
    policies: Sequence[ServedPolicy], session: str | None, scenario: Scenario, fallback: ServedPolicy | None = None
) -> ServedPolicy:
    """Choose a policy at random by its share. A session always gets the same one, as long as it is available.

    Policies that are bound to other inboxes are not chosen. If the main policy is, the fallback answers in its place.

    Raises:
        AdapterBoundError: if no policy may answer.
    """
    main, *others = policies
    drawn = random.random() if session is None else _fraction(session)  # noqa: S311 - nothing secret
    for each in others:
        if drawn < each.share and not each.problem and admits(each, scenario):
            return each
    if admits(main, scenario):
        return main
    if fallback is None:
        raise AdapterBoundError
    return fallback


def _fraction(session: str) -> float:
    """Return a number in [0, 1) that is fixed for a session."""
    return int.from_bytes(hashlib.sha256(session.encode(errors="replace")).digest()[:8]) / 2**64


class ServedPolicies(NamedTuple):
    """The policies in service."""

    candidates: list[ServedPolicy]
    """The main policy, and the canary if there is one."""
    fallback: ServedPolicy | None
    """The base model, for questions about inboxes that the others are not bound to."""
    settings: ServeSettings
    """Settings with the limits of the main policy's training, as far as the user has set none."""


@asynccontextmanager
async def open_policies(settings: ServeSettings) -> AsyncIterator[ServedPolicies]:
    """Yield the policies in service. They are checked regularly while the block runs.

    A local policy is open when the block begins; remote vLLM servers may become available later.

    Raises:
        UsageError: if a setting is invalid.
        UnavailableError: if a local policy does not start.
    """
    async with AsyncExitStack() as stack:
        main = await _resolve_model(settings, stack)
        limits = settings.model.find_limits(main.directories)
        model = settings.model.model_copy(update=asdict(limits))
        settings = settings.model_copy(update={"model": model})
        if settings.workers and main.name.kind == "transformers":
            raise UsageError(
                "serving.workers-need-model-server",
                f"{main.name.version} runs in the process of the server, and workers is {settings.workers}: each would "
                "load the model; install vLLM, name a server (vllm:URL#ADAPTER), or set workers to 0",
            )
        name, tokenizer = main.name, main.tokenizer
        share = model.canary_percent / 100 if model.canary else 0.0
        main.share = 1 - share
        policies = [main]
        if model.canary:
            canary = PolicyName(name.kind, model.canary, name.urls)
            own = main.directories if model.canary_adapter is None else (model.canary_adapter,)
            policies.append(ServedPolicy(canary, share, tokenizer=tokenizer, directories=own))
        bind_policies(policies if model.bound != "off" else policies[:1], model)
        fallback = await _resolve_fallback(main, model)
        opened = [*policies, *([fallback] if fallback else ())]
        if not (model.policy or "").startswith("vllm:"):
            for each in opened:
                each.run = await _open_runner(each, settings, stack)
                each.problem = ""
        checks = [asyncio.create_task(_keep_open(each, settings, stack)) for each in opened]
        try:
            yield ServedPolicies(policies, fallback, settings)
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)


async def _resolve_model(settings: ServeSettings, stack: AsyncExitStack) -> ServedPolicy:
    """Return the main policy. If it is local, it is started."""
    model = settings.model
    if model.policy:
        name = PolicyName.parse(model.policy)
    else:
        name = LocalModel(model.adapter, settings.store, model.base).resolve(stack.enter_context(ExitStack()))
    if name.kind == "local":
        limits = model.find_limits(name.directories)
        started = await stack.enter_async_context(start_local_policy(name, limits.max_context))
        main = ServedPolicy(started, 1, tokenizer=name.base, directories=name.directories)
        if name.adapter is not None:
            base = name.model if started.kind == "vllm" else started.model
            main.without_adapter = PolicyName(started.kind, base, started.urls)
        return main
    if name.kind == "vllm":
        if model.tokenizer is None:
            raise UsageError(
                "inference.tokenizer-required", f"{model.policy} needs its model's tokenizer: add --tokenizer"
            )
        await asyncio.to_thread(
            lambda: ChatFormat(load_tokenizer(str(model.tokenizer)), resolve_chat_settings(model.chat, model.tokenizer))
        )  # fail now, not with the first question
    served = [Path(model.tokenizer)] if model.tokenizer and name.takes_tokenizer else []
    main = ServedPolicy(name, 1, tokenizer=model.tokenizer, directories=(*name.directories, *served))
    if name.kind == "vllm" and name.model != BASE:
        main.without_adapter = PolicyName("vllm", BASE, name.urls)
    elif name.adapter is not None:
        main.without_adapter = PolicyName(name.kind, name.model)
    return main


async def _resolve_fallback(main: ServedPolicy, model: ServedModelSettings) -> ServedPolicy | None:
    """Return the base model of the main policy, if it answers the callers that the adapter is not bound to.

    Raises:
        UsageError: if there is no adapter, or the base model was trained on mail itself.
    """
    if model.bound != "base":
        return None
    base = main.without_adapter
    if base is None:
        raise UsageError(
            "serving.no-adapter-to-bind",
            f"model.bound is base, but {main.name.version} has no adapter; set model.bound to refuse or off",
        )
    own = [each for each in main.directories if not (each / "adapter_config.json").exists()]
    await asyncio.to_thread(check_fallback, own)
    return ServedPolicy(base, 0, tokenizer=main.tokenizer, directories=main.directories)


def open_served_policy(
    policy: PolicySource, model: ServedModelSettings, deadline: float
) -> AbstractAsyncContextManager[EpisodeRunner]:
    """Return a context that runs episodes with a policy in service. `deadline` of a request is in seconds."""
    requests = RequestLimits(deadline=deadline, connect=_CHECK_TIMEOUT, attempts=2, backoff=1, patience=_CHECK_TIMEOUT)
    sampling = Sampling(model.temperature, max_tokens=model.limits.max_tokens)
    chat = resolve_chat_settings(model.chat, *policy.directories, policy.tokenizer)
    return open_policy(policy.name, policy.tokenizer, sampling, model.limits.episode, requests, chat, model.agent)


async def _open_runner(policy: ServedPolicy, settings: ServeSettings, stack: AsyncExitStack) -> EpisodeRunner:
    """Return what runs the episodes of a policy in this process; with workers, they open it themselves."""
    if settings.workers:
        return _run_in_worker
    opened = open_served_policy(policy.source, settings.model, settings.limits.deadline)
    return await stack.enter_async_context(opened)


async def _run_in_worker(start: EpisodeStart) -> Trajectory:
    """Stand for a policy that worker processes have opened.

    Raises:
        AssertionError: always.
    """
    raise AssertionError(f"an episode of {start.environment.scenario.id} was not sent to a worker")


async def _keep_open(policy: ServedPolicy, settings: ServeSettings, stack: AsyncExitStack) -> None:
    """Open a policy as soon as it is available, and check regularly that it still is."""
    async with _open_check(policy.name, settings) as check:
        while True:
            before = policy.problem
            try:
                await check()
                if policy.run is None:
                    policy.run = await _open_runner(policy, settings, stack)
                policy.problem = ""
            except GumshoeError as error:
                policy.problem = error.message_with_code
            except Exception as error:  # noqa: BLE001 - or the checks would stop
                _log.exception("cannot check %s", policy.name.version)
                policy.problem = f"the check failed: {type(error).__name__}"
            if policy.problem != before:
                _log.warning("%s: %s", policy.name.version, policy.problem or "ready")
            await asyncio.sleep(_CHECK_INTERVAL if policy.run else 1)


@asynccontextmanager
async def _open_check(name: PolicyName, settings: ServeSettings) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Yield a function that checks if a policy is available, and raises a GumshoeError if not."""
    if name.kind == "vllm":
        quick = RequestLimits(deadline=_CHECK_TIMEOUT, connect=_CHECK_TIMEOUT, attempts=1, patience=0)
        async with VLLMPolicy(name.urls, name.model, quick) as policy:
            yield lambda: policy.check(settings.model.limits.max_context)
    elif name.kind == "chat":
        async with openai_client(name.urls[0] if name.urls else None, timeout=_CHECK_TIMEOUT, retries=0) as client:
            yield lambda: check_chat_server(client, name.model)
    else:
        yield lambda: asyncio.sleep(0)  # it runs in this process, so it is available
