"""One answer from several episodes of a question: the one that most of them give, or the one that a judge likes best.

What always holds: nothing here knows the reference answer. A choice is made of the question and of what the episodes
said and did, and an episode's record of right sources has no part in it.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gumshoe.environments.email import bare_id
from gumshoe.errors import GumshoeError, UnavailableError, UsageError, faults_of
from gumshoe.inference.policy import HIGHEST_TEMPERATURE
from gumshoe.rewards.chat_judge import JudgeModelSettings, Usage, model_named
from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.values import normalize
from gumshoe.rewards.judge import Judge, JudgeError
from gumshoe.rewards.judge_registry import OpenAIJudge, named_settings, open_judge
from gumshoe.rewards.ruler import Ruler, RulerSettings
from gumshoe.rollouts.answer import Answer, Cost
from gumshoe.rollouts.trajectory import Trajectory

MOST = 64
"""Samples of a question."""
Way = Literal["majority", "best"]
_COMPARE = ("heuristic", "exact", "openai", "embedding")
_RULER = "ruler"


class LateError(UnavailableError):
    """A sample still ran when the time for it was over."""


class ChoiceSettings(BaseModel):
    """Several samples of each question, and how one of them is chosen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: Annotated[int, Field(ge=2, le=MOST)]
    choose: Way = "majority"
    choose_by: Any = None
    """Who says which answers are alike, for a majority: a judge, `heuristic` unless given. Who judges, for the best:
    `ruler:MODEL[@URL]`, or with settings."""
    temperature: Annotated[float, Field(gt=0, le=HIGHEST_TEMPERATURE)] = 1.0
    """Of the samples: at 0 they would all be alike."""

    @model_validator(mode="after")
    def _known(self) -> "ChoiceSettings":
        try:
            _named(self)
        except UsageError as error:
            raise ValueError(error) from None
        return self

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "ChoiceSettings | None":
        """By name; None of an empty mapping.

        Raises:
            UsageError: they are not such settings; the message says which is wrong.
        """
        if not settings:
            return None
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise UsageError(
                code_of(error, "rewards.invalid-choice-settings"),
                f"invalid settings for several samples: {faults_of(error)}",
            ) from None

    @property
    def by(self) -> str:
        """Who compares, or judges, as people are told of it."""
        name, settings = _named(self)
        model = settings.get("model")
        model = model.get("model") if isinstance(model, Mapping) else model
        return f"{name}:{model}" if model else name

    def opened(self) -> "Selector":
        """What chooses so.

        Raises:
            UsageError: its model cannot be asked.
        """
        name, settings = _named(self)
        if name == _RULER:
            return BestOfN(Ruler(RulerSettings.model_validate(settings)))
        return SelfConsistency(open_judge({name: settings}))


