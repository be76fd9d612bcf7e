"""`gumshoe plan`: estimate the memory and time of a training run before it starts."""

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.table import Table

from gumshoe.completion import complete_model, complete_words
from gumshoe.errors import RefusedError, UsageError
from gumshoe.inference.policy_names import is_tiny
from gumshoe.terminal import JsonFlag, create_table, out, print_json, printable
from gumshoe.training.commands.train import ConfigOption, SettingsOption, setting_of
from gumshoe.training.models.model_shape import ModelShape, read_shape
from gumshoe.training.planning.context_budget import ContextPlan, plan_context
from gumshoe.training.planning.gpu_specs import GPUS
from gumshoe.training.planning.memory_estimate import GIB
from gumshoe.training.planning.memory_plan import (
    GB,
    Machine,
    MemoryPlan,
    changed_settings,
    make_plan,
    resolve_checkpointing,
    suggest_changes,
    to_config,
)
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sources import resolve

plan = typer.Typer(add_completion=False)


@plan.command(
    epilog="""
    gumshoe plan --model Qwen/Qwen2.5-7B-Instruct --gpu h100
    gumshoe plan --model Qwen/Qwen2.5-7B-Instruct --gpus 2 --gpu-memory 24
    """
)
def run(
    model: Annotated[
        str | None,
        typer.Option(metavar="DIR|NAME", autocompletion=complete_model, help="Base model; its config.json is enough."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="Number of GPUs; 0 for a machine without GPUs.")] = 1,
    gpu_memory: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="GB", help="Memory of each GPU, or of a machine without GPUs, in 10^9 bytes."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            autocompletion=complete_words(*GPUS),
            help=f"GPU model, gives the memory and a time estimate: {', '.join(GPUS)}.",
        ),
    ] = None,
    config: ConfigOption = None,
    settings: SettingsOption = None,
    episode_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a typical episode, for the time estimate (default: at most 4,096)."),
    ] = None,
    sampled_tokens: Annotated[
        int | None, typer.Option(min=1, help="Sampled tokens among them (default: one tenth).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Estimate the memory of a training run, part by part, and suggest changes if it does not fit.

    Also estimate the tokens of a long episode, and suggest an environment that shows less if they are too many.
    Settings are those of `gumshoe train`. Only the model's config.json is read. Exits with 3 if the run does not fit.
    """
    flags: dict[str, Any] = dict(map(setting_of, settings or []))
    if model is not None:
        flags["model.name"] = model
    resolved = resolve(config, flags).settings
    shape, machine = read_shape(resolved.model.name), _machine(gpus, gpu_memory, gpu)
    resolved = resolve_checkpointing(resolved, machine)
    memory_plan = make_plan(
        resolved,
        shape,
        machine,
        episode_tokens=episode_tokens,
        sampled_tokens=sampled_tokens,
    )
    better = None if memory_plan.fits else suggest_changes(memory_plan, shape)
    context = None
    if resolved.mode != "simple" and not is_tiny(resolved.model.name):
        fitting = better.settings if better is not None else resolved  # a run that fits may have a shorter context
        limits = fitting.rollouts.max_turns, fitting.model.max_context
        context = plan_context(fitting.environment, *limits, shape.longest)
    if better is not None and context is not None:
        better = replace(better, settings=_shorten_episodes(better.settings, context))
    if json:
        print_json({**_as_json(memory_plan, shape, better), "episode": None if context is None else _describe(context)})
    else:
        _show(memory_plan, shape, better, context)
    if not memory_plan.fits:
        raise RefusedError("planning.does-not-fit", f"the run does not fit: {memory_plan.explain_shortage()}")


def _shorten_episodes(settings: TrainSettings, context: ContextPlan) -> TrainSettings:
    """Return settings with the environment and the turns that are suggested for their context."""
    update: dict[str, Any] = {} if context.suggested is None else {"environment": context.suggested}
    if context.suggested_turns is not None:
        turns = {"max_turns": context.suggested_turns}
        update["rollouts"] = settings.rollouts.model_copy(update=turns)
    return settings.model_copy(update=update)


def _machine(gpus: int, memory: float | None, kind: str | None) -> Machine:
    """Return the machine to plan for.

    Raises:
        UsageError: the memory is not given, or the GPU model is unknown.
    """
    if kind is not None and kind not in GPUS:
        raise UsageError(
            "planning.unknown-gpu", f"--gpu {kind} is unknown; use one of {', '.join(GPUS)}, or --gpu-memory alone"
        )
    if memory is None and kind is None:
        raise UsageError("planning.memory-unknown", "the memory to plan for is unknown; give --gpu-memory or --gpu")
    given = memory if memory is not None or kind is None else GPUS[kind].memory
    return Machine(gpus, round((given or 0) * GB), kind if gpus else None)


def _as_json(memory_plan: MemoryPlan, shape: ModelShape, better: MemoryPlan | None) -> dict[str, Any]:
    return {
        "model": {"name": shape.name, "parameters": shape.parameters},
        "machine": asdict(memory_plan.machine),
        "fits": memory_plan.fits,
        "devices": [
            {
                "name": device.name,
                "memory_bytes": device.memory,
                "needed_bytes": device.needed,
                "parts": [{"of": owner, **asdict(part)} for owner, part in device.parts],
            }
            for device in memory_plan.devices
        ],
        "kv": {
            "bytes_per_token": memory_plan.kv_token,
            "tokens": memory_plan.kv_tokens,
            "longest_episodes_at_once": memory_plan.max_at_once,
        },
        "context": memory_plan.context,
        "notes": list(memory_plan.notes),
        "step_seconds": asdict(memory_plan.time) if memory_plan.time else None,
        "suggested": None
        if better is None
        else {"changes": changed_settings(memory_plan.settings, better.settings), "config": to_config(better.settings)},
    }


def _describe(context: ContextPlan) -> dict[str, Any]:
    suggested = context.suggested
    return {
        "context": context.context,
        "turns": context.turns,
        "tokens": context.tokens,
        "fits": context.fits,
        "suggested_environment": suggested and {suggested.name: suggested.arguments},
        "suggested_turns": context.suggested_turns,
    }


def _show_context(context: ContextPlan, *, is_in_config: bool) -> None:
    """Show how many tokens a long episode needs, and an environment that needs fewer, as a line of a configuration.

    `is_in_config` is True if the estimate is for suggested settings, whose whole configuration is shown afterwards.
    """
    tokens = f"{context.turns} turns needs roughly {round(context.tokens, -2):,} tokens"
    need = f"With the settings below, a long episode of {tokens}" if is_in_config else f"A long episode of {tokens}"
    if context.suggested is None:
        out.print(f"{need} of {context.context:,}.")
        return
    why = (
        "Searches and messages that show less leave more room; ids of messages are long, so handles always save tokens"
    )
    lack = f"{need}, but the context has {context.context:,}: it may end without an answer."
    if is_in_config:
        out.print(f"[yellow]{lack}[/] {why}, and the settings below have such an environment.")
        return
    out.print(f"[yellow]{lack}[/] {why}:\n")
    out.print(f"environment: {context.suggested.word}", markup=False, soft_wrap=True)
    if context.suggested_turns is not None:
        out.print(f"rollouts: {{max_turns: {context.suggested_turns}}}", markup=False, soft_wrap=True)
    out.print()


def _show(memory_plan: MemoryPlan, shape: ModelShape, better: MemoryPlan | None, context: ContextPlan | None) -> None:
    out.print(
        f"[bold]{printable(shape.name)}[/]: {shape.parameters:,} parameters, {memory_plan.machine.describe()}, "
        f"episodes of at most {memory_plan.context:,} tokens"
    )
    for device in memory_plan.devices:
        out.print(_table(device.parts, device.memory, device.name))
    out.print(
        f"Keys and values take {memory_plan.kv_token:,} bytes per token. Concurrent episodes of maximum length: "
        f"{memory_plan.max_at_once:,}"
        + (f" of {memory_plan.requested_at_once:,} in the settings." if memory_plan.kv_tokens is not None else ".")
    )
    if memory_plan.time is not None:
        time = memory_plan.time
        out.print(
            f"A step takes roughly {time.rollouts + time.training:,.0f} s: {time.share:.0%} rollouts, "
            f"{1 - time.share:.0%} training. [dim]Assumed: {time.assumptions}.[/]"
        )
    for note in memory_plan.notes:
        out.print(f"[yellow]{note[:1].upper()}{note[1:]}.[/]")
    if context is not None:
        _show_context(context, is_in_config=better is not None)
    device = memory_plan.tightest
    if memory_plan.fits:
        left = device.memory - device.needed
        out.print(f"[bold green]It fits[/]: {left / GB:,.1f} GB of {device.name} are left.")
    elif better is None:
        out.print("[bold red]It does not fit[/], and no change of settings helps. Use a smaller model, or more GPUs.")
    else:
        device = better.tightest
        out.print(
            f"[bold red]It does not fit.[/] These settings fit, with {device.needed / GB:,.1f} GB of {device.name}; "
            "save them to a file for `gumshoe train --config`:\n"
        )
        out.print(to_config(better.settings), markup=False, soft_wrap=True)


def _table(parts: Any, memory: int, name: str) -> Table:
    total = sum(part.bytes for _, part in parts)
    table = create_table("owner", "part", "GiB", "", title=f"{name}: {total / GIB:,.1f} of {memory / GIB:,.1f} GiB")
    table.columns[2].justify = "right"
    previous = None
    for owner, part in parts:
        if previous not in (None, owner):
            table.add_section()
        name = owner if owner != previous else ""
        table.add_row(name, part.name, f"{part.bytes / GIB:,.2f}", f"[dim]{part.note}[/]")
        previous = owner
    return table
