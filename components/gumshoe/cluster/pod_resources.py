"""Default resources of pods with GPUs, and arithmetic with Kubernetes quantities."""

import re
from decimal import Decimal

GPU_RESOURCE = "nvidia.com/gpu"
"""Default name of the resource that nodes count GPUs by."""
CPUS_PER_GPU, GIBIBYTES_PER_GPU = 4, 32
"""Default CPUs and memory that a pod requests for each of its GPUs."""
MEMORY_PER_GPU = f"{GIBIBYTES_PER_GPU}Gi"
MEMORY_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(k|Ki|[MGTPE]i?)?")


def multiply_quantity(quantity: str, factor: int) -> str:
    """Return a multiple of a Kubernetes quantity of memory, e.g. 256Gi for 32Gi and 8.

    Raises:
        ValueError: if it is not a quantity.
    """
    found = MEMORY_QUANTITY.fullmatch(quantity)
    if found is None or not Decimal(found[1]):
        raise ValueError(f"must be a Kubernetes quantity above 0, got {quantity!r}; write e.g. 256Gi")
    return f"{(Decimal(found[1]) * factor).normalize():f}{found[2] or ''}"
