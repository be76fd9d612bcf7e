"""Print the outcome of a run on this machine: before and after, the verdict, where everything is, and what to try."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.markup import escape
from rich.table import Table

from gumshoe.artifacts.store import Store
from gumshoe.evaluation.evaluation_step import DECISION
from gumshoe.evaluation.gate import Decision
from gumshoe.evaluation.metrics import Estimate, describe_metric, format_value
from gumshoe.evaluation.results import REPORT, EvaluationResult, PolicyResult, read_result
from gumshoe.terminal import out, printable

_METRICS = ("accuracy", "source_accuracy", "found", "unusable", "turns")
_BAR = 20  # characters


def print_summary(arguments: dict[str, Any], directory: Path) -> None:
    """Print the outcome of a run whose steps wrote to `directory`; nothing if it has no report."""
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
    out.print()
    out.print(_build_table(result, before, after))
    out.print()
    verdict = "[bold green]Passed:[/]" if decision.passed else "[bold yellow]Not passed:[/]"
    out.print(f"{verdict} {printable(decision.why_with_code)}", soft_wrap=True)
    out.print()
    found = store.find(f"adapters/{run}")
    page = f"{store.uri}/{report.reference}/{report.data}/{REPORT}"
    for label, text in (
        ("Report", page),
        ("Plots", _find_newest(directory, "train-grpo*/plots")),
        ("Adapter", found.reference if found else "not published"),
        ("Store", store.uri),
    ):
        if text:
            out.print(f"{label + ':':9}{escape(str(text))}", soft_wrap=True)
    out.print("\nTry next:")
    for command in _suggest_commands(arguments, directory, page, run if found else None):
        out.print(f"  {escape(command)}", soft_wrap=True)


def _build_table(result: EvaluationResult, before: PolicyResult, after: PolicyResult) -> Table:
    """Return the metrics of both policies with their 95 % intervals, and bars for the rates."""
    title = f"{len(result.scenarios.ids):,} test questions, with 95 % intervals"
    table = Table("", f"before ({before.name})", "", f"after ({after.name})", "", title=title, box=None)
    for name in _METRICS:
        if name in before.metrics and name in after.metrics:
            cells = [cell for each in (before, after) for cell in _format_estimate(name, each.metrics[name])]
            table.add_row(describe_metric(name)[0], *cells)
    return table


def _format_estimate(name: str, found: Estimate) -> tuple[str, str]:
    value, low, high = (format_value(name, each) for each in (found.value, found.low, found.high))
    is_rate = value.endswith("%")
    filled = round(found.value * _BAR) if is_rate else 0
    bar = f"[cyan]{'█' * filled}[/][dim]{'░' * (_BAR - filled)}[/]" if is_rate else ""
    return f"[bold]{value:>6}[/] [dim]({low} to {high})[/]", bar


def _find_newest(directory: Path, pattern: str) -> Path | None:
    """Return the newest output of a step that matches the pattern, or None."""
    found = sorted(directory.glob(f"steps/*/{pattern}"), key=lambda each: each.stat().st_mtime)
    return found[-1] if found else None


def _suggest_commands(arguments: dict[str, Any], directory: Path, page: str, version: str | None) -> Iterator[str]:
    """Yield three commands to try next. `version` is that of the published adapter, if there is one."""
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    yield f"{shlex.join([opener, page.removeprefix('file://')])}   # read the report, question by question"
    index, adapter = _find_newest(directory, "ingest/index"), version or ""
    own = ["--store", arguments["store"], "--index", str(index)]
    if version and index:
        given = ["--scenarios", arguments["scenarios"], "--adapter", adapter, *own]
        yield f"{shlex.join(['gumshoe', 'ask', *given])}   # ask one of the questions"
        yield f"{shlex.join(['gumshoe', 'serve', '--adapter', adapter, *own, '--open'])}   # HTTP, MCP and a web page"
        return
    yield "gumshoe plan --help   # how long a longer training takes, and how much memory"
    yield "gumshoe pipeline run --help   # e.g. -p 'settings={optimizer.max_steps: 60}' to train longer"