def chosen_of(
    samples: int, choose: str | None, choose_by: Any, temperature: float | None = None
) -> ChoiceSettings | None:
    """The settings that a command's options say; None where nothing is to be chosen.

    Raises:
        UsageError: they do not go together.
    """
    if choose is None:
        if choose_by is not None:
            raise UsageError(
                "rewards.choice-missing", "--choose-by needs --choose: add --choose majority or --choose best"
            )
        return None
    if samples < 2:
        raise UsageError("rewards.samples-missing", f"--choose needs several samples: set --samples to 2..{MOST}")
    if temperature == 0:
        raise UsageError(
            "rewards.greedy-samples",
            f"--samples {samples} needs --temperature > 0, got 0: greedy samples are identical",
        )
    given = {"samples": samples, "choose": choose, "choose_by": choose_by, "temperature": temperature}
    return ChoiceSettings.of({name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several episodes, why that one, and what it took to choose it."""

    place: int
    """Of the episode, in the group."""
    why: str
    failed: str = ""
    """Why there is no choice; the place means nothing then."""
    requests: int = 0
    """Of a judge that is a model, those that gave nothing among them."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0
    """Of those requests."""


class Selector(Protocol):
    """Chooses one of several episodes of a question."""

    async def choose(
        self, question: str, asked_on: date | None, group: Sequence[Trajectory], seconds: float | None = None
    ) -> Choice:
        """One of them, within so many seconds; with `failed` where there is none, for the cost is told all the same.

        Raises:
            UsageError: the judge's server does not know the model, or the key.
        """
        ...

    async def aclose(self) -> None:
        """Close what it holds, if anything."""
        ...


@dataclass(frozen=True, slots=True)
class SelfConsistency:
    """Self-consistency (https://arxiv.org/abs/2203.11171): the answer that most samples agree with.

    Two answers agree where the judge takes each for right with the other as the reference; the same words always do.
    "I don't know", and no answer at all, agree with each other, and are chosen only where they are more than half.
    Among equals, the answer whose sources most of those that agree with it give too, and then the likeliest: the one of
    the highest mean log-probability of what was sampled, where that is known; at last the earliest. What is chosen is
    a whole episode, so that its answer stands in the sources that it gives.
    """

    judge: Judge

    async def choose(
        self, question: str, asked_on: date | None, group: Sequence[Trajectory], seconds: float | None = None
    ) -> Choice:
        """As `Selector.choose`."""
        judge, usage = self.judge, Usage()
        if isinstance(judge, OpenAIJudge):
            judge = judge.apart()
            usage = judge.model.usage
        said = [_said(each) for each in group]
        try:
            async with asyncio.timeout(seconds):
                alike = await _alike(judge, question, asked_on, [each for each in said if each is not None])
        except (JudgeError, TimeoutError) as error:
            return _without(_failure_of(error) or f"the answers were not compared within {seconds:g} seconds", usage)
        place, why = _most_agreed(group, said, alike)
        return _counted(Choice(place, why), usage)

    async def aclose(self) -> None:
        """As `Selector.aclose`."""
        await self.judge.aclose()


@dataclass(frozen=True, slots=True)
class BestOfN:
    """The sample to which RULER gives the highest score beside the others; among equals as `SelfConsistency`."""

    ruler: Ruler

    async def choose(
        self,
        question: str,  # noqa: ARG002 - it stands in what the episodes begin with
        asked_on: date | None,  # noqa: ARG002
        group: Sequence[Trajectory],
        seconds: float | None = None,
    ) -> Choice:
        """As `Selector.choose`."""
        ruler = self.ruler.apart()
        try:
            async with asyncio.timeout(seconds):
                found = await ruler.scores(group)
        except (JudgeError, TimeoutError) as error:
            said = _failure_of(error) or f"the judge did not answer within {seconds:g} seconds"
            return _without(said, ruler.model.usage)
        place = max(range(len(group)), key=lambda each: (found.scores[each], *_preferred(group[each], each)))
        why = f"scored {found.scores[place]:.2f}, the highest of {len(group)}: {found.explanations[place]}"
        return _counted(Choice(place, why), ruler.model.usage)

    async def aclose(self) -> None:
        """As `Selector.aclose`."""
        await self.ruler.aclose()


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """An answer that was chosen from several."""

    answer: Answer
    """With what all of them took."""
    how: Literal["chosen", "only", "first"]
    """By the choice; or because no other sample ended, or because the judge failed."""
    trouble: str
    """Why the judge failed, where it did; it may quote what was read."""
    failures: tuple[GumshoeError, ...]
    """Of the samples that did not end."""


RunSample = Callable[[int], Awaitable[tuple[Answer, Trajectory]]]
"""Runs one sample of a question, from 0."""


async def answer_with_samples(
    run: RunSample,
    settings: ChoiceSettings,
    chooser: Selector,
    asked: tuple[str, date | None],
    *,
    patience: float | None = None,
    judge_patience: float | None = None,
) -> SampledAnswer:
    """Run the samples of a question at once, and choose one; those that fail are left out, as long as one ends.

    `asked` is the question and its day. After `patience` seconds what still runs is given up, if anything has ended by
    then. Where the judge fails, or takes longer than `judge_patience` seconds from the beginning, the first sample with
    an answer is taken.

    Raises:
        GumshoeError: no sample ended; it is the first one's failure.
    """
    began = time.monotonic()
    ended, failures = await _ended(run, settings.samples, patience)
    answers, group = [each for each, _ in ended], [each for _, each in ended]
    how: Literal["chosen", "only", "first"] = "chosen"
    if len(group) == 1:
        choice, how = Choice(0, f"the only sample of {settings.samples} that ended"), "only"
    else:
        left = None if judge_patience is None else max(0.0, judge_patience - (time.monotonic() - began))
        try:
            choice = await chooser.choose(*asked, group, left)
        except UsageError as error:
            choice = Choice(0, "", error.message_with_code)
        if choice.failed:
            first = next((place for place, each in enumerate(answers) if each.success), 0)
            choice, how = replace(choice, place=first, why="the first sample, for the judge chose none"), "first"
    cost = cost_of(group, choice, failed=len(failures))
    chosen = replace(answers[choice.place], seconds=time.monotonic() - began, cost=cost, chosen=choice.why)
    return SampledAnswer(chosen, how, choice.failed, tuple(failures))


def code_of(error: ValidationError, default: str) -> str:
    """Return the code of the first GumshoeError that a validator raised inside a ValueError, or else the default."""
    raised = [each["ctx"]["error"] for each in error.errors() if each["type"] == "value_error"]
    causes = [cause for each in raised for cause in each.args if isinstance(cause, GumshoeError)]
    return causes[0].code if causes else default


def cost_of(group: Sequence[Trajectory], choice: Choice, failed: int = 0) -> Cost:
    """What all samples of a question took, and the choice of one."""
    alone = Cost.of(group, failed)
    return replace(
        alone,
        seconds=alone.seconds + choice.seconds,
        longest=alone.longest + choice.seconds,
        judge_requests=choice.requests,
        judge_prompt_tokens=choice.prompt_tokens,
        judge_sampled_tokens=choice.sampled_tokens,
        judge_dollars=choice.dollars,
    )


def _named(settings: ChoiceSettings) -> tuple[str, dict[str, Any]]:
    """Who compares, or judges, and with which settings.

    Raises:
        UsageError: there is nobody of that name for it.
    """
    if settings.choose == "majority":
        name, given = named_settings("heuristic" if settings.choose_by is None else settings.choose_by)
        if name not in _COMPARE:
            hint = "; ruler chooses the best sample" if name == _RULER else ""
            raise UsageError(
                "rewards.cannot-compare", f"{name!r} does not compare answers; use one of {', '.join(_COMPARE)}{hint}"
            )
        if name == "openai":
            given = {"cache": None, **given}
            _checked(name, JudgeModelSettings, given)
        return name, given
    if settings.choose_by is None:
        raise UsageError(
            "rewards.chooser-missing", "choosing the best sample needs a judge; use ruler:MODEL or ruler:MODEL@URL"
        )
    name, given = named_settings(settings.choose_by)
    if name in _COMPARE:
        raise UsageError(
            "rewards.chooser-needs-reference",
            f"{name!r} needs the reference answer, which is not known here; use ruler:MODEL or ruler:MODEL@URL",
        )
    if name != _RULER:
        raise UsageError(
            "rewards.unknown-chooser",
            f"{name!r} cannot choose the best sample; use ruler:MODEL or ruler:MODEL@URL",
        )
    model = given.get("model", {})
    model = model_named(model) if isinstance(model, str) else model
    if isinstance(model, Mapping):  # an answer from a cache has no cost to tell of, and would be kept on disk
        given = {**given, "model": {"cache": None, **model}}
    _checked(name, RulerSettings, given)
    return name, given


def _checked(name: str, kind: type[BaseModel], given: dict[str, Any]) -> None:
    try:
        kind.model_validate(given)
    except ValidationError as error:
        raise UsageError("judges.invalid-settings", f"invalid settings of {name}: {faults_of(error)}") from None


def _failure_of(error: JudgeError | TimeoutError) -> str:
    return error.message_with_code if isinstance(error, JudgeError) else ""


@dataclass(frozen=True, slots=True)
class _ChoiceQuestion:
    """A question with somebody's answer in place of the reference."""

    question: str
    answer: str
    query_date: date | None


def _said(episode: Trajectory) -> str | None:
    """An episode's answer; None where there is none, or it says that it does not know."""
    answer = episode.record.answer
    if answer is None or episode.record.does_not_know or phrases.UNKNOWN.search(normalize(answer)):
        return None
    return answer


def _key(answer: str) -> str:
    """The same of answers that differ in nothing but how they are written."""
    return normalize(answer).casefold().strip(" .,;:!?\"'")


async def _alike(
    judge: Judge, question: str, asked_on: date | None, answers: Sequence[str]
) -> Mapping[str, frozenset[str]]:
    """The keys of the answers that each agrees with, by its key.

    Raises:
        JudgeError: two cannot be compared.
    """
    written: dict[str, str] = {}
    for each in sorted(answers):  # of several ways to write one the first, in whatever order they came
        written.setdefault(_key(each), each)
    found = {key: {key} for key in written}
    keys = sorted(written)
    for place, one in enumerate(keys):
        for other in keys[place + 1 :]:
            if await _agree(judge, question, asked_on, written[one], written[other]):
                found[one].add(other)
                found[other].add(one)
            await asyncio.sleep(0)  # rules do not wait for anything, and others have work too
    return {key: frozenset(each) for key, each in found.items()}


async def _agree(judge: Judge, question: str, asked_on: date | None, one: str, other: str) -> bool:
    for reference, answer in ((one, other), (other, one)):
        if not (await judge.verdict(_ChoiceQuestion(question, reference, asked_on), answer)).correct:
            return False
    return True


def _most_agreed(
    group: Sequence[Trajectory], said: Sequence[str | None], alike: Mapping[str, frozenset[str]]
) -> tuple[int, str]:
    """The place of the majority's episode, and why it is that one."""
    keys = [None if each is None else _key(each) for each in said]
    silent = {place for place, key in enumerate(keys) if key is None}
    is_silent = 2 * len(silent) > len(group)
    agreeing = {
        place: silent if key is None else {other for other, its in enumerate(keys) if its in alike[key]}
        for place, key in enumerate(keys)
        if (key is None) == is_silent
    }
    sources = [frozenset(map(bare_id, each.record.sources)) for each in group]

    def rank(place: int) -> tuple[float, ...]:
        own = agreeing[place]
        return len(own), sum(sources[each] == sources[place] for each in own), *_preferred(group[place], place)

    place = max(agreeing, key=rank)
    votes = len(agreeing[place])
    if is_silent:
        return place, f"{votes} of {len(group)} samples have no answer"
    others = any(len(own) == votes and place not in own for own in agreeing.values())
    told = f"{votes} of {len(group)} samples agree"
    return place, f"{told}, and as many on another answer" if others else told


def _preferred(episode: Trajectory, place: int) -> tuple[float, ...]:
    """What decides between equals, the higher first: whether it ended with an answer, how likely it was, how early."""
    logprobs = [each for segment in episode.segments for each in segment.logprobs]
    likely = statistics.fmean(logprobs) if logprobs else float("-inf")
    return float(episode.ending == "answer"), likely, -place


def _without(failed: str, usage: Usage) -> Choice:
    return _counted(Choice(0, "", failed), usage)


def _counted(choice: Choice, usage: Usage) -> Choice:
    return replace(
        choice,
        requests=usage.requests,
        prompt_tokens=usage.prompt_tokens,
        sampled_tokens=usage.completion_tokens,
        dollars=usage.cost,
        seconds=sum(usage.seconds),
    )


async def _ended(
    run: RunSample, samples: int, patience: float | None
) -> tuple[list[tuple[Answer, Trajectory]], list[GumshoeError]]:
    """What the samples came to, in their order, and the failures of the rest.

    Raises:
        GumshoeError: none ended; it is the first one's failure.
    """
    running = [asyncio.ensure_future(run(sample)) for sample in range(samples)]
    try:
        _, late = await asyncio.wait(running, timeout=patience)
        while late and not any(each.done() and each.exception() is None for each in running):
            _, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        ended, failures = [], list[GumshoeError]()
        for each in running:
            failure = (
                each.exception()
                if each.done()
                else LateError("rewards.sample-timeout", "the sample did not end in time")
            )
            if failure is None:
                ended.append(each.result())
            elif isinstance(failure, GumshoeError):
                failures.append(failure)
            else:
                raise failure
        if not ended:
            raise failures[0]
        return ended, failures
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
