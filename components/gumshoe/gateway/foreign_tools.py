"""Tools of MCP servers of others, which agents get besides those of the environment."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp.types as mcp_types

from gumshoe.environments.data_marks import enclose_data
from gumshoe.environments.registry import FINAL_ANSWER
from gumshoe.environments.tools import Call
from gumshoe.errors import UsageError
from gumshoe.gateway.mcp_connections import McpConnection, ToolRejectedError, ToolServerError
from gumshoe.rollouts.agent_settings import ToolServerSettings
from gumshoe.rollouts.trajectory import ForeignCall
from gumshoe.text_checks import find_bad_texts, replace_bad_characters

MAX_TOOLS = 128
"""Maximum number of tools of all servers."""
MAX_SCHEMA = 20_000
"""Maximum number of characters of a tool's name, description and schema, as JSON."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what OpenAI's API allows
_TEMPORARY = (408, 425, 429)  # HTTP statuses below 500 after which another attempt may succeed


@dataclass(frozen=True, slots=True)
class ForeignResult:
    """Result of a call."""

    text: str
    """Text for the model."""
    record: ForeignCall


@dataclass(frozen=True, slots=True)
class _ForeignTool:
    """A tool of a server, as it was when the run began."""

    name: str
    """Name for the model."""
    listed: mcp_types.Tool
    connection: McpConnection

    @property
    def schema(self) -> dict[str, Any]:
        """The schema, in the form of OpenAI's API."""
        parameters = {"properties": {}, **self.listed.input_schema}
        function = {"name": self.name, "description": self.listed.description or "", "parameters": parameters}
        return {"type": "function", "function": function}

    @property
    def is_repeatable(self) -> bool:
        """True if the server says that a second call does no harm."""
        hints = self.listed.annotations
        return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


