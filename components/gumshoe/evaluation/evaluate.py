"""Run policies over scenarios, judge what they answered, and write down what came of it.

What always holds: an episode that is on file is not run again; and nothing is measured before every question has its
episodes and its verdicts, for what is missing is rarely missing by chance.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gumshoe.artifacts.private_data import mark
from gumshoe.artifacts.storage import explain_os_errors, held_file, write_atomically
from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.metrics import Price, by_kind, compute_metrics
from gumshoe.evaluation.predictions import ChosenAnswer, Prediction, by_question, write_predictions, write_table
from gumshoe.evaluation.results import (
    METRICS_FILE,
    PREDICTIONS,
    REPORT,
    TABLE,
    Agreement,
    ChoiceResult,
    EvaluationResult,
    JudgeResult,
    PolicyResult,
)
from gumshoe.evaluation.statistics import cohens_kappa
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rewards.best_of_n import Choice, ChoiceSettings, Selector, cost_of
from gumshoe.rewards.builtin_rewards import rubric
from gumshoe.rewards.judge import Judge, JudgedQuestion, Verdict
from gumshoe.rewards.judge_registry import OpenAIJudge, named_settings, open_judge
from gumshoe.rewards.scoring import JudgedTrajectory, at_once, judge_one
from gumshoe.rollouts.sessions import env_for_policy
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import RolloutOptions, chosen_scenarios, read_trajectories, run_to_file
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.terminal import Advance

TRAJECTORIES = "trajectories"
"""The folder of an evaluation that holds a file of them for each policy."""
CHOICES = "choices"
"""The folder that holds a file of what was chosen for each policy, where that was asked of a model."""
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
class EvaluationRequest:
    """What an evaluation is to do; the command line's options."""

    rollout: RolloutOptions
    """For each policy; its `policy` is left out."""
    policies: tuple[NamedPolicy, ...]
    judges: tuple[Any, ...] = ("heuristic",)
    """As `open_judge` takes them: one, which decides, or two."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By the policies' names."""
    adapters: tuple[tuple[str, Path], ...] = ()
    """Directories of adapters, with the names of the policies that use them: what they learned from is read there."""
    choice: ChoiceSettings | None = None
    """Where one of the rollout's samples is chosen as a question's answer. Which, is decided when all are run: the same
    samples serve any way to choose."""


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """An evaluation with all that it is made of."""

    result: EvaluationResult
    scenarios: ScenarioSet
    predictions: list[Prediction]
    trajectories: dict[str, list[Trajectory]]
    """By the policies' names, in the order of their predictions; those that were not chosen are left out."""
    world: EnvFactory


async def evaluate(settings: EvaluationRequest, directory: Path, watch: Watch) -> EvaluationRun:
    """Run what a directory lacks, judge, measure, and write all but the report.

    Raises:
        UsageError: the settings cannot be carried out; nothing was begun.
        SeenScenarioError: a policy learned from these scenarios, or was chosen on them.
        UnavailableError: some questions have no episode, or some answers no verdict; run it again for them.
    """
    scenarios = chosen_scenarios(settings.rollout)
    unseen = _check(settings, scenarios)
    world = open_env(settings.rollout.index, settings.rollout.environment)
    async with AsyncExitStack() as open_judges:
        judges = []
        for each in settings.judges:
            judge = open_judge(each)
            open_judges.push_async_callback(judge.aclose)
            judges.append((_name_of(each), judge))
        chooser = settings.choice.opened() if settings.choice else None
        if chooser is not None:
            open_judges.push_async_callback(chooser.aclose)
        _begin(directory, settings, scenarios, world)
        trajectories = await _rolled_out(settings, directory, scenarios, world, watch)
        predictions = []
        for name, found in trajectories.items():
            choices: dict[str, Choice] = {}
            if settings.choice and chooser:
                with watch(f"Choosing for {name}") as advance:
                    path = directory / CHOICES / f"{name}.jsonl"
                    choices = await _chosen(name, found, scenarios, settings.choice, chooser, path, advance)
            with watch(f"Judging {name}") as advance:
                judged = await _judged(name, found, scenarios, judges, advance)
            if choices:
                judged, trajectories[name] = _only_chosen(judged, found, choices)
            predictions += judged
        used = tuple(
            JudgeResult(name=name, usage=judge.model.usage.numbers() if isinstance(judge, OpenAIJudge) else {})
            for name, judge in judges
        )
    result = _result(settings, scenarios, world, predictions, used, unseen)
    with explain_os_errors(directory):
        write_predictions(directory / PREDICTIONS, predictions)
        write_table(directory / TABLE, predictions)
        result.write(directory)
    return EvaluationRun(result, scenarios, predictions, trajectories, world)


