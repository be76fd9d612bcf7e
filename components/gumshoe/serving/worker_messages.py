"""Messages between the agent server and its worker processes, and how they are sent.

Both ends are processes of one server that share a socket pair, so messages are pickled.
"""

import asyncio
import pickle
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gumshoe.environments.registry import NamedEnvironment
from gumshoe.rollouts.answer import Answer, AnswerStep
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.access import Principal
from gumshoe.serving.served_policies import PolicySource
from gumshoe.serving.settings import LimitSettings, ServedModelSettings

_SIZE = 8  # bytes of the size before each message


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The first message to a worker: everything that it opens."""

    index: Path
    environment: NamedEnvironment | None
    model: ServedModelSettings
    limits: LimitSettings
    policies: tuple[PolicySource, ...]
    """The main policy first."""
    logs_json: bool
    pulse: float = 5.0
    """Seconds between two signs of life of the worker."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker has opened everything, or could not because of an error."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class WorkerAlive:
    """The event loop of a worker runs."""


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """An episode to run."""

    policy: str
    """Version of the policy."""
    scenario: Scenario
    seed: str
    sample: int
    caller: str
    principal: Principal | None
    """Reader in the audit log; None if no audit lines are written."""
    request_id: str | None
    number: int = 0


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Nobody waits for an episode any more."""

    number: int


@dataclass(frozen=True, slots=True)
class JobStep:
    """A step of an episode."""

    number: int
    step: AnswerStep


@dataclass(frozen=True, slots=True)
class JobAudit:
    """An audit line of an episode."""

    number: int
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of an episode: its answer and trajectory, or an error."""

    number: int
    result: tuple[Answer, Trajectory] | None = None
    error: Exception | None = None


def to_portable(error: Exception) -> Exception:
    """Return an error if it can be sent, or else one with its name. Classes of custom code may not allow it."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what was just pickled
    except Exception:  # noqa: BLE001 - custom code may raise anything
        return RuntimeError(f"{type(error).__name__} in a worker process")
    return error


class MessageChannel:
    """One end of a socket pair. Use it in one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, end: socket.socket) -> "MessageChannel":
        """Take over an end of a socket pair."""
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, message: object) -> None:
        """Send a message. If the other end is gone, it is lost."""
        if not self._writer.is_closing():
            data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            self._writer.write(len(data).to_bytes(_SIZE) + data)

    async def flush(self) -> None:
        """Wait until most of what was sent has been taken."""
        with suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> Any:
        """Return the next message.

        Raises:
            EOFError, ConnectionError: if the other end is gone.
        """
        size = int.from_bytes(await self._reader.readexactly(_SIZE))
        return pickle.loads(await self._reader.readexactly(size))  # noqa: S301 - from our own process

    def close(self) -> None:
        """Close this end."""
        self._writer.close()
