"""The lifecycle of a trainer process, for GRPO and warm starts: stop requests, progress, and checkpoints."""

import asyncio
import faulthandler
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gumshoe.errors import UnavailableError
from gumshoe.signals import handle_signals
from gumshoe.training.launch.rendezvous import Result, StopRequestedError, collect_files, run_in_main, share_files
from gumshoe.training.models.lora_model import (
    FullState,
    Weights,
    add_reference_adapter,
    load_adapter_weights,
    prepare_for_training,
)
from gumshoe.training.run_spec import CHECKPOINT, REFERENCE, STALLED, expired_checkpoints, find_checkpoints
from gumshoe.training.settings import TrainSettings

_DUMP = 20  # seconds for writing the file about a run without progress


class StoppableRunner:
    """Run coroutines in one event loop, each to its end or until the process is asked to stop.

    One loop serves the whole run, because judges keep their connections. With `in_thread`, it runs in a thread of its
    own, so that tasks that a coroutine has started go on after its end. Use as a context manager.
    """

    def __init__(self, *, in_thread: bool = False) -> None:
        self.is_stopping = False
        self._runner = asyncio.Runner()
        self._task: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._serve, name="rollouts", daemon=True) if in_thread else None
        self._is_ready, self._is_over = threading.Event(), asyncio.Event()

    def __enter__(self) -> "StoppableRunner":
        if self._thread is None:
            self._runner.__enter__()
        else:
            self._thread.start()
            self._is_ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is None:
            self._runner.close()
        else:
            self._runner.get_loop().call_soon_threadsafe(self._is_over.set)
            self._thread.join()

    def _serve(self) -> None:
        """Run the loop in its thread until the end."""

        async def wait() -> None:
            self._is_ready.set()
            await self._is_over.wait()

        with self._runner as runner:
            runner.run(wait())

    def stop(self) -> None:
        """Cancel the running work, and accept no more."""
        self.is_stopping = True
        if self._task is not None:
            self._runner.get_loop().call_soon_threadsafe(self._task.cancel)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end.

        Raises:
            StopRequestedError: the process was asked to stop.
        """

        async def cancellable() -> Result:
            self._task = asyncio.current_task()
            if self.is_stopping:
                work.close()
                raise asyncio.CancelledError
            return await work

        try:
            return self.finish(cancellable())
        except (asyncio.CancelledError, futures.CancelledError):
            raise StopRequestedError from None
        finally:
            self._task = None

    def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end, even if the process was asked to stop."""
        if self._thread is None:
            return self._runner.run(work)
        return asyncio.run_coroutine_threadsafe(work, self._runner.get_loop()).result()


class Watchdog:
    """Watch a value that changes whenever there is progress. Use as a context manager.

    If `progress` returns the same value for this number of seconds, the result of `describe` and the stacks of all
    threads are written to a file, and the process exits at once with status 75, which means that it can be tried again.
    """

    def __init__(self, seconds: float, progress: Callable[[], object], describe: Callable[[], str], path: Path) -> None:
        self._seconds, self._progress, self._describe, self._path = seconds, progress, describe, path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen, since = self._progress(), time.monotonic()
        while not self._over.wait(min(1.0, self._seconds / 4)):
            now = self._progress()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                self._end()

    def _end(self) -> None:
        error = UnavailableError("training.stalled", f"no progress for {self._seconds:g} seconds; see {self._path}")
        with suppress(OSError):  # nobody reads it, e.g. after a terminal was closed
            os.write(2, f"error: {error.message_with_code}\n".encode())
        last = threading.Timer(_DUMP, os._exit, [UnavailableError.exit_status])
        last.daemon = True
        last.start()  # in case the disk hangs
        try:
            with self._path.open("w", encoding="utf-8") as file:
                file.write(f"No progress for {self._seconds:g} seconds.\n{self._describe()}\n\n")
                file.flush()
                faulthandler.dump_traceback(file)
        finally:
            os._exit(UnavailableError.exit_status)


