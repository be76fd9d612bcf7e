"""The HTTP server of the gateway: OpenAI's APIs and MCP, for the agents of running episodes.

A key in the header `Authorization` names the episode. Invariant: whatever an agent sends, it reaches no other episode,
and nothing of its text is logged.
"""

import asyncio
import gc
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import uvicorn
from openai.types import Model
from starlette.types import Message, Receive, Scope, Send

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.gateway.admitted_episodes import AdmittedEpisode, AdmittedEpisodes, ServedEpisode
from gumshoe.gateway.api_fields import ApiRequest, read_body
from gumshoe.gateway.chat_requests import ChatRequest
from gumshoe.gateway.error_responses import describe_error, find_status, write_error
from gumshoe.gateway.event_streams import KEEP_ALIVE
from gumshoe.gateway.gateway_connections import ConnectionConfig, GatewayConnection, accept_connections
from gumshoe.gateway.gateway_errors import (
    GatewayError,
    InvalidRequestError,
    RequestTooLargeError,
    RequestTooSlowError,
    UnknownKeyError,
    UnknownRouteError,
    WrongMethodError,
)
from gumshoe.gateway.gateway_limits import GatewayLimits
from gumshoe.gateway.messages import ModelResponse
from gumshoe.gateway.response_requests import ResponseRequest, response_id

_SECRET_QUERY = {"key", "api_key", "api-key", "token", "access_token"}
_CHAT, _RESPONSES, _MODELS, _MCP = "/v1/chat/completions", "/v1/responses", "/v1/models", "/mcp"
_EVENTS = b"text/event-stream; charset=utf-8"
_DISCARDED = 8  # times the maximum size of a body that is read before the error, so that clients get it

_log = logging.getLogger(__name__)


class McpApp(Protocol):
    """The MCP server of all episodes. See `EpisodeMcp`."""

    def run(self) -> AbstractAsyncContextManager[None]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Gateway:
    """The addresses of a running gateway, and the episodes whose keys it accepts."""

    def __init__(self, address: str, episodes: AdmittedEpisodes) -> None:
        self.base_url = f"{address}/v1"
        """Address of OpenAI's APIs."""
        self.mcp_url = f"{address}{_MCP}"
        """Address of the MCP server."""
        self._episodes = episodes

    def admit(self, episode: ServedEpisode) -> AbstractContextManager[AdmittedEpisode]:
        """Accept the key of an episode while the block runs. Requests that still run at its end are cancelled."""
        return self._episodes.admit(episode)


@asynccontextmanager
async def open_gateway(
    mcp_app: McpApp | None = None, host: str = "127.0.0.1", port: int = 0, limits: GatewayLimits | None = None
) -> AsyncIterator[Gateway]:
    """Serve the gateway in the running event loop, by default on a free port, and yield it while the block runs.

    Raises:
        OSError: if the address cannot be used.
    """
    limits = limits or GatewayLimits()
    episodes = AdmittedEpisodes(limits)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=1024) as listening:
        # Accepted sockets inherit it. asyncio sets it only if a socket's protocol is TCP; this one's is 0.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        config = ConnectionConfig(_GatewayApp(episodes, limits, mcp_app), limits)
        server = _QuietServer(config)
        async with _running(mcp_app):
            gc.freeze()  # a full collection of all objects, e.g. those of a model, would delay all episodes
            serving = asyncio.create_task(server.serve(sockets=[]))
            try:
                while not server.started:
                    if serving.done():
                        serving.result()
                    await asyncio.sleep(0.005)
                async with _accepting(listening, config, server):
                    yield Gateway(address, episodes)
            finally:
                server.should_exit = True
                await serving
                gc.unfreeze()


@asynccontextmanager
async def _accepting(listening: socket.socket, config: ConnectionConfig, server: "_QuietServer") -> AsyncIterator[None]:
    accepting = asyncio.create_task(accept_connections(listening, config, server.create_connection))
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)


@asynccontextmanager
async def _running(mcp_app: McpApp | None) -> AsyncIterator[None]:
    if mcp_app is None:
        yield
        return
    async with mcp_app.run():
        yield


