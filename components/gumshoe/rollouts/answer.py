"""What came of a question: the answer, where it stands, and what was done for it, also while it is done."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from gumshoe.environments.base import Source
from gumshoe.environments.registry import EnvFactory
from gumshoe.rollouts.chat_format import NoCallError, UnusableCallError, parse_call, text_beside_call
from gumshoe.rollouts.episode import ChatSession, EpisodeLimits, Turn, run_episode
from gumshoe.rollouts.sessions import OpenChatSession
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class AnswerStep:
    """One turn of the model, and what its tool said."""

    turn: int
    """From 1."""
    tool: str
    """Empty where the turn holds no call."""
    arguments: dict[str, Any]
    text: str
    """What the model wrote beside the call; all of it where there is none."""
    result: str | None = None
    """None while the tool is at work, and where the turn ended the conversation."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an answer took: all episodes that were run for it, and the judge, if one chose among them."""

    samples: int
    """Episodes that ended."""
    failed: int
    """Episodes that did not, for want of infrastructure; what they took is in no number."""
    turns: int
    prompt_tokens: int | None
    """Of all requests, added up as an endpoint bills them; None where it did not say."""
    sampled_tokens: int | None
    seconds: float
    """In the model and the tools, of all episodes together, and in the judge."""
    longest: float
    """Of the episode that took longest, and of the judge after it: seconds to wait where all run at once."""
    judge_requests: int = 0
    judge_prompt_tokens: int = 0
    judge_sampled_tokens: int = 0
    judge_dollars: float = 0.0

    @property
    def summary(self) -> str:
        """In a line."""
        parts = [f"{self.samples} of {self.samples + self.failed} ended", f"{self.turns:,} turns"]
        if self.prompt_tokens is not None and self.sampled_tokens is not None:
            parts.append(f"{self.prompt_tokens:,} prompt and {self.sampled_tokens:,} sampled tokens")
        parts.append(f"{self.seconds:.1f} s together")
        if self.judge_requests:
            tokens = self.judge_prompt_tokens + self.judge_sampled_tokens
            parts.append(f"{self.judge_requests:,} requests of the judge with {tokens:,} tokens")
        return ", ".join(parts)

    @classmethod
    def of(cls, episodes: Sequence[Trajectory], failed: int = 0) -> "Cost":
        """Of episodes alone, one or more."""
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
    """What came of a question."""

    question: str
    inbox_address: str | None
    """None where the question is about documents."""
    query_date: date | None
    """None where that does not matter."""
    answer: str
    source_ids: tuple[str, ...]
    """Of messages, or documents, that are there; ids that the model invented are left out."""
    sources: tuple[Source, ...]
    success: bool
    reason: str
    """Why there is no answer; empty where there is one."""
    steps: tuple[AnswerStep, ...]
    policy: str
    """The version of the policy that took every turn."""
    turns: int
    seconds: float
    chosen: str = ""
    """Why it is this one, where several were sampled; empty where one was."""
    cost: Cost | None = None
    """None where an older server does not say."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers questions, any number at once, by the episodes that training has."""

    world: EnvFactory
    limits: EpisodeLimits
    threads: ToolThreads

    async def answer(
        self,
        scenario: Scenario,
        speak: OpenChatSession,
        seed: str = "asked",
        tell: Callable[[AnswerStep], object] = lambda _: None,
        sample: int = 0,
    ) -> tuple[Answer, Trajectory]:
        """Run one episode, which is that sample of its question; `tell` hears of each turn as it is taken, and again
        when its tool has done.

        Raises:
            ScenarioError: the question is not for this world.
            PolicyError, ToolFailedError: infrastructure failed.
        """
        environment = self.world.new_environment(scenario, self.limits.max_turns)
        started = time.monotonic()
        with speak(environment, f"{seed}/{sample}" if sample else seed) as speaker:
            telling = _ReportingSession(speaker, tell)
            trajectory = await run_episode(telling, environment, sample, self.limits, self.threads)
        record = trajectory.record
        success = trajectory.ending == "answer" and not record.does_not_know
        found = [await self.threads.run("sources", self.world.find_source, scenario, each) for each in record.sources]
        sources = {each.id: each for each in found if each is not None}
        answer = Answer(
            question=scenario.question,
            inbox_address=scenario.inbox_address,
            query_date=scenario.query_date,
            answer=record.answer or "",
            source_ids=tuple(sources),
            sources=tuple(sources.values()),
            success=success,
            reason="" if success else _reason(trajectory),
            steps=tuple(telling.steps),
            policy=trajectory.policy,
            turns=trajectory.turns,
            seconds=time.monotonic() - started,
            cost=Cost.of([trajectory]),
        )
        return answer, trajectory


class _ReportingSession:
    """A speaker that tells of each turn as it is taken, in the event loop, and of what its tool said, in the tool's
    thread.
    """

    def __init__(self, speaker: ChatSession, tell: Callable[[AnswerStep], object]) -> None:
        self._speaker, self._tell = speaker, tell
        self.steps: list[AnswerStep] = []

    def add_tool_result(self, result: str) -> None:
        """As `ChatSession.add_tool_result`."""
        self._speaker.add_tool_result(result)
        self.steps[-1] = replace(self.steps[-1], result=result)
        self._tell(self.steps[-1])

    async def next_turn(self) -> Turn | None:
        """As `ChatSession.next_turn`."""
        said = await self._speaker.next_turn()
        if said is not None:
            self.steps.append(_step(len(self.steps) + 1, said.text))
            self._tell(self.steps[-1])
        return said


def _step(turn: int, text: str) -> AnswerStep:
    try:
        call = parse_call(text)
    except (NoCallError, UnusableCallError):
        return AnswerStep(turn, "", {}, text.strip())
    return AnswerStep(turn, call.name, call.arguments, text_beside_call(text))


def _reason(trajectory: Trajectory) -> str:
    if trajectory.ending == "answer":
        return "the agent found no answer"
    return f"the agent came to no answer: {trajectory.ending}" + (f", {trajectory.detail}" if trajectory.detail else "")
