"""One warm start in the trainer's process: TRL's `SFTTrainer` on tokenized demonstrations.

Invariants: a checkpoint counts only if its `metadata.json` exists, which is written last. Which demonstrations a step
uses depends only on the seed and the step, never on a sampler's state.
"""

import io
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerControl, TrainerState
from trl import SFTConfig, SFTTrainer

from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy_names import load_tokenizer
from gumshoe.terminal import Advance, err, progress
from gumshoe.training.finite_check import check_is_finite
from gumshoe.training.launch.lifecycle import EventsCallback, Lifecycle
from gumshoe.training.launch.rendezvous import join_run
from gumshoe.training.launch.sharding import keep_precision, sharding_config
from gumshoe.training.launch.trainer_process import run_with_exit_status
from gumshoe.training.models.base_model import CONFIG
from gumshoe.training.models.lora_model import (
    dtype_of,
    freeze_lower_layers,
    leave_casts_to_autocast,
    load_base,
    lora_config,
)
from gumshoe.training.models.model_files import copy_model_files, fetch_model
from gumshoe.training.run_directory import how_to_continue
from gumshoe.training.run_spec import METADATA, base_model, find_checkpoints, step_of
from gumshoe.training.settings import TrainSettings
from gumshoe.training.sft.batch_plan import BatchPlan, order_demonstrations
from gumshoe.training.sft.demonstrations import Demonstration, read_demonstrations
from gumshoe.training.sft.packing import EpisodeCollator, ScoredTokens, can_pack, use_packed_rows
from gumshoe.training.sft.warm_start import (
    DEMONSTRATIONS,
    LEARNED,
    TRAINED,
    WarmStartSpec,
)

_WARMUP = 0.05  # of the steps
_STATE = "trainer_state.json"


