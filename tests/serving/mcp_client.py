"""Use the tools of an agent server with the MCP SDK's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.serving.agent_server import ServerClient

if TYPE_CHECKING:
    from mcp import Client


@asynccontextmanager
async def open_client(server: ServerClient, key: str | None = None) -> "AsyncIterator[Client]":
    """Yield a client that sends a key, by default the server's."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {key or server.key}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=None) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
    ):
        yield client


def list_tools(server: ServerClient) -> dict[str, Any]:
    """Return the tools by name."""

    async def run() -> dict[str, Any]:
        async with open_client(server) as client:
            return {each.name: each for each in (await client.list_tools()).tools}

    return asyncio.run(run())


def call_tools(
    server: ServerClient, *calls: tuple[str, dict[str, Any]], key: str | None = None
) -> list[tuple[bool, str]]:
    """Call tools one after another. Return for each call if it failed, and its text."""

    async def run() -> list[tuple[bool, str]]:
        async with open_client(server, key) as client:
            await client.list_tools()
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
            return [(bool(each.is_error), each.content[0].text) for each in answers]  # type: ignore[union-attr]

    return asyncio.run(run())
