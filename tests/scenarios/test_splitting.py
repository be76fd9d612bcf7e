"""Splits: scenarios that share something stay together, the kept test split is unchanged, and the shares are met."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioError, ScenarioSet, Split
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.scenarios.splitting import SeenQuestions, SplitReport, extend_splits, split_scenarios
from tests.errors import check_error, raises
from tests.scenarios.questions import QUICK, about_documents, ids, marks, scenario, scenario_sets

shares = st.sampled_from([0, 0.1, 0.25, 0.4]) | st.floats(0, 0.45)
seeds = st.integers(0, 99)


def components(scenarios: list[Scenario], by_inbox: bool) -> list[set[str]]:
    """Return the ids of connected scenarios, by a slow and simple algorithm."""
    groups: list[tuple[set[str], set[tuple[str, str]]]] = []
    for each in scenarios:
        own, shared = {each.id}, marks(each, by_inbox=by_inbox)
        apart = []
        for group in groups:
            if group[1] & shared:
                own, shared = own | group[0], shared | group[1]
            else:
                apart.append(group)
        groups = [*apart, (own, shared)]
    return [own for own, _ in groups]


def splits_of(scenarios: ScenarioSet) -> dict[str, Split | None]:
    return {each.id: each.split for each in scenarios}


def make_shares(validation: float, test: float) -> dict[Split, float]:
    return {"train": 1 - validation - test, "validation": validation, "test": test}


def leaks(scenarios: ScenarioSet, *, by_inbox: bool = False) -> set[tuple[str, str]]:
    """Return what more than one split contains."""
    counts = Counter[tuple[str, str]]()
    for split in SPLITS:
        counts.update({mark for each in scenarios.only(split) for mark in marks(each, by_inbox=by_inbox)})
    return {mark for mark, count in counts.items() if count > 1}


def split_or_none(
    scenarios: ScenarioSet, validation: float, test: float, seed: int, by_inbox: bool
) -> tuple[ScenarioSet, SplitReport] | None:
    """Split scenarios, or return None if there are fewer groups than splits."""
    groups = components(list(scenarios), by_inbox)
    largest = max(map(len, groups), default=0)
    try:
        result, report = split_scenarios(scenarios, validation=validation, test=test, seed=seed, by_inbox=by_inbox)
    except ScenarioError as error:
        check_error(error, "scenarios.empty-split")  # some sets cannot be split
        assert len(groups) < sum(share > 0 for share in make_shares(validation, test).values())
        return None
    assert (report.groups, report.largest_group, report.dropped) == (len(groups), largest, 0)
    return result, report


@QUICK
@given(made=scenario_sets(), validation=shares, test=shares, seed=seeds, by_inbox=st.booleans())
def test_splits_share_no_source_question_or_inbox(
    made: ScenarioSet, validation: float, test: float, seed: int, by_inbox: bool
) -> None:
    done = split_or_none(made, validation, test, seed, by_inbox)
    if done is not None:
        assert leaks(done[0], by_inbox=by_inbox) == set()


@QUICK
@given(made=scenario_sets(), validation=shares, test=shares, seed=seeds, by_inbox=st.booleans())
def test_each_scenario_is_in_one_split_and_otherwise_unchanged(
    made: ScenarioSet, validation: float, test: float, seed: int, by_inbox: bool
) -> None:
    done = split_or_none(made, validation, test, seed, by_inbox)
    if done is not None:
        result, report = done
        assert {each.split for each in result} <= set(SPLITS)
        assert [each.model_copy(update={"split": None}) for each in result] == [
            each.model_copy(update={"split": None}) for each in made
        ]
        assert report.counts == {split: len(result.only(split)) for split in SPLITS}
        assert {split for split, count in report.counts.items() if count} == {
            split for split, share in make_shares(validation, test).items() if share
        }


@QUICK
@given(made=scenario_sets(), validation=shares, test=shares, seed=seeds, by_inbox=st.booleans(), data=st.data())
def test_splits_are_deterministic_in_any_order(
    made: ScenarioSet, validation: float, test: float, seed: int, by_inbox: bool, data: st.DataObject
) -> None:
    mixed = ScenarioSet.of(data.draw(st.permutations(list(made))))
    once, again = (split_or_none(each, validation, test, seed, by_inbox) for each in (made, mixed))
    if once is None or again is None:
        assert once is again
    else:
        assert splits_of(once[0]) == splits_of(again[0])
        assert ids(again[0]) == ids(mixed)


@QUICK
@given(
    made=scenario_sets(),
    validation=shares,
    test=shares,
    seed=seeds,
    by_inbox=st.booleans(),
    keep_test=st.booleans(),
)
def test_previous_splits_do_not_matter_except_a_kept_test(
    made: ScenarioSet, validation: float, test: float, seed: int, by_inbox: bool, keep_test: bool
) -> None:
    others = ScenarioSet.of(
        each if keep_test and each.split == "test" else each.model_copy(update={"split": None}) for each in made
    )
    found = []
    for scenarios in (made, others):
        try:
            result, _ = split_scenarios(
                scenarios, validation=validation, test=test, seed=seed, by_inbox=by_inbox, keep_test=keep_test
            )
        except ScenarioError as error:
            found.append(error.message_with_code)
        else:
            found.append(str(splits_of(result)))
    assert found[0] == found[1]


@QUICK
@given(made=scenario_sets(), validation=shares, seed=seeds, by_inbox=st.booleans())
def test_a_kept_test_split_is_unchanged_without_overlaps(
    made: ScenarioSet, validation: float, seed: int, by_inbox: bool
) -> None:
    tested = made.only("test")
    seen = {mark for each in tested for mark in marks(each, by_inbox=by_inbox)}
    apart = [each for each in made if each.split != "test" and not marks(each, by_inbox=by_inbox) & seen]
    largest = max(map(len, components(apart, by_inbox)), default=0)
    try:
        result, report = split_scenarios(made, validation=validation, seed=seed, by_inbox=by_inbox, keep_test=True)
    except ScenarioError as error:
        check_error(error, "scenarios.empty-split" if tested else "scenarios.no-test-split")
        wanted = [share * len(apart) for share in (1 - validation, validation) if share]
        assert not tested or min(wanted) <= 2 * largest
        return
    assert result.only("test") == tested
    assert leaks(result, by_inbox=by_inbox) == set()
    assert {each.id for each in result} == {each.id for each in [*apart, *tested]}
    assert report.dropped == len(made) - len(apart) - len(tested)


@QUICK
@given(made=scenario_sets(), validation=shares, test=shares, seed=seeds)
def test_shares_are_met_to_within_two_groups(made: ScenarioSet, validation: float, test: float, seed: int) -> None:
    done = split_or_none(made, validation, test, seed, by_inbox=False)
    if done is not None:
        _, report = done
        for split, share in make_shares(validation, test).items():
            assert abs(report.counts[split] - share * len(made)) <= 2 * report.largest_group


@QUICK
@given(count=st.integers(1, 120), validation=shares, test=shares, seed=seeds)
def test_shares_of_independent_scenarios_are_met_exactly(count: int, validation: float, test: float, seed: int) -> None:
    made = ScenarioSet.of(map(scenario, range(count)))
    wanted = {split: share * count for split, share in make_shares(validation, test).items()}
    smallest = min(filter(None, wanted.values()))
    try:
        _, report = split_scenarios(made, validation=validation, test=test, seed=seed)
    except ScenarioError as error:
        check_error(error, "scenarios.empty-split")
        assert smallest < 1
        return
    for split, number in wanted.items():  # each split gets at least one, at the cost of the others
        assert report.counts[split] == pytest.approx(number, abs=(1 if smallest >= 1 else 2) + 1e-9)


def test_a_small_split_gets_large_groups_too() -> None:
    """Check this, or the test split would have no question about popular messages."""
    pairs = [scenario(number, message_ids=[f"<{number // 2}@example.com>"]) for number in range(100)]
    alone = [scenario(number) for number in range(100, 200)]
    result, _ = split_scenarios(ScenarioSet.of([*pairs, *alone]), validation=0.1, test=0.1, seed=1)
    for split in ("validation", "test"):
        paired = sum(int(each.id[1:]) < 100 for each in result.only(split))
        assert 0 < paired < len(result.only(split)) == 20


def test_another_seed_gives_other_splits() -> None:
    made = ScenarioSet.of(map(scenario, range(40)))
    found = {str(splits_of(split_scenarios(made, validation=0.2, test=0.2, seed=seed)[0])) for seed in range(5)}
    assert len(found) == 5


@pytest.mark.parametrize(
    "others",
    [
        [scenario(2, message_ids=["1@example.com"])],
        [scenario(2, question="What does message 1 say")],
        [scenario(2, message_ids=["<1@example.com>", "<3@example.com>"])],
        [scenario(2, message_ids=["<1@example.com>", "<3@example.com>"]), scenario(3)],
        [scenario(2, question="what does message 3 say?", message_ids=["<1@example.com>"]), scenario(3)],
    ],
    ids=["source", "question", "one of several", "through another", "through both"],
)
def test_scenarios_that_share_something_are_one_group(others: list[Scenario]) -> None:
    made = ScenarioSet.of([scenario(1), *others, *map(scenario, range(10, 30))])
    for seed in range(10):
        result, report = split_scenarios(made, validation=0.3, test=0.3, seed=seed)
        assert report.largest_group == 1 + len(others)
        assert len({splits_of(result)[each.id] for each in [scenario(1), *others]}) == 1


def test_seen_scenarios_and_their_groups_are_not_tested_and_the_others_fill_the_test_split() -> None:
    old = ScenarioSet.of(map(scenario, range(20)))
    akin = scenario(100, question="How long is it?", message_ids=["<3@example.com>"])
    made = ScenarioSet.of([*old, akin, *map(scenario, range(20, 60))])
    digests = [each.digest for each in old]
    for seed in range(5):
        learned = SeenQuestions(frozenset(digests))
        result, report = split_scenarios(made, validation=0.2, test=0.2, seed=seed, seen=learned)
        found = splits_of(result)
        assert {found[each.id] for each in [*old, akin]} == {"train"}
        assert report.counts == {"train": 37, "validation": 12, "test": 12}, "shares of all"
        mixed = SeenQuestions(frozenset(digests[:10]), frozenset(digests[10:]))
        result, report = split_scenarios(made, validation=0.2, test=0.2, seed=seed, seen=mixed)
        found = splits_of(result)
        assert {found[each.id] for each in [*old.scenarios[:10], akin]} == {"train"}
        assert {found[each.id] for each in old.scenarios[10:]} == {"validation"}
        assert report.counts == {"train": 37, "validation": 12, "test": 12}


def see(scenarios: ScenarioSet) -> SeenQuestions:
    """Return what an adapter has seen that was trained on these splits."""
    learned, chosen = (frozenset(each.digest for each in scenarios.only(split)) for split in ("train", "validation"))
    return SeenQuestions(learned, chosen)


def test_retraining_again_and_again_keeps_the_test_split() -> None:
    made = ScenarioSet.of(map(scenario, range(1000)))
    first, report = split_scenarios(made, validation=0.1, test=0.15, seed=1)
    assert report.counts == {"train": 750, "validation": 100, "test": 150}
    split = first
    for _ in range(3):
        split, _ = split_scenarios(made, validation=0.1, test=0.15, seed=1, seen=see(split))
        assert splits_of(split) == splits_of(first)


def test_new_questions_fill_the_splits_beside_seen_ones() -> None:
    first, _ = split_scenarios(ScenarioSet.of(map(scenario, range(100))), validation=0.1, test=0.15, seed=1)
    more = ScenarioSet.of(map(scenario, range(200)))
    split, report = split_scenarios(more, validation=0.1, test=0.15, seed=1, seen=see(first))
    assert report.counts == {"train": 150, "validation": 20, "test": 30}
    assert not {each.digest for each in split.only("test")} & (see(first).learned | see(first).chosen)
    assert splits_of(first.only("validation")).items() <= splits_of(split).items()


def test_the_test_split_of_new_feedback_is_not_used_up_either() -> None:
    base = ScenarioSet.of(scenario(number, split="train") for number in range(10))
    new = list(map(scenario, range(100, 300)))
    split, _ = extend_splits(base, new, validation=0.1, test=0.15, seed=1)
    assert len(split.only("test")) == 30
    again, _ = extend_splits(base, new, validation=0.1, test=0.15, seed=1, seen=see(split))
    assert splits_of(again) == splits_of(split)


def test_a_test_split_without_unseen_questions_is_refused() -> None:
    made = list(map(scenario, range(20)))
    seen = SeenQuestions(frozenset(each.digest for each in made[:15]), frozenset(each.digest for each in made[15:]))
    with raises("scenarios.empty-split", "test"):
        split_scenarios(ScenarioSet.of(made), validation=0.1, test=0.15, seed=1, seen=seen)


def test_inboxes_stay_together_only_on_request() -> None:
    made = ScenarioSet.of(scenario(number, inbox_address=f"owner{number % 10}@example.com") for number in range(60))
    for by_inbox, groups in ((True, 10), (False, 60)):
        result, report = split_scenarios(made, validation=0.2, test=0.2, seed=1, by_inbox=by_inbox)
        assert report.groups == groups
        assert bool(leaks(result, by_inbox=True)) is not by_inbox


def test_an_inbox_of_a_kept_test_split_is_in_no_other() -> None:
    made = ScenarioSet.of(
        scenario(number, inbox_address=f"owner{number % 10}@example.com", split="test" if number < 2 else None)
        for number in range(60)
    )
    for by_inbox, dropped in ((True, 10), (False, 0)):
        result, report = split_scenarios(made, validation=0.2, seed=1, by_inbox=by_inbox, keep_test=True)
        assert report.dropped == dropped
        assert bool(leaks(result, by_inbox=True)) is not by_inbox


def test_the_order_of_a_group_does_not_matter() -> None:
    made = [scenario(number, message_ids=[f"<{number // 3}@example.com>"]) for number in range(60)]
    found = [split_scenarios(ScenarioSet.of(each), validation=0.3, seed=1)[0] for each in (made, made[::-1])]
    assert splits_of(found[0]) == splits_of(found[1])


def test_a_message_and_a_document_with_one_id_are_one_source() -> None:
    made = ScenarioSet.of([scenario(1), Scenario.model_validate(about_documents(1, document_ids=["1@example.com"]))])
    assert split_scenarios(made, validation=0, seed=1)[1].groups == 1


@pytest.mark.parametrize(
    ("validation", "test"),
    [(1, 0), (0, 1), (0.5, 0.5), (0.9, 0.2), (-0.1, 0), (0, -0.1), (float("nan"), 0), (0, float("nan")), (10, 15)],
)
def test_shares_without_a_train_split_are_rejected(validation: float, test: float) -> None:
    made = ScenarioSet.of(map(scenario, range(40)))
    with raises("scenarios.invalid-shares", f"{validation:g}", f"{test:g}"):
        split_scenarios(made, validation=validation, test=test, seed=1)


@pytest.mark.parametrize(
    ("made", "validation", "values"),
    [
        ([], 0.1, ["train and validation"]),
        ([scenario(1)], 0.1, [" validation:", "1 scenarios", "1 groups"]),
        (
            [scenario(number, message_ids=["<1@example.com>"]) for number in range(30)],
            0.1,
            ["1 groups", "largest of 30"],
        ),
    ],
    ids=["none", "few", "one group"],
)
def test_an_impossible_share_is_rejected(made: list[Scenario], validation: float, values: list[str]) -> None:
    with raises("scenarios.empty-split", *values):
        split_scenarios(ScenarioSet.of(made), validation=validation, seed=1)


def test_each_split_gets_a_group() -> None:
    made = [scenario(number, message_ids=[f"<{number // 5}@example.com>"]) for number in range(15)]
    result, report = split_scenarios(ScenarioSet.of(made), validation=0.1, test=0.1, seed=1)
    assert report.counts == {"train": 5, "validation": 5, "test": 5}
    assert leaks(result) == set()


def test_a_share_of_0_is_an_empty_split() -> None:
    result, report = split_scenarios(ScenarioSet.of(map(scenario, range(3))), validation=0, seed=1)
    assert report.counts == {"train": 3, "validation": 0, "test": 0}
    assert {each.split for each in result} == {"train"}


def test_keeping_a_test_split_requires_one() -> None:
    with raises("scenarios.no-test-split"):
        split_scenarios(ScenarioSet.of(map(scenario, range(40))), validation=0.1, seed=1, keep_test=True)


def test_a_test_split_that_overlaps_with_all_others_is_an_error() -> None:
    made = [scenario(number, message_ids=["<1@example.com>"], split="test" if number else None) for number in range(9)]
    with raises("scenarios.empty-split", "train and validation", "0 scenarios"):
        split_scenarios(ScenarioSet.of(made), validation=0.1, seed=1, keep_test=True)


def test_overlaps_of_the_real_test_split_are_dropped(
    shared_data: Path,
) -> None:
    path = shared_data / "enron" / "questions.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    trained = {each for row in rows if row["split"] == "train" for each in row["message_ids"]}
    tested = [row for row in rows if row["split"] == "test"]
    assert (len(tested), sum(not trained.isdisjoint(row["message_ids"]) for row in tested)) == (149, 59)

    scenarios = load_scenarios(str(path))
    result, report = split_scenarios(scenarios, validation=0.1, seed=1, keep_test=True)
    assert report.dropped == 94
    assert result.only("test") == scenarios.only("test")
    assert leaks(result) == set()
    assert report.counts["validation"] == pytest.approx((999 - 149 - 94) * 0.1, abs=1)


@given(scenario_sets(), scenario_sets(), st.integers(0, 3))
@QUICK
def test_added_scenarios_never_leak_and_nothing_else_moves(base: ScenarioSet, extra: ScenarioSet, seed: int) -> None:
    kept = _without_overlaps(ScenarioSet.of(each for each in base if each.split))
    new = [each.model_copy(update={"id": f"new-{each.id}", "split": None}) for each in extra]
    learned, chosen = (frozenset(each.digest for each in some) for some in (new[::3], new[1::3]))
    seen = SeenQuestions(learned, chosen)
    found, unfit = extend_splits(kept, new, validation=0.1, test=0.2, seed=seed, seen=seen)
    assert found.scenarios[: len(kept)] == kept.scenarios
    assert len(found) + len(unfit) == len(kept) + len(new)
    assert _without_overlaps(found) == found, "no two splits share a source or a question"
    assert not [each for each in found.only("test") if each.id.startswith("new-") and each.digest in learned | chosen]
    again, _ = extend_splits(kept, reversed(new), validation=0.1, test=0.2, seed=seed, seen=seen)
    assert {each.id: each.split for each in again} == {each.id: each.split for each in found}


def _without_overlaps(scenarios: ScenarioSet) -> ScenarioSet:
    """Return the scenarios that share nothing with those of another split before them."""
    used: dict[tuple[str, str], str | None] = {}
    kept = []
    for each in scenarios:
        if all(used.get(mark, each.split) == each.split for mark in marks(each)):
            used |= dict.fromkeys(marks(each), each.split)
            kept.append(each)
    return ScenarioSet.of(kept)
