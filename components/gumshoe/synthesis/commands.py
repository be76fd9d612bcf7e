"""`gumshoe synthesize`: mail."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gumshoe.artifacts.storage import writable_directory
from gumshoe.errors import UsageError
from gumshoe.synthesis.difficulty import Level
from gumshoe.terminal import JsonFlag, out, plain, print_json, progress

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Invent data to try, test and train with.")


@app.callback()
def _group() -> None:
    """Invent data to try, test and train with."""


@app.command()
def mail(
    seed: Annotated[int, typer.Option(help="Decides everything: the same seed gives the same bytes.")],
    place: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the files go; made where missing.")],
    mailboxes: Annotated[int, typer.Option(help="How many; each is in one split.")] = 12,
    messages: Annotated[int, typer.Option(help="How many in all, in equal parts.")] = 3600,
    difficulty: Annotated[Level, typer.Option(help="How much lies between a question and its answer.")] = "normal",
    replace: Annotated[bool, typer.Option("--replace", help="Replace files that are there.")] = False,
    json: JsonFlag = False,
) -> None:
    """Invent a company's mail, DIR/mail.jsonl, and questions about it, DIR/scenarios.jsonl."""
    from gumshoe.synthesis.mail import MAIL, SCENARIOS, check_size, kinds_of, synthesize_mail, write_mail

    check_size(mailboxes, messages)
    directory = _usable(place, (MAIL, SCENARIOS), replace=replace)  # before the work, not after it
    with progress("Inventing", total=messages) as advance:
        made = synthesize_mail(seed, mailboxes, messages, difficulty, advance)
    write_mail(made, directory)
    kinds = kinds_of(made.scenarios)
    splits = {split: len(made.scenarios.only(split)) for split in ("train", "validation", "test")}
    if json:
        print_json(
            {"messages": len(made.messages), "scenarios": splits, "kinds": kinds, "content": made.scenarios.content}
        )
        return
    shown = escape(plain(directory))
    out.print(
        f"[bold]{len(made.messages):,} messages[/] of {mailboxes:,} people at {made.company} in {shown}/{MAIL}",
        soft_wrap=True,
    )
    counts = ", ".join(f"{count:,} {split}" for split, count in splits.items())
    out.print(f"[bold]{len(made.scenarios):,} questions[/] in {shown}/{SCENARIOS}: {counts}", soft_wrap=True)
    out.print(", ".join(f"{count:,} {kind}" for kind, count in kinds.items()), soft_wrap=True)


def _usable(place: str, names: Sequence[str], *, replace: bool) -> Path:
    """The directory, if files of those names may be written there."""
    directory = writable_directory(place)
    there = [name for name in names if (directory / name).exists()]
    if folders := [name for name in there if (directory / name).is_dir()]:
        raise UsageError(f"{directory / folders[0]} is a directory, where a file is to go; choose another place")
    if there and not replace:
        raise UsageError(
            f"{directory} holds {' and '.join(there)} already; choose another, or replace them (--replace)"
        )
    return directory
