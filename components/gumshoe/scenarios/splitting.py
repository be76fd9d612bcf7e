"""Split scenarios without leaks: scenarios that share a source or a question stay together."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioError, ScenarioSet, Split, seeded_sort_key


@dataclass(frozen=True, slots=True)
class SeenQuestions:
    """Digests of the questions that a policy has seen. It must not be tested on them."""

    learned: Set[str] = frozenset()
    """Questions that it was trained on. They stay in the train split."""
    chosen: Set[str] = frozenset()
    """Other questions, on which a checkpoint was chosen. As far as there is room, they stay in the validation split."""


NOTHING_SEEN = SeenQuestions()


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The result of a split."""

    counts: dict[Split, int]
    groups: int
    """Groups of scenarios that must stay together."""
    largest_group: int
    dropped: int
    """Scenarios that overlap with the kept test split."""


def overlap_keys(scenario: Scenario, *, by_inbox: bool = False) -> Iterator[str]:
    """Yield keys that scenarios of different splits must not share: sources, question and optionally inbox."""
    for source in scenario.sources:
        yield f"source {source.strip('<>')}"
    yield f"question {scenario.plain_question}"
    if by_inbox and scenario.inbox_address:
        yield f"inbox {scenario.inbox_address}"


def split_scenarios(
    scenarios: ScenarioSet,
    *,
    validation: float,
    test: float = 0,
    seed: int,
    by_inbox: bool = False,
    keep_test: bool = False,
    seen: SeenQuestions = NOTHING_SEEN,
) -> tuple[ScenarioSet, SplitReport]:
    """Assign each scenario to a split, keeping the input order.

    Scenarios that share a source or a question (or an inbox, with `by_inbox`), directly or indirectly, get the same
    split. `validation` and `test` are shares of all scenarios, met as closely as the groups allow. With `keep_test`,
    the test split is unchanged, `validation` is a share of the rest, and scenarios that overlap with the test split are
    dropped. Scenarios that a policy has `seen` do not go into the test split, nor do their groups; the others fill it
    up to its share of all. The same scenarios and seed give the same splits in any order.

    Raises:
        ScenarioError: if the shares are out of range, or a split would be empty.
    """
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise ScenarioError(
            "scenarios.invalid-shares",
            f"the shares for validation ({validation:g}) and test ({test:g}) must each be >= 0 and add up to less "
            "than 1",
        )
    kept = scenarios.only("test") if keep_test else ScenarioSet(())
    if keep_test and not kept:
        raise ScenarioError(
            "scenarios.no-test-split", "no scenario is in the test split; use --test SHARE instead of --keep-test"
        )
    test_keys = {key for scenario in kept for key in overlap_keys(scenario, by_inbox=by_inbox)}
    test_ids = {scenario.id for scenario in kept}
    free = [
        scenario
        for scenario in scenarios
        if scenario.id not in test_ids and test_keys.isdisjoint(overlap_keys(scenario, by_inbox=by_inbox))
    ]
    groups = _group_connected(free, by_inbox)
    shares: dict[Split, float] = {
        "train": 1 - validation - (0 if keep_test else test),
        "validation": validation,
        "test": 0 if keep_test else test,
    }
    learned, chosen = _find(free, seen.learned), _find(free, seen.chosen)
    assigned = _assign(groups, shares, seed, learned=learned, chosen=chosen, placed={})
    assigned |= dict.fromkeys(test_ids, "test")
    result = ScenarioSet.of(
        scenario.model_copy(update={"split": assigned[scenario.id]})
        for scenario in scenarios
        if scenario.id in assigned
    )
    counts = Counter(assigned.values())
    largest = max(map(len, groups), default=0)
    empty = [split for split in SPLITS if shares[split] > 0 and not counts[split]]
    if empty:
        raise ScenarioError(
            "scenarios.empty-split",
            f"no scenarios left for {' and '.join(empty)}: {len(free):,} scenarios in {len(groups):,} groups that must "
            f"stay together, the largest of {largest:,}; use other shares, or add scenarios",
        )
    dropped = len(scenarios) - len(result)
    return result, SplitReport({split: counts[split] for split in SPLITS}, len(groups), largest, dropped)


