"""Names, locations and ranks that trainers, vLLM servers and adapter loaders agree on.

The version of an adapter in the store is the name under which vLLM serves it. Each name is used once.
"""

ADAPTERS = "adapters"
"""Kind of the adapters in the store. Its `latest` is the adapter to serve."""
LOADER_PORT = 8081
"""Port of the adapter loader, on the host of its vLLM server."""
SERVER_PORT = 8000
"""Port of the vLLM server."""
STATUS = "/status"
"""Path of the loader's status: JSON with at least `serving` and `wanted` (names or null), `error` (text or null) and
`refusals` (how many times in a row vLLM has rejected the wanted adapter).
"""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts as its maximum LoRA rank."""


def round_up_lora_rank(rank: int) -> int:
    """Return the smallest rank that vLLM accepts as its maximum and that is not less than `rank`.

    A rank above the largest is returned as it is; vLLM rejects it.
    """
    return next((each for each in LORA_RANKS if each >= rank), rank)
