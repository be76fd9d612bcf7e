"""Connect to an MCP server with deadlines and bounded responses, and again if the connection is lost."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2
import mcp.types as mcp_types
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel, RootModel

from gumshoe.errors import UnavailableError, UsageError
from gumshoe.gateway.mcp_logging import quiet_sdk
from gumshoe.gateway.mcp_transport import MAX_RESPONSE, GuardedTransport, McpExchange, current_exchange
from gumshoe.network import clean_credential, find_proxy, is_local_network
from gumshoe.redaction import register_secret
from gumshoe.rollouts.agent_settings import ToolServerSettings

MAX_CALLS = 32
"""Maximum number of requests to a server at once."""
TRIES = 3
"""Maximum number of attempts of a request."""
_FAILED = "gateway.tool-server-failed"
_PAUSE = 0.5  # seconds before the second attempt; twice as many before the third
_CONNECT_TIMEOUT = 10.0
_CLOSE_TIMEOUT = 5.0
_MAX_PAGES = 20  # of a list of tools
_BUSY = (408, 425, 429, 503)  # the server has not done what was asked, and may do it later
_LOST = (400, 404)  # of a server that does not know a session any more, e.g. because it was started again
ModelT = TypeVar("ModelT", bound=BaseModel)


class ToolServerError(UnavailableError):
    """Report that an MCP server failed. It is a failure of infrastructure, not of the model."""

    status = 0
    """HTTP status of its response; 0 without a response."""


class ToolRejectedError(Exception):
    """Report that an MCP server rejected a call because of its arguments, or that its result cannot be used."""


class _RawResult(RootModel[dict[str, Any]]):
    """A result of any kind."""


def _read_headers(settings: ToolServerSettings, place: str) -> dict[str, str]:
    """Return the headers of all requests to a server.

    Raises:
        UsageError: if the variable with its token is not set or malformed, or the token would be sent unencrypted.
    """
    headers = {"Accept-Encoding": "identity"}
    if settings.token_env is None:
        return headers
    code = "gateway.tool-server-token"
    token = clean_credential(os.environ.get(settings.token_env, ""))
    if not token:
        fault = "is not set" if token == "" else "contains white space or characters other than ASCII"
        raise UsageError(code, f"{settings.token_env}, the token for {place}, {fault}")
    if settings.mcp.startswith("http:") and not is_local_network(settings.mcp):
        raise UsageError(code, f"a token would be sent to {place} unencrypted; use https")
    register_secret(token)
    return {**headers, "Authorization": f"Bearer {token}"}


class _ClientTask:
    """A client of the SDK, in a task of its own: it must be closed by the task that opened it."""

    def __init__(self, settings: ToolServerSettings, headers: dict[str, str]) -> None:
        self._settings, self._headers = settings, headers
        self._closing = asyncio.Event()
        self._requests, self._is_idle = 0, asyncio.Event()
        self._is_idle.set()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.opening = McpExchange()
        self._task = asyncio.create_task(self._run())

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def _run(self) -> None:
        current_exchange.set(self.opening)
        try:
            with quiet_sdk():
                await self._serve()
        except asyncio.CancelledError:
            self._fail(ConnectionError("closed"))
            raise
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - the SDK raises errors of many kinds
            self._fail(_find_cause(error))

    async def _serve(self) -> None:
        url = self._settings.mcp
        # Without proxies for the local network, and with the certificates of SSL_CERT_FILE.
        limits = httpx2.Limits(max_connections=2 * MAX_CALLS, max_keepalive_connections=MAX_CALLS)
        transport = httpx2.AsyncHTTPTransport(proxy=find_proxy(url), limits=limits)
        # Longer than the deadline of requests: for what the SDK sends without being asked.
        timeout = httpx2.Timeout(self._settings.deadline + _CONNECT_TIMEOUT, connect=_CONNECT_TIMEOUT)
        async with (
            httpx2.AsyncClient(transport=GuardedTransport(transport), headers=self._headers, timeout=timeout) as http,
            Client(
                streamable_http_client(url, http_client=http, max_sse_event_size=MAX_RESPONSE), cache=None
            ) as client,
        ):
            current_exchange.set(None)
            if not self._opened.done():
                self._opened.set_result(client)
            await self._closing.wait()

    def _fail(self, error: BaseException) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    async def wait(self) -> Client:
        """Return the client as soon as it is connected.

        Raises:
            Exception: if it cannot be connected. `opening` says more.
        """
        return await asyncio.shield(self._opened)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the client open for a request while the block runs, if `retire` is called."""
        self._requests += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._is_idle.set()

    async def retire(self) -> None:
        """Close the client as soon as it has no requests. Each ends with its deadline at the latest."""
        await self._is_idle.wait()
        await self.close()

    async def close(self) -> None:
        """Close the client. A server that does not let it end is left after some seconds."""
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.wait([self._task], timeout=_CLOSE_TIMEOUT)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._opened.done():
            self._opened.exception()  # retrieved, or asyncio logs it


