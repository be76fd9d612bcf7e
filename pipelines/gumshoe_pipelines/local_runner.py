"""A compiled pipeline run on this machine by `kfp.local`, step after step, in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.markup import escape

from gumshoe.errors import GumshoeError
from gumshoe.terminal import err, printable
from gumshoe_pipelines.graphs import Graph, read_documents

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BEGUN = re.compile(r"Executing task '([^']+)'")
_ENDED = re.compile(r"Task '([^']+)' finished with status (\w+)")
_CACHED = re.compile(r"Task (\S+) cache hit")
_AGAIN = re.compile(r"Task (\S+) failed \(attempt (\d+)/(\d+)\)\. Retrying")
_SKIPPED = re.compile(r"Skipping (?:conditional )?task (\S+?):? ")
_ERROR = re.compile(r"(?:gumshoe[\w.]*|[\w.]*Error): (.+)")
_CODE = re.compile(r"\[[a-z-]+\.[a-z0-9-]+\]")
_NOISE = re.compile(r"\[KFP Executor |^\S*/site-packages/|^\s*(?:warnings\.warn|import kfp)|^\s*[{}\]\[\"]")
_BETWEEN_TRIES = "2s"


@dataclass(slots=True)
class LocalStep:
    """How a step went."""

    name: str
    state: str = "running"
    """running, again, done, cached, skipped or failed"""
    error: str = ""


@dataclass(slots=True)
class LocalRun:
    """A run on this machine."""

    steps: list[LocalStep] = field(default_factory=list)
    begun: float = 0.0
    """When the last step began, in seconds of the monotonic clock."""

    def take(self, line: str) -> str | None:
        """Read a line of what the runner says; what to show of it."""
        text = _COLOUR.sub("", line.rstrip())
        if found := _BEGUN.search(text):
            if not (self.steps and self.steps[-1].name == found[1] and self.steps[-1].state == "again"):
                self.steps.append(LocalStep(found[1]))
                self.begun = time.monotonic()
            self.steps[-1].state = "running"
            return f"[bold]{escape(found[1])}[/]"
        if found := _ENDED.search(text):
            step = self.steps[-1]
            step.state = "done" if found[2] == "SUCCESS" else "failed"
            return f"  {_SHOWN[step.state]} after {time.monotonic() - self.begun:,.1f} s"
        if found := _AGAIN.search(text):
            self.steps[-1].state = "again"
            return f"  [yellow]again[/]: try {int(found[2]) + 1} of {found[3]}"
        if found := _CACHED.search(text):
            self.steps.append(LocalStep(found[1], "cached"))
            return f"[bold]{escape(found[1])}[/]\n  {_SHOWN['cached']}"
        if found := _SKIPPED.search(text):
            self.steps.append(LocalStep(found[1], "skipped"))
            return f"[bold]{escape(found[1])}[/]\n  {_SHOWN['skipped']}"
        if not (self.steps and self.steps[-1].state == "running" and line.startswith("    ") and text.strip()):
            return None
        if _NOISE.search(text[4:]):
            return None
        said = text[4:]
        if found := _ERROR.match(said):
            self.steps[-1].error = found[1]
        elif _CODE.fullmatch(said):  # the last line of an error's traceback
            self.steps[-1].error += f" {said}"
        return None if said.startswith(("  ", "Traceback")) else f"  [dim]{printable(said)}[/]"


_SHOWN = {
    "done": "[green]done[/]",
    "failed": "[red]failed[/]",
    "cached": "[green]as before[/] (from the cache)",
    "skipped": "[yellow]skipped[/]",
}


def run_locally(graph: Graph, arguments: dict[str, Any], directory: Path, *, caching: bool) -> None:
    """Run a compiled pipeline on this machine, with what each step says on the terminal, and all of it in `run.log`.

    Raises:
        GumshoeError: a step failed; it says which, and why.
    """
    directory.mkdir(parents=True, exist_ok=True)
    spec = directory / "run.json"
    compiled = directory / "pipeline.yaml"
    compiled.write_text(_impatient(graph.text), encoding="utf-8")
    told = {"pipeline": str(compiled), "root": str(directory), "arguments": arguments, "caching": caching}
    spec.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    run = LocalRun()
    with (directory / "run.log").open("a", encoding="utf-8") as log, _child(spec) as child:
        for line in child.stdout or ():
            log.write(line)
            shown = run.take(line)
            if shown is not None:
                err.print(shown, soft_wrap=True)
        status = child.wait()
    failed = next((step for step in run.steps if step.state == "failed"), None)
    if status:
        name, why = (f"step {failed.name}", failed.error) if failed else ("the run", "")
        raise GumshoeError(
            "pipelines.local-run-failed",
            f"{name} failed: {why or f'exit status {status}'}; see the log in {directory / 'run.log'}",
        )


@contextmanager
def _child(spec: Path) -> Iterator[subprocess.Popen[str]]:
    """The process that runs a pipeline; with this one it ends, and all that it started."""
    child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "gumshoe_pipelines.local_runner", str(spec)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
    )

    def end(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        child.wait()


def _impatient(text: str) -> str:
    """The same pipeline, in which a step that failed is soon tried again: there is no cluster to recover."""
    spec, *platforms = read_documents(text)
    graphs = [spec["root"], *spec["components"].values()]
    for graph in graphs:
        for task in graph.get("dag", {}).get("tasks", {}).values():
            if "retryPolicy" in task:
                task["retryPolicy"]["backoffDuration"] = _BETWEEN_TRIES
    return str(yaml.safe_dump_all([spec, *platforms]))


def main() -> None:
    """What runs in the child: the pipeline of a file, by `kfp.local`."""
    import logging
    import warnings

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    from kfp import components, local

    warnings.filterwarnings("ignore", category=RuntimeWarning)
    warnings.filterwarnings("ignore", message=".*no effect in the current local runner.*")
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    root = Path(told["root"])
    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(root / "steps"),
        enable_caching=told["caching"],
        cache_root=str(root / "cache"),
    )
    components.load_component_from_file(told["pipeline"])(**told["arguments"])


if __name__ == "__main__":
    main()
