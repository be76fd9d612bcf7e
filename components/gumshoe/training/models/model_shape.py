"""A model's shape, from its config.json alone: how many weights it has, and where."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import TINY

_STATES = ("linear_attention", "mamba", "recurrent", "conv")  # layers that keep a state instead of keys and values


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear modules of one name, of all layers."""

    name: str
    inputs: int
    outputs: int
    count: int

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides how much memory and time it takes."""

    name: str
    parameters: int
    """Exact; tied weights count once."""
    linears: tuple[Linear, ...]
    """Of the layers, without the output embeddings."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Of the feed-forward part that one token goes through; of a mixture, of all experts that it is sent to."""
    vocabulary: int
    longest: int | None = None
    """Most tokens that the model reads."""
    latent: int | None = None
    """Numbers of a token in a layer that keeps keys and values compressed (MLA, https://arxiv.org/abs/2405.04434)."""
    windowed: int = 0
    """Layers that attend to the last `window` tokens alone."""
    window: int = 0
    stateful: int = 0
    """Layers that keep a state of one size instead of keys and values."""
    active: int | None = None
    """Parameters that one token is multiplied by; all but the input embeddings unless given."""

    @property
    def attention(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def quantizable(self) -> int:
        """Weights that nf4 is used for: the layers' linear ones."""
        return sum(each.weights for each in self.linears)

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied by, once each."""
        return self.active or self.quantizable + self.hidden * self.vocabulary

    @property
    def kv_numbers(self) -> int:
        """Numbers that one token leaves in one layer that remembers it."""
        return self.latent or 2 * self.kv_heads * self.head_dim

    def kv_tokens(self, context: int) -> int:
        """Tokens that are remembered of so many, summed over layers."""
        whole = self.layers - self.windowed - self.stateful
        return whole * context + self.windowed * min(context, self.window)

    def adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Of LoRA (https://arxiv.org/abs/2106.09685): r (inputs + outputs) for each module."""
        return sum(rank * (each.inputs + each.outputs) * each.count for each in self.linears if each.name in targets)

    def left_out(self) -> tuple[str, ...]:
        """What an estimate from this shape does not count, or not exactly."""
        return tuple(self._left_out())

    def _left_out(self) -> Iterator[str]:
        if self.stateful:
            yield f"the states of {self.stateful} layers without keys and values, and what they keep for the gradient"
        if self.active is not None:
            yield "a mixture's experts count whole as weights, and of what is kept for the gradient those that are used"
        if self.latent is not None:
            yield "compressed keys and values (MLA) count as vLLM keeps them; for the gradient, as plain attention"
        if self.windowed:
            yield f"{self.windowed} layers remember {self.window:,} tokens each"


def read_shape(model: str) -> ModelShape:
    """The shape of a model: its directory, a config.json, its name on the hub, or `tiny`. No weights are read.

    Raises:
        UsageError: there is no such model, or `transformers` does not know it, or it has no attention.
    """
    made = outline(model)
    try:
        return shape_of(made, model)
    except (LookupError, AttributeError) as error:
        raise UsageError(
            "planning.unsupported-model", f"cannot plan for {model}: {' '.join(str(error).split())}"
        ) from None


def outline(model: str) -> Any:
    """A model of `transformers` without weights, to look at its modules and their shapes; in full precision, however
    its weights lie on the disk. It is named as in `read_shape`.

    Raises:
        UsageError: there is no such model, or `transformers` does not know it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    place = None if Path(model).is_file() else find_model(TINY if model == "tiny" else model, "config.json")
    try:
        config: Any = AutoConfig.from_pretrained(
            model if place is None else place.name, local_files_only=place is None or place.local_files_only
        )
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, LookupError, ImportError, AttributeError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise UsageError(
            "base-models.not-a-causal-lm", f"{model} is not a causal language model that transformers can load: {said}"
        ) from None


def shape_of(model: Any, name: str) -> ModelShape:
    """The shape of a model of `transformers`, on whatever device."""
    from torch import nn

    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    found = Counter(
        (place.rpartition(".")[2], each.in_features, each.out_features)
        for place, each in model.named_modules()
        if isinstance(each, nn.Linear) and each is not head
    )
    heads = config.num_attention_heads
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    ranks = [getattr(config, "kv_lora_rank", None) or 0, getattr(config, "qk_rope_head_dim", None) or 0]
    parameters = sum(each.numel() for each in model.parameters())
    experts, active = _experts(model, config)
    embeddings = model.get_input_embeddings().weight
    return ModelShape(
        name=name,
        parameters=parameters,
        linears=tuple(Linear(*shape, count) for shape, count in found.items()),
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


def _experts(model: Any, config: Any) -> tuple[int, int | None]:
    """Of a mixture: the weights of experts that a token is not sent to, and the width of those that it is."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((found for each in names if (found := getattr(config, each, None))), None)
    used = getattr(config, "num_experts_per_tok", None)
    if not count or not used:
        return 0, None
    weights = sum(each.numel() for place, each in model.named_parameters() if ".experts." in place)
    width = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    return weights * (count - used) // count, used * width
