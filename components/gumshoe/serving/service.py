"""Answer questions with a limited number of concurrent episodes, one policy per episode, and a deadline per request."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from asgi_correlation_id import correlation_id
from opentelemetry.trace import Tracer

from gumshoe.environments.base import SourceText
from gumshoe.environments.registry import FINAL_ANSWER, EnvFactory
from gumshoe.environments.tools import Call
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.inference.policy import PolicyError
from gumshoe.rewards import best_of_n
from gumshoe.rewards.best_of_n import ChoiceSettings, SampleTimeoutError, Selector
from gumshoe.rollouts.answer import Answer, Answerer, AnswerStep
from gumshoe.rollouts.tool_threads import ToolFailedError, ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.adapter_binding import AdapterBoundError
from gumshoe.serving.audit_log import audited_principal, record_policy
from gumshoe.serving.episode_workers import EpisodeWorkers, open_workers
from gumshoe.serving.errors import DeadlineExceededError, ModelNotReadyError
from gumshoe.serving.fair_limiter import BusyError, FairLimiter
from gumshoe.serving.policy_metrics import AskedQuestion
from gumshoe.serving.served_index import check_served_index
from gumshoe.serving.served_policies import (
    ServedPolicy,
    check_canary,
    choose_policy,
    open_policies,
    prepare_environment,
)
from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.telemetry import JsonFormatter, Metrics, start_span
from gumshoe.serving.usage_budgets import BudgetExhaustedError, UsageBudgets, UsageUnavailableError, meter_usage
from gumshoe.serving.worker_messages import EpisodeJob, WorkerStart

_SAMPLING, _CHOOSING = 0.75, 0.9  # fractions of the deadline after which unfinished samples and judges are cancelled
_MAX_SOURCE_TEXT = 200_000  # characters

T = TypeVar("T")

_log = logging.getLogger(__name__)


EpisodeCallback = Callable[[Scenario, Trajectory], object]
"""Called with each episode that ended normally."""


@dataclass(slots=True)
class AnswerService:
    """Answer questions with the policies in service. Use it as an async context manager, with `open_service`.

    Invariants: an episode, and all samples of a question, use one policy. A session keeps its policy as long as that
    is in service. At most `settings.concurrency` episodes run at once, over all questions, and at most `limits.queue`
    questions wait. Single tool calls have slots and a queue of their own, as many as `limits` says. All are shared
    fairly among callers.
    """

    settings: ServeSettings
    env_factory: EnvFactory
    metrics: Metrics
    tracer: Tracer
    threads: ToolThreads
    on_episode: EpisodeCallback
    candidates: list[ServedPolicy]
    selector: Selector | None = None
    """Set if a question has several samples."""
    fallback: ServedPolicy | None = None
    """The base model, for questions about inboxes that the candidates are not bound to."""
    workers: EpisodeWorkers | None = None
    """Processes that run the episodes; None if this one does."""
    choice: ChoiceSettings | None = field(init=False)
    _budgets: UsageBudgets = field(init=False)
    _episodes: FairLimiter = field(init=False)
    _calls: FairLimiter = field(init=False)
    _tools: frozenset[str] = field(init=False)
    """Names of the environment's tools."""

    def __post_init__(self) -> None:
        limits = self.settings.limits
        self.choice = self.settings.model.choice
        self._budgets = UsageBudgets(limits.tokens_per_day, limits.calls_per_day, limits.usage_file)
        self._episodes, self._calls = (
            FairLimiter(most, limits.queue, self.metrics.waiting.labels(what))
            for what, most in (("episode", self.settings.concurrency), ("call", limits.concurrency))
        )
        self._tools = frozenset({tool.__name__ for tool in self.env_factory.list_tools()} | {FINAL_ANSWER})
        self.metrics.ready.set_function(lambda: float(not self.problem))

    @property
    def problem(self) -> str:
        """Why questions cannot be answered; empty if they can. A missing canary is not a problem: the main policy
        answers in its place.
        """
        needed = [self.candidates[0], *([self.fallback] if self.fallback else ())]
        lost = self.workers.problem if self.workers is not None else ""
        return lost or next((f"{each.name.version}: {each.problem}" for each in needed if each.problem), "")

    def close(self) -> None:
        """Close the file of usage."""
        self._budgets.close()

    async def answer(
        self, scenario: Scenario, session: str | None, on_step: Callable[[AnswerStep], object], caller: str
    ) -> Answer:
        """Answer a question. The caller's access to its inbox must have been checked before.

        `caller` is a name of `name_caller`.

        Raises:
            AdapterBoundError: if no policy in service may answer questions about this inbox.
            BudgetExhaustedError: if the caller's budget of the day is used up.
            BusyError: if the queue is full.
            DeadlineExceededError: if there is no answer within the deadline.
            ModelNotReadyError: if the model is not available.
            PolicyError: if the model fails.
            ToolFailedError: if a tool fails.
            UnavailableError: if something else is not available, e.g. an agent that fails before its first turn.
        """
        asked, measured = AskedQuestion(), self.metrics.policies
        try:
            answer = await self._with_deadline(self._answer_in_turn(scenario, session, on_step, caller, asked))
        except asyncio.CancelledError:  # the client gave up: without these, a slow policy would be measured as quick
            measured.count_question(asked, "cancelled")
            raise
        except DeadlineExceededError:
            self.metrics.model_errors.labels("too slow").inc()
            measured.count_question(asked, "failed")
            raise
        except ModelNotReadyError:
            self.metrics.model_errors.labels("not ready").inc()
            measured.count_question(asked, "failed", is_timed=False)
            raise
        except ToolFailedError:
            measured.count_question(asked, "failed", is_timed=False)
            raise
        except (PolicyError, UsageError) as error:  # UsageError: a chat model's server no longer accepts the key
            self.metrics.model_errors.labels("failed").inc()
            measured.count_question(asked, "failed", is_timed=False)
            failure = error
            if not isinstance(failure, PolicyError):
                failure = PolicyError(error.code, "the model rejected the request", str(error))
            message = failure.message if self.settings.log_questions else failure.public_message
            _log.warning("the model failed: %s [%s]", message, failure.code)
            raise failure from None
        except (BudgetExhaustedError, UsageUnavailableError):  # which say nothing about the policy
            raise
        except UnavailableError as error:  # e.g. an agent that fails before its first turn
            measured.count_question(asked, "failed", is_timed=False)
            _log.warning("a question failed: %s [%s]", self._if_logged(error.message), error.code)
            raise
        except Exception:  # e.g. a defect in an environment; a question that is refused has no policy
            measured.count_question(asked, "failed", is_timed=False)
            raise
        measured.count_question(asked, "answered" if answer.success else "unanswered")
        return answer

    async def call(self, scenario: Scenario, call: Call, caller: str) -> str:
        """Run one tool call and return its result. The caller's access to the scenario's inbox must have been checked.

        Raises:
            BudgetExhaustedError: if the caller's budget of the day is used up.
            BusyError: if the queue is full.
            DeadlineExceededError: if there is no result within the deadline.
            ToolError: if the tool rejects the call.
            BadArgumentsError: if the arguments are invalid.
            ToolFailedError: if the tool fails.
        """
        environment = self.env_factory.for_calls().new_environment(scenario, 1)
        return await self._with_deadline(self._run_tool(caller, call.name, environment.toolbox.run, call))

    async def read_source(self, scenario: Scenario, source_id: str, caller: str) -> SourceText | None:
        """Return a source that the scenario may access, with at most 200,000 characters of its text, or None.

        The caller's access to the scenario's inbox must have been checked.

        Raises:
            BudgetExhaustedError: if the caller's budget of the day is used up.
            BusyError: if the queue is full.
            DeadlineExceededError: if there is no result within the deadline.
            ToolFailedError: if the index does not answer.
        """
        read = self.env_factory.read_source
        found = await self._with_deadline(self._run_tool(caller, "source", read, scenario, source_id))
        if found is None or len(found.text) <= _MAX_SOURCE_TEXT:
            return found
        return replace(found, text=found.text[:_MAX_SOURCE_TEXT], truncated=True)

    async def find_missing_sources(self, scenario: Scenario, caller: str) -> list[str]:
        """Return the sources of a scenario that do not exist in its inbox on its date, or in the documents.

        Raises:
            BudgetExhaustedError: if the caller's budget of the day is used up.
            BusyError: if the queue is full.
            DeadlineExceededError: if there is no result within the deadline.
            ToolFailedError: if the index does not answer.
        """
        find = self.env_factory.find_source

        async def find_all() -> list[str]:
            sources = scenario.sources
            return [each for each in sources if await self._run_tool(caller, "sources", find, scenario, each) is None]

        return await self._with_deadline(find_all())

    async def _run_tool(self, caller: str, name: str, function: Callable[..., T], *arguments: object) -> T:
        """Run a function in a tool's thread, within the limit of concurrent calls and the caller's budget."""
        self._budgets.require_rest(caller, calls=True)
        async with self._calls.acquire(caller):
            self._budgets.take(caller, calls=1)
            return await self.threads.run(name, function, *arguments)

    async def _with_deadline(self, work: Awaitable[T]) -> T:
        """Return the result of a request's work, and count it in the metrics if it is refused.

        Raises:
            DeadlineExceededError: if it takes longer than the deadline.
        """
        deadline = self.settings.limits.deadline
        try:
            async with asyncio.timeout(deadline):
                return await work
        except TimeoutError:
            raise DeadlineExceededError(f"No answer within {deadline:g} seconds.") from None
        except BusyError:
            self.metrics.refused.labels("busy").inc()
            raise
        except BudgetExhaustedError:
            self.metrics.refused.labels("budget").inc()
            raise
        except AdapterBoundError:
            self.metrics.refused.labels("adapter bound").inc()
            raise

    async def _answer_in_turn(
        self,
        scenario: Scenario,
        session: str | None,
        on_step: Callable[[AnswerStep], object],
        caller: str,
        asked: AskedQuestion,
    ) -> Answer:
        """Wait for a free slot, then run the episodes of a question."""
        started = time.monotonic()
        choice = self.choice
        self._budgets.require_rest(caller, tokens=True, calls=True)
        async with self._episodes.acquire(caller, choice.samples if choice else 1) as release_one:
            self.metrics.phases.labels("waiting").observe(time.monotonic() - started)
            policy = choose_policy(self.candidates, session, scenario, self.fallback)
            asked.choose(policy.name.version)
            if policy.run is None:
                raise ModelNotReadyError(policy.problem)
            record_policy(policy.name.version)
            seed = secrets.token_hex(8)
            if choice is None or self.selector is None:
                answer, _ = await self._run_episode(scenario, policy, seed, 0, on_step, caller)
                return answer

            async def run(sample: int) -> tuple[Answer, Trajectory]:
                try:
                    return await self._run_episode(scenario, policy, seed, sample, lambda _: None, caller)
                finally:
                    release_one()

            answer = await self._answer_with_samples(scenario, run, choice, self.selector, time.monotonic() - started)
            if (cost := answer.cost) is not None:
                judge_tokens = cost.judge_prompt_tokens + cost.judge_sampled_tokens
                self._budgets.add(caller, self._budgets.today, tokens=judge_tokens)
        for step in answer.steps:
            on_step(step)
        return answer

    async def _answer_with_samples(
        self, scenario: Scenario, run: best_of_n.RunSample, choice: ChoiceSettings, selector: Selector, waited: float
    ) -> Answer:
        """Run several samples of a question and choose one of their answers."""
        deadline = self.settings.limits.deadline
        found = await best_of_n.answer_with_samples(
            run,
            choice,
            selector,
            (scenario.question, scenario.query_date),
            patience=max(0.0, _SAMPLING * deadline - waited),
            judge_patience=max(0.0, _CHOOSING * deadline - waited),
        )
        self.metrics.count_choice(choice.choose if found.how == "chosen" else found.how, found.answer.cost)
        for failure in found.failures:
            if not isinstance(failure, (ToolFailedError, BudgetExhaustedError)):
                self.metrics.model_errors.labels(
                    "too slow" if isinstance(failure, SampleTimeoutError) else "failed"
                ).inc()
        if found.failures:
            first = found.failures[0]
            public_message = getattr(first, "public_message", type(first).__name__)
            message = str(first) if self.settings.log_questions else public_message
            failed = len(found.failures)
            _log.warning("%s of %s samples failed: %s [%s]", failed, choice.samples, message, first.code)
        if found.judge_error:
            reason = self._if_logged(found.judge_error)
            _log.warning("%s chose no sample; using the first one: %s", choice.judge_name, reason)
        return found.answer

    def _if_logged(self, reason: str) -> str:
        """Return a reason that may quote questions and mail, if the operator lets these be logged."""
        return reason if self.settings.log_questions else "the reason is not logged"

    async def _run_episode(
        self,
        scenario: Scenario,
        policy: ServedPolicy,
        seed: str,
        sample: int,
        on_step: Callable[[AnswerStep], object],
        caller: str,
    ) -> tuple[Answer, Trajectory]:
        """Run one episode, here or in a worker, and count it in the metrics."""
        with self.metrics.running.track_inprogress(), start_span(self.tracer, "episode") as span:

            def record_step(step: AnswerStep) -> None:
                event = "called" if step.result is None else "returned"
                tool = step.tool if not step.tool or step.tool in self._tools else "unknown"  # a model may quote mail
                span.add_event(event, {"turn": step.turn, "tool": tool})
                on_step(step)

            if self.workers is not None:
                reader, request = audited_principal(), correlation_id.get()
                job = EpisodeJob(policy.name.version, scenario, seed, sample, caller, reader, request)
                answer, trajectory = await self.workers.answer(job, record_step)
            elif policy.run is not None:
                answerer = Answerer(self.env_factory, self.settings.model.limits.episode, self.threads)
                meter = meter_usage(self._budgets, caller, self.settings.model.limits.max_tokens)
                answer, trajectory = await answerer.answer(scenario, policy.run, seed, record_step, sample, meter)
            else:
                raise ModelNotReadyError(policy.problem)
            span.set_attributes({"policy": answer.policy, "turns": answer.turns, "success": answer.success})
        if trajectory.ending == "agent failed":
            _log.warning("the agent failed: %s", self._if_logged(trajectory.detail))
        self.metrics.count_episode(answer, trajectory)
        self.on_episode(scenario, trajectory)
        return answer, trajectory


