"""Limit the share of scenarios that one caller's feedback may have."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from gumshoe.scenarios.scenario import Scenario, seeded_sort_key


def find_cap(counts: Sequence[int], others: int, max_share: float) -> int:
    """Return the maximum number of scenarios that each caller may keep, given the number of each [callers].

    With it, no caller has more than `max_share` of the scenarios that are kept, together with `others`, which nobody
    gave; with a higher one, somebody would. It is 0 if there are too few callers.

    >>> find_cap([50, 3, 3, 3], others=0, max_share=0.4)
    6
    >>> find_cap([50, 3, 3, 3], others=0, max_share=0.2)
    0
    """

    def is_within(cap: int) -> bool:
        return cap <= max_share * (others + sum(min(count, cap) for count in counts)) + 1e-9

    low, high = 0, max(counts, default=0)  # the share of the largest caller grows with the cap
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_within(middle) else (low, middle - 1)
    return low


def cap_shares(scenarios: Sequence[Scenario], others: int, max_share: float, seed: int) -> list[Scenario]:
    """Return the scenarios of which no caller gave more than a share, in their order.

    Scenarios without a caller count as those of one caller. The seed decides which ones of a caller are kept.
    """
    counts = Counter(each.given_by for each in scenarios)
    cap = find_cap(list(counts.values()), others, max_share)
    own: defaultdict[str | None, list[str]] = defaultdict(list)
    for each in sorted(scenarios, key=lambda each: seeded_sort_key(seed, each.digest)):
        own[each.given_by].append(each.id)
    kept = {name for names in own.values() for name in names[:cap]}
    return [each for each in scenarios if each.id in kept]
