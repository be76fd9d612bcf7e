"""Locations that a trainer and the adapter loaders beside the rollout servers agree on.

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
