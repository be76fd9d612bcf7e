"""List the MCP tools of an agent server and call one. Requires the package `mcp`.

python examples/mcp/client.py ann@example.com invoice
"""

import asyncio
import os
import sys

from mcp import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client


async def main(inbox: str, *keywords: str) -> None:
    """Print the names of the tools, and the messages in the inbox that contain the keywords."""
    url, key = os.environ.get("GUMSHOE_URL", "http://127.0.0.1:8000"), os.environ.get("GUMSHOE_KEY", "")
    http = create_mcp_http_client(headers={"Authorization": f"Bearer {key}"} if key else {})
    async with http, Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client:
        print(*(tool.name for tool in (await client.list_tools()).tools))
        found = await client.call_tool("search_inbox", {"inbox_address": inbox, "keywords": keywords})
        print(found.content[0].text)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/mcp/client.py INBOX KEYWORD...")
    asyncio.run(main(*sys.argv[1:]))
