"""Find what gets LoRA matrices: modules (`lora.target_modules`) and experts (`lora.target_parameters`)."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from gumshoe.errors import UsageError
from gumshoe.training.settings_sections import ALL_LINEAR, LoraSettings

_ROUTERS = ("gate", "router", "shared_expert_gate")  # they choose experts, or scale one
_LAYERS = "layers"  # attribute of a decoder: its layers, from the input to the output
_EXPERTS = "experts"  # name of the module that holds the weights of all experts, [experts, ...] each


def linear_modules(model: Any) -> dict[str, Any]:
    """Return a model's linear modules, which can have an adapter, by name."""
    from torch import nn

    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def find_default_targets(model: Any) -> list[str]:
    """Return the names of the modules that `all-linear` stands for, in full.

    These are the linear modules of the decoder's layers. Not among them are output embeddings, vision and audio
    encoders, routers, modules that `peft` takes for experts, and those modules of Mamba whose weights its kernels read
    directly, past an adapter.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    inside = {module for module in decoder.modules() if module is not head}
    left_out = {*_ROUTERS, *_find_names_of_experts(model)}
    return [
        name
        for name, module in linear_modules(model).items()
        if module in inside and _leaf(name) not in left_out and not _is_read_directly(model, name)
    ]


def _find_names_of_experts(model: Any) -> set[str]:
    """Return the names of modules in whose place `peft` adapts experts that are one parameter.

    In older files of some architectures, each expert had modules of these names. Shared experts and layers without
    experts still have them.
    """
    if not any(expert_parameters(model)):
        return set()
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    names = {_leaf(name) for name in linear_modules(model)}
    config = LoraConfig(target_modules=list(names))
    convert_peft_config_for_transformers(config, model, None)
    return names - set(config.target_modules or ())


def _is_read_directly(model: Any, name: str) -> bool:
    """Return True for a module of Mamba (https://arxiv.org/abs/2405.21060) after the input projection."""
    parent = model.get_submodule(name.rpartition(".")[0])
    return hasattr(parent, "A_log") and hasattr(parent, "D") and _leaf(name) != "in_proj"


def find_target_modules(model: Any, targets: Literal["all-linear"] | Sequence[str]) -> list[str]:
    """Return the target modules as `peft` takes them: names, or ends of names.

    Raises:
        UsageError: a target module does not exist.
    """
    if targets != ALL_LINEAR:
        check_modules(model, targets)
        return list(targets)
    chosen = dict.fromkeys(find_default_targets(model))
    others = [name for name, _ in model.named_modules() if name not in chosen]
    return list(dict.fromkeys(_shorten(name, others) for name in chosen))


def _shorten(name: str, others: Sequence[str]) -> str:
    """Return the shortest end of a name that none of the other names has."""
    parts = name.split(".")
    ends = [".".join(parts[first:]) for first in range(len(parts) - 1, -1, -1)]
    return next(end for end in ends if not any(matches(other, end) for other in others))


def find_target_parameters(model: Any, targets: Literal["none", "experts"]) -> list[str]:
    """Return the ends of the names of the target parameters, as `peft` takes them.

    Raises:
        UsageError: the model has no experts in parameters of their own.
    """
    if targets == "none":
        return []
    found = list(dict.fromkeys(f"{_EXPERTS}.{_leaf(name)}" for name, _ in expert_parameters(model)))
    if not found:
        raise UsageError(
            "adapters.no-expert-parameters",
            "lora.target_parameters is experts, but the base model has no experts in parameters of their own; set it to"
            " none",
        )
    return found


def expert_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that hold a weight of all experts of a layer, with their names."""
    for name, parameter in model.get_decoder().named_parameters():
        if parameter.ndim == 3 and _leaf(name.rpartition(".")[0]) == _EXPERTS:
            yield name, parameter


def lora_targets(model: Any, settings: LoraSettings) -> dict[str, Any]:
    """Return the arguments of `peft.LoraConfig` that say what gets LoRA matrices.

    Raises:
        UsageError: a target does not exist, or the model has fewer layers.
    """
    found: dict[str, Any] = {"target_modules": find_target_modules(model, settings.target_modules)}
    if parameters := find_target_parameters(model, settings.target_parameters):
        found["target_parameters"] = parameters
    if settings.layers is not None:
        found["layers_to_transform"] = upper_layers(model, settings.layers, "lora.layers")
        found["layers_pattern"] = _LAYERS
    return found


def upper_layers(model: Any, wanted: int, setting: str) -> list[int]:
    """Return the numbers of the upper layers of a model's decoder, from 0, [wanted].

    Raises:
        UsageError: the model has fewer layers, or none that can be told apart.
    """
    layers = len(getattr(model.get_decoder(), _LAYERS, ()))
    if wanted > layers:
        raise UsageError(
            "training.too-few-layers",
            f"{setting} is {wanted}, but {type(model).__name__} has {layers} layers; lower it, or unset it",
        )
    return list(range(layers - wanted, layers))


def check_modules(model: Any, wanted: Sequence[str]) -> None:
    """Check that a model has all target modules.

    Raises:
        UsageError: a target module does not exist, or `peft` takes it for experts.
    """
    taken = _find_names_of_experts(model)
    linear = {name: module for name, module in linear_modules(model).items() if _leaf(name) not in taken}
    missing = [each for each in wanted if not any(matches(name, each) for name in linear)]
    if missing:
        head = model.get_output_embeddings()
        there = dict.fromkeys(_leaf(name) for name, module in linear.items() if module is not head)
        raise UsageError(
            "adapters.unknown-target-module",
            f"lora.target_modules names modules that cannot have an adapter: {', '.join(missing)}; choose from "
            f"{', '.join(there)}",
        )


def matches(name: str, target: str) -> bool:
    """Return True if a target module, the end of a name, stands for the module with this name."""
    return name == target or name.endswith(f".{target}")


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
