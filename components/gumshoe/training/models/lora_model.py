"""Load the base model for training, and its LoRA adapter."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError
from gumshoe.inference.generation import use_flash_attention
from gumshoe.training.models.target_modules import lora_targets, upper_layers
from gumshoe.training.run_spec import ADAPTER_WEIGHTS, base_model
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import LoraSettings, ModelSettings

_TRAINED, _REFERENCE = "default", "ref"  # names of adapters, as TRL expects them

Weights: TypeAlias = dict[str, torch.Tensor]
"""Weights of an adapter, by their names in its file."""


def load_base(settings: TrainSettings, dtype: torch.dtype | None = None) -> Any:
    """Load the base model for training, with weights of the dtype of the settings or of another one.

    Raises:
        UsageError: the model does not exist, or a router loss is set and the model has none.
    """
    place = find_model(base_model(settings), "config.json")
    if torch.cuda.is_available():  # quantized weights are loaded onto the current device: GPU 0, unless it is set
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    use_flash_attention()
    # Pass no quantization_config for "none": None would make transformers read quantized files as full weights.
    quantized = {"quantization_config": nf4_config()} if settings.model.quantization == "nf4" else {}
    model: Any = AutoModelForCausalLM.from_pretrained(
        place.name, dtype=dtype or dtype_of(settings.model), **place.options, **quantized
    )
    shape, router_loss = model.config.get_text_config(), settings.optimizer.router_loss
    if hasattr(shape, "output_router_logits"):
        shape.output_router_logits = router_loss > 0
    elif router_loss:
        raise UsageError(
            "training.no-router-loss",
            f"optimizer.router_loss is {router_loss:g}, but {settings.model.name} has no experts with such "
            "a loss; set it to 0",
        )
    for module in find_4bit_modules(model).values():
        # On a CPU with bfloat16, the first rollout would repack the weights into a format without gradients.
        module.support_avx512bf16_for_cpu = False
    return model


def freeze_lower_layers(model: Any, layers: int) -> None:
    """Leave only the upper layers of a model and its final norm trainable.

    Nothing is computed for the other layers in the backward pass.

    Raises:
        UsageError: the model has fewer layers, or none that can be told apart.
    """
    trained = upper_layers(model, layers, "warm_start.layers")
    decoder = model.get_decoder()
    model.requires_grad_(False)
    for each in (
        *(decoder.layers[number] for number in trained),
        *([decoder.norm] if hasattr(decoder, "norm") else []),
    ):
        each.requires_grad_(True)


def find_4bit_modules(model: Any) -> dict[str, Any]:
    """Return the modules of a model whose weights are quantized to 4 bits by bitsandbytes, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(getattr(module, "weight", None)).__name__ == "Params4bit"
    }


def dtype_of(settings: ModelSettings) -> torch.dtype:
    """Return the dtype of the base model's weights."""
    on_gpu = torch.cuda.is_available()
    auto = torch.bfloat16 if on_gpu else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(settings.dtype, auto)


def lora_config(settings: LoraSettings, model: Any) -> LoraConfig:
    """Return the LoRA configuration of `peft` for the settings and a model without an adapter.

    Raises:
        UsageError: a target does not exist in the model.
    """
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        task_type="CAUSAL_LM",
        **lora_targets(model, settings),
    )


@dataclass(frozen=True, slots=True)
class FullState:
    """A model with sharded weights, together with the gathered weights of its adapter."""

    model: Any
    weights: dict[str, torch.Tensor]

    @classmethod
    def gather(cls, model: Any) -> "FullState":
        """Gather the adapter's weights from all processes. Call it in all of them at once."""
        trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        with _gather_parameters([*trained.values()]):
            weights = {
                name: (each.full_tensor() if isinstance(each, DTensor) else each).detach().to("cpu", copy=True)
                for name, each in trained.items()
            }
        return cls(model, weights)

    def save_pretrained(self, directory: str) -> None:
        """Save the adapter, as a model without sharding does."""
        self.model.save_pretrained(directory, state_dict=self.weights)


def _gather_parameters(parameters: Sequence[torch.nn.Parameter]) -> AbstractContextManager[object]:
    """Gather parameters that DeepSpeed shards while the block runs."""
    if not any(hasattr(each, "ds_id") for each in parameters):
        return nullcontext()
    from deepspeed import zero  # type: ignore[import-not-found,unused-ignore]

    gathered: AbstractContextManager[object] = zero.GatheredParameters(list(parameters))
    return gathered


def prepare_for_training(model: Any, settings: LoraSettings) -> None:
    """Prepare a model's new adapter for training: in float32, with the weights of `lora.start` if it is set.

    Raises:
        UsageError: the adapter to start from does not fit the model.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:  # TRL uses bfloat16 for QLoRA, which rounds small updates away
            parameter.data = parameter.data.float()
    if settings.start is not None:
        load_adapter_weights(model, settings.start)


def leave_casts_to_autocast(model: Any) -> None:
    """Let autocast alone cast the inputs of adapters: `peft` would cast them to 32 bits before, for nothing."""
    layers: list[Any] = [each for each in model.modules() if isinstance(each, BaseTunerLayer)]
    for layer in layers:
        layer.cast_input_dtype_enabled = False


def reads_reference(model: torch.nn.Module) -> bool:
    """Return True if a model works as the reference of the KL term now: with that adapter, or with none."""
    adapted = next((each for each in model.modules() if isinstance(each, BaseTunerLayer)), None)
    return adapted is not None and (adapted.disable_adapters or _REFERENCE in adapted.active_adapters)


def add_reference_adapter(model: Any, weights: Weights | None = None) -> Weights:
    """Add a frozen adapter, which TRL takes as the reference of the KL term, and return its weights on the CPU.

    Without `weights`, it is a copy of the model's adapter. The model is then saved without it.
    """
    if weights is None:
        own = get_peft_model_state_dict(model, save_embedding_layers=False)
        weights = {name: each.detach().to("cpu", copy=True) for name, each in own.items()}
    model.add_adapter(_REFERENCE, model.peft_config[_TRAINED])
    set_peft_model_state_dict(model, dict(weights), adapter_name=_REFERENCE)
    for name, each in model.named_parameters():
        if f".{_REFERENCE}." in name:
            each.requires_grad = False
    # By default, `peft` saves all adapters, and the trainer loads them again when it resumes.
    model.save_pretrained = partial(model.save_pretrained, selected_adapters=[_TRAINED])
    return weights


def load_adapter_weights(model: Any, start: Path) -> None:
    """Load the weights of a saved adapter into a model's adapter.

    Raises:
        UsageError: the saved adapter has other names or shapes than the model's, e.g. because its base model differs.
    """
    try:
        given = load_file(start / ADAPTER_WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            "adapters.weights-unreadable", f"lora.start: cannot read {start / ADAPTER_WEIGHTS}: {error}"
        ) from None
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    shapes, wanted = ({name: tuple(each.shape) for name, each in weights.items()} for weights in (given, own))
    different = sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name))
    if different:
        name = different[0]
        raise UsageError(
            "adapters.other-shape",
            f"lora.start: {start} does not fit this model: {len(different):,} weights differ, e.g. {name} is "
            f"{shapes.get(name, 'missing')} there and {wanted.get(name, 'missing')} here",
        )
    set_peft_model_state_dict(model, given)  # this silently ignores names that do not match


def nf4_config() -> Any:
    """Return the quantization of QLoRA (https://arxiv.org/abs/2305.14314)."""
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
