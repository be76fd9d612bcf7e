"""The HTTP server of the gateway: OpenAI's APIs and MCP, for the agents of running episodes.

A key in the header `Authorization` names the episode. Invariant: whatever an agent sends, it reaches no other episode,
and nothing of its text is logged.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
import uvicorn
from openai.types import Model
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.gateway.api_fields import MAX_AT_ONCE, MAX_BODY
from gumshoe.gateway.chat_requests import ChatRequest
from gumshoe.gateway.gateway_errors import GatewayError, InvalidRequestError, LimitReachedError, UnknownKeyError
from gumshoe.gateway.messages import AgentMessage, ModelRequest, ModelResponse
from gumshoe.gateway.response_requests import ResponseRequest, response_id
from gumshoe.json_text import InvalidJsonError, load_json

_KEEP_ALIVE = 10.0  # seconds between the comments in a stream that waits for the policy
_IDLE = 120  # seconds after which an idle connection is closed
_SHUTDOWN = 5  # seconds that running requests have when the gateway closes
_SECRET_QUERY = {"key", "api_key", "api-key", "token", "access_token"}

_log = logging.getLogger(__name__)


class ServedEpisode(Protocol):
    """The part of an episode that the server needs. See `AgentEpisode`."""

    key: str

    async def complete(self, request: ModelRequest) -> ModelResponse: ...


class McpApp(Protocol):
    """The MCP server of all episodes. See `EpisodeMcp`."""

    def run(self) -> AbstractAsyncContextManager[None]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(slots=True, eq=False)
class _Admitted:
    episode: ServedEpisode
    responses: dict[str, tuple[AgentMessage, ...]] = field(default_factory=dict)
    """Messages up to the end of each response of the Responses API, by its id."""
    running: set[asyncio.Task[Any]] = field(default_factory=set)


class Gateway:
    """The addresses of a running gateway, and the episodes whose keys it accepts."""

    def __init__(self, address: str, admitted: dict[str, _Admitted]) -> None:
        self.base_url = f"{address}/v1"
        """Address of OpenAI's APIs."""
        self.mcp_url = f"{address}/mcp"
        """Address of the MCP server."""
        self._admitted = admitted

    @contextmanager
    def admit(self, episode: ServedEpisode) -> Iterator[None]:
        """Accept the key of an episode while the block runs. Requests that still run at its end are cancelled."""
        admitted = self._admitted[episode.key] = _Admitted(episode)
        try:
            yield
        finally:
            del self._admitted[episode.key]
            for task in admitted.running:
                task.cancel()


@asynccontextmanager
async def open_gateway(mcp_app: McpApp | None = None, host: str = "127.0.0.1") -> AsyncIterator[Gateway]:
    """Serve the gateway on a free port in the running event loop, and yield it while the block runs.

    Raises:
        OSError: if the address cannot be used.
    """
    admitted: dict[str, _Admitted] = {}
    with socket.create_server((host, 0), backlog=1024) as listening:
        address = f"http://{host}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            _build_app(admitted, mcp_app),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=_SHUTDOWN,
        )
        server = _QuietServer(config)
        async with _running(mcp_app):
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                while not server.started:
                    if serving.done():
                        serving.result()
                    await asyncio.sleep(0.005)
                yield Gateway(address, admitted)
            finally:
                server.should_exit = True
                await serving


@asynccontextmanager
async def _running(mcp_app: McpApp | None) -> AsyncIterator[None]:
    if mcp_app is None:
        yield
        return
    async with mcp_app.run():
        yield


