"""Limits of what agents may send to the gateway."""

from dataclasses import dataclass

MAX_BODY = 8 * 1024 * 1024
"""Maximum number of bytes of a request."""
MAX_AT_ONCE = 16
"""Maximum number of requests to the model that an episode may have at once."""
MAX_DEPTH, MAX_CONTAINERS = 100, 50_000
"""Maximum depth of nested lists and objects in a request, and maximum number of them."""
MAX_MESSAGES, MAX_TOOLS, MAX_SAMPLES, MAX_STOPS = 2_000, 128, 16, 16
MAX_STORED, MAX_STORED_BYTES = 100, 16 * 1024 * 1024
"""Maximum number of responses that an episode can continue by their id, and of bytes in their requests."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of a gateway. Numbers of requests are those at once."""

    requests: int = 512
    """Of all episodes."""
    episode_requests: int = MAX_AT_ONCE
    """Of one episode, to the model."""
    episode_tool_requests: int = 64
    """Of one episode, to the MCP server."""
    body_bytes: int = MAX_BODY
    body_seconds: float = 30
    """For a body to arrive."""
    header_bytes: int = 32 * 1024
    header_seconds: float = 10
    """For the headers of a request to arrive, which includes the first one of a connection."""
    connections: int = 2_048
    idle_seconds: int = 120
    """After which a connection without requests is closed."""
    keep_alive: float = 10
    """Seconds until a stream begins, if the policy is slower, and between its comments until it ends."""