def _find_cause(error: BaseException) -> BaseException:
    """Return the first error in a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return ConnectionError("closed") if isinstance(error, asyncio.CancelledError) else error


class McpConnection:
    """A connection to an MCP server, for all episodes of a run. It is opened when it is needed."""

    def __init__(self, settings: ToolServerSettings) -> None:
        self.settings = settings
        self.place = settings.mcp.partition("?")[0]
        """Address of the server for messages. What follows it may be secret."""
        self._headers = _read_headers(settings, self.place)
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._current: _ClientTask | None = None
        self._retired: dict[_ClientTask, asyncio.Task[None]] = {}

    async def list_tools(self) -> list[mcp_types.Tool]:
        """Return the tools of the server.

        Raises:
            ToolServerError: if it fails.
        """
        tools, cursor = list[mcp_types.Tool](), None
        for _ in range(_MAX_PAGES):
            given = mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None
            try:
                page = await self._request(mcp_types.ListToolsRequest(params=given), is_repeatable=True)
            except ToolRejectedError:
                raise self._report(_FAILED, "it does not list its tools, or they are too many") from None
            found = self._parse(mcp_types.ListToolsResult, page)
            tools += found.tools
            cursor = found.next_cursor
            if not cursor:
                return tools
        raise self._report(_FAILED, f"its list of tools has more than {_MAX_PAGES} pages")

    async def call(self, name: str, arguments: dict[str, Any], *, is_repeatable: bool) -> mcp_types.CallToolResult:
        """Call a tool. If the connection is lost during the call, it is repeated only if it `is_repeatable`.

        Raises:
            ToolRejectedError: if the server rejects the arguments, asks for more, or its result is too large.
            ToolServerError: if it fails.
        """
        given = mcp_types.CallToolRequestParams(name=name, arguments=arguments)
        result = await self._request(mcp_types.CallToolRequest(params=given), is_repeatable=is_repeatable)
        if result.get("resultType") == "input_required":
            raise ToolRejectedError("the tool asks for input of the user, which is not available")
        return self._parse(mcp_types.CallToolResult, result)

    async def close(self) -> None:
        """Close the connection. Requests that still run fail."""
        self._drop(self._current)
        retired = dict(self._retired)
        await asyncio.gather(*(each.close() for each in retired))
        for each in retired.values():
            each.cancel()
        await asyncio.gather(*retired.values(), return_exceptions=True)

    async def _request(self, request: mcp_types.Request[Any, Any], *, is_repeatable: bool) -> dict[str, Any]:
        """Send a request, within the deadline, and return its result. See `call`."""
        async with self._slots:
            timer = asyncio.timeout(self.settings.deadline)
            try:
                async with timer:
                    for attempt in range(1, TRIES):
                        try:
                            return await self._send(request)
                        except _FailedAttemptError as failed:
                            if not (failed.is_safe or is_repeatable):
                                raise
                        await asyncio.sleep(_PAUSE * attempt)
                    return await self._send(request)
            except _FailedAttemptError as failed:
                raise self._report(_FAILED, str(failed), failed.status) from None
            except TimeoutError:
                if not timer.expired():
                    raise
                raise self._report(
                    "gateway.tool-server-timeout", f"it did not answer within {self.settings.deadline:g} seconds"
                ) from None

    async def _send(self, request: mcp_types.Request[Any, Any]) -> dict[str, Any]:
        """Send a request once.

        Raises:
            ToolRejectedError, ToolServerError: as `call`.
            _FailedAttemptError: if another attempt may succeed.
        """
        task, client = await self._connect()
        seen = McpExchange()
        token = current_exchange.set(seen)
        try:
            with task.hold(), quiet_sdk():
                return (await client.session.send_request(request, _RawResult)).root
        except MCPError as error:
            self._explain(error, seen, task, is_session=client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS)
            raise self._report(_FAILED, seen.describe(error), seen.status) from None
        except ValueError as error:  # of pydantic, for a result that is not one
            raise self._report(_FAILED, f"its response is invalid: {seen.describe(error)}", seen.status) from None
        except Exception as error:  # noqa: BLE001 - the SDK raises errors of many kinds
            self._drop(task)
            raise _FailedAttemptError(seen.describe(error), seen.status, is_safe=False) from None
        finally:
            current_exchange.reset(token)

    def _explain(self, error: MCPError, seen: McpExchange, task: _ClientTask, *, is_session: bool) -> None:
        """Raise what follows from an error of the SDK, unless the request has failed for good."""
        detail = seen.describe(error)
        if seen.is_too_large:
            raise ToolRejectedError(f"the result has more than {MAX_RESPONSE:,} bytes; ask for less") from None
        if error.code == mcp_types.INVALID_PARAMS:
            raise ToolRejectedError(error.message) from None
        if seen.fault:
            raise _FailedAttemptError(detail, seen.status, is_safe=not seen.was_sent) from None
        if seen.status in _BUSY:
            raise _FailedAttemptError(detail, seen.status, is_safe=True) from None
        if is_session and seen.status in _LOST:
            self._drop(task)
            raise _FailedAttemptError(detail, seen.status, is_safe=True) from None
        if error.code == mcp_types.CONNECTION_CLOSED:
            if task.is_over:
                self._drop(task)
            raise _FailedAttemptError(detail, seen.status, is_safe=False) from None

    async def _connect(self) -> tuple[_ClientTask, Client]:
        """Return the connected client.

        Raises:
            ToolServerError: if the server refuses it.
            _FailedAttemptError: if another attempt may succeed.
        """
        async with self._lock:
            if self._current is None or self._current.is_over:
                self._drop(self._current)
                self._current = _ClientTask(self.settings, self._headers)
            task = self._current
            try:
                return task, await task.wait()
            except asyncio.CancelledError:
                if not task.is_over:  # the deadline of this request has passed: the next one connects again
                    self._drop(task)
                raise
            except Exception as error:  # noqa: BLE001 - the SDK raises errors of many kinds
                self._drop(task)
                seen = task.opening
                detail = f"cannot connect: {seen.describe(error)}"
                if seen.fault or seen.status == 0 or seen.status >= 500 or seen.status in _BUSY:
                    raise _FailedAttemptError(detail, seen.status, is_safe=True) from None
                raise self._report(_FAILED, detail, seen.status) from None

    def _drop(self, task: _ClientTask | None) -> None:
        """Close a client as soon as it has no requests. The next request opens another one."""
        if task is None or task is not self._current:
            return
        self._current = None
        self._retired[task] = asyncio.create_task(task.retire())
        self._retired[task].add_done_callback(lambda _: self._retired.pop(task))

    def _report(self, code: str, detail: str, status: int = 0) -> ToolServerError:
        error = ToolServerError(code, f"MCP server {self.place} failed: {detail}")
        error.status = status
        return error

    def _parse(self, model: type[ModelT], value: dict[str, Any]) -> ModelT:
        try:
            return model.model_validate(value, by_name=False)
        except ValueError:
            raise self._report(_FAILED, "its response is invalid") from None


class _FailedAttemptError(Exception):
    """Report that a request failed in a way that another attempt may not."""

    def __init__(self, detail: str, status: int, *, is_safe: bool) -> None:
        super().__init__(detail)
        self.status, self.is_safe = status, is_safe
        """`is_safe`: True if the server has not done what was asked, so that it can be asked again."""
