"""What a trainer and the loaders beside rollout servers agree on: where in a store adapters are, and where loaders are.

What always holds: an adapter's version is the name that it is served under, which is used once.
"""

ADAPTERS = "adapters"
"""The kind of the adapters in the store; its `latest` is what is to be served."""
LOADER_PORT = 8081
"""Where a loader answers, on the host of its server."""
STATUS = "/status"
"""What it answers there: JSON with at least `serving` and `wanted` (names or null), `error` (text or null), and
`refusals` (how often in a row vLLM refused what is wanted)."""
