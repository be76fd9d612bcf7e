"""A warm start in the trainer's process: TRL's `SFTTrainer` on demonstrations that are tokens already.

What always holds: a checkpoint counts only when its `metadata.json` is there, which is written last; and which
demonstrations a step learns from depends on the seed and the step alone, never on a sampler's state.
"""

import io
import json
import math
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import SFTConfig, SFTTrainer

from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.terminal import Advance, err, progress
from gumshoe.training.launch.rendezvous import together
from gumshoe.training.launch.sharding import sharding_config
from gumshoe.training.launch.trainer_process import on_signal, run_with_exit_status
from gumshoe.training.launch.watchdog import Watchdog
from gumshoe.training.models.lora_model import (
    FullState,
    dtype_of,
    load_adapter_weights,
    load_base,
    lora_config,
    prepare_for_training,
)
from gumshoe.training.run_spec import CHECKPOINT, METADATA, STALLED, base_model, checkpoints, step_of
from gumshoe.training.sft.demonstrations import Demonstration, read_demonstrations
from gumshoe.training.sft.warm_start import ADAPTER, DEMONSTRATIONS, LEARNED, BatchPlan, WarmStartSpec, order_of

_WARMUP = 0.05  # of the steps
_STATE = "trainer_state.json"


class SftRun:
    """One warm start, from its demonstrations or its last checkpoint to the adapter."""

    def __init__(self, spec: WarmStartSpec, place: Path) -> None:
        self._settings, self._place = spec.settings, place
        self._demonstrations = read_demonstrations(place / DEMONSTRATIONS)
        self._plan = BatchPlan.of(spec.settings, len(self._demonstrations))
        self._passes = 0
        self._stopping = False
        self._advance: Advance = lambda *_, **__: None

    def learn(self) -> None:
        """Train, from the last checkpoint where there is one, and save the adapter.

        Raises:
            UsageError: the model cannot be had, or the adapter to begin at is of another.
            UnavailableError: it was asked to end; what was learned is in a checkpoint.
        """
        steps = self._plan.steps
        checkpoint = next(reversed(checkpoints(self._place)), None)
        begun_at = 0 if checkpoint is None else step_of(checkpoint)
        trainer = self._trainer = self._made()
        stalls = self._settings.output.stall_seconds
        watchdog = Watchdog(stalls, self._going_on, lambda: f"After step {self._step}", self._place / STALLED)
        watched = watchdog if self._is_main else nullcontext()  # the others wait for it
        shown = progress("Learning", total=steps) if self._is_main else nullcontext(self._advance)
        with on_signal(signal.SIGTERM, self._stop), watched, shown as self._advance:
            self._advance(begun_at)
            if checkpoint is None:
                trainer.train()
            elif begun_at < steps:
                trainer.train(resume_from_checkpoint=str(checkpoint))
            else:
                load_adapter_weights(trainer.accelerator.unwrap_model(trainer.model), checkpoint)
                trainer.state = TrainerState.load_from_json(str(checkpoint / _STATE))
        if self._step < steps:
            raise UnavailableError(
                "training.stopped", f"stopped after step {self._step} of {steps}; continue with --resume"
            )
        unwrapped = trainer.accelerator.unwrap_model(trainer.model)
        learned = FullState.gather(unwrapped) if self._settings.is_sharded else unwrapped
        if self._is_main:
            self._save(learned)
        trainer.accelerator.wait_for_everyone()

    @property
    def _is_main(self) -> bool:
        return bool(self._trainer.accelerator.is_main_process)

    @property
    def _step(self) -> int:
        return int(self._trainer.state.global_step)

    def _made(self) -> Any:
        settings, plan = self._settings, self._plan
        optimizer = settings.optimizer
        arguments = SFTConfig(
            output_dir=str(self._place),
            seed=settings.data.seed,
            per_device_train_batch_size=plan.episodes,
            gradient_accumulation_steps=plan.passes,
            num_train_epochs=1,  # of rows that have all epochs
            learning_rate=settings.warm_start.learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=math.ceil(_WARMUP * plan.steps),
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.max_grad_norm,
            max_length=None,  # nothing is cut: what is too long was left out, and counted
            packing=False,
            train_sampling_strategy="sequential",
            bf16=dtype_of(settings.model) is torch.bfloat16,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="steps",
            save_steps=settings.output.save_steps,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **sharding_config(settings, plan.processes),
        )
        trainer = SFTTrainer(
            model=load_base(settings),
            args=arguments,
            train_dataset=to_samples(self._demonstrations, plan, settings.data.seed),
            processing_class=load_tokenizer(base_model(settings)),
            peft_config=lora_config(settings.lora),
            callbacks=[_SftCallback(self)],
        )
        trainer.remove_callback(PrinterCallback)
        prepare_for_training(trainer.accelerator.unwrap_model(trainer.model), settings.lora)
        return trainer

    def _stop(self, *_: object) -> None:
        """Called when the process is to end: after the step that it is in."""
        self._stopping = True

    def _going_on(self) -> object:
        """Something that changes as long as there is progress."""
        return self._step, self._passes

    def passed(self) -> None:
        """Called after each pass."""
        self._passes += 1

    def is_to_stop(self) -> bool:
        """Whether any of the processes was asked to end."""
        accelerator = self._trainer.accelerator
        asked = torch.tensor([int(self._stopping)], device=accelerator.device)
        return bool(accelerator.gather(asked).any())

    def stepped(self, loss: float) -> None:
        """Called with each step's loss."""
        self._advance(1, note=f"loss {loss:.3f}")

    def checkpointed(self) -> None:
        """Called when a checkpoint is written: it counts from here on, and those before it go."""
        self._trainer.accelerator.wait_for_everyone()  # each writes its own part
        if not self._is_main:
            return
        before, step = checkpoints(self._place), self._step
        noted = self._place / f"{CHECKPOINT}{step}" / METADATA
        write_atomically(noted, io.BytesIO(json.dumps({"step": step}).encode()))
        for old in before:
            if step_of(old) != step:
                shutil.rmtree(old)
        if not err.is_terminal:
            err.print(f"Step {step}/{self._plan.steps} | Loss {self._losses[-1]:.3f}", soft_wrap=True)

    @property
    def _losses(self) -> list[float]:
        """[steps]: in nats a token."""
        return [each["loss"] for each in self._trainer.state.log_history if "loss" in each]

    def _save(self, learned: Any) -> None:
        place = self._place / ADAPTER
        shutil.rmtree(place, ignore_errors=True)
        learned.save_pretrained(str(place))
        self._trainer.processing_class.save_pretrained(str(place))
        last = self._losses[-max(1, self._plan.steps // 10) :]
        told = {"steps": self._plan.steps, "loss": sum(last) / len(last)}
        write_atomically(self._place / LEARNED, io.BytesIO(json.dumps(told).encode()))


def to_samples(demonstrations: Sequence[Demonstration], plan: BatchPlan, seed: int) -> Dataset:
    """The demonstrations as the trainer goes through them, from the first step to the last."""
    columns = {"input_ids": [each.ids for each in demonstrations], "labels": [each.labels for each in demonstrations]}
    order = order_of([len(each.ids) for each in demonstrations], plan.batch, plan.steps, seed)
    return Dataset.from_dict(columns).select(order)


class _SftCallback(TrainerCallback):
    """Tells the warm start what the trainer does."""

    def __init__(self, warm_start: SftRun) -> None:
        self._warm_start = warm_start

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        state.save_steps = int(args.save_steps)  # and not those of the checkpoint

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self._warm_start.passed()

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        is_to_stop = self._warm_start.is_to_stop()
        control.should_training_stop |= is_to_stop
        control.should_save |= is_to_stop or state.global_step == state.max_steps

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if logs and "loss" in logs:
            self._warm_start.stepped(logs["loss"])

    def on_save(self, *_: Any, **__: Any) -> None:
        self._warm_start.checkpointed()


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Carry out the specification in a file."""
    path = Path(arguments[0])
    spec = WarmStartSpec.model_validate_json(path.read_text(encoding="utf-8"))

    def learn() -> None:
        with together(spec.settings.output.stall_seconds, ""):
            SftRun(spec, path.parent).learn()

    run_with_exit_status(learn, path.parent)


if __name__ == "__main__":
    main()