class Lifecycle:
    """Coordinate a trainer with other processes: agree on stops, and complete checkpoints.

    Attributes:
        trainer: the trainer, after `attach`.
        passes: number of forward and backward passes so far, as progress for the watchdog.
        is_stopping: this process was asked to stop.
    """

    def __init__(self, settings: TrainSettings, directory: Path, on_stop: Callable[[], object] = lambda: None) -> None:
        self._settings, self._directory, self._on_stop = settings, directory, on_stop
        self.trainer: Any = None
        self.passes = 0
        self.is_stopping = False
        self._reference: Weights = {}

    def attach(self, trainer: Any) -> None:
        """Take over a new trainer: quiet, and with its adapter ready to be trained.

        Raises:
            UsageError: training starts from an adapter of another shape.
        """
        self.trainer = trainer
        trainer.create_model_card = lambda *_, **__: None  # each adapter has a card of its own
        trainer.remove_callback(PrinterCallback)
        prepare_for_training(trainer.accelerator.unwrap_model(trainer.model), self._settings.lora)

    def keep_reference(self, checkpoint: Path | None) -> None:
        """Keep the adapter that the run began with as the reference of the KL term, if the settings ask for it.

        A run that continues from a checkpoint finds it there, because `lora.start` may be another one by then.
        """
        weights = None
        if checkpoint is not None and (checkpoint / REFERENCE).exists():
            weights = load_file(checkpoint / REFERENCE)
        elif checkpoint is not None or not self._settings.has_reference_adapter:
            return
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        self._reference = add_reference_adapter(model, weights)

    @property
    def is_main(self) -> bool:
        return bool(self.trainer.accelerator.is_main_process)

    @property
    def is_alone(self) -> bool:
        """True if no other process trains."""
        return bool(self.trainer.accelerator.num_processes == 1)

    @property
    def step(self) -> int:
        """Optimizer steps so far."""
        return int(self.trainer.state.global_step)

    @contextmanager
    def running(self, progress: Callable[[], object], describe: Callable[[], str]) -> Iterator[None]:
        """Handle SIGTERM and watch the progress while the block runs.

        `progress` returns a value that changes whenever training makes progress. `describe` returns a text about the
        state, for a run without progress.
        """
        seconds = self._settings.output.stall_seconds
        watchdog = Watchdog(seconds, lambda: (self.step, self.passes, progress()), describe, self._directory / STALLED)
        with (
            handle_signals(self._stop, signal.SIGTERM),
            watchdog if self.is_main else nullcontext(),
        ):  # the others wait for it
            yield

    def _stop(self, *_: object) -> None:
        self.is_stopping = True
        self._on_stop()

    def should_stop(self) -> bool:
        """Return True if any process was asked to stop. Call it in all processes at once."""
        accelerator = self.trainer.accelerator
        return bool(accelerator.gather(torch.tensor([int(self.is_stopping)], device=accelerator.device)).any())

    def gather_model(self) -> Any:
        """Return the model, or its gathered adapter if weights are sharded. Call it in all processes at once."""
        unwrapped = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return FullState.gather(unwrapped) if self._settings.is_sharded else unwrapped

    def find_checkpoint(self) -> Path | None:
        """Return the newest checkpoint of the first machine, copied to all machines, or None without checkpoints."""
        accelerator = self.trainer.accelerator
        newest = run_in_main(accelerator, lambda: next(reversed(find_checkpoints(self._directory)), None))
        if newest is None:
            return None
        place = self._directory / newest.name
        if not self.is_alone:
            share_files(place, accelerator)
        return place

    def load_weights(self, checkpoint: Path) -> None:
        """Load the adapter of a checkpoint, and nothing else of it."""
        load_adapter_weights(self.trainer.accelerator.unwrap_model(self.trainer.model), checkpoint)

    def finish_checkpoint(self, complete: Callable[[Path], object], limit: int) -> None:
        """Complete the checkpoint of this step, and delete all but the newest `limit`. Call it in all processes.

        `complete` writes the files that complete a checkpoint's directory; it is called in the first process.
        """
        accelerator, place = self.trainer.accelerator, self._directory / f"{CHECKPOINT}{self.step}"
        accelerator.wait_for_everyone()  # each writes its own part
        if not self.is_alone:
            collect_files(place, accelerator)
        if not self.is_main:
            return
        if self._reference:
            save_file(self._reference, place / REFERENCE)
        complete(place)
        for old in expired_checkpoints(find_checkpoints(self._directory), limit):
            shutil.rmtree(old)


class TrainerEvents(Protocol):
    """Events of a trainer that a run handles."""

    def on_start(self) -> None:
        """Handle the start of training."""

    def on_step_start(self) -> None:
        """Handle the start of a step."""

    def on_pass(self) -> None:
        """Handle the end of a pass, other than the last one of a step."""

    def on_step_end(self, control: TrainerControl, *, is_last: bool) -> None:
        """Handle the end of a step. `control` decides if a checkpoint is saved and if training stops."""

    def on_metrics(self, logs: dict[str, float], control: TrainerControl) -> None:
        """Handle the trainer's numbers of a step."""

    def on_checkpoint(self) -> None:
        """Handle a checkpoint that the trainer wrote."""


class EventsCallback(TrainerCallback):
    """Pass a trainer's events on to a run."""

    def __init__(self, run: TrainerEvents) -> None:
        self._run = run

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, lr_scheduler: Any = None, **__: Any
    ) -> None:
        state.save_steps = int(args.save_steps)  # and not those of the checkpoint
        set_learning_rates(lr_scheduler, args.get_warmup_steps(state.max_steps))
        self._run.on_start()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._run.on_step_start()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self._run.on_pass()

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        self._run.on_step_end(control, is_last=state.global_step == state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if logs and "loss" in logs:
            self._run.on_metrics(logs, control)

    def on_save(self, *_: Any, **__: Any) -> None:
        self._run.on_checkpoint()


def set_learning_rates(scheduler: Any, warmup: int) -> None:
    """Let the first step of a warmup learn too, and set the rates of the next step by the schedule.

    `transformers` begins a warmup with the rate 0, and a resumed run with the rate of the checkpoint: if the run is
    made longer, that is the end of the shorter schedule, often 0.
    """
    inner = getattr(scheduler, "scheduler", scheduler)  # of an optimizer that is sharded
    inner.lr_lambdas = [partial(_warm_up, each, warmup) for each in inner.lr_lambdas]
    rates = [base * factor(inner.last_epoch) for base, factor in zip(inner.base_lrs, inner.lr_lambdas, strict=True)]
    inner._last_lr = rates  # which is logged
    for group, rate in zip(inner.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _warm_up(factor: Callable[[int], float], warmup: int, step: int) -> float:
    """Return the share of the learning rate in a step, numbered from 0, of a schedule with a linear warmup."""
    return (step + 1) / (warmup + 1) if step < warmup else factor(step)


RandomState = tuple[Any, Any, Any, list[torch.Tensor]]


def random_state() -> RandomState:
    """Return the state of all random generators."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.cuda.get_rng_state_all()


def set_random_state(state: RandomState) -> None:
    """Restore the state of all random generators."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
    torch.cuda.set_rng_state_all(state[3])
