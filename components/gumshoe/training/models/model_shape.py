"""The shape of a model, from its config.json alone: how many weights it has, and in which modules."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import TINY
from gumshoe.training.models.target_modules import expert_parameters, find_default_targets, linear_modules
from gumshoe.training.settings_sections import ALL_LINEAR, LoraSettings

_STATES = (
    "linear_attention",
    "mamba",
    "recurrent",
    "conv",
    "moe",
    "mlp",
)  # kinds of layers with a state, or nothing, instead of keys and values


@dataclass(frozen=True, slots=True)
class Linear:
    """The linear modules with one name, in all layers."""

    name: str
    inputs: int
    outputs: int
    count: int
    is_default: bool = True
    """Target of an adapter with `all-linear`."""

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers of a model that determine how much memory and time it needs."""

    name: str
    parameters: int
    """Exact number of parameters; tied weights count once."""
    linears: tuple[Linear, ...]
    """Linear modules of the layers, without the output embeddings."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the feed-forward part; in a mixture of experts, the sum over the experts that a token is routed to."""
    vocabulary: int
    longest: int | None = None
    """Maximum context of the model, in tokens."""
    latent: int | None = None
    """Numbers per token in a layer with compressed keys and values (MLA, https://arxiv.org/abs/2405.04434)."""
    windowed: int = 0
    """Number of layers that attend to the last `window` tokens only."""
    window: int = 0
    stateful: int = 0
    """Number of layers with a state of fixed size instead of keys and values."""
    experts: tuple[Linear, ...] = ()
    """Weights that are one parameter for all experts of a layer, counted by expert."""
    active: int | None = None
    """Parameters that one token is multiplied by; if None, all but the input embeddings."""

    @property
    def attention(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def quantizable(self) -> int:
        """Number of weights that nf4 quantizes: the linear ones of the layers."""
        return sum(each.weights for each in self.linears)

    @property
    def multiplied(self) -> int:
        """Number of parameters that a token is multiplied by."""
        return self.active or self.quantizable + self.hidden * self.vocabulary

    @property
    def kv_numbers(self) -> int:
        """Numbers per token in the KV cache of one layer."""
        return self.latent or 2 * self.kv_heads * self.head_dim

    def kv_tokens(self, context: int) -> int:
        """Return the number of cached tokens for a context, summed over layers."""
        whole = self.layers - self.windowed - self.stateful
        return whole * context + self.windowed * min(context, self.window)

    def find_targets(self, lora: LoraSettings) -> tuple[Linear, ...]:
        """Return the linear modules and the experts' weights that get LoRA matrices."""
        wanted = lora.target_modules
        linears = (each for each in self.linears if (each.is_default if wanted == ALL_LINEAR else each.name in wanted))
        found = (*linears, *(self.experts if lora.target_parameters == "experts" else ()))
        share = self.count_trained_layers(lora) / self.layers
        return tuple(replace(each, count=round(each.count * share)) for each in found)

    def count_trained_layers(self, lora: LoraSettings) -> int:
        """Return the number of layers that get LoRA matrices."""
        return min(self.layers, lora.layers or self.layers)

    def adapter_parameters(self, lora: LoraSettings) -> int:
        """Return the number of LoRA parameters (https://arxiv.org/abs/2106.09685): r (inputs + outputs) per module."""
        return sum(lora.rank * (each.inputs + each.outputs) * each.count for each in self.find_targets(lora))

    def list_uncounted(self) -> tuple[str, ...]:
        """Return descriptions of what an estimate from this shape does not count, or not exactly."""
        return tuple(self._describe_uncounted())

    def _describe_uncounted(self) -> Iterator[str]:
        if self.stateful:
            yield f"states and activations of {self.stateful} layers without keys and values"
        if self.active is not None:
            yield "experts of a mixture: weights of all, but activations only of those that are used"
        if self.latent is not None:
            yield "compressed keys and values (MLA): counted as attention without compression in activations"
        if self.windowed:
            yield f"{self.windowed} layers with a sliding window of {self.window:,} tokens"


def read_shape(model: str) -> ModelShape:
    """Read the shape of a model: a directory, a config.json, a name on the hub, or `tiny`. No weights are read.

    Raises:
        UsageError: the model does not exist, `transformers` does not support it, or it has no attention.
    """
    meta_model = load_meta_model(model)
    try:
        return inspect_shape(meta_model, model)
    except (LookupError, AttributeError) as error:
        raise UsageError(
            "planning.unsupported-model", f"cannot plan for {model}: {' '.join(str(error).split())}"
        ) from None


def read_heads(model: str) -> tuple[int, int]:
    """Return the numbers of attention heads and of heads of keys and values; zeros if they cannot be read."""
    with suppress(UsageError):
        shape = read_shape(model)
        return shape.heads, shape.kv_heads
    return 0, 0


def load_meta_model(model: str) -> Any:
    """Return a model of `transformers` without weights, on the meta device, to inspect its modules and their shapes.

    The model is named as in `read_shape`. It is not quantized, even if its files are.

    Raises:
        UsageError: the model does not exist, or `transformers` does not support it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    place = None if Path(model).is_file() else find_model(TINY if model == "tiny" else model, "config.json")
    try:
        options = {"local_files_only": True} if place is None else place.options
        config: Any = AutoConfig.from_pretrained(model if place is None else place.name, **options)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - damaged files raise many
        raise _unusable(model, error) from None


def read_context(model: str) -> int | None:
    """Return the number of tokens that a model, a directory or a name on the hub, supports; None if it does not say.

    Raises:
        UsageError: the model does not exist, or `transformers` does not support it.
    """
    from transformers import CONFIG_MAPPING, PretrainedConfig

    place = find_model(model, "config.json")
    try:
        stored, _ = PretrainedConfig.get_config_dict(place.name, **place.options)
        context = (stored.get("text_config") or stored).get("max_position_embeddings")
        if stored.get("model_type") in CONFIG_MAPPING and isinstance(context, int):
            return context
        # It has another name in this class, or is its default. AutoConfig takes three seconds to import all classes.
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(place.name, **place.options)
    except Exception as error:  # noqa: BLE001 - damaged files raise many
        raise _unusable(model, error) from None
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _unusable(model: str, error: Exception) -> UsageError:
    reason = " ".join(str(error).split())
    return UsageError(
        "base-models.not-a-causal-lm",
        f"{model} is not a causal language model that transformers can load: {reason}; check the name or path, use "
        "another model, or update transformers",
    )


def inspect_shape(model: Any, name: str) -> ModelShape:
    """Return the shape of a model of `transformers`, on any device."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    defaults = set(find_default_targets(model))
    found = Counter(
        (place.rpartition(".")[2], each.in_features, each.out_features, place in defaults)
        for place, each in linear_modules(model).items()
        if each is not head
    )
    stacked = Counter[tuple[str, int, int]]()
    for place, each in expert_parameters(model):
        stacked[place.rpartition(".")[2], each.shape[1], each.shape[2]] += each.shape[0]
    heads = config.num_attention_heads
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    ranks = [getattr(config, "kv_lora_rank", None) or 0, getattr(config, "qk_rope_head_dim", None) or 0]
    parameters = sum(each.numel() for each in model.parameters())
    experts, active = _count_experts(model, config)
    embeddings = model.get_input_embeddings().weight
    return ModelShape(
        name=name,
        parameters=parameters,
        linears=tuple(
            Linear(kind, inputs, outputs, count, is_default)
            for (kind, inputs, outputs, is_default), count in found.items()
        ),
        experts=tuple(Linear(*shape, count) for shape, count in stacked.items()),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate=active or getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=embeddings.shape[0],
        longest=getattr(config, "max_position_embeddings", None),
        latent=sum(ranks) if all(ranks) else None,
        windowed=sum("sliding" in kind for kind in kinds),
        window=getattr(config, "sliding_window", None) or 0,
        stateful=sum(any(word in kind for word in _STATES) for kind in kinds),
        active=(
            parameters - (0 if head.weight is embeddings else embeddings.numel()) - experts
            if active is not None
            else None
        ),
    )


def _count_experts(model: Any, config: Any) -> tuple[int, int | None]:
    """Return, for a mixture of experts, the number of weights that a token does not use, and the width that it uses.

    Without experts, return 0 and None.
    """
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((found for each in names if (found := getattr(config, each, None))), None)
    used = getattr(config, "num_experts_per_tok", None)
    if not count or not used:
        return 0, None
    weights = sum(each.numel() for place, each in model.named_parameters() if ".experts." in place)
    width = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    return weights * (count - used) // count, used * width
