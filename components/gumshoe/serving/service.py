"""Episodes for whoever asks: so many at once, each by one policy, none for longer than it may take."""

import asyncio
import hashlib
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from opentelemetry.trace import Tracer
from prometheus_client import Gauge

from gumshoe.endpoint import openai_client
from gumshoe.environments.base import Environment
from gumshoe.environments.registry import EnvFactory
from gumshoe.environments.tools import Call
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.inference.policy import PolicyError, Sampling
from gumshoe.inference.policy_names import PolicyName, is_tiny, load_tokenizer, start_local_policy
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.rewards import best_of_n
from gumshoe.rewards.best_of_n import ChoiceSettings, LateError, Selector
from gumshoe.rollouts.answer import Answer, Answerer, AnswerStep
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.rollouts.chat_policy import check_chat
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.rollouts.sessions import OpenChatSession, open_policy
from gumshoe.rollouts.tool_threads import ToolFailedError, ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.ask import LocalModel
from gumshoe.serving.errors import BusyError, ModelNotReadyError, TooSlowError
from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.telemetry import Metrics, span_of

_LOOK = 5.0  # seconds between two looks at a model
_LOOKS = 5.0  # seconds that one may take
_SAMPLING, _CHOOSING = 0.75, 0.9  # of the deadline: samples that still run are given up then, and so is a judge

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServedPolicy:
    """One of the policies in service."""

    name: PolicyName
    share: float
    speak: OpenChatSession | None = None
    trouble: str = "not opened yet"
    """Why it cannot answer; empty where it can."""