class _QuietServer(uvicorn.Server):
    """Server that leaves signals to the process, and accepting connections to `accept_connections`."""

    config: ConnectionConfig

    def create_connection(self) -> GatewayConnection:
        """Return the protocol of a new connection."""
        return GatewayConnection(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


@dataclass(slots=True)
class _Reply:
    """The response to one request."""

    connection: GatewayConnection
    sending: Send
    is_started: bool = False
    write_failure: Callable[[dict[str, Any]], bytes] | None = None
    """Write the last event of a stream that has begun and fails."""

    async def send(self, message: Message) -> None:
        """Send a message of ASGI."""
        self.is_started = True
        await self.sending(message)

    async def begin(self, content_type: bytes, length: int | None = None) -> None:
        """Send the headers of a success."""
        headers = [(b"content-type", content_type), (b"cache-control", b"no-store")]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def add(self, part: bytes, *, is_last: bool = False) -> None:
        """Send a part of the body."""
        await self.send({"type": "http.response.body", "body": part, "more_body": not is_last})

    async def write(self, body: bytes, content_type: bytes = b"application/json") -> None:
        """Send all of a success."""
        with self.connection.join_writes():
            await self.begin(content_type, len(body))
            await self.add(body, is_last=True)

    async def fail(self, error: GumshoeError) -> None:
        """Send an error. A response that has begun, and is no stream of events, is cut off."""
        if not self.is_started:
            headers, body = write_error(error)
            if isinstance(error, RequestTooLargeError | RequestTooSlowError):  # the rest of it may still come
                headers.append((b"connection", b"close"))
            await self.send({"type": "http.response.start", "status": find_status(error), "headers": headers})
            await self.add(body, is_last=True)
        elif self.write_failure is not None:
            await self.add(self.write_failure(describe_error(error)), is_last=True)


@dataclass(frozen=True, slots=True)
class _GatewayApp:
    """ASGI application of the gateway."""

    episodes: AdmittedEpisodes
    limits: GatewayLimits
    mcp_app: McpApp | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        connection: GatewayConnection = scope["state"]["connection"]
        task = connection.request = asyncio.current_task()
        reply = _Reply(connection, send)
        try:
            await self._answer(scope, receive, reply)
        except asyncio.CancelledError:
            if not connection.is_lost:
                raise
        except GumshoeError as error:
            if not isinstance(error, GatewayError | UsageError):
                _log.error("a request of an agent failed: %s", error.code)
            await reply.fail(error)
        except Exception as error:  # noqa: BLE001 - its traceback could show texts of the agent
            _log.error("a request of an agent failed: %s", type(error).__name__)
            await reply.fail(GumshoeError("gateway.internal-error", "the request failed"))
        finally:
            if connection.request is task:
                connection.request = None

    async def _answer(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        admitted = self._find_episode(scope)
        reply.connection.identify(admitted.episode.key)
        path, method = scope["path"].removesuffix("/"), scope["method"]
        if path == _MCP and self.mcp_app is not None:
            scope["state"]["episode"] = admitted.episode
            with self.episodes.run_request(admitted, "tools"):
                await self.mcp_app(scope, receive, reply.send)
        elif path in (_CHAT, _RESPONSES):
            _check_method(method, "POST")
            with self.episodes.run_request(admitted, "model"):
                await self._complete(path, admitted, receive, reply)
        elif path == _MODELS or path.startswith(f"{_MODELS}/"):
            _check_method(method, "GET")
            name = path.removeprefix(_MODELS).removeprefix("/")
            await reply.write(orjson.dumps(_describe_model(name) if name else _list_models()))
        else:
            raise UnknownRouteError(
                "gateway.unknown-route", "the gateway does not serve this path; the base URL ends in /v1"
            )

    def _find_episode(self, scope: Scope) -> AdmittedEpisode:
        """Return the episode whose key a request has.

        Raises:
            InvalidRequestError: if the URL has a key.
            UnknownKeyError: if the header has none, or a wrong one.
        """
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
        key = key.strip()
        url = f"{scope['path']}?{scope['query_string'].decode('latin-1')}"
        names = {part.partition("=")[0].lower() for part in url.partition("?")[2].split("&")}
        if names & _SECRET_QUERY or (key and key in url):
            raise InvalidRequestError("gateway.key-in-url", "keys are accepted in the header Authorization alone")
        admitted = self.episodes.find(key) if scheme.lower() == "bearer" else None
        if admitted is None:
            raise UnknownKeyError("gateway.unknown-key", "the key belongs to no running episode")
        return admitted

    async def _complete(self, path: str, admitted: AdmittedEpisode, receive: Receive, reply: _Reply) -> None:
        data = await self._receive_body(receive)
        body = read_body(data)
        asked = ChatRequest.parse(body) if path == _CHAT else ResponseRequest.parse(body, admitted.responses)
        found = await self._sample(asked, admitted, reply)
        if isinstance(asked, ResponseRequest):
            admitted.responses.add(response_id(found), asked.continue_history(found), len(data))
        if not asked.is_streamed:
            await reply.write(asked.write_body(found))
        elif reply.is_started:
            await reply.add(asked.write_stream(found), is_last=True)
        else:
            await reply.write(asked.write_stream(found), _EVENTS)

    async def _sample(self, asked: ApiRequest, admitted: AdmittedEpisode, reply: _Reply) -> ModelResponse:
        """Return the response of the policy. If it takes long, a stream begins with comments.

        Raises:
            GatewayError: as `ServedEpisode.complete`.
        """
        if not asked.is_streamed:
            return await admitted.episode.complete(asked.request)
        task = asyncio.create_task(admitted.episode.complete(asked.request))
        try:
            while not (await asyncio.wait({task}, timeout=self.limits.keep_alive))[0]:
                if not reply.is_started:
                    await reply.begin(_EVENTS)
                    reply.write_failure = asked.write_failure
                await reply.add(KEEP_ALIVE)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _receive_body(self, receive: Receive) -> bytes:
        """Return the body of a request.

        Raises:
            RequestTooLargeError: if it has too many bytes.
            RequestTooSlowError: if it does not arrive in time.
        """
        most, parts, size, goes_on = self.limits.body_bytes, list[bytes](), 0, True
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while goes_on and size <= _DISCARDED * most:
                    message = await receive()
                    part, goes_on = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    if size <= most:
                        parts.append(part)
        except TimeoutError:
            raise RequestTooSlowError("gateway.request-too-slow", "the body did not arrive in time") from None
        if size > most:
            raise RequestTooLargeError("gateway.body-too-large", f"a request may have {most:,} bytes")
        return b"".join(parts)


def _check_method(method: str, allowed: str) -> None:
    if method != allowed:
        raise WrongMethodError("gateway.wrong-method", f"this path is for {allowed} alone", allowed)


def _list_models() -> dict[str, Any]:
    return {"object": "list", "data": [_describe_model("policy")]}


def _describe_model(name: str) -> dict[str, Any]:
    return Model(id=name, object="model", created=int(time.time()), owned_by="gumshoe").model_dump(mode="json")
