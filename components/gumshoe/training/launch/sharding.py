"""How the trainers of a run share its work: what `transformers` and accelerate are told of it."""

from datetime import timedelta
from typing import Any

import torch

from gumshoe.training.models.lora_model import dtype_of
from gumshoe.training.settings import TrainSettings

_WAIT = timedelta(days=7)  # of processes for one another: the watchdog says when it is too long

_FSDP2 = {  # https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
    "version": 2,
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",  # each of the model's own layers
    "reshard_after_forward": True,
    "state_dict_type": "FULL_STATE_DICT",  # a checkpoint's files are the same as those of one process
    # The model itself computes activations anew. Under accelerate's way, which gathers a layer's weights once less,
    # `peft` 0.21 finds no adapter to save.
    "activation_checkpointing": False,
}


def sharding_config(settings: TrainSettings, processes: int) -> dict[str, Any]:
    """What of `transformers.TrainingArguments` says how so many processes share the work.

    On a CPU, they are connected here, by gloo.
    """
    on_cpu = not torch.cuda.is_available()
    if on_cpu and processes > 1:  # or accelerate does, with a time limit of its own
        torch.distributed.init_process_group("gloo", timeout=_WAIT)
        # The trainer loads what it saved onto its device, of which accelerate says `cpu:0`, and torch knows only `cpu`.
        torch.serialization.register_package(0, lambda _: None, _on_numbered_cpu)
    how: dict[str, Any] = {"gradient_checkpointing": settings.model.gradient_checkpointing}
    if settings.is_sharded and settings.optimizer.distribution == "fsdp2":
        how |= {"fsdp": True, "fsdp_config": dict(_FSDP2)}
    elif settings.is_sharded:
        how["deepspeed"] = _zero3(in_16_bits=dtype_of(settings.model) is torch.bfloat16)
    return {
        "ddp_backend": "gloo" if on_cpu and processes > 1 else None,
        "ddp_timeout": int(_WAIT.total_seconds()),
        "ddp_find_unused_parameters": False,
        "use_cpu": on_cpu,
        **how,
    }


def _on_numbered_cpu(storage: Any, location: str) -> Any:
    return storage if location.startswith("cpu:") else None


def _zero3(*, in_16_bits: bool) -> dict[str, Any]:
    """https://www.deepspeed.ai/docs/config-json/"""
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
        "zero_allow_untested_optimizer": True,  # AdamW of torch, as without DeepSpeed
        "zero_force_ds_cpu_optimizer": False,
    }
