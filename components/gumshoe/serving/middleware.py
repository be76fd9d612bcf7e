"""Handle every request before its route: authenticate it, limit its size, and log it."""

import asyncio
import re
import secrets
import time
from dataclasses import dataclass

from asgi_correlation_id import CorrelationIdMiddleware
from opentelemetry.trace import StatusCode, Tracer
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gumshoe.serving.access import Access, UnauthenticatedError
from gumshoe.serving.audit_log import AuditLog
from gumshoe.serving.browser_checks import check_browser
from gumshoe.serving.callers import name_caller
from gumshoe.serving.errors import RefusedRequestError, build_error_response, log_unexpected
from gumshoe.serving.request_checks import check_body, check_head
from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.telemetry import Metrics, log_event, start_span
from gumshoe.serving.web_page import PAGE_PATHS

PUBLIC = {**dict.fromkeys(PAGE_PATHS, "/page"), "/": "/", "/healthz": "/healthz", "/readyz": "/readyz"}
PUBLIC |= {"/metrics": "/metrics", "/openapi.json": "/openapi.json"}
ROUTES = {"/invoke", "/invoke/stream", "/source", "/feedback", "/principal", "/mcp"}
_BODY_TIMEOUT = 20.0  # seconds
_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.A)
_FAILED = 500
_QUIET = {"/healthz", "/readyz", "/metrics"}  # probed frequently, so they are not logged
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def add_request_ids(app: ASGIApp) -> ASGIApp:
    """Give each request an ID: the caller's `X-Request-ID` if it is well-formed, or a random one."""
    return CorrelationIdMiddleware(
        app,
        generator=lambda: secrets.token_hex(8),
        validator=lambda given: _REQUEST_ID.fullmatch(given) is not None,
    )


@dataclass(slots=True)
class Middleware:
    """Authenticate requests and pass them to `app` with their complete body.

    The request's state contains its `principal`, the name under which its work is limited (`caller`), and a dictionary
    for its log line (`log_fields`). Only public paths need no principal. If the client disconnects, the app's work is
    cancelled.
    """

    app: ASGIApp
    settings: ServeSettings
    access: Access
    metrics: Metrics
    tracer: Tracer
    audit: AuditLog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"].rstrip("/") or "/"
        route = PUBLIC.get(path) or (path if path in ROUTES else "other")
        if route == path and path not in PAGE_PATHS:  # these answer with and without a slash at the end
            scope = {**scope, "path": path, "raw_path": path.encode()}
        state = scope["state"] = {**scope.get("state", {}), "log_fields": {}}
        answer = _ResponseWriter(send)
        started = time.monotonic()
        try:
            with start_span(self.tracer, f"{scope['method']} {route}", dict(headers)) as span:
                try:
                    await self._handle(scope, receive, answer, headers, route)
                except Exception as error:  # noqa: BLE001 - the outermost boundary
                    if isinstance(error, UnauthenticatedError):
                        self.metrics.refused.labels("unauthenticated").inc()
                    log_unexpected(error)
                    if not answer.has_begun:
                        await build_error_response(error)(scope, receive, answer)
                span.set_attribute("http.response.status_code", answer.status)
                if answer.status >= _FAILED:
                    span.set_status(StatusCode.ERROR)
                if route not in _QUIET:
                    seconds = round(time.monotonic() - started, 4)
                    log_event("request", route=route, status=answer.status, seconds=seconds, **state["log_fields"])
        finally:
            self.metrics.requests.labels(route, str(answer.status)).inc()
            self.metrics.latency.labels(route).observe(time.monotonic() - started)

    async def _handle(
        self, scope: Scope, receive: Receive, answer: "_ResponseWriter", headers: Headers, route: str
    ) -> None:
        check_head(scope)
        if route not in _QUIET:  # probes use the pod's IP address as host
            check_browser(scope, headers, self.settings.access, is_public=route in PUBLIC.values())
        if route not in PUBLIC.values():
            kind, _, credentials = headers.get("authorization", "").partition(" ")
            principal = await self.access.authenticate(credentials.strip() if kind.lower() == "bearer" else None)
            self.audit.start_trail(principal)
            scope["state"]["principal"] = principal
            scope["state"]["caller"] = name_caller(principal, (scope.get("client") or [None])[0])
            scope["state"]["log_fields"]["principal"] = principal.name
        if route == "/mcp" and scope["method"] != "POST":  # GET would open a stream without events
            raise HTTPException(405, "Use POST for MCP.", {"Allow": "POST"})
        body = await self._read_body(receive, headers)
        check_body(body)
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        work = asyncio.ensure_future(self.app(scope, _replay(body, disconnect), answer))
        try:
            await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            disconnect.cancel()
            await asyncio.gather(work, disconnect, return_exceptions=True)

    async def _read_body(self, receive: Receive, headers: Headers) -> bytes:
        most = self.settings.limits.body
        too_large = RefusedRequestError("serving.request-too-large", f"A request may have at most {most:,} bytes.")
        if headers.get("content-length", "0").isdecimal() and int(headers.get("content-length", "0")) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(_BODY_TIMEOUT):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedRequestError("serving.request-incomplete")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise RefusedRequestError(
                "serving.request-too-slow", f"The body did not arrive within {_BODY_TIMEOUT:g} seconds."
            ) from None


def _replay(body: bytes, disconnect: "asyncio.Task[Message]") -> Receive:
    """Return a receive function that yields the body that was read, and then the disconnect message."""
    coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return coming.pop() if coming else await asyncio.shield(disconnect)

    return next_message


async def _wait_for_disconnect(receive: Receive) -> Message:
    """Return the message that the client has disconnected."""
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


class _ResponseWriter:
    """Send a response with the headers that all responses have."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 499  # client closed the request
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)
