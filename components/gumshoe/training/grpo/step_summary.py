"""Summarize the rollouts of one step: means over its episodes, and the distribution of their advantages."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from gumshoe.environments.registry import EnvFactory
from gumshoe.training.algorithms.algorithm import Algorithm
from gumshoe.training.algorithms.turn_level import TurnLevel
from gumshoe.training.episode_records import EpisodeRecord, SampledComparison
from gumshoe.training.grpo.rollout_collector import Accuracy, RolloutBatch
from gumshoe.training.grpo.trainer_usage import TrainerUsage
from gumshoe.training.records import StepRecord, share_of_reasons

if TYPE_CHECKING:
    from gumshoe.training.grpo.sampler_check import StepMetrics

_SHARES = (0, 0.25, 0.5, 0.75, 0.9, 0.99, 1)
_NO_ROLLOUTS = {"rollout_seconds": 0.0, "wait_seconds": 0.0, "judge_seconds": 0.0, "rollout_rate": 0.0, "ended": {}}


def step_record(
    step: int,
    logs: dict[str, float],
    found: RolloutBatch,
    metrics: "StepMetrics",
    *,
    beta: float,
    accuracy: Accuracy | None,
    seconds: float,
    publish_seconds: float,
    policy: str,
    usage: TrainerUsage,
) -> StepRecord:
    """Return the record of a step, from the trainer's `logs` and `metrics` and the rollouts.

    `beta` is the weight of the KL term, `seconds` the time of the whole step, and `policy` the name of the policy that
    was published for it.
    """
    loss, kl = logs["loss"], logs.get("kl")
    return StepRecord(
        step=step,
        loss=loss,
        # Mode `simple` does not log it; there, this is exact if the loss is a mean over tokens.
        policy_loss=logs.get("policy_loss", loss - beta * (kl or 0.0)),
        kl=kl,
        entropy=logs.get("entropy"),
        grad_norm=logs.get("grad_norm"),
        learning_rate=logs["learning_rate"],
        accuracy=None if accuracy is None else accuracy.correct,
        undecided=None if accuracy is None else accuracy.undecided,
        trainable_tokens=metrics.trainable,
        tokens=metrics.tokens,
        groups_refused=metrics.off_policy,
        skipped=metrics.is_skipped,
        importance_ratio=metrics.ratio,
        logprob_difference=metrics.difference,
        use=max(1, metrics.uses),
        clip_ratio=logs.get("clip_ratio"),
        train_seconds=seconds - (found.waited if metrics.uses <= 1 else 0.0),
        publish_seconds=publish_seconds if metrics.uses <= 1 else 0.0,
        policy=policy,
        **{
            **episode_means(found),
            "groups": len(found.groups) - metrics.off_policy,
            **(_NO_ROLLOUTS if metrics.uses > 1 else {}),
        },
        phase_seconds=usage.phases,
        model_tokens=usage.tokens,
        mfu=usage.mfu,
    )


def episode_means(found: RolloutBatch) -> dict[str, object]:
    """Return the fields of a step's record that come from its episodes."""
    episodes = found.trajectories
    values = sorted(each.rewards["reward"] for each in episodes)
    took = sorted(each.policy_seconds + each.tool_seconds for each in episodes)
    names = dict.fromkeys(name for each in episodes for name in each.rewards if name != "reward")
    means = {name: _mean_known(each.rewards[name] for each in episodes) for name in names}
    started = len(found.scored) + len(found.dropped)
    return {
        "reward": statistics.fmean(values) if values else 0.0,
        "reward_std": statistics.pstdev(values) if values else 0.0,
        "rewards": {name: value for name, value in means.items() if not math.isnan(value)},
        "reward_quantiles": tuple(values[round(share * (len(values) - 1))] for share in (0, 0.25, 0.5, 0.75, 1))
        if values
        else (),
        "scenarios": tuple(group.scenario.id for group in found.scored),
        "groups": len(found.groups),
        "groups_wanted": found.wanted,
        "groups_flat": found.flat,
        "groups_dropped": len(found.dropped),
        "drop_rate": len(found.dropped) / max(1, started),
        "draws": found.draws,
        "retried": found.retried,
        "retry_causes": dict(found.retry_causes.most_common()),
        "dropped": {scenario: _find_code(cause) for scenario, cause in found.dropped.items()},
        "turns": _mean(each.turns for each in episodes),
        "sampled_tokens": _mean(each.sampled_tokens for each in episodes),
        "endings": dict(Counter(each.ending for each in episodes).most_common()),
        "split_episodes": _mean(float(bool(each.segments)) for each in episodes),
        "split_reasons": share_of_reasons([{segment.reason for segment in each.segments} for each in episodes]),
        "segments": _mean(1.0 + len(each.segments) for each in episodes) if episodes else 1.0,
        "rollout_seconds": found.seconds,
        "wait_seconds": found.waited,
        "judge_seconds": found.judged,
        "rollout_rate": sum(each.sampled_tokens for each in episodes) / found.seconds if found.seconds else 0.0,
        "staleness": _mean(float(group.staleness) for group in found.groups),
        "max_staleness": max((group.staleness for group in found.groups), default=0),
        "ended": found.ended,
        "scenarios_flat": found.flat_scenarios,
        "episode_seconds": {share: took[round(share * (len(took) - 1))] for share in _SHARES} if took else {},
    }


