"""Transfer a step's adapter to servers on other machines, through a store.

The loader beside each server (`gumshoe adapter-loader`) fetches the adapter from the store and loads it into vLLM.

Invariant: no request uses an adapter before all required servers serve it. The servers are looked up again for each
adapter, because pods come and go.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from tenacity import Retrying, retry_if_exception_type, wait_fixed

from gumshoe.artifacts.adapter_layout import ADAPTERS, LOADER_PORT, STATUS
from gumshoe.artifacts.manifest import InvalidManifestError
from gumshoe.artifacts.pruning import prune_store
from gumshoe.artifacts.storage import Limits
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe.inference.http_options import key_headers
from gumshoe.inference.vllm_server import RESTART_DEADLINE, AdapterError, ServerError, parse_model_names
from gumshoe.network import raise_if_untrusted
from gumshoe.terminal import hide_progress

_PAUSE = 0.5  # seconds between two checks
_TIMEOUT = 10.0  # seconds for DNS, a server or a loader to answer
_KEPT = 2  # adapters in the store
_MAX_REJECTIONS = 3  # in a row, of one adapter, after which the transfer fails

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ServerStatus:
    """The state of a server when it was checked."""

    url: str
    is_serving: bool
    """The server serves the adapter."""
    is_required: bool = True
    """The transfer waits for this server."""
    reason: str = ""
    """Why the server does not serve the adapter."""


@dataclass(slots=True)
class AdapterTransfer:
    """Transfer adapters to the servers of one run."""

    uri: str
    """URI of the store, used by this run only."""
    names: tuple[str, ...]
    """Addresses as http://HOST:PORT; each IP address of a host name is a server. A name with https is one server."""
    max_context: int
    """Context that each server must support, in tokens."""
    deadline: float = RESTART_DEADLINE
    """Seconds until all servers must serve an adapter; enough for a server to restart."""
    loader_port: int = LOADER_PORT
    _serving: frozenset[str] | None = field(default=None, init=False)
    """The servers that served the last adapter; None before the first transfer."""

    def transfer(self, place: Path, version: str, is_stopping: Callable[[], bool]) -> tuple[str, ...]:
        """Make every server serve the adapter in a directory, and return the addresses of the servers.

        `version` is a name that is used once. A new server is required once its loader has loaded an adapter; a server
        that no longer exists is not required. Older adapters are then removed from the store.

        Raises:
            AdapterError: a server rejects the adapter.
            UsageError: the context of a server is shorter than `max_context`.
            StorageError: the store rejects the upload.
            UnavailableError: the store is unreachable, or not all servers serve the adapter before the deadline or
                before `is_stopping` returns True.
        """
        started = time.monotonic()

        def is_over() -> bool:
            return is_stopping() or time.monotonic() - started > self.deadline

        store = Store(self.uri, Limits(attempts=4, deadline=self.deadline))
        self._upload(store, place, version, is_over)
        urls = asyncio.run(self._wait_until_served(version, is_over))
        try:
            prune_store(store, keep=_KEPT, older_than=timedelta(), kind=ADAPTERS)
        except GumshoeError as error:  # the next transfer removes them
            _log.warning("could not remove older adapters from the store: %s", error.message_with_code)
        return urls

    def _upload(self, store: Store, place: Path, version: str, is_over: Callable[[], bool]) -> None:
        retrying = Retrying(
            retry=retry_if_exception_type(UnavailableError),
            stop=lambda _: is_over(),
            wait=wait_fixed(_PAUSE),
            reraise=True,
        )
        with hide_progress():
            retrying(store.publish, place, ADAPTERS, version)
        latest = retrying(store.latest, ADAPTERS)
        if latest != version:
            raise UnavailableError(
                "training.adapter-store-shared",
                f"the newest adapter in {self.uri} is {latest} instead of {version}: another run uses it, or this "
                "machine's clock is behind; give each run its own rollouts.handover",
            )

    async def _wait_until_served(self, version: str, is_over: Callable[[], bool]) -> tuple[str, ...]:
        """Wait until all required servers serve the adapter, and return their addresses."""
        certificates = httpx.create_ssl_context()  # of the environment, but not its proxies
        async with httpx.AsyncClient(
            timeout=_TIMEOUT, verify=certificates, trust_env=False, headers=key_headers()
        ) as client:
            while True:
                by_name = await asyncio.gather(*(self._check_name(client, name, version) for name in self.names))
                found = [each for servers in by_name for each in servers]
                missing = [f"{each.url}: {each.reason}" for each in found if each.is_required and not each.is_serving]
                missing += [
                    f"no server at {name} serves it yet: {servers[0].reason}" if servers else f"{name} has no address"
                    for name, servers in zip(self.names, by_name, strict=True)
                    if not any(each.is_serving or each.is_required for each in servers)
                ]
                if not missing:
                    break
                if is_over():
                    raise ServerError(
                        "training.adapter-not-served", f"not all servers serve {version} yet: {'; '.join(missing)}"
                    )
                await asyncio.sleep(_PAUSE)
        self._serving = frozenset(each.url for each in found if each.is_serving)
        # Keep the name if it has one address: it also finds a server that replaces this one.
        return tuple(
            name if len(servers) == 1 else each.url
            for name, servers in zip(self.names, by_name, strict=True)
            for each in servers
            if each.is_serving
        )

    async def _check_name(self, client: httpx.AsyncClient, name: str, version: str) -> list[_ServerStatus]:
        """Return the state of each server of a host name."""
        url = httpx.URL(name)
        if url.scheme == "https":  # its certificate is for the name
            return [await self._check_server(client, url, version)]
        servers = [url.copy_with(host=address) for address in await _resolve_addresses(url)]
        return await asyncio.gather(*(self._check_server(client, server, version) for server in servers))

    async def _check_server(self, client: httpx.AsyncClient, server: httpx.URL, version: str) -> _ServerStatus:
        url = str(server).rstrip("/")
        try:
            answer = await _get(client, f"{url}/v1/models")
            if version in parse_model_names(answer, url, self.max_context):
                return _ServerStatus(url, is_serving=True)
            reason = "vLLM does not serve it"
        except ServerError as error:
            reason = str(error)
        status, text = await self._read_loader_status(client, server)
        if status.get("wanted") == version and status.get("refusals", 0) >= _MAX_REJECTIONS:
            raise AdapterError("inference.adapter-rejected", f"{url} rejected {version}: {text}")
        is_required = self._serving is None or url in self._serving or status.get("serving") is not None
        return _ServerStatus(url, is_serving=False, is_required=is_required, reason=f"{reason}; loader: {text}")

    async def _read_loader_status(self, client: httpx.AsyncClient, server: httpx.URL) -> tuple[dict[str, Any], str]:
        """Return the status of a server's loader, and a summary in words; an empty status if it does not answer."""
        place = server.copy_with(scheme="http", port=self.loader_port, path=STATUS)
        try:
            status = (await _get(client, str(place))).raise_for_status().json()
            text = status["error"] or f"serves {status['serving']}, wants {status['wanted']}"
        except (ServerError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            return {}, f"no status at {place}: {error}"
        return status, str(text)


def check_adapter_transfer(uri: str) -> None:
    """Check that adapters can be read from a store, before a long start.

    Raises:
        InvalidUriError, StorageError, UnavailableError: the store cannot be read.
    """
    with suppress(InvalidManifestError):  # the next publish overwrites it
        Store(uri, Limits(attempts=3, read_timeout=20)).latest(ADAPTERS)


async def _get(client: httpx.AsyncClient, url: str) -> httpx.Response:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await client.get(url)
    except TimeoutError:
        raise ServerError("inference.server-unreachable", f"{url} did not answer within {_TIMEOUT:g} seconds") from None
    except httpx.HTTPError as error:
        raise_if_untrusted(error, url)
        raise ServerError(
            "inference.server-unreachable", f"{url} does not answer: {type(error).__name__}: {error}"
        ) from None


async def _resolve_addresses(url: httpx.URL) -> list[str]:
    """Return the IP addresses of a host name, sorted; an empty list if it has none at the moment.

    If a pod has addresses of both families, use IPv4, where vLLM listens.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_TIMEOUT):
            found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return []
    by_family = [
        sorted({str(place[0]) for kind, *_, place in found if kind == family})
        for family in (socket.AF_INET, socket.AF_INET6)
    ]
    return next(filter(None, by_family), [])
