"""What servers started by Gumshoe do otherwise than vLLM on a CPU: adapters are applied by matrix products.

vLLM's own way there copies an adapter's weights for each token, which for a small model takes nearly as long as the
model itself; and tokens that ask for no adapter are given the one in the last slot.
"""

import os
from collections.abc import Iterator
from typing import Any

ASKED = "GUMSHOE_VLLM_PLUGIN"
"""The environment variable that has it loaded: other servers of the same environment stay as they are."""


def register() -> None:
    """Put in place of vLLM's functions; called in each of a server's processes."""
    if not os.environ.get(ASKED):
        return
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    places: tuple[Any, ...] = (lora_ops, punica_cpu)
    for place in places:
        place.bgmv_shrink, place.bgmv_expand, place.bgmv_expand_slice = bgmv_shrink, bgmv_expand, bgmv_expand_slice


# Arguments as vLLM gives them: `inputs` [tokens, in] and `output` [tokens, out], which is written to; `weights`
# [adapters, out, in] or [adapters, 1, out, in]; `indices` [tokens], each token's adapter, negative where it has none.


def bgmv_shrink(inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0) -> None:
    """output[i, :rank] = scaling * weights[adapter of i] @ inputs[i]."""
    for rows, own in _by_adapter(indices, weights, output):
        found = inputs[rows].to(output.dtype) @ own.T
        output[rows, : found.shape[1]] = scaling * found


def bgmv_expand(inputs: Any, weights: Any, output: Any, indices: Any, add_inputs: bool = True) -> None:
    """output[i] += weights[adapter of i] @ inputs[i], or = without `add_inputs`, as far as either reaches."""
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
    """As `bgmv_expand`, into some columns of the output."""
    columns = slice(slice_offset, slice_offset + slice_size)
    for rows, own in _by_adapter(indices, weights, output):
        found = inputs[rows].to(output.dtype) @ own[:slice_size].T
        if add_inputs:
            output[rows, columns] += found
        else:
            output[rows, columns] = found


def _by_adapter(indices: Any, weights: Any, output: Any) -> Iterator[tuple[Any, Any]]:
    """The rows [tokens] that have an adapter, and its weights [out, in]; a slice where all rows have the same one."""
    for adapter in indices.unique().tolist():
        if adapter >= 0:
            rows = indices == adapter
            own = weights[adapter].to(output.dtype)
            yield (slice(len(rows)) if rows.all() else rows), own.squeeze(0) if own.dim() == 3 else own