def episode_records(
    step: int, found: RolloutBatch, comparisons: Sequence[SampledComparison], env: EnvFactory
) -> Iterator[EpisodeRecord]:
    """Yield the records of a step's scored episodes.

    `comparisons` are those of the groups to train on, episode by episode; more of them belong to missing groups.
    """
    trained = [each for group in found.groups for each in group.trajectories]
    compared = {id(each): comparison for each, comparison in zip(trained, comparisons, strict=False)}
    for group in found.scored:
        sources = [env.find_source(group.scenario, each) is not None for each in group.scenario.sources]
        answerable = all(sources) if group.scenario.needs_all else any(sources)
        for each in group.trajectories:
            yield EpisodeRecord(
                step=step,
                scenario=each.scenario,
                sample=each.sample,
                answerable=answerable,
                policy=each.policy,
                later_policies=tuple(sorted(each.versions - {each.policy})),
                staleness=group.staleness,
                ending=each.ending,
                tries=each.tries,
                completions=sum(span.origin == "sampled" for span in each.spans),
                tokens=each.sampled_tokens,
                splits=tuple(segment.reason for segment in each.segments),
                rewards=each.rewards,
                compared=compared.get(id(each)),
            )


def _find_code(message: str) -> str:
    """Return the code at the end of `GumshoeError.message_with_code`."""
    return message.rpartition("[")[2].rstrip("]")


def turn_advantages(found: RolloutBatch, algorithm: Algorithm) -> list[list[tuple[float, ...]]]:
    """Return the advantages of a step's turns, [groups][episodes][turns]."""
    if not found.groups:
        return []
    if isinstance(algorithm, TurnLevel):
        return algorithm.turn_advantages([group.turn_returns for group in found.groups])
    scaled = algorithm.advantages(torch.tensor([group.rewards for group in found.groups])).tolist()
    return [
        [(value,) * trajectory.turns for value, trajectory in zip(values, group.trajectories, strict=True)]
        for group, values in zip(found.groups, scaled, strict=True)
    ]


def advantage_lines(found: RolloutBatch, algorithm: Algorithm) -> Iterator[str]:
    """Yield the advantages of a step, group by group and turn by turn, with the tool that each turn called."""
    for group, advantages in zip(found.groups, turn_advantages(found, algorithm), strict=True):
        yield f"{group.scenario.id}: {group.scenario.question}"
        for trajectory, reward, turns in zip(group.trajectories, group.rewards, advantages, strict=True):
            sampled = [each for each in trajectory.spans if each.origin == "sampled" and not each.is_continued]
            calls = [" and ".join(call.name for call in each.calls) or "no call" for each in sampled]
            by_turn = ", ".join(f"{call} {value:+.2f}" for call, value in zip(calls, turns, strict=False))
            yield f"  reward {reward:+.2f}: {by_turn}"


def _mean(values: Iterator[float]) -> float:
    """Return the mean of values; 0 without any."""
    known = list(values)
    return statistics.fmean(known) if known else 0.0


def _mean_known(values: Iterator[float]) -> float:
    """Return the mean of the values that are not NaN; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else math.nan