def extend_splits(
    base: ScenarioSet,
    extra: Iterable[Scenario],
    *,
    validation: float,
    test: float,
    seed: int,
    seen: SeenQuestions = NOTHING_SEEN,
) -> tuple[ScenarioSet, list[Scenario]]:
    """Add scenarios to those that are in splits already. Return all of them, and those that fit in no split.

    The splits of `base` do not change. A scenario that shares a source or a question with some of them, directly or
    indirectly, gets their split. It fits in no split if they are in several, or if they are in the test split and a
    policy has `seen` one of the new ones. The other new ones are distributed as by `split_scenarios`; the shares are
    those of all new ones.
    """
    added = {each.id: each for each in extra}
    fixed = {each.id: each.split for each in base}
    every = [*base, *added.values()]
    learned, chosen = _find(every, seen.learned), _find(every, seen.chosen)
    assigned: dict[str, Split] = {}
    free, dropped = list[list[str]](), set[str]()
    for group in _group_connected(every, by_inbox=False):
        new = [each for each in group if each in added]
        splits = {split for each in group if (split := fixed.get(each)) is not None}
        is_seen = not (learned | chosen).isdisjoint(group)
        if len(splits) > 1 or (is_seen and splits == {"test"}):
            dropped |= set(new)
        elif splits:
            assigned |= dict.fromkeys(new, splits.pop())
        elif new:
            free.append(new)
    shares: dict[Split, float] = {"train": 1 - validation - test, "validation": validation, "test": test}
    assigned |= _assign(free, shares, seed, learned=learned, chosen=chosen, placed=assigned)
    placed = [each.model_copy(update={"split": assigned[each.id]}) for each in added.values() if each.id in assigned]
    return ScenarioSet.of([*base, *placed]), [each for each in added.values() if each.id in dropped]


def _group_connected(scenarios: Iterable[Scenario], by_inbox: bool) -> list[list[str]]:
    """Return the ids of scenarios that are connected, directly or indirectly. Each group is sorted."""
    parents: dict[str, str] = {}

    def find_root(key: str) -> str:
        while (parent := parents.setdefault(key, key)) != key:
            parents[key] = parents[parent]  # path halving
            key = parent
        return key

    firsts: dict[str, str] = {}
    for scenario in scenarios:
        first, *others = overlap_keys(scenario, by_inbox=by_inbox)
        firsts[scenario.id] = first
        for other in others:
            parents[find_root(other)] = find_root(first)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for scenario_id, first in firsts.items():
        groups[find_root(first)].append(scenario_id)
    return [sorted(group) for group in groups.values()]


def _find(scenarios: Iterable[Scenario], digests: Collection[str]) -> set[str]:
    """Return the ids of the scenarios with one of these digests."""
    return {each.id for each in scenarios if each.digest in digests}


def _assign(
    groups: list[list[str]],
    shares: Mapping[Split, float],
    seed: int,
    *,
    learned: Set[str],
    chosen: Set[str],
    placed: Mapping[str, Split],
) -> dict[str, Split]:
    """Return the split of each scenario.

    Groups are shuffled by the seed. Each goes to the split that lacks the most relative to its size, so that a small
    split gets groups of every size that fits. A split that got no group takes the one nearest to its size from the
    split with the most groups. Groups with `learned` scenarios go into the train split, and other groups with `chosen`
    ones into the validation split as long as they fit, else into the train split. The shares are those of all, with
    the scenarios that are `placed` already.
    """
    given = Counter[Split](placed.values())
    total = sum(map(len, groups)) + len(placed)
    lacking = {split: share * total - given[split] for split, share in shares.items() if share > 0}
    found: dict[Split, list[list[str]]] = {split: [] for split in lacking}
    kept: dict[Split, list[list[str]]] = {split: [] for split in lacking}  # of seen groups, which no split takes away
    rest = list[list[str]]()
    for group in sorted(groups, key=lambda each: seeded_sort_key(seed, each[0])):
        if not learned.isdisjoint(group):
            kept["train"].append(group)
        elif not chosen.isdisjoint(group):
            fits = lacking.get("validation", 0) - sum(map(len, kept.get("validation", []))) + 0.5 >= len(group)
            kept["validation" if fits else "train"].append(group)
        else:
            rest.append(group)
    for split, each in kept.items():
        lacking[split] -= sum(map(len, each))
    for group in rest:
        fitting = [split for split in lacking if lacking[split] + 0.5 >= len(group)]
        split = max(fitting or lacking, key=lambda each: lacking[each] / (shares[each] if fitting else 1))
        lacking[split] -= len(group)
        found[split].append(group)
    for split in [each for each in found if not (found[each] or kept[each] or given[each])]:
        giver = max(found.values(), key=len)
        if len(giver) > 1:
            nearest = min(giver, key=lambda group: abs(len(group) - lacking[split]))
            giver.remove(nearest)
            found[split].append(nearest)
    return {
        scenario_id: split
        for own in (kept, found)
        for split, split_groups in own.items()
        for group in split_groups
        for scenario_id in group
    }
