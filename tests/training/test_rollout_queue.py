"""Episodes that run ahead of the trainer: which step gets which groups, and from which policies."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.inference.policy import Sampling
from gumshoe.rewards.reward import Reward, reward
from gumshoe.rollouts.engine import EpisodePool
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.grpo.rollout_collector import RolloutBatch, RolloutCollector, Rubric, ScoredGroup
from gumshoe.training.grpo.schedule import Schedule
from tests.mail.mailbox import make_index
from tests.rollouts.conversations import QWEN2_5, call, make_tokenizer, synthetic
from tests.training.scripted_sampler import ScriptedSampler

if TYPE_CHECKING:
    from gumshoe.training.grpo.rollout_queue import Lead

SCENARIOS = synthetic().scenarios.scenarios[:12]
GROUPS, GENERATIONS, LAST = 2, 2, 5
SCHEDULE = Schedule(SCENARIOS, 1, GROUPS)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> EnvFactory:
    return open_env(make_index(tmp_path_factory.mktemp("ahead"), synthetic().messages).path.parent)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(QWEN2_5)


class HeldPolicy:
    """Search twice and then answer. The second turn of the scenarios in `held` waits until they are let go."""

    def __init__(self) -> None:
        self.held: dict[str, asyncio.Event] = {}
        self.waiting: list[str] = []

    def hold(self, scenario: Scenario) -> asyncio.Event:
        return self.held.setdefault(scenario.question, asyncio.Event())

    async def wait(self, prompt: str) -> None:
        for question, event in self.held.items():
            if f"{question}<|im_end|>" in prompt and prompt.count("<tool_response>") == 1:
                self.waiting.append(question)
                await event.wait()

    def __call__(self, prompt: str, seed: int) -> str:  # noqa: ARG002
        searches = prompt.count("<tool_response>")
        if searches == 2:
            return call("return_final_answer", answer="yes", message_ids=[])
        return call("search_inbox", keywords=[("lunch", "invoice")[searches]])


class Ahead:
    """A queue over a scripted policy whose turns can be held."""

    def __init__(self, env: EnvFactory, tokenizer: Any, *, lag: int, staleness: int, **more: Any) -> None:
        from gumshoe.training.grpo.published_policies import PublishedPolicies
        from gumshoe.training.grpo.rollout_queue import Lead, RolloutQueue

        self.script = HeldPolicy()
        self.sampler = ScriptedSampler(tokenizer, self.script, wait=self.script.wait)
        self.versions = PublishedPolicies(
            self.sampler, Sampling(1.0, max_tokens=200), by_turn=more.pop("by_turn", False)
        )
        flat = more.pop("flat", ())

        def score(trajectory: Trajectory, scenario: Scenario) -> float:
            return 0.0 if scenario in flat else float(trajectory.sample)

        self.collector = RolloutCollector(
            env,
            SCHEDULE,
            Rubric([Reward("score", reward(score))]),
            EpisodeLimits(4, 4096),
            GENERATIONS,
            **{"draws": 2, "min_group_std": 0.01, "concurrency": 64, **more},
        )
        self.queue = RolloutQueue(self.collector, self.versions, Lead(lag, staleness), LAST)

    async def take(self, number: int) -> RolloutBatch:
        """Publish the policy of a step, and take its groups."""
        self.sampler.publish(None, f"policy-{number}", None)
        await self.queue.adopt(number)
        return await self.queue.take(number, 1)


def run(ahead: Ahead, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def closing() -> None:
        try:
            await asyncio.wait_for(work(), 60)
        finally:
            await ahead.queue.aclose()
            assert not ahead.sampler.opened

    asyncio.run(closing())


async def settle(condition: Callable[[], bool]) -> None:
    """Let other tasks and the threads of tools work until a condition holds."""
    while not condition():
        await asyncio.sleep(0.001)


def names(found: RolloutBatch) -> list[str]:
    return [group.scenario.id for group in found.groups]


def ids(*steps: int) -> list[str]:
    return [each.id for step in steps for each in SCHEDULE.draw(step)]


def policies(found: RolloutBatch) -> set[str]:
    return {each.policy for each in found.trajectories}


def test_with_a_lag_the_next_steps_run_while_a_step_is_trained(env: EnvFactory, tokenizer: Any) -> None:
    ahead = Ahead(env, tokenizer, lag=1, staleness=2, concurrency=GENERATIONS)  # one group after the other

    async def work() -> None:
        taken, ended = [], dict[str, bool]()
        for number in range(LAST + 1):
            found = await ahead.take(number)
            await settle(lambda: not ahead.queue.running)  # the trainer works meanwhile
            taken += names(found)
            ended |= found.ended
            assert [each.staleness for each in found.groups] == [min(number, 1)] * GROUPS
            assert policies(found) == {f"policy-{max(0, number - 1)}"}
        assert taken == ids(*range(LAST + 1)), "each group once, in the order of the schedule"
        assert ended == {f"{step}/{place}": True for step in range(LAST + 1) for place in range(GROUPS)}

    run(ahead, work)


def test_without_a_lag_nothing_runs_ahead(env: EnvFactory, tokenizer: Any) -> None:
    ahead = Ahead(env, tokenizer, lag=0, staleness=0)

    async def work() -> None:
        found = await ahead.take(0)
        assert (names(found), found.ended, ahead.queue.running) == (ids(0), {}, 0)
        assert [each.staleness for each in found.groups] == [0] * GROUPS

    run(ahead, work)


def test_the_pool_that_is_waited_for_is_observed_also_after_an_evaluation(env: EnvFactory, tokenizer: Any) -> None:
    from gumshoe.training.grpo.sampler import open_newest

    pools: list[EpisodePool] = []
    ahead = Ahead(env, tokenizer, lag=0, staleness=0, on_pool=pools.append)

    async def work() -> None:
        await ahead.take(0)
        async with open_newest(ahead.sampler, Sampling(0, max_tokens=200)) as speak:
            await ahead.collector.measure(speak, "policy-0", SCENARIOS[:3], "evaluation", 1)
        await ahead.take(1)

    run(ahead, work)
    assert [each.progress.done for each in pools] == [8, 3, 8]
    assert pools[0] is pools[2]


def test_a_slow_group_is_trained_on_later_and_others_take_its_place(env: EnvFactory, tokenizer: Any) -> None:
    ahead = Ahead(env, tokenizer, lag=1, staleness=2, concurrency=2 * GENERATIONS)  # the slow group and another one
    slow = SCHEDULE.draw(0)[0]
    release = ahead.script.hold(slow)

    async def work() -> None:
        first = await ahead.take(0)
        assert names(first) == [ids(0)[1], ids(1)[0]]
        second = asyncio.create_task(ahead.take(1))
        await settle(lambda: ahead.queue.running == 1)  # only the slow group
        release.set()
        assert len(names(await second)) == GROUPS
        third = await ahead.take(2)
        taken = [*names(first), *names(second.result()), *names(third)]
        assert slow.id in taken
        assert len(set(taken)) == len(taken) == 3 * GROUPS
        staleness = {group.scenario.id: group.staleness for each in (second.result(), third) for group in each.groups}
        assert 1 <= staleness[slow.id] <= 2

    run(ahead, work)


def test_a_step_waits_for_a_group_that_would_become_too_old(env: EnvFactory, tokenizer: Any) -> None:
    ahead = Ahead(env, tokenizer, lag=1, staleness=1)
    slow = SCHEDULE.draw(1)[1]
    release = ahead.script.hold(slow)

    async def work() -> None:
        await ahead.take(0)
        await settle(lambda: ahead.queue.running == 1)
        second = asyncio.create_task(ahead.take(1))
        await settle(lambda: ahead.queue.running == 1)  # step 2 has ended, but the slow group is of policy 0
        await asyncio.sleep(0.01)
        assert not second.done()
        release.set()
        assert slow.id in names(await second)

    run(ahead, work)


@pytest.mark.parametrize(("lag", "most"), [(0, 0), (1, 1), (2, 2), (2, 3), (3, 3)])
def test_no_group_becomes_too_old_in_whatever_order_they_end(lag: int, most: int) -> None:
    from gumshoe.training.grpo.rollout_queue import Lead

    full = 0  # steps that waited for all groups
    for seed in range(200):
        model = QueueModel(Lead(lag, most), random.Random(seed))
        for number in range(8):
            found = model.take(number)
            assert len(found.groups) == GROUPS
            assert max(each.staleness for each in found.groups) <= most
        full += model.full
    assert (full == 200 * 8) == (lag == 0), full


class QueueModel:
    """A queue whose groups start and end in a random order, without episodes."""

    def __init__(self, lead: "Lead", rng: random.Random) -> None:
        from gumshoe.training.grpo.rollout_queue import RolloutQueue

        collector = SimpleNamespace(schedule=SimpleNamespace(groups=GROUPS))
        self.lead, self.rng, self.number, self.full = lead, rng, 0, 0
        self.queue = RolloutQueue(cast(Any, collector), cast(Any, None), lead, 100)

    @property
    def running(self) -> list[Any]:
        return [each for each in self.queue._groups if not each.ended]

    def start(self, step: int) -> None:
        """Add a group of a batch, whose episodes wait for a place."""
        from gumshoe.training.grpo.rollout_queue import _Group

        place = self.queue._next.get(step, 0)
        self.queue._next[step] = place + 1
        self.queue._groups.append(_Group(step, place, SCENARIOS[0]))

    def advance(self) -> None:
        """Start or end a group, and replace it if it ended in vain."""
        group = self.rng.choice(self.running)
        if group.oldest is None:
            group.oldest = self.number
            return
        group.ended, group.is_useful = 1.0, self.rng.random() < 0.8
        group.scored = ScoredGroup(group.scenario, (), ())
        if not group.is_useful:
            self.start(group.step)

    def take(self, number: int) -> RolloutBatch:
        """Take the groups of a step as soon as the queue allows it; some go on while it is trained on."""
        self.number = number
        for step in range(number + self.lead.lag + 1):
            while self.queue._next.get(step, 0) < GROUPS:
                self.start(step)
        while not self.queue._is_ready(number):
            self.advance()
        self.full += not self.running
        found = self.queue._collect(number)
        for _ in range(self.rng.randrange(8)):
            if self.running:
                self.advance()
        return found


def test_flat_groups_are_replaced_and_end_with_a_step(env: EnvFactory, tokenizer: Any) -> None:
    flat = SCHEDULE.draw(0)[0]
    ahead = Ahead(env, tokenizer, lag=1, staleness=2, flat=[flat])

    async def work() -> None:
        found = [await ahead.take(number) for number in range(3)]
        ended = {name: useful for each in found for name, useful in each.ended.items()}
        assert ended["0/0"] is False
        assert ended["0/2"] is True, "the first scenario that replaces another"
        assert sum(each.flat for each in found) == 1
        assert found[0].flat_scenarios + found[1].flat_scenarios + found[2].flat_scenarios == (flat.id,)

    run(ahead, work)


def test_each_dropped_group_of_a_scenario_counts() -> None:
    from gumshoe.training.grpo.rollout_queue import Lead

    model = QueueModel(Lead(), random.Random(1))
    for _ in range(2):
        model.start(0)
    for each in model.running:
        each.ended, each.dropped = 1.0, "no answer [judges.timeout]"
    assert list(model.queue._collect(0).dropped) == [SCENARIOS[0].id, f"{SCENARIOS[0].id} (0/1)"]


def test_a_resumed_run_continues_with_the_groups_of_no_step(env: EnvFactory, tokenizer: Any) -> None:
    """None is lost, and none is used twice, whatever ran when the process was killed."""
    flat = SCHEDULE.draw(1)[1]
    seen, ended = list[str](), dict[str, bool]()

    def note(found: RolloutBatch) -> None:
        seen.extend(found.ended)
        ended.update(found.ended)

    first = Ahead(env, tokenizer, lag=2, staleness=3, flat=[flat])
    first.script.hold(SCHEDULE.draw(0)[1])

    async def begin() -> None:
        for number in range(2):
            note(await first.take(number))

    run(first, begin)
    again = Ahead(env, tokenizer, lag=2, staleness=3, flat=[flat])
    again.queue.resume(dict(ended))

    async def go_on() -> None:
        for number in range(2, LAST + 1):
            note(await again.take(number))

    run(again, go_on)
    assert len(seen) == len(set(seen)), "none twice"
    assert sum(ended.values()) == (LAST + 1) * GROUPS
    expected = {f"{step}/{place}" for step in range(LAST + 1) for place in range(GROUPS)} | {"1/2"}
    assert set(ended) == expected, "none lost"


@pytest.mark.parametrize("by_turn", [False, True])
def test_a_running_episode_keeps_its_policy_or_changes_between_turns(
    env: EnvFactory, tokenizer: Any, *, by_turn: bool
) -> None:
    ahead = Ahead(env, tokenizer, lag=1, staleness=2, by_turn=by_turn)
    slow = SCHEDULE.draw(0)[0]
    release = ahead.script.hold(slow)

    async def work() -> None:
        await ahead.take(0)
        await settle(lambda: len(ahead.script.waiting) == GENERATIONS)
        ahead.sampler.publish(None, "policy-1", None)
        assert await ahead.queue.adopt(1) == {"policy-0", "policy-1"}, "the servers must keep both"
        release.set()
        found = await ahead.take(1)
        (group,) = (each for each in found.groups if each.scenario == slow)
        assert group.staleness == 1, "that of the oldest token"
        for each in group.trajectories:
            spans = [span.version for span in each.spans if span.origin == "sampled"]
            assert each.policy == "policy-0"
            assert spans == ["", "", "policy-1" if by_turn else ""]
            assert each.versions == ({"policy-0", "policy-1"} if by_turn else {"policy-0"})
        assert await ahead.queue.adopt(1) == {"policy-1"}

    run(ahead, work)


def test_an_error_of_an_episode_ends_the_step(env: EnvFactory, tokenizer: Any) -> None:
    ahead = Ahead(env, tokenizer, lag=1, staleness=2)

    def fail(prompt: str, seed: int) -> str:  # noqa: ARG001
        raise ValueError("defect")

    ahead.sampler.script = fail

    async def work() -> None:
        with pytest.raises(ValueError, match="defect"):
            await ahead.take(0)

    run(ahead, work)
