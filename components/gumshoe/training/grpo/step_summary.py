"""Summarize the rollouts of one step: means over its episodes, and the distribution of their advantages."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator

from gumshoe.training.grpo.rollout_collector import SMALL, RolloutBatch

_SHARES = (0, 0.25, 0.5, 0.75, 0.9, 0.99, 1)
_CALLED = re.compile(r'"name": "(\w+)"')


def episode_means(found: RolloutBatch) -> dict[str, object]:
    """What a step's record says of its episodes."""
    episodes = found.trajectories
    values = sorted(each.rewards["reward"] for each in episodes)
    took = sorted(each.policy_seconds + each.tool_seconds for each in episodes)
    names = dict.fromkeys(name for each in episodes for name in each.rewards if name != "reward")
    begun = len(found.every) + len(found.dropped)
    return {
        "reward": statistics.fmean(values) if values else 0.0,
        "reward_std": statistics.pstdev(values) if values else 0.0,
        "rewards": {name: _mean(each.rewards[name] for each in episodes) for name in names},
        "reward_quantiles": tuple(values[round(share * (len(values) - 1))] for share in (0, 0.25, 0.5, 0.75, 1))
        if values
        else (),
        "scenarios": tuple(group.scenario.id for group in found.every),
        "groups": len(found.groups),
        "groups_wanted": found.wanted,
        "groups_flat": found.flat,
        "groups_dropped": len(found.dropped),
        "drop_rate": len(found.dropped) / max(1, begun),
        "draws": found.draws,
        "retried": found.retried,
        "turns": _mean(each.turns for each in episodes),
        "sampled_tokens": _mean(each.sampled_tokens for each in episodes),
        "endings": dict(Counter(each.ending for each in episodes).most_common()),
        "rollout_seconds": found.seconds,
        "episode_seconds": {share: took[round(share * (len(took) - 1))] for share in _SHARES} if took else {},
    }


def advantage_lines(found: RolloutBatch, scale: str) -> Iterator[str]:
    """What a step's episodes were worth, group by group: each turn's call with its advantage.

    `scale` is what rewards are divided by, as `optimizer.scale_advantages`.
    """
    every = [value for group in found.groups for value in group.rewards]
    for group in found.groups:
        yield f"{group.scenario.id}: {group.scenario.question}"
        mean = statistics.fmean(group.rewards)
        spread = {"none": 1.0, "batch": statistics.stdev(every), "group": statistics.stdev(group.rewards)}[scale]
        for place, (trajectory, reward) in enumerate(zip(group.trajectories, group.rewards, strict=True)):
            advantage = (reward - mean) / (spread + (scale != "none") * SMALL)
            turns = group.turn_advantages[place] if group.turn_advantages else [advantage] * trajectory.turns
            said = [each.text for each in trajectory.segments if each.origin == "sampled"]
            calls = [call[1] if (call := _CALLED.search(text)) else "no call" for text in said]
            by_turn = ", ".join(f"{call} {value:+.2f}" for call, value in zip(calls, turns, strict=False))
            yield f"  reward {reward:+.2f}: {by_turn}"


def _mean(values: Iterator[float]) -> float:
    """Of those that are numbers; 0 where none is."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else 0.0
