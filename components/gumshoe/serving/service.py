"""Episodes for whoever asks: so many at once, each by one policy, none for longer than it may take."""

import asyncio
import hashlib
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import Tracer

from gumshoe.agent.answer import Answer, Answerer, Step
from gumshoe.agent.ask import LocalModel
from gumshoe.agent.episode import EpisodeLimits
from gumshoe.agent.policies import OpenSpeaker, PolicyName, open_policy
from gumshoe.agent.policy import PolicyError, Sampling
from gumshoe.agent.threads import ToolThreads
from gumshoe.agent.trajectory import Trajectory
from gumshoe.agent.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.errors import GumshoeError
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.telemetry import Metrics

_LOOK = 5.0  # seconds between two looks at a model
_LOOKS = 5.0  # seconds that one may take

_log = logging.getLogger(__name__)


class BusyError(Exception):
    """As many requests wait as may."""


class NotReadyError(Exception):
    """The model is not there, or not yet; the message says why."""


class TooSlowError(Exception):
    """There was no answer within the deadline."""


@dataclass(slots=True)
class Candidate:
    """One of the policies in service."""

    name: PolicyName
    share: float
    speak: OpenSpeaker | None = None
    trouble: str = "it is not opened yet"
    """Why it cannot answer; empty where it can."""


Served = Callable[[Scenario, Trajectory], object]
"""Told of each episode that ended by itself."""


@dataclass(slots=True)
class AnswerService:
    """Answers questions with the policies in service. Use it as an async context manager, by `serving`.

    Invariants: an episode has one policy; one session has the same, as long as it is in service; no more than
    `limits.concurrency` episodes run at once, and no more than `limits.queue` wait.
    """

    settings: ServeSettings
    index: MailIndex
    metrics: Metrics
    tracer: Tracer
    threads: ToolThreads
    served: Served
    candidates: list[Candidate]
    _slots: asyncio.Semaphore = field(init=False)
    _waiting: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.settings.limits.concurrency)

    @property
    def trouble(self) -> str:
        """Why questions cannot be answered; empty where they can. A canary that is not there is none: the policy beside
        it answers for it."""
        first = self.candidates[0]
        return f"{first.name.version}: {first.trouble}" if first.trouble else ""

    async def answer(self, scenario: Scenario, session: str | None, tell: Callable[[Step], object]) -> Answer:
        """Run an episode of a question, whose asker may read its inbox.

        Raises:
            BusyError, TooSlowError, NotReadyError: it was not answered.
            PolicyError, ToolFailedError: the model or a tool failed.
        """
        limits = self.settings.limits
        if self._waiting >= limits.queue and self._slots.locked():
            self.metrics.refused.labels("busy").inc()
            raise BusyError
        try:
            async with asyncio.timeout(limits.deadline):
                return await self._in_turn(scenario, session, tell)
        except TimeoutError:
            self.metrics.model_errors.labels("too slow").inc()
            raise TooSlowError(f"there was no answer within {limits.deadline:g} seconds") from None
        except PolicyError as error:
            self.metrics.model_errors.labels("failed").inc()
            _log.warning("the model failed: %s", error)
            raise

    async def _in_turn(self, scenario: Scenario, session: str | None, tell: Callable[[Step], object]) -> Answer:
        began = time.monotonic()
        self._waiting += 1
        self.metrics.waiting.set(self._waiting)
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
            self.metrics.waiting.set(self._waiting)
        self.metrics.phases.labels("waiting").observe(time.monotonic() - began)
        try:
            with self.metrics.running.track_inprogress(), self.tracer.start_as_current_span("episode") as span:
                chosen = self._chosen(session)
                if chosen.speak is None:
                    self.metrics.model_errors.labels("not ready").inc()
                    raise NotReadyError(chosen.trouble)
                model = self.settings.model
                answerer = Answerer(self.index, EpisodeLimits(model.max_turns, model.max_context), self.threads)

                def noted(step: Step) -> None:
                    what = "called" if step.result is None else "returned"
                    span.add_event(what, {"turn": step.turn, "tool": step.tool})
                    tell(step)

                answer, trajectory = await answerer.answer(scenario, chosen.speak, secrets.token_hex(8), noted)
                span.set_attributes({"policy": answer.policy, "turns": answer.turns, "success": answer.success})
        finally:
            self._slots.release()
        self.metrics.episode(answer, trajectory)
        self.served(scenario, trajectory)
        return answer

    def _chosen(self, session: str | None) -> Candidate:
        """By weight: always the same for one session, as long as that is there."""
        drawn = random.random() if session is None else _fraction(session)  # noqa: S311 - nothing secret
        first, *others = self.candidates
        return next((each for each in others if drawn < each.share and not each.trouble), first)


def _fraction(session: str) -> float:
    """A number in [0, 1) that a session always has."""
    return int.from_bytes(hashlib.sha256(session.encode(errors="replace")).digest()[:8]) / 2**64


@asynccontextmanager
async def serving(
    settings: ServeSettings, index: MailIndex, metrics: Metrics, tracer: Tracer, served: Served
) -> AsyncIterator[AnswerService]:
    """A service, whose policies are looked at again and again as long as the block runs.

    A policy of this machine is there before the block begins; vLLM servers elsewhere may come later.

    Raises:
        UsageError, PolicyError: a policy of this machine cannot be had.
    """
    model = settings.model
    async with AsyncExitStack() as held, ToolThreads() as threads:
        if model.policy:
            name = PolicyName.parse(model.policy)
        else:
            name = LocalModel(model.adapter, settings.store, model.base).found(held.enter_context(ExitStack()))
        share = model.canary_percent / 100 if model.canary else 0.0
        candidates = [Candidate(name, 1 - share)]
        if model.canary:
            candidates.append(Candidate(PolicyName(name.kind, model.canary, name.urls), share))
        service = AnswerService(settings, index, metrics, tracer, threads, served, candidates)
        keepers = []
        for each in candidates:
            metrics.policy.labels(each.name.version).set(each.share)
            if name.kind != "vllm":
                each.speak = await held.enter_async_context(_opened(each.name, settings))
                each.trouble = ""
                continue
            keepers.append(asyncio.create_task(_kept_open(each, settings, held)))
        try:
            yield service
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)


def _opened(name: PolicyName, settings: ServeSettings) -> AbstractAsyncContextManager[OpenSpeaker]:
    model, limits = settings.model, settings.limits
    requests = RequestLimits(deadline=limits.deadline, connect=_LOOKS, attempts=2, backoff=1, patience=_LOOKS)
    sampling = Sampling(model.temperature, max_tokens=model.max_tokens)
    return open_policy(name, model.tokenizer, sampling, EpisodeLimits(model.max_turns, model.max_context), requests)


async def _kept_open(candidate: Candidate, settings: ServeSettings, held: AsyncExitStack) -> None:
    """Open a policy of vLLM servers as soon as they are there, and see again and again whether they have it still."""
    quick = RequestLimits(deadline=_LOOKS, connect=_LOOKS, attempts=1, patience=0)
    async with VLLMPolicy(candidate.name.urls, candidate.name.model, quick) as looked_at:
        while True:
            before = candidate.trouble
            try:
                await looked_at.check(settings.model.max_context)
                if candidate.speak is None:
                    candidate.speak = await held.enter_async_context(_opened(candidate.name, settings))
                candidate.trouble = ""
            except GumshoeError as error:
                candidate.trouble = str(error)
            if candidate.trouble != before:
                _log.warning("%s: %s", candidate.name.version, candidate.trouble or "ready")
            await asyncio.sleep(_LOOK if candidate.speak else 1)
