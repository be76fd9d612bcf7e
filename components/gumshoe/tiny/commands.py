"""`gumshoe tiny`: build the tiny policy."""

from dataclasses import asdict
from typing import Annotated

import typer

from gumshoe.artifacts.storage import make_writable_directory
from gumshoe.errors import UsageError
from gumshoe.installation import install_command
from gumshoe.terminal import JsonFlag, err, out, print_json, print_next, printable, progress

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Build the tiny policy.")


@app.callback()
def _group() -> None:
    """Build the tiny policy."""


@app.command(epilog="gumshoe tiny build --seed 1 --out tiny")
def build(
    place: Annotated[str, typer.Option("--out", metavar="DIR", help="Directory for the policy.")],
    seed: Annotated[int, typer.Option(help="Random seed of the mail, the weights and the order of examples.")],
    companies: Annotated[int, typer.Option(min=1, help="Number of synthetic companies whose mail is used.")] = 48,
    copy_steps: Annotated[int, typer.Option(min=1, help="Training steps on copying.")] = 500,
    skill_steps: Annotated[
        int, typer.Option(min=1, help="Training steps on examples of an expert without errors.")
    ] = 1200,
    habit_steps: Annotated[int, typer.Option(min=1, help="Training steps on episodes of an expert with errors.")] = 480,
    replace: Annotated[bool, typer.Option("--replace", help="Write into a directory that is not empty.")] = False,
    json: JsonFlag = False,
) -> None:
    """Build a tokenizer and a small model from synthetic mail.

    The model first learns to copy; then to search, choose and answer, from a scripted expert; and then from episodes in
    which the expert makes deliberate errors. Takes about 45 minutes on two CPU cores.
    """
    directory = make_writable_directory(place)  # fail early
    if any(directory.iterdir()) and not replace:
        raise UsageError(
            "tiny.directory-not-empty", f"{directory} is not empty; choose another --out, or use --replace"
        )
    try:
        from gumshoe.tiny.maker import TrainConfig, build_tiny
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing",
            f"training requires {error.name}, which is not installed: {install_command('torch', extra='train,cpu')}",
        ) from None
    err.print(f"Building a policy with seed {seed}; this takes a while.")
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
        f"{report.skills:,} examples and {report.episodes:,} episodes; loss {report.copy_loss:.2f} on copying, "
        f"{report.skill_loss:.2f} on examples, {report.habit_loss:.2f} on episodes",
        soft_wrap=True,
    )
    errors = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.slips.items(), key=lambda each: -each[1]))
    out.print(f"deliberate errors: {errors}", soft_wrap=True)
    policy = ("--policy", f"transformers:{directory}")
    print_next("gumshoe", "evaluate", "--index", "INDEX", "--scenarios", "FILE", *policy, "--out", "measured")
