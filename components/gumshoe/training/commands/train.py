"""`gumshoe train`, and `gumshoe warm-start` before it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gumshoe.artifacts.storage import make_writable_directory
from gumshoe.errors import UsageError
from gumshoe.rollouts.commands import EnvironmentOption, IndexOption
from gumshoe.terminal import JsonFlag, err, out, print_json, printable

train = typer.Typer(add_completion=False)
warm_start = typer.Typer(add_completion=False)


@train.command()
def run(
    index: Annotated[
        Path | None,
        typer.Option("--index", envvar="GUMSHOE_INDEX", help="The directory of an index, of mail or of documents."),
    ] = None,
    scenarios: Annotated[
        str | None, typer.Option(metavar="FILE", help="Scenarios, as `gumshoe scenarios load` takes them.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="DIR|NAME", help="The base model; tiny is one, too.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="vllm|transformers", help="What samples.")] = None,
    mode: Annotated[str | None, typer.Option(metavar="masked|rollout|simple", help="What is learned from.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings in YAML: a path, a file:// or s3:// URI, or tiny.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="What the run leaves goes here.")] = None,
    environment: EnvironmentOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One setting, such as optimizer.learning_rate=1e-5."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its last checkpoint.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Begin anew where a run is.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings, what each is and where it came from; no more.")
    ] = False,
) -> None:
    """Train an adapter with GRPO on an agent's real episodes.

    Settings come from a YAML file, then the environment, then flags. The same command with --resume goes on with a
    run that was stopped. Ends with 75 where nothing went on: a server, or the trainer.
    """
    from gumshoe.training.settings import resolve

    flags: dict[str, Any] = dict(map(setting_of, settings or []))
    named = {"model.name": model, "rollouts.engine": engine, "mode": mode, "output.directory": out and str(out)}
    named["environment"] = environment
    flags |= {name: value for name, value in named.items() if value is not None}
    resolved = resolve(config, flags)
    if print_config:
        print(resolved.as_yaml(), end="")  # noqa: T201 - rich would wrap long lines
        return
    if index is None or scenarios is None:
        raise UsageError("training.input-missing", "training requires both --index and --scenarios")
    try:
        from gumshoe.training.launch.supervisor import train as supervised
        from gumshoe.training.train_request import TrainRequest
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing", f"training requires {error.name}, which is not installed; see the README"
        ) from None
    request = TrainRequest(index=str(index), scenarios=scenarios, config=config or "", settings=flags)
    directory = supervised(request, resume=resume, replace_run=replace)
    err.print(f"All of it is in {printable(directory)}", soft_wrap=True)


@warm_start.command()
def learn(
    trajectories: Annotated[Path, typer.Argument(metavar="TRAJECTORIES", help="What `gumshoe rollout` wrote.")],
    index: IndexOption,
    scenarios: Annotated[str, typer.Option(metavar="FILE", help="The scenarios that the episodes are of.")],
    place: Annotated[str, typer.Option("--out", metavar="DIR", help="The adapter goes here.")],
    model: Annotated[str | None, typer.Option(metavar="DIR|NAME", help="The base model; tiny is one, too.")] = None,
    judge: Annotated[str | None, typer.Option(help="Says which episodes are right.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings in YAML, as `gumshoe train` takes them.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One setting, such as warm_start.learning_rate=1e-4."),
    ] = None,
    environment: EnvironmentOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a warm start where it was stopped.")] = False,
    json: JsonFlag = False,
) -> None:
    """Train an adapter on episodes that are right, for `gumshoe train --set lora.start=DIR` to begin at.

    Episodes may be of any policy, such as a strong chat model (`gumshoe rollout --policy chat:MODEL`). What is learned
    is what the policy said in those of the split train whose answers the judge accepts. The same command with --resume
    goes on with a warm start that was stopped. Ends with 75 where nothing went on: the judge, or the trainer.
    """
    from gumshoe.training.settings import resolve

    flags: dict[str, Any] = dict(map(setting_of, settings or []))
    named = {"model.name": model, "evaluation.judge": judge, "environment": environment}
    resolved = resolve(config, flags | {name: value for name, value in named.items() if value is not None}).settings
    directory = make_writable_directory(place)
    try:
        from gumshoe.training.sft.warm_start import start_warm
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing", f"training requires {error.name}, which is not installed; see the README"
        ) from None
    report = start_warm(resolved, index, scenarios, trajectories, directory, resume=resume)
    if json:
        print_json(report)
        return
    out.print(
        f"[bold]{report.right:,} of {report.episodes:,} episodes are right[/]"
        + (f", {report.too_long:,} of them too long" if report.too_long else ""),
        soft_wrap=True,
    )
    out.print(
        f"{report.tokens:,} tokens learned in {report.steps:,} steps, {report.seconds:,.0f} s; loss {report.loss:.3f}",
        soft_wrap=True,
    )
    out.print(f"Begin there: gumshoe train … --set lora.start={printable(directory)}", soft_wrap=True)


def setting_of(text: str) -> tuple[str, str]:
    """Name and value of `--set`.

    Raises:
        UsageError: it is not NAME=VALUE.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(
            "settings.not-name-value", f"--set requires NAME=VALUE, e.g. optimizer.learning_rate=1e-5, got {text!r}"
        )
    return name.strip(), value
