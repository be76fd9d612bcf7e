"""`gumshoe adapter`: adapters made, looked at, and merged into their base models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gumshoe.artifacts.storage import make_writable_directory
from gumshoe.errors import RefusedError, UsageError
from gumshoe.terminal import JsonFlag, err, out, print_json, printable
from gumshoe.training.commands.train import setting_of

if TYPE_CHECKING:
    from gumshoe.training.adapters.adapter_files import AdapterReport

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make, look at and merge adapters.")

AdapterDirectory = Annotated[Path, typer.Argument(metavar="ADAPTER", help="An adapter's directory.")]


@app.command()
def create(
    place: Annotated[str, typer.Option("--out", metavar="DIR", help="The adapter goes here.")],
    model: Annotated[str | None, typer.Option(metavar="DIR|NAME", help="The base model; tiny is one, too.")] = None,
    rank: Annotated[int | None, typer.Option(help="Inner dimension of its matrices.")] = None,
    alpha: Annotated[int | None, typer.Option(help="Its scale, as alpha / rank.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Share of inputs left out while training.")] = None,
    target_modules: Annotated[
        str | None, typer.Option(metavar="NAME[,NAME...]", help="Modules of the base model that get one.")
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(metavar="none|nf4", help="Of the base model's weights while training; nf4 is QLoRA.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides its first weights.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings in YAML, as `gumshoe train` takes them.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting, such as lora.rank=32.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Make an adapter that changes nothing yet, for `gumshoe train --set lora.start=DIR` to begin at.

    Of the base model, only its shape is read: a large one takes seconds. What training is set to otherwise has to be
    the same then: rank, alpha, target modules and quantization.
    """
    from gumshoe.training.settings import resolve

    flags: dict[str, Any] = dict(map(setting_of, settings or []))
    named = {
        "model.name": model,
        "model.quantization": quantization,
        "lora.rank": rank,
        "lora.alpha": alpha,
        "lora.dropout": dropout,
        "lora.target_modules": target_modules and [each.strip() for each in target_modules.split(",")],
        "data.seed": seed,
    }
    resolved = resolve(config, flags | {name: value for name, value in named.items() if value is not None}).settings
    if resolved.lora.start is not None:
        raise UsageError(
            "adapters.start-given",
            f"a new adapter cannot start from another one: lora.start is {resolved.lora.start}; leave it out",
        )
    directory = make_writable_directory(place)
    if any(directory.iterdir()):
        raise UsageError("adapters.directory-not-empty", f"{directory} is not empty; choose another --out")
    with _installed():
        from gumshoe.training.adapters.adapter_files import create_adapter
    made = create_adapter(resolved, directory)
    if json:
        print_json({**asdict(made), "share": made.share})
        return
    out.print(
        f"[bold]{made.parameters:,} parameters to train[/], {made.share:.2%} of the base model's "
        f"{made.base_parameters:,}, in {made.modules:,} modules; {_size(made.bytes)}",
        soft_wrap=True,
    )
    begin = f"gumshoe train … --set lora.start={directory}"
    out.print(f"Begin there, with the same settings of model and lora: {printable(begin)}", soft_wrap=True)


