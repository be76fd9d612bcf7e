"""Compute the proof of a run from the files in its directory, and from nothing else."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from gumshoe.artifacts.manifest import FileEntry, describe_files, file_digest
from gumshoe.errors import UsageError
from gumshoe.evaluation.proof.proof_models import (
    InfrastructureFailures,
    LearnedFrom,
    PolicyVersions,
    Proof,
    RatioRange,
    RewardComponent,
    SplitShare,
    TrainingCost,
    UnanswerableShare,
)
from gumshoe.evaluation.proof.proof_page import write_proof_page
from gumshoe.training.attempts import (
    AttemptEnd,
    AttemptProgress,
    AttemptStart,
    read_attempt_events,
)
from gumshoe.training.episode_records import EpisodeRecord, read_episodes
from gumshoe.training.records import StepRecord, read_records
from gumshoe.training.run_spec import (
    ADAPTER_WEIGHTS,
    ATTEMPTS,
    BASELINE,
    BEST,
    EPISODES,
    FINAL,
    METRICS,
    SPEC,
    RunSpec,
)

EVIDENCE = (SPEC, METRICS, EPISODES, ATTEMPTS, BASELINE)
"""Files that a proof is computed from. Only a run with a baseline evaluation has the last one."""
_HOUR = 3600.0


def compute_run_proof(directory: Path) -> Proof:
    """Return the proof of a run without an evaluation on held-out questions.

    Raises:
        UsageError: a file is missing, or it was written by a version of Gumshoe without episode records.
    """
    for name in EVIDENCE[:-1]:
        if not (directory / name).is_file():
            raise UsageError(
                "proof.records-missing",
                f"{directory} has no {name}, from which its proof is computed; the run was trained by an earlier "
                "version of Gumshoe, is not finished, or has lost the file",
            )
    spec = _read_spec(directory / SPEC)
    records = read_records(directory / METRICS)
    steps = [each for each in records if isinstance(each, StepRecord)]
    episodes = read_episodes(directory / EPISODES)
    _check_complete(directory, spec, steps, episodes)
    has_episodes = spec.settings.mode != "simple"
    return Proof(
        run=spec.run,
        mode=spec.settings.mode,
        policy_versions=_prove_versions(spec, steps, episodes) if has_episodes else None,
        importance_ratio=_measure_ratios(episodes) if has_episodes else None,
        infrastructure=_count_failures(spec, steps, episodes) if has_episodes else None,
        split_episodes=_count_splits(episodes) if has_episodes else None,
        unanswerable=_count_unanswerable(episodes) if has_episodes else None,
        rewards=dict(_average_rewards(episodes)),
        learned_from=_describe_data(spec, steps, episodes),
        cost=count_cost(spec, steps, directory / ATTEMPTS),
        adapters=_digest_adapters(directory),
        files=describe_evidence(directory),
    )


def write_run_proof(directory: Path) -> Proof:
    """Compute the proof of a finished run, and write it into the run's directory, with its page.

    Raises:
        UsageError: see `compute_run_proof`.
    """
    proof = compute_run_proof(directory)
    proof.write(directory)
    write_proof_page(proof, directory)
    return proof


def describe_evidence(directory: Path) -> tuple[FileEntry, ...]:
    """Return the digests of the files that a run's proof is computed from."""
    return describe_files({name: directory / name for name in EVIDENCE if (directory / name).is_file()})


def _read_spec(path: Path) -> RunSpec:
    try:
        return RunSpec.model_validate_json(path.read_bytes())
    except ValidationError:
        raise UsageError(
            "training.other-version", f"{path} was written by another version of Gumshoe, which must verify it"
        ) from None