class SftRun:
    """Train an adapter or all weights on demonstrations, from the base model or the last checkpoint."""

    def __init__(self, spec: WarmStartSpec, place: Path) -> None:
        self._settings, self._place = spec.settings, place
        self._is_full = spec.settings.warm_start.weights == "full"
        self._demonstrations = read_demonstrations(place / DEMONSTRATIONS)
        self._plan = BatchPlan.of(spec.settings, len(self._demonstrations))
        self._lifecycle = Lifecycle(spec.settings, place)
        self._advance: Advance = lambda *_, **__: None

    def train(self) -> None:
        """Train, from the last checkpoint if there is one, and save the adapter or the model.

        Raises:
            UsageError: the model cannot be loaded, has too few layers, or does not fit the adapter to start from.
            UnavailableError: the process was asked to stop; the progress is saved in a checkpoint.
        """
        lifecycle, steps = self._lifecycle, self._plan.steps
        checkpoint = next(reversed(find_checkpoints(self._place)), None)
        first = 0 if checkpoint is None else step_of(checkpoint)
        lifecycle.attach(self._make_trainer())
        trainer = lifecycle.trainer
        shown = progress("Training", total=steps) if lifecycle.is_main else nullcontext(self._advance)
        watched = lifecycle.running(lambda: None, lambda: f"After step {lifecycle.step}")
        with watched, shown as self._advance:
            self._advance(first)
            if checkpoint is None:
                trainer.train()
            elif first < steps:
                trainer.train(resume_from_checkpoint=str(checkpoint))
            else:
                self._load_weights(checkpoint)
                trainer.state = TrainerState.load_from_json(str(checkpoint / _STATE))
        if lifecycle.step < steps:
            raise UnavailableError(
                "training.stopped", f"stopped after step {lifecycle.step} of {steps}; {how_to_continue()}"
            )
        model = lifecycle.gather_model()
        if lifecycle.is_main:
            self._save(model)
        trainer.accelerator.wait_for_everyone()

    def _make_trainer(self) -> Any:
        settings = self._settings
        # Small updates would be lost in weights of 16 bits.
        model = load_base(settings, torch.float32 if self._is_full else None)
        if settings.warm_start.layers is not None:
            freeze_lower_layers(model, settings.warm_start.layers)
        ScoredTokens(model)
        trainer = SFTTrainer(
            model=model,
            args=sft_config(settings, self._place, self._plan),
            data_collator=self._make_collator(model),
            train_dataset=training_rows(self._demonstrations, self._plan, settings.data.seed),
            processing_class=load_tokenizer(base_model(settings)),
            peft_config=None if self._is_full else lora_config(settings.lora, model),
            callbacks=[EventsCallback(self)],
        )
        if trainer.args.bf16 and not settings.is_sharded:
            leave_casts_to_autocast(trainer.model)
        return trainer

    def _make_collator(self, model: Any) -> EpisodeCollator:
        """Return what makes the batches, and prepare the model for packed rows if it can read them."""
        packs = can_pack(model)
        if packs:
            use_packed_rows(model)
        elif int(os.environ.get("RANK", "0")) == 0:
            err.print(f"Episodes are padded to equal length: {type(model).__name__} does not support packing.")
        # The loss of a router is a mean over all tokens of a row, so each token must be there as often as it is read.
        return EpisodeCollator(packs, shares=not self._settings.optimizer.router_loss)

    def _load_weights(self, checkpoint: Path) -> None:
        if self._is_full:
            self._lifecycle.trainer._load_from_checkpoint(str(checkpoint))
        else:
            self._lifecycle.load_weights(checkpoint)

    def on_start(self) -> None:
        """Do nothing: a warm start has no trackers."""

    def on_step_start(self) -> None:
        """Do nothing: a warm start stops at the end of a step."""

    def on_pass(self) -> None:
        """Count a pass."""
        self._lifecycle.passes += 1

    def on_step_end(self, control: TrainerControl, *, is_last: bool) -> None:
        """Save and stop if any process was asked to stop."""
        should_stop = self._lifecycle.should_stop()
        control.should_training_stop |= should_stop
        control.should_save |= should_stop or is_last

    def on_metrics(self, logs: dict[str, float], control: TrainerControl) -> None:  # noqa: ARG002
        """Show the loss of a step on the progress bar.

        Raises:
            GumshoeError: the step has destroyed the weights.
        """
        check_is_finite(self._lifecycle.step, logs)
        self._advance(1, note=f"loss {logs['loss']:.3f}")

    def on_checkpoint(self) -> None:
        """Complete the checkpoint that the trainer wrote, and delete older ones."""
        step = self._lifecycle.step

        def complete(place: Path) -> None:
            write_atomically(place / METADATA, io.BytesIO(json.dumps({"step": step}).encode()))

        self._lifecycle.finish_checkpoint(complete, 1)
        if self._lifecycle.is_main and not err.is_terminal:
            err.print(f"Step {step}/{self._plan.steps} | Loss {self._losses[-1]:.3f}", soft_wrap=True)

    @property
    def _losses(self) -> list[float]:
        """Loss of each step, [steps], in nats per token."""
        return [each["loss"] for each in self._lifecycle.trainer.state.log_history if "loss" in each]

    def _save(self, model: Any) -> None:
        place = self._place / TRAINED
        shutil.rmtree(place, ignore_errors=True)
        if self._is_full:
            self._save_model(model, place)
        else:
            model.save_pretrained(str(place))
            self._lifecycle.trainer.processing_class.save_pretrained(str(place))
        last = self._losses[-max(1, self._plan.steps // 10) :]
        summary = {"steps": self._plan.steps, "loss": sum(last) / len(last)}
        write_atomically(self._place / LEARNED, io.BytesIO(json.dumps(summary).encode()))

    def _save_model(self, model: Any, place: Path) -> None:
        dtype = dtype_of(self._settings.model)
        model.to(dtype).save_pretrained(str(place))
        for each in (CONFIG, "generation_config.json"):  # the trainer has changed both
            (place / each).unlink(missing_ok=True)
        copy_model_files(fetch_model(self._settings.model.name), place, str(dtype).removeprefix("torch."))


def sft_config(settings: TrainSettings, directory: Path, plan: BatchPlan) -> SFTConfig:
    """Return the arguments of TRL's SFT trainer for a warm start that writes into `directory`."""
    optimizer = settings.optimizer
    config = SFTConfig(
        output_dir=str(directory),
        router_aux_loss_coef=optimizer.router_loss,
        seed=settings.data.seed,
        per_device_train_batch_size=plan.episodes,
        gradient_accumulation_steps=plan.passes,
        num_train_epochs=1,  # the rows already contain all epochs
        learning_rate=settings.warm_start.peak_learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=int(_WARMUP * plan.steps),
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        max_length=None,  # no truncation: episodes that are too long were left out before
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
    keep_precision(config)
    return config


def training_rows(demonstrations: Sequence[Demonstration], plan: BatchPlan, seed: int) -> Dataset:
    """Return the demonstrations in the order of training, from the first step to the last."""
    columns = {"input_ids": [each.ids for each in demonstrations], "labels": [each.labels for each in demonstrations]}
    order = order_demonstrations([len(each.ids) for each in demonstrations], plan.batch, plan.steps, seed)
    return Dataset.from_dict(columns).select(order)


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Train with the specification in a file."""
    path = Path(arguments[0])
    spec = WarmStartSpec.model_validate_json(path.read_text(encoding="utf-8"))

    def train() -> None:
        with join_run(spec.settings.output.stall_seconds, ""):
            SftRun(spec, path.parent).train()

    run_with_exit_status(train, path.parent)


if __name__ == "__main__":
    main()