class ForeignTools:
    """Tools of MCP servers, by name. Without servers there are none.

    All methods are called in the event loop of the gateway. The tools are those that the servers had when the run
    began: if a server changes or removes one, calls of it fail.
    """

    def __init__(self, connections: Sequence[McpConnection] = ()) -> None:
        self._connections = connections
        self._tools: dict[str, _ForeignTool] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schema of each tool, as `Toolbox.schemas` does. Do not modify them."""
        return [each.schema for each in self._tools.values()]

    def check_names(self, names: Iterable[str]) -> None:
        """Check that no tool has the name of one of the environment's.

        Raises:
            UsageError: if one has.
        """
        if clashes := sorted(self._tools.keys() & set(names)):
            servers = sorted({self._tools[each].connection.place for each in clashes})
            raise _clash(clashes, "the environment", *servers)

    async def call(self, call: Call, *, marks: bool = False) -> ForeignResult:
        """Call a tool. Its result, and an error that it reports, are text for the model, with marks if wanted.

        Raises:
            KeyError: if there is no tool with that name.
            ToolServerError: if the server fails, or has changed the tool.
        """
        tool, started = self._tools[call.name], time.monotonic()
        settings = tool.connection.settings
        try:
            result = await tool.connection.call(tool.listed.name, call.arguments, is_repeatable=tool.is_repeatable)
            text, is_error = _write_text(result), result.is_error
        except ToolRejectedError as error:
            text, is_error = replace_bad_characters(str(error)), True
        if is_error:  # because of the model, or because the tool is not what the model was told
            await _check_unchanged(tool)
        record = ForeignCall(call, time.monotonic() - started, is_error, len(text))
        shown = _cut(text, settings.max_characters)
        shown = enclose_data(shown) if marks and shown else shown
        return ForeignResult(f"Error: {shown}" if is_error else shown, record)

    async def load(self) -> None:
        """List the tools of all servers.

        Raises:
            UsageError: if a server refuses, or a tool cannot be used, or two have the same name.
            ToolServerError: if a server fails.
        """
        listed = await asyncio.gather(*(_list_tools(each) for each in self._connections))
        for connection, tools in zip(self._connections, listed, strict=True):
            for each in tools:
                tool = _check_tool(each, connection)
                if tool.name in self._tools:
                    raise _clash([tool.name], self._tools[tool.name].connection.place, connection.place)
                self._tools[tool.name] = tool
        if len(self._tools) > MAX_TOOLS:
            servers = ", ".join(each.place for each in self._connections)
            raise _invalid(servers, f"{len(self._tools)} tools; there may be {MAX_TOOLS}")


@asynccontextmanager
async def open_foreign_tools(servers: Sequence[ToolServerSettings]) -> AsyncIterator[ForeignTools]:
    """Connect to MCP servers, and yield their tools while the block runs.

    Raises:
        UsageError: if a server refuses, or its tools cannot be used.
        ToolServerError: if a server does not answer.
    """
    connections = [McpConnection(each) for each in servers]
    tools = ForeignTools(connections)
    try:
        await tools.load()
        yield tools
    finally:
        await asyncio.gather(*(each.close() for each in connections))


async def _list_tools(connection: McpConnection) -> list[mcp_types.Tool]:
    """Return the tools of a server at the beginning of a run.

    Raises:
        UsageError: if the server refuses.
        ToolServerError: if it fails.
    """
    try:
        return await connection.list_tools()
    except ToolServerError as error:
        if 400 <= error.status < 500 and error.status not in _TEMPORARY:
            raise UsageError(
                "gateway.tool-server-refused",
                f"MCP server {connection.place} refuses: HTTP status {error.status}; check its address and token_env",
            ) from None
        raise


def _check_tool(tool: mcp_types.Tool, connection: McpConnection) -> _ForeignTool:
    """Return a tool with a name that models can call.

    Raises:
        UsageError: if its name or its schema cannot be used.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", tool.name)
    found, server = _ForeignTool(name, tool, connection), connection.place
    if not _NAME.fullmatch(name):
        raise _invalid(server, f"a tool whose name has {len(name):,} characters; it must have 1 to 64")
    if name == FINAL_ANSWER:
        raise _clash([name], "the environment", server)
    if tool.input_schema.get("type") != "object" or not isinstance(tool.input_schema.get("properties", {}), dict):
        raise _invalid(server, f"the tool {name}, whose schema is not of an object")
    if (size := len(json.dumps(found.schema))) > MAX_SCHEMA:
        raise _invalid(server, f"the tool {name}, whose schema has {size:,} characters; it may have {MAX_SCHEMA:,}")
    if fault := next(iter(find_bad_texts(found.schema)), None):
        raise _invalid(server, f"the tool {name}, whose schema is not valid text: {fault[0]}: {fault[1]}")
    return found


async def _check_unchanged(tool: _ForeignTool) -> None:
    """Check that a server still has a tool with the same arguments.

    Raises:
        ToolServerError: if it has not, or fails.
    """
    listed = {each.name: each for each in await tool.connection.list_tools()}
    found = listed.get(tool.listed.name)
    if found is None or found.input_schema != tool.listed.input_schema:
        change = "changed" if found else "removed"
        raise ToolServerError(
            "gateway.tool-server-changed",
            f"MCP server {tool.connection.place} has {change} the tool {tool.name} during the run",
        )


def _write_text(result: mcp_types.CallToolResult) -> str:
    """Return a result as text. Images and other data are described."""
    parts = [_write_block(each) for each in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return replace_bad_characters("\n".join(parts))


def _write_block(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return f"({block.type} of type {block.mime_type}, {len(block.data) * 3 // 4:,} bytes, not shown)"
        case mcp_types.ResourceLink():
            return f"(link to {block.name}: {block.uri})"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
            return resource.text
    return f"(resource {block.resource.uri}, not shown)"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n(cut: these are the first {limit:,} of {len(text):,} characters)"


def _clash(names: Iterable[str], *places: str) -> UsageError:
    return UsageError(
        "gateway.tool-name-clash", f"{' and '.join(places)} have tools of the same name: {', '.join(names)}"
    )


def _invalid(server: str, found: str) -> UsageError:
    return UsageError("gateway.tool-server-invalid", f"MCP server {server} has {found}")
