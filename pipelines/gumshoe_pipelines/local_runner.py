"""Run a compiled pipeline on this machine with `kfp.local`, step by step, in a child process."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from gumshoe.artifacts.manifest import MANIFEST
from gumshoe.artifacts.storage import lock_directory, make_writable_directory
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.signals import handle_signals
from gumshoe.terminal import err, printable
from gumshoe.training.run_directory import ATTEMPT_CLAIMS, TRAININGS, TRAININGS_VARIABLE, WARM_STARTS
from gumshoe_pipelines.graphs import Graph, read_documents
from gumshoe_pipelines.step_runner import PAUSE_VARIABLE

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STARTED = re.compile(r"Executing task '([^']+)'")
_ENDED = re.compile(r"Task '([^']+)' finished with status (\w+)")
_CACHED = re.compile(r"Task (\S+) cache hit")
_SKIPPED = re.compile(r"Skipping (?:conditional )?task (\S+?):? ")
_ERROR = re.compile(r"(?:gumshoe[\w.]*|[\w.]*Error): (.+)")
_CODE = re.compile(r"\[[a-z-]+\.[a-z0-9-]+\]")
_NOISE = re.compile(r"\[KFP Executor |^\S*/site-packages/|^\s*(?:warnings\.warn|import kfp)|^\s*[{}\]\[\"]")
_RETRY_PAUSE = 2  # seconds, because there is no cluster that needs time to recover
_SPEC = "run.json"
_GRACE = 30.0  # seconds for steps to end when the run is stopped; the trainer of one may take 25
_QUIET = 2.0  # seconds before it is said that they have them


@dataclass(slots=True)
class LocalStep:
    """The state of a step."""

    name: str
    state: str = "running"
    """One of running, done, cached, skipped and failed."""
    error: str = ""


@dataclass(slots=True)
class LocalRun:
    """The state of a run on this machine."""

    steps: list[LocalStep] = field(default_factory=list)
    step_started: float = 0.0
    """Start of the last step, on the clock of `time.monotonic`."""

    def handle_line(self, line: str) -> str | None:
        """Parse a line of the runner's output. Return what to show of it, or None."""
        text = _COLOUR.sub("", line.rstrip())
        if found := _STARTED.search(text):
            self.steps.append(LocalStep(found[1]))
            self.step_started = time.monotonic()
            return f"[bold]{printable(found[1])}[/]"
        if found := _ENDED.search(text):
            running = (each for each in reversed(self.steps) if each.state == "running" and each.name == found[1])
            step = next(running, self.steps[-1])
            step.state = "done" if found[2] == "SUCCESS" else "failed"
            return f"  {_LABELS[step.state]} after {time.monotonic() - self.step_started:,.1f} s"
        if found := _CACHED.search(text):
            self.steps.append(LocalStep(found[1], "cached"))
            return f"[bold]{printable(found[1])}[/]\n  {_LABELS['cached']}"
        if found := _SKIPPED.search(text):
            self.steps.append(LocalStep(found[1], "skipped"))
            return f"[bold]{printable(found[1])}[/]\n  {_LABELS['skipped']}"
        if not (self.steps and self.steps[-1].state == "running" and line.startswith("    ") and text.strip()):
            return None
        message = text[4:]
        if _CODE.fullmatch(message):  # the last line of an error's traceback
            self.steps[-1].error += f" {message}"
            return None
        if _NOISE.search(message):
            return None
        if found := _ERROR.match(message):
            self.steps[-1].error = found[1]
        return None if message.startswith(("  ", "Traceback")) else f"  [dim]{printable(message)}[/]"


_LABELS = {
    "done": "[green]done[/]",
    "failed": "[red]failed[/]",
    "cached": "[green]cached[/]",
    "skipped": "[yellow]skipped[/]",
}


