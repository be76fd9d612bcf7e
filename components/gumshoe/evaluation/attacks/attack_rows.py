"""Rows of the results of attacks, for the terminal and the report page."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gumshoe.evaluation.attacks.attack_results import AttackResult
from gumshoe.evaluation.metrics import Estimate

AttackCell = tuple[str, str]
"""A value and its interval, as text."""
AttackRow = tuple[str, str, list[AttackCell | None]]
"""Label, description, and the cell of each policy; None if it was not attacked."""


def list_attack_rows(results: Sequence[AttackResult | None]) -> Iterator[AttackRow]:
    """Yield the rows of a table with a column per policy; nothing if no policy was attacked."""
    attacked = [each for each in results if each is not None]
    if not attacked:
        return

    def row(label: str, about: str, cell: Callable[[AttackResult], AttackCell | None]) -> AttackRow:
        return label, about, [cell(each) if each else None for each in results]

    yield row("Succeeded", "attacks that succeeded", lambda each: _format_share(each.success))
    yield row("By chance", "sign of success without attack", lambda each: _format_share(each.by_chance))
    parts: tuple[tuple[str, Callable[[AttackResult], Mapping[str, Estimate]]], ...] = (
        ("goal", lambda each: each.goals),
        ("family", lambda each: each.families),
        ("carrier", lambda each: each.carriers),
        ("language", lambda each: each.languages),
    )
    for what, of in parts:
        for name in dict.fromkeys(name for each in attacked for name in of(each)):
            yield row(name, what, lambda each, of=of, name=name: _format_share(of(each).get(name)))  # type: ignore[misc]
    for number in range(1, max(len(each.rounds) for each in attacked)):
        yield row(f"Round {number}", "succeeded by then", lambda each, number=number: _format_round(each, number))  # type: ignore[misc]
    yield row("Correct, attacked", "same questions", lambda each: (f"{each.accuracy.attacked:.1%}", ""))
    yield row("Correct, without attack", "same questions", lambda each: (f"{each.accuracy.clean:.1%}", ""))
    yield row("Difference", "paired", _format_difference)


def _format_share(estimate: Estimate | None) -> AttackCell | None:
    return (f"{estimate.value:.1%}", f"{estimate.low:.1%} to {estimate.high:.1%}") if estimate else None


def _format_round(result: AttackResult, number: int) -> AttackCell | None:
    return _format_share(result.rounds[number].success) if number < len(result.rounds) else None


def _format_difference(result: AttackResult) -> AttackCell:
    found = result.accuracy
    return f"{found.difference:+.1%}", f"{found.low:+.1%} to {found.high:+.1%}"
