"""`gumshoe tiny`: the small policy that stands where a large one does."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from gumshoe.artifacts.storage import writable_directory
from gumshoe.errors import UsageError
from gumshoe.terminal import JsonFlag, err, out, plain, print_json, progress

tiny = typer.Typer(no_args_is_help=True, add_completion=False, help="Make the tiny policy.")


@tiny.callback()
def _group() -> None:
    """Make the tiny policy."""


@tiny.command()
def build(
    place: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the policy goes.")],
    seed: Annotated[int, typer.Option(help="Decides the mail it learns from, its weights and the order.")],
    companies: Annotated[int, typer.Option(min=1, help="Invented companies to practise on.")] = 72,
    copy_steps: Annotated[int, typer.Option(min=1, help="Steps of learning to copy.")] = 300,
    steps: Annotated[int, typer.Option(min=1, help="Steps of learning from the expert.")] = 3400,
    replace: Annotated[bool, typer.Option("--replace", help="Write into a directory that holds files.")] = False,
    json: JsonFlag = False,
) -> None:
    """Make a tokenizer and a small model from invented mail.

    It learns to copy first, and then from episodes of a scripted expert that uses the tools properly and errs on
    purpose. Takes about half an hour on two cores.
    """
    directory = writable_directory(place)  # before that half hour
    if any(directory.iterdir()) and not replace:
        raise UsageError(f"{directory} holds files; choose another, or write into it (--replace)")
    try:
        from gumshoe.training.tiny import Schooling, build_tiny
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed, which training needs; install torch and gumshoe[cpu]"
        ) from None
    err.print(f"Making a policy with seed {seed}; this takes a while.")
    report = build_tiny(
        directory, seed, Schooling(companies, copy_steps, steps), lambda stage, total: progress(stage, total=total)
    )
    if json:
        print_json(asdict(report))
        return
    out.print(f"[bold]{report.parameters:,} parameters[/] in {escape(plain(directory))}", soft_wrap=True)
    out.print(f"{report.examples:,} episodes; loss {report.copy_loss:.2f} in copying, {report.loss:.2f} in episodes")
    slips = ", ".join(f"{count:,} {slip}" for slip, count in sorted(report.slips.items(), key=lambda each: -each[1]))
    out.print(f"wrong on purpose: {slips}", soft_wrap=True)
