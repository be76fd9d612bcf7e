"""What came of a question: the answer, where it stands, and what was done for it, also while it is done."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

from gumshoe.agent.chat_format import NoCallError, UnusableCallError, parse_call
from gumshoe.agent.email import EmailEnvironment
from gumshoe.agent.episode import EpisodeLimits, Said, Speaker, run_episode
from gumshoe.agent.policies import OpenSpeaker
from gumshoe.agent.threads import ToolThreads
from gumshoe.agent.trajectory import Trajectory
from gumshoe.mail.arguments import SearchArgumentError
from gumshoe.mail.index import MailIndex, MessageNotFoundError
from gumshoe.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the model, and what its tool said."""

    turn: int
    """From 1."""
    tool: str
    """Empty where the turn holds no call."""
    arguments: dict[str, Any]
    text: str
    """What the model wrote, where that is no call."""
    result: str | None = None
    """None while the tool is at work, and where the turn ended the conversation."""


@dataclass(frozen=True, slots=True)
class Source:
    """A message that an answer stands in."""

    message_id: str
    sent: datetime | None
    sender: str
    subject: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question."""

    question: str
    inbox_address: str
    query_date: date
    answer: str
    source_ids: tuple[str, ...]
    """Of messages that are there; ids that the model invented are left out."""
    sources: tuple[Source, ...]
    success: bool
    reason: str
    """Why there is no answer; empty where there is one."""
    steps: tuple[Step, ...]
    policy: str
    """The version of the policy that took every turn."""
    turns: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers questions about mail, any number at once, by the episodes that training has."""

    index: MailIndex
    limits: EpisodeLimits
    threads: ToolThreads

    async def answer(
        self,
        scenario: Scenario,
        speak: OpenSpeaker,
        seed: str = "asked",
        tell: Callable[[Step], object] = lambda _: None,
    ) -> tuple[Answer, Trajectory]:
        """Run one episode; `tell` hears of each turn as it is taken, and again when its tool has done.

        Raises:
            ScenarioError: the question is not about mail.
            PolicyError, ToolFailedError: infrastructure failed.
        """
        environment = EmailEnvironment(self.index, scenario, self.limits.max_turns)
        started = time.monotonic()
        with speak(environment, seed) as speaker:
            telling = _TellingSpeaker(speaker, tell)
            trajectory = await run_episode(telling, environment, 0, self.limits, self.threads)
        record = trajectory.record
        success = trajectory.ending == "answer" and not record.does_not_know
        found = [await self.threads.run("sources", source, self.index, scenario, each) for each in record.sources]
        sources = {each.message_id: each for each in found if each is not None}
        answer = Answer(
            question=scenario.question,
            inbox_address=str(scenario.inbox_address),
            query_date=scenario.query_date or date.max,
            answer=record.answer or "",
            source_ids=tuple(sources),
            sources=tuple(sources.values()),
            success=success,
            reason="" if success else _reason(trajectory),
            steps=tuple(telling.steps),
            policy=trajectory.policy,
            turns=trajectory.turns,
            seconds=time.monotonic() - started,
        )
        return answer, trajectory


def source(index: MailIndex, scenario: Scenario, message_id: str) -> Source | None:
    """A message of the scenario's inbox that had been sent by its date; None where there is none of that id."""
    try:
        found = index.read(str(scenario.inbox_address), message_id)
    except (MessageNotFoundError, SearchArgumentError):
        return None
    end = scenario.visible_before
    if found.sent is None or (end is not None and found.sent >= end):
        return None
    return Source(found.message_id, found.sent, found.sender, found.subject)


class _TellingSpeaker:
    """A speaker that tells of each turn as it is taken, in the event loop, and of what its tool said, in the tool's
    thread.
    """

    def __init__(self, speaker: Speaker, tell: Callable[[Step], object]) -> None:
        self._speaker, self._tell = speaker, tell
        self.steps: list[Step] = []

    def hear(self, result: str) -> None:
        """As `Speaker.hear`."""
        self._speaker.hear(result)
        self.steps[-1] = replace(self.steps[-1], result=result)
        self._tell(self.steps[-1])

    async def say(self) -> Said | None:
        """As `Speaker.say`."""
        said = await self._speaker.say()
        if said is not None:
            self.steps.append(_step(len(self.steps) + 1, said.text))
            self._tell(self.steps[-1])
        return said


def _step(turn: int, text: str) -> Step:
    try:
        call = parse_call(text)
    except (NoCallError, UnusableCallError):
        return Step(turn, "", {}, text.strip())
    return Step(turn, call.name, call.arguments, "")


def _reason(trajectory: Trajectory) -> str:
    if trajectory.ending == "answer":
        return "the agent found no answer"
    return f"the agent came to no answer: {trajectory.ending}" + (f", {trajectory.detail}" if trajectory.detail else "")