@dataclass(slots=True)
class ConcurrencyLimiter:
    """Room for so many at once, and for so many that wait until one of them has ended."""

    at_once: int
    queue: int
    waits: Gauge
    """How many wait, for whoever watches."""
    _free: asyncio.Semaphore = field(init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Of who takes places: two that each had half of what they need would wait for each other."""
    _left: int = field(init=False)
    _waiting: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.at_once)
        self._left = self.at_once

    @asynccontextmanager
    async def taken(self, count: int = 1) -> AsyncIterator[Callable[[], None]]:
        """So many of them together, as long as the block runs; what it is given gives one back before that.

        Raises:
            BusyError: as many wait as may.
        """
        if self._waiting >= self.queue and (self._turn.locked() or self._left < count):
            raise BusyError
        held = 0

        def give_back() -> None:
            nonlocal held
            if held:
                held -= 1
                self._left += 1
                self._free.release()

        try:
            self._waiting += 1
            try:
                with self.waits.track_inprogress():
                    async with self._turn:
                        while held < count:
                            await self._free.acquire()
                            held += 1
                            self._left -= 1
            finally:
                self._waiting -= 1
            yield give_back
        finally:
            while held:
                give_back()


Served = Callable[[Scenario, Trajectory], object]
"""Told of each episode that ended by itself."""


@dataclass(slots=True)
class AnswerService:
    """Answers questions with the policies in service. Use it as an async context manager, by `serving`.

    Invariants: an episode has one policy, and so have all samples of a question; one session has the same, as long as
    it is in service; no more than `limits.concurrency` episodes run at once, of whichever questions, and no more than
    `limits.queue` questions wait. The same holds for single calls of a tool.
    """

    settings: ServeSettings
    world: EnvFactory
    metrics: Metrics
    tracer: Tracer
    threads: ToolThreads
    served: Served
    candidates: list[ServedPolicy]
    chooser: Selector | None = None
    """Where a question has several samples."""
    choice: ChoiceSettings | None = field(init=False)
    _episodes: ConcurrencyLimiter = field(init=False)
    _calls: ConcurrencyLimiter = field(init=False)

    def __post_init__(self) -> None:
        limits = self.settings.limits
        self.choice = self.settings.model.choice
        self._episodes, self._calls = (
            ConcurrencyLimiter(limits.concurrency, limits.queue, self.metrics.waiting.labels(what))
            for what in ("episode", "call")
        )

    @property
    def trouble(self) -> str:
        """Why questions cannot be answered; empty where they can. A canary that is not there is none: the policy beside
        it answers for it."""
        first = self.candidates[0]
        return f"{first.name.version}: {first.trouble}" if first.trouble else ""

    async def answer(self, scenario: Scenario, session: str | None, tell: Callable[[AnswerStep], object]) -> Answer:
        """Run an episode of a question, whose asker may read what it is about.

        Raises:
            BusyError, TooSlowError, NotReadyError: it was not answered.
            PolicyError, ToolFailedError: the model or a tool failed.
        """
        try:
            return await self._in_time(self._in_turn(scenario, session, tell))
        except BusyError:
            self.metrics.refused.labels("busy").inc()
            raise
        except TooSlowError:
            self.metrics.model_errors.labels("too slow").inc()
            raise
        except ModelNotReadyError:
            self.metrics.model_errors.labels("not ready").inc()
            raise
        except (PolicyError, UsageError) as error:  # the latter where a chat model's server takes the key no longer
            self.metrics.model_errors.labels("failed").inc()
            failure = error
            if not isinstance(failure, PolicyError):
                failure = PolicyError(error.code, "the model rejected the request", str(error))
            said = failure.message if self.settings.log_questions else failure.plain
            _log.warning("the model failed: %s [%s]", said, failure.code)
            raise failure from None

    async def call(self, scenario: Scenario, call: Call) -> str:
        """What one call of a tool gives for whoever may read what the scenario is about.

        Raises:
            BusyError, TooSlowError: it was not carried out.
            ToolError, BadArgumentsError: it cannot be, as it was put.
            ToolFailedError: the tool failed.
        """
        environment = self.world.for_calls().new_environment(scenario, 1)
        return await self._in_time(self._carried_out(environment, call))

    async def missing(self, scenario: Scenario) -> list[str]:
        """Those of a scenario's sources that are not there: that its inbox did not hold on its day."""
        look = self.world.find_source
        found = [await self.threads.run("sources", look, scenario, each) for each in scenario.sources]
        return [name for name, each in zip(scenario.sources, found, strict=True) if each is None]

    async def _carried_out(self, environment: Environment, call: Call) -> str:
        async with self._calls.taken():
            return await self.threads.run(call.name, environment.toolbox.run, call)

    async def _in_time(self, work: Awaitable[T]) -> T:
        deadline = self.settings.limits.deadline
        try:
            async with asyncio.timeout(deadline):
                return await work
        except TimeoutError:
            raise TooSlowError(f"No answer within {deadline:g} seconds.") from None

    async def _in_turn(self, scenario: Scenario, session: str | None, tell: Callable[[AnswerStep], object]) -> Answer:
        began = time.monotonic()
        choice = self.choice
        async with self._episodes.taken(choice.samples if choice else 1) as give_back:
            self.metrics.phases.labels("waiting").observe(time.monotonic() - began)
            chosen = self._chosen(session)
            if chosen.speak is None:
                raise ModelNotReadyError(chosen.trouble)
            speak, seed = chosen.speak, secrets.token_hex(8)
            if choice is None or self.chooser is None:
                answer, _ = await self._episode(scenario, speak, seed, 0, tell)
                return answer

            async def run(sample: int) -> tuple[Answer, Trajectory]:
                try:
                    return await self._episode(scenario, speak, seed, sample, lambda _: None)
                finally:
                    give_back()

            answer = await self._sampled(scenario, run, choice, self.chooser, time.monotonic() - began)
        for step in answer.steps:
            tell(step)
        return answer

    async def _sampled(
        self, scenario: Scenario, run: best_of_n.RunSample, choice: ChoiceSettings, chooser: Selector, waited: float
    ) -> Answer:
        """Several samples of a question, and one of them."""
        deadline = self.settings.limits.deadline
        found = await best_of_n.answer_with_samples(
            run,
            choice,
            chooser,
            (scenario.question, scenario.query_date),
            patience=max(0.0, _SAMPLING * deadline - waited),
            judge_patience=max(0.0, _CHOOSING * deadline - waited),
        )
        self.metrics.chosen(choice.choose if found.how == "chosen" else found.how, found.answer.cost)
        for failure in found.failures:
            if not isinstance(failure, ToolFailedError):
                self.metrics.model_errors.labels("too slow" if isinstance(failure, LateError) else "failed").inc()
        if found.failures:
            first = found.failures[0]
            said = str(first) if self.settings.log_questions else getattr(first, "plain", type(first).__name__)
            failed = len(found.failures)
            _log.warning("%s of %s samples failed and are left out: %s [%s]", failed, choice.samples, said, first.code)
        if found.trouble:
            said = found.trouble if self.settings.log_questions else "what it said is not logged"
            _log.warning("%s chose no sample; using the first one: %s", choice.by, said)
        return found.answer

    async def _episode(
        self, scenario: Scenario, speak: OpenChatSession, seed: str, sample: int, tell: Callable[[AnswerStep], object]
    ) -> tuple[Answer, Trajectory]:
        """One episode of a question, counted."""
        with self.metrics.running.track_inprogress(), span_of(self.tracer, "episode") as span:
            answerer = Answerer(self.world, _episode_limits(self.settings), self.threads)

            def noted(step: AnswerStep) -> None:
                what = "called" if step.result is None else "returned"
                span.add_event(what, {"turn": step.turn, "tool": step.tool})
                tell(step)

            answer, trajectory = await answerer.answer(scenario, speak, seed, noted, sample)
            span.set_attributes({"policy": answer.policy, "turns": answer.turns, "success": answer.success})
        self.metrics.episode(answer, trajectory)
        self.served(scenario, trajectory)
        return answer, trajectory

    def _chosen(self, session: str | None) -> ServedPolicy:
        """By weight: always the same for one session, as long as that is there."""
        drawn = random.random() if session is None else _fraction(session)  # noqa: S311 - nothing secret
        first, *others = self.candidates
        return next((each for each in others if drawn < each.share and not each.trouble), first)


def _fraction(session: str) -> float:
    """A number in [0, 1) that a session always has."""
    return int.from_bytes(hashlib.sha256(session.encode(errors="replace")).digest()[:8]) / 2**64


@asynccontextmanager
async def serving(
    settings: ServeSettings, world: EnvFactory, metrics: Metrics, tracer: Tracer, served: Served
) -> AsyncIterator[AnswerService]:
    """A service, whose policies are looked at again and again as long as the block runs.

    A policy of this machine is there before the block begins; vLLM servers elsewhere may come later.

    Raises:
        UsageError, UnavailableError: a policy of this machine, or a tokenizer, cannot be had.
    """
    model = settings.model
    async with AsyncExitStack() as held, ToolThreads() as threads:
        name, tokenizer = await _model(settings, held)
        if tokenizer is not None and is_tiny(tokenizer):
            world = world.for_tiny()
        share = model.canary_percent / 100 if model.canary else 0.0
        candidates = [ServedPolicy(name, 1 - share)]
        if model.canary:
            candidates.append(ServedPolicy(PolicyName(name.kind, model.canary, name.urls), share))
        chooser = model.choice.opened() if model.choice else None
        if chooser is not None:
            held.push_async_callback(chooser.aclose)
        service = AnswerService(settings, world, metrics, tracer, threads, served, candidates, chooser)
        keepers = []
        for each in candidates:
            metrics.policy.labels(each.name.version).set(each.share)
            if not (model.policy or "").startswith("vllm:"):
                each.speak = await held.enter_async_context(_opened(each.name, tokenizer, settings))
                each.trouble = ""
            keepers.append(asyncio.create_task(_kept_open(each, tokenizer, settings, held)))
        try:
            yield service
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)


