"""The episodes of a step: which are run, which are learned from, and what becomes of the rest."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import Sampling, ScriptedPolicy
from gumshoe.rewards.judge import JudgeError, Verdict
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rewards.reward import Reward, reward
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.rollouts.engine import RolloutEngine
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.rollouts.sessions import token_chat_sessions
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.algorithms.lookup import find_algorithm
from gumshoe.training.grpo.rollout_collector import RolloutBatch, RolloutCollector, Rubric, measure_accuracy
from gumshoe.training.grpo.schedule import Schedule
from tests.errors import raises
from tests.mail.mailbox import make_index
from tests.rollouts.conversations import QWEN2_5, call, make_tokenizer, synthetic

ASKED = synthetic().scenarios.scenarios[:12]
GROUPS, GENERATIONS = 3, 4
TURN_LEVEL = find_algorithm("turn_level", {})


@reward
def says_yes(trajectory: Trajectory, scenario: Scenario) -> float:  # noqa: ARG001
    return float(trajectory.record.answer == "yes")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> EnvFactory:
    return open_env(make_index(tmp_path_factory.mktemp("collecting"), synthetic().messages).path.parent)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(QWEN2_5)


class Asked:
    """Answers at once; about some questions always alike, about the others now so and now so."""

    def __init__(self, flat: Sequence[Scenario] = ()) -> None:
        self.flat = [each.question for each in flat]
        self.begun: list[tuple[str, int]] = []

    def __call__(self, prompt: str, seed: int) -> str:
        question = next(each.question for each in ASKED if f"{each.question}<|im_end|>" in prompt)
        self.begun.append((question, seed))
        said = "no" if question in self.flat or seed % 2 else "yes"
        return call("return_final_answer", answer=said, message_ids=[])

    @property
    def questions(self) -> list[str]:
        return list(dict.fromkeys(question for question, _ in self.begun))


@pytest.fixture(scope="module")
def collect(world: EnvFactory, tokenizer: Any) -> Callable[..., RolloutBatch]:
    chat = ChatFormat(tokenizer)

    def collected(script: Asked, step: int = 0, scoring: Rubric | None = None, **more: Any) -> RolloutBatch:
        version, servers = more.pop("version", "scripted"), more.pop("servers", 1)
        collector = RolloutCollector(
            world,
            Schedule(ASKED, 1, GROUPS),
            scoring or Rubric([Reward("says_yes", says_yes)]),
            EpisodeLimits(4, 4096),
            GENERATIONS,
            **{"draws": 3, "min_group_std": 0.01, "concurrency": 8, **more},
        )
        speak = token_chat_sessions(ScriptedPolicy(tokenizer, script), chat, Sampling(1.0, max_tokens=200), 4096)
        return asyncio.run(collector.collect(speak, version, step, servers))

    return collected


def drawn(step: int, draw: int = 0) -> list[Scenario]:
    return Schedule(ASKED, 1, GROUPS).draw(step, draw)


Collect = Callable[..., RolloutBatch]


def test_a_step_is_whole_groups_of_what_its_schedule_draws_with_their_rewards(collect: Collect) -> None:
    found = collect(Asked())
    assert [group.scenario for group in found.groups] == drawn(0)
    assert (found.wanted, found.draws, found.dropped, found.flat) == (GROUPS, 1, {}, 0)
    for group in found.groups:
        assert [each.sample for each in group.trajectories] == list(range(GENERATIONS))
        assert group.rewards == tuple(float(each.record.answer == "yes") for each in group.trajectories)
        assert [each.rewards for each in group.trajectories] == [
            {"says_yes": value, "reward": value} for value in group.rewards
        ]


def test_the_same_step_runs_the_same_episodes_and_another_step_others(collect: Collect) -> None:
    one, again, other = Asked(), Asked(), Asked()
    collect(one, 2), collect(again, 2, concurrency=1), collect(other, 3)
    assert sorted(one.begun) == sorted(again.begun), "how many run at once changes nothing"
    assert not set(one.begun) & set(other.begun)


def test_each_server_has_its_own_episodes_at_once(collect: Collect) -> None:
    engines: list[RolloutEngine] = []
    alone = collect(Asked(), concurrency=2, told=engines.append)
    shared = collect(Asked(), concurrency=2, servers=3, told=engines.append)
    assert [each.concurrency for each in engines] == [2] * alone.draws + [6] * shared.draws


def test_groups_that_teach_nothing_are_left_out_and_others_drawn(collect: Collect) -> None:
    first, *rest = drawn(0)
    script = Asked(flat=[first])
    found = collect(script)
    assert [group.scenario for group in found.groups] == [*rest, drawn(0, 1)[0]]
    assert (found.draws, found.flat) == (2, 1)
    assert len(script.questions) == GROUPS + 1, "no more are drawn than are missing"
    assert [group.scenario for group in found.scored if group not in found.groups] == [first]


def test_after_so_many_draws_a_step_makes_do_with_what_it_has_even_with_nothing(collect: Collect) -> None:
    found = collect(Asked(flat=ASKED))
    assert (found.groups, found.draws, found.flat) == ([], 3, 3 * GROUPS)
    assert {group.scenario.id for group in found.scored} == {each.id for draw in range(3) for each in drawn(0, draw)}
    once = collect(Asked(flat=ASKED), draws=1)
    assert (once.draws, once.flat) == (1, GROUPS)


def test_a_bound_of_nothing_keeps_groups_of_one_reward(collect: Collect) -> None:
    assert len(collect(Asked(flat=ASKED), min_group_std=0.0).groups) == GROUPS


def test_a_group_without_a_verdict_is_dropped_whole_counted_and_replaced(collect: Collect) -> None:
    """And the others of the step keep theirs."""
    silent = drawn(0)[1]

    async def judged(trajectory: Trajectory, scenario: Scenario) -> float:
        if scenario == silent and trajectory.sample == GENERATIONS - 1:
            raise UnavailableError("judges.timeout", "no answer")
        return float(trajectory.record.answer == "yes")

    found = collect(Asked(), scoring=Rubric([Reward("judged", reward(judged))]))
    assert found.dropped == {silent.id: "no answer [judges.timeout]"}
    assert [group.scenario for group in found.groups] == [drawn(0)[0], drawn(0)[2], drawn(0, 1)[0]]
    assert silent not in [group.scenario for group in found.scored]


def test_a_step_of_which_nothing_can_be_run_or_scored_ends_the_run(collect: Collect) -> None:
    """Here all episodes come from another policy, and then no judge answers; with neither would the next be better."""
    with raises("training.no-scored-groups", "scripted instead of another", "training.stale-policy"):
        collect(Asked(), version="another")

    def judged(*_: object) -> float:
        raise UnavailableError("judges.timeout", "no answer")

    with raises("training.no-scored-groups", "no answer [judges.timeout]"):
        collect(Asked(), scoring=Rubric([Reward("judged", reward(judged))]))


def test_each_turn_has_its_own_advantage_where_that_is_wanted(collect: Collect) -> None:
    found = collect(Asked(), scoring=Rubric([Reward("says_yes", says_yes)], by_turn=(open_judge("exact"), TURN_LEVEL)))
    for group in found.groups:
        assert [len(each) for each in group.turn_advantages] == [each.turns for each in group.trajectories]


def test_where_turns_have_advantages_those_decide_whether_there_is_anything_to_learn(collect: Collect) -> None:
    """All answers of a group are worth the same; not all of its turns are."""
    nothing = [Reward("nothing", reward(lambda *_: 0.0))]
    assert not collect(Asked(), scoring=Rubric(nothing)).groups
    found = collect(Asked(), scoring=Rubric(nothing, by_turn=(open_judge("exact"), TURN_LEVEL)))
    assert found.groups
    assert all(set(group.rewards) == {0.0} and len(set(group.turn_rewards)) > 1 for group in found.groups)


def test_a_turn_s_advantage_is_what_it_and_those_after_it_are_worth_against_all_turns() -> None:
    """By hand: rewards 0, 2 and 4 have mean 2 and standard deviation sqrt(8 / 3)."""
    spread = (8 / 3) ** 0.5 + 1e-4
    found = TURN_LEVEL.turn_advantages([[0.0, 4.0], [2.0]])
    assert found[0] == pytest.approx((0.0, 2 / spread))
    assert found[1] == pytest.approx((0.0,))
    assert TURN_LEVEL.turn_advantages([[1.0], []]) == [(pytest.approx(0.0),), ()]


class Fickle:
    """A judge to whom "yes" is right, and who may have nothing to say of "no"."""

    def __init__(self, *, is_sure: bool = True) -> None:
        self.is_sure = is_sure

    async def verdict(self, asked: object, answer: str) -> Verdict:  # noqa: ARG002
        if answer == "no" and not self.is_sure:
            raise JudgeError("judges.unusable-answer", "it has no opinion")
        return Verdict(answer == "yes", "by the word")

    async def aclose(self) -> None:
        pass


def test_accuracy_is_the_share_of_right_answers_and_says_how_far_it_is(collect: Collect) -> None:
    found = collect(Asked())
    told: list[object] = []
    share = asyncio.run(measure_accuracy(found.scored, Fickle(), lambda *amount, **_: told.extend(amount)))
    answers = [each.record.answer for each in found.trajectories]
    assert share == answers.count("yes") / len(answers)
    assert told == [1] * len(answers)
    with raises("training.no-verdict", "it has no opinion"):
        asyncio.run(measure_accuracy(found.scored, Fickle(is_sure=False), lambda *_, **__: None))
    assert asyncio.run(measure_accuracy([], Fickle(), lambda *_, **__: None)) == 0