def run_locally(
    graph: Graph,
    arguments: dict[str, Any],
    directory: Path,
    *,
    caching: bool,
    inputs: str = "",
    lock: int | None = None,
) -> None:
    """Run a compiled pipeline on this machine. Step output goes to the terminal, the complete output to `run.log`.

    `inputs` is the digest of what the arguments only name, for `find_last_run`. `lock` is the descriptor of
    `lock_run`; the processes of the run keep it until all of them have ended.

    Raises:
        GumshoeError: if a step failed; the message names the step and its error.
    """
    directory.mkdir(parents=True, exist_ok=True)
    spec = directory / _SPEC
    compiled = directory / "pipeline.yaml"
    compiled.write_text(_fit_to_machine(graph.text), encoding="utf-8")
    content = {
        "name": graph.name,
        "pipeline": str(compiled),
        "root": str(directory),
        "arguments": arguments,
        "caching": caching,
        "inputs": inputs,
    }
    spec.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    run = LocalRun()
    try:
        with (
            (directory / "run.log").open("a", encoding="utf-8") as log,
            _open_trainings(directory) as trainings,
            _start_child(spec, trainings, lock) as child,
        ):
            for line in child.stdout or ():
                log.write(line)
                shown = run.handle_line(line)
                if shown is not None:
                    err.print(shown, soft_wrap=True)
            status = child.wait()
    except KeyboardInterrupt:
        _print_what_is_kept(run, arguments)
        raise
    failed = next((step for step in run.steps if step.state == "failed"), None)
    if status:
        name, why = (f"step {failed.name}", failed.error) if failed else ("the run", "")
        raise GumshoeError(
            "pipelines.local-run-failed",
            f"{name} failed: {why or f'exit status {status}'}; see the log in {directory / 'run.log'}",
        )


def prepare_directory(directory: Path) -> None:
    """Create the directory of a run, and check that it can be written to and belongs to no training.

    Raises:
        UsageError: if it cannot, or does.
    """
    make_writable_directory(str(directory))
    with suppress(FileNotFoundError, ValueError, UnicodeError):
        if "pipeline" not in json.loads((directory / _SPEC).read_text(encoding="utf-8")):
            raise UsageError(
                "pipelines.directory-in-use", f"{directory} contains a run of `gumshoe train`; choose another --out"
            )


@contextmanager
def lock_run(directory: Path) -> Iterator[int]:
    """Hold the lock of a run's directory while the block runs, and yield its file descriptor.

    Raises:
        UnavailableError: if another run is at work in the directory.
    """
    with lock_directory(directory, None) as lock:
        if lock is None:
            raise UnavailableError(
                "pipelines.directory-busy",
                f"another run is at work in {directory}, or ending; wait until it has ended, or choose another --out",
            )
        yield lock


def find_last_run(directory: Path, graph: Graph, arguments: Mapping[str, Any], inputs: str | None = None) -> str | None:
    """Return the ID of the last run in a directory if it was of this pipeline with the same arguments, else None.

    `inputs`, if given, must be the same too: an adapter that is half trained with them cannot be continued with others.
    """
    try:
        last = json.loads((directory / _SPEC).read_text(encoding="utf-8"))
        found = last["arguments"]
    except (FileNotFoundError, ValueError, KeyError):
        return None

    def compared(each: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in each.items() if key not in ("run", "code")}

    is_same = (last.get("name"), compared(found)) == (graph.name, compared(arguments))
    is_same = is_same and inputs in (None, last.get("inputs", ""))
    return str(found["run"]) if is_same and found.get("run") else None


def _print_what_is_kept(run: LocalRun, arguments: Mapping[str, Any]) -> None:
    """Print what an interrupted run leaves, and how to continue it."""
    ended = [step.name for step in run.steps if step.state in ("done", "cached")]
    kept = [f"the results of {', '.join(ended)}"] * bool(ended)
    with suppress(GumshoeError):
        checkpoint = Store(arguments["store"]).latest(f"runs/{arguments['run']}/checkpoints")
        kept += [f"checkpoint {checkpoint} of the training"] * bool(checkpoint)
        is_warming = any((step.name, step.state) == ("warm-start", "running") for step in run.steps)
        kept += ["the last checkpoint of the warm start"] * (is_warming and _has_warm_start(arguments["store"]))
    err.print(
        f"\nStopped. Kept: {printable(' and '.join(kept) or 'nothing, because no step had ended')}.", soft_wrap=True
    )
    again = shlex.join(["gumshoe", *(each for each in sys.argv[1:] if each != "--new")])
    err.print(f"Continue with: {printable(again)}", soft_wrap=True)