@app.command()
def merge(
    adapter: AdapterDirectory,
    place: Annotated[Path, typer.Option("--out", metavar="DIR", help="The merged model appears here.")],
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="The base model; the adapter's own unless given.")
    ] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"], typer.Option(help="Of the weights; the base model's own if auto.")
    ] = "auto",
    max_shard_size: Annotated[str, typer.Option(metavar="SIZE", help="The largest file, such as 5GB.")] = "5GB",
    onto: Annotated[
        Literal["auto", "full", "nf4"],
        typer.Option(help="To the weights as they are, or as they come back from four bits; as it learned if auto."),
    ] = "auto",
    json: JsonFlag = False,
) -> None:
    """Add an adapter to its base model's weights, and save that as a model of its own.

    The model is loaded again and its logits are held against those of base model and adapter; where they differ by
    more than rounding, nothing is left. It needs memory for one model, and no GPU.
    """
    with _installed():
        from gumshoe.training.adapters.merge import merge as merged
    report = merged(adapter, model, place, dtype=dtype, max_shard_size=max_shard_size, onto=onto)
    if json:
        print_json(asdict(report))
        return
    weights = "full weights" if report.onto == "full" else "weights from four bits"
    out.print(
        f"[bold]{report.modules:,} modules merged[/] into {weights}: {_size(report.bytes)} of {report.dtype} in "
        f"{report.files:,} file{'s' * (report.files > 1)}, in {printable(report.directory)}",
        soft_wrap=True,
    )
    out.print(
        f"logits at {report.tokens:,} tokens, with a standard deviation of {report.spread:.3g}: the adapter changes "
        f"them by {report.effect:.3g} in the mean, and merging by {report.mean:.3g}, {report.largest:.3g} at most",
        soft_wrap=True,
    )
    if report.is_lost_in_rounding:
        err.print(
            f"[bold yellow]warning:[/] rounding to {report.dtype} takes more than half of what the adapter changes; "
            "serve the adapter itself, or merge with --dtype float32",
            soft_wrap=True,
        )
    out.print(f"compared by {report.compared_by}", soft_wrap=True)


@app.command()
def inspect(
    adapter: AdapterDirectory,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="See whether it is for this base model, too.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show what an adapter is, and whether its files are as they should be.

    Ends with 3 where they are not, or it is not for the base model that is named.
    """
    with _installed():
        from gumshoe.training.adapters.adapter_files import inspect_adapter
    found = inspect_adapter(adapter, model)
    if json:
        print_json(asdict(found))
    else:
        for name, value in _lines(found, model):
            out.print(f"[bold]{name:<14}[/] {printable(value)}", soft_wrap=True)
    if not found.is_sound:
        raise RefusedError("adapters.unsound", f"{adapter} did not pass the inspection: {'; '.join(_faults(found))}")


def _lines(found: "AdapterReport", model: str | None) -> Iterator[tuple[str, str]]:
    yield "shape", f"rank {found.rank}, alpha {found.alpha:g}, dropout {found.dropout:g}"
    yield "modules", f"{found.modules:,}: {', '.join(found.target_modules)}"
    yield "parameters", f"{found.parameters:,} ({_size(found.bytes)}, {', '.join(found.dtypes)})"
    yield "base model", f"{found.base or 'it does not say'}, fingerprint {found.fingerprint or 'unknown'}"
    held = {"nf4": "in four bits (NF4)", "none": "as they are"}.get(found.quantization or "", "it does not say how")
    yield "learns on", f"the base model's weights {held}"
    if found.learned_from is None:
        yield "has seen", "it does not say what"
    else:
        yield "has seen", f"{found.learned_from:,} scenarios to learn from, {found.chosen_on or 0:,} to choose on"
    if found.step is not None:
        measured = "" if found.accuracy is None else f", accuracy {found.accuracy:.1%}"
        yield "trained", f"{found.step:,} steps of run {found.run}{measured}"
    norms = ", ".join(f"{kind} {norm:.3g}" for kind, norm in found.norms.items())
    yield "update", "none: it changes nothing yet" if found.is_untouched else f"norm of {norms}"
    if found.unservable:
        yield "vLLM", f"does not serve it as it is: {'; '.join(found.unservable)}"
    else:
        yield "vLLM", f"serves it, with --max-lora-rank {found.served_with}"
    yield "files", "; ".join(found.layout) or "as peft, vLLM and Unsloth read them"
    if model is not None:
        yield "fits", f"{'; '.join(found.misfits or []) or f'{model}, compared by {found.compared_by}'}"


def _faults(found: "AdapterReport") -> list[str]:
    broken = [f"{found.not_finite:,} weights are NaN or infinite"] * bool(found.not_finite)
    return [*broken, *found.layout, *(found.misfits or [])]


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


@contextmanager
def _installed() -> Iterator[None]:
    """
    Raises:
        UsageError: what models are trained with is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing", f"adapters require {error.name}, which is not installed; see the README"
        ) from None
