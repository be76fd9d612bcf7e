"""The model that learns: a base model's weights, and the adapter on them."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
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
        given = load_file(start / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"lora.start: {start / _WEIGHTS} cannot be read ({error})") from None
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    shapes, wanted = ({name: tuple(each.shape) for name, each in weights.items()} for weights in (given, own))
    strange = sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name))
    if strange:
        name = strange[0]
        raise UsageError(
            f"lora.start: {start} is the adapter of another model, whose weights differ in {len(strange):,} places: "
            f"{name} is {shapes.get(name, 'missing')} there and {wanted.get(name, 'missing')} here"
        )
    set_peft_model_state_dict(model, given)  # which leaves out, in silence, what has no counterpart


def _four_bits() -> Any:
    """QLoRA's weights (https://arxiv.org/abs/2305.14314)."""
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
