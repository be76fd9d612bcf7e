"""Map the distribution of a run over its trainers to arguments of `transformers` and accelerate."""

import warnings
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from gumshoe.training.models.lora_model import dtype_of
from gumshoe.training.settings import TrainSettings

_WAIT = timedelta(days=7)  # effectively no timeout between processes: the watchdog ends a run that hangs

_FSDP2 = {  # https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
    "version": 2,
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",  # wrap each layer of the model
    "reshard_after_forward": True,
    "state_dict_type": "FULL_STATE_DICT",  # a checkpoint's files are the same as those of one process
    # The model recomputes activations itself. With accelerate's checkpointing, which gathers weights one time less per
    # layer, `peft` 0.21 finds no adapter to save.
    "activation_checkpointing": False,
}


def sharding_config(settings: TrainSettings, processes: int) -> dict[str, Any]:
    """Return the `transformers.TrainingArguments` that distribute the work over processes.

    On a CPU, this also connects the processes, with gloo.
    """
    on_cpu = not torch.cuda.is_available()
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")  # the only name that transformers knows
    if on_cpu and processes > 1:  # or else accelerate does it, with its own timeout
        torch.distributed.init_process_group("gloo", timeout=_WAIT)
        # The trainer loads its files onto the device `cpu:0` of accelerate, but torch knows only `cpu`.
        torch.serialization.register_package(0, lambda _: None, _on_numbered_cpu)
    arguments: dict[str, Any] = {"gradient_checkpointing": settings.model.recomputes}
    if settings.is_sharded and settings.optimizer.distribution == "fsdp2":
        arguments |= {"fsdp": True, "fsdp_config": dict(_FSDP2)}
    elif settings.is_sharded:
        arguments["deepspeed"] = _zero3(in_16_bits=dtype_of(settings.model) is torch.bfloat16)
    return {
        "ddp_backend": "gloo" if on_cpu and processes > 1 else None,
        "ddp_timeout": int(_WAIT.total_seconds()),
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,  # they are constants, and processes may call the model differently often
        "use_cpu": on_cpu,
        **arguments,
    }


def keep_precision(arguments: TrainingArguments) -> None:
    """Make FSDP2 add up gradients in 32 bits, and leave outputs as the model computes them.

    accelerate would round both to 16 bits, the log-probabilities too. Call it before the trainer is made.
    """
    plugin = arguments.fsdp_plugin_args
    if plugin is not None and arguments.bf16:
        plugin["mixed_precision_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=None
        )


def _on_numbered_cpu(storage: Any, location: str) -> Any:
    return storage if location.startswith("cpu:") else None


def _zero3(*, in_16_bits: bool) -> dict[str, Any]:
    """Return the configuration of DeepSpeed (https://www.deepspeed.ai/docs/config-json/)."""
    return {
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "bf16": {"enabled": in_16_bits},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,  # AdamW of torch, the same as without DeepSpeed
        "zero_force_ds_cpu_optimizer": False,
    }
