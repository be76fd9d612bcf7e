"""Plot the curves of a run, as PNG files and as one self-contained HTML page."""

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gumshoe.artifacts.storage import write_atomically
from gumshoe.training.records import EvaluationRecord, StepRecord
from gumshoe.training.run_spec import PAGE, PLOTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:78rem;padding:0 1rem;color:#1a1a1a}}
main{{display:grid;grid-template-columns:repeat(auto-fill,minmax(30rem,1fr));gap:1.5rem}}
figure{{margin:0}}img{{width:100%;height:auto}}figcaption{{color:#555}}</style></head>
<body><h1>{title}</h1><p>{summary}</p><main>
{figures}
</main></body></html>
"""
Steps = Sequence[StepRecord]
Evaluations = Sequence[EvaluationRecord]


def write_plots(records: Sequence[StepRecord | EvaluationRecord], directory: Path, title: str) -> Path:
    """Write the plots and the HTML page into a run's directory, and return the path of the page."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    steps = [each for each in records if isinstance(each, StepRecord)]
    evaluations = [each for each in records if isinstance(each, EvaluationRecord)]
    pictures = directory / PLOTS
    pictures.mkdir(exist_ok=True)
    shown = []
    for name, (caption, draw) in _FIGURES.items():
        figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
        axes = figure.add_subplot()
        draw(axes, steps, evaluations)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        write_atomically(pictures / f"{name}.png", io.BytesIO(picture.getvalue()))
        data = base64.b64encode(picture.getvalue()).decode()
        shown.append(
            f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
    page = _PAGE.format(title=escape(title), summary=escape(_summary(steps, evaluations)), figures="\n".join(shown))
    write_atomically(directory / PAGE, io.BytesIO(page.encode()))
    return directory / PAGE


def _summary(steps: Steps, evaluations: Evaluations) -> str:
    parts = [f"{len(steps)} steps"]
    if evaluations:
        best = max(evaluations, key=lambda each: each.accuracy)
        parts.append(
            f"accuracy on held-out questions {evaluations[0].accuracy:.1%} after step {evaluations[0].step}, "
            f"{evaluations[-1].accuracy:.1%} after the last step, {best.accuracy:.1%} at best (step {best.step})"
        )
    return "; ".join(parts)


def _line(axes: "Axes", steps: Steps, value: Callable[[StepRecord], float | None], label: str = "") -> None:
    known = [(each.step, found) for each in steps if (found := value(each)) is not None]
    axes.plot([step for step, _ in known], [found for _, found in known], label=label or None, marker=".")


def _rewards(axes: "Axes", steps: Steps, _: Evaluations) -> None:
    _line(axes, steps, lambda each: each.reward, "combined")
    for name in dict.fromkeys(name for each in steps for name in each.rewards):
        _line(axes, steps, lambda each, name=name: each.rewards.get(name), name)  # type: ignore[misc]
    axes.set_ylabel("mean reward")


def _distribution(axes: "Axes", steps: Steps, _: Evaluations) -> None:
    known = [each for each in steps if each.reward_quantiles]
    at = [each.step for each in known]
    quantiles = list(zip(*(each.reward_quantiles for each in known), strict=True))
    if quantiles:
        least, lower, median, upper, most = quantiles
        axes.fill_between(at, least, most, alpha=0.15, label="all")
        axes.fill_between(at, lower, upper, alpha=0.35, label="middle 50 %")
        axes.plot(at, median, marker=".", label="median")
    axes.set_ylabel("reward per episode")


def _accuracy(axes: "Axes", steps: Steps, evaluations: Evaluations) -> None:
    _line(axes, steps, lambda each: each.accuracy, "training episodes, sampled")
    axes.plot(
        [each.step for each in evaluations],
        [each.accuracy for each in evaluations],
        marker="o",
        label="held-out questions, greedy",
    )
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of correct answers")


def _kl(axes: "Axes", steps: Steps, _: Evaluations) -> None:
    _line(axes, steps, lambda each: each.kl)
    axes.set_ylabel("KL from the base model, nats per token")


def _entropy(axes: "Axes", steps: Steps, _: Evaluations) -> None:
    _line(axes, steps, lambda each: each.entropy)
    axes.set_ylabel("entropy, nats per token")


def _lengths(axes: "Axes", steps: Steps, _: Evaluations) -> None:
    _line(axes, steps, lambda each: each.sampled_tokens)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("sampled tokens per episode")


def _turns(axes: "Axes", steps: Steps, _: Evaluations) -> None:
    _line(axes, steps, lambda each: each.turns)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("turns per episode")


def _trainable(axes: "Axes", steps: Steps, _: Evaluations) -> None:
    _line(axes, steps, lambda each: each.trainable_tokens / max(1, each.tokens))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("share of tokens trained on")


def _times(axes: "Axes", steps: Steps, _: Evaluations) -> None:
    at = [each.step for each in steps]
    parts = [[each.rollout_seconds for each in steps], [each.train_seconds for each in steps]]
    axes.stackplot(at, *parts, labels=["rollouts", "training"], alpha=0.7)
    axes.set_ylabel("seconds per step")


_FIGURES: "dict[str, tuple[str, Callable[[Axes, Steps, Evaluations], None]]]" = {
    "accuracy": ("Accuracy", _accuracy),
    "rewards": ("Reward by function", _rewards),
    "distribution": ("Reward distribution", _distribution),
    "kl": ("KL divergence from the base model", _kl),
    "entropy": ("Entropy", _entropy),
    "lengths": ("Episode length", _lengths),
    "turns": ("Turns", _turns),
    "trainable": ("Trained tokens", _trainable),
    "times": ("Time by phase", _times),
}
