"""The scenarios of a step: a function of the seed and the step only."""

from datetime import date
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.grpo.schedule import Schedule


def scenarios(count: int) -> tuple[Scenario, ...]:
    fields = {"question": "Q?", "answer": "A", "message_ids": ["<1@x>"], "inbox_address": "a@x.example"}
    return tuple(Scenario(id=str(each), query_date=date(2024, 1, 1), **fields) for each in range(count))


def ids(found: list[Scenario]) -> list[str]:
    return [each.id for each in found]


SIZES = st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


@given(SIZES, st.integers(0, 5), st.integers(1, 60), st.booleans())
def test_every_scenario_is_used_once_before_any_is_used_again(
    sizes: tuple[int, int], seed: int, steps: int, keeps_order: bool
) -> None:
    count, groups = sizes
    schedule = Schedule(scenarios(count), seed, groups, keeps_order)
    drawn = [ids(schedule.draw(step)) for step in range(steps)]
    assert all(len(set(step)) == groups for step in drawn), "a step has no scenario twice"
    flat = [each for step in drawn for each in step]
    for start in range(0, len(flat) - count + 1, count):
        assert sorted(flat[start : start + count], key=int) == [str(each) for each in range(count)]


@given(SIZES, st.integers(0, 5), st.integers(0, 30), st.booleans())
def test_a_step_may_take_every_scenario_once_those_that_it_draws_first(
    sizes: tuple[int, int], seed: int, step: int, keeps_order: bool
) -> None:
    count, groups = sizes
    schedule = Schedule(scenarios(count), seed, groups, keeps_order)
    order = schedule.order(step)
    assert order[:groups] == schedule.draw(step)
    assert sorted(ids(order), key=int) == [str(each) for each in range(count)]


def test_replacements_of_the_first_epoch_in_the_given_order_are_from_nearby() -> None:
    schedule = Schedule(scenarios(40), 1, 4, keeps_order=True)

    def steps_of_replacements(step: int) -> list[int]:
        return [int(each) // 4 for each in ids(schedule.order(step))[4:]]

    assert steps_of_replacements(0) == [step for step in range(1, 10) for _ in range(4)]
    assert [sorted(steps_of_replacements(5)[at : at + 8]) for at in (0, 8)] == [[4] * 4 + [6] * 4, [3] * 4 + [7] * 4]
    assert steps_of_replacements(10) != sorted(steps_of_replacements(10)), "the second epoch"
    assert ids(schedule.order(5))[4:12] != ids(Schedule(scenarios(40), 2, 4, keeps_order=True).order(5))[4:12]


def test_the_first_epoch_may_keep_the_order_of_the_scenarios() -> None:
    schedule = Schedule(scenarios(12), 1, 4, keeps_order=True)
    drawn = [each for step in range(6) for each in ids(schedule.draw(step))]
    assert drawn[:12] == [str(each) for each in range(12)]
    assert drawn[12:] != drawn[:12]


def test_the_order_depends_only_on_the_seed() -> None:
    schedule = Schedule(scenarios(50), 1, 8)
    late = ids(schedule.draw(40))
    again = Schedule(scenarios(50), 1, 8)
    assert [ids(again.draw(step)) for step in range(41)][40] == late
    assert ids(Schedule(scenarios(50), 2, 8).draw(40)) != late
    epochs = [ids(Schedule(scenarios(8), 1, 8).draw(step)) for step in range(6)]
    assert all(one != other for one, other in pairwise(epochs))
