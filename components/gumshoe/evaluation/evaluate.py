"""Run policies over scenarios, judge what they answered, and write down what came of it.

What always holds: an episode that is on file is not run again; and nothing is measured before every question has its
episodes and its verdicts, for what is missing is rarely missing by chance.
"""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gumshoe.agent.policies import PolicyName
from gumshoe.agent.run import Settings, chosen_scenarios, read_trajectories, run_to_file
from gumshoe.agent.trajectory import Trajectory
from gumshoe.artifacts.private import mark
from gumshoe.artifacts.storage import explained, write_atomically
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.evaluation.comparison import compared
from gumshoe.evaluation.metrics import Price, by_kind, measured
from gumshoe.evaluation.predictions import Prediction, by_question, write_predictions, write_table
from gumshoe.evaluation.results import (
    METRICS_FILE,
    PREDICTIONS,
    REPORT,
    TABLE,
    Agreement,
    EvaluationResult,
    JudgeResult,
    PolicyResult,
)
from gumshoe.evaluation.statistics import cohens_kappa
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.functions import rubric
from gumshoe.rewards.judge import Asked, Judge, Verdict
from gumshoe.rewards.judges import OpenAIJudge, named_settings, open_judge
from gumshoe.rewards.scoring import Judged, at_once, judge_one
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.terminal import Advance

TRAJECTORIES = "trajectories"
"""The folder of an evaluation that holds a file of them for each policy."""
_BEGUN = "evaluation.json"  # what was begun, so that nothing else is added to it
_LABEL = re.compile(r"([A-Za-z0-9][\w.-]{0,63})=(.+)", re.S)
_ADDRESS = re.compile(r"https?://[^#]*")  # a server may have another when it is started again
_UNFIT = re.compile(r"[^\w.-]+")

Watch = Callable[[str], AbstractContextManager[Advance]]
"""Shows the progress of a stage."""


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy to evaluate, and what it is called."""

    name: str
    word: str

    @classmethod
    def parse(cls, text: str) -> "NamedPolicy":
        """`NAME=WORD`, or a word alone, which is then called by its version."""
        labelled = _LABEL.fullmatch(text)
        if labelled:
            return cls(labelled[1], labelled[2])
        return cls(_UNFIT.sub("-", PolicyName.parse(text).version).strip("-.")[-64:], text)


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """What an evaluation is to do; the command line's options."""

    rollout: Settings
    """For each policy; its `policy` is left out."""
    policies: tuple[NamedPolicy, ...]
    judges: tuple[Any, ...] = ("heuristic",)
    """As `open_judge` takes them: one, which decides, or two."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By the policies' names."""
    adapters: tuple[tuple[str, Path], ...] = ()
    """Directories of adapters, with the names of the policies that use them: what they learned from is read there."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation with all that it is made of."""

    result: EvaluationResult
    scenarios: ScenarioSet
    predictions: list[Prediction]
    trajectories: dict[str, list[Trajectory]]
    """By the policies' names, in the order of their predictions."""


async def evaluate(settings: EvaluationSettings, directory: Path, watch: Watch) -> Evaluated:
    """Run what a directory lacks, judge, measure, and write all but the report.

    Raises:
        UsageError: the settings cannot be carried out; nothing was begun.
        SeenScenarioError: a policy learned from these scenarios, or was chosen on them.
        UnavailableError: some questions have no episode, or some answers no verdict; run it again for them.
    """
    scenarios = chosen_scenarios(settings.rollout)
    unseen = _check(settings, scenarios)
    async with AsyncExitStack() as open_judges:
        judges = []
        for each in settings.judges:
            judge = open_judge(each)
            open_judges.push_async_callback(judge.aclose)
            judges.append((_name_of(each), judge))
        _begin(directory, settings, scenarios)
        trajectories = await _rolled_out(settings, directory, scenarios, watch)
        predictions = []
        for name, found in trajectories.items():
            with watch(f"Judging {name}") as advance:
                predictions += await _judged(name, found, scenarios, judges, advance)
        used = tuple(
            JudgeResult(name=name, usage=judge.model.usage.numbers() if isinstance(judge, OpenAIJudge) else {})
            for name, judge in judges
        )
    result = _result(settings, scenarios, predictions, used, unseen)
    with explained(directory):
        write_predictions(directory / PREDICTIONS, predictions)
        write_table(directory / TABLE, predictions)
        result.write(directory)
    return Evaluated(result, scenarios, predictions, trajectories)


