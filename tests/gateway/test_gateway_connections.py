"""Connections to the gateway that are slow, idle, malformed or too many, over raw sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from gumshoe.gateway import gateway_connections
from tests.gateway.served_episodes import QUESTION, Served, StandIn, serve
from tests.waiting import Clock, async_wait_until

CHAT = {"model": "any", "messages": QUESTION}


async def talk(served: Served, data: bytes) -> bytes:
    """Send data over a new connection, and return what comes until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def waiting_request(served: Served) -> AsyncIterator[None]:
    """Let a request wait for the model while the block runs, and check that it is answered then."""
    episode = StandIn()
    episode.released.clear()
    with served.gateway.admit(episode):
        asked = asyncio.create_task(served.post(episode, CHAT))
        await async_wait_until(lambda: episode.begun == 1)
        yield
        episode.released.set()
        assert (await asked).status_code == 200


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", b"", b""),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\n", b"408", b"gateway.request-too-slow"),
        (b"GET /v1/models HTTP/1.1\r\n" + b"x: y\r\n" * 500, b"413", b"gateway.headers-too-large"),
        (b"GET /v1/models HTTP/1.1\r\nx: " + b"y" * 2_000 + b"\r\n\r\n", b"413", b"gateway.headers-too-large"),
        (b"GET /" + b"x" * 2_000 + b" HTTP/1.1\r\n\r\n", b"413", b"gateway.headers-too-large"),
        (b"hello\r\n\r\n", b"400", b"gateway.malformed-request"),
        (b"GET /v1/models HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"400", b"gateway.malformed-request"),
    ],
)
def test_headers_have_limits_of_form_size_and_time(data: bytes, status: bytes, code: bytes) -> None:
    async def test(served: Served) -> None:
        answer = await talk(served, data)
        assert answer.partition(b"\r\n")[0].split(b" ")[1:2] == ([status] if status else [])
        assert code in answer
        episode = StandIn()
        with served.gateway.admit(episode):
            assert (await served.post(episode, CHAT)).status_code == 200

    serve(test, header_bytes=1_000, header_seconds=0.2)


def test_a_new_connection_replaces_the_one_that_has_waited_longest(clock: Clock) -> None:
    async def test(served: Served) -> None:
        async with waiting_request(served):
            silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3)]
            closed = [asyncio.create_task(reader.read()) for reader, _ in silent]
            clock.advance(3)
            await async_wait_until(lambda: any(each.done() for each in closed))
            with suppress(ConnectionError):
                assert await closed[0] == b""
            assert not closed[1].done()
            assert not closed[2].done()
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*closed, return_exceptions=True)

    serve(test, connections=3, header_seconds=60)


async def ask(served: Served, key: str) -> "asyncio.Task[bytes]":
    """Send a request with a key over a new connection. Return a task that ends when the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 ")

    async def read() -> bytes:
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    return asyncio.create_task(read())


def test_strangers_make_room_first_and_then_the_episode_with_most_connections(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_connections, "_PATIENCE", 1_000)

    async def test(served: Served) -> None:
        one, other = StandIn(), StandIn()
        with served.gateway.admit(one), served.gateway.admit(other):
            first = await ask(served, one.key)
            crowd = [await ask(served, other.key) for _ in range(3)]

            async def replace(number: int) -> "asyncio.Task[bytes]":
                coming = asyncio.create_task(ask(served, f"guess {number}"))
                while not coming.done():
                    clock.advance(500)
                    await asyncio.sleep(0.01)
                return coming.result()

            stranger = await replace(1)
            await crowd[0]
            newer = await replace(2)
            await stranger
            still_open = [first, *crowd[1:], newer]
            assert not any(each.done() for each in still_open)
        for each in still_open:
            each.cancel()
        await asyncio.gather(*still_open, return_exceptions=True)

    serve(test, connections=4, header_seconds=10**9, idle_seconds=10**9)


def test_a_flood_of_connections_closes_none_that_has_just_begun(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flood is there before the gateway accepts the first one of it."""
    monkeypatch.setattr(gateway_connections, "_PATIENCE", 1_000)

    async def test(served: Served) -> None:
        episode = StandIn()
        head = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {episode.key}\r\nconnection: close\r\n\r\n"
        with served.gateway.admit(episode), ExitStack() as flood:

            def connect() -> socket.socket:
                return flood.enter_context(socket.create_connection(("127.0.0.1", served.port)))

            early = connect()
            for _ in range(20):
                connect()
            late = connect()
            await asyncio.sleep(0.1)  # the gateway accepts as many as it has room for
            for each in (early, late):
                each.sendall(head.encode())
                each.setblocking(False)
            running = asyncio.get_running_loop()
            assert (await running.sock_recv(early, 100)).startswith(b"HTTP/1.1 200 ")
            answer = asyncio.ensure_future(running.sock_recv(late, 100))
            while not answer.done():
                clock.advance(500)
                await asyncio.sleep(0.01)
            assert answer.result().startswith(b"HTTP/1.1 200 ")

    serve(test, connections=4, header_seconds=10**9)


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_waits_for_room_if_all_others_are_busy(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_connections, "_PATIENCE", 0.05)  # for the connection that the client keeps
    waiting = asyncio.Event()
    make_room = gateway_connections._Connections.make_room

    async def note(self: gateway_connections._Connections) -> None:
        if len(self.open) >= self.most:
            waiting.set()
        await make_room(self)

    monkeypatch.setattr(gateway_connections._Connections, "make_room", note)

    async def test(served: Served) -> None:
        async with waiting_request(served):
            late = asyncio.create_task(talk(served, b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"))
            await waiting.wait()
            await asyncio.sleep(0.1)
            assert not late.done()
        assert (await late).startswith(b"HTTP/1.1 401 ")

    serve(test, loop=loop, connections=1)


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async def test(served: Served) -> None:
        episode = StandIn()
        episode.released.clear()
        head = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {episode.key}\r\n\r\n".encode()
        with served.gateway.admit(episode):
            busy = asyncio.create_task(served.post(episode, CHAT))
            answer = await talk(served, head * 3)  # the answers, and the end of the connection
            assert answer.count(b"HTTP/1.1 200 ") == 3
            episode.released.set()
            assert (await busy).status_code == 200

    serve(test, idle_seconds=1)


def test_the_body_of_a_refused_request_is_no_request() -> None:
    """The rest of a request that was answered early is discarded, up to a limit."""

    async def test(served: Served) -> None:
        episode = StandIn()
        good = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {episode.key}\r\nconnection: close\r\n\r\n"
        with served.gateway.admit(episode):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1500\r\n\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
            writer.write(b"x" * 1_500 + good.encode())
            rest = await reader.read()
            assert rest.count(b"HTTP/1.1 200 ") == 1
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
            writer.write(b"x" * 50_000)
            with suppress(ConnectionError):
                assert b"HTTP/1.1" not in await reader.read()
            writer.close()

    serve(test, header_bytes=1_000, body_bytes=2_000)


def test_fields_after_a_body_are_no_headers() -> None:
    async def test(served: Served) -> bytes:
        episode = StandIn()
        with served.gateway.admit(episode):
            data = (
                "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                "transfer-encoding: chunked\r\n\r\n"
                f"2\r\n{{}}\r\n0\r\nauthorization: Bearer {episode.key}\r\n\r\n"
            )
            return await talk(served, data.encode())

    answer: Any = serve(test)
    assert answer.startswith(b"HTTP/1.1 401 ")
