"""`gumshoe tiny`: make the tiny policy."""

from dataclasses import asdict
from typing import Annotated

import typer

from gumshoe.artifacts.storage import make_writable_directory
from gumshoe.errors import UsageError
from gumshoe.terminal import JsonFlag, err, out, print_json, printable, progress

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make the tiny policy.")


@app.callback()
def _group() -> None:
    """Make the tiny policy."""


@app.command()
def build(
    place: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the policy goes.")],
    seed: Annotated[int, typer.Option(help="Decides the mail it learns from, its weights and the order.")],
    companies: Annotated[int, typer.Option(min=1, help="Invented companies to practise on.")] = 48,
    copy_steps: Annotated[int, typer.Option(min=1, help="Steps of learning to copy.")] = 500,
    skill_steps: Annotated[int, typer.Option(min=1, help="Steps of learning what to do.")] = 1200,
    habit_steps: Annotated[int, typer.Option(min=1, help="Steps of learning bad habits.")] = 480,
    replace: Annotated[bool, typer.Option("--replace", help="Write into a directory that holds files.")] = False,
    json: JsonFlag = False,
) -> None:
    """Make a tokenizer and a small model from invented mail.

    It learns to copy first; then how to search, choose and answer, from a scripted expert; and then from episodes in
    which that expert errs on purpose. Takes about three quarters of an hour on two cores.
    """
    directory = make_writable_directory(place)  # before that time
    if any(directory.iterdir()) and not replace:
        raise UsageError(
            "tiny.directory-not-empty", f"{directory} is not empty; choose another --out, or use --replace"
        )
    try:
        from gumshoe.tiny.maker import TrainConfig, build_tiny
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing",
            f"training requires {error.name}, which is not installed: pip install torch 'gumshoe-agents[cpu]'",
        ) from None
    err.print(f"Making a policy with seed {seed}; this takes a while.")
    report = build_tiny(
        directory,
        seed,
        TrainConfig(companies, copy_steps, skill_steps, habit_steps),
        lambda stage, total: progress(stage, total=total),
    )
    if json:
        print_json(asdict(report))
        return
    out.print(f"[bold]{report.parameters:,} parameters[/] in {printable(directory)}", soft_wrap=True)
    out.print(
        f"{report.skills:,} examples and {report.episodes:,} episodes; loss {report.copy_loss:.2f} in copying, "
        f"{report.skill_loss:.2f} in examples, {report.habit_loss:.2f} in episodes",
        soft_wrap=True,
    )
    slips = ", ".join(f"{count:,} {slip}" for slip, count in sorted(report.slips.items(), key=lambda each: -each[1]))
    out.print(f"wrong on purpose: {slips}", soft_wrap=True)
