"""Record who read whose mail or which documents: one JSON line per search, reading, source, question and feedback.

A line has the caller, the inbox or the collections, and the ids of the sources that the caller, or the agent on its
behalf, was shown. It never contains text of a message, a question or an answer. The line of a tool call is written when
the call ends, so that it is there whatever happens to the answer. Names and ids are written as they are: a sender could
otherwise hide a message from the log with an id that looks like a credential, which logs mask.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, fields, replace
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import Any, Literal

from gumshoe.environments.base import Environment
from gumshoe.environments.registry import FINAL_ANSWER, EnvFactory
from gumshoe.environments.tools import Call, Toolbox, ToolFunction
from gumshoe.errors import UsageError
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.access import Principal
from gumshoe.serving.telemetry import JsonFormatter

AuditEvent = Literal["search", "read", "source", "question", "feedback", "refused"]
LOG, NONE = "log", "none"
_MAX_IDS = 100  # ids in a line
_MAX_LENGTH = 200  # characters of an id
_EXACT = ("principal", "inbox", "collections", "source_ids")  # fields that are never masked

_log = logging.getLogger(__name__)

_trail: ContextVar["AuditTrail | None"] = ContextVar("audit_trail", default=None)


@dataclass(frozen=True, slots=True)
class AuditLog:
    """Destination of audit lines."""

    logger: logging.Logger | None
    """None if no lines are written."""

    def start_trail(self, principal: Principal) -> None:
        """Record what the current request reads as read by a caller."""
        _trail.set(AuditTrail(self.logger, principal))


@dataclass(frozen=True, slots=True)
class AuditTrail:
    """Write the audit lines of one request. The log adds its ID and its trace, which the context names."""

    logger: logging.Logger | None
    principal: Principal
    policy: str = ""
    """Version of the policy that calls the tools; empty if the caller does."""

    def write(self, event: AuditEvent, scenario: Scenario, ids: Iterable[str] = (), **more: Any) -> None:
        """Write a line. `ids` are those of the sources that were shown."""
        if self.logger is None:
            return
        listed = list(dict.fromkeys(ids))
        line: dict[str, Any] = {"event": event, "principal": self.principal.name, "principal_kind": self.principal.kind}
        if scenario.inbox_address is not None:
            line["inbox"] = scenario.inbox_address
        if scenario.collections is not None:
            line["collections"] = scenario.collections
        line["source_ids"] = [each[:_MAX_LENGTH] for each in listed[:_MAX_IDS]]
        if len(listed) > _MAX_IDS:
            line["more_sources"] = len(listed) - _MAX_IDS
        if self.policy:
            line["policy"] = self.policy
        _log_line(self.logger, {**line, **more})


def record_access(event: AuditEvent, scenario: Scenario, ids: Iterable[str] = (), **more: Any) -> None:
    """Write an audit line for the current request, if there is one."""
    if trail := _trail.get():
        trail.write(event, scenario, ids, **more)


def record_policy(policy: str) -> None:
    """Name the policy that answers the question of the current request in its further audit lines."""
    if trail := _trail.get():
        _trail.set(replace(trail, policy=policy))


def audited_principal() -> Principal | None:
    """Return the caller of the current request; None if no audit lines are written."""
    trail = _trail.get()
    return trail.principal if trail is not None and trail.logger is not None else None


def write_line(line: Mapping[str, Any]) -> None:
    """Write an audit line that another process has made for the current request."""
    trail = _trail.get()
    if trail is not None and trail.logger is not None:
        _log_line(trail.logger, line)


def _log_line(logger: logging.Logger, line: Mapping[str, Any]) -> None:
    logger.info("audit", extra={"fields": dict(line), "exact": _EXACT})


@contextmanager
def open_audit_log(target: str) -> Iterator[AuditLog]:
    """Open the audit log that the settings name: `log`, `none` or a file, to which lines are appended.

    The file is opened again when it has been moved, e.g. by logrotate. A new file is readable only by its owner.

    Raises:
        UsageError: if the file cannot be written.
    """
    if target in (LOG, NONE):
        yield AuditLog(logging.getLogger("gumshoe.audit") if target == LOG else None)
        return
    try:
        handler = _PrivateFileHandler(target, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "serving.audit-log-unwritable",
            f"cannot write the audit log {target}: {error.strerror}; set audit to a file",
        ) from None
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("gumshoe.audit", logging.INFO)
    logger.addHandler(handler)
    try:
        yield AuditLog(logger)
    finally:
        try:
            handler.close()
        except OSError as error:  # a line that could not be written is tried again here
            _log.error("cannot close the audit log %s: %s", target, error)


class _PrivateFileHandler(WatchedFileHandler):
    """Handler that creates its file with the mode 0600, also after a rotation. A failure to write is only logged."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except Exception:  # noqa: BLE001 - the base class handles failures of writing, and not those of opening again
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - of the base class
        _log.error("cannot write an audit line to %s: %s", self.baseFilename, sys.exception())

    def _open(self) -> TextIOWrapper:
        def open_private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=open_private)


@dataclass(frozen=True, slots=True)
class AuditedEnvFactory(EnvFactory):
    """Create environments that write an audit line for each tool call of a request."""

    def new_environment(self, scenario: Scenario, max_turns: int) -> Environment:
        """Create the environment of one episode. See `EnvFactory.new_environment`."""
        environment = EnvFactory.new_environment(self, scenario, max_turns)
        trail = _trail.get()
        if trail is not None and trail.logger is not None:
            environment.toolbox = _AuditedToolbox(environment, trail)
        return environment


def audit_environments(env_factory: EnvFactory) -> EnvFactory:
    """Return a copy whose environments write audit lines."""
    return AuditedEnvFactory(**{each.name: getattr(env_factory, each.name) for each in fields(env_factory)})


class _AuditedToolbox(Toolbox):
    """A toolbox that writes an audit line after each call, with the ids of the sources that the call showed.

    It has every public member of its class itself, because the inherited ones would miss the state of a toolbox.
    """

    def __init__(self, environment: Environment, trail: AuditTrail) -> None:
        self._inner, self._environment, self._trail = environment.toolbox, environment, trail
        self._context = copy_context()  # tools run in threads, which do not have the request's

    @property
    def tools(self) -> list[ToolFunction]:
        return self._inner.tools

    @property
    def has_marks(self) -> bool:
        return self._inner.has_marks

    def schemas(self) -> list[dict[str, Any]]:
        return self._inner.schemas()

    def run(self, call: Call) -> str:
        shown: list[str] = getattr(self._environment, "shown", [])  # environments of users may not list them
        before, searches = len(shown), self._environment.record.searches
        try:
            return self._inner.run(call)
        finally:
            if call.name in {tool.__name__ for tool in self._inner.tools} - {FINAL_ANSWER}:
                event: AuditEvent = "search" if self._environment.record.searches > searches else "read"
                scenario, ids = self._environment.scenario, shown[before:]
                self._context.run(self._trail.write, event, scenario, ids, tool=call.name)
