"""vLLM plugin that applies LoRA adapters on a CPU with matrix products, in servers started by Gumshoe.

vLLM's own code copies an adapter's weights for each token, which for a small model takes nearly as long as the model
itself. It also applies the adapter in the last slot to tokens that request no adapter.
"""

import os
from collections.abc import Iterator
from typing import Any

ENABLE_VARIABLE = "GUMSHOE_VLLM_PLUGIN"
"""Environment variable that enables the plugin. Other vLLM servers in the same environment are not changed."""


def register() -> None:
    """Replace vLLM's functions by those of this module. vLLM calls it in each process of a server."""
    if not os.environ.get(ENABLE_VARIABLE):
        return
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    places: tuple[Any, ...] = (lora_ops, punica_cpu)
    for place in places:
        place.bgmv_shrink, place.bgmv_expand, place.bgmv_expand_slice = bgmv_shrink, bgmv_expand, bgmv_expand_slice


# Arguments are those of vLLM: `inputs` [tokens, in]; `output` [tokens, out], written in place; `weights`
# [adapters, out, in] or [adapters, 1, out, in]; `indices` [tokens], each token's adapter, negative for none.


def bgmv_shrink(inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0) -> None:
    """Compute output[i, :rank] = scaling * weights[adapter of i] @ inputs[i]."""
    for rows, own in _split_by_adapter(indices, weights, output):
        found = inputs[rows].to(output.dtype) @ own.T
        output[rows, : found.shape[1]] = scaling * found


def bgmv_expand(inputs: Any, weights: Any, output: Any, indices: Any, add_inputs: bool = True) -> None:
    """Compute output[i] += weights[adapter of i] @ inputs[i], or = without `add_inputs`, for the columns of both."""
    width = min(weights.shape[-2], output.shape[1])
    bgmv_expand_slice(inputs, weights, output, indices, 0, width, add_inputs)


def bgmv_expand_slice(
    inputs: Any,
    weights: Any,
    output: Any,
    indices: Any,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """Compute the same as `bgmv_expand`, for a slice of the output's columns."""
    columns = slice(slice_offset, slice_offset + slice_size)
    for rows, own in _split_by_adapter(indices, weights, output):
        found = inputs[rows].to(output.dtype) @ own[:slice_size].T
        if add_inputs:
            output[rows, columns] += found
        else:
            output[rows, columns] = found


def _split_by_adapter(indices: Any, weights: Any, output: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the rows [tokens] of each adapter and its weights [out, in]. Rows are a slice if all have the same one."""
    for adapter in indices.unique().tolist():
        if adapter >= 0:
            rows = indices == adapter
            own = weights[adapter].to(output.dtype)
            yield (slice(len(rows)) if rows.all() else rows), own.squeeze(0) if own.dim() == 3 else own