def _check_complete(
    directory: Path, spec: RunSpec, steps: Sequence[StepRecord], episodes: Sequence[EpisodeRecord]
) -> None:
    """Check that each step that used new episodes has records of them.

    Raises:
        UsageError: a step has none, because an earlier version of Gumshoe trained it.
    """
    recorded = {each.step for each in episodes}
    missing = [
        each.step
        for each in steps
        if each.use == 1 and each.scenarios and each.step not in recorded and spec.settings.mode != "simple"
    ]
    if missing:
        raise UsageError(
            "proof.records-missing",
            f"{directory / EPISODES} has no episodes of {len(missing):,} steps, e.g. step {missing[0]}; an earlier "
            "version of Gumshoe trained them",
        )


def _prove_versions(spec: RunSpec, steps: Sequence[StepRecord], episodes: Sequence[EpisodeRecord]) -> PolicyVersions:
    """Count the completions whose policy version is proven."""
    bound = spec.settings.rollouts.most_difference
    batches = [each for each in steps if each.use == 1]
    published = {each.policy: place for place, each in enumerate(batches)}
    places = {each.step: place for place, each in enumerate(batches)}
    uses = Counter(each.policy for each in batches)
    trained = [each for each in episodes if each.is_trained]

    def is_proven(each: EpisodeRecord) -> bool:
        names = (each.policy, *each.later_policies)
        own = all(uses[name] == 1 and name.startswith(f"r{spec.run}-") for name in names)
        if not own or each.step not in places or not 0 <= each.staleness <= spec.settings.staleness:
            return False
        if not all(0 <= places[each.step] - published[name] <= each.staleness for name in names):
            return False
        compared = each.compared
        return compared is not None and compared.tokens > 0 and compared.difference <= bound * (1 + each.staleness)

    completions = sum(each.completions for each in trained)
    proven = sum(each.completions for each in trained if is_proven(each))
    rejected = sum(each.completions for each in episodes if each.compared is not None and each.compared.rejected)
    differences = [each.compared.difference for each in trained if each.compared is not None]
    return PolicyVersions(
        completions=completions,
        proven=proven,
        share=proven / completions if completions else None,
        rejected=rejected,
        bound=bound,
        largest_difference=max(differences, default=None),
    )


def _measure_ratios(episodes: Sequence[EpisodeRecord]) -> RatioRange:
    found = [
        each.compared for each in episodes if each.compared is not None and each.is_trained and each.compared.tokens
    ]
    tokens = sum(each.tokens for each in found)
    return RatioRange(
        tokens=tokens,
        lowest=min((each.min_ratio for each in found), default=None),
        highest=max((each.max_ratio for each in found), default=None),
        mean_capped=math.fsum(each.mean_ratio * each.tokens for each in found) / tokens if tokens else None,
    )


def _count_failures(
    spec: RunSpec, steps: Sequence[StepRecord], episodes: Sequence[EpisodeRecord]
) -> InfrastructureFailures:
    own = [each for each in steps if each.use == 1]
    retry_causes, drop_causes = Counter[str](), Counter[str]()
    for each in own:
        retry_causes.update(each.retry_causes)
        drop_causes.update(each.dropped.values())
    dropped = sum(each.groups_dropped for each in own)
    started = dropped + sum(len(each.scenarios) for each in own)
    samples = defaultdict[tuple[int, str], Counter[int]](Counter)
    for episode in episodes:
        samples[episode.step, episode.scenario][episode.sample] += 1
    # A scenario may be drawn several times in a step.
    drawn = Counter((each.step, scenario) for each in own for scenario in each.scenarios)
    expected = range(spec.settings.rollouts.num_generations)
    incomplete = sum(
        any(samples[group][sample] != drawn[group] for sample in expected)
        or samples[group].total() != drawn[group] * len(expected)
        for group in drawn.keys() | samples.keys()
    )
    return InfrastructureFailures(
        retried=sum(each.retried for each in own),
        retry_causes=dict(sorted(retry_causes.items())),
        groups_dropped=dropped,
        drop_causes=dict(sorted(drop_causes.items())),
        drop_rate=dropped / max(1, started),
        incomplete_groups=incomplete,
        fake_zeros=sum(each.is_failure for each in episodes),
    )


