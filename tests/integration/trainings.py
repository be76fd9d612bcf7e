"""Small training runs on the tiny policy: as a user starts them, and as their trainer alone in a forked process."""

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

from gumshoe.training.records import StepRecord, read_records
from gumshoe.training.run_spec import SPEC, RunSpec, load_splits, open_run_env
from gumshoe.training.settings import resolve

STEPS = 3
SMALL: dict[str, Any] = {
    "rollouts.num_generations": 4,
    "rollouts.temperature": 2,  # as configs/tiny.yaml has it: at 1 the answers to one question are much the same
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
    """Return the settings of a small run with some of them changed: `output__save_steps=2` is `output.save_steps`."""
    return {**SMALL, **{name.replace("__", "."): value for name, value in changes.items()}}


def command(mail: Path, out: Path, *more: str, **settings: Any) -> list[str]:
    """Return the command line of a small run."""
    sets = [each for name, value in settings_with(**settings).items() for each in ("--set", f"{name}={value}")]
    where = ["--index", str(mail / "index"), "--scenarios", str(mail / "scenarios.jsonl"), "--out", str(out)]
    return [sys.executable, "-m", "gumshoe", "train", "--model", "tiny", *where, *sets, *more]


def start(words: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command, whose output is added to a log."""
    with log.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, "COLUMNS": "200", **environment})


def train(words: list[str], log: Path, **environment: str) -> str:
    """Run a command to its end, check that it succeeds, and return what it printed."""
    status = start(words, log, **environment).wait()
    text = log.read_text()
    assert status == 0, text[-3000:]
    return text


def spec_of(mail: Path, out: Path, **settings: Any) -> RunSpec:
    """Return what `gumshoe train` would have the trainer of a small run do, sampling in its own process."""
    flags = {"model.name": "tiny", "rollouts.engine": "transformers", "output.directory": str(out)}
    resolved = resolve(None, flags | settings_with(**settings)).settings
    scenarios = str(mail / "scenarios.jsonl")
    learned, chosen_on = load_splits(resolved, scenarios)
    return RunSpec(
        settings=resolved,
        index=mail / "index",
        scenarios=scenarios,
        content=f"{learned.content} {chosen_on.content}",
        searched=open_run_env(resolved, mail / "index").content,
        run="small",
        attempt=1,
    )


@dataclass(frozen=True)
class Kill:
    """The instant at which a trainer sends itself a signal: when it enters one of its functions for the nth time."""

    function: str
    """In `gumshoe.training.grpo.run`, such as `AdapterWriter.complete`."""
    time: int = 1
    signal: int = signal.SIGKILL


class ForkedTrainer:
    """The trainer's process of a run, forked from one that has imported all that it needs.

    It takes seconds less than `gumshoe train`, whose supervisor is left out.
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
        """Wait for its end and return its exit status; that of a signal is negative."""
        self.process.join()
        status = self.process.exitcode
        assert status is not None
        return status

    def finish(self) -> str:
        """Wait for its end, check that it succeeded, and return what it printed."""
        assert self.wait() == 0, self.log.read_text()[-3000:]
        return self.log.read_text()

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        return self.process.exitcode


def _train(spec: Path, log: Path, kill: Kill | None, environment: dict[str, str]) -> None:
    """Be a trainer's process."""
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

    def replaced(*arguments: Any, **named: Any) -> Any:
        nonlocal entered
        entered += 1
        if entered == kill.time:
            os.kill(os.getpid(), kill.signal)
        return original(*arguments, **named)

    setattr(owner, name, replaced)


def load_weights(adapter: Path) -> dict[str, Any]:
    """Return the tensors of an adapter by name."""
    from safetensors.torch import load_file

    return dict(load_file(adapter / "adapter_model.safetensors"))


def learned(adapter: Path) -> Any:
    """Return all that was zero before the first step, as one vector."""
    import torch

    return torch.cat([value.flatten() for name, value in sorted(load_weights(adapter).items()) if "lora_B" in name])


def has_learned(adapter: Path) -> bool:
    """Tell whether an adapter has changed since it was made."""
    return bool(learned(adapter).abs().max() > 0)


def assert_same_weights(one: Path, other: Path) -> None:
    """Check that two adapters are equal, bit for bit."""
    mine, theirs = load_weights(one), load_weights(other)
    assert mine.keys() == theirs.keys()
    assert all((mine[name] == theirs[name]).all() for name in mine)


def steps_of(out: Path) -> list[StepRecord]:
    """Return the records of a run's steps."""
    return [each for each in read_records(out / "metrics.jsonl") if isinstance(each, StepRecord)]


def first_drawn(out: Path) -> list[tuple[str, ...]]:
    """Return what each step of two groups worked on first, whatever taught nothing."""
    return [each.scenarios[:2] for each in steps_of(out)]


def started_programs(process: subprocess.Popen[bytes], module: str) -> list[psutil.Process]:
    """Return what a command started of a module, oldest first, without the guardians."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            words: Sequence[str] = each.cmdline()
            found += [each] * (module in " ".join(words) and "reaper" not in " ".join(words))
    return found
