"""An MCP server of the SDK on a real socket, which misbehaves as a test wants."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp.types as mcp_types
from mcp import MCPError
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import RedirectResponse, Response

from tests.gateway.asgi_server import serve

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
IMAGE = "iVBORw0KGgoAAAANSUhEUg=="


def describe(name: str, schema: dict[str, Any] | None = None, **more: Any) -> mcp_types.Tool:
    return mcp_types.Tool(**{"name": name, "description": f"Tool {name}.", "input_schema": schema or TEXT, **more})


def default_tools() -> dict[str, mcp_types.Tool]:
    """Return a tool of each kind. `look` says that it only reads."""
    names = ("echo", "write", "fail", "reject", "crash", "kinds", "structured", "repeat", "hang", "ask")
    look = describe("look", annotations=mcp_types.ToolAnnotations(read_only_hint=True))
    return {each.name: each for each in (*map(describe, names), look)}


@dataclass
class ForeignServer:
    """The server, and what it received."""

    is_modern: bool = True
    """False for a server that has sessions, and knows only protocols before 2026."""
    answers_json: bool = False
    """False for streams of events."""
    tools: dict[str, mcp_types.Tool] = field(default_factory=default_tools)
    faults: deque[str] = field(default_factory=deque)
    """A fault for each of the next HTTP requests; empty for none."""
    token: str = ""
    """Token that requests must have; empty for none."""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    """Headers of the requests."""
    hanging: int = 0
    """Number of calls that hang now."""
    url: str = ""

    @asynccontextmanager
    async def run(self, listening: Any = None) -> AsyncIterator["ForeignServer"]:
        """Run the server while the block runs."""
        raised: BaseException | None = None
        async with AsyncExitStack() as self._stack:
            await self.restart()
            async with serve(self._answer, listening) as address:
                self.url = f"{address}/mcp"
                try:
                    yield self
                except BaseException as error:  # noqa: BLE001 - the SDK would wrap it in a group of errors
                    raised = error
        if raised is not None:
            raise raised

    async def restart(self) -> None:
        """Forget all sessions."""
        await self._stack.aclose()
        server: Server[Any] = Server("foreign", on_list_tools=self._list_tools, on_call_tool=self._call_tool)
        self._manager = StreamableHTTPSessionManager(
            server, json_response=self.answers_json, max_request_body_size=2**26
        )
        await self._stack.enter_async_context(self._manager.run())

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append(headers)
        version = headers.get("mcp-protocol-version", HANDSHAKE_PROTOCOL_VERSIONS[-1])
        fault = self.faults.popleft() if self.faults else ""
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            await Response("SECRET", 401)(scope, receive, send)
        elif fault:
            await self._misbehave(fault, scope, receive, send)
        elif not self.is_modern and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await Response(status_code=404)(scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)

    async def _misbehave(self, fault: str, scope: Any, receive: Any, send: Any) -> None:
        kind, _, detail = fault.partition(" ")
        if kind == "status":
            await Response("SECRET", int(detail))(scope, receive, send)
        elif kind == "redirect":
            await RedirectResponse(detail)(scope, receive, send)
        elif kind == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
        elif kind == "zip":
            await Response(b"x", headers={"Content-Encoding": "gzip"})(scope, receive, send)
        elif kind == "garbage":
            await Response(b"[" * 9999, media_type="application/json")(scope, receive, send)
        elif kind == "lost":
            await self._manager.handle_request(scope, receive, _cut_off(send))
        elif kind == "endless":
            head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
            await send(head)
            event = (
                b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%b"}}\n\n'
            )
            for _ in range(1000):
                await send({"type": "http.response.body", "body": event % (b"x" * 60_000), "more_body": True})
                await asyncio.sleep(0)  # sending does not wait for a client that is gone

    async def _list_tools(self, _: Any, params: Any) -> mcp_types.ListToolsResult:
        """Return the tools, seven on a page."""
        every, begin = list(self.tools.values()), int((params and params.cursor) or 0)
        more = str(begin + 7) if begin + 7 < len(every) else None
        return mcp_types.ListToolsResult(tools=every[begin : begin + 7], next_cursor=more)

    async def _call_tool(self, _: Any, params: mcp_types.CallToolRequestParams) -> Any:
        given = params.arguments or {}
        self.calls.append((params.name, given))
        text = str(given.get("text", ""))
        blocks: list[Any] = [mcp_types.TextContent(text=text)]
        if params.name not in self.tools:
            return mcp_types.CallToolResult(content=[mcp_types.TextContent(text="no such tool")], is_error=True)
        match params.name:
            case "crash":
                raise MCPError(mcp_types.INTERNAL_ERROR, f"SECRET {text}")
            case "reject":
                raise MCPError(mcp_types.INVALID_PARAMS, f"wrong: {text}")
            case "hang":
                self.hanging += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    self.hanging -= 1
            case "ask":
                return mcp_types.InputRequiredResult(request_state="again")
            case "repeat":
                blocks = [mcp_types.TextContent(text="x" * int(text))]
            case "structured":
                return mcp_types.CallToolResult(content=[], structured_content={"text": text})
            case "kinds":
                blocks += _list_kinds()
        return mcp_types.CallToolResult(content=blocks, is_error=params.name == "fail")


def _list_kinds() -> list[Any]:
    """Return content of every kind but text."""
    resource: dict[str, Any] = {"uri": "file:///a.txt"}
    return [
        mcp_types.ImageContent(data=IMAGE, mime_type="image/png"),
        mcp_types.AudioContent(data=IMAGE, mime_type="audio/wav"),
        mcp_types.ResourceLink(name="report", uri="https://example.com/report"),
        mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text="in a file", **resource)),
        mcp_types.EmbeddedResource(resource=mcp_types.BlobResourceContents(blob=IMAGE, **resource)),
    ]


def _cut_off(send: Any) -> Any:
    """Return a function that sends the head of a response and a part of its body, and then closes the connection."""

    async def cut(message: Any) -> None:
        if message["type"] == "http.response.start":
            kept = [each for each in message["headers"] if each[0] != b"content-length"]
            message = {**message, "headers": [*kept, (b"content-length", b"99999")]}
        if message.get("body"):
            message = {"type": "http.response.body", "body": b"x", "more_body": False}
        await send(message)

    return cut
