"""The episodes of a step: which are run, which are trained on, and what is dropped."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import Sampling
from gumshoe.rewards.judge import JudgeError, Verdict
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rewards.reward import Reward, reward
from gumshoe.rollouts.engine import EpisodePool
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.algorithms.turn_level import TurnLevel, TurnLevelSettings
from gumshoe.training.grpo.rollout_collector import Accuracy, RolloutBatch, RolloutCollector, Rubric, measure_accuracy
from gumshoe.training.grpo.schedule import Schedule
from tests.errors import raises
from tests.mail.mailbox import make_index
from tests.rollouts.conversations import QWEN2_5, call, make_tokenizer, synthetic
from tests.training.scripted_sampler import ScriptedSampler

SCENARIOS = synthetic().scenarios.scenarios[:12]
GROUPS, GENERATIONS = 3, 4
TURN_LEVEL = TurnLevel(TurnLevelSettings())


@reward
def says_yes(trajectory: Trajectory, scenario: Scenario) -> float:  # noqa: ARG001
    return float(trajectory.record.answer == "yes")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> EnvFactory:
    return open_env(make_index(tmp_path_factory.mktemp("collecting"), synthetic().messages).path.parent)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(QWEN2_5)


class ScriptedAnswers:
    """Answer each question at once: always "no" for the flat ones, and "yes" or "no" by seed for the others."""

    def __init__(self, flat: Sequence[Scenario] = ()) -> None:
        self.flat = [each.question for each in flat]
        self.calls: list[tuple[str, int]] = []

    def __call__(self, prompt: str, seed: int) -> str:
        question = next(each.question for each in SCENARIOS if f"{each.question}<|im_end|>" in prompt)
        self.calls.append((question, seed))
        answer = "no" if question in self.flat or seed % 2 else "yes"
        return call("return_final_answer", answer=answer, message_ids=[])

    @property
    def questions(self) -> list[str]:
        return list(dict.fromkeys(question for question, _ in self.calls))


@pytest.fixture(scope="module")
def collect(env: EnvFactory, tokenizer: Any) -> Callable[..., RolloutBatch]:
    from gumshoe.training.grpo.published_policies import PublishedPolicies
    from gumshoe.training.grpo.rollout_queue import Lead, RolloutQueue

    def run_step(script: ScriptedAnswers, step: int = 0, rubric: Rubric | None = None, **more: Any) -> RolloutBatch:
        sampler = ScriptedSampler(tokenizer, script, servers=more.pop("servers", 1), answers_as="scripted")
        sampler.version = more.pop("version", "scripted")
        resting = more.pop("resting", ())
        collector = RolloutCollector(
            env,
            Schedule(SCENARIOS, 1, GROUPS),
            rubric or Rubric([Reward("says_yes", says_yes)]),
            EpisodeLimits(4, 4096),
            GENERATIONS,
            **{"draws": 3, "min_group_std": 0.01, "concurrency": 8, **more},
        )

        async def take() -> RolloutBatch:
            versions = PublishedPolicies(sampler, Sampling(1.0, max_tokens=200))
            queue = RolloutQueue(collector, versions, Lead(), 9, lambda _: resting)
            await queue.adopt(step)
            try:
                return await queue.take(step, sampler.servers)
            finally:
                await queue.aclose()
                assert not sampler.opened

        return asyncio.run(take())

    return run_step


def drawn(step: int, draw: int = 0) -> list[Scenario]:
    return Schedule(SCENARIOS, 1, GROUPS).order(step)[draw * GROUPS : (draw + 1) * GROUPS]


Collect = Callable[..., RolloutBatch]


def test_a_step_runs_complete_groups_of_scheduled_scenarios(collect: Collect) -> None:
    found = collect(ScriptedAnswers())
    assert [group.scenario for group in found.groups] == drawn(0)
    assert (found.wanted, found.draws, found.dropped, found.flat) == (GROUPS, 1, {}, 0)
    for group in found.groups:
        assert [each.sample for each in group.trajectories] == list(range(GENERATIONS))
        assert group.rewards == tuple(float(each.record.answer == "yes") for each in group.trajectories)
        assert [each.rewards for each in group.trajectories] == [
            {"says_yes": value, "reward": value} for value in group.rewards
        ]


def test_episodes_depend_on_the_step(collect: Collect) -> None:
    one, again, other = ScriptedAnswers(), ScriptedAnswers(), ScriptedAnswers()
    collect(one, 2), collect(again, 2, concurrency=1), collect(other, 3)
    assert sorted(one.calls) == sorted(again.calls), "concurrency does not matter"
    assert not set(one.calls) & set(other.calls)


def test_concurrency_is_per_server(collect: Collect) -> None:
    pools: list[EpisodePool] = []
    collect(ScriptedAnswers(), concurrency=2, on_pool=pools.append)
    collect(ScriptedAnswers(), concurrency=2, servers=3, on_pool=pools.append)
    assert [each.concurrency for each in pools] == [2, 6]


def test_flat_groups_are_replaced(collect: Collect) -> None:
    first, *rest = drawn(0)
    script = ScriptedAnswers(flat=[first])
    found = collect(script)
    assert [group.scenario for group in found.groups] == [*rest, drawn(0, 1)[0]]
    assert (found.draws, found.flat) == (2, 1)
    assert len(script.questions) == GROUPS + 1, "only missing groups are drawn"
    assert [group.scenario for group in found.scored if group not in found.groups] == [first]


def test_scenarios_that_rest_are_used_last(collect: Collect) -> None:
    first, *rest = drawn(0)
    for draws in (1, 3):
        found = collect(ScriptedAnswers(), resting={first.id}, draws=draws)
        assert [group.scenario for group in found.groups] == [*rest, drawn(0, 1)[0]]
    last = Schedule(SCENARIOS, 1, GROUPS).order(0)[-GROUPS:]
    found = collect(ScriptedAnswers(), resting={each.id for each in SCENARIOS if each not in last}, draws=1)
    assert [group.scenario for group in found.scored] == last, "however far they are in the order"
    assert [group.scenario for group in collect(ScriptedAnswers(), resting={each.id for each in SCENARIOS}).groups] == (
        drawn(0)
    ), "if all rest, none does"


def test_the_number_of_draws_is_limited(collect: Collect) -> None:
    found = collect(ScriptedAnswers(flat=SCENARIOS))
    assert (found.groups, found.draws, found.flat) == ([], 3, 3 * GROUPS)
    assert {group.scenario.id for group in found.scored} == {each.id for draw in range(3) for each in drawn(0, draw)}
    once = collect(ScriptedAnswers(flat=SCENARIOS), draws=1)
    assert (once.draws, once.flat) == (1, GROUPS)


def test_a_minimum_deviation_of_0_keeps_flat_groups(collect: Collect) -> None:
    assert len(collect(ScriptedAnswers(flat=SCENARIOS), min_group_std=0.0).groups) == GROUPS


def test_a_group_without_a_verdict_is_dropped_and_replaced(collect: Collect) -> None:
    """The other groups of the step keep their rewards."""
    silent = drawn(0)[1]

    async def score(trajectory: Trajectory, scenario: Scenario) -> float:
        if scenario == silent and trajectory.sample == GENERATIONS - 1:
            raise UnavailableError("judges.timeout", "no answer")
        return float(trajectory.record.answer == "yes")

    found = collect(ScriptedAnswers(), rubric=Rubric([Reward("score", reward(score))]))
    assert found.dropped == {silent.id: "no answer [judges.timeout]"}
    assert [group.scenario for group in found.groups] == [drawn(0)[0], drawn(0)[2], drawn(0, 1)[0]]
    assert silent not in [group.scenario for group in found.scored]


def test_a_reward_that_raises_ends_the_run_with_its_cause(collect: Collect) -> None:
    def score(*_: object) -> float:
        raise KeyError("answer")

    with raises("rewards.failed", "the reward score", "KeyError", "test_rollout_collector.py:") as raised:
        collect(ScriptedAnswers(), rubric=Rubric([Reward("score", reward(score))]))
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_step_without_any_scored_group_fails(collect: Collect) -> None:
    """First all episodes come from another policy, then no judge answers."""
    with raises("training.no-scored-groups", "scripted instead of another", "training.stale-policy"):
        collect(ScriptedAnswers(), version="another")

    def score(*_: object) -> float:
        raise UnavailableError("judges.timeout", "no answer")

    with raises("training.no-scored-groups", "no answer [judges.timeout]"):
        collect(ScriptedAnswers(), rubric=Rubric([Reward("score", reward(score))]))


def test_turn_level_algorithms_give_a_return_per_turn(collect: Collect) -> None:
    found = collect(
        ScriptedAnswers(), rubric=Rubric([Reward("says_yes", says_yes)], by_turn=(open_judge("exact"), TURN_LEVEL))
    )
    for group in found.groups:
        assert [len(each) for each in group.turn_returns] == [each.turns for each in group.trajectories]


def test_values_of_turns_are_settings_of_the_algorithm(collect: Collect) -> None:
    algorithm = TurnLevel(TurnLevelSettings(values={"correct": 5, "wrong": -3}))
    found = collect(
        ScriptedAnswers(), rubric=Rubric([Reward("says_yes", says_yes)], by_turn=(open_judge("exact"), algorithm))
    )
    assert found.groups
    for group in found.groups:
        returns = [turn for (turn,) in group.turn_returns]
        assert max(returns) - min(returns) == pytest.approx(8)


def test_flatness_depends_on_returns_for_turn_level_algorithms(collect: Collect) -> None:
    """All episodes of a group have the same reward, but not all of its turns have the same return."""
    nothing = [Reward("nothing", reward(lambda *_: 0.0))]
    assert not collect(ScriptedAnswers(), rubric=Rubric(nothing)).groups
    found = collect(ScriptedAnswers(), rubric=Rubric(nothing, by_turn=(open_judge("exact"), TURN_LEVEL)))
    assert found.groups
    assert all(set(group.rewards) == {0.0} and len(set(group.turn_returns)) > 1 for group in found.groups)


class UnsureJudge:
    """A judge that accepts "yes", and cannot decide about "no", or gives no verdict on it unless `is_sure`."""

    def __init__(self, *, is_sure: bool = True) -> None:
        self.is_sure = is_sure

    async def verdict(self, asked: object, answer: str) -> Verdict:  # noqa: ARG002
        if answer == "no" and not self.is_sure:
            raise JudgeError("judges.unusable-answer", "it has no opinion")
        return Verdict(answer == "yes", "by the word", is_undecided=answer == "no")

    async def aclose(self) -> None:
        pass


def test_accuracy_is_the_share_of_correct_and_of_undecided_answers(collect: Collect) -> None:
    found = collect(ScriptedAnswers())
    progress: list[object] = []
    share = asyncio.run(measure_accuracy(found.scored, UnsureJudge(), lambda *amount, **_: progress.extend(amount)))
    answers = [each.record.answer for each in found.trajectories]
    assert share == Accuracy(answers.count("yes") / len(answers), answers.count("no") / len(answers))
    assert progress == [1] * len(answers)
    with raises("training.no-verdict", "it has no opinion"):
        asyncio.run(measure_accuracy(found.scored, UnsureJudge(is_sure=False), lambda *_, **__: None))
    assert asyncio.run(measure_accuracy([], UnsureJudge(), lambda *_, **__: None)) == Accuracy(0, 0)