def _check(settings: EvaluationRequest, scenarios: ScenarioSet) -> set[str]:
    """The names of the policies that are known not to have seen the scenarios."""
    names = [each.name for each in settings.policies]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise UsageError(
            "evaluation.duplicate-policy-name",
            f"two policies have the name {twice!r}; name each one, e.g. first={settings.policies[0].word}",
        )
    if not 1 <= len(settings.judges) <= 2:
        raise UsageError("evaluation.wrong-judge-count", f"expected 1 or 2 judges, got {len(settings.judges)}")
    for what, named in (("price", set(settings.prices)), ("adapter", {name for name, _ in settings.adapters})):
        unknown = next((each for each in named if each not in names), None)
        if unknown is not None:
            raise UsageError(
                "evaluation.option-for-unknown-policy",
                f"--{what} names the unknown policy {unknown!r}; use one of {', '.join(names)}",
            )
    takes_tokenizer, unseen = [], set[str]()
    for each in settings.policies:
        policy = PolicyName.parse(each.word)
        takes_tokenizer.append(policy.takes_tokenizer)
        if policy.kind == "vllm" and settings.rollout.tokenizer is None:
            raise UsageError(
                "inference.tokenizer-required",
                f"{each.name} ({each.word}) needs its model's tokenizer: add --tokenizer",
            )
        own = [place for name, place in settings.adapters if name == each.name]
        merged = [Path(policy.base).expanduser()] if policy.kind in ("local", "transformers") else []
        for place in [*own, *([policy.adapter] if policy.adapter else []), *merged]:
            lineage = Lineage.read(place)
            if lineage:
                lineage.check_unseen(scenarios, each.name)
                unseen.add(each.name)
            elif place in own:
                raise UsageError(
                    "evaluation.lineage-missing",
                    f"no record of what {each.name} was trained on in {place}; remove this --adapter",
                )
    if settings.rollout.tokenizer is not None and not any(takes_tokenizer):
        raise UsageError(
            "inference.tokenizer-not-accepted",
            f"no policy of {', '.join(names)} takes a --tokenizer; remove that option",
        )
    return unseen


def _begin(directory: Path, settings: EvaluationRequest, scenarios: ScenarioSet, world: EnvFactory) -> None:
    """Note what the directory is for, or see that it is for the same."""
    rollout = settings.rollout
    noted: dict[str, Any] = {"scenarios": scenarios.content, "index": world.content, "samples": rollout.samples}
    noted |= rollout.of_an_episode | world.provenance
    for each in settings.policies:
        policy = PolicyName.parse(each.word)
        noted |= {f"policy {each.name}": _ADDRESS.sub("", each.word), f"weights of {each.name}": policy.weights}
        if policy.takes_tokenizer:
            noted[f"tokenizer of {each.name}"] = rollout.tokenizer
    path = directory / _BEGUN
    mark(directory, scenarios.inboxes)
    with explain_os_errors(directory):
        (directory / TRAJECTORIES).mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, io.BytesIO(json.dumps(noted, indent=2).encode() + b"\n"))
            return
        try:
            before = dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            raise UsageError(
                "evaluation.state-damaged", f"{path} is not valid JSON; use another --out directory"
            ) from None
    other = [name for name, value in noted.items() if before.get(name, value) != value]
    if other:
        raise UsageError(
            "evaluation.settings-changed",
            f"{directory} holds an evaluation with different settings: {', '.join(other)}; use another directory, or "
            "the same settings",
        )
    with explain_os_errors(directory):
        write_atomically(path, io.BytesIO(json.dumps(before | noted, indent=2).encode() + b"\n"))
        for name in (METRICS_FILE, PREDICTIONS, TABLE, REPORT):  # they would tell of what was measured before
            (directory / name).unlink(missing_ok=True)


