"""Verify a proof: compute every number again from the files, and compare."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.artifacts.manifest import FileEntry, file_digest
from gumshoe.errors import UsageError
from gumshoe.evaluation.gate import Decision
from gumshoe.evaluation.metrics import compute_metrics
from gumshoe.evaluation.predictions import Prediction, group_by_question, read_predictions
from gumshoe.evaluation.proof.held_out import compare_predictions, complete_proof
from gumshoe.evaluation.proof.proof_models import PROOF, TRAINING, Proof, TrainingCost, read_proof
from gumshoe.evaluation.results import (
    METRICS_FILE,
    PREDICTIONS,
    TRAJECTORIES,
    EvaluationResult,
    PolicyResult,
    read_evaluation,
)
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.training.episode_records import EpisodeRecord, read_episodes
from gumshoe.training.records import StepRecord, read_records, share_of_reasons
from gumshoe.training.run_proof import compute_run_proof
from gumshoe.training.run_spec import ADAPTER_WEIGHTS, ATTEMPTS, EPISODES, METRICS

_DECISION = "gate.json"
_ADDED = {"split_reasons", "segments"}  # to the records, later than the others
_EXACT = 1e-9  # relative: the same computation on another machine
_ROUNDED = 1e-4  # relative: the trainer adds up in 32 bits
_CLOCK = 0.01  # relative: the clock of a machine may be adjusted


@dataclass(frozen=True, slots=True)
class ProofDifference:
    """A value that is recorded in one file and is another if computed from other files."""

    claim: str
    """Name of the file and of the value in it."""
    recorded: Any
    computed: Any


@dataclass(frozen=True, slots=True)
class ProofCheck:
    """Result of a verification."""

    proof: Proof
    checked: int
    """Number of values that were compared."""
    differences: tuple[ProofDifference, ...]
    absent: tuple[str, ...]
    """Directories of adapters whose weights are not here, so that their digest was not checked."""


def verify_proof(directory: Path) -> ProofCheck:
    """Verify the proof in the directory of a run, or of an evaluation with the files of the run.

    Raises:
        UsageError: there is no proof, or a file that it is computed from is missing or none of its kind.
    """
    proof = read_proof(directory)
    _check_files_exist(directory, proof.files)
    is_evaluated = (directory / METRICS_FILE).is_file()
    place = directory / TRAINING if is_evaluated else directory
    computed = trained = compute_run_proof(place)
    found = list(_compare_adapters(place, proof))
    if is_evaluated:
        adapter = proof.held_out.adapter if proof.held_out else ""
        computed = complete_proof(trained, directory, adapter)
        found += _compare_with_run(proof, read_proof(place), trained)
        found += check_evaluation(directory)
    values = _values_of(proof)
    found += _compare(PROOF, values, _values_of(computed))
    found += [*check_records(place), *_check_hours(trained.cost)]
    absent = tuple(name for name in proof.adapters if not (place / name / ADAPTER_WEIGHTS).is_file())
    return ProofCheck(proof, len(values), tuple(found), absent)


def _check_hours(cost: TrainingCost) -> Iterator[ProofDifference]:
    """Yield if the recorded attempts are shorter than the steps that were made in them."""
    is_known = cost.attempts_timed == cost.attempts
    if is_known and cost.wall_hours < cost.step_hours * (1 - _CLOCK):
        yield ProofDifference(f"{ATTEMPTS}: hours", cost.wall_hours, f"steps of {cost.step_hours:.4f} h in {METRICS}")


def _compare_with_run(proof: Proof, recorded: Proof, trained: Proof) -> Iterator[ProofDifference]:
    """Yield where the proof of an evaluation contradicts that of the run, or this its files."""
    yield from _compare(f"{TRAINING}/{PROOF}", _values_of(recorded), _values_of(trained))
    yield from _compare(f"{PROOF}: adapters", proof.adapters, recorded.adapters)
    if proof.held_out and proof.held_out.adapter not in recorded.adapters.values():
        yield ProofDifference(f"{PROOF}: held_out.adapter", proof.held_out.adapter, "none of the run's adapters")


def _check_files_exist(directory: Path, files: Sequence[FileEntry]) -> None:
    missing = [each.path for each in files if not (directory / each.path).is_file()]
    if missing:
        raise UsageError(
            "proof.file-missing",
            f"{directory} lacks files that its proof is computed from: {', '.join(missing)}; copy the whole directory",
        )


def _values_of(proof: Proof) -> dict[str, Any]:
    """Return the values of a proof by dotted name, without the digests of weights, which are compared apart."""
    fields = proof.model_dump(exclude={"adapters", "files"})
    fields["files"] = {each.path: {"size": each.size, "sha256": each.sha256} for each in proof.files}
    return dict(_flatten(fields, ""))


def _flatten(fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        elif value != {}:
            yield f"{prefix}{name}", value


def _compare(
    where: str, recorded: Mapping[str, Any], computed: Mapping[str, Any], tolerance: float = _EXACT
) -> Iterator[ProofDifference]:
    """Yield where two mappings differ. Mappings in them are compared value by value, under dotted names."""
    one, other = dict(_flatten(recorded, "")), dict(_flatten(computed, ""))
    for name in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(name), other.get(name)
        if not _are_equal(mine, theirs, tolerance):
            yield ProofDifference(f"{where}: {name}", mine, theirs)


def _are_equal(mine: Any, theirs: Any, tolerance: float) -> bool:
    if isinstance(mine, bool) or isinstance(theirs, bool) or not isinstance(mine, int | float):
        return bool(mine == theirs)
    if not isinstance(theirs, int | float):
        return False
    both_unknown = math.isnan(mine) and math.isnan(theirs)
    return both_unknown or math.isclose(mine, theirs, rel_tol=tolerance, abs_tol=tolerance)


def _compare_adapters(place: Path, proof: Proof) -> Iterator[ProofDifference]:
    for name, digest in proof.adapters.items():
        path = place / name / ADAPTER_WEIGHTS
        if path.is_file() and (found := file_digest(path)) != digest:
            yield ProofDifference(f"{PROOF}: adapters.{name}", digest, found)


def check_records(directory: Path) -> Iterator[ProofDifference]:
    """Yield where the records of a run's steps contradict those of its episodes."""
    by_step = defaultdict[int, list[EpisodeRecord]](list)
    for each in read_episodes(directory / EPISODES):
        by_step[each.step].append(each)
    steps = [each for each in read_records(directory / METRICS) if isinstance(each, StepRecord)]
    for step in steps:
        episodes = by_step.pop(step.step, [])
        if step.use == 1 and episodes:
            summary = _summarize(episodes)
            for name in _ADDED - step.model_fields_set:
                del summary[name]
            recorded = {name: value for name, value in step.model_dump().items() if name in summary}
            recorded["rewards"] = {name: value for name, value in step.rewards.items() if name in summary["rewards"]}
            yield from _compare(f"{METRICS}: step {step.step}", recorded, summary, _ROUNDED)
    for number, episodes in by_step.items():
        yield ProofDifference(f"{METRICS}: step {number}", None, f"{len(episodes):,} episodes in {EPISODES}")