def _has_warm_start(store: str) -> bool:
    """Return True if a store has a checkpoint of the warm start that was begun or continued last."""
    entries = list(Store(store).storage.entries(WARM_STARTS))
    claims = [each for each in entries if f"/{ATTEMPT_CLAIMS}/" in each.key]
    if not claims:
        return False
    newest = max(claims, key=lambda each: each.modified).key.partition(f"/{ATTEMPT_CLAIMS}/")[0]
    return any(each.key.startswith(f"{newest}/") and each.key.endswith(f"/{MANIFEST}") for each in entries)


@contextmanager
def _open_trainings(directory: Path) -> Iterator[Path]:
    """Yield an empty directory for the trainings of a run, and remove it at the end if they have left nothing in it.

    A training that is continued starts from its checkpoints in the store.
    """
    trainings = directory / TRAININGS
    shutil.rmtree(trainings, ignore_errors=True)  # of an earlier command
    trainings.mkdir(exist_ok=True)
    try:
        yield trainings
    finally:
        with suppress(OSError):  # e.g. if the store did not take a checkpoint
            trainings.rmdir()


@contextmanager
def _start_child(spec: Path, trainings: Path, lock: int | None) -> Iterator[subprocess.Popen[str]]:
    """Start the process that runs a pipeline, under a reaper, which ends it and its steps with this process."""
    reaper = [sys.executable, "-m", "gumshoe.inference.reaper", "--patience", str(_GRACE), "--group"]
    child = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
        [*reaper, sys.executable, "-m", "gumshoe_pipelines.local_runner", str(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # signals of the terminal do not reach it
        env={
            PAUSE_VARIABLE: str(_RETRY_PAUSE),
            **os.environ,
            TRAININGS_VARIABLE: str(trainings),
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        },
        pass_fds=() if lock is None else (lock,),
    )

    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT or not stopped:  # a terminal that is closed sends several
            stopped.append(number)
            raise KeyboardInterrupt

    with handle_signals(stop, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        try:
            yield child
        finally:
            _end_child(child)
            if child.stdout:
                child.stdout.close()


def _end_child(child: subprocess.Popen[str]) -> None:
    """Let the reaper end the run. Its steps have some seconds, e.g. for a training to be saved."""
    if child.stdin:
        child.stdin.close()
    try:
        try:
            child.wait(_QUIET)
        except subprocess.TimeoutExpired:
            err.print(f"Stopping, within {_GRACE:.0f} seconds; Ctrl-C again stops at once", soft_wrap=True)
            child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGQUIT)
        child.wait()
        raise


def _fit_to_machine(text: str) -> str:
    """Return the pipeline without Kubeflow's retries, and with loops that run one entry after another.

    Retries are for lost pods; the step runner has its own. Entries of a loop would share the GPUs of the machine, and
    `kfp.local` mixes the output of steps that run at once.
    """
    spec, *platforms = read_documents(text)
    graphs = [spec["root"], *spec["components"].values()]
    for graph in graphs:
        for task in graph.get("dag", {}).get("tasks", {}).values():
            task.pop("retryPolicy", None)
            if "parameterIterator" in task or "artifactIterator" in task:
                task["iteratorPolicy"] = {"parallelismLimit": 1}
    return str(yaml.safe_dump_all([spec, *platforms]))


def main() -> None:
    """Run the pipeline of a file with `kfp.local`, as the child process."""
    import logging
    import warnings

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    from kfp import components, local

    warnings.filterwarnings("ignore", category=RuntimeWarning)
    warnings.filterwarnings("ignore", message=".*no effect in the current local runner.*")
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    root = Path(spec["root"])
    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(root / "steps"),
        enable_caching=spec["caching"],
        cache_root=str(root / "cache"),
    )
    components.load_component_from_file(spec["pipeline"])(**spec["arguments"])


if __name__ == "__main__":
    main()
