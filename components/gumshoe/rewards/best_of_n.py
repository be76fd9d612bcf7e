"""Choose one answer from several samples of a question: by majority (self-consistency), or the best by RULER.

Invariant: the choice never uses the reference answer, nor an episode's record of correct sources. It depends on the
question and on what the episodes said and did.
"""

import asyncio
import hashlib
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gumshoe.environments.search import bare_id
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.inference.policy import MAX_TEMPERATURE
from gumshoe.model_validation import validate_model
from gumshoe.rewards.chat_judge import JudgeModelSettings, Usage, parse_model_name
from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.values import normalize
from gumshoe.rewards.judge import Judge, JudgeError
from gumshoe.rewards.judge_registry import describe_judge, model_of, open_judge, parse_judge, with_own_usage
from gumshoe.rewards.ruler import Ruler, RulerSettings
from gumshoe.rollouts.answer import Answer, Cost
from gumshoe.rollouts.trajectory import Trajectory

MAX_SAMPLES = 64
"""Maximum number of samples per question."""
ChoiceMethod = Literal["majority", "best"]
_COMPARING_JUDGES = ("heuristic", "exact", "openai", "embedding")
_RULER = "ruler"


class SampleTimeoutError(UnavailableError):
    """Report that a sample did not end in time."""


class ChoiceSettings(BaseModel):
    """Number of samples per question, and how one of them is chosen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: Annotated[int, Field(ge=2, le=MAX_SAMPLES)]
    choose: ChoiceMethod = "majority"
    choose_by: Any = None
    """Judge, with or without settings: for `majority`, it compares answers (default: `heuristic`); for `best`, it is
    `ruler:MODEL[@URL]`."""
    temperature: Annotated[float, Field(gt=0, le=MAX_TEMPERATURE)] = 1.0
    """Sampling temperature; at 0 all samples would be identical."""

    @model_validator(mode="after")
    def _known(self) -> "ChoiceSettings":
        _resolve_judge(self)
        return self

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> "ChoiceSettings | None":
        """Validate settings, given by name. Return None for an empty mapping.

        Raises:
            UsageError: if a setting is wrong; the message names it.
        """
        if not settings:
            return None
        return validate_model(cls, settings, "rewards.invalid-choice-settings", "invalid settings for several samples")

    @property
    def judge_name(self) -> str:
        """Name of the judge that compares or chooses, with the settings that change what it chooses."""
        name, settings = _resolve_judge(self)
        described = describe_judge({name: settings})
        if name != _RULER:
            return described
        changed = RulerSettings.model_validate(settings).model_dump(exclude={"model"}, exclude_defaults=True)
        if "rubric" in changed:
            changed["rubric"] = hashlib.sha256(changed["rubric"].encode()).hexdigest()[:8]
        return " ".join([described, *(f"{setting}={value}" for setting, value in changed.items())])

    def open_selector(self) -> "Selector":
        """Create the selector.

        Raises:
            UsageError: if its model cannot be used.
        """
        name, settings = _resolve_judge(self)
        if name == _RULER:
            return BestOfN(Ruler(RulerSettings.model_validate(settings)))
        return SelfConsistency(open_judge({name: settings}))


def parse_choice_options(
    samples: int, choose: str | None, choose_by: Any, temperature: float | None = None
) -> ChoiceSettings | None:
    """Return the settings given by command-line options, or None without `choose`.

    Raises:
        UsageError: if the options do not fit together.
    """
    if choose is None:
        if choose_by is not None:
            raise UsageError(
                "rewards.choice-missing", "--choose-by needs --choose: add --choose majority or --choose best"
            )
        return None
    if samples < 2:
        raise UsageError(
            "rewards.samples-missing", f"--choose needs several samples: set --samples to 2..{MAX_SAMPLES}"
        )
    if temperature == 0:
        raise UsageError(
            "rewards.greedy-samples",
            f"--samples {samples} needs --temperature > 0, got 0: greedy samples are identical",
        )
    given = {"samples": samples, "choose": choose, "choose_by": choose_by, "temperature": temperature}
    return ChoiceSettings.from_mapping({name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen episode of a group, the reason, and the cost of the choice."""

    place: int
    """Index of the episode in the group."""
    why: str
    failed: str = ""
    """Why there is no choice; `place` is then meaningless."""
    requests: int = 0
    """Requests to the judge's model, including failed ones."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0
    """Total duration of the requests."""


class Selector(Protocol):
    """Choose one of several episodes of a question."""

    async def choose(
        self, question: str, asked_on: date | None, group: Sequence[Trajectory], seconds: float | None = None
    ) -> Choice:
        """Choose an episode within `seconds`. If that fails, return a choice with `failed` and its cost.

        Raises:
            UsageError: if the judge's server does not know the model or the key.
        """
        ...

    async def aclose(self) -> None:
        """Close connections and files, if any."""
        ...


@dataclass(frozen=True, slots=True)
class SelfConsistency:
    """Choose the answer that most samples agree with: self-consistency (https://arxiv.org/abs/2203.11171).

    Two answers agree if the judge accepts each with the other as the reference; identical texts always agree. "I don't
    know" and missing answers agree with each other, and win only with more than half of the samples.

    Ties are broken by the number of agreeing samples with the same sources, then by the mean log-probability of the
    sampled tokens if known, then by order. The choice is a whole episode, so that answer and sources belong together.
    """

    judge: Judge

    async def choose(
        self, question: str, asked_on: date | None, group: Sequence[Trajectory], seconds: float | None = None
    ) -> Choice:
        """Choose the majority's episode. See `Selector.choose`."""
        judge = with_own_usage(self.judge)
        model = model_of(judge)
        usage = Usage() if model is None else model.usage
        answers = [_get_answer(each) for each in group]
        try:
            async with asyncio.timeout(seconds):
                agreeing = await _find_agreeing(
                    judge, question, asked_on, [each for each in answers if each is not None]
                )
        except (JudgeError, TimeoutError) as error:
            return _failed_choice(
                _describe_failure(error) or f"the answers were not compared within {seconds:g} seconds", usage
            )
        place, why = _choose_majority(group, answers, agreeing)
        return _with_usage(Choice(place, why), usage)

    async def aclose(self) -> None:
        """Close the judge."""
        await self.judge.aclose()


@dataclass(frozen=True, slots=True)
class BestOfN:
    """Choose the sample with the highest RULER score. Ties are broken as in `SelfConsistency`."""

    ruler: Ruler

    async def choose(
        self,
        question: str,  # noqa: ARG002 - it is in the episodes' prompts
        asked_on: date | None,  # noqa: ARG002
        group: Sequence[Trajectory],
        seconds: float | None = None,
    ) -> Choice:
        """Choose the best episode. See `Selector.choose`."""
        ruler = self.ruler.with_own_usage()
        try:
            async with asyncio.timeout(seconds):
                found = await ruler.scores(group)
        except (JudgeError, TimeoutError) as error:
            failure = _describe_failure(error) or f"the judge did not answer within {seconds:g} seconds"
            return _failed_choice(failure, ruler.model.usage)
        place = max(range(len(group)), key=lambda each: (found.scores[each], *_tie_break(group[each], each)))
        why = f"scored {found.scores[place]:.2f}, the highest of {len(group)}: {found.explanations[place]}"
        return _with_usage(Choice(place, why), ruler.model.usage)

    async def aclose(self) -> None:
        """Close the ruler."""
        await self.ruler.aclose()


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """An answer chosen among several samples."""

    answer: Answer
    """The answer, with the cost of all samples."""
    how: Literal["chosen", "only", "first"]
    """"chosen" by the selector, the "only" sample that ended, or the "first" one because the judge failed."""
    judge_error: str
    """Error of the judge, if it failed. It may quote the episodes."""
    failures: tuple[GumshoeError, ...]
    """Errors of the samples that did not end."""


RunSample = Callable[[int], Awaitable[tuple[Answer, Trajectory]]]
"""Run one sample of a question, given its number from 0."""


async def answer_with_samples(
    run: RunSample,
    settings: ChoiceSettings,
    selector: Selector,
    asked: tuple[str, date | None],
    *,
    patience: float | None = None,
    judge_patience: float | None = None,
) -> SampledAnswer:
    """Run the samples of a question concurrently and choose one. Samples that fail are ignored if another one ends.

    `asked` is the question and its date. After `patience` seconds the remaining samples are cancelled, if any has
    ended. If the judge fails, or is not done `judge_patience` seconds after the start, the first sample with an answer
    is taken.

    Raises:
        GumshoeError: if no sample ended; it is the error of the first one.
    """
    started = time.monotonic()
    ended, failures = await _run_samples(run, settings.samples, patience)
    answers, group = [each for each, _ in ended], [each for _, each in ended]
    how: Literal["chosen", "only", "first"] = "chosen"
    if len(group) == 1:
        choice, how = Choice(0, f"the only sample of {settings.samples} that ended"), "only"
    else:
        left = None if judge_patience is None else max(0.0, judge_patience - (time.monotonic() - started))
        try:
            choice = await selector.choose(*asked, group, left)
        except UsageError as error:
            choice = Choice(0, "", error.message_with_code)
        if choice.failed:
            first = next((place for place, each in enumerate(answers) if each.success), 0)
            choice, how = replace(choice, place=first, why="the first sample, because the judge failed"), "first"
    cost = total_cost(group, choice, failed=len(failures))
    chosen = replace(answers[choice.place], seconds=time.monotonic() - started, cost=cost, chosen=choice.why)
    return SampledAnswer(chosen, how, choice.failed, tuple(failures))


def total_cost(group: Sequence[Trajectory], choice: Choice, failed: int = 0) -> Cost:
    """Return the total cost of all samples of a question and of the choice."""
    alone = Cost.from_episodes(group, failed)
    return replace(
        alone,
        seconds=alone.seconds + choice.seconds,
        longest=alone.longest + choice.seconds,
        judge_requests=choice.requests,
        judge_prompt_tokens=choice.prompt_tokens,
        judge_sampled_tokens=choice.sampled_tokens,
        judge_dollars=choice.dollars,
    )


def _resolve_judge(settings: ChoiceSettings) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of the judge that compares or chooses.

    Raises:
        UsageError: if it does not exist, or cannot do that.
    """
    if settings.choose == "majority":
        name, given = parse_judge("heuristic" if settings.choose_by is None else settings.choose_by)
        if name not in _COMPARING_JUDGES:
            hint = "; ruler chooses the best sample" if name == _RULER else ""
            raise UsageError(
                "rewards.cannot-compare",
                f"choose_by: {name!r} does not compare answers; use one of {', '.join(_COMPARING_JUDGES)}{hint}",
            )
        if name == "openai":
            given = {"cache": None, **given}
            validate_model(JudgeModelSettings, given, "judges.invalid-settings", "invalid settings of openai")
        if name == "heuristic" and "undecided" in given:
            second, settings_of_second = parse_judge(given["undecided"])
            if second == "openai":
                given = {**given, "undecided": {second: {"cache": None, **settings_of_second}}}
        return name, given
    if settings.choose_by is None:
        raise UsageError(
            "rewards.chooser-missing",
            "choose_by is missing: choosing the best sample needs a judge; use ruler:MODEL or ruler:MODEL@URL",
        )
    name, given = parse_judge(settings.choose_by)
    if name in _COMPARING_JUDGES:
        raise UsageError(
            "rewards.chooser-needs-reference",
            f"choose_by: {name!r} needs the reference answer, which is not known here; use ruler:MODEL or "
            "ruler:MODEL@URL",
        )
    if name != _RULER:
        raise UsageError(
            "rewards.unknown-chooser",
            f"choose_by: {name!r} cannot choose the best sample; use ruler:MODEL or ruler:MODEL@URL",
        )
    model = given.get("model", {})
    model = parse_model_name(model) if isinstance(model, str) else model
    if isinstance(model, Mapping):  # no cache: cached answers report no cost, and are stored on disk
        given = {**given, "model": {"cache": None, **model}}
    validate_model(RulerSettings, given, "judges.invalid-settings", "invalid settings of ruler")
    return name, given


def _describe_failure(error: JudgeError | TimeoutError) -> str:
    return error.message_with_code if isinstance(error, JudgeError) else ""


@dataclass(frozen=True, slots=True)
class _ChoiceQuestion:
    """A question with a sampled answer instead of the reference."""

    question: str
    answer: str
    query_date: date | None


def _get_answer(episode: Trajectory) -> str | None:
    """Return an episode's answer, or None without an answer or if it is "I don't know"."""
    answer = episode.record.answer
    if answer is None or episode.record.does_not_know or phrases.UNKNOWN.search(normalize(answer)):
        return None
    return answer


def _answer_key(answer: str) -> str:
    """Return a key that is the same for answers that differ in case, spaces or punctuation only."""
    return normalize(answer).casefold().strip(" .,;:!?\"'")


async def _find_agreeing(
    judge: Judge, question: str, asked_on: date | None, answers: Sequence[str]
) -> Mapping[str, frozenset[str]]:
    """Return, by the key of each answer, the keys of all answers that it agrees with.

    Raises:
        JudgeError: if the judge cannot compare two answers.
    """
    written: dict[str, str] = {}
    for each in sorted(answers):  # the result must not depend on the order of the answers
        written.setdefault(_answer_key(each), each)
    found = {key: {key} for key in written}
    keys = sorted(written)
    for place, one in enumerate(keys):
        for other in keys[place + 1 :]:
            if await _agree(judge, question, asked_on, written[one], written[other]):
                found[one].add(other)
                found[other].add(one)
            await asyncio.sleep(0)  # rule-based judges never wait; let other tasks run
    return {key: frozenset(each) for key, each in found.items()}


async def _agree(judge: Judge, question: str, asked_on: date | None, one: str, other: str) -> bool:
    for reference, answer in ((one, other), (other, one)):
        if not (await judge.verdict(_ChoiceQuestion(question, reference, asked_on), answer)).correct:
            return False
    return True


def _choose_majority(
    group: Sequence[Trajectory], answers: Sequence[str | None], agreeing: Mapping[str, frozenset[str]]
) -> tuple[int, str]:
    """Return the index of the majority's episode, and the reason."""
    keys = [None if each is None else _answer_key(each) for each in answers]
    unanswered = {place for place, key in enumerate(keys) if key is None}
    is_unanswered = 2 * len(unanswered) > len(group)
    supporters = {
        place: unanswered if key is None else {other for other, its in enumerate(keys) if its in agreeing[key]}
        for place, key in enumerate(keys)
        if (key is None) == is_unanswered
    }
    sources = [frozenset(map(bare_id, each.record.sources)) for each in group]

    def rank(place: int) -> tuple[float, ...]:
        own = supporters[place]
        return len(own), sum(sources[each] == sources[place] for each in own), *_tie_break(group[place], place)

    place = max(supporters, key=rank)
    votes = len(supporters[place])
    if is_unanswered:
        return place, f"{votes} of {len(group)} samples have no answer"
    is_tie = any(len(own) == votes and place not in own for own in supporters.values())
    why = f"{votes} of {len(group)} samples agree"
    return place, f"{why}, and as many on another answer" if is_tie else why


def _tie_break(episode: Trajectory, place: int) -> tuple[float, ...]:
    """Return the key that breaks ties, higher first: ended with an answer, mean log-probability, earlier."""
    logprobs = [each for span in episode.spans for each in span.logprobs]
    likely = statistics.fmean(logprobs) if logprobs else float("-inf")
    return float(episode.ending == "answer"), likely, -place


def _failed_choice(failed: str, usage: Usage) -> Choice:
    return _with_usage(Choice(0, "", failed), usage)


def _with_usage(choice: Choice, usage: Usage) -> Choice:
    return replace(
        choice,
        requests=usage.requests,
        prompt_tokens=usage.prompt_tokens,
        sampled_tokens=usage.completion_tokens,
        dollars=usage.cost,
        seconds=sum(usage.seconds),
    )


async def _run_samples(
    run: RunSample, samples: int, patience: float | None
) -> tuple[list[tuple[Answer, Trajectory]], list[GumshoeError]]:
    """Run all samples. Return the results of those that ended, in order, and the errors of the others.

    Raises:
        GumshoeError: if no sample ended; it is the error of the first one.
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
                else SampleTimeoutError("rewards.sample-timeout", "the sample did not end in time")
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
