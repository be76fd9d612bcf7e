"""Map the settings of a run to the arguments of TRL's GRPO trainer."""

from pathlib import Path

import torch
from trl import GRPOConfig

from gumshoe.training.launch.sharding import keep_precision, sharding_config
from gumshoe.training.models.lora_model import dtype_of
from gumshoe.training.settings import TrainSettings


def grpo_config(settings: TrainSettings, directory: Path, steps: int) -> GRPOConfig:
    """Return the arguments of a run of `steps` optimizer steps that writes into `directory`."""
    optimizer, rollouts, is_simple = settings.optimizer, settings.rollouts, settings.mode == "simple"
    config = GRPOConfig(
        output_dir=str(directory),
        seed=settings.data.seed,
        per_device_train_batch_size=optimizer.per_device_train_batch_size,
        gradient_accumulation_steps=optimizer.gradient_accumulation_steps,
        num_generations=rollouts.num_generations,
        max_completion_length=rollouts.max_tokens if is_simple else settings.model.max_context,
        mask_truncated_completions=is_simple and rollouts.mask_truncated,  # the other modes mask episodes themselves
        temperature=rollouts.temperature,
        max_steps=steps,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="constant_with_warmup" if optimizer.schedule == "constant" else optimizer.schedule,
        warmup_steps=optimizer.warmup_steps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        beta=optimizer.beta,
        use_bias_correction_kl=True,
        num_iterations=optimizer.num_iterations,
        router_aux_loss_coef=optimizer.router_loss,  # if it is unset, TRL takes the coefficient of the model
        vllm_importance_sampling_mode="token_truncate",
        bf16=dtype_of(settings.model) is torch.bfloat16,
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would hide that the weights are lost
        save_strategy="steps",
        save_steps=settings.output.save_steps,
        report_to=list(settings.output.report_to) or "none",
        project="gumshoe",  # of Trackio
        shuffle_dataset=False,
        ignore_data_skip=not is_simple,  # the schedule alone decides what a step works on
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **((optimizer.algorithm.load().trl_arguments() or {}) if is_simple else {}),
        **sharding_config(settings, optimizer.processes),
    )
    keep_precision(config)
    return config
