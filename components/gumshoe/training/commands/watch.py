"""`gumshoe watch`: a live view of a training run in the terminal."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.terminal import out, printable

if TYPE_CHECKING:
    from gumshoe.training.progress_file import RecentEpisode
    from gumshoe.training.run_view import RunView

watch = typer.Typer(add_completion=False)

_INTERVAL = 1.0  # seconds
_CURVE_WIDTH, _CURVE_HEIGHT = 29, 4  # characters, without the labels
_LABEL_WIDTH, _GAP = 9, 2
_TEXT_HEIGHT = 12  # lines of everything but curves and episodes
_STATES = {"running": "cyan", "finished": "green", "stopped": "red", "ended": "dim"}


@watch.command(
    epilog="""
    gumshoe watch outputs/grpo_masked
    gumshoe watch outputs/pipeline --once
    """
)
def run(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Output directory of `gumshoe train`, or of `gumshoe pipeline run` on this machine."
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
) -> None:
    """Watch a training run: curves, the last evaluation, the newest episodes and the time left.

    The view is refreshed every second until the run ends; without a terminal, it is printed once. Nothing is written.
    Exits with 1 if the run stopped before its end.
    """
    if once or not out.is_terminal:
        view = _read(directory)
        if view is not None:
            out.print(render_run(view, out.width))
        elif not _is_over(directory):
            raise UsageError("training.not-started", f"the pipeline run in {directory} does not train yet, or any more")
    else:
        view = _follow(directory)
    if view is None or view.state == "ended":
        out.print(f"The pipeline run in {printable(directory)} has ended.", soft_wrap=True)
    elif view.state == "stopped":
        where = f"step {view.step}" + ("" if view.length is None else f" of {view.length}")
        raise GumshoeError(
            "training.run-stopped",
            f"the run in {view.directory} stopped after {where}; see its output, then continue it with --resume",
        )


def _follow(directory: Path) -> "RunView | None":
    """Show a run until it ends, and return its last view; None if it is a pipeline run that ended without one."""
    from rich.live import Live

    last: RunView | None = None
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            view = _read(directory)
            is_over = _is_over(directory) if view is None else view.state != "running"
            if view is None and last is not None:  # the step has removed the directory of its training
                view = replace(last, state="ended")
            last = view
            waiting = Text("Waiting for the training to start …")
            live.update(waiting if view is None else render_run(view, out.width, out.height))
            live.refresh()
            if is_over:
                return view
            time.sleep(_INTERVAL)


def _is_over(directory: Path) -> bool:
    """Return True if no pipeline run is at work in its directory."""
    from gumshoe.training.run_view import is_locked

    return is_locked(directory) is False


def _read(directory: Path) -> "RunView | None":
    from gumshoe.training.run_view import find_run, read_run

    place = find_run(directory)
    if place is None:
        return None
    try:
        return read_run(place)
    except UsageError:
        if place == directory:
            raise
        return None  # the step has removed it since


def render_run(view: "RunView", width: int, height: int | None = None) -> RenderableType:
    """Return the view of a run for a terminal of this size; curves that do not fit into the height are left out."""
    episodes = view.progress.episodes if view.progress else ()
    parts = [_render_header(view), *(Text.from_markup(line) for line in _describe(view))]
    curves = list(_render_curves(view, width))
    if height is not None:
        room = height - _TEXT_HEIGHT - len(episodes)
        curves = curves[: max(1, room // (_CURVE_HEIGHT + 2))]
    for each in curves:
        parts += [Text(), each]
    if episodes:
        parts += [Text(), _render_episodes(episodes, width)]
    return Group(*parts)


def _render_header(view: "RunView") -> RenderableType:
    length = "?" if view.length is None else f"{view.length:,}"
    left = view.seconds_left
    time_left = "" if left is None else f", about {timedelta(seconds=round(left))} left"
    facts = ", ".join(f"{name} {printable(value)}" for name, value in view.facts.items())
    return Text.from_markup(
        f"[bold]Run {printable(view.run)}[/] [{_STATES[view.state]}]{view.state}[/]: step {view.step:,} of "
        f"{length}{time_left}\n[dim]{facts}\n{printable(view.directory)}[/]"
    )


def _list_curves(view: "RunView") -> dict[str, dict[int, float]]:
    """Return the values of each curve by step, without values that are missing or not finite."""
    curves: dict[str, dict[int, float | None]] = {
        "Reward": {each.step: each.reward for each in view.steps},
        "Validation accuracy": {each.step: each.accuracy for each in view.evaluations},
        "Loss": {each.step: each.loss for each in view.steps},
        "KL divergence": {each.step: each.kl for each in view.steps},
        "Ratio of trainer to sampler": {each.step: each.importance_ratio for each in view.steps},
        "Tokens per episode": {each.step: each.sampled_tokens for each in view.steps},
    }
    found = {
        title: {step: value for step, value in values.items() if value is not None and math.isfinite(value)}
        for title, values in curves.items()
    }
    return {title: values for title, values in found.items() if values}


def _render_curves(view: "RunView", width: int) -> Iterator[RenderableType]:
    """Yield rows of curves, as many side by side as fit into the width."""
    curves = [_render_curve(title, values) for title, values in _list_curves(view).items()]
    fitting = max(1, (width + _GAP) // (_CURVE_WIDTH + _LABEL_WIDTH + _GAP))
    for start in range(0, len(curves), fitting):
        row = Table.grid(padding=(0, _GAP, 0, 0))
        row.add_row(*curves[start : start + fitting])
        yield row


def _render_curve(title: str, values: dict[int, float]) -> RenderableType:
    from gumshoe.training.curves import draw_curve, find_range

    low, high = find_range(list(values.values()))
    form = ".0%" if "accuracy" in title else ".3g"
    labels = [format(high, form), *[""] * (_CURVE_HEIGHT - 2), format(low, form)]
    lines = draw_curve(values, _CURVE_WIDTH, _CURVE_HEIGHT, low, high)
    text = Text.assemble(" " * _LABEL_WIDTH, (title, "bold"), " ", (format(values[max(values)], form), "cyan"))
    for name, line in zip(labels, lines, strict=True):
        text.append(f"\n{name:>{_LABEL_WIDTH - 1}} ", "dim").append(line, "cyan")
    return text


def _describe(view: "RunView") -> Iterator[str]:
    """Yield lines about the last evaluation, the last step and the current phase."""
    if view.evaluations:
        last = view.evaluations[-1]
        yield (
            f"[bold]Evaluation[/] after step {last.step}: {last.accuracy:.1%} of {last.questions:,} questions correct"
            + ("" if last.beat_rate is None else f", better than at step 0 in {last.beat_rate:.1%} (equal counts half)")
        )
    if view.steps:
        step = view.steps[-1]
        yield (
            f"[bold]Step {step.step}[/]: {step.groups} of {step.groups_wanted} groups, {step.groups_flat} flat, "
            f"{step.groups_dropped} dropped, {step.groups_refused} off-policy; rollouts {step.rollout_seconds:.1f} s, "
            f"training {step.train_seconds:.1f} s"
            + (f"; split episodes {printable(step.split_summary)}" if step.split_episodes else "")
        )
    progress = view.progress
    if progress and view.state == "running":
        total = "" if progress.total is None else f" of {progress.total:,.0f}"
        note = f" ({printable(progress.note)})" if progress.note else ""
        yield f"[bold]Now[/] in step {progress.step}: {printable(progress.phase)}, {progress.done:,.0f}{total}{note}"
    if view.is_stalled:
        yield "[yellow]It stopped making progress: see stalled.txt in its directory.[/]"


def _render_episodes(episodes: "Sequence[RecentEpisode]", width: int) -> RenderableType:
    """Return a table of episodes, each in one line."""
    table = Table(
        Column("reward", justify="right"),
        Column("question", no_wrap=True, overflow="ellipsis", ratio=3),
        Column("answer", no_wrap=True, overflow="ellipsis", ratio=2),
        box=None,
        pad_edge=False,
        width=min(width, 120),
    )
    for each in episodes:
        answer = " ".join(each.answer.split()) or f"({each.ending})"
        table.add_row(f"{each.reward:+.2f}", *map(printable, (" ".join(each.question.split()), answer)))
    return table
