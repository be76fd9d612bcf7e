"""The model that learns: a base model's weights, and the adapter on them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError
from gumshoe.training.run_spec import ADAPTER_WEIGHTS, base_model
from gumshoe.training.settings import LoraSettings, ModelSettings, TrainSettings


def load_base(settings: TrainSettings) -> Any:
    """The base model, as it is trained on.

    Raises:
        UsageError: there is none of its name.
    """
    place = find_model(base_model(settings), "config.json")
    # To say that there is none would have the files of a base model that lies there quantized taken for full ones.
    how = {"quantization_config": nf4_config()} if settings.model.quantization == "nf4" else {}
    model: Any = AutoModelForCausalLM.from_pretrained(
        place.name, dtype=dtype_of(settings.model), local_files_only=place.local_files_only, **how
    )
    for module in four_bit_modules(model).values():
        # On a CPU that knows bfloat16, the first rollout would leave them packed in a form that has no gradients.
        module.support_avx512bf16_for_cpu = False
    return model


def four_bit_modules(model: Any) -> dict[str, Any]:
    """Those of a model whose weights are in four bits, of bitsandbytes, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(getattr(module, "weight", None)).__name__ == "Params4bit"
    }


def dtype_of(settings: ModelSettings) -> torch.dtype:
    """Of the base model's weights."""
    on_gpu = torch.cuda.is_available()
    auto = torch.bfloat16 if on_gpu else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(settings.dtype, auto)


def lora_config(settings: LoraSettings) -> LoraConfig:
    """What an adapter is to look like."""
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.target_modules),
        task_type="CAUSAL_LM",
    )


@dataclass(frozen=True, slots=True)
class FullState:
    """A model whose weights are shared among processes, with those of its adapter put together."""

    model: Any
    weights: dict[str, torch.Tensor]

    @classmethod
    def gather(cls, model: Any) -> "FullState":
        """To be called in all processes at once."""
        trained = [each for each in model.parameters() if each.requires_grad]
        with _gathered(trained):
            found = {name: each for name, each in model.state_dict().items() if "lora_" in name}
            weights = {
                name: (each.full_tensor() if isinstance(each, DTensor) else each.detach()).to("cpu", copy=True)
                for name, each in found.items()
            }
        return cls(model, weights)

    def save_pretrained(self, directory: str) -> None:
        """Save the adapter, as the model itself does where it is whole."""
        self.model.save_pretrained(directory, state_dict=self.weights)


def _gathered(parameters: Sequence[torch.nn.Parameter]) -> AbstractContextManager[object]:
    """Has parameters that DeepSpeed shares out whole while the block runs."""
    if not any(hasattr(each, "ds_id") for each in parameters):
        return nullcontext()
    from deepspeed import zero  # type: ignore[import-not-found,unused-ignore]

    gathered: AbstractContextManager[object] = zero.GatheredParameters(list(parameters))
    return gathered


def prepare_for_training(model: Any, settings: LoraSettings) -> None:
    """Have a model's new adapter as it is trained: in float32, and where training is to begin.

    Raises:
        UsageError: it is to begin at an adapter of other weights than this model's.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:  # TRL has those of QLoRA in bfloat16, to which a small step adds nothing
            parameter.data = parameter.data.float()
    if settings.start is not None:
        load_adapter_weights(model, settings.start)


def load_adapter_weights(model: Any, start: Path) -> None:
    """Give a model's new adapter the weights of one that is there.

    Raises:
        UsageError: it has other weights than this model's adapter, such as one of another base model.
    """
    try:
        given = load_file(start / ADAPTER_WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            "adapters.weights-unreadable", f"lora.start: cannot read {start / ADAPTER_WEIGHTS}: {error}"
        ) from None
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    shapes, wanted = ({name: tuple(each.shape) for name, each in weights.items()} for weights in (given, own))
    strange = sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name))
    if strange:
        name = strange[0]
        raise UsageError(
            "adapters.other-shape",
            f"lora.start: {start} does not fit this model: {len(strange):,} weights differ, e.g. {name} is "
            f"{shapes.get(name, 'missing')} there and {wanted.get(name, 'missing')} here",
        )
    set_peft_model_state_dict(model, given)  # which leaves out, in silence, what has no counterpart


def nf4_config() -> Any:
    """QLoRA's weights (https://arxiv.org/abs/2305.14314)."""
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
