"""An MCP server (streamable HTTP) with the tools of all running episodes: each key sees those of its own episode."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import mcp.types as mcp_types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gumshoe.environments.tools import Call
from gumshoe.gateway.episode_tools import ToolEpisode, list_tool_schemas
from gumshoe.gateway.foreign_tools import ForeignTools
from gumshoe.gateway.gateway_errors import GatewayError, LimitReachedError
from gumshoe.gateway.mcp_logging import quiet_sdk
from gumshoe.installation import DISTRIBUTION

MAX_BODY = 1024 * 1024
"""Maximum number of bytes of a request."""
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_SECURITY = TransportSecuritySettings(
    allowed_hosts=[*_HOSTS, *(f"{each}:*" for each in _HOSTS)],
    allowed_origins=[f"http://{each}{port}" for each in _HOSTS for port in ("", ":*")],
)

RequestContext = ServerRequestContext[Any, Any]


class EpisodeMcp:
    """ASGI application of the MCP server.

    Requests must have their episode in `scope["state"]["episode"]`, put there by whoever has checked their key. There
    are no sessions, resources or prompts: a request needs nothing but its key, and a session id in it is ignored.
    Requests from web pages, and to other host names than those of this machine, are refused.
    """

    def __init__(self, foreign: ForeignTools | None = None) -> None:
        self._foreign = foreign or ForeignTools()
        server: Server[Any] = Server(
            "gumshoe-episode",
            version=version(DISTRIBUTION),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            get_tool_input_schema=lambda _: None,  # no tool takes arguments in headers
        )
        server.middleware.clear()  # traces would have texts of agents
        self._sessions = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, security_settings=_SECURITY, max_request_body_size=MAX_BODY
        )

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Answer requests while the block runs. It can run once."""
        raised: BaseException | None = None
        async with self._sessions.run():
            try:
                yield
            except BaseException as error:  # noqa: BLE001 - the SDK would wrap it in a group of errors
                raised = error
        if raised is not None:
            raise raised

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        if scope.get("state", {}).get("episode") is None:
            refused = JSONResponse({"error": "no valid key"}, 401, {"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send)
        elif scope["method"] != "POST":  # GET would open a stream without events
            await JSONResponse({"error": "use POST"}, 405, {"Allow": "POST"})(scope, receive, send)
        else:
            with quiet_sdk():
                await self._sessions.handle_request(scope, receive, send)

    async def _list_tools(self, context: RequestContext, _: Any) -> mcp_types.ListToolsResult:
        functions = [each["function"] for each in list_tool_schemas(_get_episode(context), self._foreign)]
        return mcp_types.ListToolsResult(
            tools=[
                mcp_types.Tool(name=each["name"], description=each["description"], input_schema=each["parameters"])
                for each in functions
            ]
        )

    async def _call_tool(
        self, context: RequestContext, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        """Return the text of the result. Mistakes in a call are text as well, as in Gumshoe's own loop.

        Raises:
            MCPError: if the episode is over, or a tool failed.
        """
        call = Call(params.name, params.arguments or {})
        try:
            return _to_result(await _get_episode(context).call_tool(call))
        except LimitReachedError as error:  # an agent may show it to the model and go on without tools
            return _to_result(f"Error: {error}", is_error=True)
        except GatewayError as error:
            raise MCPError(mcp_types.INTERNAL_ERROR, error.message_with_code) from None
        except Exception as error:  # noqa: BLE001 - the SDK would log its message, or send it to the agent
            raise MCPError(mcp_types.INTERNAL_ERROR, f"the tool failed: {type(error).__name__}") from None


def create_episode_mcp(foreign: ForeignTools | None = None) -> EpisodeMcp:
    """Create the MCP server of all episodes, with the tools of other MCP servers beside the episodes' own."""
    return EpisodeMcp(foreign)


def _get_episode(context: RequestContext) -> ToolEpisode:
    episode: ToolEpisode = context.request.state.episode  # type: ignore[union-attr]
    return episode


def _to_result(text: str, *, is_error: bool = False) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=[mcp_types.TextContent(text=text)], is_error=is_error)