async def _rolled_out(
    settings: EvaluationRequest, directory: Path, scenarios: ScenarioSet, world: EnvFactory, watch: Watch
) -> dict[str, list[Trajectory]]:
    """All episodes of each policy.

    Raises:
        UnavailableError: some have no answer.
    """
    found: dict[str, list[Trajectory]] = {}
    failures: list[str] = []
    order = {scenario.id: place for place, scenario in enumerate(scenarios)}
    for each in settings.policies:
        path = directory / TRAJECTORIES / f"{each.name}.jsonl"
        tokenizer = settings.rollout.tokenizer if PolicyName.parse(each.word).takes_tokenizer else None
        with watch(each.name) as advance:
            own = replace(settings.rollout, policy=each.word, tokenizer=tokenizer)
            report = await run_to_file(own, path, advance, world)
        if report.dropped:
            scenario, cause = next(iter(report.dropped_groups.items()))
            failures.append(f"{each.name} did not answer {report.dropped:,} questions, e.g. {scenario}: {cause}")
            continue
        episodes = [episode for episode in read_trajectories(path) if episode.scenario in order]
        found[each.name] = sorted(episodes, key=lambda episode: (order[episode.scenario], episode.sample))
    if failures:
        raise UnavailableError(
            "evaluation.questions-unanswered", f"{'; '.join(failures)}; run the command again for the missing answers"
        )
    return found


async def _chosen(
    policy: str,
    trajectories: Sequence[Trajectory],
    scenarios: ScenarioSet,
    settings: ChoiceSettings,
    chooser: Selector,
    path: Path,
    advance: Advance,
) -> dict[str, Choice]:
    """The choice among the samples of each question. What a model chose is kept, and not asked again, nor is its cost
    forgotten; the key is all that it was asked by.

    Raises:
        UnavailableError: some have none.
    """
    groups: dict[str, list[Trajectory]] = {}
    for each in trajectories:
        groups.setdefault(each.scenario, []).append(each)
    by_id = {scenario.id: scenario for scenario in scenarios}
    told = settings.model_dump_json(include={"choose", "choose_by"})
    with ExitStack() as held:
        with explain_os_errors(path):
            path.parent.mkdir(exist_ok=True)
            file = held.enter_context(held_file(path))
            file.seek(0)
            content = file.read()
            kept = _kept(content)
            if not content.endswith(b"\n"):
                file.write(b"\n")  # after a line that was cut off

        async def chosen(group: list[Trajectory]) -> tuple[str, Choice]:
            asked = by_id[group[0].scenario]
            texts = [told, asked.question, str(asked.query_date), *(each.to_json() for each in group)]
            key = hashlib.sha256("\0".join(texts).encode()).hexdigest()
            if key not in kept:
                kept[key] = await chooser.choose(asked.question, asked.query_date, group)
                if kept[key].requests and not kept[key].failed:
                    with explain_os_errors(path):
                        file.write(json.dumps({"key": key, **asdict(kept[key])}).encode() + b"\n")
                        file.flush()
            return asked.id, kept[key]

        found = await at_once(chosen, list(groups.values()), advance)
    failed = [choice.failed for _, choice in found if choice.failed]
    if failed:
        raise UnavailableError(
            "evaluation.choices-missing",
            f"{settings.by} chose no sample of {policy} for {len(failed):,} questions, e.g.: {failed[0]}; run the "
            "command again for them",
        )
    return dict(found)


