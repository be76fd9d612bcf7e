"""Start small training runs on the tiny policy: with the command, or only their trainer, in a forked process."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

from gumshoe.training.records import EvaluationRecord, StepRecord, read_records
from gumshoe.training.run_spec import SPEC, RunSpec, load_splits, open_run_env
from gumshoe.training.settings_sources import resolve

STEPS = 3
SMALL: dict[str, Any] = {
    "rollouts.num_generations": 4,
    "rollouts.temperature": 2,  # as in configs/tiny.yaml: at 1 the answers to a question hardly differ
    "optimizer.per_device_train_batch_size": 4,
    "optimizer.gradient_accumulation_steps": 2,
    "optimizer.learning_rate": 1e-3,
    "optimizer.max_steps": STEPS,
    "rollouts.max_tokens": 100,
    "rollouts.max_turns": 4,
    "rollouts.draws": 2,
    "data.eval_size": 4,
    "model.gradient_checkpointing": "false",
    "optimizer.beta": 0.01,
    "evaluation.eval_steps": 2,
    "output.save_steps": 1,
    "output.report_to": "[]",
}


def settings_with(**changes: Any) -> dict[str, Any]:
    """Return the settings of a small run with changes; `output__save_steps=2` sets `output.save_steps`."""
    return {**SMALL, **{name.replace("__", "."): value for name, value in changes.items()}}


def command(mail: Path, out: Path, *more: str, **settings: Any) -> list[str]:
    """Return the command line of a small run."""
    sets = [each for name, value in settings_with(**settings).items() for each in ("--set", f"{name}={value}")]
    where = ["--index", str(mail / "index"), "--scenarios", str(mail / "scenarios.jsonl"), "--out", str(out)]
    return [sys.executable, "-m", "gumshoe", "train", "--model", "tiny", *where, *sets, *more]


def start(words: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command, and append its output to a log."""
    with log.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, "COLUMNS": "200", **environment})


def train(words: list[str], log: Path, **environment: str) -> str:
    """Run a command to its end, check that it succeeds, and return what it printed."""
    status = start(words, log, **environment).wait()
    text = log.read_text()
    assert status == 0, text[-3000:]
    return text


def spec_of(mail: Path, out: Path, **settings: Any) -> RunSpec:
    """Return the specification of a small run as `gumshoe train` writes it, with rollouts in the trainer's process."""
    flags = {"model.name": "tiny", "rollouts.engine": "transformers", "output.directory": str(out)}
    resolved = resolve(None, flags | settings_with(**settings)).settings
    scenarios = str(mail / "scenarios.jsonl")
    training, validation = load_splits(resolved, scenarios)
    return RunSpec(
        settings=resolved,
        index=mail / "index",
        scenarios=scenarios,
        content=f"{training.content} {validation.content} {training.order}",
        searched=open_run_env(resolved, mail / "index").content,
        run="small",
        attempt=1,
    )


@dataclass(frozen=True)
class Kill:
    """The moment at which a trainer sends itself a signal: when it enters one of its functions for the nth time."""

    function: str
    """Name in `gumshoe.training.grpo.run`, such as `AdapterWriter.complete`."""
    time: int = 1
    signal: int = signal.SIGKILL


class ForkedTrainer:
    """The trainer process of a run without its supervisor, forked from a process that has imported everything.

    It starts seconds faster than `gumshoe train`.
    """

    def __init__(self, spec: RunSpec, log: Path, kill: Kill | None = None, **environment: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["gumshoe.training.grpo.run"])
        spec.directory.mkdir(parents=True, exist_ok=True)
        (spec.directory / SPEC).write_text(spec.model_dump_json())
        environment = {"COLUMNS": "200", **environment}
        words = (spec.directory / SPEC, log, kill, environment)
        self.process: ForkServerProcess = context.Process(target=_train, args=words, daemon=True)
        self.process.start()
        self.log = log

    def wait(self) -> int:
        """Wait until the process ends, and return its exit status; it is negative for a signal."""
        self.process.join()
        status = self.process.exitcode
        assert status is not None
        return status

    def finish(self) -> str:
        """Wait until the process ends, check that it succeeded, and return its output."""
        assert self.wait() == 0, self.log.read_text()[-3000:]
        return self.log.read_text()

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self.process.exitcode


def _train(spec: Path, log: Path, kill: Kill | None, environment: dict[str, str]) -> None:
    """Run as a trainer process."""
    with log.open("ab") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    os.environ.update(environment)
    from gumshoe.training.grpo import run

    if kill is not None:
        _signal_on_entering(run, kill)
    run.main([str(spec)])


def _signal_on_entering(module: Any, kill: Kill) -> None:
    *owners, name = kill.function.split(".")
    owner = module
    for each in owners:
        owner = getattr(owner, each)
    original, entered = getattr(owner, name), 0

    def replacement(*arguments: Any, **named: Any) -> Any:
        nonlocal entered
        entered += 1
        if entered == kill.time:
            os.kill(os.getpid(), kill.signal)
        return original(*arguments, **named)

    setattr(owner, name, replacement)


def load_weights(adapter: Path) -> dict[str, Any]:
    """Return the tensors of an adapter by name."""
    from safetensors.torch import load_file

    return dict(load_file(adapter / "adapter_model.safetensors"))


def load_update(adapter: Path) -> Any:
    """Return the weights that were 0 before the first step, as one vector."""
    import torch

    return torch.cat([value.flatten() for name, value in sorted(load_weights(adapter).items()) if "lora_B" in name])


def is_changed(adapter: Path) -> bool:
    """Return True if an adapter has changed since it was created."""
    return bool(load_update(adapter).abs().max() > 0)


def assert_same_weights(one: Path, other: Path) -> None:
    """Check that two adapters are equal, bit for bit."""
    mine, theirs = load_weights(one), load_weights(other)
    assert mine.keys() == theirs.keys()
    assert all((mine[name] == theirs[name]).all() for name in mine)


def steps_of(out: Path) -> list[StepRecord]:
    """Return the records of a run's steps."""
    return [each for each in read_records(out / "metrics.jsonl") if isinstance(each, StepRecord)]


def evaluations_of(out: Path) -> list[EvaluationRecord]:
    """Return the records of a run's evaluations."""
    return [each for each in read_records(out / "metrics.jsonl") if isinstance(each, EvaluationRecord)]


def outcome_of(out: Path) -> list[list[object]]:
    """Return what steps and evaluations found, which is equal for a run that was interrupted and one that was not."""
    steps, evaluations = ("reward", "reward_std", "tokens", "groups", "endings", "scenarios"), ("accuracy", "reward")
    return [
        [each.step, *(getattr(each, name) for name in names)]
        for records, names in ((steps_of(out), steps), (evaluations_of(out), evaluations))
        for each in records
    ]


def scenarios_of_first_draws(out: Path) -> list[tuple[str, ...]]:
    """Return the scenarios of the first draw of each step, which has two groups."""
    return [each.scenarios[:2] for each in steps_of(out)]


def find_processes(process: subprocess.Popen[bytes], module: str) -> list[psutil.Process]:
    """Return the processes of a module that a command started, oldest first, without the reapers."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # the process has ended
            words: Sequence[str] = each.cmdline()
            found += [each] * (module in " ".join(words) and "reaper" not in " ".join(words))
    return found
