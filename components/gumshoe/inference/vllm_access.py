"""ASGI middleware of the vLLM servers that Gumshoe starts: access with a key, and adapters of one run only.

vLLM's own `--api-key` does not protect all paths, e.g. not `/tokenize`, `/invocations`, `/pause` and SageMaker's
`/adapters`. It also allows every client with the key to load any adapter, even from the hub. With this middleware
(`--middleware`):

- If VLLM_API_KEY is set, every request needs the key, except GET /health and GET /metrics, for probes and Prometheus.
- Adapters are loaded only from the directories in `DIRECTORIES_VARIABLE`, under the name of their directory, and never
  in place of another one. With `VERIFY_VARIABLE`, their files must be those of their manifest.
- SageMaker's routes for adapters are closed: a second way to load them.

It runs in vLLM's process and has no other dependency.
"""

import asyncio
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable with the key of a vLLM server. Servers require it, and clients send it."""
DIRECTORIES_VARIABLE = "GUMSHOE_ADAPTER_DIRECTORIES"
"""Environment variable with a JSON list of the directories that adapters may be loaded from. Unset: from everywhere."""
VERIFY_VARIABLE = "GUMSHOE_VERIFY_ADAPTERS"
"""Environment variable. If it is set, adapters must have a manifest, as those from a store have."""
MIDDLEWARE = f"{__name__}.AccessControl"
"""Argument of vLLM's `--middleware`."""

_OPEN = {"/health", "/metrics", "/metrics/"}
_LOAD, _OTHER_ADAPTER_ROUTES = "/v1/load_lora_adapter", "/adapters"
_MAX_BODY = 1 << 16  # bytes of a request to load an adapter
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _TOO_LARGE = 400, 401, 403, 413
_POLICY_VIOLATION = 1008  # close code of a WebSocket


@dataclass(frozen=True, slots=True)
class AdapterRules:
    """Decide which adapters a server may load."""

    directories: tuple[Path, ...] | None = None
    """Directories of adapters, or directories that contain some. None allows all."""
    needs_manifest: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "AdapterRules":
        """Return the rules in the environment of a server."""
        given = environment.get(DIRECTORIES_VARIABLE)
        directories = None if given is None else tuple(Path(each).resolve() for each in json.loads(given))
        return cls(directories, bool(environment.get(VERIFY_VARIABLE)))

    def find_fault(self, request: Any) -> str:
        """Return why a request to load an adapter is refused, or an empty string."""
        if not isinstance(request, dict):
            return "the body must be a JSON object"
        name, path = request.get("lora_name"), request.get("lora_path")
        if not (isinstance(name, str) and isinstance(path, str)):
            return "lora_name and lora_path must be strings"
        if request.get("load_inplace"):
            return "load_inplace would give an adapter's name to another one"
        if self.directories is None:
            return ""
        place = Path(path)
        try:
            resolved = place.resolve()
            is_directory = place.is_absolute() and resolved.is_dir()
        except (
            OSError,
            ValueError,
            RuntimeError,
        ):  # e.g. a null character, a loop of links, a long name
            is_directory = False
        if not is_directory:
            return f"{path} is not the absolute path of a directory"
        if resolved not in self.directories and not (resolved.parent in self.directories and resolved.name == name):
            return f"{name!r} at {path} is not an adapter of this run"
        return self._find_damage(name, resolved) if self.needs_manifest else ""

    def _find_damage(self, name: str, place: Path) -> str:
        from gumshoe.artifacts.adapter_layout import ADAPTERS
        from gumshoe.artifacts.store import verify_directory
        from gumshoe.errors import GumshoeError

        try:
            manifest, faults = verify_directory(place)
        except GumshoeError as error:
            return error.message_with_code
        if faults or manifest.reference != f"{ADAPTERS}/{name}":
            return f"the files in {place} are not those of {ADAPTERS}/{name}: {', '.join(faults) or manifest.reference}"
        return ""


class AccessControl:
    """Refuse requests without the key, and adapters that do not belong to the run."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._key = os.environ.get(KEY_VARIABLE, "").strip().encode()
        self._rules = AdapterRules.from_environment(os.environ)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        method = scope.get("method", "")
        is_open = method in ("GET", "HEAD") and scope["path"] in _OPEN
        if self._key and not is_open and not self._has_key(scope["headers"]):
            await _refuse(scope, send, _UNAUTHORIZED, "send the key of this server: Authorization: Bearer ...")
        elif not path.isprintable():  # Starlette's routes accept a line break at the end of their path
            await _refuse(scope, send, _BAD_REQUEST, "the path must contain printable characters only")
        elif path.rstrip("/") == _OTHER_ADAPTER_ROUTES or path.startswith(f"{_OTHER_ADAPTER_ROUTES}/"):
            await _refuse(scope, send, _FORBIDDEN, f"this route is closed; use {_LOAD}")
        elif path.rstrip("/") == _LOAD and method == "POST":
            await self._load(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _has_key(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Return True if the request has exactly one Authorization header, with the key."""
        given = [value for name, value in headers if name.lower() == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)

    async def _load(self, scope: Any, receive: Any, send: Any) -> None:
        body = await _read_body(receive)
        if body is None:
            await _refuse(scope, send, _TOO_LARGE, f"the body is incomplete or has more than {_MAX_BODY} bytes")
            return
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        fault = await asyncio.to_thread(self._rules.find_fault, request)
        if fault:
            await _refuse(scope, send, _FORBIDDEN, fault)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Any:
            return messages.pop() if messages else await receive()

        await self._app(scope, receive_again, send)


async def _read_body(receive: Any) -> bytes | None:
    """Return the body of a request; None if it is too large, or the client is gone."""
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or len(body) > _MAX_BODY:
            return None
        if not message.get("more_body"):
            return body


async def _refuse(scope: Any, send: Any, status: int, message: str) -> None:
    """Answer with an error in the form of vLLM's own."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": ""})
        return
    body = json.dumps({"error": {"message": message, "type": "AccessError", "param": None, "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
