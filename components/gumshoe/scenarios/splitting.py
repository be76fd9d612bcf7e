"""Split scenarios so that nothing leaks: what shares a source or a question stays together."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioError, ScenarioSet, Split, seeded


@dataclass(frozen=True, slots=True)
class SplitReport:
    """How a set was split."""

    counts: dict[Split, int]
    groups: int
    """Groups of scenarios that had to stay together."""
    largest_group: int
    dropped: int
    """Scenarios that share something with the test split that was kept."""


def ties(scenario: Scenario, *, by_inbox: bool = False) -> Iterator[str]:
    """What a scenario must not have in common with one of another split: its sources, its question, its inbox."""
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
    seen: Collection[str] = (),
) -> tuple[ScenarioSet, SplitReport]:
    """Put each scenario into a split, in the order they came.

    Scenarios that share a source or a question (or an inbox, with `by_inbox`), directly or through others, are in
    one split. `validation` and `test` are shares of the whole, and met as nearly as the groups allow. With
    `keep_test` the test split stays what it is, `validation` is a share of the rest, and what shares something with
    a test scenario is dropped from the rest. What some policy has `seen` (digests of scenarios) goes into the split
    train, with what hangs together with it; the shares are of the others then. The same scenarios and seed give the
    same splits in whatever order.

    Raises:
        ScenarioError: the shares are out of range, or a split would be empty.
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
    held = {tie for scenario in kept for tie in ties(scenario, by_inbox=by_inbox)}
    tested = {scenario.id for scenario in kept}
    free = [
        scenario
        for scenario in scenarios
        if scenario.id not in tested and held.isdisjoint(ties(scenario, by_inbox=by_inbox))
    ]
    groups = _groups(free, by_inbox)
    shares: dict[Split, float] = {
        "train": 1 - validation - (0 if keep_test else test),
        "validation": validation,
        "test": 0 if keep_test else test,
    }
    known = {scenario.id for scenario in free if scenario.digest in seen}
    old = [group for group in groups if not known.isdisjoint(group)]
    chosen: dict[str, Split] = dict.fromkeys((each for group in old for each in group), "train")
    chosen |= _assign([group for group in groups if known.isdisjoint(group)], shares, seed)
    chosen |= dict.fromkeys(tested, "test")
    result = ScenarioSet.of(
        scenario.model_copy(update={"split": chosen[scenario.id]}) for scenario in scenarios if scenario.id in chosen
    )
    counts = Counter(chosen.values())
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


def _groups(scenarios: Iterable[Scenario], by_inbox: bool) -> list[list[str]]:
    """Ids of scenarios that hang together, directly or through others, each group in order of id."""
    parents: dict[str, str] = {}

    def root(tie: str) -> str:
        while (above := parents.setdefault(tie, tie)) != tie:
            parents[tie] = parents[above]  # halves the path for the next time
            tie = above
        return tie

    firsts: dict[str, str] = {}
    for scenario in scenarios:
        first, *others = ties(scenario, by_inbox=by_inbox)
        firsts[scenario.id] = first
        for other in others:
            parents[root(other)] = root(first)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for scenario_id, first in firsts.items():
        groups[root(first)].append(scenario_id)
    return [sorted(group) for group in groups.values()]


def _assign(groups: list[list[str]], shares: dict[Split, float], seed: int) -> dict[str, Split]:
    """The split of each scenario.

    Groups come in an order that the seed decides, and each goes where the most is wanting for its size, so that a
    small split gets groups of every size that fits into it. A split that none fitted into gets the one nearest to its
    size from where there are most.
    """
    total = sum(map(len, groups))
    wanting = {split: share * total for split, share in shares.items() if share > 0}
    placed: dict[Split, list[list[str]]] = {split: [] for split in wanting}
    for group in sorted(groups, key=lambda each: seeded(seed, each[0])):
        fitting = [split for split in wanting if wanting[split] + 0.5 >= len(group)]
        split = max(fitting or wanting, key=lambda each: wanting[each] / (shares[each] if fitting else 1))
        wanting[split] -= len(group)
        placed[split].append(group)
    for split in [split for split in placed if not placed[split]]:
        giver = max(placed.values(), key=len)
        if len(giver) > 1:
            nearest = min(giver, key=lambda group: abs(len(group) - wanting[split]))
            giver.remove(nearest)
            placed[split].append(nearest)
    return {scenario_id: split for split, given in placed.items() for group in given for scenario_id in group}
