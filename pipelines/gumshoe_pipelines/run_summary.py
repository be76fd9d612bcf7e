"""Print the outcome of a run on this machine: before and after, the verdict, where everything is, and what to try."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from gumshoe.artifacts.canary_decision import find_canary_decision
from gumshoe.artifacts.store import Store
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.evaluation.evaluation_step import DECISION
from gumshoe.evaluation.gate import Decision
from gumshoe.evaluation.metrics import Estimate, describe_metric, format_value
from gumshoe.evaluation.results import REPORT, PolicyResult, read_result
from gumshoe.terminal import create_table, out, printable

_METRICS = ("accuracy", "source_accuracy", "found", "unusable", "turns")
_BAR = 40  # characters


def print_summary(arguments: dict[str, Any], directory: Path) -> None:
    """Print the outcome of a run whose steps wrote to `directory`; nothing if it has no report.

    Report, plots and index get short names in `directory`, as links.
    """
    run = str(arguments.get("run"))
    store = Store(arguments["store"])
    kind = f"runs/{run}/reports"
    if store.latest(kind) is None:
        return
    report = store.manifest(f"{kind}/latest")
    with TemporaryDirectory(prefix="gumshoe-report-") as scratch:
        place = store.fetch(report.reference, Path(scratch, "report")).directory
        decision = Decision.model_validate_json((place / DECISION).read_bytes())
        result, after = read_result(f"{place}#{decision.comparison.candidate}")
    before = next(each for each in result.policies if each.name == decision.comparison.baseline)
    out.print(f"\n{len(result.scenarios.ids):,} test questions, with 95 % intervals:\n")
    out.print(_build_table(before, after))
    out.print()
    for label, policy in (("before", before), ("after", after)):
        if "accuracy" in policy.metrics:
            out.print(f"{label:6} {_draw_bar(policy.metrics['accuracy'].value)}")
    verdict = "[bold green]Passed:[/]" if decision.passed else "[bold yellow]Not passed:[/]"
    out.print(f"\n{verdict} {printable(decision.why_with_code)}\n", soft_wrap=True)
    found = store.find(f"adapters/{run}")
    page = f"{store.uri}/{report.reference}/{report.data}/{REPORT}"
    own = Path(page.removeprefix("file://"))
    places = {
        "Report": _link(directory / REPORT, own) if own.is_file() else page,
        "Plots": _link(directory / "plots.html", _find_newest(directory, "train-grpo*/plots")),
        "Adapter": found.reference if found else "not published",
        "Canary": find_canary_decision(store, run),
        "Store": _shorten(store.uri),
        "Log": _shorten(directory / "run.log"),
    }
    for label, text in places.items():
        if text:
            out.print(f"{label + ':':9}{printable(text)}", soft_wrap=True)
    index = _link(directory / "index", _find_newest(directory, "ingest/index"))
    split = _find_newest(directory, f"load-scenarios/scenarios/{SCENARIOS_FILE}")  # the source may have no splits
    asked = _link(directory / SCENARIOS_FILE, split) or _shorten(arguments["scenarios"])
    agent = found.settings.get("agent", "") if found else ""
    out.print("\nTry next:")
    for command, purpose in _suggest_commands(
        arguments, str(places["Report"]), index, asked, run if found else None, agent
    ):
        out.print(f"  {printable(command)}  [dim]# {purpose}[/]", soft_wrap=True)


def _build_table(before: PolicyResult, after: PolicyResult) -> Table:
    """Return the metrics of both policies with their 95 % intervals."""
    table = create_table("", f"before ({before.name})", f"after ({after.name})", box=None)
    for name in _METRICS:
        if name in before.metrics and name in after.metrics:
            table.add_row(
                describe_metric(name)[0], *(_format_estimate(name, each.metrics[name]) for each in (before, after))
            )
    return table


def _format_estimate(name: str, found: Estimate) -> str:
    value, low, high = (format_value(name, each) for each in (found.value, found.low, found.high))
    return f"[bold]{value:>6}[/] [dim]({low.removesuffix('%')} to {high.removesuffix('%')})[/]"


def _draw_bar(share: float) -> str:
    filled = round(share * _BAR)
    return f"[cyan]{'█' * filled}[/][dim]{'░' * (_BAR - filled)}[/] {share:.1%} correct"


def _find_newest(directory: Path, pattern: str) -> Path | None:
    """Return the newest output of a step that matches the pattern, or None."""
    found = sorted(directory.glob(f"steps/*/{pattern}"), key=lambda each: each.stat().st_mtime)
    return found[-1] if found else None


def _link(place: Path, target: Path | None) -> str | None:
    """Make `place` a link to a file or directory, and return how to name it; None without a target.

    Something else that is at `place` stays, and the target is named instead.
    """
    if target is None:
        return None
    if place.exists() and not place.is_symlink():
        return _shorten(target)
    place.unlink(missing_ok=True)
    place.symlink_to(target.absolute())
    return _shorten(place)


def _shorten(place: Path | str) -> str:
    """Return a path relative to the working directory if it is below that; a URI as it is."""
    path = Path(str(place).removeprefix("file://"))
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(place)


def _suggest_commands(
    arguments: dict[str, Any], page: str, index: str | None, asked: str, version: str | None, agent: str
) -> Iterator[tuple[str, str]]:
    """Yield commands to try next, with their purpose.

    `asked` are scenarios with a test split, `version` is that of the published adapter, if any, and `agent` the one
    that it was trained with, if any.
    """
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    yield shlex.join([opener, page]), "read the report, question by question"
    if version and index:
        own = ["--adapter", version, "--store", _shorten(arguments["store"]), "--index", index]
        own += ["--agent", agent] if agent else []
        ask = ["gumshoe", "ask", "--scenarios", asked, *own]
        yield shlex.join(ask), "ask one of the questions"
        yield shlex.join(["gumshoe", "serve", *own, "--open"]), "HTTP, MCP and a web page"
        return
    yield "gumshoe plan --help", "how long a longer training takes, and how much memory"
    yield "gumshoe pipeline run --help", "e.g. -p 'settings={optimizer.max_steps: 60}' to train longer"
