"""The agent server as a process: what it needs is brought here, opened, served, and put away again."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import uvicorn
import uvloop
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from gumshoe.artifacts.store import Store, fetched_directory
from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.errors import UsageError
from gumshoe.serving.access import Access, open_access
from gumshoe.serving.app import make_app
from gumshoe.serving.feedback_recorder import FeedbackRecorder
from gumshoe.serving.mcp_server import make_mcp
from gumshoe.serving.middleware import Middleware
from gumshoe.serving.service import AnswerService, serving
from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.telemetry import Metrics, tracer

_log = logging.getLogger(__name__)


def serve(settings: ServeSettings, announce: Callable[[str], object]) -> None:
    """Serve until the process is asked to end, and then until what runs has ended; `announce` is told the address.

    Raises:
        UsageError: it cannot be served as the settings say.
        GumshoeError: the index is damaged, or cannot be had; the model of this machine does not start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, announce))


async def _serve(settings: ServeSettings, announce: Callable[[str], object]) -> None:
    with ExitStack() as held:
        listening = held.enter_context(_listening(settings.host, settings.port))
        index = held.enter_context(fetched_directory(settings.index, settings.store, verify=True))
        world = open_env(index, settings.environment)
        await asyncio.to_thread(world.get_ready)  # it may embed a text, which has a loop of its own
        async with application(settings, world) as app:
            server = _UvicornServer(
                uvicorn.Config(
                    app,
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    lifespan="off",
                    timeout_graceful_shutdown=int(settings.limits.shutdown),
                )
            )
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            announce(f"http://{host}:{listening.getsockname()[1]}")
            await server.serve(sockets=[listening])


@asynccontextmanager
async def application(settings: ServeSettings, world: EnvFactory) -> AsyncIterator[ASGIApp]:
    """The whole of it as an ASGI application, as long as the block runs.

    Raises:
        UsageError, PolicyError: a model of this machine, or the file of keys, cannot be had.
    """
    keeps = settings.keeping.feedback or settings.keeping.trajectories > 0
    store = Store(settings.store) if keeps and settings.store else None
    access = open_access(settings.access)
    with FeedbackRecorder(settings.keeping, store) as keeper:
        async with (
            serving(settings, world, Metrics(), tracer(), keeper.episode) as service,
            routes_to(service, access, keeper) as app,
        ):
            yield app


@asynccontextmanager
async def routes_to(service: AnswerService, access: Access, keeper: FeedbackRecorder) -> AsyncIterator[ASGIApp]:
    """HTTP and MCP to a service, for those who may ask it."""
    settings = service.settings
    if settings.access.open:
        what = "every mailbox in" if service.world.has_inboxes else "all of"
        _log.warning("access is open: anyone who can reach this server can read %s its index", what)
    app = make_app(settings, service, keeper)
    tools = make_mcp(service)
    mounted = tools.streamable_http_app(
        stateless_http=True,
        json_response=True,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `Middleware` does
    )
    app.router.routes.extend(mounted.routes)
    # What is loaded by now stays: each full collection would walk through all of it, and hold up every episode for it.
    gc.collect()
    gc.freeze()
    async with tools.session_manager.run():
        yield Middleware(app, settings, access, service.metrics, service.tracer)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """
    Raises:
        UsageError: the port is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            "serving.port-unavailable", f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from None
    # Inherited by what is accepted; asyncio sets it for sockets that say that they are TCP, and this one does not.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listening:
        yield listening


class _UvicornServer(uvicorn.Server):
    """Ends when it is asked to; uvicorn's own would then end the process too, before all is put away."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
