"""What stands before every route: who asks, how much they may send, and what is told of it."""

import asyncio
import re
import secrets
import time
from dataclasses import dataclass

from opentelemetry.trace import StatusCode, Tracer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gumshoe.serving.access import Access, UnauthenticatedError
from gumshoe.serving.errors import RefusedRequestError, answer_to, log_unexpected
from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.telemetry import Metrics, request_id, span_of, told

PUBLIC = {"/": "/", "/page.js": "/page", "/page.css": "/page", "/healthz": "/healthz", "/readyz": "/readyz"}
PUBLIC |= {"/metrics": "/metrics", "/openapi.json": "/openapi.json"}
ROUTES = {"/invoke", "/invoke/stream", "/feedback", "/principal", "/mcp"}
_HERE = ("localhost", "127.0.0.1", "[::1]")
_READ = 20.0  # seconds for a request's body
_ID = re.compile(r"[\w.-]{1,64}", re.A)
_FAILED = 500
_QUIET = {"/healthz", "/readyz", "/metrics"}  # asked again and again, and not worth a line
_SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


@dataclass(slots=True)
class Middleware:
    """Passes on to `app` what is to be answered, with its whole body. In its state stand who asks (`principal`) and a
    dictionary for what its line in the log is to say (`told`). Everything but what is public needs a principal;
    where whoever asks leaves, the app's work is given up.
    """

    app: ASGIApp
    settings: ServeSettings
    access: Access
    metrics: Metrics
    tracer: Tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"].rstrip("/") or "/"
        route = PUBLIC.get(path) or (path if path in ROUTES else "other")
        state = scope["state"] = {**scope.get("state", {}), "told": {}}
        given = headers.get("x-request-id", "")
        held = request_id.set(given if _ID.fullmatch(given) else secrets.token_hex(8))
        answer = _ResponseWriter(send)
        started = time.monotonic()
        try:
            with span_of(self.tracer, f"{scope['method']} {route}", dict(headers)) as span:
                try:
                    await self._answered(scope, receive, answer, headers, route)
                except Exception as error:  # noqa: BLE001 - the outermost boundary
                    if isinstance(error, UnauthenticatedError):
                        self.metrics.refused.labels("unauthenticated").inc()
                    log_unexpected(error)
                    if not answer.has_begun:
                        await answer_to(error)(scope, receive, answer)
                span.set_attribute("http.response.status_code", answer.status)
                if answer.status >= _FAILED:
                    span.set_status(StatusCode.ERROR)
                if route not in _QUIET:
                    seconds = round(time.monotonic() - started, 4)
                    told("request", route=route, status=answer.status, seconds=seconds, **state["told"])
        finally:
            self.metrics.requests.labels(route, str(answer.status)).inc()
            self.metrics.latency.labels(route).observe(time.monotonic() - started)
            request_id.reset(held)

    async def _answered(
        self, scope: Scope, receive: Receive, answer: "_ResponseWriter", headers: Headers, route: str
    ) -> None:
        if route not in _QUIET:  # whoever probes a server knows its address, and no name
            self._check_host(headers.get("host", ""))
        if route not in PUBLIC.values():
            kind, _, credentials = headers.get("authorization", "").partition(" ")
            who = await self.access.principal(credentials.strip() if kind.lower() == "bearer" else None)
            scope["state"]["principal"] = who
            scope["state"]["told"]["principal"] = who.name
        if route == "/mcp" and scope["method"] != "POST":  # or a stream is opened that never says anything
            raise HTTPException(405, "Use POST for MCP.", {"Allow": "POST"})
        body = await self._body(receive, headers)
        leaving = asyncio.create_task(_left(receive))
        work = asyncio.ensure_future(self.app(scope, _replayed(body, leaving), answer))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            leaving.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)

    def _check_host(self, host: str) -> None:
        """Where access is open, a page of somebody else's that a browser on this machine shows must not reach the
        server under a name of its own.
        """
        access = self.settings.access
        allowed = access.allowed_hosts or (_HERE if access.open else ())
        name = re.sub(r":\d+$", "", host).lower()
        if allowed and name not in allowed:
            raise RefusedRequestError(
                "serving.host-not-allowed", 421, "Host not allowed", f"Host header {name!r} is not allowed."
            )

    async def _body(self, receive: Receive, headers: Headers) -> bytes:
        most = self.settings.limits.body
        too_large = RefusedRequestError(
            "serving.request-too-large", 413, "Request too large", f"A request may have at most {most:,} bytes."
        )
        if headers.get("content-length", "0").isdecimal() and int(headers.get("content-length", "0")) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(_READ):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedRequestError(
                            "serving.request-incomplete",
                            400,
                            "Incomplete request",
                            "The request ended before its body.",
                        )
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise RefusedRequestError(
                "serving.request-too-slow",
                408,
                "Request too slow",
                f"The body did not arrive within {_READ:g} seconds.",
            ) from None


def _replayed(body: bytes, leaving: "asyncio.Task[Message]") -> Receive:
    """The body that was read, and then what else comes: the end of the connection."""
    coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return coming.pop() if coming else await asyncio.shield(leaving)

    return next_message


async def _left(receive: Receive) -> Message:
    """The message that says that whoever asked is gone."""
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


class _ResponseWriter:
    """Passes an answer on, with the headers that all have."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 499  # whoever asked is gone
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            known = {name.lower() for name, _ in message.get("headers", [])}
            more = [each for each in _SAFE if each[0] not in known]
            headers = [*message.get("headers", []), *more, (b"x-request-id", request_id.get().encode())]
            message = {**message, "headers": headers}
        await self._send(message)
