"""A step's adapter on its way to servers on other machines: into a store, and from there, by the loader beside each
server (`gumshoe adapter-loader`), into vLLM.

What always holds: nobody is asked for an adapter before every server that counts has it. Which servers there are is
asked anew for each adapter, since pods come and go.
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
from gumshoe.artifacts.pruning import prune
from gumshoe.artifacts.storage import Limits
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe.inference.vllm_server import AdapterError, ServerError, ServerOptions, names_within_limit
from gumshoe.terminal import quiet

_PAUSE = 0.5  # seconds between two looks
_ANSWER = 10.0  # seconds for a name, a server or a loader to answer
_KEPT = 2  # adapters in the store
_REFUSALS = 3  # in a row, of one adapter, after which a server is not going to take it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A server, when it was looked at."""

    url: str
    has: bool
    """Whether it serves the adapter."""
    counts: bool = True
    """Whether it is waited for."""
    why: str = ""
    """Why it does not serve it."""


@dataclass(slots=True)
class AdapterTransfer:
    """The way to the servers of one run."""

    uri: str
    """Of the store, which is this run's alone."""
    names: tuple[str, ...]
    """As http://HOST:PORT; each address that a host's name has is a server."""
    max_context: int
    """Tokens that each server has to take."""
    deadline: float = ServerOptions().start_deadline
    """Seconds for an adapter to be served by all: a server may be being started again."""
    loader_port: int = LOADER_PORT
    _known: frozenset[str] | None = field(default=None, init=False)
    """The servers that had the last adapter; none is told apart before the first."""

    def transfer(self, place: Path, version: str, is_stopping: Callable[[], bool]) -> tuple[str, ...]:
        """Have every server serve the adapter in a directory, under a name that is used once: their addresses.

        A server that was not there the last time counts as soon as its loader has had it serve something; one that is
        gone counts no longer. Older adapters are removed from the store then.

        Raises:
            AdapterError: a server refuses it.
            UsageError: a server takes fewer tokens.
            StorageError: the store refuses it.
            UnavailableError: the store does not take it, or not all servers have it in time or before it `is_stopping`.
        """
        begun = time.monotonic()

        def is_over() -> bool:
            return is_stopping() or time.monotonic() - begun > self.deadline

        store = Store(self.uri, Limits(attempts=4, deadline=self.deadline))
        self._send(store, place, version, is_over)
        urls = asyncio.run(self._served(version, is_over))
        try:
            prune(store, keep=_KEPT, older_than=timedelta(), kind=ADAPTERS)
        except GumshoeError as error:  # they are removed the next time
            _log.warning("older adapters are still in the store: %s", error.message_with_code)
        return urls

    def _send(self, store: Store, place: Path, version: str, is_over: Callable[[], bool]) -> None:
        retrying = Retrying(
            retry=retry_if_exception_type(UnavailableError),
            stop=lambda _: is_over(),
            wait=wait_fixed(_PAUSE),
            reraise=True,
        )
        with quiet():
            retrying(store.publish, place, ADAPTERS, version)
        latest = retrying(store.latest, ADAPTERS)
        if latest != version:
            raise UnavailableError(
                "training.adapter-store-shared",
                f"the newest adapter in {self.uri} is {latest} instead of {version}: another run uses it, or this "
                "machine's clock is behind; give each run its own rollouts.handover",
            )

    async def _served(self, version: str, is_over: Callable[[], bool]) -> tuple[str, ...]:
        """Wait until all have it."""
        async with httpx.AsyncClient(timeout=_ANSWER, trust_env=False) as client:
            while True:
                looked = await asyncio.gather(*(self._look(client, name, version) for name in self.names))
                seen = [each for servers in looked for each in servers]
                missing = [f"{each.url}: {each.why}" for each in seen if each.counts and not each.has]
                missing += [
                    f"{name} has no address" if not servers else f"no server at {name} serves it yet: {servers[0].why}"
                    for name, servers in zip(self.names, looked, strict=True)
                    if not any(each.has or each.counts for each in servers)
                ]
                if not missing:
                    break
                if is_over():
                    raise ServerError(
                        "training.adapter-not-served", f"not all servers serve {version} yet: {'; '.join(missing)}"
                    )
                await asyncio.sleep(_PAUSE)
        self._known = frozenset(each.url for each in seen if each.has)
        # A name with one address stays a name: who takes that server's place is found by it too.
        return tuple(
            name if len(servers) == 1 else each.url
            for name, servers in zip(self.names, looked, strict=True)
            for each in servers
            if each.has
        )

    async def _look(self, client: httpx.AsyncClient, name: str, version: str) -> list[_Seen]:
        """The servers of a name."""
        url = httpx.URL(name)
        servers = [url.copy_with(host=address) for address in await _addresses(url)]
        return await asyncio.gather(*(self._see(client, server, version) for server in servers))

    async def _see(self, client: httpx.AsyncClient, server: httpx.URL, version: str) -> _Seen:
        url = str(server).rstrip("/")
        try:
            answer = await _adapter_arrived(client, f"{url}/v1/models")
            if version in names_within_limit(answer, url, self.max_context):
                return _Seen(url, has=True)
            why = "vLLM does not serve it"
        except ServerError as error:
            why = str(error)
        status, told = await self._told(client, server)
        if status.get("wanted") == version and status.get("refusals", 0) >= _REFUSALS:
            raise AdapterError("inference.adapter-rejected", f"{url} refused {version}: {told}")
        counts = self._known is None or url in self._known or status.get("serving") is not None
        return _Seen(url, has=False, counts=counts, why=f"{why}; loader: {told}")

    async def _told(self, client: httpx.AsyncClient, server: httpx.URL) -> tuple[dict[str, Any], str]:
        """What a server's loader knows, and that in words."""
        place = server.copy_with(port=self.loader_port, path=STATUS)
        try:
            status = (await _adapter_arrived(client, str(place))).raise_for_status().json()
            said = status["error"] or f"serves {status['serving']}, wants {status['wanted']}"
        except (ServerError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            return {}, f"no status at {place}: {error}"
        return status, str(said)


def check_adapter_transfer(uri: str) -> None:
    """See whether a store can be asked for adapters, before long work.

    Raises:
        InvalidUriError, StorageError, UnavailableError: it cannot.
    """
    with suppress(InvalidManifestError):  # the next that is published mends it
        Store(uri, Limits(attempts=3, read_timeout=20)).latest(ADAPTERS)


async def _adapter_arrived(client: httpx.AsyncClient, url: str) -> httpx.Response:
    try:
        async with asyncio.timeout(_ANSWER):
            return await client.get(url)
    except TimeoutError:
        raise ServerError("inference.server-unreachable", f"{url} did not answer within {_ANSWER:g} seconds") from None
    except httpx.HTTPError as error:
        raise ServerError(
            "inference.server-unreachable", f"{url} does not answer: {type(error).__name__}: {error}"
        ) from None


async def _addresses(url: httpx.URL) -> list[str]:
    """The addresses of a name; none where it has none now. Of a pod that has one of each kind, the older kind's, at
    which vLLM listens.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_ANSWER):
            found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return []
    by_kind = [
        sorted({str(place[0]) for kind, *_, place in found if kind == wanted})
        for wanted in (socket.AF_INET, socket.AF_INET6)
    ]
    return next(filter(None, by_kind), [])