async def _model(settings: ServeSettings, held: AsyncExitStack) -> tuple[PolicyName, Path | str | None]:
    """The policy, which is started where it is one of this machine, and where its tokenizer is."""
    model = settings.model
    if model.policy:
        name = PolicyName.parse(model.policy)
    else:
        name = LocalModel(model.adapter, settings.store, model.base).found(held.enter_context(ExitStack()))
    if name.kind == "local":
        return await held.enter_async_context(
            start_local_policy(name, _episode_limits(settings).max_context)
        ), name.base
    if name.kind == "vllm":
        if model.tokenizer is None:
            raise UsageError(
                "inference.tokenizer-required", f"{model.policy} needs its model's tokenizer: add --tokenizer"
            )
        await asyncio.to_thread(lambda: ChatFormat(load_tokenizer(str(model.tokenizer))))  # or it is told of too late
    return name, model.tokenizer


def _episode_limits(settings: ServeSettings) -> EpisodeLimits:
    return EpisodeLimits(settings.model.max_turns, settings.model.max_context)


def _opened(
    name: PolicyName, tokenizer: Path | str | None, settings: ServeSettings
) -> AbstractAsyncContextManager[OpenChatSession]:
    model, limits = settings.model, settings.limits
    requests = RequestLimits(deadline=limits.deadline, connect=_LOOKS, attempts=2, backoff=1, patience=_LOOKS)
    sampling = Sampling(model.temperature, max_tokens=model.max_tokens)
    return open_policy(name, tokenizer, sampling, _episode_limits(settings), requests)


async def _kept_open(
    candidate: ServedPolicy, tokenizer: Path | str | None, settings: ServeSettings, held: AsyncExitStack
) -> None:
    """Open a policy as soon as it is there, and see again and again whether it still is."""
    async with _looker(candidate.name, settings) as look:
        while True:
            before = candidate.trouble
            try:
                await look()
                if candidate.speak is None:
                    candidate.speak = await held.enter_async_context(_opened(candidate.name, tokenizer, settings))
                candidate.trouble = ""
            except GumshoeError as error:
                candidate.trouble = error.message_with_code
            except Exception as error:  # noqa: BLE001 - or nobody would look again
                _log.exception("cannot check %s", candidate.name.version)
                candidate.trouble = f"the check failed: {type(error).__name__}"
            if candidate.trouble != before:
                _log.warning("%s: %s", candidate.name.version, candidate.trouble or "ready")
            await asyncio.sleep(_LOOK if candidate.speak else 1)


@asynccontextmanager
async def _looker(name: PolicyName, settings: ServeSettings) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """What sees whether a policy is there, and raises a GumshoeError where it is not."""
    if name.kind == "vllm":
        quick = RequestLimits(deadline=_LOOKS, connect=_LOOKS, attempts=1, patience=0)
        async with VLLMPolicy(name.urls, name.model, quick) as served:
            yield lambda: served.check(settings.model.max_context)
    elif name.kind == "chat":
        async with openai_client(name.urls[0] if name.urls else None, timeout=_LOOKS, retries=0) as client:
            yield lambda: check_chat(client, name.model)
    else:
        yield lambda: asyncio.sleep(0)  # in this process: as long as this runs
