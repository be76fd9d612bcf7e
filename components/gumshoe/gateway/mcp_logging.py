"""Keep the text of agents, and of MCP servers of others, out of the log: the MCP SDK logs parts of their messages."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOGGERS = (
    "client",
    "mcp.client.streamable_http",
    "mcp.server._streamable_http_modern",
    "mcp.server.runner",
    "mcp.server.streamable_http",
    "mcp.server.streamable_http_manager",
    "mcp.server.transport_security",
    "mcp.shared.jsonrpc_dispatcher",
)
_is_quiet: ContextVar[bool] = ContextVar("mcp_is_quiet", default=False)


@contextmanager
def quiet_sdk() -> Iterator[None]:
    """Let the SDK log nothing in this block, and in tasks that it starts. Its other users are not affected."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_wanted)  # adding it again changes nothing
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def _is_wanted(_: logging.LogRecord) -> bool:
    return not _is_quiet.get()
