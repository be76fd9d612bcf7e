"""The reward functions that come with Gumshoe."""

import asyncio
from collections.abc import Sequence

from gumshoe.embeddings.embedder import DEFAULT, NamedEmbedder
from gumshoe.environments.base import Unusable
from gumshoe.rewards.judge_registry import NamedJudge
from gumshoe.rewards.reward import group_reward, reward
from gumshoe.rewards.ruler import NamedRuler
from gumshoe.rollouts.chat_format import NoCallError, UnusableCallError, parse_call, reasons_first
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


@reward
async def rubric(
    trajectory: Trajectory,
    scenario: Scenario,
    *,
    judge: NamedJudge = "heuristic",  # type: ignore[assignment] # pydantic makes a judge of it
    unparseable: float = -2.0,
    unknown_tool: float = -1.9,
    bad_arguments: float = -1.8,
    no_call: float = -1.8,
    wrong: float = -1.0,
    no_answer: float = 0.0,
    found: float = 0.1,
    read: float = 0.1,
    no_invalid_id: float = 0.1,
    source: float = 0.1,
    correct: float = 1.0,
    correct_source: float = 0.3,
    few_sources: float = 0.1,
    few_turns: float = 0.1,
) -> float:
    """The scheme of ART·E (https://openpipe.ai/blog/art-e-mail-agent), every number of it a setting.

    A correct answer is worth `correct`, `correct_source` with a right source, `few_sources` divided by the number of
    sources given, and `few_turns` times the share of turns left. All else is worth what it is named for ("I don't
    know", out of turns or of context: `no_answer`), and `found`, `read`, `no_invalid_id` and `source` for what went
    well on the way.
    """
    record = trajectory.record
    right_source = _is_enough(record.right_sources, scenario)
    unusable: dict[Unusable, float] = {
        "unparseable call": unparseable,
        "unknown tool": unknown_tool,
        "bad arguments": bad_arguments,
        "no call": no_call,
    }
    if trajectory.ending in unusable:
        value = unusable[trajectory.ending]
    elif record.answer is None or record.does_not_know:
        value = no_answer
    elif not (await judge.verdict(scenario, record.answer)).correct:
        value = wrong
    else:
        most = trajectory.settings.get("max_turns") or trajectory.turns
        value = correct + correct_source * right_source + few_turns * (1 - trajectory.turns / most)
        return value + (few_sources / len(record.sources) if record.sources else 0)
    on_the_way = [
        (found, _is_enough(record.found, scenario)),
        (read, _is_enough(record.read, scenario)),
        (no_invalid_id, not any("invalid id" in deeds for deeds in record.deeds)),
        (source, right_source),
    ]
    return value + sum(worth for worth, went_well in on_the_way if went_well)


@reward
async def exact(
    trajectory: Trajectory,
    scenario: Scenario,
    *,
    judge: NamedJudge = "heuristic",  # type: ignore[assignment] # pydantic makes a judge of it
) -> float:
    """1 for a correct answer, 0 for any other and for none."""
    answer = trajectory.record.answer
    if answer is None or trajectory.record.does_not_know:
        return 0.0
    return float((await judge.verdict(scenario, answer)).correct)


@reward
async def answer_similarity(
    trajectory: Trajectory,
    scenario: Scenario,
    *,
    model: NamedEmbedder = DEFAULT,  # type: ignore[assignment] # pydantic makes an embedder of it
) -> float:
    """The cosine of the embeddings of answer and reference, 0 where that is negative or there is no answer."""
    answer = trajectory.record.answer
    if not answer or trajectory.record.does_not_know:
        return 0.0
    one, other = await asyncio.to_thread(model.embed, [answer, scenario.answer], "similarity")
    return max(0.0, float(one @ other))


@group_reward
async def ruler(
    group: Sequence[Trajectory],
    scenario: Scenario,  # noqa: ARG001
    *,
    judge: NamedRuler = "o4-mini",  # type: ignore[assignment] # pydantic makes a judge of it
) -> list[float]:
    """What a chat model thinks of each, from 0 to 1, relative to the others of the group."""
    return (await judge.scores(group)).scores


@reward
def mrr(trajectory: Trajectory, scenario: Scenario) -> float:  # noqa: ARG001
    """The reciprocal rank of a right source in the best search: 1 where one stood first, 0 where none was found."""
    return 1 / trajectory.record.best_rank if trajectory.record.best_rank else 0.0


@reward
def format(  # noqa: A001
    trajectory: Trajectory,
    scenario: Scenario,  # noqa: ARG001
    *,
    reasoning: bool | None = None,
) -> float:
    """The share of sampled turns that keep the asked format: one call in each, after reasoning in `<think>` where the
    environment asks for that, or `reasoning` says so; 0 without any call.
    """
    turns = [each.text for each in trajectory.segments if each.origin == "sampled"]
    asked = trajectory.settings.get("environment", {}).get("reasoning", False) if reasoning is None else reasoning
    return sum(_keeps_the_format(turn, reasoning=asked) for turn in turns) / len(turns) if turns else 0.0


@reward
def turns(trajectory: Trajectory, scenario: Scenario) -> float:  # noqa: ARG001
    """What is left of the turns that there were: 0 where all were taken; NaN where no bound is known."""
    most = trajectory.settings.get("max_turns")
    return 1 - trajectory.turns / most if most else float("nan")


@reward
def repetition(
    trajectory: Trajectory,
    scenario: Scenario,  # noqa: ARG001
    *,
    again: float = -0.1,
    again_in_vain: float = -0.2,
) -> float:
    """A penalty for each search that was made before, and a greater one where that had found nothing."""
    repeated = [deeds for deeds in trajectory.record.deeds if "searched again" in deeds]
    return sum(again_in_vain if "in vain" in deeds else again for deeds in repeated)


def _is_enough(noted: list[str], scenario: Scenario) -> bool:
    """Whether these are right sources enough: any one, or all where the scenario needs all."""
    return len(noted) >= (len(scenario.sources) if scenario.needs_all else 1)


def _keeps_the_format(turn: str, *, reasoning: bool) -> bool:
    try:
        parse_call(turn)
    except (NoCallError, UnusableCallError):
        return False
    return not reasoning or reasons_first(turn)