class _QuietServer(uvicorn.Server):
    """Server that leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


def _build_app(admitted: dict[str, _Admitted], mcp_app: ASGIApp | None) -> ASGIApp:
    def route(path: str, answer: Callable[[Request, _Admitted], Coroutine[Any, Any, Response]], method: str) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await answer(request, request.state.admitted)
            except GumshoeError as error:
                return _write_error(error)
            except Exception as error:  # noqa: BLE001 - its traceback could show texts of the agent
                _log.error("a request of an agent failed: %s", type(error).__name__)
                return _write_json({"error": {"message": "internal error", "type": "server_error"}}, 500)

        return Route(path, endpoint, methods=[method])

    routes: list[Any] = [
        route("/v1/chat/completions", _complete_chat, "POST"),
        route("/v1/responses", _create_response, "POST"),
        route("/v1/models", _list_models, "GET"),
        route("/v1/models/{name:path}", _read_model, "GET"),
    ]
    if mcp_app is not None:
        routes.append(Mount("/mcp", mcp_app))
    return _CheckedApp(Starlette(routes=routes), admitted)


@dataclass(frozen=True, slots=True)
class _CheckedApp:
    """Find the episode of each request, by its key."""

    app: ASGIApp
    admitted: dict[str, _Admitted]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        try:
            admitted = self._find_episode(scope)
        except GatewayError as error:
            await _write_error(error)(scope, receive, send)
            return
        scope.setdefault("state", {}).update(admitted=admitted, episode=admitted.episode)
        if scope["path"] == "/mcp":  # a mount would redirect
            scope["path"] = "/mcp/"
        await self.app(scope, receive, send)

    def _find_episode(self, scope: Scope) -> _Admitted:
        query = {part.partition(b"=")[0].decode("latin-1").lower() for part in scope["query_string"].split(b"&")}
        if query & _SECRET_QUERY:
            raise InvalidRequestError("gateway.key-in-url", "keys are accepted in the header Authorization alone")
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
        admitted = self.admitted.get(key.strip()) if scheme.lower() == "bearer" else None
        if admitted is None:
            raise UnknownKeyError("gateway.unknown-key", "the key belongs to no running episode")
        return admitted


async def _complete_chat(request: Request, admitted: _Admitted) -> Response:
    asked = ChatRequest.parse(await _read_body(request))
    work = admitted.episode.complete(asked.request)
    if asked.is_streamed:

        def events(found: ModelResponse) -> Iterator[bytes]:
            for chunk in asked.write_chunks(found):
                yield b"data: " + chunk.model_dump_json(exclude_unset=True).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"

        return _stream(_start(admitted, work), events)
    found = await _run(request, _start(admitted, work))
    return _write_json(asked.write_completion(found).model_dump(mode="json", exclude_unset=True))


async def _create_response(request: Request, admitted: _Admitted) -> Response:
    asked = ResponseRequest.parse(await _read_body(request), admitted.responses)

    async def work() -> ModelResponse:
        found = await admitted.episode.complete(asked.request)
        admitted.responses[response_id(found)] = asked.continue_history(found)
        return found

    if asked.is_streamed:

        def events(found: ModelResponse) -> Iterator[bytes]:
            for event in asked.write_events(found):
                yield b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"

        return _stream(_start(admitted, work()), events)
    found = await _run(request, _start(admitted, work()))
    return _write_json(asked.write_response(found).model_dump(mode="json", exclude_unset=True))


async def _list_models(_: Request, admitted: _Admitted) -> Response:  # noqa: ARG001
    return _write_json({"object": "list", "data": [_describe_model("policy")]})


async def _read_model(request: Request, _: _Admitted) -> Response:
    return _write_json(_describe_model(str(request.path_params["name"])))


def _describe_model(name: str) -> dict[str, Any]:
    return Model(id=name, object="model", created=int(time.time()), owned_by="gumshoe").model_dump(mode="json")


async def _read_body(request: Request) -> dict[str, Any]:
    """Return the body, a JSON object.

    Raises:
        InvalidRequestError: if it is too large, or something else.
    """
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise InvalidRequestError("gateway.body-too-large", f"a request may have {MAX_BODY:,} bytes")
        parts.append(part)
    try:
        body = load_json(b"".join(parts))
    except InvalidJsonError as error:
        raise InvalidRequestError("gateway.invalid-request", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequestError("gateway.invalid-request", "the body must be a JSON object")
    return body


def _start(admitted: _Admitted, work: Coroutine[Any, Any, ModelResponse]) -> asyncio.Task[ModelResponse]:
    """Start a request, which ends with its episode.

    Raises:
        LimitReachedError: if too many run.
    """
    if len(admitted.running) >= MAX_AT_ONCE:
        work.close()
        raise LimitReachedError("gateway.too-many-requests", f"an episode may have {MAX_AT_ONCE} requests at once")
    task = asyncio.create_task(work)
    admitted.running.add(task)
    task.add_done_callback(admitted.running.discard)
    return task


async def _run(request: Request, task: asyncio.Task[ModelResponse]) -> ModelResponse:
    """Wait for a request, and cancel it if the client disconnects.

    Raises:
        GatewayError: as `ServedEpisode.complete`, or if the episode is over.
    """
    leaving = asyncio.create_task(_wait_until_left(request))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not task.done():
            task.cancel()
    return await _result_of(task)


async def _result_of(task: asyncio.Task[ModelResponse]) -> ModelResponse:
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise UnknownKeyError("gateway.unknown-key", "the episode is over") from None


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _stream(task: asyncio.Task[ModelResponse], write: Callable[[ModelResponse], Iterator[bytes]]) -> Response:
    """Return a response that streams events once the turn is complete, and comments until then."""

    async def parts() -> AsyncIterator[bytes]:
        try:
            while not (await asyncio.wait({task}, timeout=_KEEP_ALIVE))[0]:
                yield b": waiting\n\n"
            for part in write(await _result_of(task)):
                yield part
        except GumshoeError as error:
            yield b"data: " + orjson.dumps(_describe_error(error)) + b"\n\n"
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    return StreamingResponse(parts(), media_type="text/event-stream", headers={"cache-control": "no-store"})


def _write_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def _describe_error(error: GumshoeError) -> dict[str, Any]:
    api_type = error.api_type if isinstance(error, GatewayError) else "invalid_request_error"
    code = error.api_code if isinstance(error, GatewayError) else None
    return {"error": {"message": str(error), "type": api_type, "param": None, "code": code or error.code}}


def _write_error(error: GumshoeError) -> Response:
    """Return an error in OpenAI's form. A second attempt never helps, so clients are told not to make one."""
    if isinstance(error, GatewayError):
        status = error.status
    elif isinstance(error, UsageError):
        status = 400
    else:
        _log.error("a request of an agent failed: %s", error.code)
        status = 500
    return _write_json(_describe_error(error), status, {"x-should-retry": "false"})
