"""The model that learns: a base model's weights, and the adapter on them."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError
from gumshoe.training.settings import LoraSettings, ModelSettings, TrainSettings
from gumshoe.training.spec import base_model

_WEIGHTS = "adapter_model.safetensors"


def load_base(settings: TrainSettings) -> Any:
    """The base model, as it is trained on.

    Raises:
        UsageError: there is none of its name.
    """
    place = find_model(base_model(settings), "config.json")
    return AutoModelForCausalLM.from_pretrained(
        place.name,
        dtype=dtype_of(settings.model),
        local_files_only=place.local_files_only,
        quantization_config=_four_bits() if settings.model.quantization == "nf4" else None,
    )


def dtype_of(settings: ModelSettings) -> torch.dtype:
    """Of the base model's weights."""
    on_gpu = torch.cuda.is_available()
    auto = torch.bfloat16 if on_gpu else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(settings.dtype, auto)


def lora_of(settings: LoraSettings) -> LoraConfig:
    """What an adapter is to look like."""
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.target_modules),
        task_type="CAUSAL_LM",
    )


def begin_at(model: Any, start: Path) -> None:
    """Give a model's new adapter the weights of one that is there.

    Raises:
        UsageError: it has other weights than this model's adapter, such as one of another base model.
    """
    try:
        found: Any = set_peft_model_state_dict(model, load_file(start / _WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:  # the last where their sizes differ
        raise UsageError(f"lora.start: {start / _WEIGHTS} cannot be begun at ({error})") from None
    strange = [*found.unexpected_keys, *(name for name in found.missing_keys if "lora_" in name)]
    if strange:
        raise UsageError(
            f"lora.start: {start} is the adapter of another model; {len(strange):,} of its weights have no counterpart "
            f"here, or ours none there, such as {strange[0]}"
        )


def _four_bits() -> Any:
    """QLoRA's weights (https://arxiv.org/abs/2305.14314)."""
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
