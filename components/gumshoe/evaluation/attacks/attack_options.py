"""Options of `gumshoe evaluate` about attacks, and their results in the terminal."""

from typing import TYPE_CHECKING, Annotated

import typer

from gumshoe.completion import complete_words
from gumshoe.errors import UsageError
from gumshoe.terminal import create_table, out, printable

if TYPE_CHECKING:
    from gumshoe.evaluation.attacks.attack_run import AttackSettings
    from gumshoe.evaluation.results import EvaluationResult

AttacksOption = Annotated[
    str | None,
    typer.Option(
        "--attacks",
        metavar="SUITE",
        autocompletion=complete_words("standard", "train", "held-out"),
        help="Measure attacks too: messages in the inbox that try to make the agent obey them. Suite: standard (all "
        "families), train or held-out (half of them), or a file attacks.jsonl of an earlier evaluation.",
    ),
]
AttackCountOption = Annotated[
    int | None, typer.Option("--attack-count", min=1, help="Number of attacks of a built-in suite. Default: 475.")
]
AttackerOption = Annotated[
    str | None,
    typer.Option(
        "--attacker",
        metavar="WORD",
        autocompletion=complete_words("scripted", "chat:"),
        help="Adaptive attacker that rewrites attacks that failed: scripted, chat:MODEL or chat:MODEL@URL.",
    ),
]
AttackRoundsOption = Annotated[
    int | None,
    typer.Option("--attack-rounds", min=1, max=10, help="Maximum number of rounds of --attacker. Default: 3."),
]


def parse_attack_options(
    attacks: str | None, count: int | None, attacker: str | None, rounds: int | None
) -> "AttackSettings | None":
    """Return the settings of attacks, or None without `--attacks`.

    Raises:
        UsageError: if an option has no effect, or there is no such attacker.
    """
    from gumshoe.evaluation.attacks.attack_run import AttackSettings
    from gumshoe.synthesis.attacks.attack_suite import DEFAULT_COUNT, SUITES

    given = {"--attack-count": count, "--attacker": attacker, "--attack-rounds": rounds}
    useless = [name for name, value in given.items() if value is not None] if attacks is None else []
    if attacks is not None and attacks not in SUITES and count is not None:
        useless = ["--attack-count"]
    if attacker is None and rounds is not None:
        useless = ["--attack-rounds"]
    if useless:
        needed = {"--attack-rounds": "--attacker", "--attack-count": "a built-in suite (--attacks)"}
        raise UsageError(
            "evaluation.option-without-attacks",
            f"{useless[0]} {given[useless[0]]} has no effect without {needed.get(useless[0], '--attacks')}; add it, or "
            f"remove {useless[0]}",
        )
    if attacks is None:
        return None
    return AttackSettings(attacks, count or DEFAULT_COUNT, attacker, rounds or 3)


def print_attacks(found: "EvaluationResult") -> None:
    """Print the results of attacks as a table, with a column per policy; nothing without attacks."""
    from gumshoe.evaluation.attacks.attack_rows import list_attack_rows

    results = [each.attacks for each in found.policies]
    number = next((each.success.questions for each in results if each), None)
    if number is None:
        return
    table = create_table(f"{number:,} attacks", *(printable(each.name) for each in found.policies))
    for label, about, cells in list_attack_rows(results):
        if about not in ("carrier", "language"):
            shown = f"  {about}: {label}" if about in ("goal", "family") else label
            table.add_row(shown, *(f"{cell[0]} [dim]{cell[1]}[/]" if cell else "" for cell in cells))
    out.print(table)