def _check(settings: EvaluationSettings, scenarios: ScenarioSet) -> set[str]:
    """The names of the policies that are known not to have seen the scenarios."""
    names = [each.name for each in settings.policies]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise UsageError(f"two policies would be called {twice!r}; name them, as in first={settings.policies[0].word}")
    if not 1 <= len(settings.judges) <= 2:
        raise UsageError(f"{len(settings.judges)} judges were named; name one, or two to compare them")
    for what, named in (("price", set(settings.prices)), ("adapter", {name for name, _ in settings.adapters})):
        unknown = next((each for each in named if each not in names), None)
        if unknown is not None:
            raise UsageError(f"there is no policy {unknown!r} for that {what}; there are {', '.join(names)}")
    takes_tokenizer, unseen = [], set[str]()
    for each in settings.policies:
        policy = PolicyName.parse(each.word)
        takes_tokenizer.append(policy.takes_tokenizer)
        if policy.kind == "vllm" and settings.rollout.tokenizer is None:
            raise UsageError(f"{each.name} takes token ids, and needs its model's tokenizer; name it with --tokenizer")
        own = [place for name, place in settings.adapters if name == each.name]
        for place in [*own, *([policy.adapter] if policy.adapter else [])]:
            lineage = Lineage.read(place)
            if lineage:
                lineage.check_unseen(scenarios, each.name)
                unseen.add(each.name)
            elif place in own:
                raise UsageError(f"{place} does not say what {each.name} learned from; leave that adapter out")
    if settings.rollout.tokenizer is not None and not any(takes_tokenizer):
        raise UsageError("none of these policies takes a tokenizer of yours; leave --tokenizer out")
    return unseen


def _begin(directory: Path, settings: EvaluationSettings, scenarios: ScenarioSet) -> None:
    """Note what the directory is for, or see that it is for the same."""
    rollout = settings.rollout
    noted = {"scenarios": scenarios.content, "index": MailIndex(rollout.index).stats()["content"]}
    noted |= {"samples": rollout.samples} | rollout.of_an_episode
    for each in settings.policies:
        policy = PolicyName.parse(each.word)
        noted |= {f"policy {each.name}": _ADDRESS.sub("", each.word), f"weights of {each.name}": policy.weights}
        if policy.takes_tokenizer:
            noted[f"tokenizer of {each.name}"] = rollout.tokenizer
    path = directory / _BEGUN
    mark(directory, scenarios.inboxes)
    with explained(directory):
        (directory / TRAJECTORIES).mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, io.BytesIO(json.dumps(noted, indent=2).encode() + b"\n"))
            return
        try:
            before = dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            raise UsageError(f"{path} is damaged; choose another directory") from None
    other = [name for name, value in noted.items() if before.get(name, value) != value]
    if other:
        raise UsageError(
            f"{directory} holds an evaluation with other {' and '.join(other)}; choose another directory, or evaluate "
            "as it was begun"
        )
    with explained(directory):
        write_atomically(path, io.BytesIO(json.dumps(before | noted, indent=2).encode() + b"\n"))
        for name in (METRICS_FILE, PREDICTIONS, TABLE, REPORT):  # they would tell of what was measured before
            (directory / name).unlink(missing_ok=True)


async def _rolled_out(
    settings: EvaluationSettings, directory: Path, scenarios: ScenarioSet, watch: Watch
) -> dict[str, list[Trajectory]]:
    """All episodes of each policy.

    Raises:
        UnavailableError: some could not be had.
    """
    found: dict[str, list[Trajectory]] = {}
    failures: list[str] = []
    order = {scenario.id: place for place, scenario in enumerate(scenarios)}
    for each in settings.policies:
        path = directory / TRAJECTORIES / f"{each.name}.jsonl"
        tokenizer = settings.rollout.tokenizer if PolicyName.parse(each.word).takes_tokenizer else None
        with watch(each.name) as advance:
            report = await run_to_file(replace(settings.rollout, policy=each.word, tokenizer=tokenizer), path, advance)
        if report.dropped:
            scenario, cause = next(iter(report.dropped_groups.items()))
            failures.append(f"{each.name} has no answer to {report.dropped:,} questions (of {scenario}: {cause})")
            continue
        episodes = [episode for episode in read_trajectories(path) if episode.scenario in order]
        found[each.name] = sorted(episodes, key=lambda episode: (order[episode.scenario], episode.sample))
    if failures:
        raise UnavailableError(f"{'; '.join(failures)}; run this again for them, what was answered is kept")
    return found


