"""Serve an ASGI application on a real socket, in the event loop of the test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from tests.http_server import open_socket
from tests.waiting import async_wait_until


@asynccontextmanager
async def serve(app: Any, listening: socket.socket | None = None) -> AsyncIterator[str]:
    """Serve an application while the block runs, and yield its address. Requests that still run are cut off."""
    listening = listening or open_socket()
    config = uvicorn.Config(
        app, interface="asgi3", log_level="critical", ws="none", lifespan="off", timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listening]))
    await async_wait_until(lambda: server.started or task.done())
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listening.close()
