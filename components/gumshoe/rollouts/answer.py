"""Answer a question with one episode: the answer, its sources, its steps and its cost."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from gumshoe.environments.base import Source
from gumshoe.environments.data_marks import strip_marks
from gumshoe.environments.registry import EnvFactory
from gumshoe.environments.tools import Call
from gumshoe.rollouts.chat_format.chat_format import ParsedTurn
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeObserver, EpisodeRunner, EpisodeStart, Turn
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class AnswerStep:
    """A tool call of the model with its result, or a turn without one."""

    turn: int
    """Number of the turn, from 1."""
    tool: str
    """Empty if the turn has no usable call."""
    arguments: dict[str, Any]
    text: str
    """Text of the turn outside reasoning and calls, in the first step of the turn."""
    result: str | None = None
    """Without the marks around its data. None while the tool runs, and if the turn ended the conversation."""
    reasoning: str = ""
    """Reasoning of the turn, in its first step."""
    call: int = 1
    """Number of the call in its turn, from 1."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of an answer: all episodes that were run for it, and the judge, if one chose among them."""

    samples: int
    """Number of episodes that ended."""
    failed: int
    """Number of episodes that failed because of infrastructure; their cost is not included."""
    turns: int
    prompt_tokens: int | None
    """Sum over all requests, as an endpoint bills them; None if unknown."""
    sampled_tokens: int | None
    seconds: float
    """Total seconds in the model and the tools, over all episodes, and in the judge."""
    longest: float
    """Seconds of the longest episode and of the judge after it: the latency if all episodes run at once."""
    judge_requests: int = 0
    judge_prompt_tokens: int = 0
    judge_sampled_tokens: int = 0
    judge_dollars: float = 0.0

    @property
    def summary(self) -> str:
        """The cost as one line of text."""
        parts = [f"{self.samples} of {self.samples + self.failed} ended", f"{self.turns:,} turns"]
        if self.prompt_tokens is not None and self.sampled_tokens is not None:
            parts.append(f"{self.prompt_tokens:,} prompt and {self.sampled_tokens:,} sampled tokens")
        parts.append(f"{self.seconds:.1f} s together")
        if self.judge_requests:
            tokens = self.judge_prompt_tokens + self.judge_sampled_tokens
            parts.append(f"{self.judge_requests:,} requests of the judge with {tokens:,} tokens")
        return ", ".join(parts)

    @classmethod
    def from_episodes(cls, episodes: Sequence[Trajectory], failed: int = 0) -> "Cost":
        """Add up the cost of one or more episodes, without a judge."""
        seconds = [each.policy_seconds + each.tool_seconds for each in episodes]
        usage = [each.usage for each in episodes if each.usage is not None]
        is_known = len(usage) == len(episodes)
        return cls(
            samples=len(episodes),
            failed=failed,
            turns=sum(each.turns for each in episodes),
            prompt_tokens=sum(each.prompt_tokens for each in usage) if is_known else None,
            sampled_tokens=sum(each.completion_tokens for each in usage) if is_known else None,
            seconds=sum(seconds),
            longest=max(seconds),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a question, with its sources and steps."""

    question: str
    inbox_address: str | None
    """None if the question is about documents."""
    query_date: date | None
    """None if the question has no date."""
    answer: str
    source_ids: tuple[str, ...]
    """Ids of messages or documents that exist; invented ids are left out."""
    sources: tuple[Source, ...]
    success: bool
    reason: str
    """Why there is no answer; empty if there is one."""
    steps: tuple[AnswerStep, ...]
    policy: str
    """Version of the policy that sampled every turn."""
    turns: int
    seconds: float
    chosen: str = ""
    """Why this answer was chosen among several samples; empty for a single sample."""
    cost: Cost | None = None
    """None if an older server does not report it."""
    handles: dict[str, str] = field(default_factory=dict)
    """Ids of sources by the handles that the steps show in their place, e.g. `m1`; empty if they show the ids."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answer questions concurrently, with the same episodes as in training."""

    env_factory: EnvFactory
    limits: EpisodeLimits
    threads: ToolThreads
    shows_agent_errors: bool = False
    """True if reasons quote the error of an agent that failed, e.g. the last lines of a program's standard error."""

    async def answer(
        self,
        scenario: Scenario,
        run: EpisodeRunner,
        seed: str = "asked",
        on_step: Callable[[AnswerStep], object] = lambda _: None,
        sample: int = 0,
        observer: EpisodeObserver | None = None,
    ) -> tuple[Answer, Trajectory]:
        """Run one episode and return its answer and trajectory.

        `on_step` is called after each turn, and again with the result of its tool. `sample` is the number of the
        episode among those of its question.

        Raises:
            ScenarioError: if the environment does not support the question.
            PolicyError: if the policy failed.
            ToolFailedError: if a tool did not answer in time.
        """
        environment = self.env_factory.new_environment(scenario, self.limits.max_turns)
        started = time.monotonic()
        reporter = _StepReporter(on_step, observer or EpisodeObserver())
        own_seed = f"{seed}/{sample}" if sample else seed
        trajectory = await run(EpisodeStart(environment, own_seed, self.limits, self.threads, sample, reporter))
        record = trajectory.record
        success = trajectory.ending == "answer" and not record.does_not_know
        found = [
            await self.threads.run("sources", self.env_factory.find_source, scenario, each) for each in record.sources
        ]
        sources = {each.id: each for each in found if each is not None}
        answer = Answer(
            question=scenario.question,
            inbox_address=scenario.inbox_address,
            query_date=scenario.query_date,
            answer=record.answer or "",
            source_ids=tuple(sources),
            sources=tuple(sources.values()),
            success=success,
            reason="" if success else self._explain_failure(trajectory),
            steps=tuple(reporter.steps),
            policy=trajectory.policy,
            turns=trajectory.turns,
            seconds=time.monotonic() - started,
            cost=Cost.from_episodes([trajectory]),
            handles=record.handles,
        )
        return answer, trajectory

    def _explain_failure(self, trajectory: Trajectory) -> str:
        if trajectory.ending == "answer":
            return "the agent found no answer"
        is_quoted = trajectory.ending != "agent failed" or self.shows_agent_errors
        parts = [trajectory.ending, *([trajectory.detail] if trajectory.detail and is_quoted else ())]
        return f"the agent came to no answer: {', '.join(parts)}"


@dataclass(slots=True)
class _StepReporter(EpisodeObserver):
    """Report each call in the event loop, and its result in the tool's thread. Pass everything on to `other`."""

    on_step: Callable[[AnswerStep], object]
    other: EpisodeObserver
    steps: list[AnswerStep] = field(default_factory=list)
    _turns: int = 0

    @contextmanager
    def sampling(self) -> Iterator[Callable[[Turn | None], None]]:
        """Report the turn that is sampled in the block."""
        with self.other.sampling() as observe:

            def report(turn: Turn | None) -> None:
                observe(turn)
                if turn is not None:
                    self._turns += 1
                    for step in _to_steps(self._turns, turn.parsed):
                        self._add(step)

            yield report

    def begin_calls(self, calls: Sequence[Call]) -> None:
        """Pass the calls on."""
        self.other.begin_calls(calls)

    def add_results(self, calls: Sequence[Call], results: Sequence[str]) -> None:
        """Report the results of calls."""
        self.other.add_results(calls, results)
        for call, result in zip(calls, results, strict=True):
            shown, made = strip_marks(result), (call.name, call.arguments)
            waiting = [at for at, each in enumerate(self.steps) if each.result is None]
            place = next((at for at in waiting if (self.steps[at].tool, self.steps[at].arguments) == made), None)
            if place is None:  # a call of the agent's own
                self._add(AnswerStep(self._turns, call.name, call.arguments, "", shown))
            else:
                self.steps[place] = replace(self.steps[place], result=shown)
                self.on_step(self.steps[place])

    def _add(self, step: AnswerStep) -> None:
        self.steps.append(step)
        self.on_step(step)


def _to_steps(turn: int, parsed: ParsedTurn) -> list[AnswerStep]:
    """Return a step for each call of a turn, or one if it has none."""
    steps = [AnswerStep(turn, each.name, each.arguments, "", call=at) for at, each in enumerate(parsed.calls, 1)]
    first, *others = steps or [AnswerStep(turn, "", {}, "")]
    return [replace(first, text=parsed.text, reasoning=parsed.reasoning), *others]
