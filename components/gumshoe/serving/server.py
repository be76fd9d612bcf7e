"""Run the agent server as a process: fetch and open what it needs, serve, and shut down."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import uvloop
from starlette.types import ASGIApp

from gumshoe.artifacts.store import Store, fetch_directory
from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.errors import UsageError
from gumshoe.metrics_port import serve_registry
from gumshoe.rollouts.policy_limits import PolicyLimits
from gumshoe.serving.access import Access
from gumshoe.serving.access_control import open_access
from gumshoe.serving.app import create_app
from gumshoe.serving.audit_log import AuditLog, open_audit_log
from gumshoe.serving.browser_checks import allow_origins, transport_security
from gumshoe.serving.connections import ConnectionGuard, find_capacity
from gumshoe.serving.feedback_recorder import LAST_ATTEMPTS, FeedbackRecorder
from gumshoe.serving.garbage_collection import prepare_garbage_collection
from gumshoe.serving.http_protocol import GuardedServer, ServerConfig
from gumshoe.serving.mcp_server import create_mcp_server
from gumshoe.serving.middleware import Middleware, add_request_ids
from gumshoe.serving.service import AnswerService, open_service
from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.telemetry import Metrics, create_tracer
from gumshoe.signals import stays_ignored

_log = logging.getLogger(__name__)


def serve(settings: ServeSettings, announce: Callable[[str, PolicyLimits], object]) -> None:
    """Serve until the process is asked to stop and running requests have ended.

    `announce` is called with the URL, and with the limits of episodes.

    Raises:
        UsageError: if the settings cannot be used.
        GumshoeError: if the index is damaged or not available, or a local model does not start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, announce))


async def _serve(settings: ServeSettings, announce: Callable[[str, PolicyLimits], object]) -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(_open_socket(settings.host, settings.port))
        index = stack.enter_context(fetch_directory(settings.index, settings.store, verify=True))
        env_factory = open_env(index, settings.environment)
        await asyncio.to_thread(env_factory.get_ready)  # also before a model starts, which takes minutes and memory
        async with open_server(settings, env_factory) as (config, limits):
            server = _SignalledServer(config)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            announce(f"http://{host}:{listening.getsockname()[1]}", limits)
            await server.serve(sockets=[listening])


@asynccontextmanager
async def open_server(
    settings: ServeSettings, env_factory: EnvFactory
) -> AsyncIterator[tuple[ServerConfig, PolicyLimits]]:
    """Open what the server needs while the block runs. Yield the configuration of its HTTP server, and its limits.

    Raises:
        UsageError: if the key file or a setting is invalid.
        PolicyError: if a local model does not start.
    """
    keeps = settings.keeping.feedback or settings.keeping.trajectories > 0
    store = Store(settings.store) if keeps and settings.store else None
    metrics = Metrics()
    access = open_access(settings.access, metrics)
    with (
        FeedbackRecorder(settings.keeping, store, min(LAST_ATTEMPTS, settings.limits.shutdown)) as recorder,
        open_audit_log(settings.audit) as audit,
        serve_metrics(settings, metrics),
    ):
        async with (
            open_service(settings, env_factory, metrics, create_tracer(), recorder.record_episode) as service,
            open_routes(service, access, recorder, audit) as app,
        ):
            yield configure_server(app, settings, service.metrics), service.settings.model.limits


@asynccontextmanager
async def open_routes(
    service: AnswerService, access: Access, recorder: FeedbackRecorder, audit: AuditLog | None = None
) -> AsyncIterator[ASGIApp]:
    """Serve HTTP and MCP for a service, with access control. Without `audit`, no audit lines are written."""
    settings, audit = service.settings, audit or AuditLog(None)
    if settings.access.open:
        what = "every mailbox in" if service.env_factory.has_inboxes else "all of"
        _log.warning("access is open: anyone who can reach this server can read %s its index", what)
    elif not (service.env_factory.has_inboxes or service.env_factory.has_collections):
        _log.warning("the index has no collections: every caller with a key or token can read all of its documents")
    app = create_app(settings, service, recorder)
    tools = create_mcp_server(service)
    mounted = tools.streamable_http_app(
        stateless_http=True,
        json_response=True,
        transport_security=transport_security(settings.access),
    )
    app.router.routes.extend(mounted.routes)
    prepare_garbage_collection()
    async with tools.session_manager.run():
        guarded = Middleware(app, settings, access, service.metrics, service.tracer, audit)
        yield add_request_ids(allow_origins(guarded, settings.access))


@contextmanager
def _open_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Open a listening socket.

    Raises:
        UsageError: if the port is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            "serving.port-unavailable", f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from None
    # Accepted sockets inherit it. asyncio sets it only if a socket's protocol is TCP; this one's is 0.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listening:
        yield listening


@contextmanager
def serve_metrics(settings: ServeSettings, metrics: Metrics) -> Iterator[None]:
    """Serve the metrics on a port of their own while the block runs, if there is one.

    Raises:
        UsageError: if the port is not available.
    """
    if settings.metrics_port is None:
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(serve_registry(metrics.registry, settings.host, settings.metrics_port))
        except OSError as error:
            raise UsageError(
                "serving.port-unavailable",
                f"cannot listen on {settings.host}:{settings.metrics_port}: {error.strerror}; choose another "
                "metrics_port",
            ) from None
        yield


def configure_server(app: ASGIApp, settings: ServeSettings, metrics: Metrics) -> ServerConfig:
    """Return the configuration of the HTTP server, with its limits of connections."""
    guard = ConnectionGuard(settings.connections, metrics, find_capacity(settings.connections))
    return ServerConfig(app, settings, guard)


class _SignalledServer(GuardedServer):
    """Stop on a signal without ending the process. Uvicorn's own server would end it before everything is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = [each for each in (signal.SIGINT, signal.SIGTERM) if not stays_ignored(each)]
        for number in handled:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