def _count_splits(episodes: Sequence[EpisodeRecord]) -> SplitShare:
    split = sum(bool(each.splits) for each in episodes)
    reasons = Counter(reason for each in episodes for reason in each.splits)
    return SplitShare(
        episodes=len(episodes),
        split=split,
        share=split / max(1, len(episodes)),
        reasons=dict(sorted(reasons.items())),
    )


def _count_unanswerable(episodes: Sequence[EpisodeRecord]) -> UnanswerableShare:
    scenarios = {each.scenario for each in episodes}
    unanswerable = len({each.scenario for each in episodes if not each.answerable})
    return UnanswerableShare(
        scenarios=len(scenarios), unanswerable=unanswerable, share=unanswerable / max(1, len(scenarios))
    )


def _average_rewards(episodes: Sequence[EpisodeRecord]) -> Iterator[tuple[str, RewardComponent]]:
    for name in dict.fromkeys(name for each in episodes for name in each.rewards):
        values = [value for each in episodes if not math.isnan(value := each.rewards.get(name, math.nan))]
        if values:
            mean, lowest, highest = statistics.fmean(values), min(values), max(values)
            yield name, RewardComponent(episodes=len(values), mean=mean, lowest=lowest, highest=highest)


def _describe_data(spec: RunSpec, steps: Sequence[StepRecord], episodes: Sequence[EpisodeRecord]) -> LearnedFrom:
    training, validation, *_ = [*spec.content.split(), "", ""]
    trained = [each for each in episodes if each.is_trained]
    is_simple = spec.settings.mode == "simple"
    return LearnedFrom(
        base_model=spec.settings.model.name,
        started_from=spec.before.learned_from.content if spec.before else None,
        training_content=training,
        validation_content=validation,
        index=spec.searched,
        steps=len(steps),
        steps_skipped=sum(each.skipped for each in steps),
        scenarios=len({each.scenario for each in trained}),
        episodes=len(trained),
        tokens=sum(each.trainable_tokens for each in steps)
        if is_simple
        else sum(each.compared.trained for each in trained if each.compared is not None),
    )


def count_cost(spec: RunSpec, steps: Sequence[StepRecord], path: Path) -> TrainingCost:
    """Return the hours and the costs of a run, from the events of its attempts."""
    events, costs = read_attempt_events(path), spec.settings.costs
    wall = gpu = cpu = 0.0
    starts = [each for each in events if isinstance(each, AttemptStart)]
    ended = {each.attempt for each in events if isinstance(each, AttemptEnd)}
    for start in starts:
        seconds = max(each.time for each in events if each.attempt == start.attempt) - start.time
        wall += seconds / _HOUR
        gpu += start.gpus * seconds / _HOUR
        cpu += start.cpus * seconds / _HOUR
    made = [each.step for each in events if isinstance(each, AttemptProgress)]
    prices = [(gpu, costs.gpu_hour), (cpu, costs.cpu_hour)]
    known = [hours * price for hours, price in prices if price is not None]
    return TrainingCost(
        attempts=max([spec.attempt, *(each.attempt for each in starts)]),
        attempts_timed=len(starts),
        attempts_killed=sum(each.attempt not in ended for each in starts),
        steps_repeated=len(made) - len(set(made)),
        wall_hours=wall,
        step_hours=math.fsum(each.seconds for each in steps) / _HOUR,
        gpu_hours=gpu,
        cpu_hours=cpu,
        gpu_price=costs.gpu_hour,
        cpu_price=costs.cpu_hour,
        currency=costs.currency,
        amount=math.fsum(known) if known else None,
    )


def _digest_adapters(directory: Path) -> dict[str, str]:
    weights = {name: directory / name / ADAPTER_WEIGHTS for name in (FINAL, BEST)}
    return {name: file_digest(path) for name, path in weights.items() if path.is_file()}