def _summarize(episodes: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Return the fields of a step's record that follow from the records of its episodes."""
    rewards = [each.rewards["reward"] for each in episodes]
    names = dict.fromkeys(name for each in episodes for name in each.rewards if name != "reward")
    known = {
        name: [value for each in episodes if not math.isnan(value := each.rewards.get(name, math.nan))]
        for name in names
    }
    compared = [each.compared for each in episodes if each.compared is not None]
    tokens = sum(each.tokens for each in compared)
    endings = [each.ending for each in episodes]
    found: dict[str, Any] = {
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "rewards": {name: statistics.fmean(values) for name, values in known.items() if values},
        "trainable_tokens": sum(each.trained for each in compared),
        "sampled_tokens": statistics.fmean(each.tokens for each in episodes),
        "endings": {name: endings.count(name) for name in dict.fromkeys(endings)},
        "split_episodes": statistics.fmean(bool(each.splits) for each in episodes),
        "split_reasons": share_of_reasons([each.splits for each in episodes]),
        "segments": 1 + statistics.fmean(len(each.splits) for each in episodes),
        # Each group has one episode of number 0; a step may have several groups of a scenario.
        "scenarios": tuple(each.scenario for each in episodes if each.sample == 0),
    }
    if tokens:
        found["importance_ratio"] = math.fsum(each.mean_ratio * each.tokens for each in compared) / tokens
        found["logprob_difference"] = math.fsum(each.difference * each.tokens for each in compared) / tokens
    return found


def check_evaluation(directory: Path) -> Iterator[ProofDifference]:
    """Yield where the numbers of an evaluation contradict its predictions, or these its trajectories."""
    result, predictions = read_evaluation(directory / METRICS_FILE), read_predictions(directory / PREDICTIONS)
    for policy in result.policies:
        own = [each for each in predictions if each.policy == policy.name]
        yield from _compare_policy(policy, own)
        path = directory / TRAJECTORIES / f"{policy.name}.jsonl"
        if path.is_file():
            yield from _compare_trajectories(f"{PREDICTIONS}: {policy.name}", own, list(read_trajectories(path)))
    yield from _compare_comparisons(result, predictions)
    if (directory / _DECISION).is_file():
        decision = Decision.model_validate_json((directory / _DECISION).read_bytes())
        by_name = {each.name: each for each in result.policies}
        pair = by_name[decision.comparison.candidate], by_name[decision.comparison.baseline]
        again = compare_predictions(predictions, *pair, decision.comparison.level)
        yield from _compare(_DECISION, decision.comparison.model_dump(), again.model_dump())


def _compare_policy(policy: PolicyResult, predictions: Sequence[Prediction]) -> Iterator[ProofDifference]:
    """Yield where the numbers of a policy contradict its predictions, or these the verdicts in them."""
    metrics = compute_metrics(predictions)  # without prices, which are not recorded
    questions = group_by_question(predictions)
    recorded = {name: each.model_dump() for name, each in policy.metrics.items() if name in metrics}
    computed: dict[str, Any] = {name: each.model_dump() for name, each in metrics.items()}
    for name, value in {
        "episodes": sum(each.chosen.cost.samples if each.chosen else 1 for each in predictions),
        "run_again": sum(each.chosen.run_again if each.chosen else each.tries - 1 for each in predictions),
        "correct_map": {name: tuple(each.correct for each in group) for name, group in questions.items()},
        "control_reward_map": {name: tuple(each.reward for each in group) for name, group in questions.items()},
    }.items():
        recorded[name], computed[name] = getattr(policy, name), value
    yield from _compare(f"{METRICS_FILE}: {policy.name}", recorded, computed)
    for each in predictions:
        if each.verdicts and each.correct != each.verdicts[0].correct:
            name = f"{PREDICTIONS}: {policy.name}: {each.scenario}/{each.sample}: correct"
            yield ProofDifference(name, each.correct, f"{each.verdicts[0].correct}, as its verdict says")


def _compare_comparisons(result: EvaluationResult, predictions: Sequence[Prediction]) -> Iterator[ProofDifference]:
    by_name = {each.name: each for each in result.policies}
    for each in result.comparisons:
        again = compare_predictions(predictions, by_name[each.candidate], by_name[each.baseline], each.level)
        where = f"{METRICS_FILE}: {each.candidate} and {each.baseline}"
        yield from _compare(where, each.model_dump(), again.model_dump())


def _compare_trajectories(
    where: str, predictions: Sequence[Prediction], trajectories: Sequence[Trajectory]
) -> Iterator[ProofDifference]:
    known = {(each.scenario, each.sample): each for each in trajectories}
    for each in predictions:
        episode = known.get((each.scenario, each.sample))
        name = f"{where}: {each.scenario}/{each.sample}"
        if episode is None:
            yield ProofDifference(name, "an episode", None)
            continue
        computed = _describe_episode(episode)
        yield from _compare(name, each.model_dump(include=set(computed)), computed)


def _describe_episode(episode: Trajectory) -> dict[str, Any]:
    """Return the fields of a prediction that follow from its episode alone."""
    record = episode.record
    return {
        "answer": record.answer,
        "ending": episode.ending,
        "detail": episode.detail,
        "turns": episode.turns,
        "mistakes": len(episode.mistakes),
        "searches": record.searches,
        "repeated_searches": record.repeated_searches,
        "empty_searches": record.empty_searches,
        "read_others": record.read_others,
        "sources": tuple(record.sources),
        "does_not_know": record.does_not_know,
        "seconds": episode.policy_seconds + episode.tool_seconds,
        "tries": episode.tries,
    }