def _kept(content: bytes) -> dict[str, Choice]:
    """The choices of a file, by their keys; a line that was cut off is left out."""
    found = {}
    for line in content.splitlines():
        try:
            fields: dict[str, Any] = json.loads(line)
            key = fields.pop("key")
            found[key] = Choice(**fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _only_chosen(
    judged: Sequence[Prediction], trajectories: Sequence[Trajectory], choices: Mapping[str, Choice]
) -> tuple[list[Prediction], list[Trajectory]]:
    """Of each question the episode that was chosen, with what it was chosen from."""
    groups: dict[str, list[tuple[Prediction, Trajectory]]] = {}
    for each in zip(judged, trajectories, strict=True):
        groups.setdefault(each[0].scenario, []).append(each)
    predictions, episodes = [], []
    for scenario, group in groups.items():
        choice = choices[scenario]
        prediction, trajectory = group[choice.place]
        chosen = ChosenAnswer(
            why=choice.why,
            correct=tuple(each.correct for each, _ in group),
            run_again=sum(each.tries - 1 for each, _ in group),
            cost=cost_of([each for _, each in group], choice),
        )
        predictions.append(prediction.model_copy(update={"chosen": chosen}))
        episodes.append(trajectory)
    return predictions, episodes


class _Known:
    """A judge whose verdict is known."""

    def __init__(self, correct: bool) -> None:
        self._verdict = Verdict(correct, "")

    async def verdict(self, asked: JudgedQuestion, answer: str) -> Verdict:  # noqa: ARG002
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

    async def judged(each: Trajectory) -> tuple[Trajectory, list[tuple[str, JudgedTrajectory]], float]:
        asked = by_id[each.scenario]
        verdicts = [(name, await judge_one(each, asked, judge)) for name, judge in judges]
        return each, verdicts, await rubric(each, asked, judge=_Known(verdicts[0][1].correct is True))

    found = await at_once(judged, trajectories, advance)
    missing = [(name, verdict.why) for _, verdicts, _ in found for name, verdict in verdicts if verdict.correct is None]
    if missing:
        judge, why = missing[0]
        raise UnavailableError(
            "evaluation.verdicts-missing",
            f"{judge} gave no verdict on {len(missing):,} answers of {policy}, e.g.: {why}; run the command "
            "again for them",
        )
    return [Prediction.of(policy, by_id[each.scenario], each, verdicts, reward) for each, verdicts, reward in found]


def _result(
    settings: EvaluationRequest,
    scenarios: ScenarioSet,
    world: EnvFactory,
    predictions: Sequence[Prediction],
    judges: tuple[JudgeResult, ...],
    unseen: set[str],
) -> EvaluationResult:
    policies = []
    for each in settings.policies:
        own = [prediction for prediction in predictions if prediction.policy == each.name]
        questions = by_question(own)
        policy = PolicyName.parse(each.word)
        policies.append(
            PolicyResult(
                name=each.name,
                policy=each.word,
                version=policy.version,
                environment=env_for_policy(world, policy).provenance["environment"],
                is_unseen=each.name in unseen,
                episodes=sum(each.chosen.cost.samples if each.chosen else 1 for each in own),
                run_again=sum(each.chosen.run_again if each.chosen else each.tries - 1 for each in own),
                metrics=compute_metrics(own, settings.prices.get(each.name)),
                kinds=by_kind(own),
                agreement=_agreement(own, tuple(judge.name for judge in judges)),
                control_reward_map={asked: tuple(one.reward for one in group) for asked, group in questions.items()},
                correct_map={asked: tuple(one.correct for one in group) for asked, group in questions.items()},
            )
        )
    rollout = settings.rollout
    return EvaluationResult(
        scenarios=scenarios.record(),
        index=world.content,
        split=rollout.split,
        is_whole=rollout.limit is None or len(chosen_scenarios(replace(rollout, limit=None))) == len(scenarios),
        samples=rollout.samples,
        settings=rollout.of_an_episode,
        judges=judges,
        policies=tuple(policies),
        comparisons=tuple(compare_policies(each, policies[0]) for each in policies[1:]),
        choice=ChoiceResult(way=settings.choice.choose, by=settings.choice.by) if settings.choice else None,
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