class _Known:
    """A judge whose verdict is known."""

    def __init__(self, correct: bool) -> None:
        self._verdict = Verdict(correct, "")

    async def verdict(self, asked: Asked, answer: str) -> Verdict:  # noqa: ARG002
        """As `Judge.verdict`."""
        return self._verdict

    async def aclose(self) -> None:
        """As `Judge.aclose`."""


async def _judged(
    policy: str,
    trajectories: Sequence[Trajectory],
    scenarios: ScenarioSet,
    judges: Sequence[tuple[str, Judge]],
    advance: Advance,
) -> list[Prediction]:
    by_id: dict[str, Scenario] = {scenario.id: scenario for scenario in scenarios}

    async def judged(each: Trajectory) -> tuple[Trajectory, list[tuple[str, Judged]], float]:
        asked = by_id[each.scenario]
        verdicts = [(name, await judge_one(each, asked, judge)) for name, judge in judges]
        return each, verdicts, await rubric(each, asked, judge=_Known(verdicts[0][1].correct is True))

    found = await at_once(judged, trajectories, advance)
    missing = [(name, verdict.why) for _, verdicts, _ in found for name, verdict in verdicts if verdict.correct is None]
    if missing:
        judge, why = missing[0]
        raise UnavailableError(
            f"{len(missing):,} answers of {policy} have no verdict of {judge} ({why}); run this again for them, what "
            "was answered and judged is kept"
        )
    return [Prediction.of(policy, by_id[each.scenario], each, verdicts, reward) for each, verdicts, reward in found]


def _result(
    settings: EvaluationSettings,
    scenarios: ScenarioSet,
    predictions: Sequence[Prediction],
    judges: tuple[JudgeResult, ...],
    unseen: set[str],
) -> EvaluationResult:
    policies = []
    for each in settings.policies:
        own = [prediction for prediction in predictions if prediction.policy == each.name]
        questions = by_question(own)
        policies.append(
            PolicyResult(
                name=each.name,
                policy=each.word,
                version=PolicyName.parse(each.word).version,
                is_unseen=each.name in unseen,
                episodes=len(own),
                run_again=sum(prediction.tries - 1 for prediction in own),
                metrics=measured(own, settings.prices.get(each.name)),
                kinds=by_kind(own),
                agreement=_agreement(own, tuple(judge.name for judge in judges)),
                control_reward_map={asked: tuple(one.reward for one in group) for asked, group in questions.items()},
                correct_map={asked: tuple(one.correct for one in group) for asked, group in questions.items()},
            )
        )
    rollout = settings.rollout
    return EvaluationResult(
        scenarios=scenarios.record(),
        index=MailIndex(rollout.index).stats()["content"],
        split=rollout.split,
        is_whole=rollout.limit is None or len(chosen_scenarios(replace(rollout, limit=None))) == len(scenarios),
        samples=rollout.samples,
        settings=rollout.of_an_episode,
        judges=judges,
        policies=tuple(policies),
        comparisons=tuple(compared(each, policies[0]) for each in policies[1:]),
    )


def _agreement(predictions: Sequence[Prediction], judges: tuple[str, ...]) -> Agreement | None:
    if len(judges) < 2:
        return None
    judged = [each for each in predictions if each.answer is not None and not each.does_not_know]
    one, other = ([each.verdicts[place].correct for each in judged] for place in (0, 1))
    differing = [each for each, mine, theirs in zip(judged, one, other, strict=True) if mine != theirs]
    return Agreement(
        judges=(judges[0], judges[1]),
        answers=len(judged),
        agreed=len(judged) - len(differing),
        kappa=cohens_kappa(one, other) if judged else None,
        disagreements=tuple(f"{each.scenario}/{each.sample}" for each in differing),
    )


def _name_of(judge: Any) -> str:
    name, settings = named_settings(judge)
    model = f":{settings['model']}" if "model" in settings else ""
    return f"{name}{model}" + (f" over {settings['threshold']:g}" if "threshold" in settings else "")
