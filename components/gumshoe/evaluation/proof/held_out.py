"""Prove a policy's gain on held-out questions, and connect it to the run that trained the policy."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gumshoe.artifacts.manifest import FileEntry, describe_files, file_digest
from gumshoe.artifacts.storage import explain_os_errors
from gumshoe.errors import UsageError
from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.predictions import Prediction, group_by_question, read_predictions
from gumshoe.evaluation.proof.proof_models import PROOF, TRAINING, HeldOutResult, Proof, read_proof
from gumshoe.evaluation.results import (
    METRICS_FILE,
    PREDICTIONS,
    TRAJECTORIES,
    Comparison,
    PolicyResult,
    read_evaluation,
)

_WEIGHTS = "adapter_model.safetensors"


def find_run_proof(adapter: Path) -> Path | None:
    """Return the directory with the proof of the run that trained an adapter, or None.

    It is beside the adapter, as in a run's directory, or in it, as in a published adapter. A proof of other weights is
    not returned.
    """
    weights = adapter / _WEIGHTS
    for directory in (adapter / TRAINING, adapter.parent):
        if weights.is_file() and (directory / PROOF).is_file():
            try:
                known = read_proof(directory).adapters.values()
            except UsageError:
                continue
            if file_digest(weights) in known:
                return directory
    return None


def copy_run_evidence(source: Path, target: Path) -> None:
    """Copy the proof of a run and the files that it is computed from; do nothing if the run has no proof."""
    if not (source / PROOF).is_file() or source.resolve() == target.resolve():
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in (*(each.path for each in read_proof(source).files), PROOF):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def write_held_out_proof(directory: Path, adapters: Mapping[str, Path]) -> Proof | None:
    """Complete the proof of the run that trained the last evaluated policy, and write it into the evaluation.

    `adapters` are the directories of adapters by policy name. The files of the run are copied to `TRAINING`. Nothing is
    written, and None returned, if there is no baseline, no proof of the adapter's weights, or a policy that has seen a
    question.

    Raises:
        StorageError: a file cannot be written.
    """
    result = read_evaluation(directory / METRICS_FILE)
    candidate = result.policies[-1]
    if any(each.seen for each in result.policies):
        return None
    place = adapters.get(candidate.name)
    found = find_run_proof(place) if place is not None and len(result.policies) > 1 else None
    if place is None or found is None:
        return None
    digest = file_digest(place / _WEIGHTS)
    with explain_os_errors(directory):
        copy_run_evidence(found, directory / TRAINING)
        proof = complete_proof(read_proof(found), directory, digest)
        proof.write(directory)
    return proof


def complete_proof(trained: Proof, directory: Path, adapter: str) -> Proof:
    """Return the proof of a run with the result of an evaluation directory.

    `adapter` is the digest of the candidate's weights.

    Raises:
        UsageError: a file of the evaluation is missing, or is none of its kind.
    """
    files = [each.model_copy(update={"path": f"{TRAINING}/{each.path}"}) for each in trained.files]
    held_out = measure_held_out(directory, adapter)
    return trained.model_copy(update={"held_out": held_out, "files": (*files, *describe_evaluation(directory))})


def describe_evaluation(directory: Path) -> tuple[FileEntry, ...]:
    """Return the digests of the files of an evaluation that its proof is computed from."""
    paths = [directory / METRICS_FILE, directory / PREDICTIONS, *sorted((directory / TRAJECTORIES).glob("*.jsonl"))]
    return describe_files({each.relative_to(directory).as_posix(): each for each in paths})


def measure_held_out(directory: Path, adapter: str) -> HeldOutResult:
    """Compute the paired comparison of the last policy of an evaluation with its first, from the predictions.

    Raises:
        UsageError: a file is missing or is none of its kind, or the evaluation has one policy.
    """
    result = read_evaluation(directory / METRICS_FILE)
    baseline, candidate = result.policies[0], result.policies[-1]
    found = compare_predictions(read_predictions(directory / PREDICTIONS), candidate, baseline)
    return HeldOutResult(
        candidate=candidate.name,
        baseline=baseline.name,
        adapter=adapter,
        split=result.split,
        is_whole=result.is_whole,
        is_unseen=candidate.is_unseen,
        content=result.scenarios.content,
        judge=result.judges[0].name,
        questions=found.questions,
        candidate_accuracy=found.accuracy.candidate,
        baseline_accuracy=found.accuracy.baseline,
        gain=found.accuracy.difference,
        low=found.accuracy.low,
        high=found.accuracy.high,
        level=found.level,
        p_value=found.p_value,
        wins=found.wins,
        losses=found.losses,
        ties=found.ties,
        reward_gain=found.reward.difference,
        reward_low=found.reward.low,
        reward_high=found.reward.high,
    )


def compare_predictions(
    predictions: Sequence[Prediction], candidate: PolicyResult, baseline: PolicyResult, level: float = 0.95
) -> Comparison:
    """Compare two policies by their predictions alone, in the order of the candidate's questions."""
    return compare_policies(_with_predictions(candidate, predictions), _with_predictions(baseline, predictions), level)


def _with_predictions(policy: PolicyResult, predictions: Sequence[Prediction]) -> PolicyResult:
    """Return a policy's result with the answers and rewards of the predictions."""
    own = group_by_question(each for each in predictions if each.policy == policy.name)
    return policy.model_copy(
        update={
            "correct_map": {name: tuple(each.correct for each in group) for name, group in own.items()},
            "control_reward_map": {name: tuple(each.reward for each in group) for name, group in own.items()},
        }
    )
