"""One question, answered by an agent on this machine."""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from gumshoe.agent.chat_format import NoCallError, UnusableCallError, parse_call
from gumshoe.agent.email import EmailEnvironment
from gumshoe.agent.episode import EpisodeLimits, run_episode
from gumshoe.agent.policies import PolicyName, open_policy
from gumshoe.agent.policy import Sampling
from gumshoe.agent.threads import ToolThreads
from gumshoe.agent.trajectory import Trajectory
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.scenario import Scenario

_METADATA = "metadata.json"  # of an adapter: what made it


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of whom."""

    index: Path
    inbox: str
    day: date
    text: str
    adapter: str | None
    """A version in the store, `latest`, or a directory; None for the base model alone."""
    store: str | None
    model: str | None
    """The base model; None for the adapter's own, and `tiny` without one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question."""

    question: str
    answer: str
    source_ids: tuple[str, ...]
    sources: tuple[str, ...]
    """Day, sender and subject of each."""
    success: bool
    reason: str
    """Why there is no answer, where there is none."""
    steps: tuple[str, ...]
    policy: str
    turns: int
    seconds: float


async def answered(question: Question, sampling: Sampling, limits: EpisodeLimits) -> Answer:
    """Run one episode.

    Raises:
        UsageError: it cannot be asked as it was put.
        NotFoundError: the store has no such adapter.
        PolicyError: the model does not answer.
    """
    scenario = Scenario.asked(question.text, question.inbox, question.day)
    index = MailIndex(question.index)
    environment = EmailEnvironment(index, scenario, limits.max_turns)
    with ExitStack() as held:
        adapter = _adapter(question, held)
        model = question.model or (_base_of(adapter) if adapter else "tiny")
        name = PolicyName.parse(f"local:{model}" + (f"#{adapter}" if adapter else ""))
        async with open_policy(name, None, sampling, limits) as speak, ToolThreads() as threads:
            started = time.monotonic()
            with speak(environment, "asked") as speaker:
                trajectory = await run_episode(speaker, environment, 0, limits, threads)
            seconds = time.monotonic() - started
    record = trajectory.record
    success = trajectory.ending == "answer" and not record.does_not_know
    told = question.adapter if question.adapter and not Path(question.adapter).is_dir() else str(adapter or "")
    return Answer(
        question=question.text,
        answer=record.answer or "",
        source_ids=tuple(record.sources),
        sources=tuple(_source(index, scenario, each) for each in record.sources),
        success=success,
        reason="" if success else _reason(trajectory),
        steps=tuple(_steps(trajectory)),
        policy=f"{model} with {told}" if told else model,
        turns=trajectory.turns,
        seconds=seconds,
    )


def _adapter(question: Question, held: ExitStack) -> Path | None:
    """Where the adapter's files are, as long as the stack is held."""
    if question.adapter is None or Path(question.adapter).is_dir():
        return Path(question.adapter) if question.adapter else None
    if question.store is None:
        raise UsageError(f"{question.adapter} is no directory; for a published adapter, say where with --store")
    place = Path(held.enter_context(TemporaryDirectory(prefix="gumshoe-adapter-"))) / "adapter"
    return Store(question.store).fetch(f"adapters/{question.adapter}", place).directory


def _base_of(adapter: Path) -> str:
    """The base model that an adapter is for, as its own files say."""
    try:
        return str(json.loads((adapter / _METADATA).read_bytes())["settings"]["model"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{adapter} does not say what its base model is; name it with --model") from None


def _reason(trajectory: Trajectory) -> str:
    if trajectory.ending == "answer":
        return "the agent found no answer"
    return f"the agent came to no answer: {trajectory.ending}" + (f", {trajectory.detail}" if trajectory.detail else "")


def _steps(trajectory: Trajectory) -> list[str]:
    """Each call, and how much came of it."""
    told: list[str] = []
    for segment in trajectory.segments:
        if segment.origin == "sampled":
            try:
                call = parse_call(segment.text)
            except (NoCallError, UnusableCallError):
                told.append(" ".join(segment.text.split()))
                continue
            values = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items() if value is not None)
            told.append(f"{call.name}({values})")
        elif segment.origin == "injected" and told:
            hits = segment.text.count("\n  id: ")
            told[-1] += f": {hits} found" if "search" in told[-1] else ""
    return told


def _source(index: MailIndex, scenario: Scenario, message_id: str) -> str:
    """A message in one line."""
    try:
        message = index.read(str(scenario.inbox_address), message_id)
    except GumshoeError:
        return f"{message_id} (there is no such message)"
    sent = f"{message.sent:%Y-%m-%d} " if message.sent else ""
    return f"{sent}{message.sender}: {message.subject} {message.message_id}"
