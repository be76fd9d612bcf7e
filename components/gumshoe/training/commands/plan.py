"""`gumshoe plan`: what a training run needs, before there is a machine for it."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from gumshoe.errors import RefusedError, UsageError
from gumshoe.terminal import JsonFlag, out, print_json, printable
from gumshoe.training.commands.train import setting_of
from gumshoe.training.models.model_shape import ModelShape, read_shape
from gumshoe.training.planning.memory_estimate import GIB
from gumshoe.training.planning.memory_plan import GB, GPUS, Machine, MemoryPlan, as_config, changes, suggest_changes
from gumshoe.training.planning.memory_plan import make_plan as planned
from gumshoe.training.settings import resolve

plan = typer.Typer(add_completion=False)


@plan.command()
def run(
    model: Annotated[
        str | None, typer.Option(metavar="DIR|FILE|NAME", help="The base model, of which config.json is enough.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="How many; 0 is a machine without one.")] = 1,
    gpu_memory: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="GB", help="Of each GPU, or of a machine without one, in 10^9 bytes."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="KIND", help=f"For memory and time: {', '.join(GPUS)}.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings in YAML, as `gumshoe train` takes them.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One setting, such as model.max_context=4096."),
    ] = None,
    episode_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of an ordinary episode, for the time; 4,096 at most unless given.")
    ] = None,
    sampled_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of those, how many the policy samples; a tenth unless given.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """How much memory training takes, part by part, what fits, and what to change.

    Settings are those of `gumshoe train`. Nothing is loaded but the model's config.json. Ends with 3 where it does not
    fit.
    """
    flags: dict[str, Any] = dict(map(setting_of, settings or []))
    if model is not None:
        flags["model.name"] = model
    resolved = resolve(config, flags).settings
    shape = read_shape(resolved.model.name)
    made = planned(
        resolved,
        shape,
        _machine(gpus, gpu_memory, gpu),
        episode_tokens=episode_tokens,
        sampled_tokens=sampled_tokens,
    )
    better = None if made.fits else suggest_changes(made, shape)
    if json:
        print_json(_as_json(made, shape, better))
    else:
        _show(made, shape, better)
    if not made.fits:
        raise RefusedError("planning.does-not-fit", f"the run does not fit: {made.what_lacks()}")


def _machine(gpus: int, memory: float | None, kind: str | None) -> Machine:
    """
    Raises:
        UsageError: nobody says how much memory it has.
    """
    if kind is not None and kind not in GPUS:
        raise UsageError(
            "planning.unknown-gpu", f"--gpu {kind} is unknown; use one of {', '.join(GPUS)}, or --gpu-memory alone"
        )
    if memory is None and kind is None:
        raise UsageError("planning.memory-unknown", "the memory to plan for is unknown; give --gpu-memory or --gpu")
    given = memory if memory is not None or kind is None else GPUS[kind].memory
    return Machine(gpus, round((given or 0) * GB), kind if gpus else None)


def _as_json(made: MemoryPlan, shape: ModelShape, better: MemoryPlan | None) -> dict[str, Any]:
    return {
        "model": {"name": shape.name, "parameters": shape.parameters},
        "machine": asdict(made.machine),
        "fits": made.fits,
        "devices": [
            {
                "name": device.name,
                "memory_bytes": device.memory,
                "needed_bytes": device.needed,
                "parts": [{"of": owner, **asdict(part)} for owner, part in device.parts],
            }
            for device in made.devices
        ],
        "kv": {"bytes_per_token": made.kv_token, "tokens": made.kv_tokens, "longest_episodes_at_once": made.at_once},
        "context": made.context,
        "notes": list(made.notes),
        "step_seconds": asdict(made.time) if made.time else None,
        "suggested": None
        if better is None
        else {"changes": changes(made.settings, better.settings), "config": as_config(better.settings)},
    }


def _show(made: MemoryPlan, shape: ModelShape, better: MemoryPlan | None) -> None:
    out.print(
        f"[bold]{printable(shape.name)}[/]: {shape.parameters:,} parameters, {made.machine.described()}, "
        f"episodes of at most {made.context:,} tokens"
    )
    for device in made.devices:
        out.print(_table(device.parts, device.memory, device.name))
    out.print(
        f"Keys and values take {made.kv_token:,} bytes a token; {made.at_once:,} of the longest episodes at once"
        + (f", of {made.asked_at_once:,} that are asked for." if made.kv_tokens is not None else ".")
    )
    if made.time is not None:
        time = made.time
        out.print(
            f"A step takes roughly {time.rollouts + time.training:,.0f} s: {time.share:.0%} rollouts, "
            f"{1 - time.share:.0%} training. [dim]Assumed: {time.assumptions}.[/]"
        )
    for note in made.notes:
        out.print(f"[yellow]{note[:1].upper()}{note[1:]}.[/]")
    worst = made.worst
    if made.fits:
        left = worst.memory - worst.needed
        out.print(f"[bold green]It fits[/]: {left / GB:,.1f} GB of {worst.name} are left.")
    elif better is None:
        out.print(
            "[bold red]It does not fit[/], and no change of settings makes it: take a smaller model, or more GPUs."
        )
    else:
        worst = better.worst
        out.print(
            f"[bold red]It does not fit.[/] This does, with {worst.needed / GB:,.1f} GB of {worst.name}, as a file for "
            "`gumshoe train --config`:\n"
        )
        out.print(as_config(better.settings), markup=False, soft_wrap=True)


def _table(parts: Any, memory: int, name: str) -> Table:
    total = sum(part.bytes for _, part in parts)
    table = Table("of", "part", "GiB", "", title=f"{name}: {total / GIB:,.1f} of {memory / GIB:,.1f} GiB")
    table.columns[2].justify = "right"
    before = None
    for owner, part in parts:
        if before not in (None, owner):
            table.add_section()
        table.add_row(owner if owner != before else "", part.name, f"{part.bytes / GIB:,.2f}", f"[dim]{part.note}[/]")
        before = owner
    return table
