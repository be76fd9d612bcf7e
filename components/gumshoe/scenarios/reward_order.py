"""Sort scenarios by how hard they were for a policy."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from gumshoe.errors import UsageError
from gumshoe.json_text import load_json
from gumshoe.scenarios.scenario import ScenarioSet

_PREDICTIONS = "predictions.jsonl"  # of an evaluation, one record per episode; that package imports this one


def mean_rewards(evaluation: str) -> dict[str, float]:
    """Return the mean reward of one policy's episodes of each scenario, by its id.

    `evaluation` is the directory of an evaluation, with `#NAME` of the policy if it has several.

    Raises:
        UsageError: the directory has no predictions, they cannot be read, or they do not say which policy is meant.
    """
    where, _, name = evaluation.partition("#")
    path = Path(where, _PREDICTIONS)
    rewards = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    try:
        with path.open(encoding="utf-8") as lines:
            for record in (load_json(line, is_recorded=True) for line in lines):
                rewards[record["policy"]][str(record["scenario"])].append(float(record["reward"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(
            "scenarios.no-predictions",
            f"cannot read the rewards in {path}: {type(error).__name__}: {error}; name the output directory of a "
            "finished `gumshoe evaluate`",
        ) from None
    chosen = name or (next(iter(rewards)) if len(rewards) == 1 else "")
    if rewards and chosen not in rewards:
        problem = f"has no policy {name!r}" if name else f"has {len(rewards)} policies"
        raise UsageError(
            "scenarios.policy-not-named", f"{path} {problem}; write {where}#NAME with one of {', '.join(rewards)}"
        )
    return {scenario: fmean(each) for scenario, each in rewards[chosen].items()}


def sort_by_reward(scenarios: ScenarioSet, rewards: Mapping[str, float]) -> ScenarioSet:
    """Return the scenarios from the highest reward to the lowest; those without one come last, in their order.

    Raises:
        UsageError: none of the scenarios has a reward.
    """
    if not any(each.id in rewards for each in scenarios):
        raise UsageError(
            "scenarios.other-predictions",
            "none of the scenarios was evaluated; name an evaluation of these scenarios, with their split",
        )
    return ScenarioSet(tuple(sorted(scenarios, key=lambda each: -rewards.get(each.id, float("-inf")))))
