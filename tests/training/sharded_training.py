"""Run one of several trainers on given episodes, with the arguments of `main`.

It trains five steps: the first and the last have a group of another policy, the second has no groups, and the third
only those of the first half. It resumes from checkpoint FIRST if that is not 0. OUT contains the model, and gets the
adapter that is published before each step, and at the end (`published-N`).
"""

import os
import sys
from pathlib import Path
from typing import Any

from gumshoe.rollouts.trajectory import Span
from gumshoe.training.algorithms.lookup import find_algorithm
from gumshoe.training.grpo.rollout_collector import RolloutBatch
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import LoraSettings
from gumshoe.training.settings_sources import resolve
from tests.training.test_trainer import GENERATIONS, LENGTH, step, tokenizer

STEPS, EMPTY, HALF, OFF_POLICY = 5, 1, 2, (0, 4)
GROUPS = 4


def settings_of(distribution: str, processes: int, *, recomputes: bool) -> TrainSettings:
    return resolve(
        None,
        {
            "optimizer.distribution": distribution,
            "optimizer.processes": processes,
            "model.gradient_checkpointing": recomputes,
            "lora.rank": 4,
            "lora.target_modules": ["q_proj", "v_proj"],
            "model.name": "tiny",
        },
    ).settings


def roll_out(number: int) -> RolloutBatch:
    found = step(0 if number == EMPTY else 2)
    if number != HALF:
        found.groups += step(len(found.groups)).groups
    found.wanted, found.scored = GROUPS, list(found.groups)
    for group in found.groups:
        sampled = -100.0 if number in OFF_POLICY and group is found.groups[0] else -5.6  # of random weights
        for trajectory in group.trajectories:
            for place, each in enumerate(trajectory.spans):
                if each.origin == "sampled":
                    logprobs = (sampled,) * len(each.ids)
                    trajectory.spans[place] = Span("sampled", each.text, each.ids, logprobs)
    return found


def train(out: Path, settings: TrainSettings, first: int, passes: int, *, in_16_bits: bool) -> None:
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig

    from gumshoe.training.grpo.trainer import AgentTrainer, Hooks
    from gumshoe.training.launch.rendezvous import run_in_main
    from gumshoe.training.launch.sharding import keep_precision, sharding_config
    from gumshoe.training.models.lora_model import (
        FullState,
        add_reference_adapter,
        lora_config,
        prepare_for_training,
    )

    processes = settings.optimizer.processes

    def publish() -> None:
        unwrapped = trainer.accelerator.unwrap_model(trainer.model)
        model = FullState.gather(unwrapped) if settings.is_sharded else unwrapped
        place = str(out / f"published-{trainer.state.global_step}")
        run_in_main(trainer.accelerator, lambda: model.save_pretrained(place))

    class PublishAtTheEnd(TrainerCallback):
        def on_train_end(self, *_: Any, **__: Any) -> None:
            publish()

    shared = sharding_config(settings, processes)
    if "deepspeed" in shared:  # accelerate silently ignores it on a CPU
        shared["use_cpu"] = False
    arguments = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=GROUPS * GENERATIONS // processes // passes,
        gradient_accumulation_steps=passes,
        num_generations=GENERATIONS,
        max_completion_length=LENGTH,
        max_steps=STEPS,
        learning_rate=0.01,
        beta=0.1,
        lr_scheduler_type="constant",
        vllm_importance_sampling_mode="token_truncate",
        bf16=in_16_bits,
        report_to="none",
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=1,
        logging_steps=1,
        ignore_data_skip=True,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        **shared,
    )
    keep_precision(arguments)
    if "fsdp" in shared:  # the same
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
    elif "deepspeed" in shared:
        ranks = dict.fromkeys(("process_index", "local_process_index"), int(os.environ["RANK"]))
        PartialState._shared_state |= {"num_processes": processes, **ranks}
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    trainer: Any = AgentTrainer(
        Hooks(roll_out, find_algorithm("dapo", {}), publish, most_difference=20.0),
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(group) for group in range(GROUPS)]}),
        processing_class=tokenizer(),
        peft_config=lora_config(settings.lora, model),
        callbacks=[PublishAtTheEnd()],
    )
    if settings.is_sharded:
        assert trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    unwrapped = trainer.accelerator.unwrap_model(trainer.model)
    prepare_for_training(unwrapped, LoraSettings(start=out / "start"))
    add_reference_adapter(unwrapped)
    trainer.train(resume_from_checkpoint=str(out / f"checkpoint-{first}") if first else None)
    assert trainer._checks_in_loss != trainer.is_deepspeed_enabled, "the others need no pass before the loss"
    trainer.accelerator.wait_for_everyone()


def main(out: str, distribution: str, processes: str, first: str, recomputes: str, passes: str, precision: str) -> None:
    from gumshoe.training.launch.rendezvous import join_run

    settings = settings_of(distribution, int(processes), recomputes=recomputes == "recomputes")
    with join_run(120, ""):
        train(Path(out), settings, int(first), int(passes), in_16_bits=precision == "bf16")


if __name__ == "__main__":
    main(*sys.argv[1:])
