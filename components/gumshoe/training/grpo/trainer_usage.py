"""Usage of a trainer's passes: time by phase, tokens, and the share of the GPU's speed."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gumshoe.training.grpo.phase_clock import PhaseClock
from gumshoe.training.planning.gpu_specs import find_gpu

_PASSES = ("old", "reference", "forward", "backward")


@dataclass(frozen=True, slots=True)
class TrainerUsage:
    """Usage of a step by the main process of the trainer."""

    phases: dict[str, float]
    """Seconds of each phase of the step."""
    tokens: int
    """Number of tokens that went through the model."""
    mfu: float | None
    """Share of the GPU's peak speed while the passes ran, in [0, 1]; None if it is not known."""

    @classmethod
    def of_step(cls, clock: PhaseClock, model: torch.nn.Module) -> "TrainerUsage":
        """Return the usage of a step that ends now."""
        phases = clock.end_step()
        seconds = sum(phases.get(each, 0.0) for each in _PASSES)
        peak = _find_peak()
        mfu = None
        if peak is not None and seconds and not _has_experts(model):
            mfu = count_operations(_count_parameters(model), clock.tokens) / seconds / peak
        return cls(phases, clock.tokens.total(), mfu)


def count_operations(parameters: int, tokens: Mapping[str, int]) -> float:
    """Return the floating-point operations for reading tokens, given their number by phase.

    A forward pass takes 2 for each parameter and token; the backward pass of an adapter as many, because the base
    model's weights have no gradients (https://arxiv.org/abs/2001.08361). Attention and recomputed activations are not
    counted.
    """
    forward = tokens.get("forward", 0)
    return 2.0 * parameters * (sum(tokens.values()) + forward)


def _find_peak() -> float | None:
    """Return the floating-point operations per second of this process's GPU, dense bfloat16; None if not known."""
    gpu = find_gpu(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return None if gpu is None else gpu.flops * 1e12


def _count_parameters(model: torch.nn.Module) -> int:
    """Return the number of parameters that multiply each token: all but the input embeddings, unless they are tied."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    tied = head is not None and head.weight is embeddings.weight
    return sum(map(count_values, model.parameters())) - (0 if tied else count_values(embeddings.weight))


def count_values(parameter: torch.nn.Parameter) -> int:
    """Return the number of values of a parameter, also if bitsandbytes packs or DeepSpeed shards it."""
    quantized = getattr(parameter, "quant_state", None)
    return int(quantized.shape.numel() if quantized is not None else getattr(parameter, "ds_numel", parameter.numel()))


def _has_experts(model: torch.nn.Module) -> bool:
    """Return True for a mixture of experts, of which a token uses only some."""
    config = model.config.get_text_config()  # type: ignore[operator, union-attr]
    return any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
