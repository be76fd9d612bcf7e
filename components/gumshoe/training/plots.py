"""Plot the curves of a run, as one self-contained HTML page and as PNG files."""

import io
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from gumshoe.artifacts.storage import write_atomically
from gumshoe.pages.render import embed_json, render_page
from gumshoe.training.charts import Chart, chart_data, make_charts
from gumshoe.training.records import EvaluationRecord, StepRecord
from gumshoe.training.run_spec import PAGE, PLOTS, TIMELINE
from gumshoe.training.timeline import draw_timeline


def write_plots(records: Sequence[StepRecord | EvaluationRecord], directory: Path, title: str) -> Path:
    """Write the page and the pictures into a run's directory, and return the path of the page."""
    steps = [each for each in records if isinstance(each, StepRecord)]
    evaluations = [each for each in records if isinstance(each, EvaluationRecord)]
    charts = make_charts(steps, evaluations)
    pictures = directory / PLOTS
    pictures.mkdir(exist_ok=True)
    for chart in charts:
        write_atomically(pictures / f"{chart.name}.png", io.BytesIO(_draw(chart)))
    timeline = draw_timeline(directory / TIMELINE)
    if timeline is not None:
        write_atomically(pictures / "timeline.png", io.BytesIO(timeline))
    values = {
        "title": title,
        "facts": _facts(steps, evaluations),
        "has_steps": bool(steps),
        "charts": charts,
        "timeline": timeline and b64encode(timeline).decode(),
        "data": [("charts", embed_json(chart_data(charts)))],
    }
    page = "".join(render_page("gumshoe.training", "plots", values, library="uplot", has_pictures=timeline is not None))
    write_atomically(directory / PAGE, io.BytesIO(page.encode()))
    return directory / PAGE


def _facts(steps: Sequence[StepRecord], evaluations: Sequence[EvaluationRecord]) -> list[tuple[str, str, str]]:
    """Return the key figures: for each its name, its value and a remark."""
    facts = [("Steps", f"{steps[-1].step:,}", "")] if steps else []
    if evaluations:
        first, last, best = evaluations[0], evaluations[-1], max(evaluations, key=lambda each: each.score)
        remark = (
            f"{100 * (last.accuracy - first.accuracy):+.1f} points since step {first.step}"
            if last.step > first.step
            else ""
        )
        facts.append(("Held-out accuracy", f"{last.accuracy:.1%}", remark))
        facts.append(("Best held-out accuracy", f"{best.accuracy:.1%}", f"after step {best.step}"))
    if steps:
        last_step = steps[-1]
        facts.append(("Reward", f"{last_step.reward:.3f}", f"± {last_step.reward_std:.2f} in the last step"))
        seconds = sum(each.seconds for each in steps)
        facts.append(("Time of all steps", _duration(seconds), f"{seconds / len(steps):,.1f} s per step"))
    return facts


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:,.1f} h"


def _draw(chart: Chart) -> bytes:
    """Return a chart as PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(7, 4), dpi=110)
    axes = figure.add_axes((0.12, 0.12, 0.85, 0.8))  # a computed layout would take half as long again
    for band, alpha in zip(chart.bands, (0.15, 0.35), strict=False):
        low, high = zip(*band.ranges.values(), strict=True)
        axes.fill_between(list(band.ranges), low, high, alpha=alpha, label=band.label)
    for line in chart.lines:
        axes.plot(
            list(line.values), list(line.values.values()), marker="o" if line.is_sparse else ".", label=line.label
        )
    axes.set_title(chart.title)
    axes.set(xlabel="step", ylabel=chart.unit)
    axes.set_ylim(bottom=chart.low, top=chart.high)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if len(chart.lines) + len(chart.bands) > 1:
        axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", pil_kwargs={"compress_level": 1})
    return picture.getvalue()
