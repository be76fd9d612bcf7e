"""Episodes whose keys the gateway accepts, and their running requests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from gumshoe.gateway.gateway_errors import TooManyRequestsError, UnknownKeyError
from gumshoe.gateway.gateway_limits import MAX_STORED, MAX_STORED_BYTES, GatewayLimits
from gumshoe.gateway.messages import AgentMessage, ModelRequest, ModelResponse

Purpose = Literal["model", "tools"]


class ServedEpisode(Protocol):
    """The part of an episode that the gateway's server needs. See `AgentEpisode`."""

    key: str

    async def complete(self, request: ModelRequest) -> ModelResponse: ...


class StoredResponses:
    """The messages up to each response of an episode, by its id. The oldest are forgotten if there are too many."""

    def __init__(self) -> None:
        self._messages: dict[str, tuple[tuple[AgentMessage, ...], int]] = {}
        self._size = 0

    def find(self, number: str) -> tuple[AgentMessage, ...] | None:
        """Return the messages up to a response, or None if it is not known."""
        found = self._messages.get(number)
        return None if found is None else found[0]

    def add(self, number: str, messages: tuple[AgentMessage, ...], size: int) -> None:
        """Add the messages up to a response, whose request has `size` bytes."""
        self._messages[number] = messages, size
        self._size += size
        while len(self._messages) > MAX_STORED or self._size > MAX_STORED_BYTES:
            _, freed = self._messages.pop(next(iter(self._messages)))
            self._size -= freed


@dataclass(slots=True, eq=False)
class AdmittedEpisode:
    """An episode whose key is valid, and its requests."""

    episode: ServedEpisode
    responses: StoredResponses = field(default_factory=StoredResponses)
    is_over: bool = False
    was_refused: bool = False
    """True if a request was refused because too many requests of all episodes ran."""
    running: dict[Purpose, set[asyncio.Task[Any]]] = field(default_factory=lambda: {"model": set(), "tools": set()})


class AdmittedEpisodes:
    """All episodes whose keys are valid."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits, self._running = limits, 0
        self._by_key: dict[str, AdmittedEpisode] = {}

    def find(self, key: str) -> AdmittedEpisode | None:
        """Return the episode of a key. Keys are random and long, so that guesses do not come close."""
        return self._by_key.get(key)

    @contextmanager
    def admit(self, episode: ServedEpisode) -> Iterator[AdmittedEpisode]:
        """Accept the key of an episode while the block runs. Requests that still run at its end are cancelled."""
        admitted = self._by_key[episode.key] = AdmittedEpisode(episode)
        try:
            yield admitted
        finally:
            del self._by_key[episode.key]
            admitted.is_over = True
            for task in (each for tasks in admitted.running.values() for each in tasks):
                task.cancel()

    @contextmanager
    def run_request(self, admitted: AdmittedEpisode, purpose: Purpose) -> Iterator[None]:
        """Count a request of an episode while the block runs in the task of the request.

        Raises:
            TooManyRequestsError: if too many run.
            UnknownKeyError: if the episode ends.
        """
        limits, running = self._limits, admitted.running[purpose]
        most = limits.episode_requests if purpose == "model" else limits.episode_tool_requests
        if len(running) >= most:
            raise TooManyRequestsError("gateway.too-many-requests", f"an episode may have {most} requests at once")
        if self._running >= limits.requests:
            admitted.was_refused = True
            raise TooManyRequestsError("gateway.busy", "too many requests of all episodes run")
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        running.add(task)
        self._running += 1
        try:
            yield
        except asyncio.CancelledError:
            if admitted.is_over and task.uncancel() == 0:
                raise UnknownKeyError("gateway.unknown-key", "the episode is over") from None
            raise
        finally:
            running.discard(task)
            self._running -= 1
