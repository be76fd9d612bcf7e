"""The commands `gumshoe train` and `gumshoe warm-start`."""

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
        typer.Option("--index", envvar="GUMSHOE_INDEX", help="Directory of an index of mail or documents."),
    ] = None,
    scenarios: Annotated[
        str | None, typer.Option(metavar="FILE", help="Scenarios: a file, or a source as for `gumshoe scenarios load`.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="DIR|NAME", help="Base model, or tiny.")] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="vllm|transformers", help="Engine that runs the rollouts.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="masked|rollout|simple", help="Which tokens are trained on.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Settings in YAML: a path, a file:// or s3:// URI, or a name such as tiny."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Directory for the run's files.")] = None,
    environment: EnvironmentOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Override one setting, e.g. optimizer.learning_rate=1e-5."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run from its last checkpoint.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a run in the directory.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings with descriptions and sources, and exit.")
    ] = False,
) -> None:
    """Train an adapter with GRPO on episodes of an agent.

    Settings come from a YAML file, then environment variables, then flags. The same command with --resume continues a
    run that was stopped. Exits with 75 if a server or the trainer stopped making progress.
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
        from gumshoe.training.launch.supervisor import train as run_supervised
        from gumshoe.training.train_request import TrainRequest
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing", f"training requires {error.name}, which is not installed; see the README"
        ) from None
    request = TrainRequest(index=str(index), scenarios=scenarios, config=config or "", settings=flags)
    directory = run_supervised(request, resume=resume, replace_run=replace)
    err.print(f"Results are in {printable(directory)}", soft_wrap=True)


@warm_start.command()
def learn(
    trajectories: Annotated[
        Path, typer.Argument(metavar="TRAJECTORIES", help="Episodes recorded by `gumshoe rollout`.")
    ],
    index: IndexOption,
    scenarios: Annotated[str, typer.Option(metavar="FILE", help="Scenarios of the episodes.")],
    place: Annotated[str, typer.Option("--out", metavar="DIR", help="Directory for the adapter.")],
    model: Annotated[str | None, typer.Option(metavar="DIR|NAME", help="Base model, or tiny.")] = None,
    judge: Annotated[str | None, typer.Option(help="Judge that decides which episodes are correct.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Training settings in YAML, as for `gumshoe train`.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Override one setting, e.g. warm_start.learning_rate=1e-4."),
    ] = None,
    environment: EnvironmentOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a warm start that was stopped.")] = False,
    json: JsonFlag = False,
) -> None:
    """Train an adapter on correct episodes, as a start for `gumshoe train --set lora.start=DIR`.

    The episodes may come from any policy, e.g. a strong chat model (`gumshoe rollout --policy chat:MODEL`). The adapter
    is trained on the turns of the policy, in episodes of the split train whose answers the judge accepts. The same
    command with --resume continues a warm start that was stopped. Exits with 75 if the judge or the trainer stopped
    making progress.
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
        f"[bold]{report.right:,} of {report.episodes:,} episodes are correct[/]"
        + (f", {report.too_long:,} of them too long" if report.too_long else ""),
        soft_wrap=True,
    )
    out.print(
        f"{report.tokens:,} tokens in {report.steps:,} steps, {report.seconds:,.0f} s; loss {report.loss:.3f}",
        soft_wrap=True,
    )
    out.print(f"Start from it: gumshoe train … --set lora.start={printable(directory)}", soft_wrap=True)


def setting_of(text: str) -> tuple[str, str]:
    """Return the name and the value of a `--set` option.

    Raises:
        UsageError: the text is not NAME=VALUE.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(
            "settings.not-name-value", f"--set requires NAME=VALUE, e.g. optimizer.learning_rate=1e-5, got {text!r}"
        )
    return name.strip(), value
