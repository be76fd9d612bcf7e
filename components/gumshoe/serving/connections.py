"""Limit open connections, in total and per client address, and close those that are too slow.

A connection that waits for its client (for headers, a body or the next request) may be closed at any time. So if there
are too many, the one that has waited longest makes room for a new one, and the probes of the server always get through.
"""

import logging
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Literal, Protocol

from gumshoe.serving.callers import group_address, parse_address
from gumshoe.serving.settings import ConnectionSettings
from gumshoe.serving.telemetry import Metrics

_DESCRIPTORS = 0.75  # fraction of the descriptors that connections of clients may use; the rest is for files and models
_ENOUGH = 65_536  # descriptors to ask for if the system has no limit
_WARN_AGAIN = 0.9  # of the limit: below it, reaching the limit is logged again

_log = logging.getLogger(__name__)

Overdue = Literal["headers", "idle", "reading"]
"""Deadline that a connection has exceeded: for its headers, for the next request, or for reading the response."""


class Phase(Enum):
    """Phase of a connection: the event that it waits for."""

    HEADERS = "headers"
    """For the rest of a request's headers, which includes the first ones."""
    BODY = "body"
    """For the rest of a request's body."""
    ANSWER = "answer"
    """For the server's answer."""
    IDLE = "idle"
    """For the next request."""
    CLOSING = "closing"
    """For the client to take the rest of what was sent. Then it is closed."""


class ClientConnection(Protocol):
    """A connection from a client."""

    phase: Phase
    since: float
    """Time at which the phase began, by the guard's clock."""

    @property
    def address(self) -> str | None:
        """IP address of the peer."""
        ...

    @property
    def unsent(self) -> int:
        """Number of bytes that the client has not taken yet."""
        ...

    def expire(self, why: Overdue) -> None:
        """Close the connection because of a deadline."""
        ...

    def abort(self) -> None:
        """Close the connection at once, without sending the rest."""
        ...


@dataclass(slots=True)
class ConnectionGuard:
    """Count connections, make room for new ones, and close overdue ones."""

    settings: ConnectionSettings
    metrics: Metrics
    most: int
    """Maximum number of connections."""
    now: Callable[[], float] = time.monotonic
    _groups: dict[ClientConnection, str | None] = field(default_factory=dict)
    """All connections with the groups of their addresses. Those of trusted proxies have none."""
    _sizes: dict[str | None, int] = field(default_factory=dict)
    """Number of connections by group."""
    _waiting: dict[str | None, dict[ClientConnection, None]] = field(default_factory=lambda: {None: {}})
    """Connections that wait for their clients, by group, the one that has waited longest first. Group None has all."""
    _unsent_since: dict[ClientConnection, float] = field(default_factory=dict)
    _full: set[str | None] = field(default_factory=set)
    """Groups whose limit was reached, which was logged. Group None stands for all connections."""
    _proxies: list[IPv4Network | IPv6Network] = field(init=False)

    def __post_init__(self) -> None:
        self._proxies = [ip_network(each) for each in self.settings.trusted_proxies]
        self.metrics.connections.set_function(lambda: float(len(self._groups)))

    def admit(self, connection: ClientConnection) -> bool:
        """Add a connection. Return False if there is no room for it because all others wait for the server."""
        group = self._find_group(connection.address)
        is_crowded = group is not None and self._sizes.get(group, 0) >= self.settings.per_address
        if is_crowded or len(self._groups) >= self.most:
            self._warn_once(group if is_crowded else None)
            longest = next(iter(self._waiting.get(group if is_crowded else None, ())), None)
            if longest is None:
                self.metrics.closed_connections.labels("refused").inc()
                return False
            self.metrics.closed_connections.labels("replaced").inc()
            self.discard(longest)
            longest.abort()
        else:
            self._note_room(group)
        self._groups[connection] = group
        self._sizes[group] = self._sizes.get(group, 0) + 1
        self.enter(connection, Phase.HEADERS)
        return True

    def enter(self, connection: ClientConnection, phase: Phase) -> None:
        """Note that a connection waits for something else than before."""
        connection.phase, connection.since = phase, self.now()
        if connection not in self._groups:  # refused or replaced
            return
        for group in {self._groups[connection], None}:
            waiting = self._waiting.setdefault(group, {})
            waiting.pop(connection, None)
            if phase is not Phase.ANSWER:
                waiting[connection] = None

    def discard(self, connection: ClientConnection) -> None:
        """Remove a connection that is closed, or will be."""
        if connection not in self._groups:
            return
        group = self._groups.pop(connection)
        self._unsent_since.pop(connection, None)
        self._sizes[group] -= 1
        for each in {group, None}:
            self._waiting[each].pop(connection, None)
        if not self._sizes[group]:
            del self._sizes[group]
            if group is not None:
                del self._waiting[group]

    def close_overdue(self) -> None:
        """Close the connections whose clients are too slow."""
        now = self.now()
        for each in list(self._groups):
            why = self._find_overdue(each, now)
            if why == "reading":  # the connection may be closing already, and wait for its client to take the rest
                self.discard(each)
                each.abort()
            elif why is not None:
                self.enter(each, Phase.CLOSING)
                each.expire(why)
            if why not in (None, "idle"):
                self.metrics.closed_connections.labels(f"slow {why}").inc()

    def _find_overdue(self, connection: ClientConnection, now: float) -> Overdue | None:
        settings = self.settings
        if not connection.unsent:
            self._unsent_since.pop(connection, None)
        elif now - self._unsent_since.setdefault(connection, now) > settings.write_deadline:
            return "reading"
        waited = now - connection.since
        if connection.phase is Phase.HEADERS and waited > settings.header_deadline:
            return "headers"
        return "idle" if connection.phase is Phase.IDLE and waited > settings.idle_deadline else None

    def _find_group(self, address: str | None) -> str | None:
        """Return the group of addresses that share a limit, or None for a trusted proxy."""
        parsed = parse_address(address)
        is_trusted = parsed is not None and any(parsed in each for each in self._proxies)
        return None if is_trusted else group_address(address)

    def _note_room(self, group: str | None) -> None:
        """Let the limits of a group and of all connections be logged again, if they are no longer nearly reached."""
        if len(self._groups) < self.most * _WARN_AGAIN:
            self._full.discard(None)
        if group is not None and self._sizes.get(group, 0) < self.settings.per_address * _WARN_AGAIN:
            self._full.discard(group)

    def _warn_once(self, group: str | None) -> None:
        """Log that a limit is reached, unless that was logged."""
        if group not in self._full:
            self._full &= {None, *self._sizes}  # or groups that are gone would stay
            self._full.add(group)
            which = "in all" if group is None else f"from {group}"
            most = self.most if group is None else self.settings.per_address
            _log.warning("there are %s connections %s; those that wait longest are closed for new ones", most, which)


def find_capacity(settings: ConnectionSettings) -> int:
    """Return the maximum number of connections, after raising the limit of file descriptors as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, _ENOUGH) if hard == resource.RLIM_INFINITY else hard
    if wanted != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    most = max(1, int(wanted * _DESCRIPTORS))
    if most < settings.total:
        _log.warning(
            "connections.total is %s, but a process may open only %s files; at most %s connections are kept open",
            settings.total,
            wanted,
            most,
        )
    return min(most, settings.total)
