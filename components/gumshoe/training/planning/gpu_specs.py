"""Data sheet values of GPUs, by the names that CUDA gives them."""

import re
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Data sheet values of a GPU model."""

    memory: float
    """10^9 bytes."""
    flops: float
    """10^12 operations per second, bfloat16, dense."""
    bandwidth: float
    """10^9 bytes per second."""


GPUS = {  # NVIDIA's data sheets; half of the value if it is given for sparse matrices only
    "a10": GpuSpec(24, 125, 600),
    "a100": GpuSpec(80, 312, 2039),
    "a100-40gb": GpuSpec(40, 312, 1555),
    "b200": GpuSpec(180, 2250, 8000),
    "h100": GpuSpec(80, 989, 3350),
    "h100-pcie": GpuSpec(80, 756, 2000),
    "h200": GpuSpec(141, 989, 4800),
    "l4": GpuSpec(24, 121, 300),
    "l40s": GpuSpec(48, 362, 864),
    "rtx3090": GpuSpec(24, 71, 936),
    "rtx4090": GpuSpec(24, 165, 1008),
}


def find_gpu(name: str) -> GpuSpec | None:
    """Return what is known of a GPU by the name that CUDA gives it, e.g. `NVIDIA A100-SXM4-80GB`, or None."""
    words = re.findall("[a-z0-9]+", name.casefold())
    named = {*words, *map("".join, pairwise(words))}  # RTX 4090 is rtx4090
    longest = sorted(GPUS, key=lambda kind: kind.count("-"), reverse=True)
    return next((GPUS[kind] for kind in longest if set(kind.split("-")) <= named), None)
