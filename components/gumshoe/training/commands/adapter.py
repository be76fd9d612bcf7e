"""`gumshoe adapter`: create and inspect adapters, and merge them into their base models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gumshoe.artifacts.storage import make_writable_directory
from gumshoe.completion import complete_words
from gumshoe.errors import RefusedError, UsageError
from gumshoe.installation import install_command
from gumshoe.terminal import JsonFlag, err, out, print_json, printable
from gumshoe.training.commands.train import ConfigOption, ModelOption, SettingsOption, setting_of

if TYPE_CHECKING:
    from gumshoe.training.adapters.adapter_files import AdapterReport

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create, inspect and merge adapters.")

AdapterDirectory = Annotated[Path, typer.Argument(metavar="ADAPTER", help="Directory of an adapter.")]


@app.command(epilog="gumshoe adapter create --model Qwen/Qwen2.5-7B-Instruct --out adapter")
def create(
    place: Annotated[str, typer.Option("--out", metavar="DIR", help="Directory for the adapter.")],
    model: ModelOption = None,
    rank: Annotated[int | None, typer.Option(help="Rank of the LoRA matrices.")] = None,
    alpha: Annotated[
        int | None, typer.Option(help="Scale: the adapter's output is multiplied by alpha / rank.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout probability in training.")] = None,
    target_modules: Annotated[
        str | None,
        typer.Option(metavar="all-linear|NAME[,NAME...]", help="Modules of the base model that get LoRA matrices."),
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            metavar="none|nf4",
            autocompletion=complete_words("none", "nf4"),
            help="Quantization of the base model in training; nf4 is QLoRA.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the initial weights.")] = None,
    config: ConfigOption = None,
    settings: SettingsOption = None,
    json: JsonFlag = False,
) -> None:
    """Create an adapter that changes nothing yet, as a start for `gumshoe train --set lora.start=DIR`.

    Only the shape of the base model is read, so this takes seconds. Train with the same rank, alpha, target modules and
    quantization.
    """
    from gumshoe.training.settings_sources import resolve

    flags: dict[str, Any] = dict(map(setting_of, settings or []))
    named = {
        "model.name": model,
        "model.quantization": quantization,
        "lora.rank": rank,
        "lora.alpha": alpha,
        "lora.dropout": dropout,
        "lora.target_modules": target_modules if target_modules == "all-linear" else _split(target_modules),
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
    with _require_packages():
        from gumshoe.training.adapters.adapter_files import create_adapter
    created = create_adapter(resolved, directory)
    if json:
        print_json({**asdict(created), "share": created.share})
        return
    out.print(
        f"[bold]{created.parameters:,} parameters to train[/], {created.share:.2%} of the base model's "
        f"{created.base_parameters:,}, in {created.modules:,} modules; {_size(created.bytes)}",
        soft_wrap=True,
    )
    command = f"gumshoe train … --set lora.start={directory}"
    out.print(f"Start from it, with the same model and lora settings: {printable(command)}", soft_wrap=True)


def _split(names: str | None) -> list[str] | None:
    """Return names that are separated by commas, or None for an empty text."""
    return [each.strip() for each in names.split(",")] if names else None


@app.command(epilog="gumshoe adapter merge outputs/run/best_model --out merged")
def merge(
    adapter: AdapterDirectory,
    place: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory for the merged model.")],
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="Base model (default: the one that the adapter names).")
    ] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        typer.Option(help="Data type of the weights; auto: that of the base model."),
    ] = "auto",
    max_shard_size: Annotated[str, typer.Option(metavar="SIZE", help="Maximum size of a file, e.g. 5GB.")] = "5GB",
    onto: Annotated[
        Literal["auto", "full", "nf4"],
        typer.Option(
            help="Weights to merge into: full, or dequantized from 4 bits; auto: as in the adapter's training."
        ),
    ] = "auto",
    json: JsonFlag = False,
) -> None:
    """Merge an adapter into its base model's weights, and save the result as a model.

    The merged model is loaded and its logits are compared with those of base model and adapter. If they differ by more
    than rounding, nothing is saved. Needs memory for one model, and no GPU.
    """
    with _require_packages():
        from gumshoe.training.adapters.merge import merge as merge_adapter
    report = merge_adapter(adapter, model, place, dtype=dtype, max_shard_size=max_shard_size, onto=onto)
    if json:
        print_json(asdict(report))
        return
    weights = "full weights" if report.onto == "full" else "dequantized 4-bit weights"
    out.print(
        f"[bold]{report.modules:,} modules merged[/] into {weights}: {_size(report.bytes)} of {report.dtype} in "
        f"{report.files:,} file{'s' * (report.files > 1)}, in {printable(report.directory)}",
        soft_wrap=True,
    )
    out.print(
        f"logits at {report.tokens:,} tokens (standard deviation {report.spread:.3g}): the adapter changes them by "
        f"{report.effect:.3g} on average; merging changes them by {report.mean:.3g}, at most {report.largest:.3g}",
        soft_wrap=True,
    )
    if report.is_lost_in_rounding:
        err.print(
            f"[bold yellow]warning:[/] rounding to {report.dtype} removes more than half of the adapter's effect; "
            "serve the adapter itself, or merge with --dtype float32",
            soft_wrap=True,
        )
    out.print(f"base model checked by {report.compared_by}", soft_wrap=True)


@app.command(epilog="gumshoe adapter inspect outputs/run/best_model")
def inspect(
    adapter: AdapterDirectory,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="Also check that the adapter fits this base model.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show the facts of an adapter, and check its files.

    Exits with 3 if the files are faulty, or the adapter does not fit the given base model.
    """
    with _require_packages():
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
    yield "base model", f"{found.base or 'unknown'}, fingerprint {found.fingerprint or 'unknown'}"
    yield "quantization", {"nf4": "4 bits (NF4)", "none": "none"}.get(found.quantization or "", "unknown")
    if found.learned_from is None:
        yield "scenarios", "unknown"
    else:
        yield "scenarios", f"trained on {found.learned_from:,}, validated on {found.chosen_on or 0:,}"
    if found.step is not None:
        measured = "" if found.accuracy is None else f", accuracy {found.accuracy:.1%}"
        yield "trained", f"{found.step:,} steps of run {found.run}{measured}"
    norms = ", ".join(f"{kind} {norm:.3g}" for kind, norm in found.norms.items())
    yield "update", "none: all weights are initial" if found.is_untouched else f"norm: {norms}"
    if found.unservable:
        yield "vLLM", f"cannot serve it: {'; '.join(found.unservable)}"
    else:
        yield "vLLM", f"can serve it with --max-lora-rank {found.served_with}"
    yield "files", "; ".join(found.layout) or "readable by peft, vLLM and Unsloth"
    if model is not None:
        yield "fits", f"{'; '.join(found.misfits or []) or f'{model}, checked by {found.compared_by}'}"


def _faults(found: "AdapterReport") -> list[str]:
    broken = [f"{found.not_finite:,} weights are NaN or infinite"] * bool(found.not_finite)
    return [*broken, *found.layout, *(found.misfits or [])]


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


@contextmanager
def _require_packages() -> Iterator[None]:
    """Report a package that is missing in the block.

    Raises:
        UsageError: a required package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing",
            f"adapters require {error.name}, which is not installed: {install_command('torch', extra='train')}",
        ) from None