def _is_available(policy: ServedPolicy) -> float:
    return float(not policy.problem)


@asynccontextmanager
async def open_service(
    settings: ServeSettings, env_factory: EnvFactory, metrics: Metrics, tracer: Tracer, on_episode: EpisodeCallback
) -> AsyncIterator[AnswerService]:
    """Open a service whose policies are checked regularly while the block runs.

    A local policy is ready when the block begins; remote vLLM servers may become available later.

    Raises:
        UsageError: if a setting is invalid.
        UnavailableError: if a local policy does not start.
        GumshoeError: if the environment does not get ready.
    """
    await asyncio.to_thread(check_served_index, env_factory)
    async with open_policies(settings) as opened, ToolThreads() as threads, AsyncExitStack() as stack:
        policies, fallback, settings = opened
        for canary in policies[1:]:
            check_canary(env_factory, policies[0].source, canary.source, settings.model.chat)
        env_factory = await prepare_environment(env_factory, policies[0].source)
        served = (*policies, *([fallback] if fallback else ()))
        metrics.policies.open(
            ((each.name.version, each.share, partial(_is_available, each)) for each in served),
            settings.keeping.verdicts_per_caller if settings.keeping.feedback else 0,
        )
        choice = settings.model.choice
        selector = choice.open_selector() if choice else None
        if selector is not None:
            stack.push_async_callback(selector.aclose)
        workers = None
        if settings.workers:
            settings = _share_usage(settings, stack)
            start = _describe_start(settings, env_factory, served)
            workers = await stack.enter_async_context(open_workers(settings.workers, start, metrics))
        yield AnswerService(
            settings, env_factory, metrics, tracer, threads, on_episode, policies, selector, fallback, workers
        )


def _share_usage(settings: ServeSettings, stack: AsyncExitStack) -> ServeSettings:
    """Return settings whose usage is counted in a file, which all processes can use."""
    limits = settings.limits
    if limits.usage_file is not None or (limits.tokens_per_day is None and limits.calls_per_day is None):
        return settings
    directory = stack.enter_context(TemporaryDirectory(prefix="gumshoe-usage-"))
    shared = limits.model_copy(update={"usage_file": Path(directory) / "usage.sqlite"})
    return settings.model_copy(update={"limits": shared})


def _describe_start(settings: ServeSettings, env_factory: EnvFactory, served: Sequence[ServedPolicy]) -> WorkerStart:
    """Return what workers open: the same index and policies, and a share of the processes that agents may have."""
    model, agent = settings.model, settings.model.agent
    if agent is not None:
        agent = agent.model_copy(update={"processes": settings.processes_per_worker})
        model = model.model_copy(update={"agent": agent})
    logs_json = any(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger().handlers)
    sources = tuple(each.source for each in served)
    return WorkerStart(env_factory.directory, settings.environment, model, settings.limits, sources, logs_json)
